"""Random numbers that are the same bits in every process, on every platform, in any batch.

A number is a function of (key, position) and nothing else, so a sample depends on its own key only. Everything is integer
arithmetic, a table look-up or one correctly rounded operation; nothing depends on a C library's sine or order of summation.

Axes: B samples of a batch, K numbers of one sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

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


# Rounded to 2^-24, which is so coarse that every C library gives the same table.
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
    """The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a bijection whose output looks random."""
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
    """One key per sample, from the seed, the purpose (`stream`) and the sample's own numbers (class, index)."""
    key_B = _root(seed, stream)
    for number_B in numbers_B:
        key_B = _mix((key_B ^ number_B.astype(np.uint64)) + _GOLDEN)
    return key_B


def words(key_B: Keys, count: int, *, after: int = 0) -> Keys:
    """`count` random 64-bit words for each key: those at positions `after`, `after` + 1, ... of its sequence."""
    return _mix(key_B[:, None] + _positions(after, count))


def uniforms(key_B: Keys, count: int, *, after: int = 0) -> Floats:
    """`count` numbers in [0, 1) for each key."""
    drawn: Floats = (words(key_B, count, after=after) >> np.uint64(11)).astype(np.float64) * _ONE_UNIT
    return drawn


class Choice(NamedTuple):
    """A number, or `times` numbers, uniform from `low` to `high`; without variety it is `middle` (halfway if None)."""

    low: float
    high: float
    middle: float | None = None
    times: int = 1


CHANCE = Choice(0, 1, 1)
"""A number to be compared with a probability; without variety the answer is no."""


class Choices:
    """All random choices of a sample, by name. They are drawn for a whole batch in one call, because calls are what costs."""

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
        """Each choice's numbers, [B, times]; `variety` in [0, 1] is how far they may be from the middle."""
        start_K = self._middle_K + variety * (self._low_K - self._middle_K)
        chosen_BK = uniforms(key_B, len(start_K), after=after) * (variety * (self._high_K - self._low_K)) + start_K
        return {name: chosen_BK[:, place] for name, place in self._places}
