"""Datasets and transforms for tests of the loader, in a module of their own, which worker processes import.

A stamp is a tiny image that tells which image it was made from, and with which randomness.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import ImageDataset, LabelTable, RawSample
from vitlab.data.synthetic import SyntheticDataset
from vitlab.errors import DataError, StorageError

Pixels = NDArray[np.uint8]

SHAPE = (2, 4, 2)


@dataclass(frozen=True, kw_only=True)
class Stamps:
    """`count` images of `classes` classes in turn; those in `broken` cannot be decoded, those in `missing` not even read."""

    count: int
    classes: int = 3
    broken: frozenset[int] = frozenset()
    missing: frozenset[int] = frozenset()
    multi_label: bool = False
    version: str = "1"

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"class {code}" for code in range(self.classes))

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> RawSample:
        if not 0 <= index < self.count:
            raise IndexError(index)
        if index in self.missing:
            raise FileNotFoundError(2, "No such file", f"stamp-{index}.png")
        content = b"broken" if index in self.broken else index.to_bytes(8, "little")
        return RawSample(name=f"stamp-{index}.png", content=content, label=self.label(index))

    def label(self, index: int) -> int | tuple[int, ...] | None:
        if not self.multi_label:
            return index % self.classes
        return tuple(code for code in range(self.classes) if index >> code & 1)

    def fingerprint(self) -> str:
        return f"{self!r}"


@dataclass(frozen=True, kw_only=True)
class FarContents:
    """The content of 40 stamps as if on a server. Each read leaves a line in `diary`: its process and its row.

    Those in `missing` are broken images, those in `unreachable` cannot be fetched, and those in `mistaken` show a bug.
    """

    diary: Path
    missing: frozenset[int] = frozenset()
    unreachable: frozenset[int] = frozenset()
    mistaken: frozenset[int] = frozenset()

    def name(self, row: int) -> str:
        return f"stamp-{row}.png"

    def read(self, row: int) -> bytes:
        with self.diary.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {row}\n")
        if row in self.missing:
            raise DataError(f"{self.name(row)} is cut off")
        if row in self.unreachable:
            raise StorageError("the server is gone", hint="find it")
        if row in self.mistaken:
            raise ZeroDivisionError("a bug of the reader")
        return row.to_bytes(8, "little")

    def digests(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        raise NotImplementedError

    def expect(self, rows: Sequence[int]) -> None:
        pass

    def versions(self, rows: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        return np.zeros((len(rows), 16), np.uint8)

    def dataset(self) -> ImageDataset:
        table = LabelTable(codes=np.arange(40, dtype=np.int32) % 3)
        labels = ("class 0", "class 1", "class 2")
        return ImageDataset(contents=self, rows=np.arange(40), table=table, labels=labels, splits=np.full(40, -1, np.int8))


def decode(sample: RawSample) -> Pixels:
    """The image's number in a column of 8 bytes."""
    if isinstance(sample.content, np.ndarray):
        return sample.content
    if sample.content == b"broken":
        raise DataError(f"{sample.name} is truncated")
    return np.frombuffer(sample.content, np.uint8).reshape(8, 1, 1)


def stamp(sample: RawSample, rng: np.random.Generator) -> Pixels:
    """The image's number in the first channel, its randomness in the second."""
    number = decode(sample).reshape(2, 4, 1)
    return np.concatenate([number, rng.integers(0, 256, (2, 4, 1), np.uint8)], axis=2)


def plain(sample: RawSample, rng: np.random.Generator) -> Pixels:
    """A view without randomness."""
    number = decode(sample).reshape(2, 4, 1)
    return np.concatenate([number, number], axis=2)


def as_it_is(sample: RawSample, rng: np.random.Generator) -> Pixels:
    """The pixels of a source that has pixels."""
    assert isinstance(sample.content, np.ndarray)
    return sample.content


@dataclass(frozen=True)
class OneByOne:
    """A generated set that can only be asked for one image at a time."""

    whole: SyntheticDataset

    @property
    def labels(self) -> tuple[str, ...]:
        return self.whole.labels

    @property
    def multi_label(self) -> bool:
        return self.whole.multi_label

    def __len__(self) -> int:
        return len(self.whole)

    def read(self, index: int) -> RawSample:
        return self.whole.read(index)

    def label(self, index: int) -> int:
        return self.whole.label(index)

    def fingerprint(self) -> str:
        return self.whole.fingerprint()


def numbers(images_BHWC: Pixels) -> list[int]:
    """The images' numbers, read back from the stamps."""
    return [int.from_bytes(image[..., 0].tobytes(), "little") for image in images_BHWC]


@dataclass(frozen=True)
class HangAt:
    """A view that never comes back from one image."""

    index: int

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Pixels:
        if sample.name == f"stamp-{self.index}.png":
            threading.Event().wait()
        return stamp(sample, rng)


@dataclass(frozen=True)
class DieAt:
    """A view whose decoder crashes the process at one image."""

    index: int
    signal: signal.Signals

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Pixels:
        if sample.name == f"stamp-{self.index}.png":
            os.kill(os.getpid(), self.signal)
        return stamp(sample, rng)


@dataclass(frozen=True)
class MistakeAt:
    """A view with a bug that one image shows."""

    index: int
    error: Exception = field(default_factory=lambda: ZeroDivisionError("division by zero in the view"))

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Pixels:
        if sample.name == f"stamp-{self.index}.png":
            raise self.error
        return stamp(sample, rng)


@dataclass(frozen=True)
class Slow:
    """A view that takes some seconds an image."""

    seconds: float

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Pixels:
        time.sleep(self.seconds)
        return stamp(sample, rng)


@dataclass(frozen=True)
class Marking:
    """A view that leaves a mark in a file for every image, whichever process it is in."""

    path: str

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Pixels:
        with Path(self.path).open("ab", buffering=0) as file:
            file.write(b".")
        return stamp(sample, rng)


def printing(sample: RawSample, rng: np.random.Generator) -> Pixels:
    """A view that somebody is debugging."""
    print("said by a view", flush=True)
    return stamp(sample, rng)


def thread_settings(sample: RawSample, rng: np.random.Generator) -> Pixels:
    """The thread settings of the process that transforms the image, and whether torch is loaded in it."""
    import sys

    seen = np.zeros(SHAPE, np.uint8)
    seen[0, 0, 0] = int(os.environ["OMP_NUM_THREADS"])
    seen[0, 0, 1] = "torch" in sys.modules
    return seen


class Counting:
    """A decoder that counts what it decodes, in this process."""

    def __init__(self) -> None:
        self.decoded: Counter[str] = Counter()

    def __call__(self, sample: RawSample) -> Pixels:
        self.decoded[sample.name] += 1
        return decode(sample)
