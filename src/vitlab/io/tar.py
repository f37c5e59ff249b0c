"""Tar archives: read header by header (from a file by offset, or from a decompressed stream), and written as shards.

Old tar, ustar, GNU long names and pax are supported. The checksum of each header is verified, and an archive that ends too
early is refused with the offset, where Python's tarfile silently returns fewer members (and takes twice the time). Links and
devices are reported, never followed.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Protocol

from vitlab.errors import DataError
from vitlab.io.address import Place
from vitlab.io.archive_limits import ArchiveLimits, checked_name
from vitlab.io.atomic import replacing
from vitlab.io.display import printable

BLOCK = 512

MemberKind = Literal["file", "folder", "link", "device"]

_KINDS: dict[bytes, MemberKind] = {
    b"0": "file", b"\0": "file", b"7": "file", b"5": "folder", b"1": "link", b"2": "link",
    b"3": "device", b"4": "device", b"6": "device",
}  # fmt: skip
_LONGEST_NAME = 64 * 1024
_LARGEST_PAX = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TarMember:
    """One entry of a tar archive; a file's bytes are the `size` ones from `offset`."""

    name: str
    kind: MemberKind
    size: int
    offset: int


class TarStream(Protocol):
    """Bytes in order, with the offset of the next one."""

    @property
    def position(self) -> int:
        """The offset of the next byte."""
        ...

    def read(self, count: int) -> bytes:
        """The next bytes, fewer only at the end."""
        ...

    def advance(self, offset: int) -> None:
        """Skip to a later offset."""
        ...


class FileStream:
    """An open file as a stream; skipped bytes are not read."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._size = os.fstat(handle).st_size
        self.position = 0

    def read(self, count: int) -> bytes:
        """The next bytes, fewer only at the end."""
        data = os.pread(self._handle, count, self.position)
        self.position += len(data)
        return data

    def advance(self, offset: int) -> None:
        """Skip to a later offset, at most the end of the file."""
        self.position = min(offset, self._size)


class WindowStream:
    """A file read by offset as a stream, `window` bytes at a time: headers and small members come many in one request."""

    def __init__(self, read: Callable[[int, int], bytes], size: int, *, window: int = 16 * 1024) -> None:
        self._read = read
        self._size = size
        self._window = window
        self._start, self._held = 0, b""
        self.position = 0

    def read(self, count: int) -> bytes:
        """The next bytes, fewer only at the end."""
        count = max(0, min(count, self._size - self.position))
        if not self._start <= self.position <= self.position + count <= self._start + len(self._held):
            self._start = self.position
            self._held = self._read(self.position, min(max(count, self._window), self._size - self.position))
        data = self._held[self.position - self._start :][:count]
        self.position += len(data)
        return data

    def advance(self, offset: int) -> None:
        """Skip to a later offset, at most the end of the file."""
        self.position = min(offset, self._size)


def tar_members(stream: TarStream, path: Place, limits: ArchiveLimits) -> Iterator[TarMember]:
    """The members in order. After each member the caller may read its bytes from the stream. `path` is for messages."""
    count = 0
    name: str | None = None  # from a long header, for the next member
    size: int | None = None
    ended = False
    while True:
        start = stream.position
        header = stream.read(BLOCK)
        if not header and ended:
            return
        if len(header) < BLOCK:
            what = "in the middle of a header" if header else "without an end mark"
            raise DataError(f"{path} is cut off: it ends at offset {start + len(header):,} {what}")
        if not header.strip(b"\0"):
            ended = True
            continue
        ended = False
        _verify(header, path, start)
        kind = header[156:157]
        length = _number(header[124:136], path, start)
        if kind in b"xgLK":
            limit = _LONGEST_NAME if kind in b"LK" else _LARGEST_PAX
            if length > limit:
                raise DataError(f"{path}: the header at offset {start:,} has {length:,} bytes; the limit is {limit:,}")
            body = stream.read(length)
            _skip(stream, start + BLOCK, length, "a long header", path)
            if kind == b"L":
                name = body.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif kind == b"x":
                fields = _pax(body, path, start)
                name, size = fields.get("path", name), int(fields["size"]) if "size" in fields else size
            continue

        count += 1
        if count > limits.entries:
            raise DataError(f"{path} holds more than {limits.entries:,} entries, which is the limit (entries)")
        if kind not in _KINDS:
            raise DataError(f"{path}: the member at offset {start:,} is of an unknown type {kind!r}")
        full = name if name is not None else _name(header)
        what = "folder" if kind in b"0\0" and full.endswith("/") else _KINDS[kind]
        held = (length if size is None else size) if what == "file" else 0
        plain = checked_name(full, path)
        if held > limits.entry_bytes:
            raise DataError(f"{path}: {printable(plain)} has {held:,} bytes; the limit is {limits.entry_bytes:,} (entry_bytes)")
        name = size = None
        member = TarMember(name=plain, kind=what, size=held, offset=start + BLOCK)
        yield member
        _skip(stream, member.offset, held, printable(plain), path)


def _skip(stream: TarStream, offset: int, size: int, what: str, path: Place) -> None:
    """Skip to the block after `size` bytes from `offset`; DataError if the archive ends before."""
    stream.advance(offset + size)
    if stream.position < offset + size:
        raise DataError(
            f"{path} is cut off: it ends at offset {stream.position:,}, and {what}, from offset {offset:,}, has {size:,} bytes"
        )
    stream.advance(offset + -(-size // BLOCK) * BLOCK)


def _verify(header: bytes, path: Place, start: int) -> None:
    stated = _number(header[148:156], path, start)
    rest = header[:148] + b" " * 8 + header[156:]
    total = sum(rest)
    # Some old writers summed signed bytes.
    if stated != total and stated != total - 256 * sum(byte > 127 for byte in rest):
        raise DataError(f"{path} is damaged: there is no tar header at offset {start:,}")


def _number(field: bytes, path: Place, start: int) -> int:
    """Octal digits or, for large numbers, a byte 0x80 and the number in binary."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0").split(b"\0")[0]
    if not digits:
        return 0
    try:
        number = int(digits, 8)
    except ValueError:
        number = -1
    if number < 0:
        raise DataError(f"{path} is damaged: there is no tar header at offset {start:,}")
    return number


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0")[0]
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "surrogateescape")


def _pax(body: bytes, path: Place, start: int) -> dict[str, str]:
    """The name and size of the next member from a pax header, whose records are `length key=value` lines."""
    fields = {}
    place = 0
    while place < len(body):
        space = body.find(b" ", place, place + 20)
        length = int(body[place:space]) if space > 0 and body[place:space].isdigit() else 0
        record = body[space + 1 : place + length]
        key, equals, value = record.removesuffix(b"\n").partition(b"=")
        if length <= 0 or place + length > len(body) or not record.endswith(b"\n") or not equals:
            raise DataError(f"{path} is damaged: the pax header at offset {start:,} cannot be read")
        if key.startswith(b"GNU.sparse"):
            raise DataError(f"{path}: the member after offset {start:,} is a sparse file, which is not supported")
        if key == b"path" or (key == b"size" and value.isdigit() and len(value) < 20):
            fields[key.decode()] = value.decode("utf-8", "surrogateescape")
        place += length
    return fields


RECORD = 20 * BLOCK
"""Tar archives end on a multiple of this many bytes."""


def member_bytes(size: int) -> int:
    """Bytes that a file of `size` bytes takes in a tar archive."""
    return BLOCK + -(-size // BLOCK) * BLOCK


class ShardWriter:
    """Write a tar archive atomically. The same members give the same bytes: no times, no owners, the caller's order.

    After the block, `bytes` and `sha256` describe the written file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self.sha256 = ""
        self._sum = hashlib.sha256()
        self._stack = ExitStack()
        self._file: BinaryIO | None = None

    def __enter__(self) -> ShardWriter:
        self._file = self._stack.enter_context(replacing(self.path, needed=0, error=DataError))
        return self

    def add(self, name: str, content: bytes) -> None:
        """Append a file; `name` has at most 100 ASCII characters."""
        member = tarfile.TarInfo(name)
        member.size = len(content)
        member.mode = 0o644
        self._write(member.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict"))
        self._write(content + bytes(-len(content) % BLOCK))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            self._write(bytes(2 * BLOCK))
            self._write(bytes(-self.bytes % RECORD))
            self.sha256 = self._sum.hexdigest()

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        self._file.write(data)
        self._sum.update(data)
        self.bytes += len(data)
