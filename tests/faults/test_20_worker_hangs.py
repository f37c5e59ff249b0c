"""A worker that reads images hangs: after the loader's timeout the error says so, a checkpoint is written, and resuming changes
no bit."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest

from tests.faults.runs import strike_the_worker
from vitlab.data.worker_processes import Processes
from vitlab.errors import DataError

pytestmark = pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="needs the children of a process in /proc"
)


def test_a_worker_that_hangs_ends_the_run_with_its_name_and_a_checkpoint(tmp_path: Path) -> None:
    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        for pool in [thing for thing in gc.get_objects() if type(thing) is Processes]:
            pool._timeout = 1.0  # seconds, from now on: on a busy machine a worker may take longer to start

    with pytest.raises(DataError, match=r"hangs at image .*: no progress for 1.0 s"):
        strike_the_worker(stop, tmp_path / "run")
