"""On the command line, for every task: train, kill, resume, evaluate, predict, and convert or export."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests import processes
from tests.data.box_images import CLASSES, write_boxes
from tests.data.coco_files import write_instances
from vitlab.checkpoints import load
from vitlab.cli.main import main
from vitlab.io.atomic import locked
from vitlab.training.checkpointing import read_snapshot
from vitlab.training.run_folder import RunDirectory

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(os.name != "posix", reason="SIGKILL")]

LETTERS = "synthetic:kind=strokes,classes=4,samples_per_class=24,image_size=32"
SMALL = ("--model", "ViT-Mini/8", "--steps", "10", "--batch-size", "4", "--workers", "0", "--save-every", "1", "--quiet")


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    """The JSON that a command prints."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def kill_after(checkpoint: int, warm: Path, words: tuple[str | Path, ...], out: Path) -> None:
    """Start a training in a process of its own, and kill it once it has that checkpoint."""
    with processes.started([warm / "vitlab", *words, "--out", out]) as process:
        processes.eventually(lambda: max(RunDirectory(out).steps(), default=0) >= checkpoint, process)
        process.kill()
        assert process.wait(processes.LIMIT) == -signal.SIGKILL
    with locked(out / "lock"):  # free once the run's own process is gone
        pass


def killed_and_resumed(
    words: tuple[str | Path, ...], *, at: int, steps: int, warm: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> Path:
    """A training that was killed at a step and resumed: it has the bits of one that was not, of the model and of the optimizer."""
    run, whole = folder / "run", folder / "whole"
    kill_after(at, warm, words, run)
    assert not (run / "model.safetensors").exists()
    for out in (run, whole):
        ended = said(capsys, *words, "--out", out)
        assert (ended["ended"], ended["steps"]) == ("finished", steps)
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    found, wanted = (read_snapshot(out / "last").optimizer for out in (run, whole))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    return run


def test_classify_train_kill_resume_evaluate_convert_predict_export(
    warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("pretrain", LETTERS, "--recipe", "quickstart", "--steps", "40", "--batch-size", "12", "--workers", "0")
    often = ("--save-every", "5", "--evaluate-every", "20")
    run = killed_and_resumed((*words, *often), at=10, steps=40, warm=warm, folder=tmp_path, capsys=capsys)
    evaluated = said(capsys, "evaluate", run / "model.safetensors", LETTERS)
    for to, name in (("timm", "timm.safetensors"), ("jax-npz", "weights.npz")):
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
    assert evaluated["images"] > 0
    assert said(capsys, "export", run, tmp_path / "model.pt2")["largest_difference"] < 1e-4


def test_segment_train_on_coco_kill_resume_evaluate_predict_export(
    warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From polygons and run lengths to a file for another runtime."""
    data = write_instances(tmp_path / "coco", splits={"train": range(12), "val": range(12, 16)})
    words = ("finetune", data, "--task", "segment", "--image-size", "32x40", "--layers", "0,1", "--dice", "0.5", *SMALL)
    run = killed_and_resumed(words, at=3, steps=10, warm=warm, folder=tmp_path, capsys=capsys)
    evaluated = said(capsys, "evaluate", run, data, "--split", "val")
    assert {one["class"] for one in evaluated["classes"]} == {"background", "disc", "square"}
    assert main(["predict", str(run), str(data / "val2017"), "--out", str(tmp_path / "masks")]) == 0
    assert len((tmp_path / "masks/masks.jsonl").read_text().splitlines()) == 4
    assert said(capsys, "export", run, tmp_path / "model.pt2")["largest_difference"] < 1e-4


@pytest.mark.parametrize("detector", ["grid", "tokens"])
def test_detect_train_kill_resume_evaluate_predict_export(
    detector: str, warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    data = write_boxes(tmp_path / "data", counts={"train": 12, "val": 4})
    words = ("finetune", data, "--task", "detect", "--detector", detector, "--image-size", "32x40", *SMALL)
    run = killed_and_resumed(words, at=3, steps=10, warm=warm, folder=tmp_path, capsys=capsys)
    evaluated = said(capsys, "evaluate", run, data, "--split", "val")
    assert {one["class"] for one in evaluated["classes"]} == set(CLASSES)
    assert main(["predict", str(run), str(data / "val"), "--threshold", "0", "--out", str(tmp_path / "boxes")]) == 0
    assert len((tmp_path / "boxes/boxes.jsonl").read_text().splitlines()) == 4
    assert said(capsys, "export", run, tmp_path / "model.pt2")["largest_difference"] < 1e-4


def test_any_patch_size_train_kill_resume_evaluate_predict_export(
    warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that draws a patch size for each step serves each of them: another number of tokens from the same weights."""
    words = ("finetune", LETTERS, "--image-size", "32", "--patch-sizes", "4,8,16", *SMALL)
    run = killed_and_resumed(words, at=3, steps=10, warm=warm, folder=tmp_path, capsys=capsys)
    image = tmp_path / "letter.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8)).save(image)
    scores = []
    for size in ("4", "8", "16"):
        assert said(capsys, "evaluate", run, LETTERS, "--patch-size", size)["images"] > 0
        scores.append(said(capsys, "predict", run, image, "--patch-size", size))
    assert scores[0] != scores[1] != scores[2]
    assert said(capsys, "export", run, tmp_path / "model.pt2", "--patch-size", "16")["largest_difference"] < 1e-4
