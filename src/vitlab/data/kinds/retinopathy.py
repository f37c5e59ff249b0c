"""Kaggle's Diabetic Retinopathy Detection as it is published: trainLabels.csv, retinopathy_solution.csv, and the pictures."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from vitlab.data.files.blocks import find_file
from vitlab.data.files.names import shown
from vitlab.data.kinds.files import FileRow, from_files
from vitlab.data.listed import ListedSource
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError

STAGES = ("none", "mild", "moderate", "severe", "proliferative")

_PARTS = {"Public": VAL, "Private": TEST}  # as TensorFlow Datasets, and so VTAB, divides what was Kaggle's test set


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
    note = "the eyes are seen as photographed; VTAB scales them to 300 px and evens out their light (btgraham-300)"
    return from_files(train.parent, rows, STAGES, where=str(folder), notes=[note])


def _read(path: Path) -> Iterator[tuple[str, int, str]]:
    """Picture, level and usage (empty where there is none) of each row."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                yield row["image"], int(row["level"]), row.get("Usage") or ""
    except (OSError, UnicodeDecodeError, KeyError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{shown(str(path))} is no CSV with columns image and level") from error
