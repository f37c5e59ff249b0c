"""Kaggle's Diabetic Retinopathy Detection as it is published: trainLabels.csv, retinopathy_solution.csv, and the pictures.

The photographs are seen as VTAB sees them, made comparable (btgraham-300, `vitlab.data.pixels.fundus`) as they are read.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode import decode
from vitlab.data.files.blocks import find_file
from vitlab.data.files.digests import DIGEST_BYTES, Content, Digests
from vitlab.data.files.names import shown
from vitlab.data.kinds.files import FileRow, from_files
from vitlab.data.listed import Contents, ListedSource
from vitlab.data.pixels.fundus import encoded_fundus
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError

STAGES = ("none", "mild", "moderate", "severe", "proliferative")

_PARTS = {"Public": VAL, "Private": TEST}  # as TensorFlow Datasets, and so VTAB, divides what was Kaggle's test set
_SEEN_AS = b"btgraham-300"


class EyeContents:
    """Photographs of the eye's background, made comparable whenever one is read."""

    def __init__(self, photographs: Contents) -> None:
        self._photographs = photographs

    def name(self, row: int) -> str:
        """The photograph's path."""
        return self._photographs.name(row)

    def read(self, row: int) -> Content:
        """The picture of its disc, as a JPEG file."""
        content, name = self._photographs.read(row), self.name(row)
        return encoded_fundus(decode(content, name=name) if isinstance(content, bytes) else content)

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """Of the photograph and of what is done with it, which need not be done to know them."""
        seen = (blake2b(_SEEN_AS + row.tobytes(), digest_size=DIGEST_BYTES).digest() for row in self._photographs.digests(rows))
        return np.frombuffer(b"".join(seen), np.uint8).reshape(len(rows), DIGEST_BYTES)


def has_retinopathy(folder: Path) -> bool:
    """Whether the folder holds Kaggle's lists."""
    return find_file(folder, ["trainLabels.csv"]) is not None


def open_retinopathy(folder: Path) -> ListedSource:
    """The pictures `train/*.jpeg` and `test/*.jpeg` beside the lists, in the lists' order."""
    train, solution = find_file(folder, ["trainLabels.csv"]), find_file(folder, ["retinopathy_solution.csv"])
    if train is None or solution is None:
        missing = "trainLabels.csv" if train is None else "retinopathy_solution.csv"
        raise DataError(f"{shown(str(folder))} holds no {missing}", hint="both lists are on the competition's pages")
    rows = [FileRow(path=f"train/{name}.jpeg", code=level, part=TRAIN) for name, level, _ in _read(train)]
    for name, level, usage in _read(solution):
        if usage not in _PARTS:
            raise DataError(f"{shown(str(solution))}: Usage of {shown(name)} is {shown(usage)!r}, neither Public nor Private")
        rows.append(FileRow(path=f"test/{name}.jpeg", code=level, part=_PARTS[usage]))
    source = from_files(train.parent, rows, STAGES, where=str(folder))
    return replace(source, contents=EyeContents(source.contents))


def _read(path: Path) -> Iterator[tuple[str, int, str]]:
    """Picture, level and usage (empty where there is none) of each row."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                yield row["image"], int(row["level"]), row.get("Usage") or ""
    except (OSError, UnicodeDecodeError, KeyError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{shown(str(path))} is no CSV with columns image and level") from error
