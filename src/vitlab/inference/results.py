"""Predictions on their way to a file: JSON lines that can be continued, CSV, Parquet.

A JSON line is {"name": ..., "top": [{"label": ..., "probability": ...}, ...], "checkpoint": ...}, or {"name": ..., "error": ...,
"checkpoint": ...} for a image that could not be read. `checkpoint` begins the predictor's digest, so that a file can be told
from one of another model.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import ConfigError, DataError
from vitlab.inference.prediction import Prediction, Unreadable
from vitlab.io.atomic import replacing
from vitlab.io.names import printable

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
        name = printable(result.name)  # Parquet's text is UTF-8
        if isinstance(result, Unreadable):
            self._rows.append({"name": name, "labels": None, "probabilities": None, "error": printable(result.reason)})
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
        raise DataError(
            f"{printable(str(path))} is there already", hint="--resume goes on with it, --overwrite begins anew"
        ) from None
    except OSError as error:
        raise DataError(f"cannot write {printable(str(path))}: {error.strerror}") from error
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


# A file of JSON lines that an earlier run began: what is finished in it, and its end made whole.

_CHUNK = 1 << 20


@contextmanager
def continued_file(path: Path, *, top: int, mark: str) -> Iterator[tuple[TextIO, Finished]]:
    """A file of JSON lines to be continued, with what is finished; begun anew where it is not there.

    A last line that was cut off in the middle is removed. Refused are a file of another model or of another number of labels a
    image, and one that holds something else.
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


class Finished:
    """The names that are done, each as a hash of 8 bytes: a million of them take 8 MB. `unreadable` of them could not be read."""

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


def nothing_finished() -> Finished:
    """Where a file is begun."""
    return Finished(np.zeros(0, np.uint64))


def _finished(file: IO[bytes], path: Path, *, top: int, mark: str) -> Finished:
    """Read what is there, cut off a half line at the end, and leave the file at its end."""
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
    return Finished(np.concatenate([hashes, np.array(chunk, np.uint64)]), unreadable=unreadable)


def _whole_length(file: IO[bytes]) -> int:
    """Bytes up to and with the last line end."""
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
    """The name in a line that this run could have written, and whether its image could be read."""
    where = f"{printable(str(path))}, line {number:,}"
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is no JSON: this is not a file to be continued", hint="give another name") from error
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise DataError(f"{where} is no prediction: this is not a file to be continued", hint="give another name")
    if found.get("checkpoint") != mark:
        raise DataError(
            f"{where} is of another model ({printable(str(found.get('checkpoint')))}, and this one is {mark})",
            hint="weights, config, preprocessing and labels must be the same; give another name to begin anew",
        )
    best = found.get("top")
    if isinstance(best, list) and len(best) != top:
        raise DataError(f"{where} has {len(best)} labels, and {top} are asked for", hint=f"say --top {len(best)}")
    return str(found["name"]), "error" not in found


def name_hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
