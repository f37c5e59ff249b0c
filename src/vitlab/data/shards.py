"""Tar shards in the WebDataset layout (`key.jpg` beside `key.cls` or `key.json`), read by an index of offsets.

The index of a shard is made once and kept in the cache folder until the shard changes; pictures are then read by position, in
any order. Members are data and nothing else: no .pkl, .pyd or .pth is ever interpreted, no address opened, no program run.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.config.source import READ_IN_PLACE
from vitlab.data.files.cache import Arrays, recall, remember, settled, stamp_of
from vitlab.data.files.digests import Digests, remembered_digests
from vitlab.data.files.names import Names, shown
from vitlab.data.files.positioned import PositionedFile
from vitlab.data.files.tars import FileStream, tar_members
from vitlab.errors import DataError

LABEL_SUFFIXES = (".cls", ".json", ".txt")

_VERSION = 1
_LARGEST_TEXT = 64 * 1024  # bytes of a member that may say a label
_MOST_OPEN = 256  # files; more shards than that are opened at each read


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardIndex:
    """The files in one shard: their names, where their bytes are, and the text of those that may say a label."""

    path: Path
    stamp: tuple[int, int, int]
    names: Names
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    texts: Names
    ignored: Counter[str]


def shard_index(path: Path) -> ShardIndex:
    """The index of a tar file: as remembered, where the file has not changed since, else made from its headers."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DataError(f"{shown(str(path))} cannot be read: {error.strerror}") from error
    try:
        stamp = stamp_of(os.fstat(handle))
        stored = recall("shards", path)
        if stored is not None and (index := _restored(path, stamp, stored)) is not None:
            return index
        index = _made(path, stamp, handle)
    finally:
        os.close(handle)
    if settled(stamp):
        _remember(index)
    return index


def _made(path: Path, stamp: tuple[int, int, int], handle: int) -> ShardIndex:
    head = os.pread(handle, 6, 0)
    if head[:2] == b"\x1f\x8b" or head[:3] == b"BZh" or head == b"\xfd7zXZ\0" or head[:4] == b"\x28\xb5\x2f\xfd":
        raise DataError(
            f"{shown(str(path))} is compressed, so its pictures cannot be read by position",
            hint="unpack it to a plain .tar; pictures are compressed already",
        )
    names: list[str] = []
    places: list[tuple[int, int]] = []
    texts: list[str] = []
    ignored: Counter[str] = Counter()
    stream = FileStream(handle)
    for member in tar_members(stream, path, READ_IN_PLACE):
        if member.kind == "folder":
            continue
        if member.kind != "file":
            ignored[member.kind] += 1
            continue
        text = ""
        if member.name.endswith(LABEL_SUFFIXES) and member.size <= _LARGEST_TEXT:
            text = stream.read(member.size).decode("utf-8", "replace")
        names.append(member.name)
        places.append((member.offset, member.size))
        texts.append(text)
    table = np.array(places, np.int64).reshape(-1, 2)
    return ShardIndex(
        path=path,
        stamp=stamp,
        names=Names(names),
        offsets=table[:, 0].copy(),
        sizes=table[:, 1].copy(),
        texts=Names(texts),
        ignored=ignored,
    )


def _remember(index: ShardIndex) -> None:
    names, name_ends = index.names.buffers()
    texts, text_ends = index.texts.buffers()
    ignored = json.dumps(index.ignored).encode()
    arrays: Arrays = {
        "stamp": np.array([_VERSION, *index.stamp], np.int64),
        "names": np.frombuffer(names, np.uint8),
        "name_ends": name_ends,
        "texts": np.frombuffer(texts, np.uint8),
        "text_ends": text_ends,
        "offsets": index.offsets,
        "sizes": index.sizes,
        "ignored": np.frombuffer(ignored, np.uint8),
    }
    remember("shards", index.path, arrays)


def _restored(path: Path, stamp: tuple[int, int, int], stored: Arrays) -> ShardIndex | None:
    """The remembered index, or None where it is of another state of the file or cannot be understood."""
    if not np.array_equal(stored.get("stamp", ()), [_VERSION, *stamp]):
        return None
    try:
        return ShardIndex(
            path=path,
            stamp=stamp,
            names=Names.from_buffers(stored["names"].tobytes(), stored["name_ends"].astype(np.int64)),
            offsets=stored["offsets"].astype(np.int64),
            sizes=stored["sizes"].astype(np.int64),
            texts=Names.from_buffers(stored["texts"].tobytes(), stored["text_ends"].astype(np.int64)),
            ignored=Counter(json.loads(stored["ignored"].tobytes())),
        )
    except (KeyError, ValueError):
        return None


class ShardContents:
    """The files of several shards, numbered through, each read by one positioned read."""

    def __init__(self, shards: Sequence[ShardIndex]) -> None:
        self._starts = [0, *accumulate(len(shard.names) for shard in shards)]
        self.shards = list(shards)
        keep_open = len(shards) <= _MOST_OPEN
        self._files = [PositionedFile(shard.path, shard.stamp, keep_open=keep_open) for shard in shards]

    def __len__(self) -> int:
        return self._starts[-1]

    def names(self) -> Iterator[tuple[int, str]]:
        """The number of the shard and the name in it of each file, in order."""
        for number, shard in enumerate(self.shards):
            for name in shard.names:
                yield number, name

    def name(self, row: int) -> str:
        """`shard.tar/name`"""
        number, inside = self._place(row)
        return f"{self.shards[number].path}/{self.shards[number].names[inside]}"

    def shard_of(self, row: int) -> Path:
        """The file this row is in."""
        return self.shards[self._place(row)[0]].path

    def text(self, row: int) -> str:
        """What a member that may say a label holds; empty for others."""
        number, inside = self._place(row)
        return self.shards[number].texts[inside]

    def read(self, row: int) -> bytes:
        """The file's bytes."""
        number, inside = self._place(row)
        shard = self.shards[number]
        offset, size = int(shard.offsets[inside]), int(shard.sizes[inside])
        data = self._files[number].read(offset, size)
        if len(data) < size:
            raise DataError(f"{shown(self.name(row))} is cut off: {shard.path} ends at offset {offset + len(data):,}")
        return data

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each file's content, shard by shard."""
        result = np.zeros((len(rows), 16), np.uint8)
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(which).tolist():
            shard, first = self.shards[number], self._starts[number]
            here = which == number

            def read(inside: int, first: int = first) -> bytes:
                return self.read(first + inside)

            result[here] = remembered_digests(read, rows[here] - first, path=shard.path, stamp=shard.stamp, sizes=shard.sizes)
        return result

    def _place(self, row: int) -> tuple[int, int]:
        number = bisect_right(self._starts, row) - 1
        return number, row - self._starts[number]
