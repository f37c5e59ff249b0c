"""What the tests of segmentation and detection from end to end have in common: a small run, and relations that hold for both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

import vitlab
from tests.training.small import last, losses, run_to, same
from vitlab.checkpoints import Checkpoint
from vitlab.config import ViTConfig, variant
from vitlab.config.data import Augment, LoaderConfig, Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.run import RunConfig, RunData
from vitlab.config.train import Average, Optimizer, Schedule, TrainConfig
from vitlab.models.vit import ViT
from vitlab.training.events import Finished

SIZE = (32, 40)


def small_vit(patch: int) -> ViTConfig:
    """A miniature ViT for images of 32 x 40 pixels."""
    model = variant("ViT-Mini/8", num_classes=4, image_size=SIZE)
    assert isinstance(model, ViTConfig)
    return replace(model, patch_size=(patch, patch))


def dense_run(data: Path, model: ModelConfig, *, steps: int, area: float, dice: float = 0.0) -> RunConfig:
    """A small run with everything that is random: crops, flips, averaging; epochs end inside batches."""
    return RunConfig(
        name="small",
        model=model,
        preprocess=Preprocess(image_size=SIZE, resize="squash", mean=(0.5,) * 3, std=(0.5,) * 3),
        data=RunData(
            dataset=str(data),
            augment=Augment(image_size=SIZE, area=(area, 1.0), brightness=0.2),
            loader=LoaderConfig(batch_size=6, workers=0),
        ),
        train=TrainConfig(
            steps=steps,
            optimizer=Optimizer(lr=3e-3, weight_decay=0.05),
            schedule=Schedule(warmup=2),
            average=Average(decay=0.9),
            dice=dice,
            micro_batch=4,
            evaluate_every=steps // 2,
            save_every=1,
        ),
    )


def undisturbed(run: RunConfig, *, lr: float = 3e-3) -> RunConfig:
    """The same run for learning: whole batches, without averaging, evaluations and checkpoints on the way."""
    train = replace(run.train, evaluate_every=0, save_every=0, micro_batch=0, average=Average(decay=0.0))
    return replace(run, train=replace(train, optimizer=replace(run.train.optimizer, lr=lr)))


def check_resume(run: RunConfig, folder: Path, *, stop: int, metrics: set[str]) -> None:
    """A run that stops at a step and resumes repeats an uninterrupted one bit by bit, and both give these metrics."""
    whole = run_to(run, folder / "whole")
    run_to(run, folder / "stopped", stop=stop)
    resumed = run_to(run, folder / "stopped")
    assert same(last(folder / "whole"), last(folder / "stopped"))
    assert losses(whole)[stop:] == losses(resumed)
    found = [next(event for event in events if isinstance(event, Finished)).metrics for events in (whole, resumed)]
    assert found[0] == found[1]
    assert set(found[0]) == metrics


def check_micro_batches(run: RunConfig, folder: Path, *, lr: float) -> None:
    """The update does not depend on the micro-batch."""
    found = []
    for size in (0, 1):
        train = replace(run.train, micro_batch=size, optimizer=Optimizer(kind="sgd", lr=lr))
        run_to(replace(run, train=train), folder / str(size))
        found.append(last(folder / str(size)).model)
    for name, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][name], atol=1e-5, rtol=1e-4)


def write_classifier(path: Path) -> ViT:
    """A checkpoint of a miniature ViT with ten classes."""
    model = vitlab.create_model("ViT-Mini/8", num_classes=10, image_size=32)
    assert isinstance(model, ViT)
    preprocess = Preprocess(image_size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    vitlab.save(Checkpoint(model=model, config=model.config, preprocess=preprocess), path)
    return model
