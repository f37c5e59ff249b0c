"""On the command line: pre-train on synthetic images, kill, resume, evaluate, convert to two formats, predict."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests import processes
from vitlab.checkpoints import load
from vitlab.cli.main import main
from vitlab.io.lock import locked
from vitlab.training.checkpointing import read_snapshot
from vitlab.training.run_folder import RunDirectory

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(os.name != "posix", reason="SIGKILL")]

LETTERS = "synthetic:kind=strokes,classes=4,samples_per_class=24,image_size=32"
TRAIN = ("pretrain", LETTERS, "--recipe", "quickstart", "--steps", "40", "--batch-size", "12", "--workers", "0")
OFTEN = ("--save-every", "5", "--evaluate-every", "20")


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, object]:
    """The JSON object that a command prints."""
    assert main([*map(str, words), "--json"]) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


def kill_after(out: Path, checkpoint: int, warm: Path) -> None:
    """Start the training in a process of its own, and kill it once it has that checkpoint."""
    words: list[str | Path] = [warm / "vitlab", *TRAIN, *OFTEN, "--out", out]
    with processes.started(words) as process:
        processes.eventually(lambda: max(RunDirectory(out).steps(), default=0) >= checkpoint, process)
        process.kill()
        assert process.wait(processes.LIMIT) == -signal.SIGKILL
    with locked(out / "lock"):  # free once the run's own process is gone
        pass


def test_train_kill_resume_evaluate_convert_predict(warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    kill_after(run, 10, warm)
    assert not (run / "model.safetensors").exists()
    ended = said(capsys, *TRAIN, *OFTEN, "--out", run)
    assert (ended["ended"], ended["steps"]) == ("finished", 40)

    whole = tmp_path / "whole"
    said(capsys, *TRAIN, *OFTEN, "--out", whole)
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert all(
        torch.equal(tensor, read_snapshot(whole / "last").optimizer[name])
        for name, tensor in read_snapshot(run / "last").optimizer.items()
    )

    evaluated = said(capsys, "evaluate", run / "model.safetensors", LETTERS)
    for to, name in (("timm", "timm.safetensors"), ("jax-npz", "weights.npz")):
        capsys.readouterr()
        said(capsys, "convert", run / "model.safetensors", tmp_path / name, "--to", to)
    kept, timm = load(run / "model.safetensors"), load(tmp_path / "timm.safetensors")
    images_BCHW = torch.rand(2, kept.config.channels, *kept.config.image_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(timm.model(images_BCHW), kept.model(images_BCHW), atol=1e-5, rtol=0)

    image = tmp_path / "letter.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8)).save(image)
    assert main(["predict", str(run / "model.safetensors"), str(image), "--json"]) == 0
    assert kept.labels is not None
    assert any(label in capsys.readouterr().out for label in kept.labels)
    assert evaluated
