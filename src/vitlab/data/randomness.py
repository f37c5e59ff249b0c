"""Randomness is an argument: the generator of a sample is a function of (seed, epoch, index) and of nothing else."""

from __future__ import annotations

from typing import Literal

import numpy as np

from vitlab.errors import ConfigError

Stream = Literal["sample", "batch", "order"]

_STREAMS: dict[Stream, int] = {"sample": 0, "batch": 1, "order": 2}
_WORD = 1 << 64


def rng_of(seed: int, epoch: int, index: int, *, stream: Stream = "sample", repeat: int = 0) -> np.random.Generator:
    """The generator of sample `index` in `epoch`; each number is from 0 to 2^64 - 1.

    `stream` keeps purposes apart: `sample` for one picture's view, `batch` for the mixing of a batch (`index` is then the
    step), `order` for the order of an epoch. `repeat` tells the showings of one picture within an epoch apart, where an epoch
    shows it more than once. Philox is keyed by (seed, stream) and starts at the counter (index, epoch, repeat), so two
    different quintuples never share a number, and making a generator costs no hashing.
    """
    for field, value in (("seed", seed), ("epoch", epoch), ("index", index), ("repeat", repeat)):
        if not 0 <= value < _WORD:
            raise ConfigError(f"{field}={value} must be from 0 to 2^64 - 1")
    if stream not in _STREAMS:
        raise ConfigError(f"stream={stream!r} is not one of {', '.join(_STREAMS)}")
    # The lowest counter word is left to the generator itself: 2^64 blocks for each sample.
    counter = int(index) << 64 | int(epoch) << 128 | int(repeat) << 192
    return np.random.Generator(np.random.Philox(key=int(seed) | _STREAMS[stream] << 64, counter=counter))
