"""A run is resumed with another config: it is refused with the difference unless `--override` is given; settings that do not
affect the weights may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.small import last, run_to, same, small_run
from vitlab.errors import ConfigError
from vitlab.training.run_folder import RunDirectory


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(small_run(), out)
    return out


def test_a_changed_config_is_refused_with_the_difference_unless_overridden(tmp_path: Path) -> None:
    run = small_run()
    run_to(run, tmp_path / "run", stop=2)
    changed = replace(run, train=replace(run.train, smoothing=0.1))
    with pytest.raises(ConfigError) as caught:
        run_to(changed, tmp_path / "run")
    assert caught.value.message.endswith("another config: train.smoothing 0.0 -> 0.1")
    assert "`out`" in (caught.value.hint or "")
    run_to(changed, tmp_path / "run", override=True)
    assert RunDirectory(tmp_path / "run").config() == changed


def test_settings_that_do_not_affect_the_weights_may_change_on_resume(uninterrupted: Path, tmp_path: Path) -> None:
    run = small_run()
    run_to(run, tmp_path / "run", stop=2)
    loader = replace(run.data.loader, workers=1, worker_kind="thread", prefetch=3)
    train = replace(run.train, save_every=7, keep=3, max_minutes=60.0, evaluate_every=5)
    run_to(replace(run, data=replace(run.data, loader=loader), train=train), tmp_path / "run")
    assert same(last(uninterrupted), last(tmp_path / "run"))
