"""Numeric arrays of MATLAB files of version 5 (v6 and v7); no cells, objects or functions.

Written here because scipy 1.17's `loadmat` crashes (SIGSEGV) on a damaged header; a test changes every byte of one. Sizes are
compared with the file before anything is allocated, and a compressed array is unpacked into exactly the memory that it claims.
Format: MathWorks, MAT-File Format, "Level 5 MAT-File Format".
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError
from vitlab.io.archive_limits import MOST_INFLATED, ZLIB, inflated
from vitlab.io.files import open_regular
from vitlab.io.names import printable
from vitlab.io.npz import LARGEST_IN_MEMORY

_MATRIX, _COMPRESSED = 14, 15
_STORED_AS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_NUMERIC_CLASSES = range(6, 16)  # mxDOUBLE_CLASS to mxUINT64_CLASS
_COMPLEX = 0x0800
_CHUNK = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class MatArray:
    """One numeric array of a file: its shape in MATLAB's order, and how its values are stored."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
    element: int
    """offset of its element in the file"""


def list_arrays(path: Path) -> list[MatArray]:
    """The plain numeric arrays of a file; others (text, cells, structs, objects) are skipped."""
    found = []
    size = path.stat().st_size
    with open_regular(path, error=DataError) as file:
        order = _byte_order(file, path)
        place = 128
        while place < size:
            kind, length = _tag(file, place, order, size, path)
            if kind in (_MATRIX, _COMPRESSED):
                array = _describe(_Reader(file, place, kind, length, order, path), place)
                if array is not None:
                    found.append(array)
            # Only compressed elements are not padded to eight bytes.
            place += 8 + (length if kind == _COMPRESSED else -(-length // 8) * 8)
    return found


def read_array(array: MatArray) -> NDArray[np.generic]:
    """The values in the order of the file, as one axis; MATLAB's first axis varies fastest."""
    size = array.path.stat().st_size
    with open_regular(array.path, error=DataError) as file:
        order = _byte_order(file, array.path)
        kind, length = _tag(file, array.element, order, size, array.path)
        reader = _Reader(file, array.element, kind, length, order, array.path)
        if _describe(reader, array.element) != array:
            raise DataError(f"{printable(str(array.path))} has changed since it was opened", hint="start again")
        result = np.empty(math.prod(array.shape) * np.dtype(array.dtype).itemsize, np.uint8)
        reader.fill(result.data)
        return result.view(array.dtype)


def _byte_order(file: BinaryIO, path: Path) -> str:
    header = file.read(128)
    if header.startswith(b"MATLAB 7.3") or header[:8] == b"\x89HDF\r\n\x1a\n":
        raise DataError(f"{printable(str(path))} is of MATLAB 7.3 (HDF5), which is not supported", hint="save it with -v7")
    mark = header[126:128]
    if len(header) < 128 or mark not in (b"IM", b"MI"):
        raise DataError(f"{printable(str(path))} is not a MATLAB file of version 5")
    return "<" if mark == b"IM" else ">"


def _tag(file: BinaryIO, place: int, order: str, size: int, path: Path) -> tuple[int, int]:
    file.seek(place)
    data = file.read(8)
    kind, length = struct.unpack(f"{order}2I", data) if len(data) == 8 else (0, 0)
    if len(data) < 8 or place + 8 + length > size:
        raise DataError(f"{printable(str(path))} is cut off: its element at offset {place:,} goes beyond its {size:,} bytes")
    return kind, length


class _Reader:
    """The bytes of one element in order, decompressed if needed, and never more than requested."""

    def __init__(self, file: BinaryIO, place: int, kind: int, length: int, order: str, path: Path) -> None:
        self.path = path
        self.order = order
        self.most = length * MOST_INFLATED if kind == _COMPRESSED else length
        self.compressed = kind == _COMPRESSED
        self._chunks = self._inflated(file, length) if self.compressed else self._plain(file, length)
        self._held = b""
        file.seek(place + 8)

    def take(self, count: int) -> bytes:
        """The next bytes; DataError if there are fewer."""
        result = bytearray(count)
        self.fill(memoryview(result))
        return bytes(result)

    def fill(self, target: memoryview) -> None:
        """Fill memory with the next bytes."""
        filled = 0
        while filled < len(target):
            if not self._held:
                self._held = next(self._chunks, b"")
                if not self._held:
                    raise DataError(f"{printable(str(self.path))} is damaged: an array has fewer values than it says")
            part = self._held[: len(target) - filled]
            target[filled : filled + len(part)] = part
            self._held = self._held[len(part) :]
            filled += len(part)

    def sub_element(self) -> tuple[int, int, bytes | None]:
        """Type and length of the next sub-element, and its bytes if they are small enough to be in the tag itself."""
        data = self.take(8)
        word, length = struct.unpack(f"{self.order}2I", data)
        if word >> 16:
            if word >> 16 > 4:
                raise DataError(f"{printable(str(self.path))} is damaged: a small element of {word >> 16} bytes")
            return word & 0xFFFF, word >> 16, data[4 : 4 + (word >> 16)]
        return word, length, None

    def small(self, kind: int, most: int) -> bytes:
        """The bytes of the next sub-element, which must have this type and size, without padding."""
        found, length, data = self.sub_element()
        if found != kind or length > most:
            raise DataError(f"{printable(str(self.path))} is damaged: a header has {length:,} bytes of type {found}")
        return data if data is not None else self.take(-(-length // 8) * 8)[:length]

    def _plain(self, file: BinaryIO, left: int) -> Iterator[bytes]:
        while left and (data := file.read(min(left, _CHUNK))):
            left -= len(data)
            yield data

    def _inflated(self, file: BinaryIO, left: int) -> Iterator[bytes]:
        try:
            yield from inflated(self._plain(file, left), wrapping=ZLIB, most=_CHUNK)
        except zlib.error as error:
            raise DataError(f"{printable(str(self.path))} is damaged: {error}") from error


def _describe(reader: _Reader, place: int) -> MatArray | None:
    """The array whose values come next from `reader`, or None if the element is not a plain numeric array."""
    if reader.compressed:
        kind, _, _ = reader.sub_element()
        if kind != _MATRIX:
            return None
    flags = struct.unpack(f"{reader.order}2I", reader.small(6, 8).ljust(8, b"\0"))[0]
    if flags & 0xFF not in _NUMERIC_CLASSES or flags & _COMPLEX:
        return None
    dims = reader.small(5, 32 * 4)
    shape = tuple(struct.unpack(f"{reader.order}{len(dims) // 4}i", dims[: len(dims) // 4 * 4]))
    name = reader.small(1, 63).decode("ascii", "replace")
    stored, length, inside = reader.sub_element()
    if inside is not None:
        reader._held = inside + reader._held
    code = _STORED_AS.get(stored)
    if code is None or min(shape, default=0) < 0:
        raise DataError(f"{printable(str(reader.path))}: the values of {printable(name)} are of an unknown type ({stored})")
    needed = math.prod(shape) * int(code[1])
    if needed != length or needed > min(reader.most, LARGEST_IN_MEMORY):
        raise DataError(
            f"{printable(str(reader.path))}: {printable(name)} claims {'x'.join(map(str, shape))} values,"
            f" {needed:,} bytes, which the file does not hold"
        )
    return MatArray(path=reader.path, name=name, shape=shape, dtype=f"{reader.order}{code}", element=place)
