"""The generated pre-training set: which formulas, how many classes, how large the pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitlab.config.check import at_least, choice, pair
from vitlab.errors import ConfigError

GeneratedKind = Literal["contours", "fractals", "strokes", "mixed"]

_LARGEST_SEED = 2**63 - 1
_SMALLEST_SIDE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedConfig:
    """A labelled set of pictures drawn from formulas: no download, no licence, no end.

    `kind`: `contours` are rings bent by two sinusoids (Visual Atoms), `fractals` are iterated function systems
    (FractalDB), `strokes` are pen strokes like those of an unknown script, `mixed` takes the three in turn:
    its class 3k + j is class k of the j-th.
    `classes` is how many formulas; class k is the same formula whatever the number of classes.
    `examples` is the number of pictures of each class, the first of them number `first`: two sets of the same seed whose
    ranges do not meet share classes and no picture, which is how a test set is made.
    `image_size` is (height, width) in pixels, each at least 8; `channels` is 1 (grey) or 3 (colour).
    `variety`, from 0 to 1, scales everything a sample does to its class (position, scale, rotation, deformation, pen,
    sharpness, light, noise): at 0 all the pictures of a class are the same.
    `seed` chooses the formulas and the samples.
    """

    kind: GeneratedKind = "mixed"
    classes: int = 300
    examples: int = 1000
    first: int = 0
    image_size: tuple[int, int] = (32, 32)
    channels: Literal[1, 3] = 1
    variety: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        choice("kind", self.kind, GeneratedKind)
        for field, value, least in (
            ("classes", self.classes, 1),
            ("examples", self.examples, 1),
            ("first", self.first, 0),
            ("seed", self.seed, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{field}={value!r} must be a whole number")
            at_least(field, value, least)
            if value > _LARGEST_SEED:
                raise ConfigError(f"{field}={value} must be below 2^63")
        if min(self.image_size) < _SMALLEST_SIDE:
            height, width = self.image_size
            raise ConfigError(f"image_size={height}x{width} is too small for a shape: each side must be at least {_SMALLEST_SIDE}")
        if self.channels not in (1, 3) or isinstance(self.channels, bool):
            raise ConfigError(f"channels={self.channels!r} must be 1 (grey) or 3 (colour)")
        if not 0 <= self.variety <= 1:
            raise ConfigError(f"variety={self.variety} must be from 0 to 1")
