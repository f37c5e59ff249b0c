"""Zip archives read in place: of images (data), of arrays (.npz) and of torch's tensors (.pt).

`read_zip_index` checks the whole table of contents; `ZipContents` reads single members by their position. Nothing is unpacked
to disk. Names, sizes, overlaps and checksums are checked before or while a member is read, because an archive may be hostile.

Python's zipfile keeps one object per member, which worker processes would copy after a fork; this index is a few arrays, and
lists 300,000 members in 0.9 s of CPU time against 2.0 s. Format: PKWARE APPNOTE 6.3 with the 64-bit extension.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError
from vitlab.io.address import Address, Place
from vitlab.io.archive_limits import RAW, READ_IN_PLACE, ArchiveLimits, check_ratio, checked_name, inflated
from vitlab.io.digests import Digests, remembered_digests, version_digests
from vitlab.io.display import printable
from vitlab.io.files import Names, PositionedFile, open_handle, stamp_of
from vitlab.io.remote import RemoteFile, fraction_kept, info

STORED, DEFLATED = 0, 8

_END = struct.Struct("<4s4H2LH")
_END64_PLACE = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LARGEST_DIRECTORY = 2**29  # bytes
_ENCRYPTED = 0x1
_UNIX = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZipIndex:
    """The files of a zip archive: name, offset, packed size, size, checksum and compression method of each.

    Folders are not listed. `ignored` counts links and devices, which are not listed either. `end` is where the members end.
    """

    path: Place
    stamp: tuple[int, int, int]
    names: Names
    offsets: NDArray[np.int64]
    packed: NDArray[np.int64]
    sizes: NDArray[np.int64]
    checksums: NDArray[np.uint32]
    methods: NDArray[np.uint16]
    ignored: Counter[str]
    end: int

    @property
    def disk_path(self) -> Path:
        """The path of an archive that is on disk, as archives of weights and arrays are."""
        assert isinstance(self.path, Path)
        return self.path


Read = Callable[[int, int], bytes]
"""Bytes of a file: (offset, length) -> bytes."""


def read_zip_index(path: Place, limits: ArchiveLimits = READ_IN_PLACE, *, paths: bool = True) -> ZipIndex:
    """Read and check the table of contents; DataError if the archive is damaged, hostile or exceeds `limits`.

    With `paths`, members are files and folders, and names must be relative paths inside the archive. Without, members are
    named data, such as the arrays of an .npz, whatever their names and modes.
    """
    if isinstance(path, Address):
        found = info(path)
        if found is None:
            raise DataError(f"{path} is a folder, not a zip archive")
        stamp = found.stamp
        directory, count, start = _read_directory(RemoteFile(path, stamp).read, found.size, path, limits)
    else:
        try:
            with os.fdopen(open_handle(path), "rb") as file:
                status, handle = os.fstat(file.fileno()), file.fileno()
                stamp = stamp_of(status)
                directory, count, start = _read_directory(
                    lambda offset, length: os.pread(handle, length, offset), status.st_size, path, limits
                )
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error

    names: list[str] = []
    numbers = array("q")
    ignored: Counter[str] = Counter()
    for name, mode, entry in _entries(directory, count, path):
        plain = name
        if paths:
            plain = checked_name(name, path)
            if name.endswith("/") or not plain:
                continue
            if mode and not stat.S_ISREG(mode):
                ignored["link" if stat.S_ISLNK(mode) else "device"] += 1
                continue
        names.append(plain)
        numbers.extend(entry)
    table = np.frombuffer(numbers, np.int64).reshape(-1, 5)
    index = ZipIndex(
        path=path,
        stamp=stamp,
        names=Names(names),
        offsets=table[:, 0].copy(),
        packed=table[:, 1].copy(),
        sizes=table[:, 2].copy(),
        checksums=table[:, 3].astype(np.uint32),
        methods=table[:, 4].astype(np.uint16),
        ignored=ignored,
        end=start,
    )
    _check(index, names, limits, end=start)
    return index


def _check(index: ZipIndex, names: list[str], limits: ArchiveLimits, *, end: int) -> None:
    """Check what single entries do not show: duplicate names, overlapping members, sizes and ratios beyond the limits."""
    if len(set(names)) != len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(f"{index.path} holds two members with the same name: {printable(twice)}")
    order = np.argsort(index.offsets, kind="stable")
    ends = index.offsets[order] + _LOCAL.size + index.packed[order]
    overlap = np.flatnonzero(ends > np.append(index.offsets[order][1:], end))
    if len(overlap):
        name = names[int(order[overlap[0]])]
        raise DataError(f"{index.path}: {printable(name)} overlaps another member, as in a zip bomb")
    large = np.flatnonzero(index.sizes > limits.entry_bytes)
    if len(large):
        name, size = names[int(large[0])], int(index.sizes[large[0]])
        raise DataError(f"{index.path}: {printable(name)} has {size:,} bytes; the limit is {limits.entry_bytes:,} (entry_bytes)")
    check_ratio(int(index.sizes.sum()), int(index.packed.sum()), limits, index.path)
    wrong = np.flatnonzero((index.methods == STORED) & (index.sizes != index.packed))
    if len(wrong):
        raise DataError(f"{index.path}: {printable(names[int(wrong[0])])} is stored uncompressed but has two different sizes")


class ZipContents:
    """The members of a zip archive by row of its index, each checked against its checksum while it is read. Picklable.

    `verify=False` is for an archive that was written without checksums, which torch.save can do.
    """

    def __init__(self, index: ZipIndex, *, verify: bool = True) -> None:
        self.index = index
        self._verify = verify
        self._file: PositionedFile | RemoteFile
        self._ends: NDArray[np.int64] | None = None
        if isinstance(index.path, Address):
            kept = fraction_kept(index.stamp[0])
            self._file = RemoteFile(index.path, index.stamp, blocks=kept == 1, kept=kept)
            order = np.argsort(index.offsets, kind="stable")
            self._ends = np.empty_like(index.offsets)  # a member is read with its header, in one request
            self._ends[order] = np.append(index.offsets[order][1:], index.end)
        else:
            self._file = PositionedFile(index.path, index.stamp)

    def name(self, row: int) -> str:
        """`archive.zip/folder/file`"""
        return f"{self.index.path}/{self.index.names[row]}"

    def data_offset(self, row: int) -> int:
        """Offset in the file of the member's first byte."""
        offset = int(self.index.offsets[row])
        return self._data_offset(row, offset, self._file.read(offset, _LOCAL.size))

    def _data_offset(self, row: int, offset: int, local: bytes) -> int:
        local = local[: _LOCAL.size]
        if len(local) < _LOCAL.size or local[:4] != b"PK\3\4":
            raise DataError(f"{printable(self.name(row))}: no member begins at offset {offset:,}, as the table of contents says")
        *_, name_length, extra_length = _LOCAL.unpack(local)
        return offset + _LOCAL.size + int(name_length) + int(extra_length)

    def read(self, row: int) -> bytes:
        """The member's bytes."""
        return b"".join(self.stream(row, chunk=int(self.index.sizes[row]) + 1))

    def stream(self, row: int, *, chunk: int = 2**20) -> Iterator[bytes]:
        """The member's bytes, at most `chunk` at a time; DataError at the end if size or checksum are wrong."""
        promised = int(self.index.sizes[row])
        packed = self._packed(row, chunk)
        given, checksum = 0, 0
        try:
            for data in inflated(packed, wrapping=RAW, most=chunk) if self.index.methods[row] == DEFLATED else packed:
                given, checksum = given + len(data), zlib.crc32(data, checksum)
                if given > promised:
                    break
                yield data
        except zlib.error as error:
            raise DataError(f"{printable(self.name(row))} is damaged: {error}") from error
        if given != promised:
            raise DataError(f"{printable(self.name(row))} does not have the {promised:,} bytes that the table of contents says")
        if self._verify and checksum != int(self.index.checksums[row]):
            raise DataError(f"{printable(self.name(row))} is damaged: its checksum (CRC-32) does not match")

    def _packed(self, row: int, chunk: int) -> Iterator[bytes]:
        if self._ends is not None and isinstance(self._file, RemoteFile):
            offset, packed = int(self.index.offsets[row]), int(self.index.packed[row])
            whole = self._file.read(offset, int(self._ends[row]) - offset)
            data = whole[self._data_offset(row, offset, whole) - offset :][:packed]
            if len(data) < packed:
                raise DataError(f"{printable(self.name(row))} is cut off at offset {offset + len(whole):,}")
            yield data
            return
        place, left = self.data_offset(row), int(self.index.packed[row])
        while left:
            data = self._file.read(place, min(left, chunk))
            if not data:
                raise DataError(f"{printable(self.name(row))} is cut off at offset {place:,}")
            place, left = place + len(data), left - len(data)
            yield data

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each of these members' content."""
        return remembered_digests(self.read, rows, path=self.index.path, stamp=self.index.stamp, sizes=self.index.sizes)

    def versions(self, rows: NDArray[np.int64]) -> Digests | None:
        """As `digests`, of the archive's version and the members' places and checksums; None on disk, where members are read."""
        if self._ends is None:
            return None
        return version_digests(self.index.checksums[rows].astype(np.int64), self.index.sizes[rows], self.index.sizes[rows])

    def expect(self, rows: Sequence[int]) -> None:
        """Begin to read these members from the server; on disk, this does nothing."""
        if self._ends is not None and isinstance(self._file, RemoteFile):
            offsets = [int(self.index.offsets[row]) for row in rows]
            self._file.expect([(offset, int(self._ends[row]) - offset) for offset, row in zip(offsets, rows, strict=True)])


def _read_directory(read: Read, size: int, path: Place, limits: ArchiveLimits) -> tuple[bytes, int, int]:
    """The table of contents, the number of its entries, and its offset."""
    count, length, start = _find_directory(read, size, path)
    if count > limits.entries:
        raise DataError(f"{path} holds {count:,} entries; the limit is {limits.entries:,} (entries)")
    if length > _LARGEST_DIRECTORY:
        raise DataError(f"{path} has a table of contents of {length:,} bytes; the limit is {_LARGEST_DIRECTORY:,}")
    return read(start, length), count, start


def _find_directory(read: Read, size: int, path: Place) -> tuple[int, int, int]:
    """(entries, bytes, offset) of the table of contents."""
    tail_start = max(0, size - _END.size - 0xFFFF)
    tail = read(tail_start, size - tail_start)
    place = tail.rfind(b"PK\5\6")
    while place >= 0:
        if place + _END.size <= len(tail):
            _, disk, first_disk, here, count, length, start, comment = _END.unpack_from(tail, place)
            if place + _END.size + comment == len(tail):
                break
        place = tail.rfind(b"PK\5\6", 0, place)
    if place < 0:
        raise DataError(f"{path} is not a zip archive, or it is cut off: its end is missing")
    end = tail_start + place
    if disk or first_disk or here != count:
        raise DataError(f"{path} is one file of an archive in several files")
    count, length, start, end = _find_directory64(read, end, (count, length, start), path)
    if start + length != end:
        raise DataError(f"{path}: the table of contents is not at offset {start:,}, where it should be")
    if length < count * _ENTRY.size:
        raise DataError(f"{path}: a table of contents of {length:,} bytes cannot hold {count:,} entries")
    return count, length, start


def _find_directory64(read: Read, end: int, small: tuple[int, int, int], path: Place) -> tuple[int, int, int, int]:
    """(entries, bytes, offset) of the table of contents and where it must end, from the 64-bit record if there is one.

    `small` are the values of the 32-bit record. They must agree with the 64-bit ones or be at their maximum: other readers of
    the archive, such as torch's, may use either.
    """
    place = read(max(0, end - _END64_PLACE.size), _END64_PLACE.size)
    if len(place) < _END64_PLACE.size or place[:4] != b"PK\6\7":
        return *small, end
    _, _, offset, _ = _END64_PLACE.unpack(place)
    record = read(offset, _END64.size) if offset < end else b""
    if len(record) < _END64.size or record[:4] != b"PK\6\6":
        raise DataError(f"{path} is damaged: the 64-bit record of its table of contents is missing")
    *_, count, length, start = _END64.unpack(record)
    for value, large, most in zip(small, (count, length, start), (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF), strict=True):
        if value not in (large, most):
            raise DataError(f"{path} is damaged: it has two different tables of contents")
    return count, length, start, offset


def _entries(directory: bytes, count: int, path: Place) -> Iterator[tuple[str, int, tuple[int, int, int, int, int]]]:
    """Name, Unix mode (0 if unknown) and (offset, packed size, size, checksum, method) of each entry."""
    place = 0
    for number in range(count):
        if place + _ENTRY.size > len(directory) or directory[place : place + 4] != b"PK\1\2":
            raise DataError(f"{path} is damaged: entry {number:,} of its table of contents is missing")
        fields = _ENTRY.unpack_from(directory, place)
        _, made_by, _, flags, method, _, _, checksum, packed, size, name_length, extra_length, comment_length = fields[:13]
        attributes, offset = fields[15:]
        place += _ENTRY.size
        raw = directory[place : place + name_length]
        extra = directory[place + name_length : place + name_length + extra_length]
        place += name_length + extra_length + comment_length
        if place > len(directory):
            raise DataError(f"{path} is damaged: entry {number:,} of its table of contents is cut off")
        name = _decoded(raw)
        size, packed, offset = _large(extra, (size, packed, offset))
        if flags & _ENCRYPTED:
            raise DataError(f"{path}: {printable(name)} is encrypted", hint="unpack it and give the folder")
        if method not in (STORED, DEFLATED):
            raise DataError(
                f"{path}: {printable(name)} is compressed by method {method}; only stored (0) and deflated (8) are supported",
                hint="unpack it and give the folder",
            )
        mode = attributes >> 16 if made_by >> 8 == _UNIX else 0
        # Some writers leave the file type out of the mode; then the mode says nothing.
        yield name, mode if stat.S_IFMT(mode) else 0, (offset, packed, size, checksum, method)


def _decoded(raw: bytes) -> str:
    """A name as text. The flag for UTF-8 is ignored, because macOS writes UTF-8 without it."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("cp437")


def _large(extra: bytes, values: tuple[int, int, int]) -> tuple[int, int, int]:
    """Size, packed size and offset; values that do not fit 32 bits come from the entry's 64-bit field."""
    place = 0
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, place)
        if kind == 1:
            body = extra[place + 4 : place + 4 + length]
            words = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
            size, packed, offset = (next(words, value) if value == 0xFFFFFFFF else value for value in values)
            return min(size, 2**62), min(packed, 2**62), min(offset, 2**62)
        place += 4 + length
    return values
