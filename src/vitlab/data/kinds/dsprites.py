"""dSprites in its published .npz, for VTAB's tasks: the sprite's horizontal place and its orientation, each in 16 bins.

Its 3 GB of pixels are zeros and ones; eight of them are kept in a byte.

Axes: N pictures, H height, W width, B bytes of a picture; L latent factors: colour, shape, scale, orientation, x, y.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.config.source import ArchiveLimits
from vitlab.data.files.blocks import LARGEST_IN_MEMORY, Pixels, check_codes
from vitlab.data.files.digests import Digests, remembered_digests
from vitlab.data.files.inflate import MOST_INFLATED
from vitlab.data.files.names import shown
from vitlab.data.files.npz_arrays import NpzArray, open_npz
from vitlab.data.labels import LabelTable
from vitlab.data.listed import UNDECLARED, ListedSource
from vitlab.errors import DataError

SpritesTask = Literal["x", "orientation"]

_NAME = "dsprites_*.npz"
# Nearly empty pictures: the published file unpacks to more than a hundred times its size. What is kept of it is an eighth.
_LIMITS = ArchiveLimits(entries=100, entry_bytes=LARGEST_IN_MEMORY, total_bytes=2 * LARGEST_IN_MEMORY, ratio=MOST_INFLATED)
_COLUMN: dict[SpritesTask, tuple[int, int]] = {"orientation": (3, 40), "x": (4, 32)}  # and how many values it has
_BINS = 16


def open_dsprites(path: Path, task: SpritesTask) -> ListedSource:
    """The pictures in the order of the file, which declares no parts; `path` is the file or its folder."""
    file = path if path.is_file() else next(iter(sorted([*path.glob(_NAME), *path.glob(f"*/{_NAME}")])), None)
    if file is None:
        raise DataError(f"{shown(str(path))} holds no {_NAME}")
    # `metadata` holds pickled objects and is not looked at.
    arrays = open_npz(file, only=("imgs", "latents_classes"), limits=_LIMITS)
    if set(arrays) != {"imgs", "latents_classes"}:
        raise DataError(f"{shown(str(file))} lacks imgs or latents_classes, which dSprites holds")
    images, latents = arrays["imgs"], arrays["latents_classes"]
    if len(images.shape) != 3 or np.dtype(images.dtype) != np.uint8 or latents.shape != (images.shape[0], 6):
        raise DataError(
            f"{shown(str(file))}: imgs is {images.shape} of {images.dtype} and latents_classes {latents.shape}, where dSprites has"
            " (pictures, height, width) of bytes and (pictures, 6)"
        )
    column, values = _COLUMN[task]
    latent_N = latents.load()[:, column].astype(np.int64)
    check_codes(latent_N, images.shape[0], values, str(file))
    # floor(latent / (values / bins)), in whole numbers
    codes = (latent_N * _BINS // values).astype(np.int32)
    return ListedSource(
        contents=Sprites(images),
        rows=np.arange(len(codes), dtype=np.int64),
        table=LabelTable(codes=codes),
        labels=tuple(f"{task} {number + 1} of {_BINS}" for number in range(_BINS)),
        parts=np.full(len(codes), UNDECLARED, np.int8),
    )


class Sprites:
    """Black and white pictures of one size, a bit for each pixel, unpacked from their array when first needed."""

    def __init__(self, images: NpzArray) -> None:
        self._images = images
        self._packed_NB: Pixels | None = None

    def name(self, row: int) -> str:
        """The file and the picture's number in it."""
        return f"{self._images.contents.index.path}, picture {row}"

    def read(self, row: int) -> Pixels:
        """Pixels (H, W, 1), 0 and 255."""
        height, width = self._images.shape[1:]
        bits = np.unpackbits(self._unpacked()[row], count=height * width)
        return (bits * np.uint8(255)).reshape(height, width, 1)

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each picture, remembered for as long as the file stays the same."""
        index, (count, height, width) = self._images.contents.index, self._images.shape
        sizes = np.full(count, height * width, np.int64)
        self._unpacked()  # once, before several threads ask for it
        return remembered_digests(self.read, rows, path=index.path, stamp=index.stamp, sizes=sizes)

    def _unpacked(self) -> Pixels:
        if self._packed_NB is None:
            self._packed_NB = _packed(self._images)
        return self._packed_NB

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_packed_NB": None}


def _packed(images: NpzArray) -> Pixels:
    """All pictures, a bit for each pixel; the array is streamed, so that it is never in memory as it is."""
    count, height, width = images.shape
    size = height * width
    packed_NB = np.empty((count, -(-size // 8)), np.uint8)
    row, held, header = 0, b"", images.header
    for chunk in images.contents.stream(images.row):
        data = held + chunk
        data, header = data[header:], max(0, header - len(data))
        whole = len(data) // size
        if whole:
            pixels = np.frombuffer(data, np.uint8, whole * size).reshape(whole, size)
            if pixels.max() > 1:
                raise DataError(f"{shown(images.where)} holds {pixels.max()}, where dSprites has zeros and ones")
            packed_NB[row : row + whole] = np.packbits(pixels, axis=1)
            row += whole
        held = data[whole * size :]
    assert row == count, "the array is as large as its header says"
    return packed_NB
