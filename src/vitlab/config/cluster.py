"""Settings of work on a cluster: where it is, and how the work is cut. No Ray here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitlab.errors import at_least

EngineName = Literal["local", "ray"]
"""Where the work runs: in this process (and its own children), or on a Ray cluster."""

MOST_ACTORS = 4096
_CHUNK = 128  # images of a chunk, about: large beside the cost of sending it, small beside the work of a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """Work on Ray.

    `address` is `auto` (the cluster that this machine belongs to), host:port, or None: a Ray of its own on this machine, which
    ends with the work. `actors` models run at once, 0 for one on each GPU or, without GPUs, one on each core; each has `readers`
    processes that read and decode for it, or none and reads for itself. A part of the results holds `part_size` images, rounded up
    to whole batches.
    """

    address: str | None = None
    actors: int = 0
    readers: int = 1
    part_size: int = 4096

    def __post_init__(self) -> None:
        at_least("actors", self.actors, 0, MOST_ACTORS)
        at_least("readers", self.readers, 0, 64)
        at_least("part_size", self.part_size, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How `images` are cut into parts, and parts into chunks, which are what a worker takes at once.

    Every cut is at a multiple of the batch size, so that each batch holds the images that it holds in one process: the last bits of
    a result depend on the size of its batch.
    """

    images: int
    batch_size: int
    part_size: int

    @property
    def part_images(self) -> int:
        """Images of each part but the last."""
        return -(-self.part_size // self.batch_size) * self.batch_size

    @property
    def chunk_images(self) -> int:
        """Images of each chunk but the last of a part."""
        return min(self.part_images, max(1, _CHUNK // self.batch_size) * self.batch_size)

    @property
    def parts(self) -> int:
        """Their number."""
        return -(-self.images // self.part_images)

    def chunks(self, part: int) -> list[tuple[int, int]]:
        """(first image, number of images) of each chunk of a part, in order."""
        first, last = part * self.part_images, min((part + 1) * self.part_images, self.images)
        return [(start, min(self.chunk_images, last - start)) for start in range(first, last, self.chunk_images)]
