"""An EfficientNet as a value (Tan and Le 2019; L2 of Xie et al. 2020, Noisy Student). No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from vitlab.errors import ConfigError, at_least, choice, fraction, pair

Padding = Literal["same", "half"]


class MbStage(NamedTuple):
    """A stage of inverted bottlenecks: the first takes the stride; `expansion` is the inner width over the input's."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    width: int


BASE = (  # EfficientNet-B0
    MbStage(1, 3, 1, 1, 16),
    MbStage(2, 3, 2, 6, 24),
    MbStage(2, 5, 2, 6, 40),
    MbStage(3, 3, 2, 6, 80),
    MbStage(3, 5, 1, 6, 112),
    MbStage(4, 5, 2, 6, 192),
    MbStage(1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280  # channels of B0 before and after the stages


def scaled_width(width: float, factor: float) -> int:
    """Channels times the factor, to a multiple of 8 that is not more than a tenth below."""
    wide = width * factor
    rounded = max(8, int(wide + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wide else rounded


def scaled_stages(width_factor: float, depth_factor: float) -> tuple[tuple[int, int, int, int, int], ...]:
    """B0's stages with these factors: blocks rounded up, channels to multiples of 8."""
    return tuple((math.ceil(stage.blocks * depth_factor), *stage[1:4], scaled_width(stage.width, width_factor)) for stage in BASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficientNetConfig:
    """Inverted bottlenecks with squeeze-and-excitation, BatchNorm and swish.

    `stages` have five numbers each: blocks, kernel, stride, expansion, width. `stem_width` and `head_width` are the channels before
    and after them. Squeeze-and-excitation squeezes to `squeeze` of a block's input channels.
    `dropout` acts before the head; `drop_path` is drop-connect: block b of n is left out with probability `drop_path` b / n.
    `padding` is TensorFlow's "SAME", as the authors and Noisy Student have it, or `half` a kernel on every side, as in the models
    that timm trained itself; those have `norm_eps` 1e-5 instead of 1e-3.
    `momentum` is the share of a batch's statistics in BatchNorm's running ones: 1 - 0.99 in the authors' code.
    """

    kind: ClassVar[str] = "efficientnet"

    stages: tuple[tuple[int, int, int, int, int], ...]
    stem_width: int = STEM
    head_width: int = HEAD
    squeeze: float = 0.25
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    num_classes: int = 1000
    head_bias: float = 0.0
    dropout: float = 0.2
    drop_path: float = 0.2
    padding: Padding = "same"
    norm_eps: float = 1e-3
    momentum: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        for name in ("stem_width", "head_width", "channels"):
            at_least(name, getattr(self, name), 1)
        at_least("num_classes", self.num_classes, 0)
        choice("padding", self.padding, Padding)
        for name in ("dropout", "drop_path"):
            fraction(name, getattr(self, name))
        for name in ("squeeze", "norm_eps", "momentum"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be above 0 and at most 1")
        if not self.stages:
            raise ConfigError("stages is empty")
        for stage in self.stages:
            for number in stage:
                at_least("stages", number, 1)
            if stage[1] % 2 == 0:
                raise ConfigError(f"stages: a kernel of {stage[1]} has no middle")

    @property
    def plan(self) -> tuple[MbStage, ...]:
        """The stages with names for their numbers."""
        return tuple(MbStage(*stage) for stage in self.stages)

    @property
    def feature_width(self) -> int:
        """Length of the vector the head sees."""
        return self.head_width

    def squeezed(self, width: int) -> int:
        """Channels between squeeze and excitation in a block with that many input channels."""
        return max(1, int(width * self.squeeze))
