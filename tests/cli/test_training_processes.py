"""`vitlab train` as several processes: workers that read pictures, and ranks that share the work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.train.small import last, small_run
from vitlab.config.run import RunConfig
from vitlab.config.text import to_text
from vitlab.train.directory import RunDirectory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def descendants(pid: int) -> set[int]:
    """The processes that a process started, and theirs."""
    try:
        children = {int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()}
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return children | {below for child in children for below in descendants(child)}


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def shared_memory() -> set[str]:
    place = Path("/dev/shm")
    return {entry.name for entry in place.iterdir()} if place.is_dir() else set()


def words(run: RunConfig, folder: Path) -> list[str]:
    (folder / "run.json").write_text(to_text(run))
    return ["-m", "vitlab", "train", "--config", str(folder / "run.json"), "--out", str(folder / "out")]


def test_ctrl_c_is_one_line_and_leaves_no_worker_and_no_shared_memory(tmp_path: Path) -> None:
    run = small_run(steps=100_000)
    run = replace(run, data=replace(run.data, loader=replace(run.data.loader, workers=2)), train=replace(run.train, save_every=0))
    before = shared_memory()
    with subprocess.Popen(
        [sys.executable, *words(run, tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group as a terminal would give it
    ) as process:
        events = RunDirectory(tmp_path / "out")
        deadline = time.monotonic() + 120
        while not any(event["event"] == "stepped" for event in events.events()):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        workers = descendants(process.pid)
        assert len(workers) >= 2
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("interrupted")
    assert len([line for line in err.splitlines() if "interrupted" in line]) == 1
    deadline = time.monotonic() + 30
    while any(map(running, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while not shared_memory() <= before:  # what others have there comes and goes
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert last(tmp_path / "out").progress.step >= 1


def test_when_one_rank_fails_all_end_and_its_reason_comes_first(tmp_path: Path) -> None:
    """A picture that only one of two ranks reads is broken."""
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c", "d"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(rng.integers(0, 256, (16, 16), np.uint8)).save(tmp_path / "data" / name / f"{number}.png")
    broken = tmp_path / "data" / "b" / "3.png"
    broken.write_bytes(broken.read_bytes()[:50])
    run = small_run(steps=1000)
    data = replace(run.data, source=str(tmp_path / "data"), train_split="all", evaluate_split=None)
    run = replace(run, data=data, train=replace(run.train, evaluate_every=0, micro_batch=0))
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--rdzv-backend=c10d"]
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, *launch, "--rdzv-endpoint=localhost:0", *words(run, tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )
    assert ended.returncode != 0
    assert time.monotonic() - began < 120
    said = [line for line in ended.stderr.splitlines() if "error:" in line.lower()]
    assert "3.png" in said[0], ended.stderr
