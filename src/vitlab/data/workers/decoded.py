"""Pictures decoded once: a file of pixels, in memory or on disk, that all workers map and none copies.

The file is the pixels end to end; then a table, itself an .npz (sizes, labels, names, and why some could not be decoded); then
64 bytes: a mark, where the table begins and ends, and the SHA-256 of all before.

Axes: N pictures, H height, W width, C channels.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import struct
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from vitlab.data.batch import Decode, Pixels
from vitlab.data.files.names import Names
from vitlab.data.labels import UNKNOWN, Label, LabelTable
from vitlab.data.source import Example, Source
from vitlab.errors import DataError

_MARK = b"vitlab pictures1"
_TRAILER = struct.Struct("<16sQQ32s")
_BLOCK = 64  # pictures decoded ahead of the writing


class DecodedSource:
    """A source of pixels that were decoded before. The file is made by `write_decoded`; it pickles as its place.

    `place` is the path of the file, or the number of an open file in memory, which a worker process must then inherit.
    """

    def __init__(self, place: Path | int) -> None:
        if isinstance(place, int):
            place = os.dup(place)  # ours to close, whoever else holds the file
            weakref.finalize(self, os.close, place)
        self.place = place
        with open(place, "rb", closefd=isinstance(place, Path)) as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start, stop, _ = _trailer(self._bytes)
        with np.load(io.BytesIO(self._bytes[start:stop]), allow_pickle=False) as table:
            told = json.loads(table["told"].tobytes())
            self._shape_N3: NDArray[np.int32] = table["shape_N3"]
            self._start_N: NDArray[np.int64] = table["start_N"]
            self._names = Names.from_buffers(table["letters"].tobytes(), table["ends"])
            self._table = LabelTable(codes=table["codes"], starts=table["starts"] if told["multi_label"] else None)
        self._key = str(told["key"])
        self._labels: tuple[str, ...] = tuple(told["labels"])
        self._reasons: dict[str, str] = told["reasons"]

    def __reduce__(self) -> tuple[type[DecodedSource], tuple[Path | int]]:
        return DecodedSource, (self.place,)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Open files that a process must inherit to use this."""
        return () if isinstance(self.place, Path) else (self.place,)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self._labels

    @property
    def multi_label(self) -> bool:
        """Whether a picture may have several classes."""
        return self._table.multi_label

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(f"picture {index} of {len(self)}")
        if (reason := self._reasons.get(str(index))) is not None:
            raise DataError(reason)
        height, width, channels = self._shape_N3[index].tolist()
        pixels = np.frombuffer(self._bytes, np.uint8, height * width * channels, int(self._start_N[index]))
        return Example(name=self._names[index], content=pixels.reshape(height, width, channels), label=self._table[index])

    def label(self, index: int) -> Label:
        """The label of a picture."""
        return self._table[index]

    def name(self, index: int) -> str:
        """Where the picture came from."""
        return self._names[index]

    def fingerprint(self) -> str:
        """The key it was written with: that of the source and of how it was decoded."""
        return self._key


def write_decoded(source: Source, decode: Decode, file: IO[bytes], *, key: str, threads: int) -> None:
    """Decode every picture of a source into an open, empty file; `key` is kept in it as its fingerprint."""
    made = sha256()
    shapes: list[tuple[int, ...]] = []
    starts: list[int] = []
    names: list[str] = []
    reasons: dict[str, str] = {}
    length = 0
    for index, (name, pixels) in enumerate(_decoded(source, decode, threads)):
        names.append(name)
        starts.append(length)
        if isinstance(pixels, str):
            reasons[str(index)] = pixels
            shapes.append((0, 0, 0))
            continue
        flat = np.ascontiguousarray(pixels).reshape(-1).data
        made.update(flat)
        file.write(flat)
        shapes.append(pixels.shape)
        length += len(flat)

    labels = _label_table([source.label(index) for index in range(len(source))], multi_label=source.multi_label)
    told = {"key": key, "labels": source.labels, "multi_label": source.multi_label, "reasons": reasons}
    letters, ends = Names(names).buffers()
    table = io.BytesIO()
    np.savez(
        table,
        told=np.frombuffer(json.dumps(told).encode(), np.uint8),
        shape_N3=np.array(shapes, np.int32),
        start_N=np.array(starts, np.int64),
        codes=labels.codes,
        starts=np.zeros(0, np.int64) if labels.starts is None else labels.starts,
        letters=np.frombuffer(letters, np.uint8),
        ends=ends,
    )
    made.update(table.getbuffer())
    file.write(table.getbuffer())
    file.write(_TRAILER.pack(_MARK, length, length + len(table.getbuffer()), made.digest()))
    file.flush()


def is_sound(path: Path) -> bool:
    """Whether the file is there, whole, and unharmed to the last bit; reading it all also brings it into memory."""
    if not path.is_file() or path.stat().st_size < _TRAILER.size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            _, stop, digest = _trailer(content)
        except DataError:
            return False
        with memoryview(content) as view, view[:stop] as hashed:
            return sha256(hashed).digest() == digest


def _trailer(content: mmap.mmap) -> tuple[int, int, bytes]:
    """Where the table begins and ends, and the digest of everything before that end."""
    place = len(content) - _TRAILER.size
    mark, start, stop, digest = _TRAILER.unpack_from(content, max(0, place))
    if mark != _MARK or not 0 <= start <= stop == place:
        raise DataError("this is no file of decoded pictures, or it is cut short")
    return start, stop, digest


def _decoded(source: Source, decode: Decode, threads: int) -> Iterator[tuple[str, Pixels | str]]:
    """Each picture's name, and its pixels or why there are none, in order."""

    def one(index: int) -> tuple[str, Pixels | str]:
        name = f"picture {index}"
        try:
            example = source[index]
            name = example.name
            pixels = decode(example)
        except (DataError, OSError) as error:
            return name, error.message if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        assert pixels.dtype == np.uint8, f"{name} was decoded to {pixels.dtype}"
        assert pixels.ndim == 3, f"{name} was decoded to {pixels.ndim} axes"
        return name, pixels

    # Decoding releases the interpreter's lock, and threads need neither copies nor pickles of the source.
    with ThreadPoolExecutor(max_workers=max(1, threads)) as pool:
        for start in range(0, len(source), _BLOCK):
            yield from pool.map(one, range(start, min(start + _BLOCK, len(source))))


def _label_table(labels: Sequence[Label], *, multi_label: bool) -> LabelTable:
    if multi_label:
        return LabelTable.several(label if isinstance(label, tuple) else () for label in labels)
    return LabelTable(codes=np.array([UNKNOWN if label is None else label for label in labels], np.int32))
