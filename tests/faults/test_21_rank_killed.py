"""One of two ranks is killed: the job ends, and resumes from the last checkpoint that all ranks completed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests import processes
from tests.training.small import last, run_to
from tests.training.test_distributed import Job, by, even, near, two_ranks
from vitlab.training.run_folder import RunDirectory


def test_a_killed_rank_ends_the_job_and_leaves_its_checkpoint(warm: Path, tmp_path: Path) -> None:
    with two_ranks([Job(run=even(steps=100_000), out=tmp_path / "run")], tmp_path, warm) as process:
        assert process.stdout is not None
        for line in process.stdout:
            pid, rank, _, step = line.split()
            if rank == "1" and int(step) >= 3:
                os.kill(int(pid), signal.SIGKILL)
                break
        process.communicate(timeout=processes.LIMIT)
    assert process.returncode != 0
    assert last(tmp_path / "run").progress.step >= 2


def test_a_rank_killed_between_its_part_and_the_rename_leaves_the_previous_checkpoint(warm: Path, tmp_path: Path) -> None:
    job = Job(run=by(even(steps=9), "fsdp"), out=tmp_path / "run", fault="dies-before-telling", at=4)
    with two_ranks([job], tmp_path, warm) as process:
        process.communicate(timeout=processes.LIMIT)
    assert process.returncode != 0
    directory = RunDirectory(tmp_path / "run")
    reached = last(tmp_path / "run").progress.step
    assert reached in (3, 4)  # the save after update 4 may still have had a rank that tells
    assert directory.steps()[-1] == reached
    run_to(even(steps=9), tmp_path / "run")
    assert not [path.name for path in (tmp_path / "run").rglob(".*")]
    run_to(even(steps=9), tmp_path / "alone")
    near(last(tmp_path / "run"), last(tmp_path / "alone"))
