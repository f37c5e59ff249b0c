"""How a model is trained: optimizer, schedule, loss, averaging, and when to evaluate, save and stop; and all rules of scaling."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from vitlab.config.model import ModelConfig
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError, at_least, choice, fraction, pair

Resizing = tuple[tuple[float, float], ...]
"""Progressive resizing: rows of (fraction of the steps, scale of the images)."""

PatchSizes = tuple[tuple[int, int], ...]
"""Patch sizes (height, width) of which each step draws one."""


def check_resizing(resizing: Resizing) -> None:
    """ConfigError unless `resizing` is empty, or begins at 0, rises in both columns and ends at the full size."""
    if not resizing:
        return
    starts, scales = [start for start, _ in resizing], [scale for _, scale in resizing]
    if starts[0] != 0 or not all(0 <= before < after < 1 for before, after in pairwise([*starts])):
        raise ConfigError(f"progressive_resizing={resizing}: the fractions of the steps must begin with 0, rise, and stay below 1")
    if scales[-1] != 1 or not all(0 < before < after for before, after in pairwise(scales)) or scales[0] <= 0:
        raise ConfigError(f"progressive_resizing={resizing}: the scales must be above 0, rise, and end with 1, the full size")


def scale_at(step: float, *, steps: int, resizing: Resizing) -> float:
    """The scale of the images of update number `step`, counted from 0. A pure function: resuming needs no state."""
    return next((scale for start, scale in reversed(resizing) if step >= start * steps), 1.0)


def scaled(image_size: tuple[int, int], scale: float) -> tuple[int, int]:
    """A size in pixels at that scale."""
    return max(1, round(image_size[0] * scale)), max(1, round(image_size[1] * scale))


def mean_area(resizing: Resizing, *, after: float = 0.0) -> float:
    """The mean area of a run's images over that of full-size images; about the ratio of the times too.

    `after` this fraction of the steps; 1 is the end, where the images have their full size.
    """
    if not resizing or after >= 1:
        return 1.0
    ends = [*(start for start, _ in resizing[1:]), 1.0]
    parts = ((max(end - max(start, after), 0.0), scale) for (start, scale), end in zip(resizing, ends, strict=True))
    return sum(length * scale**2 for length, scale in parts) / (1 - after)


OptimizerKind = Literal["adamw", "sgd", "muon"]
ScheduleKind = Literal["cosine", "linear", "constant"]
LossKind = Literal["softmax", "sigmoid"]
Precision = Literal["float32", "bfloat16"]
Trainable = Literal["all", "head", "last-blocks"]
Strategy = Literal["auto", "single", "ddp", "fsdp"]
Offload = Literal["none", "cpu"]
DistillKind = Literal["hard", "soft"]
HeadStart = Literal["zero", "fitted"]
MaskedTarget = Literal["mean-colour", "small-patch", "pixels"]
LoraTarget = Literal["q", "k", "v", "qkv", "proj", "mlp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """The optimizer.

    `lr` is the peak learning rate. `weight_decay` is decoupled, scaled by the schedule, and applies to matrices and kernels only,
    never to biases, norms, tokens or positions. `momentum` is SGD's and Muon's. `clip` is the largest global norm of the gradient,
    0 for no clipping. `layer_decay` below 1 multiplies the learning rate once more for each layer further from the head.
    `muon` orthogonalises the updates of the encoder's matrices and of the stem's convolutions, scaled so that learning rates
    compare with AdamW's; AdamW updates the rest, with the peak learning rate `adam_lr`.
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
    """The learning rate over the steps: a linear rise over `warmup` steps, then a fall to `end`, an absolute learning rate."""

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
    """Distillation from a teacher (Touvron et al. 2021): `teacher` is the path of a checkpoint.

    `hard` uses the teacher's best class as a label, `soft` its probabilities at `temperature`. `weight` is the weight of the
    teacher's loss; the labels' loss has 1 - `weight`. With a distillation token the teacher's loss is that token's head's only.
    """

    teacher: str
    distill: DistillKind = "hard"
    weight: float = 0.5
    temperature: float = 3.0

    def __post_init__(self) -> None:
        choice("distill.distill", self.distill, DistillKind)
        if not 0 < self.weight <= 1:
            raise ConfigError(f"distill.weight={self.weight} must be above 0 and at most 1")
        _positive("distill.temperature", self.temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """Masked patch prediction (app. B.1.2): corrupt a `fraction` of the patch embeddings and predict what the patches showed.

    Of the corrupted embeddings, the fraction `masked` becomes the learned [mask], `swapped` another patch's embedding, and the rest
    stay. `target`: the mean colour of the patch in 3 bits a channel, the same for each cell of the patch resized to 4x4, or all its
    pixels by squared error.
    """

    fraction: float = 0.5
    masked: float = 0.8
    swapped: float = 0.1
    target: MaskedTarget = "mean-colour"

    def __post_init__(self) -> None:
        choice("masked.target", self.target, MaskedTarget)
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"masked.fraction={self.fraction} must be above 0 and at most 1")
        if min(self.masked, self.swapped) < 0 or self.masked + self.swapped > 1:
            raise ConfigError(
                f"masked.masked={self.masked} and masked.swapped={self.swapped} must be fractions that add up to at most 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adaptation (Hu et al. 2021): weights W of the `targets` are frozen, and the factors of W + alpha / rank * B A train.

    `targets`: queries, keys and values (`q`, `k`, `v`, or `qkv` for all three), the projection after attention (`proj`), and the
    two dense layers of the MLP (`mlp`). The head trains as usual, and everything else is frozen.
    """

    rank: int
    alpha: float = 16.0
    targets: tuple[LoraTarget, ...] = ("q", "v")

    def __post_init__(self) -> None:
        at_least("lora.rank", self.rank, 1)
        _positive("lora.alpha", self.alpha)
        if not self.targets:
            raise ConfigError("lora.targets is empty", hint="one or more of q, k, v, qkv, proj, mlp")
        for target in self.targets:
            choice("lora.targets", target, LoraTarget)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The settings of training.

    `steps` counts updates. `head` is the new head of a run that starts from a checkpoint: `zero` as in the paper (app. B.1.1), or
    `fitted` to the features of the training images before the first step; then `steps` may be 0. `head_images` is the number of
    images that it is fitted to, drawn by the seed; 0 for all.
    `micro_batch` is the number of images a rank runs through the model at once, 0 for all its images of a
    batch; the update does not depend on it. `dice` is the weight of the Dice loss beside the cross-entropy of segmentation, 0 for
    none. `smoothing` is label smoothing. `lwf` is the weight of learning without forgetting (Li and Hoiem 2016): the divergence of
    what the start checkpoint's own head says of the features in training from what it said before; 0 for none. `balanced_loss`
    weighs classes by the inverse of their frequency. `trainable`: `all`, the `head` only, or the head and the `last-blocks`
    (`blocks` of them). With `lora`, the head and updates of low rank train, and the model that is saved has them merged.
    `progressive_resizing` has rows of (fraction of the steps, scale): from that step on images have that scale of the image size,
    and positions are interpolated. ((0, 0.5), (0.6, 1)) trains on half-size images for 60 % of the steps. Empty: always full size.
    `patch_sizes` are those that a flexible ViT is trained at (FlexiViT): each step draws one of them, by the seed and its number.
    The weights stay those of the model's own patch size, which evaluation uses. Empty: always the model's own.
    `recompute` (activation checkpointing) computes activations twice to save memory. `compile` uses torch.compile.
    `evaluate_every` and `save_every` count steps; 0 means only at the end. `keep` is the number of checkpoints kept beside the best
    and the last. `patience` stops the run after that many evaluations without improvement, 0 for never. `max_minutes` stops it with
    a checkpoint before that time, 0 for never. `minutes` is the time budget that `steps` and the image size were chosen for, 0 for
    none; nothing depends on it. `finish_within` so many minutes after its start the run makes its last step, also on a machine that
    is slower or faster than planned: it then shortens or lengthens the schedule; 0 for any time. `seed` determines initial
    values, order of samples, augmentation and dropout.
    `strategy` is how torchrun's processes work together; `auto` is `ddp` under torchrun and `single` otherwise. `offload="cpu"`
    keeps the shards of `fsdp`, with their gradients and the optimizer's state, in host memory. `hang_timeout` is the time in
    seconds after which a process that waits for another one ends the job and says which one is missing.
    """

    steps: int
    head: HeadStart = "zero"
    head_images: int = 0
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    average: Average = field(default_factory=Average)
    loss: LossKind = "softmax"
    smoothing: float = 0.0
    dice: float = 0.0
    balanced_loss: bool = False
    distill: Distill | None = None
    lwf: float = 0.0
    masked: Masked | None = None
    trainable: Trainable = "all"
    blocks: int = 0
    lora: Lora | None = None
    micro_batch: int = 0
    progressive_resizing: Resizing = ()
    patch_sizes: PatchSizes = ()
    precision: Precision = "float32"
    compile: bool = False
    recompute: bool = False
    evaluate_every: int = 0
    save_every: int = 0
    keep: int = 1
    patience: int = 0
    max_minutes: float = 0.0
    minutes: float = 0.0
    finish_within: float = 0.0
    seed: int = 0
    strategy: Strategy = "auto"
    offload: Offload = "none"
    hang_timeout: float = 60.0

    def __post_init__(self) -> None:
        choice("head", self.head, HeadStart)
        at_least("steps", self.steps, 0 if self.head == "fitted" else 1)
        for name in (
            "head_images",
            "blocks",
            "micro_batch",
            "evaluate_every",
            "save_every",
            "patience",
            "max_minutes",
            "minutes",
            "finish_within",
            "seed",
        ):
            at_least(name, getattr(self, name), 0)
        at_least("keep", self.keep, 1)
        choice("loss", self.loss, LossKind)
        choice("precision", self.precision, Precision)
        choice("trainable", self.trainable, Trainable)
        choice("strategy", self.strategy, Strategy)
        choice("offload", self.offload, Offload)
        _positive("hang_timeout", self.hang_timeout)
        if self.offload == "cpu" and self.strategy != "fsdp":
            raise ConfigError(f"offload='cpu' needs strategy='fsdp', and strategy is {self.strategy!r}", hint="strategy='fsdp'")
        fraction("smoothing", self.smoothing)
        at_least("dice", self.dice, 0)
        at_least("lwf", self.lwf, 0)
        check_resizing(self.progressive_resizing)
        if self.progressive_resizing and (self.masked is not None or self.distill is not None):
            raise ConfigError("progressive_resizing needs labels: a teacher and masked patch prediction need images of one size")
        self._check_patch_sizes()
        if self.lwf and (self.masked is not None or self.distill is not None or self.patch_sizes):
            raise ConfigError("lwf excludes a teacher, masked patch prediction and patch_sizes", hint="lwf=0")
        if self.schedule.warmup >= max(self.steps, 1):
            raise ConfigError(f"schedule.warmup={self.schedule.warmup} must be below steps={self.steps}")
        if self.trainable == "last-blocks" and self.blocks == 0:
            raise ConfigError("trainable='last-blocks' needs blocks of at least 1")
        if self.head == "fitted" and self.strategy == "fsdp":
            raise ConfigError(
                "head='fitted' needs the whole model on one device, and strategy='fsdp' shards it", hint="strategy='ddp'"
            )
        if self.head == "fitted" and self.loss != "softmax":
            raise ConfigError(f"head='fitted' is for images with one label, and loss={self.loss!r} for several", hint="head='zero'")
        if self.masked is not None and (self.head == "fitted" or self.distill is not None or self.trainable != "all"):
            raise ConfigError("masked patch prediction trains the whole model, without a teacher or a head for classes")
        if self.lora is not None:
            self._check_lora()
        if self.patience and not self.evaluate_every:
            raise ConfigError("patience counts evaluations: set evaluate_every as well")

    def _check_patch_sizes(self) -> None:
        object.__setattr__(self, "patch_sizes", tuple(pair("patch_sizes", size) for size in self.patch_sizes))
        if len(set(self.patch_sizes)) < len(self.patch_sizes):
            raise ConfigError(f"patch_sizes={self.patch_sizes} has a size twice")
        if self.patch_sizes and (self.progressive_resizing or self.masked is not None):
            raise ConfigError(
                "patch_sizes excludes progressive_resizing and masked patch prediction: both need patches of one size",
                hint="progressive_resizing='off'" if self.progressive_resizing else None,
            )

    def _check_lora(self) -> None:
        if self.trainable != "all":
            raise ConfigError(
                f"lora freezes all weights but its updates and the head, and trainable={self.trainable!r} says otherwise",
                hint="leave one of them out",
            )
        if self.masked is not None:
            raise ConfigError("masked patch prediction trains the whole model, and lora freezes it", hint="leave lora out")
        if self.strategy == "fsdp":
            raise ConfigError("lora needs the whole model on each device, and strategy='fsdp' shards it", hint="strategy='ddp'")


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{name}={value} must be a positive number")


# --- how a recipe made for one dataset becomes a run on another --------------------------------------------------------------

# Length          A run has a number of epochs: steps = epochs x images / batch size. Table 4 gives steps instead, for datasets of a
#                 certain size; they double or halve with each whole doubling or halving of the dataset.
# Batch size      A power of two. Pre-training uses the largest that leaves 32 batches an epoch, at least 8; fine-tuning the largest
#                 that holds no image twice. Neither exceeds the recipe's own.
# Learning rate   If the batch size differs from the recipe's, the learning rate scales with it for SGD (Goyal et al. 2017), and
#                 with its square root for Adam and Muon, which normalise the gradient (Malladi et al. 2022).
# Warm-up         The same fraction of the steps as in the recipe, and never more steps.
# Image size      Progressive resizing trains on images of about three quarters of the side for 70 % of the steps.
#
# Weight decay, dropout, clipping and averaging do not change.

BATCHES_PER_EPOCH = 32
LEAST_BATCH = 8
_SMALL, _SMALL_UNTIL = 0.75, 0.7


def small_first(model: ModelConfig) -> Resizing:
    """Progressive resizing for a model: small images in whole patches, then its own size; empty if only one size is possible."""
    if not isinstance(model, ViTConfig) or model.position.kind == "relative" or model.attention != "global":
        return ()
    (height, width), (down, across) = model.image_size, model.step
    scale = max(1, round(_SMALL * height / down)) * down / height
    small = scaled((height, width), scale)
    if scale >= 1 or small[0] % down or small[1] % across:
        return ()
    return ((0.0, scale), (_SMALL_UNTIL, 1.0))


def common_size(image_size: tuple[int, int], patches: Iterable[tuple[int, int]], *, stride: int = 1) -> tuple[int, int]:
    """The image size nearest to `image_size` that has whole patches of every size; `stride` is that of a stem before them."""
    down, across = (stride * math.lcm(*sides) for sides in zip(*patches, strict=True))
    return max(1, round(image_size[0] / down)) * down, max(1, round(image_size[1] / across)) * across


def steps_of(epochs: float, images: int, batch: int) -> int:
    """Updates in so many epochs, at least 1."""
    return max(1, round(epochs * images / batch))


def steps_like(steps: int, *, images: int, reference: int) -> int:
    """Steps for another number of images than `reference`: unchanged for 0.71 to 1.41 times as many, doubled up to 2.83, ..."""
    return max(1, round(steps * 2.0 ** round(math.log2(images / reference))))


def pretraining_batch(images: int, *, most: int) -> int:
    """The largest power of two that leaves 32 batches an epoch, from 8 to `most`."""
    return max(LEAST_BATCH, min(most, power_of_two(images // BATCHES_PER_EPOCH)))


def finetuning_batch(images: int, *, most: int) -> int:
    """The largest power of two up to the number of images, at most `most`."""
    return min(most, power_of_two(images))


def power_of_two(number: int) -> int:
    """The largest power of two that is not larger; 1 for numbers below 1."""
    return 1 << max(number, 1).bit_length() - 1


def lr_for(lr: float, *, batch: int, reference: int, kind: OptimizerKind) -> float:
    """The learning rate for `batch` images a step, if it is `lr` for `reference` images."""
    ratio = batch / reference
    return lr * (ratio if kind == "sgd" else math.sqrt(ratio))


def warmup_of(steps: int, *, fraction: float, most: int) -> int:
    """That fraction of the steps, at most `most`, and fewer than the steps."""
    return max(0, min(round(steps * fraction), most, steps - 1))


def every(steps: int, *, times: int, least: int = 1) -> int:
    """The interval in steps at which something happens that many times in a run, or fewer: `least` steps or the whole run apart."""
    return max(min(least, steps), steps // times)
