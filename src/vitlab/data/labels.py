"""Labels of many pictures in two arrays, the names of classes, and whether data and model mean the same by them."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.files.names import shown
from vitlab.errors import DataError

UNKNOWN = -1

Label = int | tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTable:
    """The label of each picture: `codes` alone (one class each, -1 for unknown), or several codes a picture.

    `starts`, where labels are several, has one number more than there are pictures: the codes of picture i are
    `codes[starts[i]:starts[i + 1]]`.
    """

    codes: NDArray[np.int32]
    starts: NDArray[np.int64] | None = None

    @classmethod
    def unknown(cls, count: int) -> LabelTable:
        """No picture has a label."""
        return cls(codes=np.full(count, UNKNOWN, np.int32))

    @classmethod
    def several(cls, labels: Iterable[Sequence[int]]) -> LabelTable:
        """Each picture has any number of classes, none included; a class is counted once and in order."""
        rows = [sorted(set(row)) for row in labels]
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(codes=np.array([code for row in rows for code in row], np.int32), starts=starts)

    @property
    def multi_label(self) -> bool:
        """Whether a picture may have several classes."""
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


def align_labels(source: Sequence[str], model: Sequence[str], *, reorder: bool = False) -> tuple[int, ...]:
    """The model's index of each class of the data; refuses, with what differs, where the two do not mean the same.

    Without `reorder` both must hold the same names in the same order, and the answer is 0, 1, 2, ... With it the data may hold
    the model's classes in another order, or some of them only.
    """
    if tuple(source) == tuple(model):
        return tuple(range(len(model)))  # also where two classes share a name, as two of ImageNet's do
    place = {name: index for index, name in enumerate(model)}
    unknown = [name for name in source if name not in place]
    if unknown:
        missing = [name for name in model if name not in set(source)]
        raise DataError(
            f"the data has {len(source)} classes, the model {len(model)}; the model does not know {_listed(unknown)}"
            + (f", the data does not have {_listed(missing)}" if missing else ""),
            hint="evaluate on data with the model's classes, or fine-tune the model on these",
        )
    if not reorder:
        missing = [name for name in model if name not in set(source)]
        if missing:
            raise DataError(
                f"the data has {len(source)} of the model's {len(model)} classes; it does not have {_listed(missing)}",
                hint="say that a part of the classes, in another order, is meant (reorder)",
            )
        if len(source) != len(model):
            raise DataError(f"the data has {len(source)} classes and the model {len(model)}: {_listed(_twice(source))} twice")
        moved = [f"{shown(a)} where the model has {shown(b)}" for a, b in zip(source, model, strict=True) if a != b]
        raise DataError(
            f"data and model order their classes differently: {'; '.join(moved[:5])}"
            + (f"; and {len(moved) - 5:,} more" if len(moved) > 5 else ""),
            hint="say that another order is meant (reorder): labels are then matched by name",
        )
    if twice := _twice(model) or _twice(source):
        raise DataError(f"labels cannot be matched by name: {_listed(twice)} is the name of more than one class")
    return tuple(place[name] for name in source)


def _twice(names: Sequence[str]) -> list[str]:
    counts = Counter(names)
    return [name for name in counts if counts[name] > 1]


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(shown(name) for name in names[:5])
    return text + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
