"""`vitlab train` as several processes: workers that read images, and ranks that share the work."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import processes
from tests.processes import LIMIT, descendants, eventually, is_running, shared_memory, started
from tests.training.small import last, small_run
from tests.warm import torchrun
from vitlab.config.run import RunConfig
from vitlab.config.serialize import to_text
from vitlab.training.run_folder import RunDirectory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def words(run: RunConfig, folder: Path) -> list[str]:
    (folder / "run.json").write_text(to_text(run))
    return ["-m", "vitlab", "train", str(folder / "run.json"), "--out", str(folder / "out")]


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


def test_when_one_rank_fails_all_end_and_its_reason_comes_first(warm: Path, tmp_path: Path) -> None:
    """An image that only one of two ranks reads is broken."""
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c", "d"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(rng.integers(0, 256, (16, 16), np.uint8)).save(tmp_path / "data" / name / f"{number}.png")
    broken = tmp_path / "data" / "b" / "3.png"
    broken.write_bytes(broken.read_bytes()[:50])
    run = small_run(steps=1000)
    data = replace(run.data, dataset=str(tmp_path / "data"), train_split="all", evaluate_split=None)
    run = replace(run, data=data, train=replace(run.train, evaluate_every=0, micro_batch=0))
    command = torchrun(warm, *words(run, tmp_path))
    ended = processes.run(command, check=False, env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    assert ended.returncode != 0
    said = [line for line in ended.stderr.splitlines() if "error:" in line.lower()]
    assert "3.png" in said[0], ended.stderr
