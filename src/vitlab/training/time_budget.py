"""A time budget: the best run of so many minutes on this machine.

The speed of reading, of a forward pass and of a training step is measured for a few seconds. Then the image size and the length
are chosen so that the schedule ends when the time does:

- too little time for one look at every image: a part of an epoch from a zero head;
- too little time for an epoch: the features once, at the largest image size that fits, and a head fitted to them;
- more: a fitted head, then fine-tuning from it, at the largest image size that leaves enough epochs, and not at sizes so small
  that a head fitted to larger images would be better;
- so much that small images at first (progressive resizing) leave enough epochs of a larger size still: that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitlab.config.model import ModelConfig
from vitlab.config.overrides import DataFacts, Overrides, StartFacts
from vitlab.config.run import RunConfig
from vitlab.config.scaling import small_first, steps_of
from vitlab.config.train import Resizing, scaled
from vitlab.data.dataset import SPLITS, Dataset, ImageDataset
from vitlab.errors import ConfigError
from vitlab.models.cost import cost
from vitlab.recipes.rules import whole_patches
from vitlab.training.plan import Speed, mean_macs, measure_speed

_SIZE_STEP = 32  # pixels between two image sizes that are considered
_LEAST_SIZE = 96
_FEWEST_EPOCHS = 1.0  # below, there is only a head fitted to the features of larger images
_ENOUGH_EPOCHS = 8.0  # fine-tuning takes the largest image size that leaves so many
_MOST_EPOCHS = 30.0
_ENLARGED = 1.25  # times the side of the images: below, a head fitted to larger images is better than fine-tuning (docs/results.md)
_PLANNED = 0.96  # of the time: machines are not steady
_FIT_SECONDS = 3e-7  # to fit a head, for each image x feature x class: some hundred steps of L-BFGS in float64
_FIXED_SECONDS = 2.0  # to write checkpoints and the model
_MEASURING = 0.03  # of the time, and at most `_MOST_MEASURING` seconds, to measure training steps
_MOST_MEASURING = 6.0
_AGAIN = 2.0  # minutes: with more, the speed is measured again at the image size that is chosen
_EVALUATIONS = 6  # of a run that fine-tunes: of the head, and five times on the way ...
_EVALUATING = 0.15  # ... or, if these took more of the time, only at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgeted:
    """What was chosen: the image size and the steps, 0 for a fitted head alone; `seconds` is what the run takes.

    `small_first`: with progressive resizing. `evaluated_once`: fine-tuning is evaluated at its end alone.
    """

    image_size: tuple[int, int]
    steps: int
    seconds: float
    small_first: bool = False
    evaluated_once: bool = False


def plan_minutes(
    minutes: float,
    make: Callable[[Overrides], RunConfig],
    overrides: Overrides,
    data: DataFacts,
    *,
    dataset: Dataset,
    start: StartFacts | None,
    device: str,
    began: float,
    stored: RunConfig | None,
) -> tuple[Overrides, str]:
    """The overrides with the image size, the steps and the head of the best run of so many minutes, and a sentence that says why.

    `make` makes the run with some overrides, `dataset` is the whole dataset, `start` the checkpoint if there is one. The minutes
    count from `began` (time.monotonic). `stored` is the run that is in the folder already: one that was planned for the same time
    is resumed as it was planned.
    """
    run = make(overrides)
    free = overrides.head is None and run.start is not None and run.train.loss == "softmax"
    if free:
        overrides = replace(overrides, head="fitted")
        run = make(overrides)
    if stored is not None and (stored.train.minutes, stored.data.dataset, stored.start) == (minutes, run.data.dataset, run.start):
        planned = replace(
            overrides,
            image_size=stored.model.image_size,
            steps=stored.train.steps,
            head=stored.train.head if run.start else None,
            progressive_resizing=bool(stored.train.progressive_resizing),
            evaluate_every=stored.train.evaluate_every if overrides.evaluate_every is None else overrides.evaluate_every,
        )
        return planned, f"time: planned for {_minutes(minutes)} when the run was started"
    given = start is None or overrides.image_size is not None or bool(overrides.patch_sizes)  # which need whole patches of each
    sizes = [run.model.image_size] if given or start is None else image_sizes(start.model)
    asked = False if overrides.patch_sizes else overrides.progressive_resizing

    def measure_and_choose(run: RunConfig) -> tuple[Speed, Budgeted]:
        """Measured at the run's image size, by which the times of others are estimated."""
        speed = measure_speed(run, dataset, device=device, seconds=min(_MEASURING * 60 * minutes, _MOST_MEASURING))
        spent = time.monotonic() - began
        return speed, choose(
            run,
            speed,
            images=data.images,
            val_images=_val_images(run, dataset, data.images),
            seconds=60 * minutes - spent,
            spent=spent,
            sizes=sizes,
            side=data.side,
            small_images_first=asked,
        )

    try:
        speed, chosen = measure_and_choose(run)
    except ConfigError:
        if not free:
            raise
        overrides = replace(overrides, head="zero")  # which needs no look at every image
        run = make(overrides)
        speed, chosen = measure_and_choose(run)
    if minutes >= _AGAIN and chosen.steps and chosen.image_size != speed.image_size:
        speed, chosen = measure_and_choose(make(replace(overrides, image_size=chosen.image_size)))
    planned = replace(
        overrides, image_size=chosen.image_size, steps=chosen.steps, progressive_resizing=chosen.small_first and chosen.steps > 0
    )
    if chosen.evaluated_once and overrides.evaluate_every is None and not run.train.patience:
        planned = replace(planned, evaluate_every=0)
    return planned, _sentence(minutes, run, speed, chosen, data.images)


def _val_images(run: RunConfig, dataset: Dataset, images: int) -> int:
    """Images of the evaluation split: as declared, or estimated from the rule that makes it."""
    if run.data.evaluate_split is None:
        return 0
    if isinstance(dataset, ImageDataset) and (declared := int(np.count_nonzero(dataset.splits == SPLITS.index("val")))):
        return declared
    rule = run.data.rule
    return round(images * rule.val / max(1 - rule.val - rule.test, 1e-9))


def _sentence(minutes: float, run: RunConfig, speed: Speed, chosen: Budgeted, images: int) -> str:
    height, width = speed.image_size
    measured = f"{1 / (speed.read + speed.step):,.0f} images/s in training and {1 / (speed.read + speed.forward):,.0f} forward"
    size = f"{chosen.image_size[0]} x {chosen.image_size[1]} pixels"
    epochs = chosen.steps * run.data.loader.batch_size / images
    what = (
        f"{epochs:.3g} epochs at {size}{', of smaller images at first' if chosen.small_first else ''}"
        if chosen.steps
        else f"a head fitted to features at {size}, since there is no time for more"
    )
    takes = f"about {chosen.seconds / 60:.2g} minutes from here"
    return f"time: {_minutes(minutes)}; measured {measured} at {height} x {width}: {what}, {takes}"


def _minutes(count: float) -> str:
    return f"{count:g} {'minute' if count == 1 else 'minutes'}"


def choose(
    run: RunConfig,
    speed: Speed,
    *,
    images: int,
    val_images: int,
    seconds: float,
    spent: float = 0.0,
    sizes: Sequence[tuple[int, int]],
    side: int,
    small_images_first: bool | None = None,
) -> Budgeted:
    """The best run like `run` that takes at most `seconds`, with one of these image sizes, smallest first.

    `spent` are the seconds of the budget that are gone already, `side` is the shorter side of the images.
    `small_images_first` is progressive resizing; None to use it where the run has it, or where it pays for larger images.
    ConfigError if not even the features of the smallest images fit into the time.
    """
    takes = _Time(run, speed, images=images, val_images=val_images)
    planned = _PLANNED * seconds - _FIXED_SECONDS
    heads = [size for size in sizes if takes.head(size) <= planned]
    if not heads:
        needed = (spent + (takes.head(sizes[0]) + _FIXED_SECONDS) / _PLANNED) / 60
        raise ConfigError(
            f"{(spent + seconds) / 60:.2g} minutes are too few for one look at {images:,} images",
            hint=f"give it {math.ceil(10 * needed) / 10:g} minutes or more",
        )

    alone = Budgeted(image_size=heads[-1], steps=0, seconds=takes.head(heads[-1]) + _FIXED_SECONDS)
    fitted = run.train.head == "fitted"
    least = min(_ENLARGED * side, min(sizes[-1])) if fitted else 0.0
    tuned = [size for size in heads if min(size) >= least]
    if not tuned:
        return alone

    def largest(*, resized: bool) -> tuple[tuple[int, int], float]:
        """The largest size that leaves enough epochs, or the smallest, and how many it leaves."""
        epochs = {size: takes.epochs(size, planned, resized=resized) for size in tuned}
        enough = [size for size in tuned if epochs[size] >= _ENOUGH_EPOCHS]
        size = enough[-1] if enough else tuned[0]
        return size, epochs[size]

    resized = bool(run.train.progressive_resizing) if small_images_first is None else small_images_first
    chosen, epochs = largest(resized=resized)
    if small_images_first is None and run.start is not None and not resized and epochs >= _ENOUGH_EPOCHS:
        larger, fewer = largest(resized=True)
        if larger > chosen:
            chosen, epochs, resized = larger, fewer, True
    if epochs < _FEWEST_EPOCHS and fitted:
        return alone
    length = min(epochs, _MOST_EPOCHS) if run.start is not None else epochs
    steps = steps_of(length, images, run.data.loader.batch_size)
    taken = takes.head(chosen) + takes.evaluations(chosen, planned) + length * takes.epoch(chosen, resized=resized)
    return Budgeted(
        image_size=chosen,
        steps=steps,
        seconds=taken + _FIXED_SECONDS,
        small_first=resized,
        evaluated_once=not takes.evaluates_often(chosen, planned),
    )


def image_sizes(model: ModelConfig) -> list[tuple[int, int]]:
    """The sizes that are considered, smallest first: up to the checkpoint's own, in whole patches; its own alone if not square."""
    height, width = model.image_size
    if height != width or height <= _LEAST_SIZE:
        return [model.image_size]
    sides = range(_LEAST_SIZE, height, _SIZE_STEP)
    return list(dict.fromkeys([*(whole_patches(model, side) for side in sides), model.image_size]))


class _Time:
    """Seconds that a run takes at an image size: what was measured at one size grows with the multiply-adds."""

    def __init__(self, run: RunConfig, speed: Speed, *, images: int, val_images: int) -> None:
        self.run = run
        self.speed = speed
        self.images = images
        self.val_images = val_images
        self.macs = cost(replace(run.model, image_size=speed.image_size)).macs

    def head(self, size: tuple[int, int]) -> float:
        """The features of all training images, the fit, and one evaluation; without a fitted head, the evaluation alone."""
        if self.run.train.head == "zero":
            return self.val_images * self.forward(size)
        fit = _FIT_SECONDS * self.images * self.run.model.feature_width * self.run.model.num_classes
        return (self.images + self.val_images) * self.forward(size) + fit

    def forward(self, size: tuple[int, int]) -> float:
        """One image, read and through the model."""
        return self.speed.read + self.speed.forward * self._times(size)

    def evaluations(self, size: tuple[int, int], seconds: float) -> float:
        """The other evaluations of a run of so many seconds that fine-tunes."""
        times = _EVALUATIONS - 1 if self.evaluates_often(size, seconds) else 1
        return times * self.val_images * self.forward(size)

    def evaluates_often(self, size: tuple[int, int], seconds: float) -> bool:
        """Whether a run of so many seconds has the time to be evaluated on the way."""
        return (_EVALUATIONS - 1) * self.val_images * self.forward(size) <= _EVALUATING * seconds

    def epoch(self, size: tuple[int, int], *, resized: bool) -> float:
        """One pass of training over the images, on average over the run; `resized`: with progressive resizing."""
        rows = self._rows(size) if resized else ()
        ends = [*(start for start, _ in rows[1:]), 1.0]
        parts = (
            [(end - start, scaled(size, scale)) for (start, scale), end in zip(rows, ends, strict=True)] if rows else [(1.0, size)]
        )
        mean = sum(fraction * self._step_times(small) for fraction, small in parts)
        return self.images * (self.speed.read + self.speed.step * mean)

    def epochs(self, size: tuple[int, int], seconds: float, *, resized: bool) -> float:
        """Passes that fit into the time besides head and evaluations; below 0 if not even those fit."""
        return (seconds - self.head(size) - self.evaluations(size, seconds)) / self.epoch(size, resized=resized)

    def _rows(self, size: tuple[int, int]) -> Resizing:
        return self.run.train.progressive_resizing or small_first(replace(self.run.model, image_size=size))

    def _step_times(self, size: tuple[int, int]) -> float:
        """As `_times`, on average over the patch sizes of the steps."""
        return mean_macs(self.run, replace(self.run.model, image_size=size)) / self.macs

    def _times(self, size: tuple[int, int]) -> float:
        """Multiply-adds at this size over those at the measured size."""
        return cost(replace(self.run.model, image_size=size)).macs / self.macs
