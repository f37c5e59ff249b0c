"""TensorFlow's record files and the examples in them, read without TensorFlow: as much as files of images need.

A record is its length (8 bytes), a checksum of that, the content, and a checksum of the content. The content is a protocol
buffer `Example`: a map from names to lists of bytes, of floats or of whole numbers. Lengths and their checksums are verified
before they are trusted, contents and theirs when they are read (`read_record`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import ImageDataset
from vitlab.data.readers.blocks import find_file, from_blocks
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError
from vitlab.io.archive import unpacked
from vitlab.io.archive_limits import ArchiveLimits
from vitlab.io.cache import stamp_of
from vitlab.io.digests import Digests, masked_crc32c, remembered_digests
from vitlab.io.files import PositionedFile
from vitlab.io.names import printable
from vitlab.io.tar import FileStream, tar_members

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
    """The examples of a file in their order; contents are passed over, not read, so that this is quick for large images.

    The records are the `size` bytes from `start`, for a file inside a tar; `where` is then its name in messages.
    """
    called = printable(where or str(path))
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
        raise DataError(f"{printable(where)} is damaged: its checksum is another")
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
    """Where each of the splits of this number lies."""
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


# DMLab frames as VTAB publishes them: TFRecord files of JPEG images, each with the number of its class.
#
# They are read inside `dmlab.tar.gz` as downloaded (unpacked once into the cache folder), inside `dmlab.tar`, or unpacked.

CLASSES = tuple(f"class {number}" for number in range(6))  # close, far, very far x good and bad reward; no order is published

_SPLITS = (("train", TRAIN), ("validation", VAL), ("test", TEST))
_ARCHIVES = ("dmlab.tar", "dmlab.tar.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Records:
    """A record file: `size` bytes from `start` of the file at `path`, and what a user knows it by."""

    name: str
    path: Path
    start: int
    size: int
    where: str


class RecordBlock:
    """Encoded images in records: `records` and `images`, each (N, 2), are offsets and lengths of contents and of images."""

    def __init__(self, path: Path, records: NDArray[np.int64], images: NDArray[np.int64], *, where: str) -> None:
        self.where = where
        self._file = PositionedFile(path, stamp_of(path.stat()), keep_open=False)
        self._records = records
        self._images = images

    def __len__(self) -> int:
        return len(self._records)

    def read(self, index: int) -> bytes:
        """The encoded image; DataError where its record's checksum is another."""
        (offset, length), (start, size) = self._records[index].tolist(), self._images[index].tolist()
        content = read_record(self._file, offset, length, where=f"{self.where}, image {index}")
        return content[start - offset : start - offset + size]

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each image, remembered for as long as the file stays the same."""
        stamp = self._file.stamp
        return remembered_digests(self.read, rows, path=Path(self.where), stamp=stamp, sizes=self._images[:, 1])


def has_dmlab(folder: Path) -> bool:
    """Whether the folder holds the record files, or the archive of them."""
    return find_file(folder, [f"dmlab-{word}.tfrecord*" for word, _ in _SPLITS] + list(_ARCHIVES)) is not None


def open_dmlab(place: Path) -> ImageDataset:
    """The frames of `dmlab-train.tfrecord*`, `-validation` and `-test`, in the order of the files' names.

    `place` is a folder with these files or with the archive, or the archive itself.
    """
    found = _found(place)
    blocks, codes, splits = [], [], []
    for word, split in _SPLITS:
        pattern = f"dmlab-{word}.tfrecord*"
        files = [file for file in found if fnmatch(file.name, pattern)]
        if not files:
            raise DataError(f"{printable(str(place))} holds no {pattern}", hint="put dmlab.tar.gz there, packed or unpacked")
        for file in files:
            block, labels = _read(file)
            blocks.append(block)
            codes.append(labels)
            splits.append(split)
    return from_blocks(blocks, codes, splits, CLASSES)


def _found(place: Path) -> list[_Records]:
    """The record files, sorted by name: those that lie there, else those of the archive."""
    if place.is_file():
        return sorted(_inside(place), key=lambda file: file.name)
    files = sorted([*place.glob("dmlab-*.tfrecord*"), *place.glob("*/dmlab-*.tfrecord*")])
    if files:
        return [_Records(name=file.name, path=file, start=0, size=file.stat().st_size, where=str(file)) for file in files]
    archive = find_file(place, _ARCHIVES)
    return [] if archive is None else _found(archive)


def _inside(archive: Path) -> Iterator[_Records]:
    """The record files of a tar, packed by gzip or not; each is read where it lies in it."""
    with archive.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    tar = unpacked(archive) if packed else archive
    handle = os.open(tar, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for member in tar_members(FileStream(handle), archive, ArchiveLimits()):
            if member.kind == "file":
                name, where = member.name.rpartition("/")[2], f"{archive}/{member.name}"
                yield _Records(name=name, path=tar, start=member.offset, size=member.size, where=where)
    finally:
        os.close(handle)


def _read(file: _Records) -> tuple[RecordBlock, NDArray[np.int64]]:
    records, images, labels = [], [], []
    for number, sample in enumerate(read_examples(file.path, start=file.start, size=file.size, where=file.where)):
        image, label = sample.spans.get("image", []), sample.numbers.get("label", [])
        if len(image) != 1 or len(label) != 1:
            raise DataError(f"{printable(file.where)}: example {number:,} has not one image and one label")
        records.append(sample.record)
        images.append(image[0])
        labels.append(label[0])
    places = [np.array(pairs, np.int64).reshape(-1, 2) for pairs in (records, images)]
    return RecordBlock(file.path, *places, where=file.where), np.array(labels, np.int64)
