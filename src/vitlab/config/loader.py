"""How pictures become batches: how many at once, in which order, by whom, and what happens when one cannot be read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vitlab.config.check import at_least, choice, fraction
from vitlab.errors import ConfigError

WorkerKind = Literal["process", "thread"]
CorruptPolicy = Literal["skip", "fail"]
CachePolicy = Literal["auto", "none", "memory", "disk"]

_WORD = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderConfig:
    """The loader. Nothing below the line "how" changes a single bit of what comes out.

    What:
    `batch_size` counts the pictures of one step over all ranks together, so results do not depend on how many there are.
    `seed`, from 0 to 2^64 - 1, decides the order of every epoch and the randomness of every picture.
    `repeats` shows each picture that many times within a batch, each time with another augmentation (Hoffer et al. 2020);
    an epoch is then `repeats` times as long.
    `balance` in [0, 1] evens out rare classes by drawing with replacement: 0 takes every picture once an epoch, 1 draws every
    class equally often, 0.5 by the square root of its size. `class_weights` multiplies that by a number of your own for each
    class; given at all, it also means drawing with replacement.
    `corrupt` is for pictures that cannot be read: `fail` stops at the first; `skip` names and counts it, and in training puts
    another in its place. `corrupt_budget` is the share of the pictures that may be skipped before `skip` stops too.

    How:
    `workers` read and augment ahead; 0 does it in the caller. `worker_kind`: a `process` each (faster, shares nothing), or a
    `thread` each (starts at once, takes views and sources that cannot be pickled).
    `prefetch` batches are at most ready ahead. `timeout` is how many seconds one picture may take a worker.
    `cache` keeps decoded pictures: in `memory`, on `disk` under `cache_folder` (None: the user's cache folder), `none`, or
    `auto`: by size, and only where it changes no pixel.
    """

    batch_size: int = 512
    seed: int = 0
    repeats: int = 1
    balance: float = 0.0
    class_weights: tuple[float, ...] | None = None
    corrupt: CorruptPolicy = "fail"
    corrupt_budget: float = 0.01
    workers: int = 2
    worker_kind: WorkerKind = "process"
    prefetch: int = 2
    timeout: float = 60.0
    cache: CachePolicy = "auto"
    cache_folder: str | None = None

    def __post_init__(self) -> None:
        for field in ("batch_size", "seed", "repeats", "workers", "prefetch"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{field}={value!r} must be a whole number")
        at_least("batch_size", self.batch_size, 1)
        at_least("repeats", self.repeats, 1)
        at_least("workers", self.workers, 0)
        at_least("prefetch", self.prefetch, 1)
        if not 0 <= self.seed < _WORD:
            raise ConfigError(f"seed={self.seed} must be from 0 to 2^64 - 1")
        if self.batch_size % self.repeats:
            raise ConfigError(
                f"batch_size={self.batch_size} is not a multiple of repeats={self.repeats}",
                hint="the repeats of a picture stand in one batch",
            )
        if not 0 <= self.balance <= 1:
            raise ConfigError(f"balance={self.balance} must be from 0 (every picture once) to 1 (every class equally often)")
        if self.class_weights is not None:
            _refuse_bad_weights(self.class_weights)
        choice("corrupt", self.corrupt, CorruptPolicy)
        choice("worker_kind", self.worker_kind, WorkerKind)
        choice("cache", self.cache, CachePolicy)
        fraction("corrupt_budget", self.corrupt_budget)
        if not (self.timeout > 0 and math.isfinite(self.timeout)):
            raise ConfigError(f"timeout={self.timeout} must be a positive number of seconds")
        if self.cache_folder == "":
            raise ConfigError("cache_folder is empty", hint="leave it out for the user's cache folder")

    @property
    def weighted(self) -> bool:
        """Whether pictures are drawn with replacement, rather than each once an epoch."""
        return self.balance > 0 or self.class_weights is not None


def _refuse_bad_weights(weights: tuple[float, ...]) -> None:
    if not weights or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ConfigError(f"class_weights={weights} must be one finite number of at least 0 for each class")
    if not any(weights):
        raise ConfigError("class_weights are all 0: no picture could be drawn")
