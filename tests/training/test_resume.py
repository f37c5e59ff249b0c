"""A run that is stopped and resumed ends bit for bit like an uninterrupted one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.small import last, losses, run_to, same, small_run, without_noise
from vitlab.config.run import RunConfig
from vitlab.config.train import Masked
from vitlab.data.opening import open_dataset
from vitlab.errors import ConfigError, TrainingError
from vitlab.training import train
from vitlab.training.events import Evaluated, Finished, Started, Warned
from vitlab.training.run_folder import RunDirectory


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(small_run(), out)
    return out


@pytest.mark.parametrize("stop", [1, 7, 16])  # within the warm-up; in mid-epoch; right after an epoch's end
def test_a_resumed_run_equals_an_uninterrupted_one(stop: int, uninterrupted: Path, tmp_path: Path) -> None:
    first = run_to(small_run(), tmp_path / "run", stop=stop)
    assert isinstance(first[-1], Finished)
    assert (first[-1].reason, first[-1].step) == ("terminated", stop)
    second = run_to(small_run(), tmp_path / "run")
    assert isinstance(second[0], Started)
    assert second[0].resumed
    assert same(last(tmp_path / "run"), last(uninterrupted))
    told = RunDirectory(tmp_path / "run").events()
    whole = RunDirectory(uninterrupted).events()
    for kind in ("stepped", "evaluated"):
        mine = [(event["step"], event.get("loss"), event.get("metrics")) for event in told if event["event"] == kind]
        assert mine == [(event["step"], event.get("loss"), event.get("metrics")) for event in whole if event["event"] == kind]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_changes_no_bit(workers: int, uninterrupted: Path, tmp_path: Path) -> None:
    run = small_run()
    loader = replace(run.data.loader, workers=workers)
    other = replace(run, data=replace(run.data, loader=loader))
    run_to(other, tmp_path / "run", stop=7)
    run_to(other, tmp_path / "run")
    assert same(last(tmp_path / "run"), last(uninterrupted))


def test_runs_of_one_seed_are_equal_and_of_two_seeds_differ(uninterrupted: Path, tmp_path: Path) -> None:
    run_to(small_run(), tmp_path / "again")
    assert same(last(tmp_path / "again"), last(uninterrupted))
    run = small_run()
    run_to(replace(run, train=replace(run.train, seed=5)), tmp_path / "other")
    assert not same(last(tmp_path / "other"), last(uninterrupted))


def test_the_micro_batch_size_changes_nothing_but_rounding(tmp_path: Path) -> None:
    still = without_noise(small_run(steps=6))
    whole = run_to(replace(still, train=replace(still.train, micro_batch=0)), tmp_path / "whole")
    parts = run_to(replace(still, train=replace(still.train, micro_batch=5)), tmp_path / "parts")
    for (_, one), (_, other) in zip(losses(whole), losses(parts), strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    for name, tensor in last(tmp_path / "whole").model.items():
        torch.testing.assert_close(tensor, last(tmp_path / "parts").model[name], atol=1e-6, rtol=1e-5)


def masked_run() -> RunConfig:
    run = small_run(steps=8)
    augment = replace(run.data.augment, mixup=0.0)
    return replace(
        run, data=replace(run.data, augment=augment), train=replace(run.train, masked=Masked(target="pixels"), evaluate_every=4)
    )


def test_masked_prediction_resumes_exactly(tmp_path: Path) -> None:
    run_to(masked_run(), tmp_path / "whole")
    run_to(masked_run(), tmp_path / "parts", stop=3)
    run_to(masked_run(), tmp_path / "parts")
    one, other = last(tmp_path / "whole"), last(tmp_path / "parts")
    assert same(one, other)
    assert one.extra.keys() == {"mask_token", "predict.weight", "predict.bias"}
    assert all(torch.equal(one.extra[name], other.extra[name]) for name in one.extra)


def test_a_changed_config_is_refused_with_the_difference_unless_overridden(tmp_path: Path) -> None:
    run = small_run()
    run_to(run, tmp_path / "run", stop=2)
    changed = replace(run, train=replace(run.train, smoothing=0.1))
    with pytest.raises(ConfigError) as caught:
        run_to(changed, tmp_path / "run")
    assert caught.value.message.endswith("another config: train.smoothing 0.0 -> 0.1")
    run_to(changed, tmp_path / "run", override=True)
    assert RunDirectory(tmp_path / "run").config() == changed


def test_settings_that_do_not_affect_the_weights_may_change_on_resume(uninterrupted: Path, tmp_path: Path) -> None:
    run = small_run()
    run_to(run, tmp_path / "run", stop=2)
    loader = replace(run.data.loader, workers=1, worker_kind="thread", prefetch=3)
    train = replace(run.train, save_every=7, keep=3, max_minutes=60.0, evaluate_every=5)
    run_to(replace(run, data=replace(run.data, loader=loader), train=train), tmp_path / "run")
    assert same(last(uninterrupted), last(tmp_path / "run"))


def test_a_damaged_checkpoint_is_ignored_with_a_warning(uninterrupted: Path, tmp_path: Path) -> None:
    run_to(small_run(), tmp_path / "run", stop=7)
    directory = RunDirectory(tmp_path / "run")
    run = replace(small_run(), train=replace(small_run().train, keep=3))
    assert directory.steps() == [7]
    path = directory.step_path(7) / "optimizer.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(TrainingError, match="no checkpoint"):
        run_to(small_run(), tmp_path / "run")
    kept = tmp_path / "kept"
    run_to(run, kept, stop=7)
    assert RunDirectory(kept).steps() == [5, 6, 7]
    (RunDirectory(kept).step_path(7) / "model.safetensors").write_bytes(b"")
    events = run_to(run, kept)
    assert any(isinstance(event, Warned) and "step 7" in event.message for event in events)
    assert isinstance(events[0], Started)
    assert events[0].step == 6
    assert same(last(kept), last(uninterrupted))


def test_evaluation_uses_the_averaged_weights_and_leaves_the_others_alone(uninterrupted: Path) -> None:
    told = [event for event in RunDirectory(uninterrupted).events() if event["event"] == "evaluated"]
    assert [event["step"] for event in told] == [10, 20]
    assert all(event["averaged"] for event in told)
    assert Evaluated.event == "evaluated"


def test_a_checkpoint_of_version_0_1_0_resumes(tmp_path: Path) -> None:
    """Its progress.json has the old names."""
    run_to(small_run(), tmp_path / "run", stop=3)
    path = tmp_path / "run" / "last" / "progress.json"
    data = json.loads(path.read_text())
    progress = data["progress"]
    progress |= {"unseen": progress.pop("evaluation_due"), "in_a_row": progress.pop("skipped_in_a_row")}
    del data["sha256"]
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(data | {"sha256": digest}))
    started = run_to(small_run(), tmp_path / "run", stop=4)[0]
    assert isinstance(started, Started)
    assert (started.resumed, started.step) == (True, 3)


def test_a_dataset_that_is_open_is_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(small_run(steps=6), data=replace(small_run().data, dataset="digits"))
    model = replace(run.model, num_classes=10)
    run = replace(run, model=model, train=replace(run.train, evaluate_every=0))
    run_to(run, tmp_path / "alone")
    dataset = open_dataset("digits", split="all")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the dataset is opened again")

    monkeypatch.setattr("vitlab.training.trainer.open_dataset", refuse)
    monkeypatch.setattr("vitlab.training.state.open_dataset", refuse)
    list(train(run, out=tmp_path / "given", dataset=dataset))
    assert same(last(tmp_path / "given"), last(tmp_path / "alone"))
