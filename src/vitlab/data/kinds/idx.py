"""MNIST, Fashion-MNIST and KMNIST in their idx files, gzipped or not."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from vitlab.data.files.blocks import LARGEST_IN_MEMORY, PixelBlock, Pixels, find_file, from_blocks, map_bytes
from vitlab.data.files.cache import stamp_of
from vitlab.data.files.inflate import GZIP, MOST_INFLATED, inflated
from vitlab.data.files.names import shown
from vitlab.data.listed import ListedSource
from vitlab.data.split import TEST, TRAIN
from vitlab.errors import DataError

IDX_CLASSES: dict[str, tuple[str, ...]] = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
    "kmnist": ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
}  # fmt: skip

_CHUNK = 2**20


def open_idx(root: Path, kind: str) -> ListedSource:
    """The pictures of `train-images-idx3-ubyte[.gz]` and `t10k-...` in a folder, with the class names of `kind`."""
    blocks, codes, parts = [], [], []
    for stem, part in (("train", TRAIN), ("t10k", TEST)):
        images, labels = _file(root, stem, "images", 3), _file(root, stem, "labels", 1)
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            raise DataError(f"{root}: {stem} has {'labels' if images is None else 'pictures'} only")
        (count, height, width), load = _opened(images, axes=3)
        (_,), load_labels = _opened(labels, axes=1)
        blocks.append(PixelBlock(str(images), count, load, shape=(height, width), layout="HW"))
        codes.append(load_labels())
        parts.append(part)
    if not blocks:
        raise DataError(f"{root} holds no train-images-idx3-ubyte or t10k-images-idx3-ubyte, with or without .gz")
    return from_blocks(blocks, codes, parts, IDX_CLASSES[kind])


def _file(root: Path, stem: str, what: str, axes: int) -> Path | None:
    plain = [f"{stem}-{what}-idx{axes}-ubyte", f"{stem}-{what}.idx{axes}-ubyte"]
    return find_file(root, [name + ending for name in plain for ending in ("", ".gz")])


def _opened(path: Path, *, axes: int) -> tuple[tuple[int, ...], partial[Pixels]]:
    """The shape in the header, verified against the size of the file, and how its bytes are loaded."""
    stamp = stamp_of(path.stat())
    length = 4 + 4 * axes
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        header = next(_inflated(path, length), b"") if packed else file.read(length)
    if len(header) < length or header[:4] != bytes((0, 0, 8, axes)):
        raise DataError(f"{shown(str(path))} is no idx file of bytes with {axes} axes")
    shape = tuple(np.frombuffer(header, ">u4", axes, offset=4).tolist())
    size = math.prod(shape)
    if packed:
        if size > min(LARGEST_IN_MEMORY, stamp[0] * MOST_INFLATED):
            raise DataError(f"{shown(str(path))}: its {stamp[0]:,} bytes cannot hold the {size:,} its header claims")
        return shape, partial(_load_packed, path, stamp, shape)
    if stamp[0] != length + size:
        raise DataError(f"{shown(str(path))} has {stamp[0]:,} bytes; by its header it should have {length + size:,}")
    return shape, partial(_load_plain, path, stamp, shape)


def _load_plain(path: Path, stamp: tuple[int, int, int], shape: tuple[int, ...]) -> Pixels:
    return map_bytes(path, stamp, 4 + 4 * len(shape), math.prod(shape)).reshape(shape)


def _load_packed(path: Path, stamp: tuple[int, int, int], shape: tuple[int, ...]) -> Pixels:
    if stamp_of(path.stat())[:2] != stamp[:2]:
        raise DataError(f"{shown(str(path))} has changed since it was opened", hint="start again")
    wanted = 4 + 4 * len(shape) + math.prod(shape)
    result = np.empty(wanted, np.uint8)
    filled = 0
    for chunk in _inflated(path, _CHUNK):
        if filled + len(chunk) > wanted:
            raise DataError(f"{shown(str(path))} holds more than the {wanted:,} bytes its header says")
        result[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
    if filled != wanted:
        raise DataError(f"{shown(str(path))} is cut off: it holds {filled:,} of {wanted:,} bytes")
    return result[4 + 4 * len(shape) :].reshape(shape)


def _inflated(path: Path, most: int) -> Iterator[bytes]:
    """The bytes of a gzip file, at most `most` at a time, so that no header can ask for more."""
    try:
        with path.open("rb") as file:
            yield from inflated(iter(partial(file.read, _CHUNK), b""), wrapping=GZIP, most=most)
    except zlib.error as error:
        raise DataError(f"{shown(str(path))} is damaged or cut off: {error}") from error
