"""A run that is over at once, on images whose classes and file have the worst of names; and a report of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from vitlab.config.overrides import DataFacts, Overrides
from vitlab.config.run import RunConfig
from vitlab.recipes.table import recipe
from vitlab.training import train

HOSTILE = ("<script>window.owned = 1</script>", '"><img src=x onerror="window.owned = 1">', "it's & a <b>class</b>")


def write_pack(path: Path, *, classes: tuple[str, ...] = HOSTILE, each: int = 12) -> Path:
    """A pack of squares, brighter from class to class, with a train and a test part."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(classes)), each)
    level = 40 + 160 * labels // max(len(classes) - 1, 1)
    images = (level[:, None, None] + rng.integers(0, 40, (len(labels), 16, 16))).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        train_images=images,
        train_labels=labels,
        test_images=images[::2] ^ 1,
        test_labels=labels[::2],
        classes=np.array(classes),
    )
    return path


def run_of(pack: Path, *, classes: int = len(HOSTILE), steps: int = 6) -> RunConfig:
    """Six updates of the smallest ViT."""
    data = DataFacts(dataset=str(pack), images=36, classes=classes, channels=1, side=16)
    run = recipe("quickstart-finetune", Overrides(steps=steps, batch_size=6), data=data)
    loader = replace(run.data.loader, workers=0)
    return replace(run, data=replace(run.data, loader=loader), train=replace(run.train, evaluate_every=2))


def made_run(folder: Path, run: RunConfig) -> Path:
    """The folder of the finished run."""
    for _ in train(run, out=folder):
        pass
    return folder
