"""Images in HDF5 files, read one at a time, and PatchCamelyon, which is published so; needs h5py (`vitlab[hdf5]`).

Axes: N images, H height, W width, C channels.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import ImageDataset
from vitlab.data.readers.blocks import Pixels, find_file, from_blocks
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError
from vitlab.io.archive import unpacked
from vitlab.io.digests import Digests, remembered_digests
from vitlab.io.display import printable
from vitlab.io.files import open_regular, stamp_of
from vitlab.io.optional import optional_import

_LARGEST_IMAGE = 256 * 2**20  # bytes of an image or of a chunk, which is read at once
_HELD = 64 * 2**20  # bytes of chunks kept in memory, in each process
_MOST_NUMBERS = 2**27
_BROKEN = (OSError, KeyError, RuntimeError, ValueError, TypeError)  # the errors of h5py for damaged files


class Hdf5Block:
    """Images of one array, (N, H, W, C) of bytes. `where` is the user's name of the file; `path` is the file that is read.

    Each process opens the file itself, because h5py must not be used across a fork.
    """

    def __init__(self, path: Path, array: str, *, where: str) -> None:
        self.where = where
        self._path, self._array = path, array
        self._stamp = stamp_of(path.stat())
        self._process = -1
        self._data: Any = None
        shape = self._opened().shape
        if len(shape) != 4 or shape[3] not in (1, 3, 4) or 0 in shape[1:] or int(np.prod(shape[1:])) > _LARGEST_IMAGE:
            raise DataError(f"{printable(where)}: {array} is {shape}, but must be (images, height, width, channels)")
        self._count, self._shape = int(shape[0]), tuple(map(int, shape[1:]))

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> Pixels:
        """Pixels (H, W, C)."""
        try:
            return np.ascontiguousarray(self._opened()[index], np.uint8)
        except _BROKEN as error:
            raise DataError(f"{printable(self.where)}: image {index:,} cannot be read: {printable(str(error))}") from error

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each image, cached until the file changes."""
        sizes = np.full(self._count, int(np.prod(self._shape)), np.int64)
        return remembered_digests(self.read, rows, path=self._path, stamp=self._stamp, sizes=sizes)

    def _opened(self) -> Any:
        if self._data is None or self._process != os.getpid():
            if stamp_of(self._path.stat())[:2] != self._stamp[:2]:
                raise DataError(f"{printable(self.where)} has changed since it was opened", hint="start again")
            self._data = _array(self._path, self._array, where=self.where)
            self._process = os.getpid()
        return self._data

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_data": None, "_process": -1}


def read_numbers(path: Path, array: str, *, where: str) -> NDArray[np.int64]:
    """A small array of bytes, flat."""
    data = _array(path, array, where=where)
    if data.size > _MOST_NUMBERS:
        raise DataError(f"{printable(where)}: {array} has {data.size:,} values; the limit is {_MOST_NUMBERS:,}")
    try:
        return np.asarray(data[()]).reshape(-1).astype(np.int64)
    except _BROKEN as error:
        raise DataError(f"{printable(where)}: {array} cannot be read: {printable(str(error))}") from error


def _array(path: Path, name: str, *, where: str) -> Any:
    """The array of bytes called `name`; its file stays open as long as the array exists. Links to other files are refused."""
    h5py = _h5py()
    open_regular(path, error=DataError).close()  # h5py would wait for a pipe
    try:
        file = h5py.File(path, "r", rdcc_nbytes=_HELD)
        data = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    except _BROKEN as error:
        raise DataError(f"{printable(where)} is not an HDF5 file with an array {name}: {printable(str(error))}") from error
    if not isinstance(data, h5py.Dataset) or data.is_virtual or data.external:
        raise DataError(f"{printable(where)} holds no array {name} of its own")
    if data.dtype != np.uint8:
        raise DataError(f"{printable(where)}: {name} is {data.dtype}, but must be bytes (uint8)")
    if data.chunks is not None and int(np.prod(data.chunks)) > _LARGEST_IMAGE:
        raise DataError(f"{printable(where)}: {name} is in chunks of {data.chunks}, which are too large")
    return data


def _h5py() -> ModuleType:
    module: ModuleType = optional_import("h5py", purpose="HDF5 files", error=DataError)
    return module


CLASSES = ("no tumour", "tumour")  # in the middle 32x32 pixels of a patch

_STEM = "camelyonpatch_level_2_split"
_SPLITS = (("train", TRAIN), ("valid", VAL), ("test", TEST))


def has_camelyon(folder: Path) -> bool:
    """Whether the folder holds the images of a split."""
    return any(_file(folder, word, "x") is not None for word, _ in _SPLITS)


def open_camelyon(folder: Path) -> ImageDataset:
    """PatchCamelyon's patches of train, valid and test, as far as they exist, in the order of the files.

    The files are read as downloaded (`.h5.gz`, unpacked once into the cache folder) or unpacked (`.h5`).
    """
    blocks, codes, splits = [], [], []
    for word, split in _SPLITS:
        images, labels = _file(folder, word, "x"), _file(folder, word, "y")
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            kind = "x" if images is None else "y"
            raise DataError(f"{printable(str(folder))} holds no {_STEM}_{word}_{kind}.h5, or .h5.gz")
        blocks.append(Hdf5Block(_readable(images), "x", where=str(images)))
        codes.append(read_numbers(_readable(labels), "y", where=str(labels)))  # (N, 1, 1, 1)
        splits.append(split)
    if not blocks:
        raise DataError(f"{printable(str(folder))} holds no {_STEM}_train_x.h5, or .h5.gz")
    return from_blocks(blocks, codes, splits, CLASSES)


def _file(folder: Path, word: str, kind: str) -> Path | None:
    name = f"{_STEM}_{word}_{kind}.h5"
    return find_file(folder, [name, f"{name}.gz"])


def _readable(file: Path) -> Path:
    return unpacked(file) if file.suffix == ".gz" else file
