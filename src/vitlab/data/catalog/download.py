"""Downloads of files: resumed after an interruption, verified by checksum, and named only when complete.

Until then the bytes are in `.NAME.partial`, and `.NAME.partial.json` says which version of which address they belong to, so that
a later call resumes. Standard library only: urllib has no resume, retry or checksum, so these are written here.
"""

from __future__ import annotations

import email.utils
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus
from io import FileIO
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from vitlab import __version__
from vitlab.data.catalog.sets import RemoteFile
from vitlab.errors import DataError, at_least
from vitlab.io.atomic import DISK_FULL, sync_folder, try_lock
from vitlab.io.display import ProgressCallback, silent
from vitlab.io.files import open_regular, size_of

_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 60.0  # seconds; a server that asks for more is asked again sooner


class TemporaryError(Exception):
    """An error that a retry may solve. `wait` is the number of seconds that the server asks for."""

    def __init__(self, reason: str, *, offline: bool = False, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.offline = offline
        self.wait = wait


class BeyondTheEndError(TemporaryError):
    """The server's file is not longer than what is already here."""


class RefusedError(Exception):
    """An error that a retry cannot solve; `code` is what the Hugging Face Hub calls it, empty elsewhere."""

    def __init__(self, reason: str, *, code: str = "") -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A server's answer: the first byte, the total number of bytes (None if unknown), and the version of the file.

    `version` identifies the file in a later request for the rest of it; it may be None.
    """

    address: str
    start: int
    total: int | None
    version: str | None
    body: IO[bytes]

    def chunks(self, size: int) -> Iterator[bytes]:
        """The bytes, at most `size` at a time; TemporaryError if the connection breaks."""
        while True:
            try:
                chunk = self.body.read(size)
            except (OSError, http.client.HTTPException) as error:
                raise TemporaryError(f"the connection broke: {_words(error)}") from error
            if not chunk:
                return
            yield chunk


@contextmanager
def ask(address: str, *, start: int = 0, version: str | None = None, token: str | None = None, timeout: float) -> Iterator[Answer]:
    """Request a file from byte `start`, if it still has this `version`; the server may send all of it instead.

    Redirects are followed to http and https only, and never from https to http.
    """
    if urlsplit(address).scheme not in ("http", "https"):
        raise RefusedError(f"{address} is not an http address")
    # The checksum is that of the uncompressed bytes.
    headers = {"User-Agent": f"vitlab/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if version is not None:
            headers["If-Range"] = version
    request = urllib.request.Request(address, headers=headers)
    if token is not None:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        response = _opener().open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        raise _unwilling(error, address, start) from error
    except urllib.error.URLError as error:
        raise _unreachable(error.reason, address) from error
    except (OSError, http.client.HTTPException) as error:
        raise TemporaryError(f"the connection to {address} broke: {_words(error)}") from error
    with response:
        yield _answer(response, address)


def _answer(response: http.client.HTTPResponse, address: str) -> Answer:
    headers = response.headers
    if (coding := headers.get("Content-Encoding", "identity").lower()) != "identity":
        raise RefusedError(f"{address} sends the file compressed ({coding}), which was not requested")
    length = headers.get("Content-Length", "")
    total = int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
    start = 0
    if response.status == HTTPStatus.PARTIAL_CONTENT:
        part = re.fullmatch(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)", headers.get("Content-Range", ""))
        if part is None:
            raise RefusedError(f"{address} sends a part of the file without saying which")
        start, total = int(part[1]), None if part[2] == "*" else int(part[2])
    elif response.status != HTTPStatus.OK:
        raise RefusedError(f"{address} answers with status {response.status}, and no file")
    etag = headers.get("ETag")
    strong = etag if etag and not etag.startswith("W/") else None  # a weak tag does not guarantee the same bytes
    return Answer(address=address, start=start, total=total, version=strong or headers.get("Last-Modified"), body=response)


def _unwilling(error: urllib.error.HTTPError, address: str, start: int) -> Exception:
    message = f"{address} answers {error.code} {error.reason}"
    if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
        return BeyondTheEndError(message)
    if error.code in _TEMPORARY:
        return TemporaryError(message, wait=_wait(error.headers.get("Retry-After")))
    if 300 <= error.code < 400:
        return RefusedError(f"{address} redirects to something that is not an http address ({error.headers.get('Location')})")
    return RefusedError(message, code=error.headers.get("X-Error-Code") or "")


def _unreachable(reason: object, address: str) -> Exception:
    host = urlsplit(address).hostname
    match reason:
        case ssl.SSLCertVerificationError():
            return RefusedError(f"the certificate of {host} cannot be verified: {reason.verify_message}")
        case socket.gaierror():
            return TemporaryError(f"{host} is not found", offline=True)
        case OSError():
            return TemporaryError(f"{host} cannot be reached: {_words(reason)}", offline=True)
        case _:
            return RefusedError(f"{address} cannot be opened: {reason}")


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no data arrived in time"
    text = error.strerror if isinstance(error, OSError) else str(error)
    return text or type(error).__name__


def _wait(retry_after: str | None) -> float:
    """Seconds, from a number or a date."""
    if retry_after is None:
        return 0.0
    if re.fullmatch(r"[0-9]{1,9}", retry_after):
        return min(float(retry_after), _LONGEST_WAIT)
    try:
        moment = email.utils.parsedate_to_datetime(retry_after).timestamp()
    except ValueError:
        return 0.0
    return min(max(moment - time.time(), 0.0), _LONGEST_WAIT)


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Follows redirections within http and https."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """The request for the new address; RefusedError where it leads out of http or to a less safe scheme."""
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new not in ("http", "https"):
            fp.close()
            raise RefusedError(f"{req.full_url} redirects to something that is not an http address ({newurl})")
        if old == "https" and new == "http":
            fp.close()
            raise RefusedError(f"{req.full_url} redirects from https to plain http ({newurl})")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """urllib with its http handlers alone: no file:, no ftp:, no data:, whatever an address or a redirection says."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirections(),
    ):
        opener.add_handler(handler)
    return opener


_CHUNK = 2**20


def sum_of(path: Path, algorithm: str, *, progress: ProgressCallback = silent) -> str:
    """The checksum of a file as hexadecimal digits; `algorithm` is sha256 or md5."""
    made = hashlib.new(algorithm, usedforsecurity=algorithm != "md5")
    what = f"verifying {path.name.removeprefix('.').removesuffix('.partial')}"
    with open_regular(path, error=DataError) as file:
        total, done = size_of(file), 0
        while chunk := file.read(_CHUNK):
            made.update(chunk)
            done += len(chunk)
            progress(what, done, total)
    return made.hexdigest()


def fault_of(path: Path, checksum: str | None, *, size: int | None, progress: ProgressCallback = silent) -> str | None:
    """What is wrong with a file, or None if it is correct.

    `checksum` is `sha256:...` or `md5:...`; with None only the size is checked.
    """
    found = path.stat().st_size
    if size is not None and found != size:
        return f"it has {found:,} bytes instead of {size:,}"
    if checksum is None:
        return None
    algorithm, _, digest = checksum.partition(":")
    seen = sum_of(path, algorithm, progress=progress)
    return None if seen == digest else f"its {algorithm} is {seen} instead of {digest}"


def recorded(target: Path) -> str | None:
    """The checksum that the first download recorded beside a file without a published checksum, or None."""
    note = _note(target)
    if not note.is_file():
        return None
    word = note.read_text(encoding="utf-8", errors="replace").partition(" ")[0].strip()
    if not re.fullmatch(r"[0-9a-f]{64}", word):
        raise DataError(f"{note} holds no SHA-256", hint="remove it; the next download records a new one")
    return f"sha256:{word}"


def record(target: Path, digest: str) -> None:
    """Record a file's SHA-256 beside it, in the format of `sha256sum`, for later downloads."""
    _note(target).write_text(f"{digest}  {target.name}\n", encoding="utf-8")


def _note(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")


_OFFLINE_ATTEMPTS = 2
_MOST_ATTEMPTS = 100  # in total, for a connection that breaks after every few bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Retries of a download.

    `attempts` is the number of tries without progress (at most two if the server cannot be reached at all); `wait` is the number
    of seconds before the second try, doubled each time up to 60; `timeout` is the number of seconds without data after which
    a connection counts as broken.
    """

    attempts: int = 6
    wait: float = 1.0
    timeout: float = 30.0

    def __post_init__(self) -> None:
        at_least("attempts", self.attempts, 1)
        at_least("wait", self.wait, 0)
        at_least("timeout", self.timeout, 0.001)


def download(file: RemoteFile, target: Path, *, patience: Patience | None = None, progress: ProgressCallback = silent) -> str:
    """Download `file` to the path `target`, which exists only when the file is complete and verified; returns its SHA-256.

    The file is verified by the catalog's checksum. If the catalog has none, it is verified by the one that the first download
    recorded in `NAME.sha256`; the first download records it.
    """
    job = _Job(file=file, target=target, expected=file.checksum or recorded(target), progress=progress)
    with _partial(target) as out:
        resumed = _length(out) > 0
        job.from_any_address(out, patience or Patience())
        fault = job.fault(out)
        if fault is not None and resumed:
            # An earlier call may have left the beginning of another version: download it again from the start.
            out.truncate(0)
            job.from_any_address(out, patience or Patience())
            fault = job.fault(out)
        if fault is not None:
            out.truncate(0)
            raise DataError(
                f"{file.name} from {file.addresses[0]} is not the expected file: {fault}",
                hint=f"it was deleted; {by_hand(file)}",
            )
        return job.finish(out)


def take(given: Path, file: RemoteFile, target: Path, *, progress: ProgressCallback = silent) -> str:
    """Copy a file that the user downloaded to `target`, verified like a download; returns its SHA-256."""
    job = _Job(file=file, target=target, expected=file.checksum or recorded(target), progress=progress)
    try:
        fault = fault_of(given, job.expected, size=file.size, progress=progress)
        source = open_regular(given, error=DataError)
    except OSError as error:
        raise DataError(f"{given} cannot be read: {error.strerror}") from error
    with source, _partial(target) as out:
        if fault is not None:
            raise DataError(f"{given} is not {file.name}: {fault}", hint=by_hand(file))
        out.truncate(0)
        with _disk_space(target, os.fstat(source.fileno()).st_size):
            while chunk := source.read(_CHUNK):
                _write_all(out, chunk)
        fault = job.fault(out)
        if fault is not None:
            out.truncate(0)
            raise DataError(f"{given} changed while it was copied: {fault}")
        return job.finish(out)


def by_hand(file: RemoteFile) -> str:
    """What to do if a download does not work."""
    return f"download {file.addresses[0]} yourself, then give that file to `given`" if file.addresses else ""


class _UnavailableError(Exception):
    """An address does not deliver the file."""

    def __init__(self, reason: str, *, offline: bool = False) -> None:
        super().__init__(reason)
        self.offline = offline


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """The identity of partial bytes: their address, their total number, and the server's name of the version."""

    address: str
    total: int | None
    version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A download to `target`; `expected` is the checksum, or None if none is known."""

    file: RemoteFile
    target: Path
    expected: str | None
    progress: ProgressCallback

    def from_any_address(self, out: FileIO, patience: Patience) -> None:
        """Complete the partial file from the first address that delivers it."""
        faults: list[_UnavailableError] = []
        for address in self.file.addresses:
            try:
                self._from_address(address, out, patience)
            except _UnavailableError as fault:
                faults.append(fault)
            else:
                return
        why = "this machine seems to be offline" if all(fault.offline for fault in faults) else "no address delivers it"
        raise DataError(
            f"{self.file.name} cannot be downloaded, {why}: {'; '.join(map(str, faults))}",
            hint=f"run this again to resume, or {by_hand(self.file)}",
        )

    def fault(self, out: FileIO) -> str | None:
        """What is wrong with the downloaded bytes, or None."""
        return fault_of(Path(out.name), self.expected, size=self.file.size, progress=self.progress)

    def finish(self, out: FileIO) -> str:
        """Rename a verified file atomically."""
        known = (self.expected or "").partition("sha256:")[2]
        with _disk_space(self.target, None):
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
                self._resume(address, out, patience.timeout)
            except TemporaryError as fault:
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

    def _resume(self, address: str, out: FileIO, timeout: float) -> None:
        """Request and write what is missing; TemporaryError if the connection breaks."""
        have = _length(out)
        begun = _begun(self.target) if have else None
        # A download can be resumed if the server identifies the version, or if a checksum will verify the result.
        if begun is None or begun.address != address or (begun.version is None and self.expected is None):
            have, begun = out.truncate(0), None
        elif have == (begun.total or self.file.size):
            return  # complete; an earlier call was stopped before it verified the file
        try:
            version = begun.version if begun else None
            with ask(address, start=have, version=version, token=self.file.token, timeout=timeout) as answer:
                if answer.start == 0 and have:
                    have, begun = out.truncate(0), None  # the server sends all of it, or has another version
                total = self._agree(answer, begun, have)
                self._write(answer, out, total)
        except BeyondTheEndError:
            out.truncate(0)
            raise TemporaryError("the server's file is shorter than what was already downloaded") from None
        if total is not None and _length(out) < total:
            raise TemporaryError(f"the connection ended after {_length(out):,} of {total:,} bytes")

    def _agree(self, answer: Answer, begun: _Version | None, have: int) -> int | None:
        """The total number of bytes; RefusedError if the answer does not match the request and what is known."""
        if answer.start != have:
            raise RefusedError(f"{answer.address} answers from byte {answer.start:,} instead of {have:,}")
        total = answer.total if answer.total is not None else self.file.size
        if self.file.size is not None and total != self.file.size:
            raise RefusedError(
                f"{answer.address} offers {total:,} bytes instead of {self.file.size:,}:"
                " the file has changed, or this is an error page"
            )
        if begun is not None and begun.total is not None and total != begun.total:
            raise RefusedError(f"{answer.address} now offers another file")
        if total is None and self.expected is None:
            raise RefusedError(f"{answer.address} does not give the file's length, and no checksum is known")
        return total

    def _write(self, answer: Answer, out: FileIO, total: int | None) -> None:
        have = answer.start
        version = _Version(address=answer.address, total=answer.total, version=answer.version)
        with _disk_space(self.target, None if total is None else total - have):
            _about(self.target).write_text(json.dumps(asdict(version)), encoding="utf-8")
            self.progress(f"downloading {self.file.name}", have, total)
            for chunk in answer.chunks(_CHUNK):
                have += len(chunk)
                if total is not None and have > total:
                    raise RefusedError(f"{answer.address} sends more than {total:,} bytes")
                _write_all(out, chunk)
                self.progress(f"downloading {self.file.name}", have, total)


def _write_all(file: FileIO, data: bytes) -> None:
    """Write all of it. The file has no buffer, so a full disk is noticed here and not again when the file is closed."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _length(out: FileIO) -> int:
    return out.seek(0, os.SEEK_END)


def _begun(target: Path) -> _Version | None:
    try:
        facts = json.loads(_about(target).read_text(encoding="utf-8"))
        return _Version(address=facts["address"], total=facts["total"], version=facts["version"])
    except (OSError, ValueError, TypeError, KeyError):
        return None  # unknown: start again


@contextmanager
def _partial(target: Path) -> Iterator[FileIO]:
    """The partial file of `target`, locked and open at its end; it is removed if it stays empty."""
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
            # Only if the name still belongs to this file, which may have its final name already.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(out.fileno())) and path.stat().st_size == 0:
                path.unlink()
                _about(target).unlink(missing_ok=True)


def _lock(out: FileIO, target: Path) -> None:
    if not try_lock(out.fileno()):
        raise DataError(f"another process is downloading {target.name} to {target.parent}", hint="wait for it")


@contextmanager
def _disk_space(target: Path, needed: int | None) -> Iterator[None]:
    """DataError if the disk is too small, at once or when it becomes full."""
    free = shutil.disk_usage(target.parent).free
    if needed is not None and needed > free:
        raise _full(target, needed, free)
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise DataError(f"{target} cannot be written: {error.strerror or error}") from error
        raise _full(target, needed, shutil.disk_usage(target.parent).free) from error


def _full(target: Path, needed: int | None, free: int) -> DataError:
    wanted = "" if needed is None else f" {needed:,} more bytes are needed and"
    return DataError(
        f"the disk is too full for {target.name} in {target.parent}:{wanted} {free:,} are free",
        hint="free some space, or choose another folder with `into`; the partial download is kept and will be resumed",
    )


def _about(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial.json")
