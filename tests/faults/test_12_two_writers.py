"""A second process wants to write into a run folder: it is refused and told the process and host of the first; a killed process
blocks nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import processes
from tests.faults.runs import child, reached, wait_for
from tests.training.small import run_to, small_run
from vitlab.errors import TrainingError
from vitlab.training import train


def test_a_second_process_is_refused_and_the_first_is_named(tmp_path: Path) -> None:
    first = train(small_run(), out=tmp_path / "run")
    next(first)
    with pytest.raises(TrainingError, match=f"process {os.getpid()} on "):
        next(train(small_run(), out=tmp_path / "run"))
    first.close()
    run_to(small_run(steps=20), tmp_path / "run")


def test_another_process_is_named_and_blocks_nobody_once_it_is_killed(warm: Path, tmp_path: Path) -> None:
    run = small_run(steps=100_000)
    with child(run, tmp_path, warm) as process:
        wait_for(process, 2)
        holder = (tmp_path / "run" / "lock").read_text()
        with pytest.raises(TrainingError, match=f"is in use by {holder}"):
            next(train(run, out=tmp_path / "run"))
        process.kill()
        process.wait(processes.LIMIT)
    processes.eventually(lambda: not processes.is_running(int(holder.split()[1])))
    run_to(run, tmp_path / "run", stop=reached(tmp_path / "run") + 1)
