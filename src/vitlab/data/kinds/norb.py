"""Small NORB in its own binary matrices, gzipped or not, for VTAB's tasks: azimuth and elevation of the camera.

A matrix is a word that says the type of its values, the number of its axes, the length of each (at least three are written),
and the values, all little-endian. https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/

Axes: N pictures, 2 cameras, H height, W width; F facts of a picture: instance, elevation, azimuth, lighting.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.data.files.blocks import LARGEST_IN_MEMORY, PixelBlock, Pixels, from_blocks
from vitlab.data.files.cache import stamp_of
from vitlab.data.files.inflate import GZIP, MOST_INFLATED, inflated
from vitlab.data.files.names import shown
from vitlab.data.listed import ListedSource
from vitlab.data.split import TEST, TRAIN
from vitlab.errors import DataError

NorbTask = Literal["azimuth", "elevation"]

AZIMUTHS = tuple(f"{20 * step} degrees around" for step in range(18))
ELEVATIONS = tuple(f"{30 + 5 * step} degrees up" for step in range(9))

_TYPES = {0x1E3D4C55: "u1", 0x1E3D4C54: "<i4"}
_ELEVATION, _AZIMUTH = 1, 2
_CHUNK = 2**20


def open_norb(folder: Path, task: NorbTask) -> ListedSource:
    """The pictures of the first camera, training then testing, each in the order of its file."""
    blocks, codes, parts = [], [], []
    for word, part in (("training", TRAIN), ("testing", TEST)):
        pictures, facts = _file(folder, word, "dat"), _file(folder, word, "info")
        shape = _header(pictures)[1]
        facts_NF = _read(facts)
        if len(shape) != 4 or shape[1] != 2 or facts_NF.shape != (shape[0], 4):
            raise DataError(
                f"{shown(str(pictures))} has the shape {shape} and its facts {facts_NF.shape}, where small NORB has"
                " (pictures, 2 cameras, height, width) and (pictures, 4)"
            )
        load = partial(_load, pictures, stamp_of(pictures.stat()))
        blocks.append(PixelBlock(str(pictures), shape[0], load, shape=shape[2:], layout="HW"))
        codes.append(_codes(facts_NF, task, facts))
        parts.append(part)
    return from_blocks(blocks, codes, parts, AZIMUTHS if task == "azimuth" else ELEVATIONS)


def _codes(facts_NF: NDArray[np.generic], task: NorbTask, where: Path) -> NDArray[np.int64]:
    if task == "elevation":
        return facts_NF[:, _ELEVATION].astype(np.int64)
    twice_N = facts_NF[:, _AZIMUTH].astype(np.int64)  # 0, 2, ..., 34: in steps of ten degrees
    if np.any(twice_N % 2):
        raise DataError(f"{shown(str(where))}: an azimuth is an odd number of ten degrees, where they are all even")
    return twice_N // 2


def _file(folder: Path, part: str, kind: str) -> Path:
    for pattern in (f"*-{part}-{kind}.mat", f"*-{part}-{kind}.mat.gz"):
        found = sorted([*folder.glob(pattern), *folder.glob(f"*/{pattern}")])
        if found:
            return found[0]
    raise DataError(f"{shown(str(folder))} holds no smallnorb-...-{part}-{kind}.mat, gzipped or not")


def _chunks(path: Path, most: int) -> Iterator[bytes]:
    """The file's bytes, unpacked where it is packed, at most `most` at a time."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
            file.seek(0)
            raw = iter(partial(file.read, most), b"")
            yield from inflated(raw, wrapping=GZIP, most=most) if start == b"\x1f\x8b" else raw
    except zlib.error as error:
        raise DataError(f"{shown(str(path))} is damaged or cut off: {error}") from error


def _header(path: Path) -> tuple[str, tuple[int, ...], int]:
    """Type, shape, and bytes before the values; refused where the file cannot hold what they say."""
    start = np.frombuffer(next(_chunks(path, 64), b"").ljust(64, b"\0")[:64], "<i4")
    dtype, axes = _TYPES.get(int(start[0])), int(start[1])
    if dtype is None or not 1 <= axes <= 8:
        raise DataError(f"{shown(str(path))} is no binary matrix of NORB")
    shape = tuple(start[2 : 2 + axes].tolist())
    size, stored = math.prod(shape) * np.dtype(dtype).itemsize, path.stat().st_size
    if min(shape) < 1 or size > min(LARGEST_IN_MEMORY, stored * MOST_INFLATED):
        raise DataError(f"{shown(str(path))}: its {stored:,} bytes cannot hold the {size:,} its header claims")
    return dtype, shape, 8 + 4 * max(3, axes)


def _read(path: Path) -> NDArray[np.generic]:
    """The whole matrix."""
    dtype, shape, start = _header(path)
    raw = np.empty(math.prod(shape) * np.dtype(dtype).itemsize, np.uint8)
    filled = -start
    for chunk in _chunks(path, _CHUNK):
        part = chunk[max(0, -filled) :] if filled < 0 else chunk
        place = max(0, filled)
        if place + len(part) > len(raw):
            raise DataError(f"{shown(str(path))} holds more than its header says")
        raw[place : place + len(part)] = np.frombuffer(part, np.uint8)
        filled += len(chunk)
    if filled != len(raw):
        raise DataError(f"{shown(str(path))} is cut off: it holds {max(0, filled):,} of {len(raw):,} bytes")
    return raw.view(dtype).reshape(shape)


def _load(path: Path, stamp: tuple[int, int, int]) -> Pixels:
    if stamp_of(path.stat())[:2] != stamp[:2]:
        raise DataError(f"{shown(str(path))} has changed since it was opened", hint="start again")
    pixels_N2HW = _read(path)
    return np.ascontiguousarray(pixels_N2HW[:, 0], np.uint8)
