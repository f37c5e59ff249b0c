"""Ctrl-C during `vitlab train`: one line, exit code 130, a checkpoint, and no worker and no shared memory is left."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.runs import words
from tests.processes import LIMIT, descendants, eventually, is_running, shared_memory, started
from tests.training.small import last, small_run
from vitlab.training.run_folder import RunDirectory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def test_ctrl_c_is_one_line_and_leaves_no_worker_and_no_shared_memory(tmp_path: Path) -> None:
    run = small_run(steps=100_000)
    run = replace(run, data=replace(run.data, loader=replace(run.data.loader, workers=2)), train=replace(run.train, save_every=0))
    before = shared_memory()
    with started([sys.executable, *words(run, tmp_path)]) as process:
        events = RunDirectory(tmp_path / "out")
        eventually(lambda: any(event["event"] == "stepped" for event in events.events()), process)
        workers = descendants(process.pid)
        assert len(workers) >= 2
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("stopped at step")
    assert len([line for line in err.splitlines() if "stopped at step" in line]) == 1
    eventually(lambda: not any(map(is_running, workers)))
    eventually(lambda: shared_memory() <= before)  # what others have there comes and goes
    assert last(tmp_path / "out").progress.step >= 1
