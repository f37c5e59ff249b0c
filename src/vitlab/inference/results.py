"""Predictions, and the files they are written to: JSON lines (which can be resumed), CSV, Parquet.

`Predictor` makes a `Prediction` per image; a call returns them as `Predictions`. A JSON line is {"name": ..., "top": [{"label":
..., "probability": ...}, ...], "checkpoint": ...}, or {"name": ..., "error": ..., "checkpoint": ...} for an image that could not
be read. `checkpoint` is the beginning of the predictor's digest: it shows which model wrote the line.

Axes: C classes, D width of the features.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, TextIO, overload

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import ConfigError, DataError
from vitlab.inference.folded import Activation
from vitlab.io.atomic import replacing
from vitlab.io.display import Block, Displayed, csv_cell, json_text, printable
from vitlab.io.optional import optional_import

MARK_LENGTH = 16
GROUP_ROWS = 4096
"""Rows of a group of a Parquet file."""
_CHUNK = 1 << 20
_SHOWN = 20  # images that Predictions shows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """The model's output for one image.

    `name` is the image's path, or `image 3` (from 0) for an image without one. `logits` (C,) are the model's own numbers;
    `features` (D,) is the input of its head, if it was asked for. `labels` are the names of the classes, or None if they have
    none. `activation` says how logits become probabilities: `softmax` for one class per image, `sigmoid` for several.
    """

    name: str
    logits: NDArray[np.float32]
    features: NDArray[np.float32] | None = None
    labels: tuple[str, ...] | None = None
    activation: Activation = "softmax"

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """The probability of each class, (C,), from 0 to 1; they sum to 1 for `softmax`."""
        wide_C = self.logits.astype(np.float64)
        if self.activation == "sigmoid":
            probability_C: NDArray[np.float64] = np.exp(-np.logaddexp(0, -wide_C))
        else:
            with np.errstate(invalid="ignore"):  # inf - inf
                probability_C = np.exp(wide_C - wide_C.max(initial=-np.inf))
            probability_C /= probability_C.sum()
        return probability_C.astype(np.float32)

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The k most probable classes as (label, probability), best first; of equal ones the first in class order.

        A class without a label is named by its number.
        """
        if k < 1:
            raise ConfigError(f"k={k} must be at least 1")
        if not len(self.logits):
            raise ConfigError("this model has no head and predicts no classes", hint="use features=True")
        best = np.argsort(-self.logits, kind="stable")[:k].tolist()
        probabilities_C = self.probabilities
        return [(str(place) if self.labels is None else self.labels[place], float(probabilities_C[place])) for place in best]

    @property
    def label(self) -> str:
        """The most probable class."""
        return self.top(1)[0][0]

    def to_json(self, k: int = 5) -> dict[str, Any]:
        """Name and the k most probable classes as plain values."""
        return {"name": self.name, "top": [{"label": label, "probability": round(value, 6)} for label, value in self.top(k)]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """An image that could not be read, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return self.reason if self.name in self.reason else f"{self.name}: {self.reason}"

    def to_json(self, k: int = 5) -> dict[str, Any]:
        """Name and reason as plain values."""
        return {"name": self.name, "error": self.reason}


class Predictions(Displayed, Sequence[Prediction]):
    """The predictions of several images, in order: a sequence that prints as a table, in a terminal and in a notebook."""

    def __init__(self, predictions: Sequence[Prediction]) -> None:
        self._predictions = tuple(predictions)

    def __len__(self) -> int:
        return len(self._predictions)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> Predictions: ...
    def __getitem__(self, index: int | slice) -> Prediction | Predictions:
        return Predictions(self._predictions[index]) if isinstance(index, slice) else self._predictions[index]

    @property
    def logits(self) -> NDArray[np.float32]:
        """The logits of all images, (images, C)."""
        return np.stack([found.logits for found in self])

    @property
    def labels(self) -> list[str]:
        """The most probable class of each image."""
        return [found.label for found in self]

    def top(self, k: int = 5) -> list[Any]:
        """The k most probable classes of each image as (label, probability), best first; of one image alone, that list itself."""
        found = [prediction.top(k) for prediction in self]
        return found[0] if len(found) == 1 else found

    def to_json(self, k: int = 5) -> list[dict[str, Any]]:
        """A list of plain values, one object per image."""
        return [found.to_json(k) for found in self]

    def __repr__(self) -> str:
        return str(self) if len(self) else "no predictions"

    def tables(self) -> Iterator[Block]:
        """The best classes of the first images."""
        rows = []
        for found in self._predictions[:_SHOWN]:
            best = found.top(3) if len(found.logits) else []
            classes = ", ".join(f"{label} {100 * probability:.2f} %" for label, probability in best)
            rows.append({"image": found.name, "predictions": classes or "no classes"})
        if rows:
            yield rows
        if len(self) > _SHOWN:
            yield f"... and {len(self) - _SHOWN:,} more"


class Result(Protocol):
    """What was found in one image: a `Prediction`, the boxes of a detector, or why it could not be read."""

    @property
    def name(self) -> str:
        """The image's path, or its place."""
        ...

    def to_json(self, k: int = 5) -> dict[str, Any]:
        """Plain values; of classes, the k most probable."""
        ...


class Sink(Protocol):
    """A destination for results, one by one."""

    def write(self, result: Result) -> None:
        """Add one."""
        ...

    def flush(self) -> None:
        """Make everything written so far visible to other programs, where the format allows that before the end."""
        ...


class JsonLines:
    """One JSON object per line."""

    def __init__(self, file: TextIO, *, top: int, mark: str) -> None:
        self._file = file
        self._top = top
        self._mark = mark

    def write(self, result: Result) -> None:
        """Add one line. It is ASCII, so that any file name survives, even one that UTF-8 cannot hold."""
        self._file.write(json_text(result.to_json(self._top) | {"checkpoint": self._mark}) + "\n")

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        self._file.flush()


class Csv:
    """A header, then a line per image: name, error and the best labels with their probabilities.

    Names and labels cannot be formulas or control a terminal; JSON lines have them as they are.
    """

    def __init__(self, file: TextIO, *, top: int) -> None:
        self._file = file
        self._writer = csv.writer(file, lineterminator="\n")
        self._top = top
        columns = [word for place in range(1, top + 1) for word in (f"label_{place}", f"probability_{place}")]
        self._writer.writerow(["name", "error", *columns])

    def write(self, result: Result) -> None:
        """Add one line."""
        if isinstance(result, Unreadable):
            self._writer.writerow([csv_cell(result.name), csv_cell(result.reason), *[""] * (2 * self._top)])
            return
        assert isinstance(result, Prediction), "boxes have no columns"
        best = [word for label, probability in result.top(self._top) for word in (csv_cell(label), f"{probability:.6f}")]
        self._writer.writerow([csv_cell(result.name), "", *best, *[""] * (2 * self._top - len(best))])

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        self._file.flush()


class Parquet:
    """Columns name, labels, probabilities and error; written in groups of rows, so that memory stays small."""

    def __init__(self, file: BinaryIO, *, top: int, mark: str) -> None:
        self._arrow, parquet = load_pyarrow()
        self._top = top
        self._schema = predictions_schema(mark)
        self._writer = parquet.ParquetWriter(file, self._schema)
        self._rows: list[dict[str, Any]] = []

    def write(self, result: Result) -> None:
        """Add one row."""
        self._rows.append(predictions_row(result, self._top))
        if len(self._rows) >= GROUP_ROWS:
            self._group()

    def flush(self) -> None:
        """A Parquet file is readable only at its end."""

    def finish(self) -> None:
        """Write the last rows."""
        self._group()

    def close(self) -> None:
        """Write the end of the file, which must still be open, even if it will not be kept."""
        self._writer.close()

    def _group(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
            self._rows.clear()


def predictions_schema(mark: str) -> Any:
    """The columns of predictions; `mark` shows which model wrote them."""
    arrow = load_pyarrow()[0]
    columns = [
        ("name", arrow.string()),
        ("labels", arrow.list_(arrow.string())),
        ("probabilities", arrow.list_(arrow.float32())),
        ("error", arrow.string()),
    ]
    return arrow.schema(columns, metadata={"vitlab_checkpoint": mark})


def predictions_row(result: Result, top: int) -> dict[str, Any]:
    """One result under the names of the columns."""
    name = printable(result.name)  # text in Parquet is UTF-8
    if isinstance(result, Unreadable):
        return {"name": name, "labels": None, "probabilities": None, "error": printable(result.reason)}
    assert isinstance(result, Prediction), "boxes have no columns"
    labels, probabilities = zip(*result.top(top), strict=True)
    return {"name": name, "labels": list(labels), "probabilities": list(probabilities), "error": None}


@contextmanager
def parquet_file(path: Path, *, top: int, mark: str) -> Iterator[Parquet]:
    """A Parquet file that appears complete when the block ends, or not at all."""
    load_pyarrow()
    with replacing(path, needed=0) as file:
        sink = Parquet(file, top=top, mark=mark)
        try:
            yield sink
            sink.finish()
        finally:
            sink.close()


@contextmanager
def new_file(path: Path, *, overwrite: bool) -> Iterator[TextIO]:
    """A text file to be filled line by line; an existing file is an error unless it may be replaced."""
    try:
        file = path.open("w" if overwrite else "x", encoding="utf-8", errors="surrogateescape", newline="")
    except FileExistsError:
        hint = "`resume=True` continues it, `overwrite=True` replaces it"
        raise DataError(f"{printable(str(path))} exists already", hint=hint) from None
    except OSError as error:
        raise DataError(f"cannot write {printable(str(path))}: {error.strerror}") from error
    with file:
        yield file


def load_pyarrow() -> tuple[Any, Any]:
    """pyarrow and pyarrow.parquet; ConfigError with the extra to install if they are missing."""
    return optional_import("pyarrow", purpose="Parquet files"), optional_import("pyarrow.parquet", purpose="Parquet files")


@contextmanager
def resumed_file(path: Path, *, top: int, mark: str) -> Iterator[tuple[TextIO, FinishedImages]]:
    """A file of JSON lines to be continued, and the images that are finished in it; a new file if there is none.

    A last line that was cut off is removed. A file of another model, with another number of labels per image, or with other content
    is an error.
    """
    try:
        file = path.open("r+b" if path.exists() else "x+b")
    except OSError as error:
        raise DataError(f"cannot write {printable(str(path))}: {error.strerror}") from error
    with file:
        finished = _finished(file, path, top=top, mark=mark)
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            yield text, finished
        finally:  # also what was written before an interrupt
            text.flush()
            text.detach()


class FinishedImages:
    """The names of finished images, each as a hash of 8 bytes: a million take 8 MB. `unreadable` of them could not be read."""

    def __init__(self, hashes: NDArray[np.uint64], *, unreadable: int = 0) -> None:
        self._hashes = np.unique(hashes)
        self.unreadable = unreadable

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        found = int(np.searchsorted(self._hashes, code := name_hash(name)))
        return found < len(self._hashes) and int(self._hashes[found]) == code


def nothing_finished() -> FinishedImages:
    """For a new file."""
    return FinishedImages(np.zeros(0, np.uint64))


def _finished(file: IO[bytes], path: Path, *, top: int, mark: str) -> FinishedImages:
    """Read the finished names, cut off an incomplete last line, and leave the file positioned at its end."""
    whole = _whole_length(file)
    hashes = np.zeros(0, np.uint64)
    chunk: list[int] = []
    unreadable = 0
    file.seek(0)
    for number, line in enumerate(iter(file.readline, b""), start=1):
        if file.tell() > whole:
            break
        name, read = _checked(line, number, path, top=top, mark=mark)
        unreadable += not read
        chunk.append(name_hash(name))
        if len(chunk) >= _CHUNK:
            hashes = np.concatenate([hashes, np.array(chunk, np.uint64)])
            chunk = []
    file.truncate(whole)
    file.seek(whole)
    return FinishedImages(np.concatenate([hashes, np.array(chunk, np.uint64)]), unreadable=unreadable)


def _whole_length(file: IO[bytes]) -> int:
    """Bytes up to and including the last line end."""
    place = file.seek(0, os.SEEK_END)
    while place > 0:
        start = max(0, place - _CHUNK)
        file.seek(start)
        end = file.read(place - start).rfind(b"\n")
        if end >= 0:
            return start + end + 1
        place = start
    return 0


def _checked(line: bytes, number: int, path: Path, *, top: int, mark: str) -> tuple[str, bool]:
    """The name in a line that this run could have written, and whether the image could be read."""
    where = f"{printable(str(path))}, line {number:,}"
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: this file cannot be resumed", hint="give another name") from error
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise DataError(f"{where} is not a prediction: this file cannot be resumed", hint="give another name")
    if found.get("checkpoint") != mark:
        raise DataError(
            f"{where} was written by another model ({printable(str(found.get('checkpoint')))}; this one is {mark})",
            hint="weights, config, preprocessing and labels must be the same; give another name to start a new file",
        )
    best = found.get("top")
    if isinstance(best, list) and len(best) != top:
        raise DataError(f"{where} has {len(best)} labels, but top={top}", hint=f"use `top={len(best)}`")
    return str(found["name"]), "error" not in found


def name_hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
