"""A run is killed at any moment: it resumes, loses at most one interval, ends with the bits of an uninterrupted run, and leaves
no file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.faults.runs import child, ends_like, killed, long_run, losses_of, nothing_is_lost, reached, wait_for
from tests.training.small import last, run_to, same, small_run
from vitlab.io.atomic import locked
from vitlab.training import train

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")


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


def test_at_most_one_interval_of_reported_steps_is_repeated(warm: Path, tmp_path: Path) -> None:
    run = long_run(steps=24, save_every=3)
    attempts = killed(run, tmp_path, warm, [{"call": 23 + 31 * number} for number in range(6)])
    nothing_is_lost(attempts, every=3)
    ends_like(run, tmp_path / "run", tmp_path / "whole")


def test_a_run_killed_several_times_ends_bit_identical_without_leftovers(warm: Path, tmp_path: Path) -> None:
    run = small_run(steps=30)
    run_to(run, tmp_path / "whole")
    for step in (1, 4, 9, 17):
        with child(run, tmp_path, warm) as process:
            wait_for(process, max(step, reached(tmp_path / "run") + 1))
            process.kill()
            process.wait(processes.LIMIT)
        with locked(tmp_path / "run" / "lock"):  # free once the run's own process is gone
            pass
        assert reached(tmp_path / "run") >= step - 2
    run_to(run, tmp_path / "run")
    assert same(last(tmp_path / "run"), last(tmp_path / "whole"))
    assert losses_of(tmp_path / "run") == losses_of(tmp_path / "whole")
    hidden = [path.name for path in (tmp_path / "run").rglob(".*")]
    assert hidden == []


def test_leftovers_of_a_killed_process_are_gone_after_the_next_start(tmp_path: Path) -> None:
    run_to(small_run(), tmp_path / "run", stop=2)
    for name in (".step-9.a1b2c3.vitlab-tmp", ".step-1.deleted"):
        (tmp_path / "run" / "checkpoints" / name).mkdir()
        (tmp_path / "run" / "checkpoints" / name / "model.safetensors").write_bytes(b"half")
    (tmp_path / "run" / ".last.new").symlink_to("checkpoints/step-2")
    next(train(small_run(), out=tmp_path / "run"))
    assert sorted(path.name for path in (tmp_path / "run").rglob("*") if path.name.startswith(".")) == []
