"""A ConvNeXt as a value (Liu et al. 2022). No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitlab.errors import ConfigError, at_least, fraction, pair


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvNeXtConfig:
    """A ResNet made as Transformers are: 7x7 depthwise convolutions, LayerNorm, an MLP, layer scale.

    `depths` and `widths` have one number a stage. `patch_size` is the side of the squares that the stem cuts; each later stage
    halves the resolution. What is left over at the right and lower edge is cut off, as the authors' convolutions do.
    `layer_scale` is the initial value of a per-channel factor on each block, 0 for none. `drop_path` is the last block's rate
    of stochastic depth, rising linearly from 0.
    """

    kind: ClassVar[str] = "convnext"

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        for name in ("kernel", "patch_size", "mlp_ratio", "channels"):
            at_least(name, getattr(self, name), 1)
        for name in ("num_classes", "layer_scale"):
            at_least(name, getattr(self, name), 0)
        for name in ("dropout", "drop_path"):
            fraction(name, getattr(self, name))
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"norm_eps={self.norm_eps} must be between 0 and 1")
        if self.kernel % 2 == 0:
            raise ConfigError(f"kernel={self.kernel} must be odd: a cell stands in its middle")
        if not self.depths or len(self.depths) != len(self.widths):
            raise ConfigError(f"depths={self.depths} and widths={self.widths} must have one number a stage")
        for blocks, width in zip(self.depths, self.widths, strict=True):
            at_least("depths", blocks, 1)
            at_least("widths", width, 1)
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
