"""SVHN, cropped digits: `train_32x32.mat` and `test_32x32.mat`, read without pickle and without MATLAB's other types."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.data.files.blocks import PixelBlock, Pixels, find_file, from_blocks
from vitlab.data.files.cache import stamp_of
from vitlab.data.files.matfile import MatArray, list_arrays, read_array
from vitlab.data.files.names import shown
from vitlab.data.listed import ListedSource
from vitlab.data.split import TEST, TRAIN
from vitlab.errors import DataError


def open_svhn(root: Path) -> ListedSource:
    """The pictures of both files of a folder. Their label 10 is the digit 0; classes are the digits in order."""
    blocks, codes, parts = [], [], []
    for name, part in (("train_32x32.mat", TRAIN), ("test_32x32.mat", TEST)):
        path = find_file(root, [name])
        if path is None:
            continue
        arrays = {array.name: array for array in list_arrays(path)}
        if "X" not in arrays or "y" not in arrays:
            raise DataError(f"{shown(str(path))} holds {', '.join(map(shown, arrays)) or 'no array'}, where SVHN holds X and y")
        x, y = arrays["X"], arrays["y"]
        if len(x.shape) != 4 or x.shape[2] != 3 or x.dtype[1:] != "u1":
            raise DataError(f"{shown(str(path))}: X is {x.shape} of {x.dtype}, where SVHN has (32, 32, 3, pictures) bytes")
        height, width, channels, count = x.shape
        load = partial(_load, x, stamp_of(path.stat()))
        blocks.append(PixelBlock(str(path), count, load, shape=(channels, width, height), layout="CWH"))
        codes.append(_digits(y, path))
        parts.append(part)
    if not blocks:
        raise DataError(f"{root} holds no train_32x32.mat and no test_32x32.mat")
    return from_blocks(blocks, codes, parts, tuple("0123456789"))


def _digits(y: MatArray, path: Path) -> NDArray[np.int64]:
    values = read_array(y)
    if not np.all(np.isin(values, np.arange(1, 11))):
        raise DataError(f"{shown(str(path))}: labels y must be whole numbers from 1 to 10")
    return values.astype(np.int64) % 10


def _load(x: MatArray, stamp: tuple[int, int, int]) -> Pixels:
    if stamp_of(x.path.stat())[:2] != stamp[:2]:
        raise DataError(f"{shown(str(x.path))} has changed since it was opened", hint="start again")
    # MATLAB's first axis runs fastest, so the last one, over pictures, runs slowest and each picture lies in one piece.
    return read_array(x).view(np.uint8).reshape(x.shape[3], -1)
