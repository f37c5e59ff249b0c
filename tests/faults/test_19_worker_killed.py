"""A worker that reads images is killed: the error says so, a checkpoint is written, and resuming changes no bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.runs import strike_the_worker
from vitlab.errors import DataError

pytestmark = pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="needs the children of a process in /proc"
)


def test_a_killed_worker_ends_the_run_with_its_name_and_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="was killed by SIGKILL"):
        strike_the_worker(lambda pid: os.kill(pid, signal.SIGKILL), tmp_path / "run")
