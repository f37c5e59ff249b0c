"""One of two ranks fails: all ranks end, and the first error printed is its reason."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import processes
from tests.faults.runs import words
from tests.training.small import small_run
from tests.warm import torchrun

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


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
