"""A folder of parts: the results of a long job, cut into files that are each complete or absent, so that the job can resume.

    job.json         what the job is: model, data, how it is cut. Another job is refused
    part-000012.*    the results of one range of inputs; part after part they are what one process would write
    parts.jsonl      a line for each finished part: its number, rows, bytes, SHA-256 and failures

A part is written under another name, put on disk and renamed, and gets its line after that. A part without a line, or one that
does not match its line, is made again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from vitlab.errors import DataError
from vitlab.io.atomic import cannot_write, locked, replacing, sync_folder, write_text
from vitlab.io.display import json_text, printable
from vitlab.io.files import read_bytes

JobFacts = Mapping[str, str | int]
"""What decides the content of the parts, by names that a user understands."""

_JOB, _FINISHED, _LOCK = "job.json", "parts.jsonl", "lock"
_VERSION = 1


class PartFormat(Protocol):
    """How the contents of chunks become a part, and parts one file."""

    @property
    def ending(self) -> str:
        """Of the name of a part."""
        ...

    def write(self, file: BinaryIO, contents: Sequence[bytes]) -> None:
        """Write a part."""
        ...

    def join(self, file: BinaryIO, parts: Sequence[Path]) -> None:
        """Write all parts as one file."""
        ...


class Lines:
    """Lines of text: a part is its chunks one after the other, and the file its parts."""

    ending = ".jsonl"

    def write(self, file: BinaryIO, contents: Sequence[bytes]) -> None:
        """Write a part."""
        for content in contents:
            file.write(content)

    def join(self, file: BinaryIO, parts: Sequence[Path]) -> None:
        """Write all parts as one file."""
        for path in parts:
            with path.open("rb") as part:
                shutil.copyfileobj(part, file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What a worker made: `rows` of results as bytes, and (name, reason) of each input that could not be read."""

    content: bytes
    rows: int
    failures: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A line of parts.jsonl."""

    part: int
    rows: int
    bytes: int
    sha256: str
    failures: tuple[tuple[str, str], ...]


class Parts:
    """The parts of one job. `finished` are those on disk, by number; `add` writes a part when its last chunk arrives."""

    def __init__(self, folder: Path, chunks: Sequence[int], format: PartFormat, finished: dict[int, Finished]) -> None:  # noqa: A002
        self.folder = folder
        self.finished = finished
        self._format = format
        self._chunks = chunks  # of each part
        self._open: dict[int, dict[int, Chunk]] = {}

    @property
    def missing(self) -> list[int]:
        """The parts that are still to be made, in order."""
        return [part for part in range(len(self._chunks)) if part not in self.finished]

    @property
    def paths(self) -> list[Path]:
        """The files of all parts, in order."""
        return [self.path(part) for part in range(len(self._chunks))]

    @property
    def failures(self) -> list[tuple[str, str]]:
        """(name, reason) of every input that could not be read, in order."""
        return [failure for part in sorted(self.finished) for failure in self.finished[part].failures]

    def path(self, part: int) -> Path:
        """The file of a part."""
        return self.folder / f"part-{part:06}{self._format.ending}"

    def add(self, part: int, place: int, chunk: Chunk) -> None:
        """Keep the chunk at a place of a part, in any order; the last one writes the part. One that is there already is ignored."""
        if part in self.finished:
            return
        held = self._open.setdefault(part, {})
        held[place] = chunk
        if len(held) < self._chunks[part]:
            return
        chunks = [held[place] for place in range(self._chunks[part])]
        path = self.path(part)
        with replacing(path, needed=sum(len(chunk.content) for chunk in chunks), error=DataError) as file:
            self._format.write(file, [chunk.content for chunk in chunks])
        done = Finished(
            part=part,
            rows=sum(chunk.rows for chunk in chunks),
            bytes=path.stat().st_size,
            sha256=_sha256(path),
            failures=tuple(failure for chunk in chunks for failure in chunk.failures),
        )
        self._log(done)
        self.finished[part] = done
        del self._open[part]

    def join(self, path: Path) -> None:
        """Write all parts as one file, which appears complete or not at all."""
        assert not self.missing, "only complete parts are joined"
        needed = sum(done.bytes for done in self.finished.values())
        with replacing(path, needed=needed, error=DataError) as file:
            self._format.join(file, self.paths)

    def remove(self) -> None:
        """Delete the folder, whose parts have been joined."""
        shutil.rmtree(self.folder)

    def _log(self, done: Finished) -> None:
        path = self.folder / _FINISHED
        try:
            with path.open("ab") as file:
                file.write((json_text(asdict(done)) + "\n").encode())
        except OSError as fault:
            raise cannot_write(path, fault, error=DataError) from fault


@contextmanager
def open_parts(
    folder: Path,
    job: JobFacts,
    chunks: Sequence[int],
    format: PartFormat,  # noqa: A002
    *,
    overwrite: bool = False,
) -> Iterator[Parts]:
    """The parts of a job in a folder, new or to be resumed, locked while the block runs; `chunks` is their number in each part.

    DataError if the folder belongs to another job (unless `overwrite`), holds other files, or is in use.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise cannot_write(folder, fault, error=DataError) from fault
    with locked(folder / _LOCK, refuse=lambda holder: _in_use(folder, holder)):
        if overwrite:
            _clear(folder, format)
        _check_job(folder, {"version": _VERSION, **job})
        yield Parts(folder, chunks, format, _finished(folder, len(chunks), format))


def _check_job(folder: Path, job: JobFacts) -> None:
    path = folder / _JOB
    if not path.exists():
        others = sorted(entry.name for entry in folder.iterdir() if entry.name != _LOCK)
        if others:
            raise DataError(
                f"{printable(str(folder))} holds other files, {printable(others[0])} among them",
                hint="give the name of a new folder",
            )
        write_text(path, json_text(dict(job), indent=2) + "\n")
        sync_folder(folder)
        return
    try:
        before = json.loads(read_bytes(path))
    except (ValueError, RecursionError):
        before = None
    if not isinstance(before, dict):
        raise DataError(f"{printable(str(path))} is damaged", hint="`overwrite` starts again")
    changed = [name for name in dict.fromkeys([*job, *before]) if before.get(name) != job.get(name)]
    if changed:
        was, now = (printable(str(facts.get(changed[0]))) for facts in (before, job))
        raise DataError(
            f"{printable(str(folder))} belongs to another job: its {changed[0]} is {was}, and here it is {now}",
            hint="give another folder or file, or use `overwrite` to start again",
        )


def _finished(folder: Path, parts: int, format: PartFormat) -> dict[int, Finished]:  # noqa: A002
    """The parts that are on disk as their lines say. Lines of others, and one that was cut off, are removed."""
    path = folder / _FINISHED
    found: dict[int, Finished] = {}
    lines = read_bytes(path).splitlines(keepends=True) if path.exists() else []
    for line in lines:
        try:
            done = _of_json(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue  # cut off by a death or a full disk: its part is made again
        file = folder / f"part-{done.part:06}{format.ending}"
        if done.part < parts and file.is_file() and file.stat().st_size == done.bytes and _sha256(file) == done.sha256:
            found[done.part] = done
    if lines:
        write_text(path, "".join(json_text(asdict(done)) + "\n" for done in found.values()))
    return found


def _of_json(line: Any) -> Finished:
    failures = tuple((str(name), str(reason)) for name, reason in line["failures"])
    numbers = {name: int(line[name]) for name in ("part", "rows", "bytes")}
    if min(numbers.values()) < 0:
        raise ValueError(line)
    return Finished(**numbers, sha256=str(line["sha256"]), failures=failures)


def _clear(folder: Path, format: PartFormat) -> None:  # noqa: A002
    """Remove a job, and nothing else."""
    for entry in list(folder.iterdir()):
        if entry.name in (_JOB, _FINISHED) or (entry.name.startswith("part-") and entry.suffix == format.ending):
            entry.unlink()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _in_use(folder: Path, holder: str) -> DataError:
    return DataError(f"{printable(str(folder))} is in use by {holder}", hint="wait for it, stop it, or choose another folder")
