"""Two ranks under torchrun: the same run as one, and it goes on as one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.train.small import last, run_to, small_run, without_noise
from vitlab.config import variant
from vitlab.config.run import RunConfig
from vitlab.config.text import to_text
from vitlab.config.train import Strategy
from vitlab.model import build
from vitlab.train.distributed import World
from vitlab.train.snapshot import Snapshot

RANK = r"""
import os, sys
from pathlib import Path
from vitlab.config.run import RunConfig
from vitlab.config.text import from_text
from vitlab.train import train
from vitlab.train.control import Control
control = Control()
for event in train(from_text(RunConfig, Path(sys.argv[1]).read_text()), out=sys.argv[2], control=control):
    if event.event == "stepped":
        os.write(1, f"{os.getpid()} {os.environ['RANK']} {event.step}\n".encode())  # one write: two ranks share the pipe
        if event.step == int(sys.argv[3]):
            control.ask_stop("terminated")
"""


def even(*, steps: int = 8) -> RunConfig:
    """A run without dropout whose ranks have an even number of pictures, so that mixup pairs do not cross ranks."""
    run = without_noise(small_run(steps=steps))
    return replace(run, train=replace(run.train, micro_batch=3))


def torchrun(run: RunConfig, folder: Path, *, stop: int = -1, ranks: int = 2) -> subprocess.Popen[str]:
    (folder / "rank.py").write_text(RANK)
    (folder / "wanted.json").write_text(to_text(run))
    words = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--master-port=0", "--rdzv-backend=c10d"]
    words += ["--rdzv-endpoint=localhost:0", str(folder / "rank.py"), str(folder / "wanted.json"), str(folder / "run"), str(stop)]
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said


def near(one: Snapshot, other: Snapshot) -> None:
    for name, tensor in one.model.items():
        torch.testing.assert_close(tensor, other.model[name], atol=1e-4, rtol=0)


def losses_of(out: Path) -> list[float]:
    events = map(json.loads, (out / "events.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event["event"] == "stepped"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_make_the_same_run_as_one(strategy: Strategy, tmp_path: Path) -> None:
    run = even()
    finish(torchrun(replace(run, train=replace(run.train, strategy=strategy)), tmp_path))
    run_to(run, tmp_path / "alone")
    assert losses_of(tmp_path / "run") == pytest.approx(losses_of(tmp_path / "alone"), abs=1e-5)
    near(last(tmp_path / "run"), last(tmp_path / "alone"))


def test_a_run_goes_from_one_rank_to_two_and_back(tmp_path: Path) -> None:
    run = even(steps=9)
    run_to(run, tmp_path / "run", stop=3)
    finish(torchrun(run, tmp_path, stop=6))
    assert last(tmp_path / "run").progress.step == 6
    run_to(run, tmp_path / "run")
    run_to(run, tmp_path / "alone")
    assert losses_of(tmp_path / "run") == pytest.approx(losses_of(tmp_path / "alone"), abs=1e-5)
    near(last(tmp_path / "run"), last(tmp_path / "alone"))


def test_a_killed_rank_ends_the_job_within_a_minute_and_nothing_is_lost(tmp_path: Path) -> None:
    run = even(steps=100_000)
    with torchrun(run, tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            pid, rank, step = map(int, line.split())
            if rank == 1 and step >= 3:
                os.kill(pid, signal.SIGKILL)
                break
        began = time.monotonic()
        process.communicate(timeout=90)
    assert process.returncode != 0
    assert time.monotonic() - began < 60
    assert last(tmp_path / "run").progress.step >= 2


def test_the_largest_vit_is_shared_out_on_the_meta_device() -> None:
    """Each of 8 ranks would hold an eighth of every layer of a ViT-G/14; nothing is allocated."""
    model = build(variant("ViT-G/14"), device="meta")
    bytes_whole = sum(parameter.numel() * 4 for parameter in model.parameters())
    ranks = 8
    parts = sum(-(-parameter.shape[0] // ranks) * parameter[0].numel() * 4 for parameter in model.parameters())
    assert bytes_whole == 1_844_440_680 * 4
    assert parts < 1.02 * bytes_whole / ranks


def test_a_world_of_one_sums_and_gathers_itself() -> None:
    alone = World()
    assert alone.leads
    assert alone.sum(torch.tensor([2.0])).tolist() == [2.0]
    assert alone.gather("a") == ["a"]
    assert alone.any(True)
    assert not alone.any(False)
