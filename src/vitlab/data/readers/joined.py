"""Several sources as one, each in whole or in part, with their own labels or with others: `joined:FILE.json`.

    {"joined": 1, "classes": ["cat", "dog"],
     "sources": [{"source": "pets.zip", "split": "train", "rule": {...}, "part": "train", "times": 3, "names": "9f..."},
                 {"source": "images:web/", "split": "all", ..., "labels": "web.npz"}]}

`labels` is an .npz beside the file: `rows`, the images that are taken, and where they are not to have their own labels `codes`
and `shares`, (rows, K), the classes of each and how much of it they are. `names` is the hash of the source's images' names: a
source that has other images since is refused, as the rows would mean others.

Axes: N images, K classes kept of each.
"""

from __future__ import annotations

import io
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import Split, SplitRule
from vitlab.config.serialize import from_json, to_json
from vitlab.data.dataset import PARTS, Contents, LabelTable, ListedDataset, SoftLabels, align_labels
from vitlab.data.opening import open_dataset
from vitlab.data.readers.blocks import check_codes
from vitlab.errors import ConfigError, DataError
from vitlab.io.atomic import write_bytes, write_text
from vitlab.io.digests import DIGEST_BYTES, Content, Digests
from vitlab.io.names import printable
from vitlab.io.npz import open_npz

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedEntry:
    """One of the sources: what of it is opened, the part its images are then of, and how often each is there."""

    dataset: str
    split: Split = "all"
    rule: SplitRule = field(default_factory=SplitRule)
    part: str = "train"
    times: int = 1
    names: str = ""
    labels: str | None = None

    def __post_init__(self) -> None:
        if self.part not in PARTS or self.times < 1:
            raise ConfigError(f"a joined source is of train, val or test, at least once; not of {self.part!r}, {self.times} times")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Taken:
    """Which images of a source are taken, and their labels: None for its own."""

    rows: NDArray[np.int64]
    labels: SoftLabels | None = None


def open_member(entry: JoinedEntry) -> ListedDataset:
    """A source as its entry spells it; DataError where it is none that can be listed."""
    if entry.dataset.startswith("joined:"):
        raise DataError(f"{printable(entry.dataset)} is joined already: give what it was joined of")
    opened = open_dataset(entry.dataset, split=entry.split, rule=entry.rule)
    if not isinstance(opened, ListedDataset) or opened.multi_label:
        raise DataError(f"{printable(entry.dataset)} cannot be joined with others: its images are drawn, or have several classes")
    return opened


def names_digest(dataset: ListedDataset) -> str:
    """The hash of the names of all images, in order."""
    made = blake2b(digest_size=16)
    for index in range(len(dataset)):
        made.update(dataset.name(index).encode("utf-8", "surrogatepass") + b"\n")
    return made.hexdigest()


def write_joined(path: Path, classes: Sequence[str], members: Sequence[tuple[JoinedEntry, Taken | None]]) -> None:
    """Write such a file, and the arrays it needs beside it; what it names is there before it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, (entry, taken) in enumerate(members):
        named = entry
        if taken is not None:
            named = replace(entry, labels=f"{path.stem}-{number}.npz")
            arrays: dict[str, NDArray[np.generic]] = {"rows": taken.rows}
            if taken.labels is not None:
                arrays |= {"codes": taken.labels.codes_NK, "shares": taken.labels.shares_NK}
            file = io.BytesIO()
            np.savez(file, allow_pickle=False, **arrays)
            write_bytes(path.with_name(str(named.labels)), file.getvalue())
        entries.append(to_json(named))
    write_text(path, json.dumps({"joined": _VERSION, "classes": list(classes), "sources": entries}, indent=2) + "\n")


def open_joined(path: Path) -> ListedDataset:
    """The images of all sources, one source after the other."""
    told = _read(path)
    classes = tuple(str(name) for name in told["classes"])
    found = [_member(path, from_json(JoinedEntry, entry, where="sources"), classes) for entry in told["sources"]]
    contents = JoinedContents([dataset.contents for dataset in found], [dataset.rows for dataset in found])
    widest = max((dataset.soft.codes_NK.shape[1] for dataset in found if dataset.soft is not None), default=0)
    codes = np.concatenate([dataset.table.codes for dataset in found])
    soft = [_widened(dataset, widest) for dataset in found]
    return ListedDataset(
        contents=contents,
        rows=np.arange(len(codes), dtype=np.int64),
        table=LabelTable(codes=codes),
        labels=classes,
        parts=np.concatenate([dataset.parts for dataset in found]),
        soft=SoftLabels(
            codes_NK=np.concatenate([labels.codes_NK for labels in soft]),
            shares_NK=np.concatenate([labels.shares_NK for labels in soft]),
        )
        if widest > 1
        else None,
    )


class JoinedContents:
    """The rows of several contents, numbered through."""

    def __init__(self, contents: Sequence[Contents], rows: Sequence[NDArray[np.int64]]) -> None:
        self._contents, self._rows = list(contents), list(rows)
        self._starts = [0, *accumulate(map(len, rows))]

    def name(self, row: int) -> str:
        """As its own source names it."""
        number = bisect_right(self._starts, row) - 1
        return self._contents[number].name(int(self._rows[number][row - self._starts[number]]))

    def read(self, row: int) -> Content:
        """The image."""
        number = bisect_right(self._starts, row) - 1
        return self._contents[number].read(int(self._rows[number][row - self._starts[number]]))

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each, from its own source."""
        found = np.empty((len(rows), DIGEST_BYTES), np.uint8)
        number_of = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(number_of).tolist():
            places = np.flatnonzero(number_of == number)
            found[places] = self._contents[number].digests(self._rows[number][rows[places] - self._starts[number]])
        return found


def _read(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{printable(str(path))} is no JSON file that can be read") from error
    lists = isinstance(told, dict) and all(isinstance(told.get(key), list) and told[key] for key in ("classes", "sources"))
    if not lists or told.get("joined") != _VERSION:
        raise DataError(f"{printable(str(path))} joins no sources", hint="it is written by `vitlab study noisy-student`")
    return dict(told)


def _member(path: Path, entry: JoinedEntry, classes: tuple[str, ...]) -> ListedDataset:
    dataset = open_member(entry)
    if names_digest(dataset) != entry.names:
        raise DataError(
            f"{printable(entry.dataset)} has other images than when {printable(str(path))} was written", hint="begin anew"
        )
    taken = None if entry.labels is None else _taken(path.with_name(entry.labels), len(dataset), len(classes))
    if taken is not None:
        dataset = dataset.take(taken.rows)
    if taken is None or taken.labels is None:
        place_C = np.array(align_labels(dataset.labels, classes, reorder=True), np.int32)
        if np.any(dataset.table.codes < 0):
            raise DataError(
                f"{printable(entry.dataset)} has images without a label", hint="a list of labels must be given for them"
            )
        dataset = replace(dataset, table=LabelTable(codes=place_C[dataset.table.codes]), soft=None)
    else:
        best_N = taken.labels.shares_NK.argmax(1)
        dataset = replace(dataset, table=LabelTable(codes=taken.labels.codes_NK[np.arange(len(best_N)), best_N]), soft=taken.labels)
    dataset = replace(dataset, labels=classes, parts=np.full(len(dataset), PARTS.index(entry.part), np.int8))
    return dataset.take(np.tile(np.arange(len(dataset)), entry.times))


def _taken(path: Path, images: int, classes: int) -> Taken:
    arrays = {name: np.asarray(array.load()) for name, array in open_npz(path).items()}
    rows = arrays.get("rows")
    if rows is None or rows.dtype != np.int64 or rows.ndim != 1 or not len(rows) or rows.min() < 0 or rows.max() >= images:
        raise DataError(f"{printable(str(path))} names images that are not among the {images:,}")
    if "codes" not in arrays:
        return Taken(rows=rows)
    codes, shares = arrays["codes"], arrays.get("shares")
    if shares is None or codes.shape != shares.shape or codes.ndim != 2 or len(codes) != len(rows) or not codes.shape[1]:
        raise DataError(f"{printable(str(path))} must hold codes and shares, (images, classes kept)")
    check_codes(codes.reshape(-1), codes.size, classes, str(path))
    if not np.all(np.isfinite(shares)) or np.any(shares < 0) or np.any(np.abs(shares.sum(1) - 1) > 1e-3):
        raise DataError(f"{printable(str(path))}: shares must be 0 or more and add up to 1 for each image")
    return Taken(rows=rows, labels=SoftLabels(codes_NK=codes.astype(np.int32), shares_NK=shares.astype(np.float32)))


def _widened(dataset: ListedDataset, width: int) -> SoftLabels:
    """A source's labels as soft ones of that many classes each: its own one is all of an image."""
    count, width = len(dataset), max(width, 1)
    codes_NK, shares_NK = np.zeros((count, width), np.int32), np.zeros((count, width), np.float32)
    if dataset.soft is None:
        codes_NK[:, 0], shares_NK[:, 0] = dataset.table.codes, 1
    else:
        kept = dataset.soft.codes_NK.shape[1]
        codes_NK[:, :kept], shares_NK[:, :kept] = dataset.soft.codes_NK, dataset.soft.shares_NK
    return SoftLabels(codes_NK=codes_NK, shares_NK=shares_NK)
