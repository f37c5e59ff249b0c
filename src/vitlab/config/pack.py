"""How pictures are packed into tar shards."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from vitlab.config.check import at_least, choice
from vitlab.errors import ConfigError

OnBroken = Literal["fail", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackConfig:
    """Shards of pictures in the WebDataset layout.

    `name` begins the name of every shard, before the part and the number; None leaves it out.
    `shard_bytes` is how large a shard may become (one that holds a single picture may be larger).
    `max_side`: pictures whose longer side has more pixels are made smaller and encoded again, JPEG and WebP at `quality` (1 to
    100), others as PNG; None, and every smaller picture, keeps the bytes it has.
    `shuffle` is the seed of the order within each part, for readers that cannot shuffle well; None keeps the order.
    `broken`: at a picture that cannot be read, `fail`, or `skip` it and say so.
    """

    name: str | None = None
    shard_bytes: int = 256 * 2**20
    max_side: int | None = None
    quality: int = 95
    shuffle: int | None = None
    broken: OnBroken = "fail"

    def __post_init__(self) -> None:
        if self.name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", self.name):
            raise ConfigError(f"name={self.name!r} must be up to 64 letters, digits, - and _, beginning with a letter or digit")
        if self.name is not None and re.search(
            r"(^|[-_])(train|training|val|valid|validation|dev|test|testing)([-_]|$)", self.name
        ):
            raise ConfigError(f"name={self.name!r} holds the name of a part, by which shards are told apart")
        at_least("shard_bytes", self.shard_bytes, 2**16)
        if self.max_side is not None:
            at_least("max_side", self.max_side, 8)
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"quality={self.quality} must be from 1 to 100")
        if self.shuffle is not None:
            at_least("shuffle", self.shuffle, 0)
        choice("broken", self.broken, OnBroken)
