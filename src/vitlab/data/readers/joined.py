"""Several datasets joined into one, each whole or in part, with its own labels or with others: `joined:FILE.json`.

    {"joined": 1, "classes": ["cat", "dog"],
     "sources": [{"dataset": "pets.zip", "split": "train", "rule": {...}, "as_split": "train", "times": 3, "names": "9f..."},
                 {"dataset": "images:web/", "split": "all", ..., "labels": "web.npz"}]}

`labels` is an .npz beside the file. It holds `rows`, the images that are taken, and for new labels `codes` and `shares`, both
(rows, K): the classes of each image and their probabilities. `names` is a hash of the names of all images: a dataset whose images
have changed since is refused, because the rows would mean other images.

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
from vitlab.data.dataset import SPLITS, Contents, ImageDataset, LabelTable, SoftLabels, align_labels
from vitlab.data.readers.array_files import check_codes
from vitlab.data.readers.recognise import open_data
from vitlab.data.split import take_split
from vitlab.errors import ConfigError, DataError
from vitlab.io.arrays import open_npz
from vitlab.io.atomic import write_bytes, write_text
from vitlab.io.digests import DIGEST_BYTES, Content, Digests
from vitlab.io.display import printable
from vitlab.io.files import LIST_FILE, read_bytes

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedEntry:
    """One dataset of a join: the `split` of it that is opened, the split its images join, and how often each image occurs."""

    dataset: str
    split: Split = "all"
    rule: SplitRule = field(default_factory=SplitRule)
    as_split: str = "train"
    times: int = 1
    names: str = ""
    labels: str | None = None

    def __post_init__(self) -> None:
        if self.as_split not in SPLITS:
            raise ConfigError(f"as_split={self.as_split!r} must be train, val or test")
        if self.times < 1:
            raise ConfigError(f"times={self.times} must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Taken:
    """The images that are taken from a dataset, and their labels; None keeps its own labels."""

    rows: NDArray[np.int64]
    labels: SoftLabels | None = None


def open_member(entry: JoinedEntry) -> ImageDataset:
    """Open the dataset of an entry; DataError if it cannot be joined with others."""
    if entry.dataset.startswith(("joined:", "synthetic")):
        raise DataError(f"{printable(entry.dataset)} cannot be joined with others: it is synthetic, or joined already")
    opened = take_split(open_data(entry.dataset), entry.split, entry.rule, where=printable(entry.dataset))
    if opened.multi_label:
        raise DataError(f"{printable(entry.dataset)} cannot be joined with others: its images have several classes")
    return opened


def names_digest(dataset: ImageDataset) -> str:
    """A hash of the names of all images, in order."""
    made = blake2b(digest_size=16)
    for index in range(len(dataset)):
        made.update(dataset.name(index).encode("utf-8", "surrogatepass") + b"\n")
    return made.hexdigest()


def write_joined(path: Path, classes: Sequence[str], members: Sequence[tuple[JoinedEntry, Taken | None]]) -> None:
    """Write such a file, after the arrays that it names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, (entry, taken) in enumerate(members):
        named = entry
        if taken is not None:
            named = replace(entry, labels=f"{path.stem}-{number}.npz")
            arrays: dict[str, NDArray[np.generic]] = {"rows": taken.rows}
            if taken.labels is not None:
                arrays |= {"codes": taken.labels.codes_NK, "shares": taken.labels.probabilities_NK}
            file = io.BytesIO()
            np.savez(file, allow_pickle=False, **arrays)
            write_bytes(path.with_name(str(named.labels)), file.getvalue())
        entries.append(to_json(named))
    write_text(path, json.dumps({"joined": _VERSION, "classes": list(classes), "sources": entries}, indent=2) + "\n")


def open_joined(path: Path) -> ImageDataset:
    """The images of all datasets, one dataset after the other."""
    file = _read(path)
    classes = tuple(str(name) for name in file["classes"])
    members = [_member(path, from_json(JoinedEntry, entry, where="sources"), classes) for entry in file["sources"]]
    contents = JoinedContents([dataset.contents for dataset in members], [dataset.rows for dataset in members])
    widest = max((dataset.soft.codes_NK.shape[1] for dataset in members if dataset.soft is not None), default=0)
    codes = np.concatenate([dataset.table.codes for dataset in members])
    soft = [_padded(dataset, widest) for dataset in members]
    return ImageDataset(
        contents=contents,
        rows=np.arange(len(codes), dtype=np.int64),
        table=LabelTable(codes=codes),
        labels=classes,
        splits=np.concatenate([dataset.splits for dataset in members]),
        soft=SoftLabels(
            codes_NK=np.concatenate([labels.codes_NK for labels in soft]),
            probabilities_NK=np.concatenate([labels.probabilities_NK for labels in soft]),
        )
        if widest > 1
        else None,
    )


class JoinedContents:
    """Rows of several contents, numbered consecutively."""

    def __init__(self, contents: Sequence[Contents], rows: Sequence[NDArray[np.int64]]) -> None:
        self._contents, self._rows = list(contents), list(rows)
        self._starts = [0, *accumulate(map(len, rows))]

    def name(self, row: int) -> str:
        """The name in its own dataset."""
        number = bisect_right(self._starts, row) - 1
        return self._contents[number].name(int(self._rows[number][row - self._starts[number]]))

    def read(self, row: int) -> Content:
        """The image."""
        number = bisect_right(self._starts, row) - 1
        return self._contents[number].read(int(self._rows[number][row - self._starts[number]]))

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each image, from its own dataset."""
        found = np.empty((len(rows), DIGEST_BYTES), np.uint8)
        number_of = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(number_of).tolist():
            places = np.flatnonzero(number_of == number)
            found[places] = self._contents[number].digests(self._rows[number][rows[places] - self._starts[number]])
        return found


def _read(path: Path) -> dict[str, Any]:
    try:
        file = json.loads(read_bytes(path, most=LIST_FILE))
    except (DataError, ValueError, RecursionError) as error:
        raise DataError(f"{printable(str(path))} is not a readable JSON file") from error
    lists = isinstance(file, dict) and all(isinstance(file.get(key), list) and file[key] for key in ("classes", "sources"))
    if not lists or file.get("joined") != _VERSION:
        raise DataError(f"{printable(str(path))} does not join datasets", hint="`vitlab study noisy-student` writes such files")
    return dict(file)


def _member(path: Path, entry: JoinedEntry, classes: tuple[str, ...]) -> ImageDataset:
    dataset = open_member(entry)
    if names_digest(dataset) != entry.names:
        raise DataError(
            f"{printable(entry.dataset)} has other images than when {printable(str(path))} was written", hint="start again"
        )
    taken = None if entry.labels is None else _taken(path.with_name(entry.labels), len(dataset), len(classes))
    if taken is not None:
        dataset = dataset.take(taken.rows)
    if taken is None or taken.labels is None:
        index_C = np.array(align_labels(dataset.labels, classes, reorder=True), np.int32)
        if np.any(dataset.table.codes < 0):
            raise DataError(f"{printable(entry.dataset)} has images without a label", hint="give labels for them")
        dataset = replace(dataset, table=LabelTable(codes=index_C[dataset.table.codes]), soft=None)
    else:
        best_N = taken.labels.probabilities_NK.argmax(1)
        dataset = replace(dataset, table=LabelTable(codes=taken.labels.codes_NK[np.arange(len(best_N)), best_N]), soft=taken.labels)
    dataset = replace(dataset, labels=classes, splits=np.full(len(dataset), SPLITS.index(entry.as_split), np.int8))
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
        raise DataError(f"{printable(str(path))} must hold codes and shares, both (images, classes kept)")
    check_codes(codes.reshape(-1), codes.size, classes, str(path))
    if not np.all(np.isfinite(shares)) or np.any(shares < 0) or np.any(np.abs(shares.sum(1) - 1) > 1e-3):
        raise DataError(f"{printable(str(path))}: shares must be 0 or more and add up to 1 for each image")
    return Taken(rows=rows, labels=SoftLabels(codes_NK=codes.astype(np.int32), probabilities_NK=shares.astype(np.float32)))


def _padded(dataset: ImageDataset, width: int) -> SoftLabels:
    """A dataset's labels as soft labels of `width` classes per image; a hard label has probability 1."""
    count, width = len(dataset), max(width, 1)
    codes_NK, probabilities_NK = np.zeros((count, width), np.int32), np.zeros((count, width), np.float32)
    if dataset.soft is None:
        codes_NK[:, 0], probabilities_NK[:, 0] = dataset.table.codes, 1
    else:
        kept = dataset.soft.codes_NK.shape[1]
        codes_NK[:, :kept], probabilities_NK[:, :kept] = dataset.soft.codes_NK, dataset.soft.probabilities_NK
    return SoftLabels(codes_NK=codes_NK, probabilities_NK=probabilities_NK)
