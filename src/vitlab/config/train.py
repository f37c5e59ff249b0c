"""How a model is trained: optimiser, schedule, loss, averaging, and when to look, save and stop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from vitlab.errors import ConfigError, at_least, choice, fraction

# Images that grow in the course of a run: small ones at first, for many cheap updates, and the model's own size at the end.

Growth = tuple[tuple[float, float], ...]


def check_growth(growth: Growth) -> None:
    """ConfigError unless `growth` is empty, or begins at 0, rises in both numbers and ends at the full size."""
    if not growth:
        return
    shares, scales = [share for share, _ in growth], [scale for _, scale in growth]
    if shares[0] != 0 or not all(0 <= before < after < 1 for before, after in pairwise([*shares])):
        raise ConfigError(f"growth={growth}: the shares of the steps must begin with 0, rise, and stay below 1")
    if scales[-1] != 1 or not all(0 < before < after for before, after in pairwise(scales)) or scales[0] <= 0:
        raise ConfigError(f"growth={growth}: the scales must be above 0, rise, and end with 1, the size the model is used at")


def scale_at(step: int, *, steps: int, growth: Growth) -> float:
    """The scale of the images of update number `step`, counted from 0: a pure function, so nothing is saved to go on."""
    return next((scale for share, scale in reversed(growth) if step >= share * steps), 1.0)


def scaled(image_size: tuple[int, int], scale: float) -> tuple[int, int]:
    """A size in pixels at that scale."""
    return max(1, round(image_size[0] * scale)), max(1, round(image_size[1] * scale))


def mean_area(growth: Growth) -> float:
    """The pixels of a run's images as a share of those of full-size ones, about its share of the time too."""
    ends = [*(share for share, _ in growth[1:]), 1.0]
    return sum((end - share) * scale**2 for (share, scale), end in zip(growth, ends, strict=True)) if growth else 1.0


OptimizerKind = Literal["adamw", "sgd", "muon"]
ScheduleKind = Literal["cosine", "linear", "constant"]
LossKind = Literal["softmax", "sigmoid"]
Precision = Literal["float32", "bfloat16"]
Trainable = Literal["all", "head", "last-blocks"]
Strategy = Literal["auto", "single", "ddp", "fsdp"]
DistillKind = Literal["hard", "soft"]
MaskedTarget = Literal["mean-colour", "small-patch", "pixels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """What turns gradients into steps.

    `lr` is the peak learning rate. `weight_decay` is decoupled and scaled by the schedule, and acts on matrices and kernels
    alone, never on biases, norms, tokens or positions. `momentum` is SGD's and Muon's. `clip` is the largest global norm of the
    gradient, 0 for no clipping. `layer_decay` below 1 multiplies the learning rate once more for each layer further from the head.
    `muon` orthogonalises the steps of the encoder's matrices and of the convolutions before it, scaled so that rates compare with
    AdamW's, and leaves the rest to AdamW, with `adam_lr` as its peak.
    """

    kind: OptimizerKind = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip: float = 1.0
    layer_decay: float = 1.0
    adam_lr: float = 1e-3

    def __post_init__(self) -> None:
        choice("optimizer.kind", self.kind, OptimizerKind)
        for name in ("lr", "eps", "adam_lr"):
            _positive(f"optimizer.{name}", getattr(self, name))
        for beta in self.betas:
            fraction("optimizer.betas", beta)
        fraction("optimizer.momentum", self.momentum)
        at_least("optimizer.weight_decay", self.weight_decay, 0)
        at_least("optimizer.clip", self.clip, 0)
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"optimizer.layer_decay={self.layer_decay} must be above 0 and at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The learning rate over the steps: a linear rise over `warmup` steps, then a fall to `end` (absolute, not a share)."""

    kind: ScheduleKind = "cosine"
    warmup: int = 0
    end: float = 0.0

    def __post_init__(self) -> None:
        choice("schedule.kind", self.kind, ScheduleKind)
        at_least("schedule.warmup", self.warmup, 0)
        at_least("schedule.end", self.end, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """Polyak averaging of the weights: a moving average of factor `decay`, 0 for none (section 4.1 uses 0.9999).

    With `warmup` the factor at step t is at most (1 + t) / (10 + t), so that short runs do not average over the beginning.
    """

    decay: float = 0.0
    warmup: bool = True

    def __post_init__(self) -> None:
        fraction("average.decay", self.decay)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distill:
    """Learning from a teacher (Touvron et al. 2021): `teacher` is a checkpoint's path.

    `hard` takes the teacher's choice as a label, `soft` its probabilities at `temperature`; `share` is the weight of the
    teacher's loss, the labels' being the rest. With a distillation token the teacher speaks to that token's head alone.
    """

    teacher: str
    distill: DistillKind = "hard"
    share: float = 0.5
    temperature: float = 3.0

    def __post_init__(self) -> None:
        choice("distill.distill", self.distill, DistillKind)
        if not 0 < self.share <= 1:
            raise ConfigError(f"distill.share={self.share} must be above 0 and at most 1")
        _positive("distill.temperature", self.temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """Masked patch prediction (app. B.1.2): `share` of the patch embeddings are corrupted and what they showed is predicted.

    Of the corrupted, `masked` become the learned [mask], `swapped` another patch's embedding, the rest stay as they are.
    `target`: the mean colour of the patch in 3 bits a channel, the same for each cell of the patch downsized to 4x4, or all its
    pixels by squared error.
    """

    share: float = 0.5
    masked: float = 0.8
    swapped: float = 0.1
    target: MaskedTarget = "mean-colour"

    def __post_init__(self) -> None:
        choice("masked.target", self.target, MaskedTarget)
        if not 0 < self.share <= 1:
            raise ConfigError(f"masked.share={self.share} must be above 0 and at most 1")
        if min(self.masked, self.swapped) < 0 or self.masked + self.swapped > 1:
            raise ConfigError(
                f"masked.masked={self.masked} and masked.swapped={self.swapped} must be shares that add up to at most 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A training run's course.

    `steps` counts updates. `micro_batch` is how many images a rank takes through the model at once, 0 for its whole share of the
    batch; the update does not depend on it. `smoothing` is the labels'. `balanced_loss` weighs classes by the inverse of their
    frequency. `trainable`: `all`, the `head` alone, or the head and the `last-blocks` (of them `blocks`).
    `growth` is a row of (share of the steps, scale): from there on images are scaled to that share of the image size, positions
    interpolated; ((0, 0.5), (0.6, 1)) learns from half-size images for three fifths of the steps. Empty: always the full size.
    `recompute` trades time for memory by computing activations twice. `compile` runs the model through torch.compile.
    `evaluate_every` and `save_every` count steps; 0 means only at the end. `keep` is how many checkpoints stay beside the best and
    the last. `patience` ends the run after that many evaluations without a better one, 0 for never. `max_minutes` ends it with a
    checkpoint before that time, 0 for never. `seed` decides initial values, order, augmentation and dropout.
    `strategy`: how ranks share the work under torchrun; `auto` is `ddp` there and `single` elsewhere.
    """

    steps: int
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    average: Average = field(default_factory=Average)
    loss: LossKind = "softmax"
    smoothing: float = 0.0
    balanced_loss: bool = False
    distill: Distill | None = None
    masked: Masked | None = None
    trainable: Trainable = "all"
    blocks: int = 0
    micro_batch: int = 0
    growth: Growth = ()
    precision: Precision = "float32"
    compile: bool = False
    recompute: bool = False
    evaluate_every: int = 0
    save_every: int = 0
    keep: int = 1
    patience: int = 0
    max_minutes: float = 0.0
    seed: int = 0
    strategy: Strategy = "auto"

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)
        for name in ("blocks", "micro_batch", "evaluate_every", "save_every", "patience", "max_minutes", "seed"):
            at_least(name, getattr(self, name), 0)
        at_least("keep", self.keep, 1)
        choice("loss", self.loss, LossKind)
        choice("precision", self.precision, Precision)
        choice("trainable", self.trainable, Trainable)
        choice("strategy", self.strategy, Strategy)
        fraction("smoothing", self.smoothing)
        check_growth(self.growth)
        if self.growth and (self.masked is not None or self.distill is not None):
            raise ConfigError("growth is for learning from labels: a teacher, and masked patches, want images of one size")
        if self.schedule.warmup >= self.steps:
            raise ConfigError(f"schedule.warmup={self.schedule.warmup} is not below steps={self.steps}: the peak is never reached")
        if self.trainable == "last-blocks" and self.blocks == 0:
            raise ConfigError("trainable='last-blocks' needs blocks of at least 1")
        if self.masked is not None and (self.distill is not None or self.trainable != "all"):
            raise ConfigError("masked patch prediction trains the whole model, and without a teacher")
        if self.patience and not self.evaluate_every:
            raise ConfigError("patience counts evaluations: set evaluate_every too")


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{name}={value} must be a positive number")
