"""BiT ResNets, the paper's baseline: the config, the sizes by name, the cost. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from vitlab.config.cost_counter import MAXIMUM, CostCounter, cells, strided
from vitlab.config.serialize import Json
from vitlab.errors import LARGEST_WIDTH, MOST_LAYERS, ConfigError, at_least, pair, stages


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetConfig:
    """A BiT ResNet: pre-activation, GroupNorm, weight standardisation (Kolesnikov et al. 2020).

    `blocks` is the number of units of each stage and `width_factor` multiplies all channels: R152x4 is (3, 8, 36, 3) and 4.
    `root_width` is the root's channels before that factor. `standardise_eps` is 1e-10 in the authors' TensorFlow code and 1e-8 in
    timm: weights are divided by sqrt(variance + eps).
    """

    family: ClassVar[str] = "resnet"
    title: ClassVar[str] = "a BiT ResNet"
    names: ClassVar[tuple[str, ...]] = (
        *("BiT-R50x1", "BiT-R50x2", "BiT-R50x3", "BiT-R101x1", "BiT-R101x3"),
        *("BiT-R152x1", "BiT-R152x2", "BiT-R152x4", "BiT-R200x3"),
    )
    first_kernel: ClassVar[str] = "root.weight"
    computed_numbers: ClassVar[int] = 0
    fit_options: ClassVar[dict[str, Any]] = {}

    blocks: tuple[int, ...]
    width_factor: int = 1
    root_width: int = 64
    stage_widths: tuple[int, ...] = (256, 512, 1024, 2048)
    groups: int = 32
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    num_classes: int = 1000
    head_bias: float = 0.0
    standardise_eps: float = 1e-10
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        for name in ("width_factor", "channels", "groups"):
            at_least(name, getattr(self, name), 1, MOST_LAYERS)
        at_least("num_classes", self.num_classes, 0, LARGEST_WIDTH)
        if not self.blocks or len(self.blocks) != len(self.stage_widths):
            raise ConfigError(f"blocks={self.blocks} and stage_widths={self.stage_widths} must have one number a stage")
        stages("blocks", self.blocks)
        for width in (self.root_width, *(stage // 4 for stage in self.stage_widths), *self.stage_widths):
            if width < 1 or width * self.width_factor % self.groups:
                raise ConfigError(f"{width} x width_factor={self.width_factor} channels are not a multiple of {self.groups} groups")

    @property
    def feature_width(self) -> int:
        """Length of the vector the head sees."""
        return self.stage_widths[-1] * self.width_factor

    @property
    def block_count(self) -> int:
        """Units in all stages."""
        return sum(self.blocks)

    @classmethod
    def from_name(cls, name: str, image_size: tuple[int, int] | None) -> ResNetConfig | None:
        """The BiT ResNet of that name, of any width factor, or None."""
        match = _NAME.fullmatch(name)
        if match is None or int(match["depth"]) not in RESNETS or int(match["factor"]) < 1:
            return None
        return ResNetConfig(blocks=RESNETS[int(match["depth"])], width_factor=int(match["factor"]))

    @property
    def name(self) -> str | None:
        """The name that `from_name` takes, or None for a size without one."""
        depth = next((depth for depth, blocks in RESNETS.items() if blocks == self.blocks), None)
        standard = ResNetConfig(blocks=self.blocks).stage_widths if depth else ()
        known = depth is not None and self.stage_widths == standard and self.root_width == 64
        return f"BiT-R{depth}x{self.width_factor}" if known else None

    def facts(self) -> dict[str, Json]:
        """What `vitlab describe` shows first."""
        return {
            "image_size": list(self.image_size),
            "channels": self.channels,
            "blocks": list(self.blocks),
            "width_factor": self.width_factor,
            "feature_width": self.feature_width,
            "num_classes": self.num_classes,
        }

    def count(self, counter: CostCounter) -> None:
        """Add a forward pass of one image."""
        image = self.channels * cells(self.image_size)
        inputs = self.root_width * self.width_factor
        size = strided(self.image_size)
        root = cells(size) * inputs
        counter.standardised_conv(cells(size), self.channels, inputs, 7)
        counter.padded(self.image_size, size, self.channels * inputs, 7)
        size = strided(size)
        x = cells(size) * inputs
        counter.kept += image + root + MAXIMUM * x
        counter.alive(image + 3 * root + (1 + MAXIMUM) * x)
        for stage, (units, stage_width) in enumerate(zip(self.blocks, self.stage_widths, strict=True)):
            outputs, begun = stage_width * self.width_factor, 0
            width = outputs // 4
            for unit in range(units):
                after = strided(size) if unit == 0 and stage else size
                counter.bottleneck((inputs, width, outputs), size, after, first=unit == 0)
                counter.norms(inputs, width, width)
                wide, narrow, out = cells(size) * width, cells(after) * width, cells(after) * outputs
                shortcut = out if unit == 0 else 0
                # Inputs of the three norms and of the convolutions after them.
                counter.kept += 2 * x + 2 * wide + 2 * narrow
                within = max(2 * wide + narrow, 2 * narrow + out, 2 * out)
                counter.alive(image + begun + 2 * x + shortcut + within)
                begun = begun or x
                x, size, inputs = out, after, outputs
        counter.norms(inputs)
        counter.kept += 2 * x + inputs
        counter.alive(image + 2 * x)
        if self.num_classes:
            counter.dense(1, inputs, self.num_classes)


RESNETS: dict[int, tuple[int, ...]] = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
_NAME = re.compile(r"(?:BiT[-_ ]?)?R(?P<depth>\d+)x(?P<factor>\d+)", re.IGNORECASE)
