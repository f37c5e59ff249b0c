"""Convolutions before a ViT's patches: what a model needs to learn from few pictures or in little time. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from vitlab.config.check import at_least
from vitlab.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyConvolutions:
    """A plain convolutional stem ("Early convolutions help transformers see better", Xiao et al. 2021).

    `widths` are the channels of each stage, which begins with a 3x3 convolution of stride 2; `units` is how many convolutions a
    stage has, those after the first with a shortcut around them. After each come GroupNorm, over `group_width` channels at a
    time, and GELU. Unlike the paper's hybrids it keeps fine detail: the first map has half the picture's size and not a quarter.
    """

    widths: tuple[int, ...] = (64, 128)
    units: tuple[int, ...] = (2, 2)
    group_width: int = 8
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if not self.widths or len(self.widths) != len(self.units):
            raise ConfigError(f"early.widths={self.widths} and early.units={self.units} must have one number a stage")
        for units in self.units:
            at_least("early.units", units, 1)
        at_least("early.group_width", self.group_width, 1)
        for width in self.widths:
            if width < 1 or width % self.group_width:
                raise ConfigError(f"early.widths={self.widths} must be multiples of early.group_width={self.group_width}")
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"early.norm_eps={self.norm_eps} must be between 0 and 1")

    @property
    def stride(self) -> int:
        """Pixels of the image per cell of the feature map, in each direction."""
        return 1 << len(self.widths)

    @property
    def out_width(self) -> int:
        """Channels of the feature map."""
        return self.widths[-1]
