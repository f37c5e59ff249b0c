"""Object storage and web servers, through fsspec: files read by ranges, listed, fetched whole, and written and verified.

Everything that vitlab asks a server for goes through `_asked`: each request has a time limit; what may work later (status 500, 503
and 429, a cut or reset connection, a body that ends too early, no answer in time) is asked again with growing, random pauses; what
does not is one sentence with a hint. fsspec and the package of a scheme are imported when an address is first used.

A process has one file system for each scheme, made on first use and again after a fork. What is read is kept in a cache on disk
(io/cache.py); `RemoteFile.expect` reads in advance, in threads.
"""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import os
import random
import shutil
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from hashlib import blake2b
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies
from zlib import crc32

from vitlab.errors import DataError, StorageError, VitlabError, masked
from vitlab.io.address import Address
from vitlab.io.atomic import locked
from vitlab.io.cache import BlockCache, cache_folder, default_limit
from vitlab.io.display import ProgressCallback, silent
from vitlab.io.machine import prefetched
from vitlab.io.optional import optional_import
from vitlab.io.range_client import BrokenAnswerError, RangeConnection

T = TypeVar("T")
Stamp = tuple[int, int, int]

_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "hf": "huggingface_hub"}
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`; for a public bucket set FSSPEC_S3_ANON=true",
    "gs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "hf": "run `hf auth login`, or set HF_TOKEN",
}
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
_TEMPORARY_WORDS = (
    "SlowDown",
    "Throttl",
    "InternalError",
    "ServiceUnavailable",
    "RequestTimeout",
    "RequestLimitExceeded",
    "ServerBusy",
)
_TEMPORARY_TYPES = (
    "Timeout", "Connect", "Disconnected", "Payload", "IncompleteRead", "ResponseStreaming", "HTTPClientError", "RemoteProtocol",
    "ReadError", "ServiceRequestError", "ServiceResponseError",
)  # fmt: skip
_LIBRARIES = ("aiohttp", "botocore", "aiobotocore", "urllib3", "requests", "httpx", "httpcore", "azure", "fsspec", "s3fs", "gcsfs")
_TEMPORARY_NUMBERS = (
    errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH,
)  # fmt: skip
_VERSIONS = (
    "ETag",
    "etag",
    "generation",
    "blob_id",
    "Last-Modified",
    "LastModified",
    "last_modified",
    "updated",
    "mtime",
    "created",
)
_CHUNK = 16 * 2**20  # bytes of one request for a whole file
_BLOCK = 2**20  # bytes of a block of a file that holds many images
_MOST_FETCHES = 2  # of a block in a process; if it is gone again, only what is needed is fetched
_THREADS = 64  # requests in flight for what is read in advance: 3,200 a second at 20 ms each
_TOGETHER = 8  # ranges that one thread asks for before it waits for the first of them
_MOST_EXPECTED = 256 * 2**20  # bytes of ranges that are read in advance and not yet taken
_SIGNED_SECONDS = 900  # seconds for which a signed address is used
_FORGOTTEN = 120.0  # seconds after which nobody comes for such a range any more
_BYTES_A_SECOND = 2**18  # the slowest transfer that is waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often a request is repeated: `attempts` in all, with pauses that double from `first` to `longest` seconds.

    A pause is multiplied by a random number from 0.5 to 1.5, so that many clients do not come back at once. `timeout` is the
    number of seconds that one request may take.
    """

    attempts: int = 7
    first: float = 0.25
    longest: float = 15.0
    timeout: float = 60.0

    def pause(self, attempt: int) -> float:
        """Seconds before the next attempt; `attempt` counts from 0."""
        return min(self.longest, self.first * 2.0**attempt) * random.uniform(0.5, 1.5)


PATIENCE = Patience()


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """What a server says of a file: its bytes, and a text that changes when the file changes."""

    size: int
    version: str

    @property
    def stamp(self) -> Stamp:
        """The same as numbers, as io/cache.py has them of files on disk."""
        return _stamp(self.size, self.version)


@lru_cache(maxsize=4096)  # each range that arrives is compared
def _stamp(size: int, version: str) -> Stamp:
    return size, int.from_bytes(blake2b(version.encode(), digest_size=7).digest()), 0


_Range = tuple[str, Stamp, int, int]
"""Address, stamp, offset, length."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Expected:
    """A range that is read in advance, since a time (monotonic seconds)."""

    since: float
    answer: Future[bytes]


# --- one request --------------------------------------------------------------------------------------------------------------


class _Pool:
    """Threads that do what is submitted, in order. They are daemons: no program waits for them when it ends."""

    def __init__(self, threads: int) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, name=f"remote-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """The result of `work()`, later."""
        future: Future[T] = Future()
        self._work.put((future, work))
        return future

    def close(self) -> None:
        """Cancel what has not begun, and wait for the rest."""
        with suppress(Empty):
            while (item := self._work.get_nowait()) is not None:
                item[0].cancel()
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 (whoever asks for the result gets it)
                future.set_exception(error)
            del item, future, work  # nothing is kept while waiting


class _Process:
    """What one process has open: file systems, threads, and the ranges that are read in advance."""

    def __init__(self) -> None:
        self.number = os.getpid()
        self.lock = threading.Lock()
        self.systems: dict[str, Any] = {}
        self.pools: dict[int, _Pool] = {}  # by their number of threads
        self.expected: OrderedDict[_Range, _Expected] = OrderedDict()
        self.expected_bytes = 0
        self.coming: dict[str, Future[bytes | None]] = {}  # blocks that are read in advance; None where the cache has it
        self.fetched: Counter[str] = Counter()  # how often a block was fetched
        self.seen: dict[str, Stamp] = {}  # address -> the version that the server sent last
        self.checking = threading.Lock()
        self.signing = threading.Lock()
        self.signed: dict[str, _Signed] = {}  # by address
        self.connections: dict[str, list[RangeConnection]] = {}  # to each host, open and not in use
        self.indirect = bool(getproxies())  # through a proxy, the cloud's own package asks
        self.cache: BlockCache | None = None
        self.cache_place: tuple[str | None, str | None] = None, None

    def close(self) -> None:
        """End what it has open."""
        for pool in self.pools.values():
            pool.close()
        for coming in self.coming.values():
            coming.cancel()
        for waiting in self.expected.values():
            waiting.answer.cancel()
        for connection in itertools.chain(*self.connections.values()):
            connection.close()

    def threads(self, count: int) -> _Pool:
        """A pool of so many threads, which start on the first call."""
        with self.lock:
            if count not in self.pools:
                self.pools[count] = _Pool(count)
            return self.pools[count]

    def drop(self, key: _Range, *, cancel: bool = True) -> _Expected | None:
        """Take a range out of those that are read in advance; None if it is not among them."""
        waiting = self.expected.pop(key, None)
        if waiting is not None:
            self.expected_bytes -= key[3]
            if cancel:
                waiting.answer.cancel()
        return waiting


_process = _Process()


def _here() -> _Process:
    """What this process has open; a forked process begins anew."""
    global _process
    if _process.number != os.getpid():
        _process = _Process()
    return _process


def _system(address: Address) -> Any:
    """The file system of the address's scheme; StorageError names the package that is missing."""
    here = _here()
    with here.lock:
        if address.scheme not in here.systems:
            here.systems[address.scheme] = _made(address.scheme)
        return here.systems[address.scheme]


def _made(scheme: str) -> Any:
    fsspec = optional_import("fsspec", purpose=f"{scheme}:// addresses", error=StorageError)
    package = _PACKAGES.get(scheme, "aiohttp" if scheme.startswith("http") else "fsspec")
    try:
        import_module(package)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != package:
            raise
        hint = "pip install 'vitlab[cloud]'" if package in ("s3fs", "aiohttp") else f"pip install {package}"
        raise StorageError(f"{scheme}:// addresses need {package}, which is not installed", hint=hint) from missing
    settings: dict[str, Any] = {}
    if scheme == "s3":  # requests are repeated here, and nowhere else
        limits = {"connect_timeout": 10, "read_timeout": PATIENCE.timeout / 2, "max_pool_connections": 2 * _THREADS}
        settings = {"config_kwargs": {**limits, "retries": {"total_max_attempts": 1, "mode": "standard"}}}
    if scheme != "memory":
        settings |= {"skip_instance_cache": True, "use_listings_cache": False}
    system = fsspec.filesystem(scheme, **settings)
    if scheme == "s3":
        system.retries = 1
    return system


def _asked(
    address: Address,
    request: Callable[[Any], T],
    *,
    patience: Patience | None = None,
    error: type[VitlabError] = DataError,
    purpose: str = "read",
) -> T:
    """The answer to a request, which is repeated while that may help; `error` if there is nothing at the address."""
    patience = patience or PATIENCE
    system = _system(address)
    for attempt in range(patience.attempts):
        try:
            return request(system)
        except FileExistsError:
            raise
        except Exception as fault:  # noqa: BLE001 (each package has errors of its own, which are told apart below)
            if not _is_temporary(fault):
                _refuse(address, fault, error, purpose)
            if attempt + 1 == patience.attempts:
                raise StorageError(
                    f"cannot {purpose} {address}: {_reason(fault)}, {patience.attempts} times in a row",
                    hint="check the network and the service's status, then run this again",
                ) from None  # the cause may print the address with its secret
        time.sleep(patience.pause(attempt))
    raise AssertionError("unreachable")


def _refuse(address: Address, fault: Exception, error: type[VitlabError], purpose: str) -> NoReturn:
    """Raise what an answer means that another attempt would not change."""
    if isinstance(fault, VitlabError):
        raise fault
    status, names = _status(fault), {type(one).__name__ for one in _chain(fault)}
    if "FileNotFoundError" in names or status == 404:
        bucket = any("bucket" in str(one).lower() for one in _chain(fault)) and purpose == "write"
        what = f"there is no bucket for {address}" if bucket else f"{address} does not exist"
        raise error(what, hint="check the name of the bucket and the path" if bucket else None) from None
    hint = _CREDENTIALS.get(_family(address.scheme), "check the user and password of the address")
    if any("Credential" in name or "TokenRetrieval" in name for name in names):
        raise StorageError(f"cannot {purpose} {address}: there are no credentials for {address.scheme}", hint=hint) from None
    if "PermissionError" in names or status in (401, 403):
        raise StorageError(f"cannot {purpose} {address}: access is denied ({_reason(fault)})", hint=hint) from None
    raise StorageError(f"cannot {purpose} {address}: {_reason(fault)}") from None


def _family(scheme: str) -> str:
    return {"gcs": "gs", "abfs": "az", "abfss": "az"}.get(scheme, scheme)


def _chain(fault: BaseException | None) -> Iterator[BaseException]:
    """An error and what caused it."""
    for _ in range(10):
        if fault is None:
            return
        yield fault
        fault = fault.__cause__ or fault.__context__


def _status(fault: BaseException) -> int | None:
    """The HTTP status behind an error, as each package keeps it."""
    for one in _chain(fault):
        answer = getattr(one, "response", None)
        if isinstance(answer, Mapping):
            found = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            found = getattr(one, "status", None) or getattr(one, "status_code", None) or getattr(answer, "status_code", None)
        found = getattr(one, "code", None) if found is None and type(one).__name__ == "HttpError" else found
        if isinstance(found, int) and found >= 300:
            return found
    return None


class _CutError(Exception):
    """A body that ended too early."""


def _is_temporary(fault: BaseException) -> bool:
    if any(type(one).__name__ == "HTTPClientError" for one in _chain(fault)):
        return True  # what arrived is no answer: something on the way broke the connection
    status = _status(fault)
    if status is not None:
        return status in _TEMPORARY
    for one in _chain(fault):
        name, text = type(one).__name__, str(one)
        library = type(one).__module__.partition(".")[0] in _LIBRARIES
        if isinstance(one, FileNotFoundError | PermissionError) or "Credential" in name:
            return False
        if isinstance(one, _CutError | BrokenAnswerError | TimeoutError | ConnectionError | EOFError | HTTPException):
            return True
        if isinstance(one, OSError) and (one.errno in _TEMPORARY_NUMBERS or any(word in text for word in _TEMPORARY_WORDS)):
            return True
        if library and any(word in name for word in _TEMPORARY_TYPES):
            return True
    return False


def _reason(fault: BaseException) -> str:
    """An error in a few words, without secrets."""
    text = (str(fault).strip() or type(fault).__name__).splitlines()[0]
    status = _status(fault)
    return masked(text)[:160] + (f" (status {status})" if status is not None and str(status) not in text else "")


def _limited(system: Any, seconds: float) -> dict[str, float]:
    """The time limit of one call, as fsspec takes it; file systems that are not asynchronous have limits of their own."""
    return {"timeout": seconds} if system.async_impl else {}


# --- what is there ------------------------------------------------------------------------------------------------------------


def info(address: Address, *, error: type[VitlabError] = DataError) -> Info | None:
    """The file at an address; None if there is a folder; `error` if there is nothing."""
    found = _asked(address, lambda system: system.info(address.text, **_limited(system, PATIENCE.timeout)), error=error)
    return None if found.get("type") == "directory" else _described(found, address)


def _described(found: Mapping[str, Any], address: Address) -> Info:
    size = found.get("size")
    if not isinstance(size, int):
        raise StorageError(
            f"{address} does not say how long it is, so it cannot be read by ranges", hint="download it first, then give its path"
        )
    version = next((found[key] for key in _VERSIONS if found.get(key)), "")
    text = version.isoformat() if isinstance(version, datetime) else str(version)
    return Info(size=size, version=text.strip('"'))


def exists(address: Address) -> bool:
    """Whether there is a file or folder at an address."""
    try:
        info(address)
    except DataError:
        return False
    return True


def is_file(address: Address) -> bool:
    """Whether there is a file at an address."""
    try:
        return info(address) is not None
    except DataError:
        return False


def files_below(address: Address, *, error: type[VitlabError] = DataError) -> dict[str, Info]:
    """Every file below a folder: its path relative to it, sorted; empty if there is none."""

    def find(system: Any) -> dict[str, Info]:
        root = str(system._strip_protocol(address.path.rstrip("/"))).rstrip("/") + "/"
        found = system.find(address.as_folder.text, detail=True, **_limited(system, 10 * PATIENCE.timeout))
        below = {str(name).removeprefix(root): facts for name, facts in found.items() if str(name).startswith(root)}
        names = [name for name in sorted(below) if name and not name.endswith("/")]
        if all(isinstance(below[name].get("size"), int) for name in names):
            return {name: _described(below[name], address / name) for name in names}
        with closing(
            prefetched(lambda name: info(address / name), names, threads=_THREADS)
        ) as told:  # a web server's page of links
            return {name: facts for name, facts in zip(names, told, strict=True) if facts is not None}

    try:
        return _asked(address, find, error=error)
    except error as nothing:
        if isinstance(nothing, StorageError):
            raise
        return {}


def matches(pattern: Address) -> list[Address]:
    """The files that match a glob, sorted."""
    start = f"{pattern.scheme}://"

    def find(system: Any) -> list[Address]:
        found = system.glob(pattern.text, **_limited(system, 10 * PATIENCE.timeout))
        return [Address(name if "://" in name else start + name.lstrip("/")) for name in sorted(map(str, found))]

    return _asked(pattern, find)


# --- ranges -------------------------------------------------------------------------------------------------------------------


def read_range(
    address: Address, offset: int, length: int, *, begun: _Begun | None = None, error: type[VitlabError] = DataError
) -> bytes:
    """These bytes of a file, asked of the server; a shorter answer is asked for again. `begun` is a request that was sent."""
    if length <= 0:
        return b""
    sent = [] if begun is None else [begun]

    def read(system: Any) -> bytes:
        data = _read_directly(system, address, offset, length, sent.pop() if sent else None)
        if data is None:
            limit = _limited(system, PATIENCE.timeout + length / _BYTES_A_SECOND)
            data = system.cat_file(address.text, start=offset, end=offset + length, **limit)
        assert isinstance(data, bytes)
        if len(data) > length:
            raise StorageError(
                f"{address} is on a server that sends whole files instead of ranges", hint="download it first, then give its path"
            )
        if len(data) < length:
            raise _CutError(f"the answer has {len(data):,} of {length:,} bytes")
        return data

    return _asked(address, read, error=error)


class _StatusError(Exception):
    """A status that another attempt may change."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A request that was sent, on a connection that may have served others before, and that is then put to the others."""

    connection: RangeConnection
    reused: bool
    idle: list[RangeConnection]


def _begin(system: Any, address: Address, offset: int, length: int) -> _Begun | None:
    """Ask for a range by a signed address and a connection that stays open; None where fsspec has to ask.

    s3fs takes 3 ms of CPU time for a request, more than an image takes to decode; this takes 0.1 ms. An address is signed
    once and used for all ranges of a file.
    """
    here = _here()
    if address.scheme != "s3" or here.indirect:
        return None
    signed = _signed(system, address)
    idle = here.connections.setdefault(signed.origin, [])
    while True:
        try:
            begun = _Begun(connection=idle.pop(), reused=True, idle=idle)
        except IndexError:
            connection = RangeConnection(signed.scheme, signed.host, timeout=PATIENCE.timeout / 2)
            begun = _Begun(connection=connection, reused=False, idle=idle)
        try:
            begun.connection.ask(signed.target, offset, length)
        except TimeoutError:
            raise
        except OSError:
            if begun.reused:
                continue  # the server had closed it meanwhile
            raise
        return begun


def _read_directly(system: Any, address: Address, offset: int, length: int, begun: _Begun | None) -> bytes | None:
    """A range that `_begin` asks for, or has asked for. What is not simply an answer with the range is left to fsspec (None), which
    knows its meaning."""
    here, seconds = _here(), PATIENCE.timeout + length / _BYTES_A_SECOND
    while (begun := begun or _begin(system, address, offset, length)) is not None:
        try:
            answer = begun.connection.answer(seconds=seconds)
        except TimeoutError:
            raise
        except OSError:
            if begun.reused:
                begun = None
                continue  # the server had closed it meanwhile
            raise
        if begun.connection.is_open:
            begun.idle.append(begun.connection)
        if answer.data is not None:
            if answer.size is not None and answer.tag:
                here.seen[address.text] = _stamp(answer.size, answer.tag)
            return answer.data
        if answer.status in _TEMPORARY:
            raise _StatusError(answer.status)
        here.signed.pop(address.text, None)
        return None
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signed:
    """An address that is signed, in parts, and until when it is used (monotonic seconds)."""

    scheme: str
    host: str
    target: str = field(repr=False)  # has the signature
    until: float

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.host}"


def _signed(system: Any, address: Address) -> _Signed:
    here = _here()
    signed = here.signed.get(address.text)
    if signed is not None and time.monotonic() < signed.until:
        return signed
    with here.signing:  # one thread signs, and the others use it
        signed = here.signed.get(address.text)
        if signed is None or time.monotonic() > signed.until:
            place = urlsplit(str(system.sign(address.text, expiration=2 * _SIGNED_SECONDS)))
            target = f"{place.path}?{place.query}" if place.query else place.path
            until = time.monotonic() + _SIGNED_SECONDS
            signed = _Signed(scheme=place.scheme, host=place.netloc, target=target, until=until)
            here.signed[address.text] = signed
        return signed


def read_all(address: Address, *, most: int, error: type[VitlabError] = DataError) -> bytes:
    """A whole small file; `error` if it is a folder or has more than `most` bytes."""
    found = info(address, error=error)
    if found is None:
        raise error(f"{address} is a folder")
    if found.size > most:
        raise error(f"{address} has {found.size:,} bytes; the limit is {most:,}")
    return RemoteFile(address, found.stamp).read(0, found.size)


def read_now(address: Address, *, most: int, error: type[VitlabError] = DataError) -> bytes:
    """A whole small file as it is now, in one request, past the cache: for files that change."""
    data = _asked(address, partial(_whole, address), error=error)
    if len(data) > most:
        raise error(f"{address} has {len(data):,} bytes; the limit is {most:,}")
    return data


class RemoteFile:
    """A file read by offset, as io/files.py's PositionedFile reads one on disk. Picklable; safe with threads and after a fork.

    `stamp` describes the file when its offsets were listed; a file that has changed since is refused, but not without `check`, for
    a file that is read in one piece. Bytes come from the cache, from what is `expect`ed, or from the server. With `blocks`, the
    server is asked for whole blocks of the file, each once; else for exactly what is read, and the fraction `kept` of the ranges
    goes to the cache, always the same ones (`fraction_kept` says how many fit; where all do, blocks are better).
    """

    def __init__(self, address: Address, stamp: Stamp, *, check: bool = True, blocks: bool = False, kept: float = 1.0) -> None:
        self.address = address
        self.stamp = stamp
        self._check = check
        self._blocks = blocks
        self._kept = int(kept * 2**32)
        self._version = f"{address}|{stamp}"

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the file."""
        length = max(0, min(length, self.stamp[0] - offset))
        if not self._in_blocks(offset, length):
            return self._read_range(offset, length)
        end = offset + length
        parts = []
        for start in self._starts(offset, length):
            first, last = max(offset, start), min(end, start + _BLOCK)
            parts.append(self._read_part(start, first - start, last - first))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Begin to read these ranges (offset, length), which will be asked for soon."""
        expect([(self, offset, length) for offset, length in ranges])

    # Blocks: they lie in the cache, and images are read from there.

    def _starts(self, offset: int, length: int) -> range:
        """Where the blocks begin that hold a range."""
        end = min(offset + length, self.stamp[0])
        return range(offset // _BLOCK * _BLOCK if offset < end else end, end, _BLOCK)

    def _in_blocks(self, offset: int, length: int) -> bool:
        """Whether a range is read from blocks: not if one did not stay, because others need the cache or its disk is full."""
        here = _here()
        return self._blocks and not any(
            here.fetched[name] >= _MOST_FETCHES and not block_cache().is_verified(name)
            for name in (self._name(start, _BLOCK) for start in self._starts(offset, length))
        )

    def _read_part(self, start: int, inside: int, length: int) -> bytes:
        """`length` bytes of the block that begins at `start`."""
        here, name = _here(), self._name(start, _BLOCK)
        if (coming := here.coming.get(name)) is not None and (arrived := coming.result()) is not None:
            return arrived[inside : inside + length]
        if (kept := block_cache().get(name, inside, length)) is not None:
            return kept
        if here.fetched[name] >= _MOST_FETCHES:
            return self._read_range(start + inside, length)
        return self._fetch_block(start)[inside : inside + length]

    def _expect_block(self, start: int) -> None:
        here, name = _here(), self._name(start, _BLOCK)
        with here.lock:
            if name in here.coming or block_cache().is_verified(name):
                return
            coming: Future[bytes | None] = Future()
            here.coming[name] = coming
        here.threads(_THREADS).submit(partial(self._bring_block, start, coming))

    def _bring_block(self, start: int, coming: Future[bytes | None]) -> None:
        """Have a block in the cache, verified. Who waits for it has it as soon as it arrives, before it is written."""
        name = self._name(start, _BLOCK)
        try:
            if block_cache().get(name, 0, 0) is None:
                self._fetch_block(start, coming)
            if not coming.done():
                coming.set_result(None)
        except BaseException as error:  # noqa: BLE001 (whoever asks for the block gets it)
            if not coming.done():
                coming.set_exception(error)
        finally:
            _here().coming.pop(name, None)

    def _fetch_block(self, start: int, coming: Future[bytes | None] | None = None) -> bytes:
        here, name = _here(), self._name(start, _BLOCK)

        def fetch() -> bytes:
            with here.lock:
                here.fetched[name] += 1
            data = self._ask(start, min(_BLOCK, self.stamp[0] - start))
            if coming is not None:
                coming.set_result(data)
            return data

        return block_cache().fill(name, fetch, parts=True)

    # Ranges: one request for each, which is held in memory until it is read.

    def _is_kept(self, name: str) -> bool:
        """Whether this range goes to the cache. Of a fixed part that fits, each image is there in every epoch; the images that
        were used last would be removed before their next turn (of a tenth of the data, 0.5 % are still there; docs/log.md)."""
        return self._kept >= 2**32 or crc32(name.encode()) < self._kept

    def _read_range(self, offset: int, length: int) -> bytes:
        here = _here()
        with here.lock:
            waiting = here.drop(self._key(offset, length), cancel=False)
        return self._bring_range(offset, length) if waiting is None else waiting.answer.result()

    def _expect_range(self, offset: int, length: int) -> Future[bytes] | None:
        """What will be the bytes of a range; None if they are there or coming. The caller sees to it that they come."""
        here, now, key, name = _here(), time.monotonic(), self._key(offset, length), self._name(offset, length)
        if self._is_kept(name) and name in block_cache():
            return None  # it is read when it is asked for
        with here.lock:
            while here.expected and now - next(iter(here.expected.values())).since > _FORGOTTEN:
                here.drop(next(iter(here.expected)))  # of a stream that ended early
            if key in here.expected or here.expected_bytes + length > _MOST_EXPECTED:
                return None
            answer: Future[bytes] = Future()
            here.expected[key] = _Expected(since=now, answer=answer)
            here.expected_bytes += length
        return answer

    def _is_simple(self, offset: int, length: int) -> bool:
        """Whether a range is only asked for, on a connection of our own: it does not go to the cache."""
        return self.address.scheme == "s3" and not _here().indirect and not self._is_kept(self._name(offset, length))

    def _begin_range(self, offset: int, length: int) -> _Begun | None:
        """Ask for a range; None if that fails, and `_bring_range` asks again."""
        try:
            return _begin(_system(self.address), self.address, offset, length)
        except Exception:  # noqa: BLE001 (each package has errors of its own, which `_asked` tells apart)
            return None

    def _bring_range(self, offset: int, length: int, begun: _Begun | None = None) -> bytes:
        cache, name = block_cache(), self._name(offset, length)
        if not self._is_kept(name):
            return self._ask(offset, length, begun)
        kept = cache.get(name)
        return cache.fill(name, partial(self._ask, offset, length)) if kept is None else kept

    def _key(self, offset: int, length: int) -> _Range:
        return self.address.text, self.stamp, offset, length

    # Both.

    def _name(self, offset: int, length: int) -> str:
        return f"{self._version}|{offset}|{length}"

    def _ask(self, offset: int, length: int, begun: _Begun | None = None) -> bytes:
        """These bytes from the server, of the version that was opened."""
        data = read_range(self.address, offset, length, begun=begun)
        here = _here()
        if self._check and here.seen.get(self.address.text) != self.stamp:
            with here.checking:  # one thread asks, and the others wait for its answer
                if here.seen.get(self.address.text) != self.stamp:
                    found = info(self.address)
                    if found is None or found.stamp != self.stamp:
                        raise DataError(f"{self.address} has changed since it was opened", hint="start again")
                    here.seen[self.address.text] = found.stamp
        return data


def expect(ranges: Sequence[tuple[RemoteFile, int, int]]) -> None:
    """Begin to read these ranges (file, offset, length), which will be asked for soon, in this order."""
    here = _here()
    groups: list[list[_Wanted]] = []
    for file, offset, length in ranges:
        if file._in_blocks(offset, length):
            for start in file._starts(offset, length):
                file._expect_block(start)
        elif (answer := file._expect_range(offset, length)) is not None:
            if not file._is_simple(offset, length):
                here.threads(_THREADS).submit(partial(_bring_ranges, [(file, offset, length, answer)]))
            elif groups and len(groups[-1]) < _TOGETHER:
                groups[-1].append((file, offset, length, answer))
            else:
                groups.append([(file, offset, length, answer)])
    for group in groups:
        here.threads(_THREADS // _TOGETHER).submit(partial(_bring_ranges, group))


_Wanted = tuple[RemoteFile, int, int, Future[bytes]]
"""File, offset, length, and what will be its bytes."""


def _bring_ranges(wanted: Sequence[_Wanted]) -> None:
    """Ask for all of them, then receive them in order. One wait for several ranges takes half of the CPU time (docs/log.md)."""
    begun = [file._begin_range(offset, length) if len(wanted) > 1 else None for file, offset, length, _ in wanted]
    for (file, offset, length, answer), request in zip(wanted, begun, strict=True):
        if not answer.set_running_or_notify_cancel():
            if request is not None:
                request.connection.close()  # nobody wants its answer any more
            continue
        try:
            answer.set_result(file._bring_range(offset, length, request))
        except BaseException as error:  # noqa: BLE001 (whoever asks for the range gets it)
            answer.set_exception(error)


def fraction_kept(size: int) -> float:
    """The fraction of data of so many bytes that half of the cache holds; the other half is for other data.

    Where it is 1, data is read in blocks: each stays until all of it is used. Images come in random order, so the blocks of larger
    data would be removed and fetched again, each time for one image of them.
    """
    return min(1.0, block_cache().limit / (2 * size)) if size else 1.0


def block_cache() -> BlockCache:
    """The cache of blocks and ranges: in the user's cache folder, or wherever XDG_CACHE_HOME is now."""
    here, place = _here(), (os.environ.get("XDG_CACHE_HOME"), os.environ.get("HOME"))
    if here.cache is None or here.cache_place != place:  # compared as text: this is asked twice for each image
        folder = cache_folder() / "remote"
        here.cache, here.cache_place = BlockCache(folder, default_limit(folder)), place
    return here.cache


class RemoteStream(io.RawIOBase):
    """A remote file as a Python file that can only be read, for libraries that take one."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self._file = file
        self._place = 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be read from anywhere."""
        return True

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to an offset."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.stamp[0]}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer."""
        data = self._file.read(self._place, len(buffer))
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, all of them without a size."""
        left = max(0, self._file.stamp[0] - self._place)
        data = self._file.read(self._place, left if size is None or size < 0 else min(size, left))
        self._place += len(data)
        return data


# --- whole files --------------------------------------------------------------------------------------------------------------


def fetch(
    address: Address, *, root: Address | None = None, error: type[VitlabError] = DataError, progress: ProgressCallback = silent
) -> Path:
    """A local copy of a file, made on the first call and when the file has changed; a copy that was damaged is made again.

    Files of one folder have one local folder; with `root`, that is the folder of everything below it. The copies are in the
    user's cache folder and may be deleted at any time; old ones are, to keep the limit of the cache.
    """
    root = root or address.parent
    found = info(address, error=error)
    if found is None:
        raise error(f"{address} is a folder, not a file")
    folder = copies_of(root)
    path = folder / address.path.removeprefix(root.path.rstrip("/") + "/")
    if _is_whole(path, found):
        os.utime(folder)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    _make_room(folder.parent, found.size, keep=folder)
    download(address, path, found, error=error, progress=progress)
    return path


def copies_of(root: Address) -> Path:
    """The local folder of the copies of what is below an address."""
    return cache_folder() / "objects" / blake2b(str(root).rstrip("/").encode(), digest_size=16).hexdigest()


def download(
    address: Address, path: Path, found: Info, *, error: type[VitlabError] = DataError, progress: ProgressCallback = silent
) -> None:
    """Copy a file to disk in large ranges, several at a time. It appears complete or not at all; its checksum is beside it."""
    starts = range(0, found.size, _CHUNK)

    def part(start: int) -> bytes:
        return read_range(address, start, min(_CHUNK, found.size - start), error=error)

    made, their = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    try:
        handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
        try:
            with os.fdopen(handle, "wb") as file, closing(prefetched(part, starts, threads=4, depth=4)) as parts:
                for data in parts:
                    made.update(data)
                    their.update(data)
                    file.write(data)
                    progress(address.name, file.tell(), found.size)
            if _is_md5(found.version) and their.hexdigest() != found.version and not _is_sealed(address):
                raise StorageError(f"{address} arrived damaged: its MD5 differs from the server's", hint="run this again")
            Path(unfinished).chmod(0o644)
            os.replace(unfinished, path)  # noqa: PTH105
        finally:
            Path(unfinished).unlink(missing_ok=True)
        _sum_beside(path).write_text(f"{made.hexdigest()} {found.stamp}", encoding="utf-8")
    except OSError as fault:
        raise error(f"cannot write {path}: {fault.strerror or fault}") from fault


def _is_md5(version: str) -> bool:
    return len(version) == 32 and all(letter in "0123456789abcdef" for letter in version)


def _is_sealed(address: Address) -> bool:
    """Whether the ETag may be no MD5: on other services than S3, and where the server encrypts the file with a key of its own."""
    if address.scheme != "s3":
        return True
    facts = _asked(address, lambda system: system.info(address.text, **_limited(system, PATIENCE.timeout)))
    return any("encryption" in str(key).lower() or "kms" in str(key).lower() for key in facts)


def _sum_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")


def _is_whole(path: Path, found: Info) -> bool:
    """Whether a copy is of this version, and still has the bytes that arrived."""
    try:
        expected, _, version = _sum_beside(path).read_text(encoding="utf-8").partition(" ")
        if version != str(found.stamp) or path.stat().st_size != found.size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == expected
    except OSError:
        return False


def _make_room(folder: Path, needed: int, *, keep: Path) -> None:
    """Remove copies that were used longest ago until a new one fits into the limit of the cache."""
    entries = []
    for entry in folder.iterdir():
        with suppress(OSError):
            if entry != keep and entry.is_dir():
                entries.append((entry.stat().st_mtime, sum(file.lstat().st_size for file in entry.rglob("*")), entry))
    left = default_limit(folder) - needed - sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries):
        if left >= 0:
            return
        shutil.rmtree(entry, ignore_errors=True)
        left += size


# --- writing ------------------------------------------------------------------------------------------------------------------


def write(address: Address, data: bytes, *, error: type[VitlabError] = StorageError) -> None:
    """Write a small file, and read it back to see that it is there. A file is replaced at once: readers see the old or the new."""

    def put(system: Any) -> None:
        system.pipe_file(address.text, data, **_limited(system, PATIENCE.timeout + len(data) / _BYTES_A_SECOND))

    _asked(address, put, error=error, purpose="write")
    if _asked(address, partial(_whole, address), error=error) != data:
        raise StorageError(
            f"{address} does not hold what was written to it: somebody else writes there too", hint="choose another one"
        )


def create(address: Address, data: bytes) -> bool:
    """Write a small file if there is none; False if there is one. Of several writers at the same time one succeeds."""
    try:
        _asked(address, partial(_put_new, address, data), error=StorageError, purpose="write")
    except FileExistsError:
        # An attempt whose answer was lost may have written it: then it holds this very data.
        return _asked(address, partial(_whole, address), error=StorageError) == data
    return True


def _put_new(address: Address, data: bytes, system: Any) -> None:
    try:
        system.pipe_file(address.text, data, mode="create", **_limited(system, PATIENCE.timeout))
    except FileExistsError:
        raise
    except OSError as fault:
        if _status(fault) in (409, 412):
            raise FileExistsError from fault
        raise


def _whole(address: Address, system: Any) -> bytes:
    data: bytes = system.cat_file(address.text, **_limited(system, PATIENCE.timeout))
    return data


def upload(path: Path, address: Address, *, progress: ProgressCallback = silent) -> None:
    """Copy a file from disk, then verify that the server has all of it: by size and MD5, or by reading it back."""
    size = path.stat().st_size
    with path.open("rb") as file:
        ours = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        md5 = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()

    def put(system: Any) -> None:
        limit = _limited(system, PATIENCE.timeout + size / _BYTES_A_SECOND)
        system.put_file(str(path), address.text, **limit)
        found = info(address, error=StorageError)
        if found is None or found.size != size:
            raise _CutError(f"the server has {0 if found is None else found.size:,} of {size:,} bytes")
        if found.version != md5 and _remote_sum(address, size) != ours:
            raise _CutError("the server has other bytes than were sent")

    _asked(address, put, error=StorageError, purpose="write")
    progress(address.name, size, size)


def _remote_sum(address: Address, size: int) -> str:
    made = hashlib.sha256()
    for start in range(0, size, _CHUNK):
        made.update(read_range(address, start, min(_CHUNK, size - start), error=StorageError))
    return made.hexdigest()


def delete(address: Address) -> None:
    """Delete a file; one that is not there is no error."""
    try:
        _asked(address, lambda system: system.rm_file(address.text, **_limited(system, PATIENCE.timeout)), purpose="delete")
    except DataError:
        return


# --- results ------------------------------------------------------------------------------------------------------------------


@contextmanager
def staged(address: Address, *, overwrite: bool = False, resume: bool = False) -> Iterator[Path]:
    """A local path for a file or folder; what the block writes there is copied to the address when it ends.

    DataError if there is something already, unless `overwrite`. With `resume`, a file that is there is given to the block, and what
    it has written is copied also after an error. After an error the local file stays, for the next call.
    """
    if not overwrite and not resume and exists(address):
        raise DataError(f"{address} exists already", hint="`overwrite=True` replaces it")
    folder = cache_folder() / "outputs" / blake2b(str(address).rstrip("/").encode(), digest_size=16).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / address.name

    def in_use(holder: str) -> DataError:
        return DataError(f"{address} is being written by {holder}", hint="wait for it, stop it, or choose another one")

    with locked(folder / ".lock", refuse=in_use):
        if resume and not path.exists() and (found := _file_at(address)) is not None:
            download(address, path, found)
            _sum_beside(path).unlink()
        try:
            yield path
        except BaseException:
            if resume and path.is_file():
                upload(path, address)
            raise
        files = sorted(path.rglob("*"), key=lambda file: (file.suffix == ".json", str(file))) if path.is_dir() else [path]
        for file in files:  # descriptions last
            if file.is_file() and not file.name.startswith("."):
                upload(file, address if file == path else address / file.relative_to(path).as_posix())
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _file_at(address: Address) -> Info | None:
    try:
        return info(address)
    except DataError:
        return None
