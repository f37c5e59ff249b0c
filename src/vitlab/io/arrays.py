"""Arrays in files: .npz (a zip of .npy members), MATLAB files, and packs for a program in a browser.

`open_npz` checks every header before any memory is allocated. An array is then mapped from the file or read into memory. Arrays
of Python objects are refused, because they are pickled.

`mat_arrays` finds the numeric arrays of MATLAB files of version 5 (v6 and v7); no cells, objects or functions. Written here
because scipy 1.17's `loadmat` crashes (SIGSEGV) on a damaged header; a test changes every byte of one. Sizes are compared with
the file before anything is allocated, and a compressed array is unpacked into exactly the memory that it claims. Format:
MathWorks, MAT-File Format, "Level 5 MAT-File Format".

`pack_arrays` puts plain values and arrays in one run of bytes: no copy, no parsing of numbers. Four bytes (little endian) give
the length of the JSON that follows; then come the arrays, each at a multiple of four bytes after the JSON's end, padded. The
JSON is {"facts": ..., "arrays": [[name, type, shape, offset], ...]}, with numpy's names of types.
"""

from __future__ import annotations

import json
import math
import re
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError
from vitlab.io.archive_limits import MOST_INFLATED, ZLIB, ArchiveLimits, inflated
from vitlab.io.display import json_text, printable
from vitlab.io.files import map_bytes, open_regular
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


_MATRIX, _COMPRESSED = 14, 15
_STORED_AS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_NUMERIC_CLASSES = range(6, 16)  # mxDOUBLE_CLASS to mxUINT64_CLASS
_COMPLEX = 0x0800
_PACKED_CHUNK = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class MatArray:
    """One numeric array of a file: its shape in MATLAB's order, and how its values are stored."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
    element: int
    """offset of its element in the file"""


def mat_arrays(path: Path) -> list[MatArray]:
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


def read_mat_array(array: MatArray) -> NDArray[np.generic]:
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
        while left and (data := file.read(min(left, _PACKED_CHUNK))):
            left -= len(data)
            yield data

    def _inflated(self, file: BinaryIO, left: int) -> Iterator[bytes]:
        try:
            yield from inflated(self._plain(file, left), wrapping=ZLIB, most=_PACKED_CHUNK)
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


TYPES = ("uint8", "uint16", "float32")
_ALIGNED = 4


def pack_arrays(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Facts and arrays (uint8, uint16 or float32) as bytes."""
    listed, parts, offset = [], [], 0
    for name, array in arrays.items():
        assert array.dtype.name in TYPES, f"{name} is {array.dtype}"
        content = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        listed.append([name, array.dtype.name, list(array.shape), offset])
        padding = -len(content) % _ALIGNED
        parts += [content, bytes(padding)]
        offset += len(content) + padding
    header = json_text({"facts": dict(facts), "arrays": listed}).encode()
    header += b" " * (-len(header) % _ALIGNED)
    return b"".join([struct.pack("<I", len(header)), header, *parts])


def unpack_arrays(content: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Facts and arrays of `pack_arrays`; DataError if the bytes are cut short."""
    if len(content) < _ALIGNED or len(content) < _ALIGNED + (size := struct.unpack_from("<I", content)[0]):
        raise DataError(f"{len(content)} bytes are no pack of arrays")
    header = json.loads(content[_ALIGNED : _ALIGNED + size])
    arrays = {}
    for name, kind, shape, offset in header["arrays"]:
        count = int(np.prod(shape))
        start = _ALIGNED + size + offset
        dtype = np.dtype(kind).newbyteorder("<")
        if start + count * dtype.itemsize > len(content):
            raise DataError(f"the pack of arrays is cut short: {name} reaches past its end")
        arrays[name] = np.frombuffer(content, dtype, count, start).reshape(shape)
    return header["facts"], arrays
