"""ConvNeXt (Liu et al. 2022): the config, the sizes by name, the cost. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from vitlab.config.cost_counter import CostCounter, cells
from vitlab.config.serialize import Json
from vitlab.errors import LARGEST_WIDTH, MOST_LAYERS, ConfigError, at_least, entry_named, fraction, pair, stages


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvNeXtConfig:
    """A ResNet built like a Transformer: 7x7 depthwise convolutions, LayerNorm, an MLP, layer scale.

    `depths` and `widths` have one number a stage. `patch_size` is the side of the stem's patches in pixels; each later stage
    halves the resolution. The model ignores a rest of pixels at the right and lower edge, as the authors' convolutions do.
    `layer_scale` is the initial value of a per-channel factor on each block, 0 for none. `drop_path` is the last block's rate
    of stochastic depth, rising linearly from 0. `last_norm_eps` is the eps of the norm before the head, None for `norm_eps`:
    transformers has 1e-12 there.
    """

    family: ClassVar[str] = "convnext"
    title: ClassVar[str] = "a ConvNeXt"
    names: ClassVar[tuple[str, ...]] = tuple(f"ConvNeXt-{size}" for size in ("Mini", "T", "S", "B", "L", "XL"))
    first_kernel: ClassVar[str] = "patches.weight"
    computed_numbers: ClassVar[int] = 0
    fit_options: ClassVar[dict[str, Any]] = {}

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    kernel: int = 7
    patch_size: int = 4
    mlp_ratio: int = 4
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    num_classes: int = 1000
    head_bias: float = 0.0
    layer_scale: float = 1e-6
    dropout: float = 0.0
    drop_path: float = 0.0
    norm_eps: float = 1e-6
    last_norm_eps: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        for name in ("kernel", "patch_size", "mlp_ratio", "channels"):
            at_least(name, getattr(self, name), 1, MOST_LAYERS)
        for name in ("num_classes", "layer_scale"):
            at_least(name, getattr(self, name), 0, LARGEST_WIDTH)
        for name in ("dropout", "drop_path"):
            fraction(name, getattr(self, name))
        for name in ("norm_eps", "last_norm_eps"):
            eps = getattr(self, name)
            if eps is not None and not 0 < eps < 1:
                raise ConfigError(f"{name}={eps} must be between 0 and 1")
        if self.kernel % 2 == 0:
            raise ConfigError(f"kernel={self.kernel} must be odd")
        if not self.depths or len(self.depths) != len(self.widths):
            raise ConfigError(f"depths={self.depths} and widths={self.widths} must have one number a stage")
        stages("depths", self.depths)
        for width in self.widths:
            at_least("widths", width, 1, LARGEST_WIDTH)
        if min(self.image_size) < self.step:
            raise ConfigError(
                f"image_size={self.image_size[0]}x{self.image_size[1]} is smaller than one cell of the last stage,"
                f" which is {self.step} pixels wide"
            )

    @property
    def step(self) -> int:
        """Pixels from one cell of the last stage to the next; no side of an image may be smaller."""
        return self.patch_size << len(self.depths) - 1

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Each stage's map (down, across) at `image_size`."""
        down, across = self.image_size[0] // self.patch_size, self.image_size[1] // self.patch_size
        return tuple((down >> stage, across >> stage) for stage in range(len(self.depths)))

    @property
    def feature_width(self) -> int:
        """Length of the vector the head sees."""
        return self.widths[-1]

    @property
    def block_count(self) -> int:
        """Blocks in all stages."""
        return sum(self.depths)

    @classmethod
    def from_name(cls, name: str, image_size: tuple[int, int] | None) -> ConvNeXtConfig | None:
        """The ConvNeXt of that name, or None."""
        match = _NAME.fullmatch(name)
        return None if match is None else entry_named(CONVNEXTS, match["size"])

    @property
    def name(self) -> str | None:
        """The name that `from_name` takes, or None for a size without one."""
        found = (size for size, known in CONVNEXTS.items() if (known.depths, known.widths) == (self.depths, self.widths))
        size = next(found, None)
        return None if size is None or self.kernel != 7 else f"ConvNeXt-{size}"

    def facts(self) -> dict[str, Json]:
        """What `vitlab describe` shows first."""
        return {
            "image_size": list(self.image_size),
            "channels": self.channels,
            "depths": list(self.depths),
            "widths": list(self.widths),
            "grids": [list(grid) for grid in self.grids],
            "layer_scale": self.layer_scale,
            "feature_width": self.feature_width,
            "num_classes": self.num_classes,
        }

    def count(self, counter: CostCounter) -> None:
        """Add a forward pass of one image."""
        image = self.channels * cells(self.image_size)
        x = 0
        for stage, (grid, width) in enumerate(zip(self.grids, self.widths, strict=True)):
            count, hidden = cells(grid), width * self.mlp_ratio
            if stage == 0:
                counter.conv(count, self.channels, width, self.patch_size)
                counter.norms(width)
                counter.kept += image + count * (width + 2)
            else:
                before = self.widths[stage - 1]
                counter.norms(before)
                counter.conv(count, before, width, 2)
                counter.kept += cells(self.grids[stage - 1]) * (2 * before + 2)
                counter.alive(image + 2 * x + count * width)
            x = count * width
            for _ in range(self.depths[stage]):
                counter.conv(count, 1, width, self.kernel)
                counter.padded(grid, grid, width, self.kernel)
                counter.norms(width)
                counter.dense(count, width, hidden)
                counter.dense(count, hidden, width)
                counter.parameters += width if self.layer_scale else 0
                counter.kept += count * ((4 if self.layer_scale else 3) * width + 2 + 2 * hidden)
                counter.alive(image + 2 * x + 2 * count * hidden)
        counter.norms(self.feature_width)
        counter.kept += self.feature_width + 2
        counter.head(self.feature_width, self.num_classes)


CONVNEXTS: dict[str, ConvNeXtConfig] = {
    "Mini": ConvNeXtConfig(depths=(1, 2, 1), widths=(16, 32, 64), image_size=(32, 32)),  # for tests and first steps
    "T": ConvNeXtConfig(depths=(3, 3, 9, 3), widths=(96, 192, 384, 768)),
    "S": ConvNeXtConfig(depths=(3, 3, 27, 3), widths=(96, 192, 384, 768)),
    "B": ConvNeXtConfig(depths=(3, 3, 27, 3), widths=(128, 256, 512, 1024)),
    "L": ConvNeXtConfig(depths=(3, 3, 27, 3), widths=(192, 384, 768, 1536)),
    "XL": ConvNeXtConfig(depths=(3, 3, 27, 3), widths=(256, 512, 1024, 2048)),
}
_NAME = re.compile(r"convnext[-_ ]?(?P<size>[a-z]+)", re.IGNORECASE)
