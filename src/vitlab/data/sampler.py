"""Samplers: which image comes when, as a pure function of the seed and of the position in the stream of images.

Samplers have no state: nothing is shuffled in advance or remembered. So a run resumes at any position at once, and ranks take
their share of each batch without communication. The generator of a sample, too, depends on (seed, epoch, index) only.

Axes: B rows of a batch, N images of a dataset, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import Label
from vitlab.data.random_numbers import keys, uniforms
from vitlab.errors import ConfigError, DataError

Indices = NDArray[np.int64]

# Each purpose has its own random numbers.
_ROUND_KEY_STREAM = 101
_ROUND_STREAM = 102
_WEIGHTED_STREAM = 103
_SUBSTITUTE_STREAM = 104

_ROUNDS = 12  # enough that 5 images come in each of their 120 orders equally often, which a test checks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picks:
    """Rows of a batch: for each the image's index in the dataset, the epoch, and the repeat within that epoch.

    `repeat_B` is 0 if an epoch has each image once; it gives repeated images different augmentations.
    """

    index_B: Indices
    epoch_B: Indices
    repeat_B: Indices

    def __len__(self) -> int:
        return len(self.index_B)


class Sampler(Protocol):
    """A stream of images. `epoch_length` is the images of an epoch; `total` those of the stream, None if it never ends."""

    @property
    def epoch_length(self) -> int: ...

    @property
    def total(self) -> int | None: ...

    def picks(self, start: int, stop: int) -> Picks:
        """The images at positions start, start + 1, ..., stop - 1 of the stream."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialSampler:
    """Every image once, in the dataset's order, for evaluation."""

    length: int

    @property
    def epoch_length(self) -> int:
        """All images."""
        return self.length

    @property
    def total(self) -> int | None:
        """All images, once."""
        return self.length

    def picks(self, start: int, stop: int) -> Picks:
        """Positions are indices."""
        assert 0 <= start <= stop <= self.length
        index_B = np.arange(start, stop, dtype=np.int64)
        return Picks(index_B=index_B, epoch_B=np.zeros_like(index_B), repeat_B=np.zeros_like(index_B))


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSampler:
    """Endless epochs, each in its own random order; each image comes `repeats` times in a row."""

    length: int
    seed: int
    repeats: int = 1

    @property
    def epoch_length(self) -> int:
        """Each image `repeats` times."""
        return self.length * self.repeats

    @property
    def total(self) -> int | None:
        """It never ends."""
        return None

    def picks(self, start: int, stop: int) -> Picks:
        """Rows may belong to two epochs, or to more if there are fewer images than rows."""
        slot_B, epoch_B, repeat_B = _places(start, stop, self.length, self.repeats)
        index_B = np.empty_like(slot_B)
        for epoch in np.unique(epoch_B).tolist():
            here_B = epoch_B == epoch
            index_B[here_B] = permuted(slot_B[here_B], length=self.length, seed=self.seed, epoch=epoch)
        return Picks(index_B=index_B, epoch_B=epoch_B, repeat_B=repeat_B)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightedSampler:
    """Images drawn with replacement by weight; an epoch is as many draws as there are images.

    `reach_N` is the cumulative sum of the images' weights.
    """

    reach_N: NDArray[np.float64]
    seed: int
    repeats: int = 1

    @property
    def epoch_length(self) -> int:
        """As many draws as there are images, each `repeats` times."""
        return len(self.reach_N) * self.repeats

    @property
    def total(self) -> int | None:
        """It never ends."""
        return None

    def picks(self, start: int, stop: int) -> Picks:
        """`repeat_B` counts the draws of the epoch, so that an image drawn twice gets two augmentations."""
        slot_B, epoch_B, repeat_B = _places(start, stop, len(self.reach_N), self.repeats)
        drawn_B = uniforms(keys(self.seed, _WEIGHTED_STREAM, epoch_B, slot_B), 1)[:, 0]
        # Rounding may lift the product to the sum itself, which is beyond the last image.
        target_B = np.minimum(drawn_B * self.reach_N[-1], np.nextafter(self.reach_N[-1], 0))
        index_B = np.searchsorted(self.reach_N, target_B, side="right").astype(np.int64)
        return Picks(index_B=index_B, epoch_B=epoch_B, repeat_B=slot_B * self.repeats + repeat_B)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The rows of each batch that belong to rank `rank` of `ranks`; `together` neighbouring rows are never separated."""

    rank: int = 0
    ranks: int = 1
    together: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ConfigError(f"rank={self.rank} must be at least 0 and below ranks={self.ranks}")

    def rows(self, count: int) -> tuple[int, int]:
        """(first, last + 1) of the rank's rows in a batch of `count`; all ranks together have each row once, evenly."""
        groups = -(-count // self.together)
        first, last = (min(count, self.together * (groups * rank // self.ranks)) for rank in (self.rank, self.rank + 1))
        return first, last


def permuted(slot_B: Indices, *, length: int, seed: int, epoch: int) -> Indices:
    """The images at these places of the epoch's random order, a permutation of 0 ... length - 1 that is never stored.

    A keyed Feistel network permutes all numbers with as many bits as `length` needs. A result outside the range is permuted
    again until it is inside; this ends, because a permutation consists of cycles (Black and Rogaway, CT-RSA 2002).
    """
    if length == 1:
        return np.zeros_like(slot_B)
    bits = (length - 1).bit_length()
    low = np.uint64(bits // 2)
    low_mask, high_mask = np.uint64((1 << bits // 2) - 1), np.uint64((1 << bits - bits // 2) - 1)
    round_R = np.arange(_ROUNDS, dtype=np.int64)
    key_R = keys(seed, _ROUND_KEY_STREAM, np.full_like(round_R, epoch), round_R).tolist()
    found_B = slot_B.astype(np.uint64)
    outside_B = np.ones(len(slot_B), np.bool_)
    while outside_B.any():
        high_X, low_X = found_B[outside_B] >> low, found_B[outside_B] & low_mask
        for even, odd in zip(key_R[::2], key_R[1::2], strict=True):
            high_X ^= keys(even, _ROUND_STREAM, low_X.astype(np.int64)) & high_mask
            low_X ^= keys(odd, _ROUND_STREAM, high_X.astype(np.int64)) & low_mask
        found_B[outside_B] = high_X << low | low_X
        outside_B = found_B >= np.uint64(length)
    return found_B.astype(np.int64)


def substitute(seed: int, epoch: int, index: int, attempt: int, *, length: int) -> int:
    """The image that replaces one that cannot be read; `attempt` counts replacements that cannot be read either."""
    numbers = (np.array([number], np.int64) for number in (epoch, index, attempt))
    drawn = float(uniforms(keys(seed, _SUBSTITUTE_STREAM, *numbers), 1)[0, 0])
    return min(int(drawn * length), length - 1)


def running_weights(
    labels: Iterable[Label], classes: int, *, balance: float, class_weights: tuple[float, ...] | None
) -> NDArray[np.float64]:
    """The cumulative sum of the images' weights: an image of a class with n images has its class weight times n^-balance.

    An image of several classes has the weight of the heaviest one. In multi-label data, images without a class form a class of
    their own, with class weight 1.
    """
    if class_weights is not None and len(class_weights) != classes:
        raise ConfigError(f"class_weights has {len(class_weights)} numbers, but the data has {classes} classes")
    rows = [_as_classes(label, index, classes) for index, label in enumerate(labels)]
    count_C = np.bincount([code for row in rows for code in row], minlength=classes + 1)
    own_C = np.append(np.ones(classes) if class_weights is None else np.array(class_weights), 1.0)
    weight_C = own_C * np.maximum(count_C, 1) ** -balance
    reach_N = np.cumsum([weight_C[list(row)].max() for row in rows], dtype=np.float64)
    if not reach_N[-1] > 0:
        raise ConfigError("class_weights are 0 for every class that has images, so none can be drawn")
    return reach_N


def _as_classes(label: Label, index: int, classes: int) -> tuple[int, ...]:
    if label is None:
        raise DataError(
            f"image {index} has no label, so it cannot be drawn by its class", hint="set balance=0 and no class_weights"
        )
    if isinstance(label, int):
        return (label,)
    return label or (classes,)


def _places(start: int, stop: int, length: int, repeats: int) -> tuple[Indices, Indices, Indices]:
    """For each position: the place in its epoch's order, the epoch, and the repeat."""
    assert 0 <= start <= stop
    position_B = np.arange(start, stop, dtype=np.int64)
    shown_B, repeat_B = np.divmod(position_B, repeats)
    epoch_B, slot_B = np.divmod(shown_B, length)
    return slot_B, epoch_B, repeat_B


Stream = Literal["sample", "batch", "order"]

_STREAMS: dict[Stream, int] = {"sample": 0, "batch": 1, "order": 2}
_WORD = 1 << 64


def rng_of(seed: int, epoch: int, index: int, *, stream: Stream = "sample", repeat: int = 0) -> np.random.Generator:
    """The random generator of sample `index` in `epoch`; each number is from 0 to 2^64 - 1.

    `stream` separates purposes: `sample` for an image's augmentation, `batch` for the mixing of a batch (`index` is then the
    step), `order` for the order of an epoch. `repeat` separates the repeats of an image within an epoch. Philox is keyed by
    (seed, stream) and starts at the counter (index, epoch, repeat), so two different quintuples never share a number, and
    making a generator costs no hashing.
    """
    for field, value in (("seed", seed), ("epoch", epoch), ("index", index), ("repeat", repeat)):
        if not 0 <= value < _WORD:
            raise ConfigError(f"{field}={value} must be from 0 to 2^64 - 1")
    if stream not in _STREAMS:
        raise ConfigError(f"stream={stream!r} is not one of {', '.join(_STREAMS)}")
    # The lowest counter word belongs to the generator itself: 2^64 blocks for each sample.
    counter = int(index) << 64 | int(epoch) << 128 | int(repeat) << 192
    return np.random.Generator(np.random.Philox(key=int(seed) | _STREAMS[stream] << 64, counter=counter))
