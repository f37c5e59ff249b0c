"""A file read by position: opened when first needed, in whichever process needs it."""

from __future__ import annotations

import os
from pathlib import Path

from vitlab.data.files.cache import stamp_of
from vitlab.data.files.names import shown
from vitlab.errors import DataError


class PositionedFile:
    """Bytes of a file by offset; picklable, and safe between threads and after a fork because it has no position of its own.

    `stamp` is what the file was when it was listed: one that has changed since is refused, as its offsets no longer hold.
    `keep_open` holds the file open between reads; without it each read opens it, so that thousands of files do not run into
    the limit of open ones.
    """

    _handle = -1

    def __init__(self, path: Path, stamp: tuple[int, int, int], *, keep_open: bool = True) -> None:
        self.path = path
        self.stamp = stamp
        self._keep_open = keep_open

    def read(self, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`; fewer only where the file ends."""
        handle = self._opened()
        try:
            data = os.pread(handle, length, offset)
            while len(data) < length and (more := os.pread(handle, length - len(data), offset + len(data))):
                data += more  # one call gives at most 2 GiB
        except OSError as error:
            raise DataError(f"{shown(str(self.path))} cannot be read at offset {offset:,}: {error.strerror}") from error
        finally:
            if not self._keep_open:
                os.close(handle)
        return data

    def _opened(self) -> int:
        if self._handle >= 0:
            return self._handle
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DataError(f"{shown(str(self.path))} cannot be read: {error.strerror}") from error
        if stamp_of(os.fstat(handle))[:2] != self.stamp[:2]:
            os.close(handle)
            raise DataError(f"{shown(str(self.path))} has changed since it was opened", hint="start again")
        if self._keep_open and self.__dict__.setdefault("_handle", handle) != handle:
            os.close(handle)  # another thread was first
        return self._handle if self._keep_open else handle

    def __getstate__(self) -> tuple[Path, tuple[int, int, int], bool]:
        return self.path, self.stamp, self._keep_open

    def __setstate__(self, state: tuple[Path, tuple[int, int, int], bool]) -> None:
        self.path, self.stamp, self._keep_open = state

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
