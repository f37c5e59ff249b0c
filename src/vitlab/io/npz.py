"""Arrays of an .npz file (a zip of .npy members): of images (data) and of weights (checkpoints).

`open_npz` checks every header before any memory is allocated. An array is then mapped from the file or read into memory.
Arrays of Python objects are refused, because they are pickled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError
from vitlab.io.archive_limits import ArchiveLimits
from vitlab.io.files import map_bytes
from vitlab.io.names import printable
from vitlab.io.zip import STORED, ZipContents, ZipIndex, read_zip_index

NPZ_LIMITS = ArchiveLimits(entries=1000, entry_bytes=2**40, total_bytes=2**41)
"""For packs of images; arrays are mapped, so they may be larger than the memory."""
LARGEST_IN_MEMORY = 8 * 2**30
"""Bytes that one compressed array may unpack to, since all of it is held in memory."""

_LONGEST_HEADER = 10_000
_MOST_AXES = 16
_CHECKED_AT_ONCE = 512 * 2**20  # bytes; larger arrays are not read just to verify their checksum
_CHUNK = 2**24
_VERSIONS = {b"\1\0": 2, b"\2\0": 4}  # .npy version -> bytes of the header's length
_TYPE = re.compile(r"'descr': *'([<>|=]?[biufcSUVO?]\d{0,9})'")
_ORDER = re.compile(r"'fortran_order': *(True|False)")
_SHAPE = re.compile(r"'shape': *\(([\d, ]{0,200})\)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NpzArray:
    """One array of an .npz file, described by its header. Picklable. `header` is the number of bytes before the values."""

    contents: ZipContents
    row: int
    dtype: str
    shape: tuple[int, ...]
    fortran: bool
    header: int

    @property
    def where(self) -> str:
        """`file.npz/array`, for messages."""
        return self.contents.name(self.row).removesuffix(".npy")

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def load(self) -> NDArray[np.generic]:
        """The values: mapped from the file if they are stored uncompressed, else as `read`."""
        if self.contents.index.methods[self.row] != STORED:
            if self.nbytes > LARGEST_IN_MEMORY:
                raise DataError(f"{printable(self.where)} unpacks to {self.nbytes:,} bytes; the limit is {LARGEST_IN_MEMORY:,}")
            return self.read()
        index = self.contents.index
        return self._shaped(map_bytes(index.disk_path, index.stamp, self.contents.data_offset(self.row) + self.header, self.nbytes))

    def read(self) -> NDArray[np.generic]:
        """The values in memory of their own, verified by the archive's checksum."""
        values = np.empty(self.nbytes, np.uint8)
        filled = -self.header
        for chunk in self.contents.stream(self.row, chunk=_CHUNK):
            data = np.frombuffer(chunk, np.uint8)[max(0, -filled) :]
            start = max(0, filled)
            values[start : start + len(data)] = data
            filled += len(chunk)
        return self._shaped(values)

    def _shaped(self, values: NDArray[np.uint8]) -> NDArray[np.generic]:
        typed = values.view(self.dtype)
        return typed.reshape(self.shape[::-1]).transpose() if self.fortran else typed.reshape(self.shape)


def is_npz(index: ZipIndex) -> bool:
    """Whether a zip archive holds arrays and nothing else."""
    return len(index.names) > 0 and all(name.endswith(".npy") for name in index.names)


def open_npz(path: Path, *, only: Collection[str] | None = None, limits: ArchiveLimits = NPZ_LIMITS) -> dict[str, NpzArray]:
    """The arrays of an .npz file by name, checksums verified; DataError if one holds objects or lies about its size.

    With `only`, other arrays are ignored.
    """
    contents = ZipContents(read_zip_index(path, limits, paths=False))
    wanted = [row for row, name in enumerate(contents.index.names) if only is None or name.removesuffix(".npy") in only]
    arrays = npz_arrays(contents, wanted)
    if not arrays:
        raise DataError(f"{printable(str(path))} holds no array")
    for array in arrays.values():
        if contents.index.methods[array.row] == STORED and array.nbytes <= _CHECKED_AT_ONCE:
            for _ in contents.stream(array.row):  # mapped reading does not verify the checksum
                pass
    return arrays


def npz_arrays(contents: ZipContents, rows: Collection[int] | None = None) -> dict[str, NpzArray]:
    """The arrays of an open archive (or of these rows of its index) by name, their headers checked, no value read."""
    arrays = {}
    for row in range(len(contents.index.names)) if rows is None else rows:
        name = contents.index.names[row]
        if not name.endswith(".npy"):
            raise DataError(f"{printable(str(contents.index.path))} holds {printable(name)}, which is not an array")
        arrays[name.removesuffix(".npy")] = _described(contents, row)
    return arrays


def _described(contents: ZipContents, row: int) -> NpzArray:
    name, size = contents.index.names[row].removesuffix(".npy"), int(contents.index.sizes[row])
    where = f"{printable(str(contents.index.path))}, array {name[:60]!r}"
    head = next(contents.stream(row, chunk=_LONGEST_HEADER + 12), b"") if size else b""
    found = read_npy_header(head, where=where)
    needed = math.prod(found.shape) * found.dtype.itemsize
    if needed != size - found.bytes:
        raise DataError(f"{where} claims {needed:,} bytes and has {size - found.bytes:,}")
    return NpzArray(contents=contents, row=row, dtype=found.dtype.str, shape=found.shape, fortran=found.fortran, header=found.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyHeader:
    """The header of an .npy file: type, shape and order of its numbers, and its own length in bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    bytes: int


def read_npy_header(head: bytes, *, where: str) -> NpyHeader:
    """The header at the beginning of an .npy file; DataError, which begins with `where`, if it is not that of a plain array.

    Parsed here, because numpy's reader evaluates the header as Python and raises whatever a damaged header makes it raise.
    """
    if head[:6] != b"\x93NUMPY":
        raise DataError(f"{where} is not a plain array: it has no magic number of numpy's format")
    width = _VERSIONS.get(head[6:8], 0)
    if not width:
        raise DataError(f"{where} is not a plain array of .npy version (1, 0) or (2, 0), but of version {tuple(head[6:8])}")
    length = int.from_bytes(head[8 : 8 + width], "little")
    start = 8 + width + length
    text = head[8 + width : start].decode("latin-1")
    if length > _LONGEST_HEADER or len(head) < start:
        raise DataError(f"{where} is not a plain array: its header is too long or cut off")
    kind, order, sides = _TYPE.search(text), _ORDER.search(text), _SHAPE.search(text)
    if kind is None or order is None:
        raise DataError(f"{where} is not a plain array: its type is not a plain type")
    try:
        shape = tuple(int(word) for word in (sides.group(1) if sides else "-").split(",") if word.strip())
        dtype = np.dtype(kind.group(1))
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} is not a plain array: its type or shape is impossible") from error
    if len(shape) > _MOST_AXES:
        raise DataError(f"{where} is not a plain array: its shape has {len(shape)} axes")
    if dtype.hasobject:
        raise DataError(f"{where} holds Python objects, which are pickled and never read", hint="save plain numeric arrays")
    if dtype.itemsize == 0:
        raise DataError(f"{where} is not a plain array: its numbers have no bytes")
    return NpyHeader(dtype=dtype, shape=shape, fortran=order.group(1) == "True" and len(shape) > 1, bytes=start)
