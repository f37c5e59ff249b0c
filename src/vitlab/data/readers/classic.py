"""CIFAR-10 and CIFAR-100 (binary version), MNIST, Fashion-MNIST and KMNIST (idx files), SVHN (cropped digits, .mat files)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import ImageDataset
from vitlab.data.readers.blocks import PixelBlock, Pixels, find_file, from_blocks
from vitlab.data.readers.manifest import read_classes
from vitlab.data.split import TEST, TRAIN
from vitlab.errors import DataError
from vitlab.io.archive_limits import GZIP, MOST_INFLATED, inflated
from vitlab.io.arrays import LARGEST_IN_MEMORY, MatArray, mat_arrays, read_mat_array
from vitlab.io.display import printable
from vitlab.io.files import map_bytes, open_regular, read_bytes, stamp_of

CifarReader = Literal["cifar10", "cifar100", "cifar100-coarse"]

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_PIXELS = 3 * 32 * 32


def open_cifar(root: Path, reader: CifarReader) -> ImageDataset:
    """CIFAR from its binary files: records of label bytes and 3,072 pixels. Coarse labels are CIFAR-100's 20 superclasses.

    `root` is the folder of the files, or the one around it.
    """
    hundred = reader != "cifar10"
    labels: Sequence[str] = CIFAR10_CLASSES
    if hundred:
        which = "coarse" if reader == "cifar100-coarse" else "fine"
        names = find_file(root, [f"{which}_label_names.txt"])
        if names is None:
            raise DataError(f"{root} holds no {which}_label_names.txt", hint="it is part of the binary version of CIFAR-100")
        labels = read_classes(read_bytes(names), str(names))
    train = ["train.bin"] if hundred else [f"data_batch_{number}.bin" for number in range(1, 6)]
    test = ["test.bin"] if hundred else ["test_batch.bin"]
    blocks, codes, splits = [], [], []
    missing = []
    for name, split in [(name, TRAIN) for name in train] + [(name, TEST) for name in test]:
        path = find_file(root, [name])
        if path is None:
            missing.append(name)
            continue
        block, of_block = _opened(path, label_bytes=2 if hundred else 1, column=1 if reader == "cifar100" else 0)
        blocks.append(block)
        codes.append(of_block)
        splits.append(split)
    if missing:
        pickled = find_file(root, ["train", "data_batch_1"])
        raise DataError(
            f"{root} lacks {', '.join(missing)}",
            hint="this is the Python version, which is pickled and never read; take the binary version" if pickled else None,
        )
    return from_blocks(blocks, codes, splits, labels)


def _opened(path: Path, *, label_bytes: int, column: int) -> tuple[PixelBlock, Pixels]:
    stamp = stamp_of(path.stat())
    record = label_bytes + _PIXELS
    count, rest = divmod(stamp[0], record)
    if rest or not count:
        raise DataError(f"{path} has {stamp[0]:,} bytes, which is not a multiple of its records of {record:,}")
    load = partial(_load, path, stamp, label_bytes)
    codes = map_bytes(path, stamp, 0, stamp[0]).reshape(-1, record)[:, column].copy()
    return PixelBlock(str(path), count, load, shape=(3, 32, 32), layout="CHW"), codes


def _load(path: Path, stamp: tuple[int, int, int], label_bytes: int) -> Pixels:
    records = map_bytes(path, stamp, 0, stamp[0]).reshape(-1, label_bytes + _PIXELS)
    return np.asarray(records)[:, label_bytes:]


IDX_CLASSES: dict[str, tuple[str, ...]] = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
    "kmnist": ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
}  # fmt: skip

_CHUNK = 2**20


def open_idx(root: Path, reader: str) -> ImageDataset:
    """The images of `train-images-idx3-ubyte[.gz]` and `t10k-...` in a folder, with the class names of `reader`."""
    blocks, codes, splits = [], [], []
    for stem, split in (("train", TRAIN), ("t10k", TEST)):
        images, labels = _file(root, stem, "images", 3), _file(root, stem, "labels", 1)
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            raise DataError(f"{root}: {stem} has {'labels' if images is None else 'images'} only")
        (count, height, width), load = _idx_opened(images, axes=3)
        (_,), load_labels = _idx_opened(labels, axes=1)
        blocks.append(PixelBlock(str(images), count, load, shape=(height, width), layout="HW"))
        codes.append(load_labels())
        splits.append(split)
    if not blocks:
        raise DataError(f"{root} holds no train-images-idx3-ubyte or t10k-images-idx3-ubyte, with or without .gz")
    return from_blocks(blocks, codes, splits, IDX_CLASSES[reader])


def _file(root: Path, stem: str, what: str, axes: int) -> Path | None:
    plain = [f"{stem}-{what}-idx{axes}-ubyte", f"{stem}-{what}.idx{axes}-ubyte"]
    return find_file(root, [name + ending for name in plain for ending in ("", ".gz")])


def _idx_opened(path: Path, *, axes: int) -> tuple[tuple[int, ...], partial[Pixels]]:
    """The shape in the header, checked against the size of the file, and a function that loads the bytes."""
    stamp = stamp_of(path.stat())
    length = 4 + 4 * axes
    with open_regular(path, error=DataError) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        header = next(_inflated(path, length), b"") if packed else file.read(length)
    if len(header) < length or header[:4] != bytes((0, 0, 8, axes)):
        raise DataError(f"{printable(str(path))} is not an idx file of bytes with {axes} axes")
    shape = tuple(np.frombuffer(header, ">u4", axes, offset=4).tolist())
    size = math.prod(shape)
    if packed:
        if size > min(LARGEST_IN_MEMORY, stamp[0] * MOST_INFLATED):
            raise DataError(f"{printable(str(path))}: its {stamp[0]:,} bytes cannot hold the {size:,} its header claims")
        return shape, partial(_load_packed, path, stamp, shape)
    if stamp[0] != length + size:
        raise DataError(f"{printable(str(path))} has {stamp[0]:,} bytes; by its header it should have {length + size:,}")
    return shape, partial(_load_plain, path, stamp, shape)


def _load_plain(path: Path, stamp: tuple[int, int, int], shape: tuple[int, ...]) -> Pixels:
    return map_bytes(path, stamp, 4 + 4 * len(shape), math.prod(shape)).reshape(shape)


def _load_packed(path: Path, stamp: tuple[int, int, int], shape: tuple[int, ...]) -> Pixels:
    if stamp_of(path.stat())[:2] != stamp[:2]:
        raise DataError(f"{printable(str(path))} has changed since it was opened", hint="start again")
    wanted = 4 + 4 * len(shape) + math.prod(shape)
    result = np.empty(wanted, np.uint8)
    filled = 0
    for chunk in _inflated(path, _CHUNK):
        if filled + len(chunk) > wanted:
            raise DataError(f"{printable(str(path))} holds more than the {wanted:,} bytes its header says")
        result[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
    if filled != wanted:
        raise DataError(f"{printable(str(path))} is cut off: it holds {filled:,} of {wanted:,} bytes")
    return result[4 + 4 * len(shape) :].reshape(shape)


def _inflated(path: Path, most: int) -> Iterator[bytes]:
    """The decompressed bytes of a gzip file, at most `most` at a time."""
    try:
        with open_regular(path, error=DataError) as file:
            yield from inflated(iter(partial(file.read, _CHUNK), b""), wrapping=GZIP, most=most)
    except zlib.error as error:
        raise DataError(f"{printable(str(path))} is damaged or cut off: {error}") from error


def open_svhn(root: Path) -> ImageDataset:
    """SVHN's cropped digits: `train_32x32.mat` and `test_32x32.mat`. Their label 10 is the digit 0; classes are the digits."""
    blocks, codes, splits = [], [], []
    for name, split in (("train_32x32.mat", TRAIN), ("test_32x32.mat", TEST)):
        path = find_file(root, [name])
        if path is None:
            continue
        arrays = {array.name: array for array in mat_arrays(path)}
        if "X" not in arrays or "y" not in arrays:
            raise DataError(f"{printable(str(path))} holds {', '.join(map(printable, arrays)) or 'no array'}, but SVHN has X and y")
        x, y = arrays["X"], arrays["y"]
        if len(x.shape) != 4 or x.shape[2] != 3 or x.dtype[1:] != "u1":
            raise DataError(f"{printable(str(path))}: X is {x.shape} of {x.dtype}, but SVHN has (32, 32, 3, images) bytes")
        height, width, channels, count = x.shape
        load = partial(_svhn_load, x, stamp_of(path.stat()))
        blocks.append(PixelBlock(str(path), count, load, shape=(channels, width, height), layout="CWH"))
        codes.append(_digits(y, path))
        splits.append(split)
    if not blocks:
        raise DataError(f"{root} holds no train_32x32.mat and no test_32x32.mat")
    return from_blocks(blocks, codes, splits, tuple("0123456789"))


def _digits(y: MatArray, path: Path) -> NDArray[np.int64]:
    values = read_mat_array(y)
    if not np.all(np.isin(values, np.arange(1, 11))):
        raise DataError(f"{printable(str(path))}: labels y must be whole numbers from 1 to 10")
    return values.astype(np.int64) % 10


def _svhn_load(x: MatArray, stamp: tuple[int, int, int]) -> Pixels:
    if stamp_of(x.path.stat())[:2] != stamp[:2]:
        raise DataError(f"{printable(str(x.path))} has changed since it was opened", hint="start again")
    # MATLAB's first axis varies fastest, so the last one, over images, varies slowest and each image is contiguous.
    return read_mat_array(x).view(np.uint8).reshape(x.shape[3], -1)
