"""Where pictures come from: which part of them is asked for, how parts are made, and what an archive may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitlab.config.check import at_least, fraction
from vitlab.errors import ConfigError

Split = Literal["train", "val", "train+val", "test", "all"]

_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """How parts are made of data that does not declare them.

    `val` is the share of the training pictures held out as `val` where the data has no such part of its own; `test` is the
    share held out as `test` where the data declares no part at all. Both are at least 0 and below 1 and leave something to
    train on; at 0 the part does not exist, so `val=0` trains on every training picture.

    A picture's part depends on the hash of its own content: the hash as a number in [0, 1) is below `test`, below
    `test + val`, or above. Adding pictures moves no other, and copies of a picture stay together. Every class has at least one
    picture in each part: where chance gave it none, the picture with the next lowest hash is taken, so that in such a
    small class one picture a part may move when pictures are added.
    """

    val: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        fraction("val", self.val)
        fraction("test", self.test)
        if self.val + self.test >= 1:
            raise ConfigError(f"val={self.val} and test={self.test} leave nothing to train on: together they must be below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """What a zip or tar archive may ask of the machine before it is refused, each limit named when it is met.

    `entries` is the number of files and folders in it; `entry_bytes` the size of one file once unpacked; `total_bytes` that
    of all of them, where they are unpacked to disk; `ratio` is how many times larger than the archive its content may be,
    asked only beyond 16 MiB: pictures hardly shrink, bombs shrink a thousand times.
    """

    entries: int = 500_000
    entry_bytes: int = 16 * _GIB
    total_bytes: int = 256 * _GIB
    ratio: float = 100.0

    def __post_init__(self) -> None:
        at_least("entries", self.entries, 1)
        at_least("entry_bytes", self.entry_bytes, 1)
        at_least("total_bytes", self.total_bytes, 1)
        at_least("ratio", self.ratio, 1)


READ_IN_PLACE = ArchiveLimits(entries=2_000_000, entry_bytes=256 * _MIB)
"""For archives that are read where they are: ImageNet in one file fits, and no single picture fills the memory."""
