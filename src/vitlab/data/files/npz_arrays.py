"""Arrays of an .npz file that hold no objects: their headers checked before anything is allocated, their bytes mapped."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.config.source import ArchiveLimits
from vitlab.data.files.blocks import LARGEST_IN_MEMORY, map_bytes
from vitlab.data.files.names import shown
from vitlab.data.files.zips import STORED, ZipContents, read_zip_index
from vitlab.errors import DataError

NPZ_LIMITS = ArchiveLimits(entries=1000, entry_bytes=2**40, total_bytes=2**41)  # mapped, so larger than memory is fine
_LONGEST_HEADER = 10_000
_FIELDS = (
    re.compile(r"'descr': *'([<>|=]?[biufcSUVO?]\d{0,9})'"),
    re.compile(r"'fortran_order': *(True|False)"),
    re.compile(r"'shape': *\(([\d, ]{0,200})\)"),
)
_CHECKED_AT_ONCE = 512 * 2**20  # bytes; larger arrays are not read through just to verify their checksum


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NpzArray:
    """One array of an .npz file, not yet read. Picklable."""

    contents: ZipContents
    row: int
    dtype: str
    shape: tuple[int, ...]
    header: int
    """bytes before the values"""

    @property
    def where(self) -> str:
        """The file and the array, for messages."""
        return self.contents.name(self.row).removesuffix(".npy")

    def load(self) -> NDArray[np.generic]:
        """The values: mapped from the file where they are stored as they are, else unpacked into memory."""
        size = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        if self.contents.index.methods[self.row] == STORED:
            offset = self.contents.data_offset(self.row) + self.header
            raw = map_bytes(self.contents.index.path, self.contents.index.stamp, offset, size)
        else:
            if size > LARGEST_IN_MEMORY:
                raise DataError(f"{shown(self.where)} unpacks to {size:,} bytes; the limit is {LARGEST_IN_MEMORY:,}")
            raw = np.empty(size + self.header, np.uint8)
            filled = 0
            for chunk in self.contents.stream(self.row):
                raw[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
                filled += len(chunk)
            raw = raw[self.header :]
        return raw.view(self.dtype).reshape(self.shape)


def open_npz(path: Path, *, only: Collection[str] | None = None, limits: ArchiveLimits = NPZ_LIMITS) -> dict[str, NpzArray]:
    """The arrays of an .npz file by name; DataError where one holds objects, or is not as large as it claims.

    With `only`, the others are not even looked at, objects or not.
    """
    contents = ZipContents(read_zip_index(path, limits))
    arrays = {}
    for row, name in enumerate(contents.index.names):
        if only is not None and name.removesuffix(".npy") not in only:
            continue
        if not name.endswith(".npy"):
            raise DataError(f"{shown(str(path))} holds {shown(name)}, which is no array")
        arrays[name.removesuffix(".npy")] = _described(contents, row)
    if not arrays:
        raise DataError(f"{shown(str(path))} holds no array")
    return arrays


def _described(contents: ZipContents, row: int) -> NpzArray:
    where, size = contents.name(row), int(contents.index.sizes[row])
    head = next(contents.stream(row, chunk=_LONGEST_HEADER + 12), b"") if size else b""
    # Parsed by hand: numpy's own reader evaluates the text as Python, and raises whatever the damaged text makes it raise.
    width = {b"\x93NUMPY\1\0": 2, b"\x93NUMPY\2\0": 4}.get(head[:8], 0)
    length = int.from_bytes(head[8 : 8 + width], "little")
    start = 8 + width + length
    text = head[8 + width : start].decode("latin-1")
    found = [pattern.search(text) for pattern in _FIELDS]
    descr, fortran, shape_text = (match.group(1) if match else "" for match in found)
    if not width or length > _LONGEST_HEADER or len(head) < start or None in found:
        raise DataError(f"{shown(where)} is no plain array in numpy's format 1.0 or 2.0")
    try:
        shape = tuple(int(word) for word in shape_text.split(",") if word.strip())
        dtype = np.dtype(descr)
    except (TypeError, ValueError) as error:
        raise DataError(f"{shown(where)} is no plain array: {shown(descr)} of ({shown(shape_text)})") from error
    if dtype.hasobject:
        raise DataError(f"{shown(where)} holds Python objects, which are pickled and never read")
    needed = math.prod(shape) * dtype.itemsize
    if needed != size - start or dtype.itemsize == 0:
        raise DataError(
            f"{shown(where)} claims {'x'.join(map(str, shape)) or '1'} values, {needed:,} bytes, and holds {size - start:,}"
        )
    if fortran == "True" and len(shape) > 1:
        raise DataError(f"{shown(where)} is in Fortran order", hint="save it with numpy.ascontiguousarray")
    if contents.index.methods[row] == STORED and size <= _CHECKED_AT_ONCE:
        for _ in contents.stream(row):  # verifies the checksum, which mapped reading would not
            pass
    return NpzArray(contents=contents, row=row, dtype=dtype.str, shape=shape, header=start)
