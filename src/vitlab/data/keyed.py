"""Random numbers and sines that are the same bits in every process, on every platform, in any batch.

A number is a function of (key, position) and nothing else, so a picture depends on its own key only. Everything here is
integer arithmetic, table look-up, or one correctly rounded operation; nothing goes through a vendor's sine or sum.

Axes: B pictures of a batch, K numbers of one picture.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

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


def keys(seed: int, stream: int, *numbers_B: NDArray[np.int64]) -> Keys:
    """One key per picture out of the seed, the purpose (`stream`) and the picture's own numbers (class, index)."""
    key_B = _mix(np.array([seed], np.uint64) + np.array([stream], np.uint64) * _GOLDEN)
    for number_B in numbers_B:
        key_B = _mix((key_B ^ number_B.astype(np.uint64)) + _GOLDEN)
    return key_B


def words(key_B: Keys, count: int, *, after: int = 0) -> Keys:
    """`count` random 64-bit words for each key, those at positions `after`, `after` + 1, ..."""
    position_K = np.arange(after + 1, after + count + 1, dtype=np.uint64) * _GOLDEN
    return _mix(key_B[:, None] + position_K)


def uniforms(key_B: Keys, count: int, *, after: int = 0) -> Floats:
    """`count` numbers in [0, 1) for each key."""
    return (words(key_B, count, after=after) >> np.uint64(11)) * _ONE_UNIT


class Draws:
    """The random choices of a batch of pictures, taken one after the other; all made at once, since calls are what costs.

    `variety` in [0, 1] pulls every choice towards its middle; at 0 all pictures choose the same.
    """

    __slots__ = ("_taken", "_uniform_BK", "variety")

    def __init__(self, key_B: Keys, *, count: int, variety: float = 1.0) -> None:
        self._uniform_BK = uniforms(key_B, count)
        self._taken = 0
        self.variety = variety

    def between(self, low: float, high: float, *, middle: float | None = None) -> Floats:
        """One number per picture, [B], from `low` to `high`; `middle` is the one that variety 0 gives."""
        return self._scale(self._take(1)[:, 0], low, high, middle)

    def several(self, count: int, low: float, high: float, *, middle: float | None = None) -> Floats:
        """`count` numbers per picture, [B, count]."""
        return self._scale(self._take(count), low, high, middle)

    def happens(self, probability: float) -> NDArray[np.bool_]:
        """Yes or no per picture, [B]; never at variety 0."""
        chosen: NDArray[np.bool_] = self._take(1)[:, 0] < probability * self.variety
        return chosen

    def _scale(self, uniform: Floats, low: float, high: float, middle: float | None) -> Floats:
        centre = (low + high) / 2 if middle is None else middle
        start = centre + self.variety * (low - centre)
        return uniform * (self.variety * (high - low)) + start

    def _take(self, count: int) -> Floats:
        first, self._taken = self._taken, self._taken + count
        assert self._taken <= self._uniform_BK.shape[1], "more random numbers taken than were made"
        return self._uniform_BK[:, first : self._taken]
