"""A run that is killed at any moment resumes, and ends with the bits of an uninterrupted one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.training.small import last, run_to, same, small_run
from vitlab.config.run import RunConfig
from vitlab.config.serialize import to_json
from vitlab.training.run_folder import RunDirectory

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")


def long_run(*, steps: int, save_every: int = 1) -> RunConfig:
    run = small_run(steps=steps)
    return replace(run, train=replace(run.train, save_every=save_every, evaluate_every=4))


def killed(run: RunConfig, folder: Path, warm: Path, moments: list[dict[str, Any]]) -> list[dict[str, int]]:
    """The outcome of each attempt, when the run is killed at these moments, one after the other."""
    (folder / "plan.json").write_text(json.dumps({"run": to_json(run), "out": str(folder / "run"), "moments": moments}))
    done = processes.run([warm / "python", Path(__file__).with_name("deaths.py"), folder / "plan.json"])
    return list(json.loads(done.stdout))


def ends_like(run: RunConfig, out: Path, whole: Path) -> None:
    """After one more start the run equals an uninterrupted one, and leaves nothing behind."""
    run_to(run, out)
    run_to(run, whole)
    assert same(last(out), last(whole))
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    for kind in ("stepped", "evaluated"):
        told, expected = (
            [_what(event) for event in RunDirectory(place).events() if event["event"] == kind] for place in (out, whole)
        )
        assert told == expected
    assert [path.name for path in out.rglob(".*")] == []


def _what(event: dict[str, object]) -> tuple[object, ...]:
    return event["step"], event.get("loss"), event.get("metrics")


def nothing_is_lost(attempts: list[dict[str, int]], *, every: int) -> None:
    """Reported checkpoints exist, no attempt falls behind an earlier one, and at most one interval is repeated."""
    before = 0
    for attempt in attempts:
        assert attempt["kept"] >= max(attempt["saved"], before)
        assert attempt["step"] - attempt["kept"] <= every
        before = attempt["kept"]


def test_fifty_kills_during_a_run_and_the_writing_of_its_checkpoints_change_no_bit(warm: Path, tmp_path: Path) -> None:
    """38 before calls that touch a file, from the first of an attempt to the 200th, and 12 by SIGKILL at swept times."""
    run = long_run(steps=90)
    moments: list[dict[str, Any]] = [{"call": 1 + (37 * number) % 199} for number in range(38)]
    moments += [{"seconds": 0.03 * number} for number in range(12)]
    attempts = killed(run, tmp_path, warm, moments)
    assert len(attempts) == 50
    assert {attempt["code"] for attempt in attempts[:38]} == {137}
    assert all(attempt["code"] in (-9, 0) for attempt in attempts[38:])
    nothing_is_lost(attempts, every=1)
    assert attempts[37]["kept"] > 5  # it got somewhere in between
    ends_like(run, tmp_path / "run", tmp_path / "whole")


def test_a_crash_between_writing_and_rename_leaves_the_previous_checkpoint(warm: Path, tmp_path: Path) -> None:
    run = long_run(steps=6)
    names = ("run.json", "step-3", "step-3", "last", "progress.json", "events.jsonl", "step-5")
    attempts = killed(run, tmp_path, warm, [{"rename_to": name} for name in names])
    assert {attempt["code"] for attempt in attempts} == {137}
    assert [attempt["kept"] for attempt in attempts] == [0, 2, 2, 3, 3, 3, 4]  # a folder counts also while no link leads to it
    nothing_is_lost(attempts, every=1)
    ends_like(run, tmp_path / "run", tmp_path / "whole")


def test_at_most_one_interval_of_reported_steps_is_repeated(warm: Path, tmp_path: Path) -> None:
    run = long_run(steps=24, save_every=3)
    attempts = killed(run, tmp_path, warm, [{"call": 23 + 31 * number} for number in range(6)])
    nothing_is_lost(attempts, every=3)
    ends_like(run, tmp_path / "run", tmp_path / "whole")
