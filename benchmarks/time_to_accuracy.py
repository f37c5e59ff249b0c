"""CIFAR-10 from scratch within ten minutes of one core: vitlab's `small-data` recipe beside a plain timm ViT.

    python benchmarks/time_to_accuracy.py                        both, with timm installed
    python benchmarks/time_to_accuracy.py --only vitlab --budget 60

What is counted is CPU time of the training process, on one thread: opening and decoding the images, building the model,
reading batches and augmenting them, forward, backward, clipping, optimiser, writing the log. So a busy machine changes little.
Not counted: importing libraries, the few updates by which vitlab's pace is measured beforehand, and the judgement at the end, on
the 10,000 test images, once, with no averaging of views. Both know the budget: vitlab as a number of updates from the measured
pace, the baseline as a learning rate that falls with the time spent.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

from benchmarks.peers import peer
from vitlab.config import Machine, Overrides
from vitlab.config.data import Augment, DecodeLimits, LoaderConfig
from vitlab.config.run import RunConfig
from vitlab.config.train import scale_at
from vitlab.data.loader import Loader
from vitlab.data.opening import open_dataset
from vitlab.data.transforms import training_pipeline
from vitlab.models.device import has_fast_bfloat16
from vitlab.recipes import recipe
from vitlab.training import train
from vitlab.training.events import Control, Finished, Started, Stepped, keep_memory
from vitlab.training.plan import survey

_TRIED = 40  # updates by which the pace is measured
_SPARE = 0.97  # share of the budget to plan for: the pace of another minute is another


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one contender: test accuracy in [0, 1], and what it took."""

    name: str
    accuracy: float
    images: int
    updates: int
    processor_seconds: float
    wall_seconds: float
    parameters: int
    seed: int


def small_data(data: Path, *, seed: int, held_out: bool = False) -> RunConfig:
    """The recipe with the settings of this benchmark: one core, and one evaluation on the test images at the end.

    `held_out`: on a tenth of the training images instead, which are not trained on, to choose settings.
    """
    run = recipe("small-data", Overrides(seed=seed), data=survey(str(data)), machine=Machine(cores=1, bfloat16=has_fast_bfloat16()))
    loader = replace(run.data.loader, workers=0)  # reading is part of the work, so this process does it
    return replace(
        run,
        data=replace(
            run.data,
            loader=loader,
            train_split="train" if held_out else "train+val",
            evaluate_split="val" if held_out else "test",
        ),
        train=replace(run.train, evaluate_every=0, save_every=0),
    )


def vitlab(run: RunConfig, *, budget: float) -> Result:
    """Train as `vitlab.training` does, as many updates as the budget holds."""
    blind = replace(run, data=replace(run.data, evaluate_split=None))
    seconds = _trained(_of_steps(blind, _TRIED), limit=budget)[1]
    scales = [scale_at(step, steps=_TRIED, resizing=run.train.progressive_resizing) for step in range(_TRIED)]
    opening, first = seconds[0], scales.count(scales[0])
    pace = 0.0
    for scale in set(scales):  # the middle one of the updates of each size; the first two of all are slow
        own = [taken for step, taken in enumerate(seconds) if scales[step] == scale and (step > 1 or first <= 2)]
        pace += statistics.median(own) * scales.count(scale) / _TRIED
    result, _ = _trained(_of_steps(run, max(1, int((budget * _SPARE - opening) / pace))), limit=budget)
    return result


def _of_steps(run: RunConfig, steps: int) -> RunConfig:
    share = run.train.schedule.warmup / run.train.steps
    schedule = replace(run.train.schedule, warmup=min(round(share * steps), steps - 1))
    return replace(run, train=replace(run.train, steps=steps, schedule=schedule))


def _trained(run: RunConfig, *, limit: float) -> tuple[Result, list[float]]:
    """The result, and the CPU seconds of each update with what is before it."""
    control, accuracy, parameters, updates = Control(), math.nan, 0, 0
    began, wall = time.process_time(), time.monotonic()
    spent, waited = [0.0], 0.0
    with tempfile.TemporaryDirectory() as out:
        for event in train(run, out=out, control=control):
            if isinstance(event, Started):
                parameters = event.parameters
            elif isinstance(event, Stepped):
                spent.append(time.process_time() - began)
                waited, updates = time.monotonic() - wall, event.step
                if updates % 100 == 0:
                    print(f"  step {updates} of {run.train.steps}: loss {event.loss:.3f}, {spent[-1]:.0f} s", file=sys.stderr)
                if spent[-1] >= limit and updates < run.train.steps:
                    control.stop = "max-time"
            elif isinstance(event, Finished):
                accuracy = event.metrics.get("top1", math.nan)
        if math.isnan(accuracy) and run.data.evaluate_split is not None:  # stopped by the budget: evaluate the last weights
            *_, last = train(_of_steps(run, updates), out=out, override=True)
            assert isinstance(last, Finished)
            accuracy = last.metrics["top1"]
    result = Result(
        name="vitlab small-data",
        accuracy=accuracy,
        images=updates * run.data.loader.batch_size,
        updates=updates,
        processor_seconds=spent[-1],
        wall_seconds=waited,
        parameters=parameters,
        seed=run.train.seed,
    )
    return result, np.diff(spent).tolist()


def baseline(data: Path, *, budget: float, seed: int) -> Result:
    """The plainest good loop around timm's ViT: patch 4, width 192, depth 6, AdamW, cosine over the budget."""
    torch.manual_seed(seed)
    vit = peer("timm.models.vision_transformer").VisionTransformer
    model = vit(img_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3, num_classes=10)
    began, wall = time.process_time(), time.monotonic()
    pipeline = training_pipeline(Augment(image_size=(32, 32), crop="pad", padding=4, fill=0), channels=3, limits=DecodeLimits())
    dataset = open_dataset(data, split="train")
    loader = Loader(dataset, pipeline, config=LoaderConfig(batch_size=128, workers=0, seed=seed, cache="memory"), train=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    updates = 0
    with loader, loader.batches() as stream:
        while (spent := time.process_time() - began) < budget:
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * (1 + math.cos(math.pi * spent / budget)) / 2
            batch = next(stream)
            loss = F.cross_entropy(
                model(_normalised(batch.images_BHWC)), torch.from_numpy(batch.labels).long(), label_smoothing=0.1
            )
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            updates += 1
            if updates % 100 == 0:
                print(f"  step {updates}: loss {loss.item():.3f}, {spent:.0f} s", file=sys.stderr)
    waited = time.monotonic() - wall
    return Result(
        name="timm ViT, patch 4, width 192, depth 6",
        accuracy=_accuracy(model, data),
        images=updates * 128,
        updates=updates,
        processor_seconds=spent,
        wall_seconds=waited,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        seed=seed,
    )


def _normalised(images_BHWC: np.typing.NDArray[np.uint8]) -> torch.Tensor:
    """As everyone feeds CIFAR-10: by its own mean and standard deviation."""
    mean_C, std_C = torch.tensor([125.3, 123.0, 113.9]), torch.tensor([63.0, 62.1, 66.7])
    return ((torch.from_numpy(images_BHWC).float() - mean_C) / std_C).permute(0, 3, 1, 2)


@torch.inference_mode()
def _accuracy(model: torch.nn.Module, data: Path) -> float:
    pipeline = training_pipeline(Augment(image_size=(32, 32), crop="squash", flip=0.0), channels=3, limits=DecodeLimits())
    loader = Loader(open_dataset(data, split="test"), pipeline, config=LoaderConfig(batch_size=500, workers=0), train=False)
    model.eval()
    right, seen = 0, 0
    with loader, loader.batches() as stream:
        for batch in stream:
            logits_BC = model(_normalised(batch.images_BHWC))
            right += int((logits_BC.argmax(1) == torch.from_numpy(batch.labels)).sum())
            seen += len(batch.labels)
    return right / seen


def main() -> None:
    """Train one or both, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    beside = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("VITLAB_DATA") or beside))
    parser.add_argument("--budget", type=float, default=600.0, help="CPU seconds of training")
    parser.add_argument("--only", choices=["vitlab", "baseline"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="evaluate vitlab on held-out training images, not on test")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()  # as the command line does
    data = told.data / "cifar10_jpeg.npz" if told.data.is_dir() else told.data
    results = []
    if told.only != "baseline":
        results.append(vitlab(small_data(data, seed=told.seed, held_out=told.held_out), budget=told.budget))
    if told.only != "vitlab":
        results.append(baseline(data, budget=told.budget, seed=told.seed))
    if told.json:
        print(json.dumps([{name: getattr(result, name) for name in result.__dataclass_fields__} for result in results]))
        return
    print(f"{'':38} {'test':>7} {'images':>9} {'updates':>8} {'cpu s':>6} {'wall s':>7} {'parameters':>11}")
    for result in results:
        print(
            f"{result.name:38} {result.accuracy:7.2%} {result.images:9,} {result.updates:8,}"
            f" {result.processor_seconds:6.0f} {result.wall_seconds:7.0f} {result.parameters:11,}"
        )


if __name__ == "__main__":
    main()
