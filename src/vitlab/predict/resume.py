"""A file of JSON lines that an earlier run began: what is finished in it, and its end made whole."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import IO, TextIO

import numpy as np
from numpy.typing import NDArray

from vitlab.data.files.names import shown
from vitlab.errors import DataError

_CHUNK = 1 << 20


@contextmanager
def continued_file(path: Path, *, top: int, mark: str) -> Iterator[tuple[TextIO, Finished]]:
    """A file of JSON lines to be continued, with what is finished; begun anew where it is not there.

    A last line that was cut off in the middle is removed. Refused are a file of another model or of another number of labels a
    picture, and one that holds something else.
    """
    try:
        file = path.open("r+b" if path.exists() else "x+b")
    except OSError as error:
        raise DataError(f"cannot write {shown(str(path))}: {error.strerror}") from error
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
    """The name in a line that this run could have written, and whether its picture could be read."""
    where = f"{shown(str(path))}, line {number:,}"
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is no JSON: this is not a file to be continued", hint="give another name") from error
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise DataError(f"{where} is no prediction: this is not a file to be continued", hint="give another name")
    if found.get("checkpoint") != mark:
        raise DataError(
            f"{where} is of another model ({shown(str(found.get('checkpoint')))}, and this one is {mark})",
            hint="weights, config, preprocessing and labels must be the same; give another name to begin anew",
        )
    best = found.get("top")
    if isinstance(best, list) and len(best) != top:
        raise DataError(f"{where} has {len(best)} labels, and {top} are asked for", hint=f"say --top {len(best)}")
    return str(found["name"]), "error" not in found


def name_hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
