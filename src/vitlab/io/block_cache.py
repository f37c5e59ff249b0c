"""A cache of blocks on disk, with a limit of its size and a checksum of each block. Any number of processes share it.

A block is one file, whose name is the hash of its key: 16 bytes of BLAKE2b of the content, then the content. A block whose content
does not match its hash is removed and counts as missing. The blocks lie in 64 folders. Each has its share of the limit: a process
counts the bytes of a folder when it first writes to it and again after it has written a tenth of the share, and removes the blocks
that were used longest ago. So n processes exceed the limit by n tenths of it at most.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from vitlab.errors import ConfigError

_FOLDERS = 64
_SUM = 16
_UNUSED = 3600.0  # seconds after which the file of a killed writer is removed
_DEFAULT = 20 * 2**30
_FRACTION_OF_FREE = 4
LIMIT_VARIABLE = "VITLAB_REMOTE_CACHE"
"""Environment variable: the limit of the cache in GiB; 0 switches it off."""


class BlockCache:
    """Blocks of bytes by key, at most about `limit` bytes of them; 0 keeps nothing. Safe with threads; picklable."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._lock = threading.Lock()
        self._written: dict[Path, int] = {}  # bytes that this process wrote to a folder since it counted it

    def __getstate__(self) -> tuple[Path, int]:
        return self.folder, self.limit

    def __setstate__(self, state: tuple[Path, int]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def get(self, key: str) -> bytes | None:
        """The block, or None if it is not there or damaged."""
        if not self.limit:
            return None
        path = self._path(key)
        try:
            stored = path.read_bytes()
        except OSError:
            return None
        content = stored[_SUM:]
        if stored[:_SUM] != _sum(content):
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)  # used now
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keep a block. A disk that cannot take it is no error: the block is fetched again when it is needed."""
        share = self.limit // _FOLDERS
        if len(content) + _SUM > share:
            return
        path = self._path(key)
        partial = path.with_name(f".{secrets.token_hex(6)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("xb") as file:
                file.write(_sum(content))
                file.write(content)
            partial.replace(path)
        except OSError:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            return
        with self._lock:
            written = self._written.get(path.parent)
            self._written[path.parent] = written = share if written is None else written + len(content) + _SUM
            if written * 10 >= share:
                self._written[path.parent] = 0
                _shrink(path.parent, share)

    def _path(self, key: str) -> Path:
        name = blake2b(key.encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()
        return self.folder / f"{int(name[:2], 16) % _FOLDERS:02d}" / name


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
    return blake2b(content, digest_size=_SUM).digest()


def _shrink(folder: Path, share: int) -> None:
    """Remove the blocks of a folder that were used longest ago until nine tenths of its share are left, if it exceeds its share."""
    found: list[tuple[float, int, Path]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat()
                if entry.name.startswith(".") and time.time() - status.st_mtime < _UNUSED:
                    continue  # somebody may be writing it
                found.append((status.st_mtime, status.st_size, Path(entry.path)))
    total = sum(size for _, size, _ in found)
    if total <= share:
        return
    for _, size, path in sorted(found):
        with suppress(OSError):
            path.unlink()
        total -= size
        if total * 10 <= share * 9:
            return
