"""What the evaluations of segmentation and detection have in common: the images of a dataset by name, and a line for each."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from vitlab.config.data import CorruptPolicy
from vitlab.data.dataset import ImageDataset, Pixels
from vitlab.errors import DataError
from vitlab.inference.images import NamedImage
from vitlab.io.atomic import replacing
from vitlab.io.display import csv_cell


def named_images(dataset: ImageDataset) -> Iterator[NamedImage]:
    """The images of a dataset, each with its name, read when its turn comes."""
    return (NamedImage(name=dataset.name(index), read=partial(content_of, dataset, index)) for index in range(len(dataset)))


def content_of(dataset: ImageDataset, index: int) -> bytes | Pixels:
    """An image before decoding."""
    return dataset.contents.read(int(dataset.rows[index]))


def unless_skipped(failure: str, corrupt: CorruptPolicy) -> str:
    """The failure itself if such images are skipped, else DataError."""
    if corrupt == "fail":
        raise DataError(failure, hint="repair or remove it, or set `corrupt=skip` to continue without such images")
    return failure


def write_lines(path: Path, header: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Write a CSV with a line for each image: its name and its cells."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows((csv_cell(name), *cells) for name, cells in rows)
    content = text.getvalue().encode("utf-8", "surrogateescape")
    with replacing(path, needed=len(content)) as file:
        file.write(content)


def known(value: float) -> float | None:
    """A number for JSON; None for nan."""
    return None if np.isnan(value) else value


def percent(value: float | None, digits: int, interval: tuple[float, float] | None = None) -> str:
    """A fraction for a table, - for nan and None; its interval behind it, if there is one."""
    said = "-" if value is None or np.isnan(value) else f"{100 * value:.{digits}f} %"
    return said if interval is None else f"{said} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
