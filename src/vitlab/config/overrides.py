"""What a recipe is told: the images, the checkpoint to begin with, the machine, and what the user wants otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from vitlab.config.data import Preprocess, SplitRule, feeding
from vitlab.config.model import ModelConfig
from vitlab.config.run import RunConfig
from vitlab.config.scaling import warmup_of
from vitlab.config.serialize import Json, to_json
from vitlab.config.train import Precision, Strategy
from vitlab.errors import ConfigError, at_least, pair


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """A set of images as far as a recipe cares.

    `source` is spelled as on the command line. `images` counts those that are learned from, `classes` is 0 where there are no
    labels. `channels` is 1 for grey and 3 for colour; `side` the usual shorter side in pixels. `imbalance` is the size of the
    largest class over that of the smallest. `parts` are those that exist, declared or made: some of train, val, test.
    """

    dataset: str
    images: int
    classes: int
    channels: int = 3
    side: int = 256
    multi_label: bool = False
    imbalance: float = 1.0
    parts: tuple[str, ...] = ("train", "val", "test")

    def __post_init__(self) -> None:
        if not self.dataset:
            raise ConfigError("data.source is empty", hint="a folder, digits, generated, or cifar10:/path")
        for name in ("images", "channels", "side"):
            at_least(f"data.{name}", getattr(self, name), 1)
        at_least("data.classes", self.classes, 0)
        at_least("data.imbalance", self.imbalance, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """The checkpoint that a run begins with: where it is, what model it holds and how that is fed."""

    path: str
    model: ModelConfig
    preprocess: Preprocess


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the run has at hand: processor cores, and whether there is an accelerator beside them."""

    cores: int = 2
    accelerator: bool = False

    def __post_init__(self) -> None:
        at_least("machine.cores", self.cores, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a recipe shall be made for. None leaves a thing to the recipe, whose rules then scale what depends on it.

    `model` is a variant's name or a whole config. `image_size` is (height, width) in pixels. `batch_size` scales the learning rate
    by the rule of `scale.py`, unless `lr`, the peak, is given too. A run's length is `steps` or `epochs`, not both.
    `preset` names AugReg's augmentation (`none`, `light1` ... `strong2`). `rule` makes the parts that the data does not declare.
    """

    data: DataFacts | None = None
    start: StartFacts | None = None
    machine: Machine = field(default_factory=Machine)
    model: str | ModelConfig | None = None
    image_size: tuple[int, int] | None = None
    batch_size: int | None = None
    steps: int | None = None
    epochs: float | None = None
    lr: float | None = None
    preset: str | None = None
    rule: SplitRule | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.image_size is not None:
            object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        for name in ("batch_size", "steps"):
            if (value := getattr(self, name)) is not None:
                at_least(name, value, 1)
        for name in ("epochs", "lr"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value} must be a positive number")
        at_least("seed", self.seed, 0)
        if self.steps is not None and self.epochs is not None:
            raise ConfigError(f"steps={self.steps} and epochs={self.epochs} both say how long the run is", hint="give one of them")


# A run with some of its settings otherwise, everything that depends on them kept in agreement; and how two runs differ.


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What shall be otherwise; None leaves a thing as it is.

    Nothing is scaled by rules here, as it is where a recipe is told a `Wish`: `batch_size` changes the batch and neither rate nor
    steps. But `steps` keeps the warm-up's share of them, `image_size` is that of model, augmentation and preprocessing, and
    `seed` that of model and images.
    """

    steps: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    image_size: tuple[int, int] | None = None
    seed: int | None = None
    workers: int | None = None
    precision: Precision | None = None
    micro_batch: int | None = None
    strategy: Strategy | None = None
    max_minutes: float | None = None
    evaluate_every: int | None = None
    save_every: int | None = None


def changed(run: RunConfig, change: Change) -> RunConfig:
    """The run with these changes; each config refuses what it cannot be."""
    train, data = run.train, run.data
    if change.steps is not None:
        at_least("steps", change.steps, 1)
        warmup = warmup_of(change.steps, share=train.schedule.warmup / train.steps, most=change.steps)
        train = replace(train, steps=change.steps, schedule=replace(train.schedule, warmup=warmup))
    if change.lr is not None:
        train = replace(train, optimizer=replace(train.optimizer, lr=change.lr))
    if change.seed is not None:
        train = replace(train, seed=change.seed)
    loader = replace(
        data.loader,
        batch_size=data.loader.batch_size if change.batch_size is None else change.batch_size,
        seed=data.loader.seed if change.seed is None else change.seed,
        workers=data.loader.workers if change.workers is None else change.workers,
    )
    train = replace(
        train,
        precision=change.precision or train.precision,
        strategy=change.strategy or train.strategy,
        micro_batch=train.micro_batch if change.micro_batch is None else change.micro_batch,
        max_minutes=train.max_minutes if change.max_minutes is None else change.max_minutes,
        evaluate_every=train.evaluate_every if change.evaluate_every is None else change.evaluate_every,
        save_every=train.save_every if change.save_every is None else change.save_every,
    )
    return _resized(replace(run, train=train, data=replace(data, loader=loader)), change.image_size)


def _resized(run: RunConfig, image_size: tuple[int, int] | None) -> RunConfig:
    if image_size is None or image_size == run.model.image_size:
        return run
    size = pair("image_size", image_size)
    model = replace(run.model, image_size=size)
    fed, _ = feeding(run.preprocess, model, resized=True)
    augment = replace(run.data.augment, image_size=size, resize_to=max(run.data.augment.resize_to, *size))
    return replace(run, model=model, preprocess=fed, data=replace(run.data, augment=augment))


def differences(before: RunConfig, after: RunConfig, *, course: bool = False) -> tuple[str, ...]:
    """`train.optimizer.lr 0.001 -> 0.003` for each setting that differs; with `course`, only what makes another model of it.

    Not of the course are the number and kind of workers and how far they read ahead, how processes share the work, how often is
    saved and how much of it kept, for how long is trained at a time and, where no patience counts them, how often is looked.
    """
    free = _FREE | (frozenset() if before.train.patience or after.train.patience else {"train.evaluate_every"})
    found, other = dict(_leaves(to_json(before))), dict(_leaves(to_json(after)))
    names = [*found, *(name for name in other if name not in found)]
    return tuple(
        f"{name} {_told(found, name)} -> {_told(other, name)}"
        for name in names
        if (name not in found or name not in other or found[name] != other[name]) and not (course and name in free)
    )


_FREE = frozenset(
    {
        "data.loader.workers",
        "data.loader.worker_kind",
        "data.loader.prefetch",
        "data.loader.timeout",
        "data.loader.cache_folder",
        "train.strategy",
        "train.save_every",
        "train.keep",
        "train.max_minutes",
    }
)


def _leaves(value: Json, name: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _told(values: dict[str, Json], name: str) -> str:
    return json.dumps(values[name]) if name in values else "nothing"
