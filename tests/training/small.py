"""A run small enough for a test: a miniature ViT, a few synthetic images, a step of milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from vitlab.config import Preprocess, ViTConfig, variant
from vitlab.config.data import Augment, LoaderConfig, SplitRule
from vitlab.config.run import RunConfig, RunData
from vitlab.config.train import Average, Optimizer, Schedule, TrainConfig
from vitlab.training import train
from vitlab.training.checkpointing import read_snapshot
from vitlab.training.events import Control, Event, Stepped
from vitlab.training.step import Snapshot

SIZE = (16, 16)


def small_run(*, steps: int = 20) -> RunConfig:
    """20 steps over 64 synthetic images in batches of 12: epochs end inside batches; dropout, mixup and averaging are on."""
    model = variant("ViT-Mini/8", num_classes=4, channels=1, image_size=SIZE)
    assert isinstance(model, ViTConfig)
    return RunConfig(
        name="small",
        model=replace(model, width=32, heads=2, mlp_width=32, patch_size=(4, 4), dropout=0.1, drop_path=0.2),
        preprocess=Preprocess(image_size=SIZE, resize="squash", mean=(0.5,), std=(0.5,)),
        data=RunData(
            dataset="synthetic:kind=contours,classes=4,samples_per_class=16,image_size=16",
            rule=SplitRule(val=0.25, test=0.25),
            augment=Augment(image_size=SIZE, mixup=0.3),
            loader=LoaderConfig(batch_size=12, workers=0),
        ),
        train=TrainConfig(
            steps=steps,
            optimizer=Optimizer(lr=3e-3, weight_decay=0.1),
            schedule=Schedule(warmup=4),
            average=Average(decay=0.9),
            micro_batch=5,
            evaluate_every=10,
            save_every=1,
        ),
    )


def run_to(
    run: RunConfig, out: Path, *, stop: int | None = None, control: Control | None = None, override: bool = False
) -> list[Event]:
    """Train, and request a stop after step `stop`."""
    control = control or Control()
    seen = []
    for event in train(run, out=out, control=control, override=override):
        seen.append(event)
        if isinstance(event, Stepped) and event.step == stop:
            control.request_stop("terminated")
    return seen


def losses(events: Iterator[Event] | list[Event]) -> list[tuple[int, float]]:
    """(step, loss) of each step."""
    return [(event.step, event.loss) for event in events if isinstance(event, Stepped)]


def last(out: Path) -> Snapshot:
    """The run's last checkpoint."""
    return read_snapshot(out / "last")


def same(one: Snapshot, other: Snapshot) -> bool:
    """Whether two checkpoints hold the same bits: weights, optimizer, average."""
    pairs = [(one.model, other.model), (one.optimizer, other.optimizer), (one.average or {}, other.average or {})]
    return all(a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in pairs)


def without_noise(run: RunConfig) -> RunConfig:
    """The same run with SGD and without dropout, whose result depends only on the order of summation."""
    assert isinstance(run.model, ViTConfig)
    model = replace(run.model, dropout=0.0, drop_path=0.0)
    return replace(run, model=model, train=replace(run.train, optimizer=Optimizer(kind="sgd", lr=0.1)))
