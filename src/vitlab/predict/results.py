"""Predictions on their way to a file: JSON lines that can be continued, CSV, Parquet.

A JSON line is {"name": ..., "top": [{"label": ..., "probability": ...}, ...], "checkpoint": ...}, or {"name": ..., "error": ...,
"checkpoint": ...} for a picture that could not be read. `checkpoint` begins the predictor's digest, so that a file can be told
from one of another model.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

from vitlab.checkpoint.files.atomic import replacing
from vitlab.data.files.names import shown
from vitlab.errors import ConfigError, DataError
from vitlab.predict.prediction import Prediction, Unreadable

MARK_LENGTH = 16
_ROWS = 4096  # of a Parquet file's group


class Sink(Protocol):
    """Takes results one by one."""

    def write(self, result: Prediction | Unreadable) -> None:
        """Add one."""
        ...

    def flush(self) -> None:
        """Let what was added be seen by others, where that is possible before the end."""
        ...


class JsonLines:
    """One JSON object a line."""

    def __init__(self, file: TextIO, *, top: int, mark: str) -> None:
        self._file = file
        self._top = top
        self._mark = mark

    def write(self, result: Prediction | Unreadable) -> None:
        """Add one line. ASCII, so that any name survives, also one that UTF-8 cannot hold."""
        self._file.write(json.dumps(record(result, self._top) | {"checkpoint": self._mark}) + "\n")

    def flush(self) -> None:
        """What was added is in the hands of the system."""
        self._file.flush()


class Csv:
    """A header, then name, error and the best labels with their probabilities."""

    def __init__(self, file: TextIO, *, top: int) -> None:
        self._file = file
        self._writer = csv.writer(file, lineterminator="\n")
        self._top = top
        columns = [word for place in range(1, top + 1) for word in (f"label_{place}", f"probability_{place}")]
        self._writer.writerow(["name", "error", *columns])

    def write(self, result: Prediction | Unreadable) -> None:
        """Add one line."""
        if isinstance(result, Unreadable):
            self._writer.writerow([result.name, result.reason, *[""] * (2 * self._top)])
            return
        best = [word for label, probability in result.top(self._top) for word in (label, f"{probability:.6f}")]
        self._writer.writerow([result.name, "", *best, *[""] * (2 * self._top - len(best))])

    def flush(self) -> None:
        """What was added is in the hands of the system."""
        self._file.flush()


class Parquet:
    """Columns name, labels, probabilities and error; written in groups of rows, so of any length in little memory."""

    def __init__(self, file: BinaryIO, *, top: int, mark: str) -> None:
        arrow, parquet = load_pyarrow()
        self._arrow = arrow
        self._top = top
        self._schema = arrow.schema(
            [
                ("name", arrow.string()),
                ("labels", arrow.list_(arrow.string())),
                ("probabilities", arrow.list_(arrow.float32())),
                ("error", arrow.string()),
            ],
            metadata={"vitlab_checkpoint": mark},
        )
        self._writer = parquet.ParquetWriter(file, self._schema)
        self._rows: list[dict[str, Any]] = []

    def write(self, result: Prediction | Unreadable) -> None:
        """Add one row."""
        name = shown(result.name)  # Parquet's text is UTF-8
        if isinstance(result, Unreadable):
            self._rows.append({"name": name, "labels": None, "probabilities": None, "error": shown(result.reason)})
        else:
            labels, probabilities = zip(*result.top(self._top), strict=True)
            self._rows.append({"name": name, "labels": list(labels), "probabilities": list(probabilities), "error": None})
        if len(self._rows) >= _ROWS:
            self._group()

    def flush(self) -> None:
        """Nothing can be seen before the end."""

    def finish(self) -> None:
        """Write the last rows."""
        self._group()

    def close(self) -> None:
        """Write the end of the file, which must still be open, also where it will not be kept."""
        self._writer.close()

    def _group(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
            self._rows.clear()


def record(result: Prediction | Unreadable, top: int) -> dict[str, Any]:
    """A result as plain values."""
    if isinstance(result, Unreadable):
        return {"name": result.name, "error": result.reason}
    best = [{"label": label, "probability": round(probability, 6)} for label, probability in result.top(top)]
    return {"name": result.name, "top": best}


@contextmanager
def parquet_file(path: Path, *, top: int, mark: str) -> Iterator[Parquet]:
    """A Parquet file that appears whole when the block ends, or not at all."""
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
    """A text file to be filled line by line; refuses one that is there, unless it may be replaced."""
    try:
        file = path.open("w" if overwrite else "x", encoding="utf-8", errors="surrogateescape", newline="")
    except FileExistsError:
        raise DataError(f"{shown(str(path))} is there already", hint="--resume goes on with it, --overwrite begins anew") from None
    except OSError as error:
        raise DataError(f"cannot write {shown(str(path))}: {error.strerror}") from error
    with file:
        yield file


def load_pyarrow() -> tuple[Any, Any]:
    """pyarrow and its Parquet part, or how to get them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError("Parquet needs pyarrow, which is not installed", hint="pip install 'vitlab[parquet]'") from error
    return pyarrow, pyarrow.parquet
