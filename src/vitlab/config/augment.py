"""What training does to a picture: crop, flip, distortions, the mixing of two; and AugReg's presets by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vitlab.config.check import at_least, choice, did_you_mean, pair
from vitlab.config.data import Interpolation
from vitlab.errors import ConfigError

Crop = Literal["inception", "random", "pad", "squash"]
EraseFill = Literal["grey", "noise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    """From a picture to one training view of it; every random choice comes from the sample's own generator.

    `image_size` is (height, width) in pixels of the view.
    `crop`: `inception` cuts a box of `area` (share of the picture) and `aspect` (width / height) and scales it to `image_size`;
    `random` scales the whole picture to `resize_to` x `resize_to` and cuts `image_size` out of it; `pad` scales the whole
    picture to `image_size`, adds `padding` pixels of `fill` on each side and cuts `image_size` out of that (CIFAR's crop);
    `squash` only scales.
    `interpolation`: `bilinear` and `bicubic` with antialiasing, or `tf-bilinear`, the official code's, without.
    `flip` is the probability of mirroring left and right.
    `randaugment` is (layers, magnitude): that many operations drawn from sixteen, one after the other, magnitude on the scale
    where 10 is the end of the range that AutoAugment searched; past it, as in AugReg's 15 and 20, it goes on in a straight line
    as far as the operation allows. None is no RandAugment.
    `brightness`, `contrast`, `saturation` (each >= 0) and `hue` (0 to 0.5 of a turn) are the widths of the colour jitter.
    `erase` is the probability of erasing one box of `erase_area` (share of the view) and `erase_aspect` (height / width),
    filled with `grey` (`fill`) or with `noise`.
    `mixup` and `cutmix` are the alphas of the Beta distribution of the mixing weight, 0 for none; when both are given, each
    batch takes one or the other with equal chance.
    `fill` is the grey value, 0 to 255, of pixels that a shift or a turn leaves empty.
    """

    image_size: tuple[int, int] = (224, 224)
    crop: Crop = "inception"
    area: tuple[float, float] = (0.05, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    resize_to: int = 256
    padding: int = 4
    interpolation: Interpolation = "bilinear"
    flip: float = 0.5
    randaugment: tuple[int, float] | None = None
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    erase: float = 0.0
    erase_area: tuple[float, float] = (0.02, 1 / 3)
    erase_aspect: tuple[float, float] = (0.3, 1 / 0.3)
    erase_fill: EraseFill = "noise"
    mixup: float = 0.0
    cutmix: float = 0.0
    fill: int = 128

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        choice("crop", self.crop, Crop)
        choice("interpolation", self.interpolation, Interpolation)
        choice("erase_fill", self.erase_fill, EraseFill)
        _interval("area", self.area, most=1.0)
        _interval("aspect", self.aspect)
        _interval("erase_area", self.erase_area, most=1.0)
        _interval("erase_aspect", self.erase_aspect)
        for field in ("flip", "erase"):
            _within(field, getattr(self, field), 1.0)
        for field in ("brightness", "contrast", "saturation", "mixup", "cutmix"):
            _within(field, getattr(self, field), math.inf)
        _within("hue", self.hue, 0.5)
        at_least("padding", self.padding, 0)
        if self.crop == "random" and self.resize_to < max(self.image_size):
            raise ConfigError(
                f"resize_to={self.resize_to} is smaller than the crop {self.image_size[0]}x{self.image_size[1]}",
                hint="make resize_to at least the longer side of image_size",
            )
        if self.randaugment is not None:
            _randaugment(self.randaugment)
        if not 0 <= self.fill <= 255:
            raise ConfigError(f"fill={self.fill} must be a grey value from 0 to 255")

    @property
    def mixes(self) -> bool:
        """Whether batches are mixed, and so need soft targets."""
        return self.mixup > 0 or self.cutmix > 0


def _interval(field: str, value: Sequence[float], *, most: float = math.inf) -> None:
    if len(value) != 2 or not 0 < value[0] <= value[1] <= most or math.isinf(value[1]):
        limit = "" if math.isinf(most) else f", at most {most:g}"
        raise ConfigError(f"{field}={value} must be two numbers above 0{limit}, the smaller first")


def _within(field: str, value: float, most: float) -> None:
    if not 0 <= value <= most or math.isinf(value):
        raise ConfigError(
            f"{field}={value} must be from 0 to {most:g}" if most < math.inf else f"{field}={value} must be 0 or more"
        )


def _randaugment(value: Sequence[float]) -> None:
    if len(value) != 2 or isinstance(value[0], bool) or not isinstance(value[0], int) or value[0] < 1:
        raise ConfigError(f"randaugment={value} must be (layers, magnitude): a whole number of at least 1, and a number")
    if not 0 <= value[1] <= 30:
        raise ConfigError(f"randaugment={value}: the magnitude must be from 0 to 30", hint="10 is the end of the usual scale")


# "How to train your ViT?" (Steiner et al., 2021), sec. 3.4: RandAugment (layers, magnitude) and Mixup alpha.
AUGREG: dict[str, Augment] = {
    "none": Augment(),
    "light1": Augment(randaugment=(2, 0)),
    "light2": Augment(randaugment=(2, 10), mixup=0.2),
    "medium1": Augment(randaugment=(2, 15), mixup=0.2),
    "medium2": Augment(randaugment=(2, 15), mixup=0.5),
    "strong1": Augment(randaugment=(2, 20), mixup=0.5),
    "strong2": Augment(randaugment=(2, 20), mixup=0.8),
}


def augreg(name: str, *, image_size: int | tuple[int, int] = 224) -> Augment:
    """The AugReg preset of that name (`none`, `light1` ... `strong2`) for views of `image_size`."""
    if name not in AUGREG:
        hint = did_you_mean(name, list(AUGREG))
        raise ConfigError(f"no augmentation called {name!r}: there are {', '.join(AUGREG)}", hint=hint)
    return replace(AUGREG[name], image_size=pair("image_size", image_size))
