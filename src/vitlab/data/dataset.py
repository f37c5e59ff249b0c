"""Where images come from: what a source is, and the one spelling by which every kind of it is opened."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError
from vitlab.io.digests import Content, Digests
from vitlab.io.names import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One image as its source gives it.

    `name` says where it came from, for messages; `content` is an encoded file, or decoded pixels (H, W, C);
    `label` is one class, several where the source is multi-label, or None where unknown.
    """

    name: str
    content: bytes | NDArray[np.uint8]
    label: int | tuple[int, ...] | None


class Dataset(Protocol):
    """Labelled images by number. Picklable, and cheap to open again in another process."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes; a label is an index in it. Empty where no image has a label."""
        ...

    @property
    def multi_label(self) -> bool:
        """Whether a label is a tuple of classes, rather than one."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...

    def label(self, index: int) -> int | tuple[int, ...] | None:
        """The label of an image, without reading the image."""
        ...

    def fingerprint(self) -> str:
        """Changes when the images, their order or their labels change."""
        ...


# Labels of many images in two arrays, the names of classes, and whether data and model mean the same by them.

UNKNOWN = -1

Label = int | tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTable:
    """The label of each image: `codes` alone (one class each, -1 for unknown), or several codes an image.

    `starts`, where labels are several, has one number more than there are images: the codes of image i are
    `codes[starts[i]:starts[i + 1]]`.
    """

    codes: NDArray[np.int32]
    starts: NDArray[np.int64] | None = None

    @classmethod
    def unknown(cls, count: int) -> LabelTable:
        """No image has a label."""
        return cls(codes=np.full(count, UNKNOWN, np.int32))

    @classmethod
    def several(cls, labels: Iterable[Sequence[int]]) -> LabelTable:
        """Each image has any number of classes, none included; a class is counted once and in order."""
        rows = [sorted(set(row)) for row in labels]
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(codes=np.array([code for row in rows for code in row], np.int32), starts=starts)

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several classes."""
        return self.starts is not None

    def __len__(self) -> int:
        return len(self.codes) if self.starts is None else len(self.starts) - 1

    def __getitem__(self, index: int) -> Label:
        if self.starts is not None:
            return tuple(self.codes[self.starts[index] : self.starts[index + 1]].tolist())
        code = int(self.codes[index])
        return None if code == UNKNOWN else code

    def take(self, rows: NDArray[np.int64]) -> LabelTable:
        """The labels of these rows, in this order."""
        if self.starts is None:
            return LabelTable(codes=self.codes[rows])
        return LabelTable.several(self.codes[self.starts[row] : self.starts[row + 1]].tolist() for row in rows)

    def strata(self) -> NDArray[np.int32]:
        """What a split keeps in proportion: the class, or one stratum for all where labels are several or unknown."""
        return np.zeros(len(self), np.int32) if self.starts is not None else self.codes


def unusable_name(name: str) -> str | None:
    """Why this cannot be the name of a class, or None where it can: labels are printed, and saved as text."""
    if not name.strip():
        return "a class needs a name"
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name):
        return "the name of a class may hold no line end, control character or undecodable byte"
    return None


def look_alikes(names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of different names that are the same text in another spelling of Unicode, as two file systems write them."""
    seen: dict[str, str] = {}
    pairs = []
    for name in names:
        first = seen.setdefault(unicodedata.normalize("NFC", name), name)
        if first != name:
            pairs.append((first, name))
    return pairs


def align_labels(dataset: Sequence[str], model: Sequence[str], *, reorder: bool = False) -> tuple[int, ...]:
    """The model's index of each class of the data; refuses, with what differs, where the two do not mean the same.

    Without `reorder` both must hold the same names in the same order, and the answer is 0, 1, 2, ... With it the data may hold
    the model's classes in another order, or some of them only.
    """
    if tuple(dataset) == tuple(model):
        return tuple(range(len(model)))  # also where two classes share a name, as two of ImageNet's do
    place = {name: index for index, name in enumerate(model)}
    unknown = [name for name in dataset if name not in place]
    if unknown:
        missing = [name for name in model if name not in set(dataset)]
        raise DataError(
            f"the data has {len(dataset)} classes, the model {len(model)}; the model does not know {_listed(unknown)}"
            + (f", the data does not have {_listed(missing)}" if missing else ""),
            hint="evaluate on data with the model's classes, or fine-tune the model on these",
        )
    if not reorder:
        missing = [name for name in model if name not in set(dataset)]
        if missing:
            raise DataError(
                f"the data has {len(dataset)} of the model's {len(model)} classes; it does not have {_listed(missing)}",
                hint="say that a part of the classes, in another order, is meant (reorder)",
            )
        if len(dataset) != len(model):
            raise DataError(f"the data has {len(dataset)} classes and the model {len(model)}: {_listed(_twice(dataset))} twice")
        moved = [f"{printable(a)} where the model has {printable(b)}" for a, b in zip(dataset, model, strict=True) if a != b]
        raise DataError(
            f"data and model order their classes differently: {'; '.join(moved[:5])}"
            + (f"; and {len(moved) - 5:,} more" if len(moved) > 5 else ""),
            hint="say that another order is meant (reorder): labels are then matched by name",
        )
    if twice := _twice(model) or _twice(dataset):
        raise DataError(f"labels cannot be matched by name: {_listed(twice)} is the name of more than one class")
    return tuple(place[name] for name in dataset)


def _twice(names: Sequence[str]) -> list[str]:
    counts = Counter(names)
    return [name for name in counts if counts[name] > 1]


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(printable(name) for name in names[:5])
    return text + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


# Soft labels: several classes of an image, each with its share.
#
# Axes: N images, K classes kept of each, B rows of a batch, C classes.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftLabels:
    """The likeliest classes of each image and their shares, 0 to 1, which add up to 1. A share of 0 fills a row up."""

    codes_NK: NDArray[np.int32]
    shares_NK: NDArray[np.float32]

    def __post_init__(self) -> None:
        assert self.codes_NK.shape == self.shares_NK.shape

    def __len__(self) -> int:
        return len(self.codes_NK)

    def take(self, rows: NDArray[np.int64]) -> SoftLabels:
        """Those of these images, in this order."""
        return SoftLabels(codes_NK=self.codes_NK[rows], shares_NK=self.shares_NK[rows])

    def targets(self, rows: NDArray[np.int64], classes: int) -> NDArray[np.float32]:
        """Those of these images as probabilities of all classes, (B, C)."""
        targets_BC = np.zeros((len(rows), classes), np.float32)
        np.add.at(targets_BC, (np.arange(len(rows))[:, None], self.codes_NK[rows]), self.shares_NK[rows])
        return targets_BC


# A source that is a list: contents that can be read one by one, with their labels and the parts they belong to.

PARTS = ("train", "val", "test")
UNDECLARED = -1


class Contents(Protocol):
    """Anything that holds images by number: a folder, an archive, an array. Picklable; opens its files when first read."""

    def name(self, row: int) -> str:
        """Where an image comes from, for messages."""
        ...

    def read(self, row: int) -> Content:
        """The encoded file, or pixels (H, W, C)."""
        ...

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each row's content, (len(rows), 16)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListedDataset:
    """Images in a fixed order.

    `rows` are the images' numbers in `contents`; `table` their labels; `parts` the index in PARTS of the part the
    data itself declares for each, or -1. `notes` says, a sentence each, what was left out or decided on the way.
    `soft`, where images have soft labels, is what training learns; `table` then holds the likeliest class of each.
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
        """Whether an image may have several classes."""
        return self.table.multi_label

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        row = int(self.rows[_inside(index, len(self))])
        return Sample(name=self.contents.name(row), content=self.contents.read(row), label=self.table[index])

    def label(self, index: int) -> Label:
        """The class, the classes, or None where unknown, without reading the image."""
        return self.table[_inside(index, len(self))]

    def name(self, index: int) -> str:
        """Where the image comes from, without reading it."""
        return self.contents.name(int(self.rows[_inside(index, len(self))]))

    def digests(self) -> Digests:
        """The hash of each image's content, (images, 16): equal where images are the same bytes."""
        return self.contents.digests(self.rows)

    def fingerprint(self) -> str:
        """32 hexadecimal digits of the class names, the labels and the content of every image, in order.

        The same images give the same fingerprint from a folder, a zip or shards, wherever they lie.
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

    def take(self, indices: NDArray[np.int64], *, notes: Sequence[str] = ()) -> ListedDataset:
        """The images with these indices, in this order."""
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
        raise IndexError(f"image {index} of {count}")
    return index


def listed_shortly(names: Sequence[str], *, most: int = 5) -> str:
    """`a, b and 7 more`"""
    text = ", ".join(printable(name) for name in names[:most])
    return text + (f" and {len(names) - most:,} more" if len(names) > most else "")


# Everything that is wrong with a pile of images, said at once and at the start.

_SHOWN = 10


class Offenders:
    """Collects faults while a source is read, so that a user repairs them in one go.

    `where` names the data at fault; a fault is a place in it and a reason.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._faults: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self._faults)

    def add(self, place: str, reason: str) -> None:
        """Remember that something at `place` cannot be used, and why."""
        self._faults.append((place, reason))

    def refuse(self, *, hint: str | None = None) -> None:
        """Raise a DataError that counts all faults and lists the first ten; does nothing where there are none."""
        if not self._faults:
            return
        listed = "; ".join(f"{printable(place)}: {reason}" for place, reason in self._faults[:_SHOWN])
        more = f"; and {len(self._faults) - _SHOWN:,} more" if len(self._faults) > _SHOWN else ""
        count = "1 fault" if len(self._faults) == 1 else f"{len(self._faults):,} faults"
        raise DataError(f"{printable(self._where)}: {count}: {listed}{more}", hint=hint)
