"""What a recipe is given: facts about the data, the checkpoint and the machine, and the user's overrides.

`Overrides` is the one set of options between the command line (or a function of vitlab.api) and a `RunConfig`. A recipe applies
its own rules to some of them (a batch size scales the learning rate); `with_overrides` sets them on a config that exists already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from vitlab.config.data import PixelScale, Preprocess, Resize, SplitRule, feeding
from vitlab.config.grid_detector import DetectorKind
from vitlab.config.model import ModelConfig
from vitlab.config.run import RunConfig
from vitlab.config.segmenter import Decoder
from vitlab.config.serialize import Json, to_json
from vitlab.config.train import (
    HeadStart,
    Lora,
    Offload,
    PatchSizes,
    Precision,
    Resizing,
    Strategy,
    Trainable,
    small_first,
    warmup_of,
)
from vitlab.errors import ConfigError, at_least, pair


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """A dataset as far as a recipe needs to know it.

    `dataset` is spelled as on the command line. `images` counts the training images, `classes` is 0 if there are no labels.
    `channels` is 1 for grey, 3 for color, or another number; `mean` and `std` are those of each channel where it is another number.
    `side` is the median shorter side in pixels. `imbalance` is the size of the largest
    class divided by that of the smallest. `splits` are those that exist, declared or made: some of train, val, test. `masks`: each
    pixel has a class; `boxes`: each object has one and a box. `deep`: images have more than 8 bits; `dark`: and at the full scale
    they are almost black.
    """

    dataset: str
    images: int
    classes: int
    channels: int = 3
    side: int = 256
    multi_label: bool = False
    imbalance: float = 1.0
    splits: tuple[str, ...] = ("train", "val", "test")
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    masks: bool = False
    boxes: bool = False
    deep: bool = False
    dark: bool = False

    def __post_init__(self) -> None:
        if not self.dataset:
            raise ConfigError("data.dataset is empty", hint="a folder, digits, synthetic, or cifar10:/path")
        for name in ("images", "channels", "side"):
            at_least(f"data.{name}", getattr(self, name), 1)
        at_least("data.classes", self.classes, 0)
        at_least("data.imbalance", self.imbalance, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """The checkpoint that a run starts from: its path, its model and its preprocessing."""

    path: str
    model: ModelConfig
    preprocess: Preprocess


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of a run: its CPU cores, whether it has an accelerator, and whether its CPU has bfloat16 instructions."""

    cores: int = 2
    accelerator: bool = False
    bfloat16: bool = False

    def __post_init__(self) -> None:
        at_least("machine.cores", self.cores, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Everything a recipe knows before it decides: the data and the checkpoint, where given, and the machine."""

    data: DataFacts | None = None
    start: StartFacts | None = None
    machine: Machine = field(default_factory=Machine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Settings that replace those of a recipe or of a config. None leaves a setting as it is.

    `model` is a variant's name or a config. `image_size` is (height, width) in pixels; the model, the augmentation and the
    preprocessing get it. `patch_size` is the model's, and `patch_sizes` are those that it trains at. `resize` is how evaluation
    reaches the image size; `native` keeps aspect ratios in training too. The length of a run is `steps` or `epochs`, not both; the
    warm-up keeps its fraction of the steps. `lr` is the peak learning rate. `head` is how the new head of a fine-tuned model
    begins, and `lora` are its updates of low rank. `trainable` and `blocks` say which weights train, as in TrainConfig.
    `decoder`, `layers` and `dice` are for segmentation, as in SegmenterConfig and TrainConfig; `detector` is for detection, a
    grid or tokens. `progressive_resizing` trains on small images first. `preset` names an AugReg augmentation (`none`, `light1`
    ... `strong2`).
    `channels` are those of the model's input; `pixel_scale` is the scale of images of more than 8 bits.
    `rule` makes the splits that the data does not declare. `seed` is that of the initial weights, the sampler, the augmentation and
    dropout.

    In a recipe, `batch_size` scales the learning rate and the steps unless these are given too. On an existing config it does
    not, and `model`, `patch_size`, `resize`, `epochs`, `preset`, `channels`, `pixel_scale`, `rule`, `decoder` and `layers`,
    which only a recipe can apply, are refused.
    """

    model: str | ModelConfig | None = None
    image_size: tuple[int, int] | None = None
    patch_size: tuple[int, int] | None = None
    patch_sizes: PatchSizes | None = None
    resize: Resize | None = None
    batch_size: int | None = None
    steps: int | None = None
    epochs: float | None = None
    head: HeadStart | None = None
    lora: Lora | None = None
    progressive_resizing: bool | None = None
    trainable: Trainable | None = None
    blocks: int | None = None
    decoder: Decoder | None = None
    detector: DetectorKind | None = None
    layers: tuple[int, ...] | None = None
    dice: float | None = None
    lr: float | None = None
    preset: str | None = None
    channels: int | None = None
    pixel_scale: PixelScale | None = None
    rule: SplitRule | None = None
    seed: int | None = None
    workers: int | None = None
    precision: Precision | None = None
    micro_batch: int | None = None
    strategy: Strategy | None = None
    offload: Offload | None = None
    recompute: bool | None = None
    hang_timeout: float | None = None
    max_minutes: float | None = None
    evaluate_every: int | None = None
    save_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, pair(name, getattr(self, name)))
        for name, least in (("batch_size", 1), ("channels", 1), ("steps", 0 if self.head == "fitted" else 1), ("seed", 0)):
            if (value := getattr(self, name)) is not None:
                at_least(name, value, least)
        for name in ("epochs", "lr"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value} must be a positive number")
        if self.steps is not None and self.epochs is not None:
            raise ConfigError(
                f"`steps={self.steps}` and `epochs={self.epochs:g}` both set the length of the run", hint="give one of them"
            )


_OF_RECIPES = (
    "model",
    "patch_size",
    "resize",
    "epochs",
    "preset",
    "channels",
    "pixel_scale",
    "rule",
    "decoder",
    "layers",
    "detector",
)


def with_overrides(run: RunConfig, overrides: Overrides) -> RunConfig:
    """The run with these settings; each config refuses what it cannot be."""
    for name in _OF_RECIPES:
        if getattr(overrides, name) is not None:
            raise ConfigError(f"{name} cannot be set on a finished config", hint="give it to a recipe, or edit the config")
    train, data = run.train, run.data
    if overrides.steps is not None:
        warmup = warmup_of(overrides.steps, fraction=train.schedule.warmup / max(train.steps, 1), most=overrides.steps)
        train = replace(train, steps=overrides.steps, schedule=replace(train.schedule, warmup=warmup))
    if overrides.lr is not None:
        train = replace(train, optimizer=replace(train.optimizer, lr=overrides.lr))
    if overrides.seed is not None:
        train = replace(train, seed=overrides.seed)
    loader = replace(
        data.loader,
        batch_size=data.loader.batch_size if overrides.batch_size is None else overrides.batch_size,
        seed=data.loader.seed if overrides.seed is None else overrides.seed,
    )
    resized = _resized(replace(run, train=train, data=replace(data, loader=loader)), overrides.image_size)
    return with_execution(resized, overrides)


def with_execution(run: RunConfig, overrides: Overrides) -> RunConfig:
    """The run with those overrides that every recipe takes as they are: head, LoRA, resizing, workers, precision, intervals ..."""
    train, loader = run.train, run.data.loader
    if (overrides.lora or train.lora) and run.start is None:
        raise ConfigError(
            "lora adapts a pretrained model, and the run starts from scratch",
            hint="`start` names a checkpoint, or leave `lora` out",
        )
    if overrides.trainable not in (None, "all") and run.start is None:
        raise ConfigError(
            f"trainable={overrides.trainable!r} freezes pretrained weights, and the run starts from scratch",
            hint="`start` names a checkpoint, or leave `trainable` out",
        )
    workers = loader.workers if overrides.workers is None else overrides.workers
    train = replace(
        train,
        head=overrides.head or train.head,
        lora=overrides.lora or train.lora,
        trainable=overrides.trainable or train.trainable,
        blocks=train.blocks if overrides.blocks is None else overrides.blocks,
        dice=train.dice if overrides.dice is None else overrides.dice,
        progressive_resizing=_resizing(run, overrides),
        patch_sizes=train.patch_sizes if overrides.patch_sizes is None else overrides.patch_sizes,
        precision=overrides.precision or train.precision,
        strategy=overrides.strategy or train.strategy,
        offload=overrides.offload or train.offload,
        recompute=train.recompute if overrides.recompute is None else overrides.recompute,
        hang_timeout=train.hang_timeout if overrides.hang_timeout is None else overrides.hang_timeout,
        micro_batch=train.micro_batch if overrides.micro_batch is None else overrides.micro_batch,
        max_minutes=train.max_minutes if overrides.max_minutes is None else overrides.max_minutes,
        evaluate_every=train.evaluate_every if overrides.evaluate_every is None else overrides.evaluate_every,
        save_every=train.save_every if overrides.save_every is None else overrides.save_every,
    )
    return replace(run, train=train, data=replace(run.data, loader=replace(loader, workers=workers)))


def _resizing(run: RunConfig, overrides: Overrides) -> Resizing:
    """The rows of progressive resizing: as asked, else those that the run has; a run that draws patch sizes has none."""
    asked = overrides.progressive_resizing
    if asked is None:
        return () if overrides.patch_sizes else run.train.progressive_resizing
    rows = (run.train.progressive_resizing or small_first(run.model)) if asked else ()
    if asked and not rows:
        raise ConfigError(
            "progressive_resizing needs a ViT whose positions can be interpolated, and an image size with smaller whole patches",
            hint="leave it out",
        )
    return rows


def _resized(run: RunConfig, image_size: tuple[int, int] | None) -> RunConfig:
    if image_size is None or image_size == run.model.image_size:
        return run
    model = replace(run.model, image_size=image_size)
    preprocess, _ = feeding(run.preprocess, model, resized=True)
    augment = replace(run.data.augment, image_size=image_size, resize_to=max(run.data.augment.resize_to, *image_size))
    return replace(run, model=model, preprocess=preprocess, data=replace(run.data, augment=augment))


# Settings that may change on resume: they do not change the weights that come out.
_FREE = frozenset(
    {
        "data.loader.workers",
        "data.loader.worker_kind",
        "data.loader.prefetch",
        "data.loader.timeout",
        "data.loader.cache_folder",
        "data.limits.formats",
        "train.strategy",
        "train.offload",
        "train.recompute",
        "train.hang_timeout",
        "train.save_every",
        "train.keep",
        "train.max_minutes",
        "train.minutes",
        "train.finish_within",
    }
)


def differences(before: RunConfig, after: RunConfig, *, course: bool = False) -> tuple[str, ...]:
    """`train.optimizer.lr 0.001 -> 0.003` for each setting that differs; with `course`, only those that change the weights.

    You may change these settings on resume: workers and prefetch, the strategy, offload, recompute, the timeout of ranks, the
    checkpoint interval, the number of checkpoints kept, max_minutes and, without patience, the evaluation interval.
    """
    free = _FREE | (frozenset() if before.train.patience or after.train.patience else {"train.evaluate_every"})
    found, other = dict(_leaves(to_json(before))), dict(_leaves(to_json(after)))
    names = [*found, *(name for name in other if name not in found)]
    return tuple(
        f"{name} {_printed(found, name)} -> {_printed(other, name)}"
        for name in names
        if (name not in found or name not in other or found[name] != other[name]) and not (course and name in free)
    )


def _leaves(value: Json, name: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _printed(values: dict[str, Json], name: str) -> str:
    return json.dumps(values[name]) if name in values else "nothing"
