"""`--max-minutes` is over: the run ends before it with a checkpoint; a clock that is set changes nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.runs import ten
from tests.training.small import last, run_to, same, small_run
from vitlab.training.events import Finished, Saved, Stepped


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(ten(), out)
    return out


def test_a_time_limit_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    run = small_run(steps=10_000)
    events = run_to(replace(run, train=replace(run.train, max_minutes=0.02, save_every=0, evaluate_every=0)), tmp_path / "run")
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "max-time"
    assert last(tmp_path / "run").progress.step == events[-1].step > 0


def test_a_clock_that_jumps_changes_neither_the_run_nor_its_limit(
    whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The time of day may be set back or forward by years during a run; only the monotonic clock is used."""
    hours = iter(range(0, -(10**9), -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(hours)))
    run = ten()
    limited = replace(run, train=replace(run.train, max_minutes=60.0))
    events = run_to(limited, tmp_path / "run")
    monkeypatch.undo()
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "finished"
    assert all(event.seconds >= 0 for event in events if isinstance(event, Stepped | Saved | Finished))
    assert same(last(tmp_path / "run"), last(whole))
