"""Swin Transformers (Liu et al. 2021): the config, the sizes by name, the cost. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vitlab.config.cost_counter import CostCounter, cells
from vitlab.config.serialize import Json
from vitlab.errors import LARGEST_WIDTH, ConfigError, at_least, entry_named, fraction, pair, stages

_LARGEST_WINDOW = 64  # patches of a side; 24 is the largest that is published


@dataclass(frozen=True, slots=True, kw_only=True)
class SwinConfig:
    """Attention within windows that shift from block to block, in stages that halve the resolution and double the width.

    `width` is the first stage's; `depths` and `heads` have one number a stage. `window` is the side (down, across) of a window in
    patches. If a stage's map at `image_size` is smaller than the window, the whole map is the window.
    The model takes images of other sizes too: it fills edges with zeros up to whole patches, pairs of patches and windows.
    `pad_first` pads a map to whole windows and then shifts it, as in the authors' detectors; False shifts first, as timm does.
    This makes no difference if windows fit the map, as at 224 and 384 pixels.
    `mlp_ratio` is the MLP's width over that of its stage. `drop_path` is the last block's rate of stochastic depth, rising
    linearly from 0. `norm_eps` is 1e-5 in the authors' code, and the GELU is exact.
    """

    family: ClassVar[str] = "swin"
    title: ClassVar[str] = "a Swin Transformer"
    names: ClassVar[tuple[str, ...]] = ("Swin-Mini", "Swin-T", "Swin-S", "Swin-B", "Swin-L")
    first_kernel: ClassVar[str] = "patches.weight"

    width: int
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    window: tuple[int, int] = (7, 7)
    patch_size: tuple[int, int] = (4, 4)
    mlp_ratio: int = 4
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    num_classes: int = 1000
    head_bias: float = 0.0
    qkv_bias: bool = True
    pad_first: bool = True
    dropout: float = 0.0
    drop_path: float = 0.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("window", "patch_size", "image_size"):
            object.__setattr__(self, name, pair(name, getattr(self, name)))
        for name in ("width", "mlp_ratio", "channels"):
            at_least(name, getattr(self, name), 1, LARGEST_WIDTH)
        at_least("num_classes", self.num_classes, 0, LARGEST_WIDTH)
        at_least("window", max(self.window), 1, _LARGEST_WINDOW)
        for name in ("dropout", "drop_path"):
            fraction(name, getattr(self, name))
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"norm_eps={self.norm_eps} must be between 0 and 1")
        if not self.depths or len(self.depths) != len(self.heads):
            raise ConfigError(f"depths={self.depths} and heads={self.heads} must have one number a stage")
        stages("depths", self.depths)
        for stage, heads in enumerate(self.heads):
            at_least("heads", heads, 1)
            if self.widths[stage] % heads:
                raise ConfigError(f"width={self.widths[stage]} of stage {stage} is not a multiple of its heads={heads}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Each stage's width: every one twice that of the last."""
        return tuple(self.width << stage for stage in range(len(self.depths)))

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Each stage's map (down, across) at `image_size`."""
        return self.grids_of(self.image_size)

    def grids_of(self, image_size: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        """Each stage's map (down, across) of an image of that size: a fraction of a patch or pair counts as one."""
        steps = [(self.patch_size[0] << stage, self.patch_size[1] << stage) for stage in range(len(self.depths))]
        return tuple((-(-image_size[0] // down), -(-image_size[1] // across)) for down, across in steps)

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """Each stage's window (down, across): `window`, or the whole map where that is smaller."""
        return tuple((min(self.window[0], down), min(self.window[1], across)) for down, across in self.grids)

    @property
    def feature_width(self) -> int:
        """Length of the vector the head sees."""
        return self.widths[-1]

    @property
    def block_count(self) -> int:
        """Blocks in all stages."""
        return sum(self.depths)

    @property
    def computed_numbers(self) -> int:
        """Numbers that the model computes when it is built and no file holds: the index of each pair of cells in a window."""
        return sum(blocks * (down * across) ** 2 for blocks, (down, across) in zip(self.depths, self.windows, strict=True))

    @property
    def fit_options(self) -> dict[str, Any]:
        """What `load` needs besides image size, channels and classes to fit a checkpoint to this model."""
        return {"window": self.window}

    @classmethod
    def from_name(cls, name: str, image_size: tuple[int, int] | None) -> SwinConfig | None:
        """The Swin of that name, or None; its window fits `image_size` unless the name ends in "-w12" or another number."""
        match = _NAME.fullmatch(name)
        size = None if match is None else entry_named(SWINS, match["size"])
        if match is None or size is None or match["window"] == "0":
            return None
        window = int(match["window"]) if match["window"] else _usual_window(size, image_size or size.image_size)
        return replace(size, window=(window, window))

    @property
    def name(self) -> str | None:
        """The name that `from_name` takes, or None for a size without one."""
        shape = (self.width, self.depths, self.heads)
        for size, known in SWINS.items():
            if shape == (known.width, known.depths, known.heads) and self.patch_size == (4, 4):
                down, across = self.window
                if down != across:
                    return None
                return f"Swin-{size}" if down == _usual_window(known, self.image_size) else f"Swin-{size}-w{down}"
        return None

    def facts(self) -> dict[str, Json]:
        """What `vitlab describe` shows first."""
        return {
            "image_size": list(self.image_size),
            "channels": self.channels,
            "patch_size": list(self.patch_size),
            "depths": list(self.depths),
            "width": self.width,
            "heads": list(self.heads),
            "grids": [list(grid) for grid in self.grids],
            "windows": [list(window) for window in self.windows],
            "feature_width": self.feature_width,
            "num_classes": self.num_classes,
        }

    def count(self, counter: CostCounter) -> None:
        """Add a forward pass of one image."""
        image = self.channels * cells(self.image_size)
        pixels = self.channels * cells(self.patch_size)
        count = cells(self.grids[0])
        counter.dense(count, pixels, self.width)
        counter.norms(self.width)
        counter.kept += count * (pixels + self.width + 2)
        counter.alive(image + count * (2 * pixels + self.width))  # the padded image, and its patches
        for stage, (grid, width) in enumerate(zip(self.grids, self.widths, strict=True)):
            held = image
            if stage:
                held += count * width // 2  # the caller holds the map before
                count = cells(grid)
                counter.norms(2 * width)
                counter.dense(count, 2 * width, width, bias=False)
                counter.kept += count * (4 * width + 2)
                counter.alive(held + count * 5 * width)
            for block in range(self.depths[stage]):
                self._count_block(counter, stage, held)
                held += count * width if stage == 0 and block == 0 else 0
        counter.norms(self.feature_width)
        counter.kept += count * (self.feature_width + 2)
        counter.head(self.feature_width, self.num_classes)

    def _count_block(self, counter: CostCounter, stage: int, held: int) -> None:
        (down, across), (tall, wide), width = self.grids[stage], self.windows[stage], self.widths[stage]
        heads, hidden, window = self.heads[stage], width * self.mlp_ratio, tall * wide
        windows = -(-down // tall) * -(-across // wide)
        count, padded = down * across, windows * window
        counter.norms(width, width)
        counter.parameters += (2 * tall - 1) * (2 * wide - 1) * heads
        counter.dense(padded, width, 3 * width, bias=self.qkv_bias)
        counter.macs += 2 * padded * window * width  # q k and the weighted sum of v
        counter.dense(padded, width, width)
        counter.dense(count, width, hidden)
        counter.dense(count, hidden, width)
        maps = windows * heads * window**2
        counter.kept += count * (3 * width + 4 + 2 * hidden) + padded * 5 * width + maps
        counter.alive(held + count * width + padded * (11 if windows > 1 else 8) * width)  # q, k, v twice: in order, and by heads
        counter.alive(held + count * (3 * width + 2 * hidden))
        counter.fixed(2 * maps)  # the bias by window and head, and, if windows are shifted, what it is made of


SWINS: dict[str, SwinConfig] = {
    "Mini": SwinConfig(width=32, depths=(2, 2), heads=(2, 4), window=(4, 4), image_size=(32, 32)),  # for tests and first steps
    "T": SwinConfig(width=96, depths=(2, 2, 6, 2), heads=(3, 6, 12, 24)),
    "S": SwinConfig(width=96, depths=(2, 2, 18, 2), heads=(3, 6, 12, 24)),
    "B": SwinConfig(width=128, depths=(2, 2, 18, 2), heads=(4, 8, 16, 32)),
    "L": SwinConfig(width=192, depths=(2, 2, 18, 2), heads=(6, 12, 24, 48)),
}
_NAME = re.compile(r"swin[-_ ]?(?P<size>[a-z]+?)(?:[-_ ]?w(?P<window>\d+))?", re.IGNORECASE)


def _usual_window(swin: SwinConfig, image_size: tuple[int, int]) -> int:
    """The authors' window: 12 if 384 divides the image size, else the size's own, 7."""
    return 12 if len(swin.depths) == 4 and all(side % 384 == 0 for side in image_size) else swin.window[0]
