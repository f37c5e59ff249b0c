"""Caches on disk: arrays made from a file, valid until it changes; and blocks of bytes, with a limit and a checksum of each."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from hashlib import blake2b
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from vitlab.errors import ConfigError
from vitlab.io.address import Address, Place
from vitlab.io.atomic import try_lock

Arrays = dict[str, NDArray[np.generic]]


def cache_folder() -> Path:
    """The cache folder: $XDG_CACHE_HOME/vitlab, else ~/.cache/vitlab."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitlab"


def recall(kind: str, path: Place) -> Arrays | None:
    """The cached arrays about `path`, or None if there are none or they are damaged."""
    try:
        with _file(kind, path).open("rb") as file:  # numpy does not close a damaged file
            stored = np.load(file, allow_pickle=False)
            return {name: stored[name] for name in stored.files} if isinstance(stored, NpzFile) else None
    except (OSError, ValueError, EOFError, KeyError, BadZipFile):
        return None


def remember(kind: str, path: Place, arrays: Arrays) -> None:
    """Cache arrays about `path`, atomically.

    If the cache cannot be written (a full disk, no permission), nothing is cached and the work is done again next time.
    """
    file = _file(kind, path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=file.parent, prefix=".partial-")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as out:
            np.savez(out, allow_pickle=False, **arrays)
        os.replace(partial, file)  # noqa: PTH105
    except OSError:
        Path(partial).unlink(missing_ok=True)


def _file(kind: str, path: Place) -> Path:
    place = str(path).encode() if isinstance(path, Address) else os.fsencode(path.absolute())
    key = blake2b(place, digest_size=16).hexdigest()
    return cache_folder() / kind / f"{key}.npz"


_FOLDERS = 64
_FORMAT = b"crc32"  # blocks of another format have other names, and go when they were used longest ago
_SUM = 4
_PIECE = 2**18  # bytes
_LARGEST = 2**30  # bytes of a block, which is read by one call
_UNUSED = 3600.0  # seconds after which the file of a killed writer is removed
_SAME_USE = 60.0  # seconds in which the uses of a block count as one
_POLL = 0.01  # seconds
_LONGEST_WAIT = 120.0  # seconds
_DEFAULT = 20 * 2**30
_FRACTION_OF_FREE = 4
LIMIT_VARIABLE = "VITLAB_REMOTE_CACHE"
"""Environment variable: the limit of the cache in GiB; 0 switches it off."""

_Version = tuple[int, int, int]
"""Inode, bytes and time of the last change of a file."""


class BlockCache:
    """Blocks of bytes by key, at most about `limit` bytes of them; 0 keeps nothing. Safe with threads; picklable.

    Any number of processes share the folder.

    A block is one file, whose name is the hash of its key: the CRC-32 of the content, then the content. A block whose content
    does not match is removed and counts as missing. A process verifies a block that is read in parts once, and again when the
    file has changed. While a block is fetched, its file has another name, and whoever fetches it has locked it: other processes
    wait instead of fetching it too, and a killed one leaves neither half a block nor a lock.

    A process counts the bytes of the cache when it first writes to it and again after it has written a tenth of the limit, and
    removes the blocks that were used longest ago. So n processes exceed the limit by n tenths of it at most.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._lock = threading.Lock()
        self._busy = threading.Lock()  # one thread verifies or writes: many would take the CPU from the thread that decodes
        self._written: int | None = None  # bytes that this process wrote since it counted the cache
        self._verified: dict[str, tuple[_Version, float]] = {}  # path -> the file that was verified, and when it was marked as used

    def __getstate__(self) -> tuple[Path, int]:
        return self.folder, self.limit

    def __setstate__(self, state: tuple[Path, int]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def __contains__(self, key: str) -> bool:
        """Whether there is such a block, which may be damaged."""
        return bool(self.limit) and os.path.exists(self._path(key))  # noqa: PTH110 (a Path takes as long as the call)

    def is_verified(self, key: str) -> bool:
        """Whether this process has verified the block, so that a part of it can be read at once; it may be gone by now."""
        return self._path(key) in self._verified

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """The block, or `length` bytes of it; None if it is not there or damaged."""
        if not self.limit:
            return None
        path = self._path(key)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._verified.pop(path, None)
            return None
        try:
            return self._read(path, handle, start, length)
        except OSError:
            return None
        finally:
            os.close(handle)

    def _read(self, path: str, handle: int, start: int, length: int | None) -> bytes | None:
        status, now = os.fstat(handle), time.monotonic()
        version: _Version = (status.st_ino, status.st_size, status.st_mtime_ns)
        verified, used = self._verified.get(path, (None, -_SAME_USE))
        if now - used >= _SAME_USE:
            used = now
            with suppress(OSError):
                os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))  # used now, and not changed
        stated = os.pread(handle, _SUM, 0)
        if length is None:  # none of the blocks that are read whole is remembered: there may be millions
            content = os.pread(handle, status.st_size, _SUM)
            if _sum(content) == stated:
                return content
        elif version == verified or self._sum_of(handle) == stated:
            self._verified[path] = version, used
            return os.pread(handle, min(length, status.st_size), _SUM + start)
        self._verified.pop(path, None)
        os.unlink(path)  # noqa: PTH108
        return None

    def fill(self, key: str, fetch: Callable[[], bytes], *, parts: bool = False) -> bytes:
        """The block, fetched and kept if it is not there; if another process is fetching it, this waits for that.

        `parts` says that parts of it will be read. A disk that cannot take it is no error: it is fetched again when it is needed.
        """
        path = self._path(key)
        partial = f"{os.path.dirname(path)}/.{os.path.basename(path)}"  # noqa: PTH119, PTH120
        try:
            handle = _claimed(path, partial) if self.limit else None
        except OSError:
            return fetch()
        if handle is None:
            there = self.get(key, 0, _LARGEST if parts else None)
            return fetch() if there is None else there
        kept = False
        try:
            content = fetch()
            if len(content) + _SUM <= min(self.limit // 10, _LARGEST):
                with self._busy:
                    kept = _written(path, partial, handle, content)
            if kept:
                self._count(path, handle, parts=parts)
        finally:
            if not kept:
                with suppress(OSError):
                    os.unlink(partial)  # noqa: PTH108 (before it is unlocked)
            os.close(handle)
        return content

    def _count(self, path: str, handle: int, *, parts: bool) -> None:
        """Remember a new block, and make room after many of them."""
        status = os.fstat(handle)
        if parts:
            self._verified[path] = (status.st_ino, status.st_size, status.st_mtime_ns), time.monotonic()
        with self._lock:
            self._written = self.limit if self._written is None else self._written + status.st_size
            if self._written * 10 < self.limit:
                return
            self._written = 0
        _shrink(self.folder, self.limit)

    def _sum_of(self, handle: int) -> bytes:
        """The checksum of a block's content, in pieces that stay in the CPU's cache."""
        buffer, place, found = memoryview(bytearray(_PIECE)), _SUM, 0
        with self._busy:
            while length := os.preadv(handle, [buffer], place):
                found, place = zlib.crc32(buffer[:length], found), place + length
        return found.to_bytes(_SUM)

    def _path(self, key: str) -> str:
        name = blake2b(key.encode("utf-8", "surrogateescape"), digest_size=20, person=_FORMAT).hexdigest()
        return f"{self.folder}/{int(name[:2], 16) % _FOLDERS:02d}/{name}"


def default_limit(folder: Path) -> int:
    """Bytes of the cache: VITLAB_REMOTE_CACHE in GiB, else 20 GiB or a quarter of the free disk, whichever is less."""
    asked = os.environ.get(LIMIT_VARIABLE)
    if asked is not None:
        try:
            gib = float(asked)
        except ValueError:
            gib = -1.0
        if not 0 <= gib < 2**30:
            raise ConfigError(f"{LIMIT_VARIABLE}={asked!r} is not a number of GiB", hint="0 switches the cache off")
        return int(gib * 2**30)
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return min(_DEFAULT, shutil.disk_usage(there).free // _FRACTION_OF_FREE)


def _sum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_SUM)


def _written(path: str, partial: str, handle: int, content: bytes) -> bool:
    """Write a block and give it its name; False if the disk cannot take it."""
    try:
        for data in (_sum(content), content):
            left = memoryview(data)
            while left:
                left = left[os.write(handle, left) :]
        os.ftruncate(handle, _SUM + len(content))  # it may be what a killed process left
        os.replace(partial, path)  # noqa: PTH105
    except OSError:
        return False
    return True


def _claimed(path: str, partial: str) -> int | None:
    """The file of a block that nobody else fetches, open and locked; None if the block is there.

    TimeoutError, an OSError, if another process fetches it for too long: it may have been suspended.
    """
    began = time.monotonic()
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
    while True:
        handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with ExitStack() as stack:
            stack.callback(os.close, handle)
            while not try_lock(handle):  # on a disk without locks several write it at once: all of them the same bytes
                if time.monotonic() - began > _LONGEST_WAIT:
                    raise TimeoutError
                time.sleep(_POLL)
            there, mine = os.path.exists(path), _is_at(handle, partial)  # noqa: PTH110
            if mine and not there:
                stack.pop_all()
                return handle
            if mine:
                os.unlink(partial)  # noqa: PTH108 (made when the block was there already)
            if there:
                return None  # else whoever had it locked has failed and removed it


def _is_at(handle: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))  # noqa: PTH116
    except FileNotFoundError:
        return False


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    for number in range(_FOLDERS):
        with suppress(OSError), os.scandir(folder / f"{number:02d}") as entries:
            yield from entries


def _shrink(folder: Path, limit: int) -> None:
    """Remove the blocks that were used longest ago until nine tenths of the limit are left, if they exceed it."""
    found: list[tuple[float, int, str]] = []
    for entry in _entries(folder):
        with suppress(OSError):
            status = entry.stat()
            if entry.name.startswith(".") and time.time() - status.st_mtime < _UNUSED:
                continue  # somebody may be writing it
            found.append((status.st_atime, status.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    if total <= limit:
        return
    for _, size, path in sorted(found):
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108
        total -= size
        if total * 10 <= limit * 9:
            return
