"""TensorFlow's record files and the examples in them, read without TensorFlow: as much as files of pictures need.

A record is its length (8 bytes), a checksum of that, the content, and a checksum of the content. The content is a protocol
buffer `Example`: a map from names to lists of bytes, of floats or of whole numbers. Lengths and their checksums are verified
before they are trusted, contents and theirs when they are read (`read_record`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from vitlab.data.files.crc32c import masked_crc32c
from vitlab.data.files.names import shown
from vitlab.data.files.positioned import PositionedFile
from vitlab.errors import DataError

_HEAD, _FOOT = 12, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TFExample:
    """One example: where in the file its record's content lies and the bytes of each field of bytes, each as (offset, length),
    and the fields of whole numbers.
    """

    record: tuple[int, int]
    spans: dict[str, list[tuple[int, int]]]
    numbers: dict[str, list[int]]


def read_examples(path: Path, *, start: int = 0, size: int | None = None, where: str | None = None) -> Iterator[TFExample]:
    """The examples of a file in their order; contents are passed over, not read, so that this is quick for large pictures.

    The records are the `size` bytes from `start`, for a file inside a tar; `where` is then its name in messages.
    """
    called = shown(where or str(path))
    length = path.stat().st_size - start if size is None else size
    if length == 0:
        return
    with path.open("rb") as file, mmap(file.fileno(), start + length, access=ACCESS_READ) as data:
        place = start
        while place < len(data):
            first, end = _record(data, place, called)
            try:
                yield _example(data, first, end)
            except (ValueError, UnicodeDecodeError) as error:
                raise DataError(f"{called}: the record at offset {place:,} is no example") from error
            place = end + _FOOT


def read_record(file: PositionedFile, offset: int, length: int, *, where: str) -> bytes:
    """The content of a record, its checksum verified; `offset` and `length` are those of the content."""
    data = file.read(offset, length + _FOOT)
    if len(data) < length + _FOOT or masked_crc32c(data[:length]) != struct.unpack("<I", data[length:])[0]:
        raise DataError(f"{shown(where)} is damaged: its checksum is another")
    return data[:length]


def _record(data: mmap, place: int, called: str) -> tuple[int, int]:
    """Where the content of the record at `place` begins and ends."""
    head = data[place : place + _HEAD]
    if len(head) < _HEAD:
        raise DataError(f"{called} is cut off at offset {place:,}")
    length, checksum = struct.unpack("<QI", head)
    if checksum != masked_crc32c(head[:8]):
        raise DataError(f"{called} is no TFRecord file, or is damaged at offset {place:,}")
    end = place + _HEAD + length
    if end + _FOOT > len(data):
        raise DataError(f"{called} is cut off: its record at offset {place:,} goes beyond its end")
    return place + _HEAD, end


def _example(data: mmap, start: int, end: int) -> TFExample:
    spans: dict[str, list[tuple[int, int]]] = {}
    numbers: dict[str, list[int]] = {}
    for begin, stop in _messages(data, start, end, field=1):  # Example.features
        for entry, entry_end in _messages(data, begin, stop, field=1):  # Features.feature, a map
            name, value = _entry(data, entry, entry_end)
            if value is None:
                continue
            for kind, first, last in _fields(data, *value):
                if kind == 1 << 3 | _BYTES:  # Feature.bytes_list
                    spans[name] = [(at, to - at) for at, to in _messages(data, first, last, field=1)]
                elif kind == 3 << 3 | _BYTES:  # Feature.int64_list
                    numbers[name] = list(_numbers(data, first, last))
    return TFExample(record=(start, end - start), spans=spans, numbers=numbers)


def _entry(data: mmap, start: int, end: int) -> tuple[str, tuple[int, int] | None]:
    name, value = "", None
    for kind, first, last in _fields(data, start, end):
        if kind == 1 << 3 | _BYTES:
            name = data[first:last].decode("utf-8")
        elif kind == 2 << 3 | _BYTES:
            value = first, last
    return name, value


def _messages(data: mmap, start: int, end: int, *, field: int) -> Iterator[tuple[int, int]]:
    """Where each of the parts of this number lies."""
    for kind, first, last in _fields(data, start, end):
        if kind == field << 3 | _BYTES:
            yield first, last


def _fields(data: mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Key of each field of a message, and where its value lies."""
    place = start
    while place < end:
        key, place = _varint(data, place, end)
        match key & 7:
            case 0:
                _, stop = _varint(data, place, end)
            case 1:
                stop = place + 8
            case 2:
                length, place = _varint(data, place, end)
                stop = place + length
            case 5:
                stop = place + 4
            case other:
                raise ValueError(f"wire type {other}")
        if stop > end:
            raise ValueError("a field goes beyond its message")
        yield key, place, stop
        place = stop


def _numbers(data: mmap, start: int, end: int) -> Iterator[int]:
    """The values of an Int64List, packed or not."""
    for kind, first, last in _fields(data, start, end):
        if kind == 1 << 3 | _VARINT:
            yield _signed(_varint(data, first, last)[0])
        elif kind == 1 << 3 | _BYTES:
            place = first
            while place < last:
                value, place = _varint(data, place, last)
                yield _signed(value)


def _varint(data: mmap, place: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= end or shift > 63:
            raise ValueError("a number that does not end")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
