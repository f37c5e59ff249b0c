"""A model small enough for tests that still tells images apart, and images to show it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch

from tests.data.images import jpeg, scene
from vitlab.checkpoints import Checkpoint, save
from vitlab.config import Preprocess, variant
from vitlab.config.serialize import Json
from vitlab.config.vit import ViTConfig
from vitlab.models import build

LABELS = ("cat", "dog", "owl", "emu", "yak", "ant", "bee")
FED = Preprocess(image_size=(32, 32), resize_to=36)


def checkpoint(
    labels: tuple[str, ...] | None = LABELS,
    *,
    classes: int = len(LABELS),
    seed: int = 0,
    preprocess: Preprocess = FED,
    distilled: bool = False,
    recipe: dict[str, Json] | None = None,
) -> Checkpoint:
    """A miniature ViT whose weights are random and large enough that every image gets another answer."""
    config = variant("ViT-Mini/8", num_classes=classes, channels=preprocess.channels, image_size=preprocess.image_size)
    assert isinstance(config, ViTConfig)
    if distilled:
        from dataclasses import replace

        config = replace(config, distill_token=True)
    model = build(config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return Checkpoint(model=model.eval(), config=config, preprocess=preprocess, labels=labels, recipe=recipe)


def saved(path: Path, labels: tuple[str, ...] | None = LABELS, *, seed: int = 0) -> Path:
    """The same as a file."""
    save(checkpoint(labels, seed=seed, classes=len(labels or LABELS)), path)
    return path


def photos(folder: Path, count: int, *, start: int = 0) -> list[Path]:
    """Different JPEG files, of different sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for seed in range(start, start + count):
        path = folder / f"photo-{seed:03}.jpg"
        path.write_bytes(jpeg(scene(40 + seed % 5, 52 - seed % 7, seed=seed)))
        paths.append(path)
    return paths


def zipped(path: Path, files: list[Path]) -> Path:
    """Files in a zip archive, under `in/`."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.write(file, f"in/{file.name}")
    return path
