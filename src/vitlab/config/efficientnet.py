"""EfficientNet (Tan and Le 2019; L2: Xie et al. 2020, Noisy Student): the config, the sizes by name, the cost. No torch here."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from vitlab.config.cost_counter import CostCounter, cells, strided
from vitlab.config.serialize import Json
from vitlab.errors import LARGEST_WIDTH, ConfigError, at_least, choice, entry_named, fraction, pair, stages

Padding = Literal["same", "half", "uneven"]


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


# Width factor, depth factor, image size, dropout: the authors' compound scaling of B0.
SCALES: dict[str, tuple[float, float, int, float]] = {
    "B0": (1.0, 1.0, 224, 0.2),
    "B1": (1.0, 1.1, 240, 0.2),
    "B2": (1.1, 1.2, 260, 0.3),
    "B3": (1.2, 1.4, 300, 0.3),
    "B4": (1.4, 1.8, 380, 0.4),
    "B5": (1.6, 2.2, 456, 0.4),
    "B6": (1.8, 2.6, 528, 0.5),
    "B7": (2.0, 3.1, 600, 0.5),
    "B8": (2.2, 3.6, 672, 0.5),  # Xie et al. 2020, AdvProp
    "L2": (4.3, 5.3, 800, 0.5),  # Xie et al. 2020
}
_NAME = re.compile(r"efficientnet[-_ ]?(?P<size>[a-z]+\d?)", re.IGNORECASE)


def scaled_width(width: float, factor: float) -> int:
    """Channels times the factor, rounded to a multiple of 8 that is at most a tenth below."""
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
    `dropout` acts before the head; `drop_path` is drop-connect: block b of n is skipped with probability `drop_path` b / n.
    `padding` is TensorFlow's "SAME", as in the authors' code and Noisy Student, or `half` a kernel on every side, as in the models
    that timm trained itself; those have `norm_eps` 1e-5 instead of 1e-3. `uneven` is transformers' padding: at stride 2 one cell
    less before than after, whatever the image size, but half a kernel in the blocks that `even_blocks` numbers.
    `momentum` is the fraction of a batch's statistics in BatchNorm's running ones: 1 - 0.99 in the authors' code.
    """

    family: ClassVar[str] = "efficientnet"
    title: ClassVar[str] = "an EfficientNet"
    names: ClassVar[tuple[str, ...]] = ("EfficientNet-Mini", *(f"EfficientNet-{size}" for size in SCALES))
    first_kernel: ClassVar[str] = "stem.weight"
    computed_numbers: ClassVar[int] = 0
    fit_options: ClassVar[dict[str, Any]] = {}

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
    even_blocks: tuple[int, ...] = ()
    norm_eps: float = 1e-3
    momentum: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        for name in ("stem_width", "head_width", "channels"):
            at_least(name, getattr(self, name), 1, LARGEST_WIDTH)
        at_least("num_classes", self.num_classes, 0, LARGEST_WIDTH)
        choice("padding", self.padding, Padding)
        for name in ("dropout", "drop_path"):
            fraction(name, getattr(self, name))
        for name in ("squeeze", "norm_eps", "momentum"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be above 0 and at most 1")
        if not self.stages:
            raise ConfigError("stages is empty")
        if self.even_blocks and self.padding != "uneven":
            raise ConfigError(f"even_blocks={self.even_blocks} needs padding='uneven', not {self.padding!r}")
        at_least("the number of stages", len(self.stages), 1, 16)
        for stage in self.stages:
            stages("stages", stage)
            if stage[1] % 2 == 0:
                raise ConfigError(f"stages: the kernel {stage[1]} must be odd")

    @property
    def plan(self) -> tuple[MbStage, ...]:
        """The stages with names for their numbers."""
        return tuple(MbStage(*stage) for stage in self.stages)

    @property
    def stride(self) -> int:
        """Pixels from one cell of the last stage to the next."""
        return 2 * math.prod(stage.stride for stage in self.plan)

    @property
    def feature_width(self) -> int:
        """Length of the vector the head sees."""
        return self.head_width

    def squeezed(self, width: int) -> int:
        """Channels between squeeze and excitation in a block with that many input channels."""
        return max(1, int(width * self.squeeze))

    @property
    def block_count(self) -> int:
        """Blocks in all stages."""
        return sum(stage.blocks for stage in self.plan)

    @classmethod
    def from_name(cls, name: str, image_size: tuple[int, int] | None) -> EfficientNetConfig | None:
        """The EfficientNet of that name at its own image size, or None."""
        match = _NAME.fullmatch(name)
        size = None if match is None else entry_named({size: size for size in ("Mini", *SCALES)}, match["size"])
        return None if size is None else efficientnet(size)

    @property
    def name(self) -> str | None:
        """The name that `from_name` takes, or None for a size without one."""
        for size in ("Mini", *SCALES):
            known = efficientnet(size)
            if (known.stages, known.stem_width, known.head_width) == (self.stages, self.stem_width, self.head_width):
                return f"EfficientNet-{size}"
        return None

    def facts(self) -> dict[str, Json]:
        """What `vitlab describe` shows first."""
        return {
            "image_size": list(self.image_size),
            "channels": self.channels,
            "stem_width": self.stem_width,
            "stages": [list(stage) for stage in self.stages],
            "dropout": self.dropout,
            "drop_path": self.drop_path,
            "feature_width": self.feature_width,
            "num_classes": self.num_classes,
        }

    def count(self, counter: CostCounter) -> None:
        """Add a forward pass of one image."""
        image, size = self.channels * cells(self.image_size), strided(self.image_size)
        inputs = self.stem_width
        x = cells(size) * inputs
        counter.conv(cells(size), self.channels, inputs, 3, bias=False)
        counter.padded(self.image_size, size, self.channels * inputs, 3)
        counter.batch_norm(inputs)
        counter.kept += image + 2 * x
        counter.alive(2 * image + 2 * x)
        for stage in self.plan:
            for unit in range(stage.blocks):
                size = self._count_unit(counter, stage, inputs, size, stage.stride if unit == 0 else 1)
                inputs = stage.width
        x, last = cells(size) * inputs, cells(size) * self.head_width
        counter.conv(cells(size), inputs, self.head_width, 1, bias=False)
        counter.batch_norm(self.head_width)
        counter.kept += x + 2 * last
        counter.alive(image + x + 2 * last)
        counter.head(self.feature_width, self.num_classes)

    def _count_unit(self, counter: CostCounter, stage: MbStage, inputs: int, size: tuple[int, int], stride: int) -> tuple[int, int]:
        """Add an inverted bottleneck on a map of `size`; the size of the map after it."""
        image, after, inner = self.channels * cells(self.image_size), strided(size, stride), inputs * stage.expansion
        squeezed, outputs = self.squeezed(inputs), stage.width
        x, wide, narrow, out = cells(size) * inputs, cells(size) * inner, cells(after) * inner, cells(after) * outputs
        if stage.expansion > 1:
            counter.conv(cells(size), inputs, inner, 1, bias=False)
            counter.batch_norm(inner)
            counter.kept += x + 2 * wide
            counter.alive(image + x + 2 * wide)
        counter.conv(cells(after), 1, inner, stage.kernel, bias=False)
        counter.padded(size, after, inner, stage.kernel)
        counter.batch_norm(inner)
        counter.dense(1, inner, squeezed)
        counter.dense(1, squeezed, inner)
        counter.conv(cells(after), inner, outputs, 1, bias=False)
        counter.batch_norm(outputs)
        counter.kept += (wide if stage.expansion > 1 or stride > 1 else x) + 4 * narrow + out + 2 * inner + 2 * squeezed
        counter.alive(image + x + 2 * wide + narrow if stride > 1 else image + x + wide + narrow)
        counter.alive(image + x + 2 * narrow)
        return after


_MINI = EfficientNetConfig(  # for tests and first steps
    stages=((1, 3, 1, 1, 8), (2, 3, 2, 4, 16), (1, 5, 2, 4, 24)), stem_width=8, head_width=64, image_size=(32, 32)
)


def efficientnet(size: str) -> EfficientNetConfig:
    """The EfficientNet of that size, "Mini" or a key of SCALES, at its own image size."""
    if size == "Mini":
        return _MINI
    width, depth, side, dropout = SCALES[size]
    return EfficientNetConfig(
        stages=scaled_stages(width, depth),
        stem_width=scaled_width(STEM, width),
        head_width=scaled_width(HEAD, width),
        image_size=(side, side),
        dropout=dropout,
    )
