"""How pictures are fed: the one value that evaluation, prediction, export and serving share, saved in every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitlab.config.check import at_least, choice, pair
from vitlab.errors import ConfigError

Resize = Literal["short-side", "squash", "pad"]
Interpolation = Literal["bilinear", "bicubic", "tf-bilinear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess:
    """From a decoded picture to the model's input, in evaluation.

    `image_size` is (height, width) in pixels of what the model sees.
    `resize`: `short-side` scales the shorter side to `resize_to` pixels (keeping the aspect ratio, the longer side rounded)
    and crops the centre; `squash` scales to `image_size` whatever the aspect; `pad` scales to fit inside and fills with `fill`.
    `interpolation`: `bilinear` and `bicubic` are Pillow's, with antialiasing; `tf-bilinear` is the official code's
    `tf.image.resize`, without.
    `mean` and `std` are per channel on the scale where white is 1; (0.5, 0.5) gives the official [-1, 1].
    """

    image_size: tuple[int, int] = (224, 224)
    resize: Resize = "short-side"
    resize_to: int = 256
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    fill: int = 127

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        choice("resize", self.resize, Resize)
        choice("interpolation", self.interpolation, Interpolation)
        if self.resize == "short-side":
            at_least("resize_to", self.resize_to, 1)
            if self.resize_to < max(self.image_size):
                raise ConfigError(
                    f"resize_to={self.resize_to} is smaller than the crop {self.image_size[0]}x{self.image_size[1]}",
                    hint="make resize_to at least the longer side of image_size",
                )
        if len(self.mean) != len(self.std) or not self.mean:
            raise ConfigError(f"mean has {len(self.mean)} channels and std has {len(self.std)}: they must agree")
        if min(self.std) <= 0:
            raise ConfigError(f"std={self.std} must be positive")
        if not 0 <= self.fill <= 255:
            raise ConfigError(f"fill={self.fill} must be a grey value from 0 to 255")

    @property
    def channels(self) -> int:
        """Channels the model sees; 1 means grey."""
        return len(self.mean)


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
