"""A Swin Transformer as a value (Liu et al. 2021). No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitlab.errors import ConfigError, at_least, fraction, pair


@dataclass(frozen=True, slots=True, kw_only=True)
class SwinConfig:
    """Attention within windows that shift from block to block, in stages that halve the resolution and double the width.

    `width` is the first stage's; `depths` and `heads` have one number a stage. `window` is the side (down, across) of a window in
    patches; a stage whose map is no larger than that at `image_size` has its map for a window, and a table of that size.
    Images of other sizes are taken too: edges are filled with zeros up to whole patches, pairs of patches and windows.
    `pad_first`: a map is padded to whole windows and then shifted, as in the authors' detectors; False shifts it before, as timm
    does. It makes no difference where windows fit the map, as at 224 and 384 pixels.
    `mlp_ratio` is the MLP's width over that of its stage. `drop_path` is the last block's rate of stochastic depth, rising
    linearly from 0. `norm_eps` is 1e-5 in the authors' code, and the GELU the exact one.
    """

    kind: ClassVar[str] = "swin"

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
            at_least(name, getattr(self, name), 1)
        at_least("num_classes", self.num_classes, 0)
        for name in ("dropout", "drop_path"):
            fraction(name, getattr(self, name))
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"norm_eps={self.norm_eps} must be between 0 and 1")
        if not self.depths or len(self.depths) != len(self.heads):
            raise ConfigError(f"depths={self.depths} and heads={self.heads} must have one number a stage")
        for stage, (blocks, heads) in enumerate(zip(self.depths, self.heads, strict=True)):
            at_least("depths", blocks, 1)
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
        """Each stage's map (down, across) of an image of that size: a part of a patch, or of a pair of them, counts as one."""
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
