"""One file from an http address to disk: resumed where it broke off, and under its name only once it is whole and verified.

Until then its bytes are in `.NAME.partial` beside it, and `.NAME.partial.json` says which version of which address they are
the beginning of, so that a later call goes on from there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path

from vitlab.config.check import at_least
from vitlab.data.care.progress import Tell, silent
from vitlab.data.files.durable import FULL, sync_folder, write_all
from vitlab.data.public.public_set import RemoteFile
from vitlab.data.public.sums import fault_of, record, recorded, sum_of
from vitlab.data.public.web import Answer, BeyondTheEndError, PassingError, RefusedError, ask
from vitlab.errors import DataError

if sys.platform != "win32":
    import fcntl

_CHUNK = 2**20
_OFFLINE_ATTEMPTS = 2
_MOST_ATTEMPTS = 100  # in all: an end even to a connection that breaks after every few bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How a download deals with a bad connection.

    `attempts` is how often it tries without a byte of progress (at most twice where the server cannot be reached at all);
    `wait` is the seconds before the second try, doubled each time up to 60; `timeout` is the seconds without a byte after which a
    connection counts as broken.
    """

    attempts: int = 6
    wait: float = 1.0
    timeout: float = 30.0

    def __post_init__(self) -> None:
        at_least("attempts", self.attempts, 1)
        at_least("wait", self.wait, 0)
        at_least("timeout", self.timeout, 0.001)


def download(file: RemoteFile, target: Path, *, patience: Patience | None = None, tell: Tell = silent) -> str:
    """Bring `file` to the path `target`, which does not exist before it is whole, and return its SHA-256.

    It is held to the checksum of the catalogue; where that has none, to the one that the first download recorded in
    `NAME.sha256`; and where that is this one, the sum that is seen is recorded.
    """
    job = _Job(file=file, target=target, expected=file.checksum or recorded(target), tell=tell)
    with _partial(target) as out:
        resumed = _length(out) > 0
        job.from_somewhere(out, patience or Patience())
        fault = job.fault(out)
        if fault is not None and resumed:
            # What an earlier call left may have been the beginning of another version: once more, from nothing.
            out.truncate(0)
            job.from_somewhere(out, patience or Patience())
            fault = job.fault(out)
        if fault is not None:
            out.truncate(0)
            raise DataError(
                f"{file.name} from {file.addresses[0]} is not the file it should be: {fault}",
                hint=f"nothing of it is kept; {by_hand(file)}",
            )
        return job.finish(out)


def take(given: Path, file: RemoteFile, target: Path, *, tell: Tell = silent) -> str:
    """Put a file that was downloaded by other means at `target`, verified like any other; its SHA-256."""
    job = _Job(file=file, target=target, expected=file.checksum or recorded(target), tell=tell)
    try:
        fault = fault_of(given, job.expected, size=file.size, tell=tell)
        source = given.open("rb")
    except OSError as error:
        raise DataError(f"{given} cannot be read: {error.strerror}") from error
    with source, _partial(target) as out:
        if fault is not None:
            raise DataError(f"{given} is not {file.name}: {fault}", hint=by_hand(file))
        out.truncate(0)
        with _room(target, os.fstat(source.fileno()).st_size):
            while chunk := source.read(_CHUNK):
                write_all(out, chunk)
        fault = job.fault(out)
        if fault is not None:
            out.truncate(0)
            raise DataError(f"{given} changed while it was copied: {fault}")
        return job.finish(out)


def by_hand(file: RemoteFile) -> str:
    """What to do where a download does not work."""
    return f"download {file.addresses[0]} by other means, then give that file to --from" if file.addresses else ""


class _UnavailableError(Exception):
    """An address that does not give the file, and why."""

    def __init__(self, reason: str, *, offline: bool = False) -> None:
        super().__init__(reason)
        self.offline = offline


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """Which bytes these are: the address they come from, how many there are, and what its server calls their version."""

    address: str
    total: int | None
    version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A file on its way to `target`; `expected` is its checksum, or None where none is known."""

    file: RemoteFile
    target: Path
    expected: str | None
    tell: Tell

    def from_somewhere(self, out: FileIO, patience: Patience) -> None:
        """Fill the partial file from the first address that gives it."""
        faults: list[_UnavailableError] = []
        for address in self.file.addresses:
            try:
                self._from_address(address, out, patience)
            except _UnavailableError as fault:
                faults.append(fault)
            else:
                return
        why = "this machine seems to be offline" if all(fault.offline for fault in faults) else "no address gives it"
        raise DataError(
            f"{self.file.name} cannot be fetched, {why}: {'; '.join(map(str, faults))}",
            hint=f"run this again to go on from where it stopped, or {by_hand(self.file)}",
        )

    def fault(self, out: FileIO) -> str | None:
        """What is wrong with the bytes that were fetched."""
        return fault_of(Path(out.name), self.expected, size=self.file.size, tell=self.tell)

    def finish(self, out: FileIO) -> str:
        """Give a verified file its name, durably: bytes, then name, then folder."""
        known = (self.expected or "").partition("sha256:")[2]
        with _room(self.target, None):
            os.fsync(out.fileno())
            seen = known or sum_of(Path(out.name), "sha256")
            if self.expected is None:
                record(self.target, seen)
            Path(out.name).replace(self.target)
            _about(self.target).unlink(missing_ok=True)
            sync_folder(self.target.parent)
        return seen

    def _from_address(self, address: str, out: FileIO, patience: Patience) -> None:
        failed = furthest = 0
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            try:
                self._go_on(address, out, patience.timeout)
            except PassingError as fault:
                failed = 1 if _length(out) > furthest else failed + 1
                furthest = max(furthest, _length(out))
                most = min(_OFFLINE_ATTEMPTS, patience.attempts) if fault.offline else patience.attempts
                if failed >= most or attempt == _MOST_ATTEMPTS:
                    tries = "1 try" if attempt == 1 else f"{attempt} tries"
                    raise _UnavailableError(f"{fault} ({address}, {tries})", offline=fault.offline) from fault
                time.sleep(min(60.0, max(patience.wait * 2 ** (failed - 1), fault.wait)))
            except RefusedError as fault:
                raise _UnavailableError(str(fault)) from fault
            else:
                return

    def _go_on(self, address: str, out: FileIO, timeout: float) -> None:
        """Ask an address for what is missing, and write it; PassingError where the connection breaks."""
        have = _length(out)
        begun = _begun(self.target) if have else None
        # A beginning can be continued where the server can be held to the version it is of, or the checksum will tell.
        if begun is None or begun.address != address or (begun.version is None and self.expected is None):
            have, begun = out.truncate(0), None
        elif have == (begun.total or self.file.size):
            return  # all was there, and an earlier call was stopped before it could verify it
        try:
            with ask(address, start=have, version=begun.version if begun else None, timeout=timeout) as answer:
                if answer.start == 0 and have:
                    have, begun = out.truncate(0), None  # the server gives all or nothing, or has another version by now
                total = self._agree(answer, begun, have)
                self._write(answer, out, total)
        except BeyondTheEndError:
            out.truncate(0)
            raise PassingError("the file at the server is shorter than what was already fetched") from None
        if total is not None and _length(out) < total:
            raise PassingError(f"the connection ended after {_length(out):,} of {total:,} bytes")

    def _agree(self, answer: Answer, begun: _Version | None, have: int) -> int | None:
        """The bytes the whole file has, once the answer fits what was asked and what is known."""
        if answer.start != have:
            raise RefusedError(f"{answer.address} answers from byte {answer.start:,}, where byte {have:,} was asked for")
        total = answer.total if answer.total is not None else self.file.size
        if self.file.size is not None and total != self.file.size:
            raise RefusedError(
                f"{answer.address} offers {total:,} bytes, and should offer {self.file.size:,}:"
                " the file has changed, or this is an error page"
            )
        if begun is not None and begun.total is not None and total != begun.total:
            raise RefusedError(f"{answer.address} now offers another file than the one that was begun")
        if total is None and self.expected is None:
            raise RefusedError(f"{answer.address} does not say how long the file is, and no checksum of it is known")
        return total

    def _write(self, answer: Answer, out: FileIO, total: int | None) -> None:
        have = answer.start
        version = _Version(address=answer.address, total=answer.total, version=answer.version)
        with _room(self.target, None if total is None else total - have):
            _about(self.target).write_text(json.dumps(asdict(version)), encoding="utf-8")
            self.tell(f"downloading {self.file.name}", have, total)
            for chunk in answer.chunks(_CHUNK):
                have += len(chunk)
                if total is not None and have > total:
                    raise RefusedError(f"{answer.address} gives more than the {total:,} bytes it should")
                write_all(out, chunk)
                self.tell(f"downloading {self.file.name}", have, total)


def _length(out: FileIO) -> int:
    return out.seek(0, os.SEEK_END)


def _begun(target: Path) -> _Version | None:
    try:
        said = json.loads(_about(target).read_text(encoding="utf-8"))
        return _Version(address=said["address"], total=said["total"], version=said["version"])
    except (OSError, ValueError, TypeError, KeyError):
        return None  # not known: begin again


@contextmanager
def _partial(target: Path) -> Iterator[FileIO]:
    """The partial file of `target`, open at its end and locked; removed where it is left empty."""
    path = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        out = path.open("a+b", buffering=0)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from error
    with out:
        _lock(out, target)
        try:
            yield out
        finally:
            # By its name only where that is still this file, and not under its final name already.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(out.fileno())) and path.stat().st_size == 0:
                path.unlink()
                _about(target).unlink(missing_ok=True)


def _lock(out: FileIO, target: Path) -> None:
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(f"another process is fetching {target.name} to {target.parent}", hint="wait for it") from None


@contextmanager
def _room(target: Path, needed: int | None) -> Iterator[None]:
    """Refuse at once what the disk has no room for, and say so where it fills up on the way."""
    free = shutil.disk_usage(target.parent).free
    if needed is not None and needed > free:
        raise _full(target, needed, free)
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise DataError(f"{target} cannot be written: {error.strerror or error}") from error
        raise _full(target, needed, shutil.disk_usage(target.parent).free) from error


def _full(target: Path, needed: int | None, free: int) -> DataError:
    wanted = "" if needed is None else f" {needed:,} more bytes are needed and"
    return DataError(
        f"no room for {target.name} in {target.parent}:{wanted} {free:,} are free",
        hint="make room, or choose another folder with --into; what was fetched so far is kept and will be continued",
    )


def _about(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial.json")
