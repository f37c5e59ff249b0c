"""TFRecord files of images, read without TensorFlow, and DMLab's frames, which VTAB publishes so.

A record is its length (8 bytes), a checksum of the length, the content, and a checksum of the content. The content is a protocol
buffer `Example`: a map from names to lists of bytes, floats or whole numbers. The checksum of a length is verified before the
length is used; that of the content when it is read (`read_record`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import ImageDataset
from vitlab.data.readers.array_files import find_file, from_blocks
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError
from vitlab.io.archive import unpacked
from vitlab.io.archive_limits import ArchiveLimits
from vitlab.io.digests import Digests, remembered_digests
from vitlab.io.display import printable
from vitlab.io.files import PositionedFile, open_handle, open_regular, stamp_of
from vitlab.io.tar import FileStream, tar_members

_HEAD, _FOOT = 12, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TFExample:
    """One example: (offset, length) of its record's content and of each value of its byte fields, and its whole numbers."""

    record: tuple[int, int]
    spans: dict[str, list[tuple[int, int]]]
    numbers: dict[str, list[int]]


def read_examples(path: Path, *, start: int = 0, size: int | None = None, where: str | None = None) -> Iterator[TFExample]:
    """The examples of a file in order. Image bytes are skipped, so this is fast.

    For a file inside a tar, the records are the `size` bytes from `start`, and `where` is its name in messages.
    """
    called = printable(where or str(path))
    length = path.stat().st_size - start if size is None else size
    if length == 0:
        return
    with open_regular(path, error=DataError) as file, mmap(file.fileno(), start + length, access=ACCESS_READ) as data:
        place = start
        while place < len(data):
            first, end = _record(data, place, called)
            try:
                yield _example(data, first, end)
            except (ValueError, UnicodeDecodeError) as error:
                raise DataError(f"{called}: the record at offset {place:,} is not an example") from error
            place = end + _FOOT


def read_record(file: PositionedFile, offset: int, length: int, *, where: str) -> bytes:
    """The content of a record, verified by its checksum; `offset` and `length` are those of the content."""
    data = file.read(offset, length + _FOOT)
    if len(data) < length + _FOOT or masked_crc32c(data[:length]) != struct.unpack("<I", data[length:])[0]:
        raise DataError(f"{printable(where)} is damaged: its checksum does not match")
    return data[:length]


def _record(data: mmap, place: int, called: str) -> tuple[int, int]:
    """(start, end) of the content of the record at `place`."""
    head = data[place : place + _HEAD]
    if len(head) < _HEAD:
        raise DataError(f"{called} is cut off at offset {place:,}")
    length, checksum = struct.unpack("<QI", head)
    if checksum != masked_crc32c(head[:8]):
        raise DataError(f"{called} is not a TFRecord file, or is damaged at offset {place:,}")
    end = place + _HEAD + length
    if end + _FOOT > len(data):
        raise DataError(f"{called} is cut off: its record at offset {place:,} extends beyond its end")
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
    """(start, end) of each sub-message with this field number."""
    for kind, first, last in _fields(data, start, end):
        if kind == field << 3 | _BYTES:
            yield first, last


def _fields(data: mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Key of each field of a message, and (start, end) of its value."""
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


CLASSES = tuple(f"class {number}" for number in range(6))  # close, far, very far x good and bad reward; no order is published

_SPLITS = (("train", TRAIN), ("validation", VAL), ("test", TEST))
_ARCHIVES = ("dmlab.tar", "dmlab.tar.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Records:
    """A record file: `size` bytes from `start` of the file at `path`; `where` is the user's name of it."""

    name: str
    path: Path
    start: int
    size: int
    where: str


class RecordBlock:
    """Encoded images in records; `records` and `images`, each (N, 2), are offsets and lengths of contents and of images."""

    def __init__(self, path: Path, records: NDArray[np.int64], images: NDArray[np.int64], *, where: str) -> None:
        self.where = where
        self._file = PositionedFile(path, stamp_of(path.stat()), keep_open=False)
        self._records = records
        self._images = images

    def __len__(self) -> int:
        return len(self._records)

    def read(self, index: int) -> bytes:
        """The encoded image; DataError if the checksum of its record does not match."""
        (offset, length), (start, size) = self._records[index].tolist(), self._images[index].tolist()
        content = read_record(self._file, offset, length, where=f"{self.where}, image {index}")
        return content[start - offset : start - offset + size]

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each image, cached until the file changes."""
        stamp = self._file.stamp
        return remembered_digests(self.read, rows, path=Path(self.where), stamp=stamp, sizes=self._images[:, 1])


def has_dmlab(folder: Path) -> bool:
    """Whether the folder holds DMLab's record files, or the archive of them."""
    return find_file(folder, [f"dmlab-{word}.tfrecord*" for word, _ in _SPLITS] + list(_ARCHIVES)) is not None


def open_dmlab(place: Path) -> ImageDataset:
    """DMLab's frames of `dmlab-train.tfrecord*`, `-validation` and `-test`, in the order of the files' names.

    `place` is a folder with these files or with the archive, or the archive itself: `dmlab.tar.gz` as downloaded (unpacked once
    into the cache folder) or `dmlab.tar`.
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
    """The record files, sorted by name: those in the folder, else those of the archive."""
    if place.is_file():
        return sorted(_inside(place), key=lambda file: file.name)
    files = sorted([*place.glob("dmlab-*.tfrecord*"), *place.glob("*/dmlab-*.tfrecord*")])
    if files:
        return [_Records(name=file.name, path=file, start=0, size=file.stat().st_size, where=str(file)) for file in files]
    archive = find_file(place, _ARCHIVES)
    return [] if archive is None else _found(archive)


def _inside(archive: Path) -> Iterator[_Records]:
    """The record files of a tar, gzipped or not; they are read in place."""
    with open_regular(archive, error=DataError) as file:
        packed = file.read(2) == b"\x1f\x8b"
    tar = unpacked(archive) if packed else archive
    handle = open_handle(tar)
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
            raise DataError(f"{printable(file.where)}: example {number:,} does not have one image and one label")
        records.append(sample.record)
        images.append(image[0])
        labels.append(label[0])
    places = [np.array(pairs, np.int64).reshape(-1, 2) for pairs in (records, images)]
    return RecordBlock(file.path, *places, where=file.where), np.array(labels, np.int64)


# CRC-32C is linear: the checksum of a message is the exclusive or of what each byte contributes at its place. So the message is
# cut into rows, all bytes are looked up at once, and rows are combined in pairs. numpy does 100 kB in about 1 ms, so no package is
# needed for it. Axes: R rows of a message, K bytes of a row.

Words = NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
_ROW = 256


def masked_crc32c(data: bytes) -> int:
    """The checksum as record files store it: rotated by 15 bits, plus a constant."""
    checksum = crc32c(data)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The checksum of any bytes, 0 to 2^32 - 1."""
    if len(data) < _ROW:
        return _byte_by_byte(data)
    rows = 1 << (-(-len(data) // _ROW) - 1).bit_length()  # a power of two; zeros before a message change nothing
    padded = np.zeros(rows * _ROW, np.uint8)
    padded[-len(data) :] = np.frombuffer(data, np.uint8)
    padded[-len(data) :][:4] ^= 0xFF  # the register starts with ones, as if the first four bytes were inverted
    joined_R = np.bitwise_xor.reduce(_places()[np.arange(_ROW), padded.reshape(rows, _ROW)], axis=1)
    moved = _ROW
    while len(joined_R) > 1:
        joined_R = _apply(_zeros(moved), joined_R[0::2]) ^ joined_R[1::2]
        moved *= 2
    return int(joined_R[0]) ^ 0xFFFFFFFF


@cache
def _table() -> Words:
    """The register after one byte, starting from 0."""
    register = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        register = np.where(register & 1, register >> np.uint32(1) ^ np.uint32(_POLYNOMIAL), register >> np.uint32(1))
    return register.astype(np.uint32)


@cache
def _places() -> Words:
    """(K, 256): the contribution of each byte at each place of a row."""
    places_K256 = np.empty((_ROW, 256), np.uint32)
    places_K256[-1] = _table()
    for place in range(_ROW - 2, -1, -1):
        after = places_K256[place + 1]
        places_K256[place] = after >> np.uint32(8) ^ _table()[after & np.uint32(0xFF)]
    return places_K256


@cache
def _zeros(count: int) -> Words:
    """(4, 256): the register after `count` zeros (a power of two), for each of its bytes."""
    if count > 1:
        half = _zeros(count // 2)
        return np.stack([_apply(half, half[byte]) for byte in range(4)])
    registers = np.arange(256, dtype=np.uint32)[None] << (8 * np.arange(4, dtype=np.uint32))[:, None]
    found: Words = registers >> np.uint32(8) ^ _table()[registers & np.uint32(0xFF)]
    return found


def _apply(moved: Words, register: Words) -> Words:
    low = np.uint32(0xFF)
    found: Words = moved[0][register & low]
    for byte in range(1, 4):
        found = found ^ moved[byte][register >> np.uint32(8 * byte) & low]
    return found


def _byte_by_byte(data: bytes) -> int:
    table = _table()
    register = 0xFFFFFFFF
    for byte in data:
        register = register >> 8 ^ int(table[(register ^ byte) & 0xFF])
    return register ^ 0xFFFFFFFF
