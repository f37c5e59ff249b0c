"""What the caller and its worker processes share: rows of pictures, the picks to fill them with, and the workers' progress.

Axes: S batches under way, B rows of a batch, H height, W width, C channels.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.batch import Pixels
from vitlab.data.order import Picks
from vitlab.data.workers.threads import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where things are in the shared memory: rows of pictures and picks for `slots` batches, and the workers' progress."""

    slots: int
    rows: int
    shape: tuple[int, int, int]
    workers: int

    @property
    def picture_bytes(self) -> int:
        """All pictures; the rest begins at the next multiple of 64."""
        height, width, channels = self.shape
        return -(-self.slots * self.rows * height * width * channels // 64) * 64

    @property
    def pick_bytes(self) -> int:
        """All picks."""
        return self.slots * 3 * self.rows * 8

    @property
    def total_bytes(self) -> int:
        """What to ask the system for; never nothing."""
        return self.picture_bytes + self.pick_bytes + Progress.bytes_for(self.workers)


class Shared:
    """The shared memory as arrays."""

    def __init__(self, descriptor: int, layout: Layout) -> None:
        memory = memoryview(mmap.mmap(descriptor, layout.total_bytes))
        height, width, channels = layout.shape
        count = layout.slots * layout.rows * height * width * channels
        self.images_SBHWC: Pixels = np.frombuffer(memory, np.uint8, count).reshape(layout.slots, layout.rows, *layout.shape)
        after = layout.picture_bytes
        picks = np.frombuffer(memory, np.int64, layout.slots * 3 * layout.rows, after)
        self.picks_S3B: NDArray[np.int64] = picks.reshape(layout.slots, 3, layout.rows)
        self.progress = Progress.over(memory[after + layout.pick_bytes :], layout.workers)

    def picks(self, slot: int, count: int) -> Picks:
        """The picks of the first rows of a slot."""
        index_B, epoch_B, repeat_B = self.picks_S3B[slot, :, :count]
        return Picks(index_B=index_B, epoch_B=epoch_B, repeat_B=repeat_B)
