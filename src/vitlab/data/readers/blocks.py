"""Blocks: consecutive images of a file, as pixels of one shape or as encoded images end to end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import ImageDataset, LabelTable
from vitlab.errors import DataError
from vitlab.io.digests import DIGEST_BYTES, Content, Digests, digest_all
from vitlab.io.display import printable

Layout = Literal["HW", "HWC", "CHW", "CWH"]
Pixels = NDArray[np.uint8]

_TO_HWC = {"HWC": (0, 1, 2), "CHW": (1, 2, 0), "CWH": (2, 1, 0)}


class Block(Protocol):
    """Consecutive images of one file."""

    @property
    def where(self) -> str:
        """The file, for messages."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> Content:
        """One image."""
        ...

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each of these images."""
        ...


class PixelBlock:
    """Images of one shape. `load` returns them as an array, (images, ...); each process that reads calls it once.

    The array is not pickled; forked processes share its memory.
    """

    def __init__(self, where: str, count: int, load: Callable[[], Pixels], *, shape: tuple[int, ...], layout: Layout) -> None:
        self.where = where
        self._count = count
        self._load = load
        self._shape = shape
        self._layout = layout
        self._array: Pixels | None = None

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> Pixels:
        """Pixels (H, W, C), a copy."""
        if self._array is None:
            self._array = self._load()
        image: Pixels = self._array[index].reshape(self._shape)
        if self._layout == "HW":
            return np.array(image[:, :, None])
        return np.array(image.transpose(_TO_HWC[self._layout]), order="C")

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each image."""
        return digest_all(self.read, rows)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_array": None}


class EncodedBlock:
    """Encoded images end to end: image i is the bytes from `ends[i]` to `ends[i + 1]`."""

    def __init__(self, where: str, ends: NDArray[np.int64], load: Callable[[], Pixels]) -> None:
        self.where = where
        self._ends = ends
        self._load = load
        self._bytes: Pixels | None = None

    def __len__(self) -> int:
        return len(self._ends) - 1

    def read(self, index: int) -> bytes:
        """The encoded image."""
        if self._bytes is None:
            self._bytes = self._load()
        return self._bytes[self._ends[index] : self._ends[index + 1]].tobytes()

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each image."""
        return digest_all(self.read, rows)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_bytes": None}


class BlockContents:
    """Several blocks, numbered consecutively."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = list(blocks)
        self._starts = [0, *accumulate(map(len, blocks))]

    def name(self, row: int) -> str:
        """`file, image 7`, counted from 0 in each file."""
        number = bisect_right(self._starts, row) - 1
        return f"{self._blocks[number].where}, image {row - self._starts[number]}"

    def read(self, row: int) -> Content:
        """The image."""
        number = bisect_right(self._starts, row) - 1
        try:
            return self._blocks[number].read(row - self._starts[number])
        except OSError as error:
            raise DataError(f"{printable(self.name(row))} cannot be read: {error.strerror}") from error

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each image, block by block; some blocks cache theirs."""
        found = np.empty((len(rows), DIGEST_BYTES), np.uint8)
        number_of = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(number_of).tolist():
            places = np.flatnonzero(number_of == number)
            block = self._blocks[number]
            try:
                found[places] = block.digests(rows[places] - self._starts[number])
            except OSError as error:
                raise DataError(f"{printable(block.where)} cannot be read: {error.strerror}") from error
        return found


def from_blocks(
    blocks: Sequence[Block], codes: Sequence[NDArray[np.integer]], splits: Sequence[int], labels: Sequence[str]
) -> ImageDataset:
    """A dataset of blocks, each of one split, with the class of each image; DataError if a label has no class."""
    for block, of_block in zip(blocks, codes, strict=True):
        check_codes(of_block, len(block), len(labels), block.where)
    joined = np.concatenate([np.asarray(of_block, np.int32) for of_block in codes])
    return ImageDataset(
        contents=BlockContents(blocks),
        rows=np.arange(len(joined), dtype=np.int64),
        table=LabelTable(codes=joined),
        labels=tuple(labels),
        splits=np.repeat(np.array(splits, np.int8), [len(block) for block in blocks]),
    )


def check_codes(codes: NDArray[np.integer], images: int, classes: int, where: str) -> None:
    """DataError if there are not as many labels as images, or if a label is outside the classes."""
    if len(codes) != images:
        raise DataError(f"{printable(where)}: {images:,} images and {len(codes):,} labels")
    wrong = np.flatnonzero((codes < 0) | (codes >= classes))
    if len(wrong):
        raise DataError(
            f"{printable(where)}: {len(wrong):,} labels are outside 0 to {classes - 1};"
            f" the first is {codes[wrong[0]]}, of image {wrong[0]:,}"
        )


def find_file(root: Path, names: Sequence[str]) -> Path | None:
    """The first of these names that is a file in `root` or in a folder of `root`, as archives unpack."""
    for pattern in ("", "*/"):
        for name in names:
            if found := next(iter(sorted(root.glob(pattern + name))), None):
                return found
    return None
