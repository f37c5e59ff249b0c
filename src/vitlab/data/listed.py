"""A source that is a list: contents that can be read one by one, with their labels and the parts they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitlab.data.files.digests import Content, Digests
from vitlab.data.files.names import shown
from vitlab.data.labels import Label, LabelTable
from vitlab.data.soft import SoftLabels
from vitlab.data.source import Example

PARTS = ("train", "val", "test")
UNDECLARED = -1


class Contents(Protocol):
    """Anything that holds pictures by number: a folder, an archive, an array. Picklable; opens its files when first read."""

    def name(self, row: int) -> str:
        """Where a picture comes from, for messages."""
        ...

    def read(self, row: int) -> Content:
        """The encoded file, or pixels (H, W, C)."""
        ...

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each row's content, (len(rows), 16)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListedSource:
    """Pictures in a fixed order.

    `rows` are the pictures' numbers in `contents`; `table` their labels; `parts` the index in PARTS of the part the
    data itself declares for each, or -1. `notes` says, a sentence each, what was left out or decided on the way.
    `soft`, where pictures have soft labels, is what training learns; `table` then holds the likeliest class of each.
    """

    contents: Contents
    rows: NDArray[np.int64]
    table: LabelTable
    labels: tuple[str, ...]
    parts: NDArray[np.int8]
    notes: tuple[str, ...] = ()
    soft: SoftLabels | None = None

    def __post_init__(self) -> None:
        assert len(self.rows) == len(self.table) == len(self.parts)
        assert self.soft is None or len(self.soft) == len(self.rows)

    @property
    def multi_label(self) -> bool:
        """Whether a picture may have several classes."""
        return self.table.multi_label

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Example:
        row = int(self.rows[_inside(index, len(self))])
        return Example(name=self.contents.name(row), content=self.contents.read(row), label=self.table[index])

    def label(self, index: int) -> Label:
        """The class, the classes, or None where unknown, without reading the picture."""
        return self.table[_inside(index, len(self))]

    def name(self, index: int) -> str:
        """Where the picture comes from, without reading it."""
        return self.contents.name(int(self.rows[_inside(index, len(self))]))

    def digests(self) -> Digests:
        """The hash of each picture's content, (pictures, 16): equal where pictures are the same bytes."""
        return self.contents.digests(self.rows)

    def fingerprint(self) -> str:
        """32 hexadecimal digits of the class names, the labels and the content of every picture, in order.

        The same pictures give the same fingerprint from a folder, a zip or shards, wherever they lie.
        """
        made = blake2b(digest_size=16)
        for label in self.labels:
            made.update(label.encode("utf-8", "surrogatepass") + b"\n")
        for array in (self.table.codes.astype("<i4"), self.table.starts, self.digests()):
            made.update(b"\0" if array is None else np.ascontiguousarray(array).data)
        if self.soft is not None:
            for part in (self.soft.codes_NK.astype("<i4"), self.soft.shares_NK.astype("<f4")):
                made.update(np.ascontiguousarray(part).data)
        return made.hexdigest()

    def take(self, indices: NDArray[np.int64], *, notes: Sequence[str] = ()) -> ListedSource:
        """The pictures with these indices, in this order."""
        return replace(
            self,
            rows=self.rows[indices],
            table=self.table.take(indices),
            parts=self.parts[indices],
            notes=(*self.notes, *notes),
            soft=None if self.soft is None else self.soft.take(indices),
        )


def _inside(index: int, count: int) -> int:
    if not 0 <= index < count:
        raise IndexError(f"picture {index} of {count}")
    return index


def listed_shortly(names: Sequence[str], *, most: int = 5) -> str:
    """`a, b and 7 more`"""
    text = ", ".join(shown(name) for name in names[:most])
    return text + (f" and {len(names) - most:,} more" if len(names) > most else "")
