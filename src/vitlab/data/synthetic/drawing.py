"""From the coverage of a shape to an image of it: sharpness, ink and paper, light and noise, none of which tells the class.

Axes: B images, C channels, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Random numbers and sines that are the same bits in every process, on every platform, in any batch.
#
# A number is a function of (key, position) and nothing else, so an image depends on its own key only. Everything here is
# integer arithmetic, table look-up, or one correctly rounded operation; nothing goes through a vendor's sine or sum.
#
# Axes: B images of a batch, K numbers of one image.

Floats = NDArray[np.float64]
Keys = NDArray[np.uint64]

TURN = 1 << 16
"""Angles are whole numbers of 1/65,536 of a turn."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_ONE_UNIT = 2.0**-53


# Rounded to 2^-24: so much coarser than the last bit of a sine that every C library gives the same table.
_SINE: Floats = np.rint(np.sin(np.arange(TURN) * (2 * math.pi / TURN)) * 2**24) / 2**24


def sine(angle: NDArray[np.integer]) -> Floats:
    """Sine of a whole number of 1/65,536 turns, any sign."""
    found: Floats = _SINE[angle & (TURN - 1)]
    return found


def cosine(angle: NDArray[np.integer]) -> Floats:
    """Cosine of a whole number of 1/65,536 turns, any sign."""
    return sine(angle + TURN // 4)


def turns(angle: Floats) -> NDArray[np.int64]:
    """An angle in turns as a whole number of 1/65,536 turns."""
    return np.floor(angle * TURN + 0.5).astype(np.int64)


def _mix(bits: Keys) -> Keys:
    """The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a bijection that looks random."""
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))


@lru_cache(maxsize=64)
def _root(seed: int, stream: int) -> Keys:
    return _mix(np.array([seed], np.uint64) + np.array([stream], np.uint64) * _GOLDEN)


@lru_cache(maxsize=64)
def _positions(after: int, count: int) -> Keys:
    return np.arange(after + 1, after + count + 1, dtype=np.uint64) * _GOLDEN


def keys(seed: int, stream: int, *numbers_B: NDArray[np.int64]) -> Keys:
    """One key per image out of the seed, the purpose (`stream`) and the image's own numbers (class, index)."""
    key_B = _root(seed, stream)
    for number_B in numbers_B:
        key_B = _mix((key_B ^ number_B.astype(np.uint64)) + _GOLDEN)
    return key_B


def words(key_B: Keys, count: int, *, after: int = 0) -> Keys:
    """`count` random 64-bit words for each key, those at positions `after`, `after` + 1, ... of its sequence."""
    return _mix(key_B[:, None] + _positions(after, count))


def uniforms(key_B: Keys, count: int, *, after: int = 0) -> Floats:
    """`count` numbers in [0, 1) for each key."""
    drawn: Floats = (words(key_B, count, after=after) >> np.uint64(11)).astype(np.float64) * _ONE_UNIT
    return drawn


class Choice(NamedTuple):
    """A number to be chosen evenly from `low` to `high`, `times` over; with no variety it is `middle` (halfway if None)."""

    low: float
    high: float
    middle: float | None = None
    times: int = 1


CHANCE = Choice(0, 1, 1)
"""A yes or no, to be compared with a probability; no without variety."""


class Choices:
    """All the choices of an image, by name; chosen for a whole batch in one stroke, since calls are what costs."""

    __slots__ = ("_high_K", "_low_K", "_middle_K", "_places")

    def __init__(self, table: Mapping[str, Choice]) -> None:
        repeated = [choice for choice in table.values() for _ in range(choice.times)]
        self._low_K = np.array([choice.low for choice in repeated], np.float64)
        self._high_K = np.array([choice.high for choice in repeated], np.float64)
        self._middle_K = np.array(
            [(choice.low + choice.high) / 2 if choice.middle is None else choice.middle for choice in repeated]
        )
        ends = np.cumsum([choice.times for choice in table.values()]).tolist()
        self._places = [(name, slice(end - choice.times, end)) for (name, choice), end in zip(table.items(), ends, strict=True)]

    def draw(self, key_B: Keys, *, variety: float = 1.0, after: int = 0) -> dict[str, Floats]:
        """Each choice's numbers, [B, times]; `variety` in [0, 1] is how far they may stray from the middle."""
        start_K = self._middle_K + variety * (self._low_K - self._middle_K)
        chosen_BK = uniforms(key_B, len(start_K), after=after) * (variety * (self._high_K - self._low_K)) + start_K
        return {name: chosen_BK[:, place] for name, place in self._places}


# Brightness is from 0 (black) to 1 (white); the direction is in turns.
_SAMPLE = Choices(
    {
        "coarse": CHANCE,
        "fineness": Choice(0, 1),
        "round": CHANCE,
        "inverted": CHANCE,
        "paper": Choice(0.0, 0.35, 0.05),
        "contrast": Choice(0.5, 1.0, 0.9),
        "paper tint": Choice(-0.3, 0.3, times=3),
        "ink tint": Choice(-0.25, 0.25, times=3),
        "direction": Choice(0, 1),
        "paper slope": Choice(-0.15, 0.15, times=3),
        "ink slope": Choice(-0.15, 0.15, times=3),
        "noisy": CHANCE,
        "noise": Choice(0.03, 0.22),
    }
)
_FINEST = 0.9  # beyond, blurring does not show
# Where, in an image's stream of random words, those of this stage begin; the shape's own come before.
_CHOICES_AFTER = 1 << 16
_NOISE_AFTER = 1 << 32


def image(coverage_BHW: NDArray[np.uint8], key_B: Keys, channels: int, *, coarsest: float, variety: float) -> NDArray[np.uint8]:
    """Images [B, H, W, C] of the shapes, whose coverage is used up; `key_B` holds the samples' own keys.

    `coarsest` is the share of the image's pixels, along a side, below which no shape is blurred.
    """
    height, width = coverage_BHW.shape[1:]
    sample = _SAMPLE.draw(key_B, variety=variety, after=_CHOICES_AFTER)
    _blur(coverage_BHW, sample, coarsest)
    share_B1HW = (coverage_BHW * np.float32(1 / 255))[:, None]

    # Ink and paper: a contrast always, usually bright on dark, tinted where there is colour to tint with.
    inverted_B1 = sample["inverted"] < 0.25
    ink_B1 = sample["paper"] + sample["contrast"] * (1 - sample["paper"])
    paper_BC = _tinted(np.where(inverted_B1, 1 - sample["paper"], sample["paper"]), sample["paper tint"], channels)
    ink_BC = _tinted(np.where(inverted_B1, 1 - ink_B1, ink_B1), sample["ink tint"], channels)
    light_BCHW = share_B1HW * _pixels(ink_BC - paper_BC) + _pixels(paper_BC)

    # Light that changes in one direction, over the paper and over the ink by different amounts.
    paper_slope_BC, ink_slope_BC = sample["paper slope"][:, :channels], sample["ink slope"][:, :channels]
    slope_BCHW = share_B1HW * _pixels(ink_slope_BC - paper_slope_BC) + _pixels(paper_slope_BC)
    light_BCHW += _plane(turns(sample["direction"]), height, width)[:, None] * slope_BCHW

    strength_B1 = (sample["noisy"] < 0.5) * sample["noise"] * sample["contrast"]
    if strength_B1.any():
        light_BCHW += _noise(key_B, light_BCHW.shape) * _pixels(strength_B1)
    light_BCHW *= 255
    light_BCHW += 0.5
    np.maximum(light_BCHW, 0, out=light_BCHW)
    np.minimum(light_BCHW, 255, out=light_BCHW)
    return light_BCHW.astype(np.uint8).transpose(0, 2, 3, 1)


def _blur(coverage_BHW: NDArray[np.uint8], sample: dict[str, Floats], coarsest: float) -> None:
    """Show some of the shapes through fewer pixels than the image has, as small images are when enlarged."""
    height, width = coverage_BHW.shape[1:]
    for b in np.flatnonzero(sample["coarse"] < 0.5).tolist():
        fineness = coarsest + (_FINEST - coarsest) * float(sample["fineness"][b, 0])
        small = (max(4, round(width * fineness)), max(4, round(height * fineness)))
        enlarge = Image.Resampling.BICUBIC if sample["round"][b, 0] < 0.5 else Image.Resampling.BILINEAR
        seen = Image.fromarray(coverage_BHW[b]).resize(small, Image.Resampling.BOX).resize((width, height), enlarge)
        seen_HW = np.asarray(seen)
        # Thin lines fade when blurred: bring the brightest pixel back to full, within reason.
        gain = np.float32(min(255 / max(1, int(seen_HW.max())), 2.5))
        np.minimum(seen_HW * gain, 255, out=coverage_BHW[b], casting="unsafe")


def _tinted(grey_B1: Floats, tint_B3: Floats, channels: int) -> Floats:
    """One value per channel: the grey itself, or a colour around it."""
    return grey_B1 if channels == 1 else (grey_B1 + tint_B3).clip(0, 1)


def _pixels(value_BC: Floats) -> NDArray[np.float32]:
    """One value per image and channel, ready to meet the pixels: [B, C, 1, 1]."""
    return value_BC.astype(np.float32)[:, :, None, None]


def _plane(way_B1: NDArray[np.int64], height: int, width: int) -> NDArray[np.float32]:
    """A slope [B, H, W] from about -1 to 1 across each image, rising in its own direction."""
    down_BH = (sine(way_B1) * _even_steps(height)).astype(np.float32)
    along_BW = (cosine(way_B1) * _even_steps(width)).astype(np.float32)
    return down_BH[:, :, None] + along_BW[:, None, :]


@lru_cache(maxsize=16)
def _even_steps(count: int) -> Floats:
    """Pixel centres on a line from -1 to 1."""
    return (np.arange(count) * 2 + 1 - count) / count


def _noise(key_B: Keys, shape_BCHW: tuple[int, ...]) -> NDArray[np.float32]:
    """Noise between -1 and 1, independent in each pixel and channel, more often small than large."""
    count = int(np.prod(shape_BCHW[1:]))
    bytes_BK = words(key_B, -(-count // 4), after=_NOISE_AFTER).astype("<u8", copy=False).view(np.int8)
    sum_BK = bytes_BK[:, :count].astype(np.int16) + bytes_BK[:, count : 2 * count]  # two dice: the middle is likelier
    return (sum_BK * np.float32(1 / 256)).reshape(shape_BCHW)
