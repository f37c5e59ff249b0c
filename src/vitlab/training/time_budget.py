"""A time budget: the best run of so many minutes on this machine.

The speed of reading, of a forward pass and of a training step is measured for a few seconds. Then the image size and the length
are chosen so that the schedule ends when the time does:

- little time: the features of as many training images as there is time for, at the largest image size that leaves enough of them,
  and a head fitted to these;
- more: a fitted head, then fine-tuning from it, at the checkpoint's own image size if there is time for enough images, else at a
  smaller one. Small images come first (progressive resizing);
- many images, but far smaller than the checkpoint's own: fine-tuning from a zero head, since features of such images say little.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitlab.config.model import ModelConfig
from vitlab.config.overrides import DataFacts, Overrides, StartFacts
from vitlab.config.run import RunConfig
from vitlab.config.train import Resizing, scaled, small_first, steps_of
from vitlab.data.dataset import SPLITS, Dataset, ImageDataset
from vitlab.errors import ConfigError
from vitlab.models.cost import cost
from vitlab.recipes.rules import whole_patches
from vitlab.training.callbacks import duration
from vitlab.training.plan import Speed, fit_seconds, mean_macs, measure_speed

_SIZE_STEP = 32  # pixels between two image sizes that are considered
_LEAST_SIZE = 96  # of the model, and of images that are small at first
_ENOUGH_EPOCHS = 8.0  # fine-tuning takes the largest image size that leaves so many ...
_ENOUGH_IMAGES = 20_000  # ... or so many images, of larger data one epoch ...
_PLENTY_OF_IMAGES = 50_000  # ... or so many: there, more images are worth more than larger ones; if none does, ...
_SMALL_IMAGES = 15_000  # ... for such data the smallest that leaves so many, ...
_FEWEST_EPOCHS = 1.5  # ... the largest that leaves so many epochs, ...
_ENLARGED = 1.25  # ... of those that are this many times the side of the images; or the checkpoint's own, ...
_FEWEST_IMAGES = 1_600  # ... with time for so many images, or an epoch; else there is only a head, fitted to larger images
_HEAD_IMAGES = 500  # a head is fitted to at least so many, ...
_HEAD_IMAGES_OF_CLASS = 30  # ... and so many of each class on average, or all: larger images are worth more than more images; ...
_FEW_PIXELS = (
    0.5  # of the checkpoint's image size: with fewer, and time for `_SMALL_IMAGES`, a zero head is better than a fitted one
)
_FEWEST_HEAD = 50  # ... if there is no time for these, to as many of the smallest images as there is time for, so many at least
_ENOUGH_OF_CLASS = 100  # if fine-tuning follows, more of each class are not worth their time ...
_HEAD_TIME = 0.4  # ... nor more than this part of the time
_MOST_EPOCHS = 30.0
_PLANNED = 0.98  # of the time: machines are not steady. A run that is late shortens its schedule (`finish_within`)
_LEAST_MINUTES = 0.01  # for the steps, if measuring has taken all of the time
_FIXED_SECONDS = 2.0  # to write checkpoints and the model
_MEASURING = 0.03  # of the time, and at most `_MOST_MEASURING` seconds, to measure training steps
_MOST_MEASURING = 6.0
_AGAIN = 2.0  # minutes: with more, the speed is measured again at the image size that is chosen
_EVALUATIONS = 6  # of a run that fine-tunes: of the head, and five times on the way ...
_EVALUATING = 0.15  # ... or, if these took more of the time, only at the end, ...
_EVALUATING_ONCE = 0.1  # ... and if that took more of the time, on some of the held-out images, ...
_EVALUATED_IMAGES = 100  # ... but at least so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgeted:
    """What was chosen: the image size and the steps, 0 for a fitted head alone; `seconds` is what the run takes.

    `resizing` is progressive resizing. `evaluated_once`: fine-tuning is evaluated at its end alone. `after` are the seconds
    after the last step. `head_images` are those that the head is fitted to, `evaluate_images` those of the evaluation; 0 for all.
    `zero_head`: the head starts at zero, though a fitted one was possible.
    """

    image_size: tuple[int, int]
    steps: int
    seconds: float
    resizing: Resizing = ()
    evaluated_once: bool = False
    after: float = 0.0
    head_images: int = 0
    evaluate_images: int = 0
    zero_head: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePlan:
    """The best run of a time budget: `overrides` of its recipe, what no override says, and a `sentence` about it."""

    minutes: float
    overrides: Overrides
    finish_within: float
    head_images: int
    evaluate_images: int
    sentence: str

    def applied(self, run: RunConfig) -> RunConfig:
        """The run that the recipe made of `overrides`, as planned."""
        train = replace(run.train, minutes=self.minutes, finish_within=self.finish_within, head_images=self.head_images)
        return replace(run, train=train, data=replace(run.data, evaluate_images=self.evaluate_images))


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
) -> TimePlan:
    """The image size, the steps and the head of the best run of so many minutes, with the reason.

    `make` makes the run with some overrides, `dataset` is the whole dataset, `start` the checkpoint if there is one. The minutes
    count from `began` (time.monotonic). `stored` is the run that is in the folder already: one that was planned for the same time
    is resumed as it was planned.
    """
    run = make(overrides)
    either_head = overrides.head is None and run.start is not None and run.train.loss == "softmax"
    if either_head:
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
        return TimePlan(
            minutes=minutes,
            overrides=planned,
            finish_within=stored.train.finish_within,
            head_images=stored.train.head_images,
            evaluate_images=stored.data.evaluate_images,
            sentence=f"time: planned for {_minutes(minutes)} when the run was started",
        )
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
            pretrained_at=start.model.image_size if either_head and start is not None else None,
        )

    speed, chosen = measure_and_choose(run)
    if minutes >= _AGAIN and chosen.steps:  # a recipe may train otherwise at this size and length
        again = make(replace(overrides, image_size=chosen.image_size, steps=chosen.steps))
        if again.model.image_size != speed.image_size or again.train.lwf != run.train.lwf:
            speed, chosen = measure_and_choose(again)
    planned = replace(overrides, image_size=chosen.image_size, steps=chosen.steps, progressive_resizing=bool(chosen.resizing))
    if chosen.zero_head:
        planned = replace(planned, head="zero")
    if chosen.evaluated_once and overrides.evaluate_every is None and not run.train.patience:
        planned = replace(planned, evaluate_every=0)
    left = minutes - (time.monotonic() - began + chosen.after) / 60
    return TimePlan(
        minutes=minutes,
        overrides=planned,
        finish_within=max(left, _LEAST_MINUTES),
        head_images=chosen.head_images,
        evaluate_images=chosen.evaluate_images,
        sentence=_sentence(minutes, run, speed, chosen, data.images),
    )


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
        f"{epochs:.3g} epochs at {size}{', of smaller images at first' if chosen.resizing else ''}"
        if chosen.steps
        else f"a head fitted to features at {size}, since there is no time for more"
    )
    if chosen.zero_head:
        what += ", from a zero head"
    if chosen.head_images:
        what += f"; the head is fitted to {chosen.head_images:,} of {images:,} images"
    if chosen.evaluate_images:
        what += f"; {chosen.evaluate_images:,} of the held-out images are evaluated"
    takes = f"about {duration(chosen.seconds)} from here"
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
    pretrained_at: tuple[int, int] | None = None,
) -> Budgeted:
    """The best run like `run` that takes at most `seconds`, with one of these image sizes, smallest first.

    `spent` are the seconds of the budget that are gone already, `side` is the shorter side of the images.
    `small_images_first` is progressive resizing; None to use it where the run has it, or where it is best.
    `pretrained_at` is the checkpoint's image size, where a zero head may take the place of a fitted one; None where it may not.
    ConfigError if not even a head fitted to some of the smallest images fits into the time.
    """
    takes = _Time(run, speed, images=images, val_images=val_images, seconds=_PLANNED * seconds - _FIXED_SECONDS)
    fitting = [size for size in sizes if takes.head(size, takes.least_head) + takes.evaluation(size) <= takes.seconds]
    if not fitting and takes.affordable(sizes[0]) >= takes.fewest_head:
        return takes.head_alone(sizes[0])
    if not fitting:
        least = takes.head(sizes[0], takes.fewest_head) + min(val_images, _EVALUATED_IMAGES) * takes.forward(sizes[0])
        needed = (spent + (least + _FIXED_SECONDS) / _PLANNED) / 60
        raise ConfigError(
            f"{(spent + seconds) / 60:.2g} minutes are too few for {images:,} images",
            hint=f"give it {math.ceil(10 * needed) / 10:g} minutes or more",
        )
    for size, resizing, least in _ways(run, fitting, images, side, small_images_first):
        epochs = takes.epochs(size, resizing)
        if epochs * images >= least:
            if pretrained_at is not None and min(size) < _FEW_PIXELS * min(pretrained_at) and epochs * images >= _SMALL_IMAGES:
                takes = takes.from_zero()
                found = takes.finetuning(size, min(takes.epochs(size, resizing), _MOST_EPOCHS), resizing)
                return replace(found, zero_head=True)
            return takes.finetuning(size, min(epochs, _MOST_EPOCHS) if run.start is not None else epochs, resizing)
    return takes.head_alone(fitting[-1])


def _ways(
    run: RunConfig, sizes: Sequence[tuple[int, int]], images: int, side: int, small_images_first: bool | None
) -> Iterator[tuple[tuple[int, int], Resizing, float]]:
    """Ways to fine-tune, best first: the image size, how training images grow, and the images that it must have the time for."""
    own, largest, zero = run.train.progressive_resizing, sizes[-1], run.train.head == "zero"

    def rows(size: tuple[int, int]) -> Resizing:
        if small_images_first is None and zero:  # as in the paper: at one size, unless the recipe or the user says otherwise
            return own
        found = () if small_images_first is False else own or small_first(replace(run.model, image_size=size))
        too_small = found and min(scaled(size, found[0][1])) < _LEAST_SIZE
        return () if too_small and not small_images_first else found

    if zero:
        yield from ((size, rows(size), 0.0 if size == sizes[0] else _ENOUGH_EPOCHS * images) for size in reversed(sizes))
        return
    tried = [size for size in reversed(sizes) if size == largest or min(size) >= _ENLARGED * side]
    enough = max(_ENOUGH_IMAGES, min(images, _PLENTY_OF_IMAGES))
    yield from ((size, rows(size), min(_ENOUGH_EPOCHS * images, enough)) for size in tried)
    if images > _ENOUGH_IMAGES:
        yield tried[-1], rows(tried[-1]), _SMALL_IMAGES
    yield from ((size, rows(size), _FEWEST_EPOCHS * images) for size in tried)
    yield largest, rows(largest), min(images, _FEWEST_IMAGES)


def image_sizes(model: ModelConfig) -> list[tuple[int, int]]:
    """The sizes that are considered, smallest first: up to the checkpoint's own, in whole patches; its own alone if not square."""
    height, width = model.image_size
    if height != width or height <= _LEAST_SIZE:
        return [model.image_size]
    sides = range(_LEAST_SIZE, height, _SIZE_STEP)
    return list(dict.fromkeys([*(whole_patches(model, side) for side in sides), model.image_size]))


class _Time:
    """Seconds that a run takes at an image size: what was measured at one size grows with the multiply-adds.

    `seconds` is the time for the head, the steps and the evaluations.
    """

    def __init__(self, run: RunConfig, speed: Speed, *, images: int, val_images: int, seconds: float) -> None:
        self.run = run
        self.speed = speed
        self.images = images
        self.val_images = val_images
        self.seconds = seconds
        self.macs = cost(replace(run.model, image_size=speed.image_size)).macs
        self.fitted = run.train.head == "fitted"
        self.least_head = min(images, max(_HEAD_IMAGES, _HEAD_IMAGES_OF_CLASS * run.model.num_classes)) if self.fitted else 0
        self.fewest_head = min(images, max(_FEWEST_HEAD, 2 * run.model.num_classes)) if self.fitted else 1

    def from_zero(self) -> _Time:
        """The same with a zero head."""
        run = replace(self.run, train=replace(self.run.train, head="zero"))
        return _Time(run, self.speed, images=self.images, val_images=self.val_images, seconds=self.seconds)

    def head_alone(self, size: tuple[int, int]) -> Budgeted:
        """A head fitted to as many images as there is time for."""
        count = min(self.images, self.affordable(size))
        seconds = self.head(size, count) + self.evaluation(size) + _FIXED_SECONDS
        return self._some(Budgeted(image_size=size, steps=0, seconds=seconds), count)

    def finetuning(self, size: tuple[int, int], epochs: float, resizing: Resizing) -> Budgeted:
        """So many epochs after the head is fitted, or from a zero head."""
        count = self._head_before(size)
        seconds = self.head(size, count) + self.evaluations(size) + epochs * self.epoch(size, resizing) + _FIXED_SECONDS
        chosen = Budgeted(
            image_size=size,
            steps=steps_of(epochs, self.images, self.run.data.loader.batch_size),
            seconds=seconds,
            resizing=resizing,
            evaluated_once=not self._evaluates_often(size),
            after=self.evaluation(size) + _FIXED_SECONDS,
        )
        return self._some(chosen, count)

    def _some(self, chosen: Budgeted, head_images: int) -> Budgeted:
        """With the images of the head and of the evaluation, where these are not all."""
        evaluated = self._evaluated(chosen.image_size)
        return replace(
            chosen,
            head_images=head_images if self.fitted and head_images < self.images else 0,
            evaluate_images=evaluated if evaluated < self.val_images else 0,
        )

    def affordable(self, size: tuple[int, int], part: float = 1.0) -> int:
        """The images that a head can be fitted to in a part of the time, beside one evaluation; none without a fitted head."""
        seconds = part * self.seconds - (self.evaluation(size) if part == 1 else 0.0)
        return int(seconds / (self.forward(size) + fit_seconds(self.run.model, 1))) if self.fitted else 0

    def _head_before(self, size: tuple[int, int]) -> int:
        """The images of a head that is fine-tuned afterwards."""
        enough = max(_HEAD_IMAGES, _ENOUGH_OF_CLASS * self.run.model.num_classes)
        return min(self.images, enough, max(self.least_head, self.affordable(size, _HEAD_TIME)))

    def head(self, size: tuple[int, int], images: int) -> float:
        """The features of so many images, and the fit; nothing without a fitted head."""
        return images * self.forward(size) + fit_seconds(self.run.model, images) if self.fitted else 0.0

    def forward(self, size: tuple[int, int]) -> float:
        """One image, read and through the model."""
        return self.speed.read + self.speed.forward * self._times(size)

    def _evaluated(self, size: tuple[int, int]) -> int:
        """Held-out images that are evaluated."""
        most = int(_EVALUATING_ONCE * self.seconds / self.forward(size))
        return min(self.val_images, max(_EVALUATED_IMAGES, most))

    def evaluation(self, size: tuple[int, int]) -> float:
        """One evaluation."""
        return self._evaluated(size) * self.forward(size)

    def evaluations(self, size: tuple[int, int]) -> float:
        """All evaluations of a run that fine-tunes: that of the fitted head, and those of the steps."""
        times = _EVALUATIONS - 1 if self._evaluates_often(size) else 1
        return (times + self.fitted) * self.evaluation(size)

    def _evaluates_often(self, size: tuple[int, int]) -> bool:
        """Whether there is time to evaluate on the way."""
        return (_EVALUATIONS - 1) * self.evaluation(size) <= _EVALUATING * self.seconds

    def epoch(self, size: tuple[int, int], resizing: Resizing) -> float:
        """One pass of training over the images, on average over the run."""
        rows = resizing or ((0.0, 1.0),)
        ends = [*(start for start, _ in rows[1:]), 1.0]
        mean = sum((end - start) * self._step_times(scaled(size, scale)) for (start, scale), end in zip(rows, ends, strict=True))
        return self.images * (self.speed.read + self.speed.step * mean)

    def epochs(self, size: tuple[int, int], resizing: Resizing) -> float:
        """Passes that fit into the time besides head and evaluations; below 0 if not even those fit."""
        head = self.head(size, self._head_before(size))
        return (self.seconds - head - self.evaluations(size)) / self.epoch(size, resizing)

    def _step_times(self, size: tuple[int, int]) -> float:
        """As `_times`, on average over the patch sizes of the steps."""
        return mean_macs(self.run, replace(self.run.model, image_size=size)) / self.macs

    def _times(self, size: tuple[int, int]) -> float:
        """Multiply-adds at this size over those at the measured size."""
        return cost(replace(self.run.model, image_size=size)).macs / self.macs
