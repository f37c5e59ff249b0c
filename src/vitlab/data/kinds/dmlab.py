"""DMLab frames as VTAB publishes them: TFRecord files of JPEG pictures, each with the number of its class.

They are read inside `dmlab.tar.gz` as downloaded (unpacked once into the cache folder), inside `dmlab.tar`, or unpacked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.config.source import ArchiveLimits
from vitlab.data.files.blocks import find_file, from_blocks
from vitlab.data.files.cache import stamp_of
from vitlab.data.files.digests import Digests, remembered_digests
from vitlab.data.files.names import shown
from vitlab.data.files.positioned import PositionedFile
from vitlab.data.files.tars import FileStream, tar_members
from vitlab.data.files.tfrecord import read_examples, read_record
from vitlab.data.files.unpacked import unpacked
from vitlab.data.listed import ListedSource
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError

CLASSES = tuple(f"class {number}" for number in range(6))  # close, far, very far x good and bad reward; no order is published

_PARTS = (("train", TRAIN), ("validation", VAL), ("test", TEST))
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
    """Encoded pictures in records: `records` and `images`, each (N, 2), are offsets and lengths of contents and of pictures."""

    def __init__(self, path: Path, records: NDArray[np.int64], images: NDArray[np.int64], *, where: str) -> None:
        self.where = where
        self._file = PositionedFile(path, stamp_of(path.stat()), keep_open=False)
        self._records = records
        self._images = images

    def __len__(self) -> int:
        return len(self._records)

    def read(self, index: int) -> bytes:
        """The encoded picture; DataError where its record's checksum is another."""
        (offset, length), (start, size) = self._records[index].tolist(), self._images[index].tolist()
        content = read_record(self._file, offset, length, where=f"{self.where}, picture {index}")
        return content[start - offset : start - offset + size]

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each picture, remembered for as long as the file stays the same."""
        stamp = self._file.stamp
        return remembered_digests(self.read, rows, path=Path(self.where), stamp=stamp, sizes=self._images[:, 1])


def has_dmlab(folder: Path) -> bool:
    """Whether the folder holds the record files, or the archive of them."""
    return find_file(folder, [f"dmlab-{word}.tfrecord*" for word, _ in _PARTS] + list(_ARCHIVES)) is not None


def open_dmlab(place: Path) -> ListedSource:
    """The frames of `dmlab-train.tfrecord*`, `-validation` and `-test`, in the order of the files' names.

    `place` is a folder with these files or with the archive, or the archive itself.
    """
    found = _found(place)
    blocks, codes, parts = [], [], []
    for word, part in _PARTS:
        pattern = f"dmlab-{word}.tfrecord*"
        files = [file for file in found if fnmatch(file.name, pattern)]
        if not files:
            raise DataError(f"{shown(str(place))} holds no {pattern}", hint="put dmlab.tar.gz there, packed or unpacked")
        for file in files:
            block, labels = _read(file)
            blocks.append(block)
            codes.append(labels)
            parts.append(part)
    return from_blocks(blocks, codes, parts, CLASSES)


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
    for number, example in enumerate(read_examples(file.path, start=file.start, size=file.size, where=file.where)):
        image, label = example.spans.get("image", []), example.numbers.get("label", [])
        if len(image) != 1 or len(label) != 1:
            raise DataError(f"{shown(file.where)}: example {number:,} has not one image and one label")
        records.append(example.record)
        images.append(image[0])
        labels.append(label[0])
    places = [np.array(pairs, np.int64).reshape(-1, 2) for pairs in (records, images)]
    return RecordBlock(file.path, *places, where=file.where), np.array(labels, np.int64)
