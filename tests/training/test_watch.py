"""`watch` shows a run from its folder alone, while it runs and after it ended."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import vitlab
from tests.training.small import run_to, small_run
from vitlab.cli.main import main
from vitlab.errors import TrainingError
from vitlab.training.callbacks import curve, progress_of, watch
from vitlab.training.run_folder import RunDirectory


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after 12 of 20 steps."""
    out = tmp_path_factory.mktemp("watched") / "run"
    run_to(small_run(), out, stop=12)
    return out


def test_a_stopped_run_is_shown_as_it_is(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = vitlab.watch(stopped)
    assert (found.running, found.state, found.step, found.steps) == (False, "stopped (terminated)", 12, 20)
    assert found.evaluated_at == 10
    assert found.loss is not None
    assert len(found.losses) == 12
    for words in ("12 of 20 (60 %)", "evaluation at step 10", "loss so far"):
        assert words in str(found)
    assert found.to_json()["state"] == "stopped (terminated)"
    assert capsys.readouterr().err == ""


def test_the_command_shows_a_stopped_run_and_succeeds(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(stopped), "--once"]) == 0  # the run's own command ended with 143
    assert "12 of 20 (60 %)" in capsys.readouterr().out


def test_of_a_sweep_the_run_that_wrote_last_is_shown(stopped: Path, tmp_path: Path) -> None:
    for place, time in (("trials/a", 2), ("trials/b", 3), ("final", 1)):
        shutil.copytree(stopped, tmp_path / place, symlinks=True)
        os.utime(tmp_path / place / "events.jsonl", (time, time))
    assert vitlab.watch(tmp_path, once=True).path == tmp_path / "trials" / "b"


def test_a_running_run_is_followed_until_it_ends(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = RunDirectory(stopped)
    looks = 0
    with directory.locked() as holds:
        assert holds is None
        assert progress_of(stopped).running
        assert watch(stopped, every=1.0, once=True).running

    class EndedError(Exception):
        pass

    def look(seconds: float) -> None:
        nonlocal looks
        looks += 1
        assert seconds == 5.0
        if looks == 2:
            raise EndedError

    with directory.locked(), pytest.raises(EndedError):
        watch(stopped, every=5.0, once=False, sleep=look)
    assert capsys.readouterr().err.splitlines() == [capsys_line(stopped)]


def capsys_line(folder: Path) -> str:
    """What a step looks like without a terminal; a step is shown once."""
    from vitlab.training.callbacks import duration

    found = progress_of(folder)
    assert found.seconds_left is not None
    return f"step 12 of 20  loss {found.loss:.4g}  {duration(found.seconds_left)} left"


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="is not the folder of a run"):
        vitlab.watch(tmp_path)


def test_a_curve_falls_with_its_losses() -> None:
    bars = curve(tuple(float(value) for value in range(100, 0, -1)), columns=10).partition(" ")[0]
    assert len(bars) == 10
    assert sorted(bars, reverse=True) == list(bars)
    assert curve((float("nan"),)) == ""
    assert curve((1.0,)).startswith("\u2581")
    assert curve((1.791, 1.794, 1.798)).endswith("  1.791 to 1.798")
