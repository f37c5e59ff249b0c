"""What may stand before a ViT's patches: plain convolutions, or the ResNet of a hybrid. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitlab.config.cost_counter import MAXIMUM, CostCounter, Size, cells, strided
from vitlab.errors import ConfigError, at_least, choice, stages

Standardise = Literal["std", "variance"]
Activation = Literal["gelu", "relu"]
StemNorm = Literal["group", "batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvStem:
    """Plain convolutions before the patches ("Early convolutions help transformers see better", Xiao et al. 2021).

    Each stage begins with a 3x3 convolution of stride 2. `widths` are the channels of each stage and `units` its number of
    convolutions; those after the first have a shortcut around them. A norm and the `activation` follow each convolution; a CPU
    computes a ReLU several times as fast as a GELU. The first map has half the image's size; in the paper's hybrids it has a
    quarter. `norm` is a GroupNorm over groups of `group_width` channels, or a BatchNorm, as in the paper.

    With BatchNorm an image's loss depends on the others of its micro-batch, and each rank normalises its own part of the batch;
    evaluation uses the running statistics, in which a batch counts a tenth.
    """

    widths: tuple[int, ...] = (64, 128)
    units: tuple[int, ...] = (2, 2)
    group_width: int = 8
    norm_eps: float = 1e-6
    activation: Activation = "gelu"
    norm: StemNorm = "group"

    def __post_init__(self) -> None:
        choice("conv_stem.activation", self.activation, Activation)
        choice("conv_stem.norm", self.norm, StemNorm)
        if not self.widths or len(self.widths) != len(self.units):
            raise ConfigError(f"conv_stem.widths={self.widths} and conv_stem.units={self.units} must have one number a stage")
        stages("conv_stem.units", self.units)
        at_least("conv_stem.group_width", self.group_width, 1)
        for width in self.widths:
            at_least("conv_stem.widths", width, 1)
            if self.norm == "group" and width % self.group_width:
                raise ConfigError(f"conv_stem.widths={self.widths} must be multiples of conv_stem.group_width={self.group_width}")
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"conv_stem.norm_eps={self.norm_eps} must be between 0 and 1")

    @property
    def stride(self) -> int:
        """Pixels of the image per cell of the feature map, in each direction."""
        return 1 << len(self.widths)

    @property
    def out_width(self) -> int:
        """Channels of the feature map."""
        return self.widths[-1]

    def count(self, counter: CostCounter, channels: int, image_size: Size) -> int:
        """Add a forward pass of one image; the numbers of the last map. The image is copied once, channels last."""
        image = channels * image_size[0] * image_size[1]
        size, inputs, x = image_size, channels, image
        for width, units in zip(self.widths, self.units, strict=True):
            before, size = size, strided(size)
            for _ in range(units):
                out = cells(size) * width
                counter.conv(cells(size), inputs, width, 3, bias=False)
                counter.padded(before, size, inputs * width, 3)
                if self.norm == "batch":
                    counter.batch_norm(width)
                else:
                    counter.norms(width)
                    counter.kept += 2 * (width // self.group_width)  # a mean and a deviation for each group
                # The convolution's input, the norm's and the GELU's; a ReLU keeps what it gives, which the next convolution keeps
                # anyway, unless the shortcut was added to it.
                shortcut = self.activation == "relu" and inputs == width and before == size
                counter.kept += x + out + (out if self.activation == "gelu" or shortcut else 0)
                counter.alive(image + x + 2 * out)
                x, inputs, before = out, width, size
        return x


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetStem:
    """The post-activation ResNet before a hybrid's patches: root convolution (stride 4 with its pooling), then stages.

    `blocks` is the number of units of each stage, empty for the root alone; each stage after the first halves the resolution.
    `width` is the root's channels (64 in the paper). `standardise` divides the weights by (std + eps), as the authors' Flax code
    does, or by sqrt(variance + eps), as timm does.
    """

    blocks: tuple[int, ...] = (3, 4, 9)
    width: int = 64
    groups: int = 32
    standardise: Standardise = "std"
    standardise_eps: float = 1e-5
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        choice("stem.standardise", self.standardise, Standardise)
        if self.blocks:
            stages("stem.blocks", self.blocks)
        at_least("stem.groups", self.groups, 1)
        if self.width < self.groups or self.width % self.groups:
            raise ConfigError(f"stem.width={self.width} must be a multiple of stem.groups={self.groups}")

    @property
    def stride(self) -> int:
        """Pixels of the image per cell of the feature map, in each direction."""
        return 4 << max(len(self.blocks) - 1, 0)

    @property
    def out_width(self) -> int:
        """Channels of the feature map."""
        return self.width * 4 << len(self.blocks) - 1 if self.blocks else self.width

    def count(self, counter: CostCounter, channels: int, image_size: Size) -> int:
        """Add a forward pass of one image; the numbers of the last map."""
        image = channels * image_size[0] * image_size[1]
        size = strided(image_size)
        root = cells(size) * self.width
        counter.standardised_conv(cells(size), channels, self.width, 7)
        counter.padded(image_size, size, channels * self.width, 7)
        counter.norms(self.width)
        size = strided(size)
        x = cells(size) * self.width
        counter.kept += image + 3 * root + MAXIMUM * x  # the image padded; the root before its norm, after it, and padded
        counter.alive(image + 3 * root + (1 + MAXIMUM) * x)  # the root, padded, and with its channels last to be pooled
        inputs = self.width
        for stage, units in enumerate(self.blocks):
            width, begun = self.width * 2**stage, 0
            for unit in range(units):
                after = strided(size) if unit == 0 and stage else size
                counter.bottleneck((inputs, width, width * 4), size, after, first=unit == 0)
                counter.norms(width, width, width * 4, *([width * 4] if unit == 0 else []))
                wide, narrow, out = cells(size) * width, cells(after) * width, cells(after) * width * 4
                shortcut = out if unit == 0 else 0
                padded = wide if after != size else 0
                # Inputs of the convolutions and of the norms after them.
                counter.kept += x + 2 * wide + padded + 2 * narrow + out + shortcut
                within = max(2 * wide, wide + padded + narrow, wide + 2 * narrow, narrow + 2 * out)
                counter.alive(image + begun + x + shortcut + within)
                begun = begun or x
                x, size, inputs = out, after, width * 4
        counter.kept += x if self.blocks else 0
        return x
