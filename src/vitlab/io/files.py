"""Files: regular files opened for reading, files read by offset, what changes when a file changes, and lists of file names.

Every file that a user names is opened by `open_handle`.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from io import BufferedReader
from itertools import islice, pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import CheckpointError, DataError, VitlabError
from vitlab.io.display import printable

SMALL_FILE = 2**26
"""Most bytes of a file of settings, names or notes."""
LIST_FILE = 2**30
"""Most bytes of a list of images."""

_NEAR_NAMES = 10_000
"""Most names of a folder that are compared with a name that is missing in it."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_handle(path: str | os.PathLike[str]) -> int:
    """Open a regular file for reading, without ever waiting; OSError if it cannot be opened or is anything else.

    A pipe blocks whoever opens it, a device has no end, and opening some devices has effects: so the kind of file is checked
    before it is opened, and again afterwards, because the file may have been replaced. Both checks cost 2 microseconds.
    """
    _check_regular(os.stat(path).st_mode, path)  # noqa: PTH116 (a Path cannot hold every name)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check_regular(os.fstat(handle).st_mode, path)
        os.set_blocking(handle, True)  # for file systems to which the flag means something
    except OSError:
        os.close(handle)
        raise
    return handle


def _check_regular(mode: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file", path)


def open_regular(path: str | os.PathLike[str], *, error: type[VitlabError] = CheckpointError) -> BufferedReader:
    """Open a regular file for reading; `error` if it is missing, unreadable or not a regular file."""
    try:
        return os.fdopen(open_handle(path), "rb")
    except FileNotFoundError as fault:
        raise error(f"no file called {printable(os.fspath(path))}", hint=near_name(Path(path))) from fault
    except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
        raise error(f"cannot read {printable(os.fspath(path))}: {_reason(fault)}") from fault


def read_bytes(path: str | os.PathLike[str], *, most: int = SMALL_FILE, error: type[VitlabError] = DataError) -> bytes:
    """The bytes of a regular file; `error` if it cannot be read or has more than `most` bytes."""
    try:
        handle = open_handle(path)
        try:
            size = os.fstat(handle).st_size
            if size > most:
                raise OSError(errno.EFBIG, f"it has {size:,} bytes; the limit is {most:,}", path)
            data = os.read(handle, size)
            while len(data) < size and (more := os.read(handle, size - len(data))):
                data += more  # one call reads at most 2 GiB
            return data
        finally:
            os.close(handle)
    except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
        raise error(f"{printable(os.fspath(path))} cannot be read: {_reason(fault)}") from fault


def read_text(path: str | os.PathLike[str], *, most: int = SMALL_FILE, error: type[VitlabError] = DataError) -> str:
    """The text of a regular file in UTF-8, with or without a byte order mark; `error` as for `read_bytes`, or if it is no text."""
    if not os.path.lexists(path):
        raise error(f"no file called {printable(os.fspath(path))}", hint=near_name(Path(path)))
    return as_text(read_bytes(path, most=most, error=error), os.fspath(path), error=error)


def as_text(data: bytes, where: str, *, error: type[VitlabError] = DataError) -> str:
    """The text of UTF-8 data, with or without a byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise error(f"{printable(where)} is not UTF-8 text (byte {fault.start:,})", hint="save it as UTF-8") from fault


def _reason(fault: OSError | ValueError) -> str:
    return getattr(fault, "strerror", None) or str(fault)


def is_folder(path: Path) -> bool:
    """Whether the path is a folder; False for an impossible path."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def size_of(file: BinaryIO) -> int:
    """Bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def near_name(path: Path) -> str | None:
    """The hint for a path where nothing is: a file or folder beside it with a similar name, or that its folder is missing."""
    if not is_folder(path.parent):
        return f"there is no folder {printable(str(path.parent))}"
    try:
        names = [entry.name for entry in islice(path.parent.iterdir(), _NEAR_NAMES)]
    except OSError:  # a folder that may not be listed has no name to suggest
        return None
    close = get_close_matches(path.name, names, n=1)
    return f"did you mean {printable(str(path.parent / close[0]))}?" if close else None


def stamp_of(status: os.stat_result) -> tuple[int, int, int]:
    """What changes when a file changes: its size, and the times (ns) of the last change of content and of any change."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def settled(stamp: tuple[int, int, int]) -> bool:
    """Whether a file was last changed long enough ago (2 s) that another change would change its times."""
    return time.time_ns() - max(stamp[1:]) > 2_000_000_000


def map_bytes(path: Path, stamp: tuple[int, int, int], offset: int, length: int) -> NDArray[np.uint8]:
    """Bytes of a file mapped into memory; DataError if the file has changed since `stamp` was taken."""
    status = path.stat()
    if stamp_of(status)[:2] != stamp[:2] or offset + length > status.st_size:
        raise DataError(f"{printable(str(path))} has changed since it was opened", hint="start again")
    if length == 0:
        return np.zeros(0, np.uint8)
    return np.memmap(path, np.uint8, mode="r", offset=offset, shape=(length,))


class PositionedFile:
    """A file read by offset, opened on first use in each process. Picklable; safe with threads and after a fork.

    `stamp` describes the file when its offsets were listed; a file that has changed since is refused. `keep_open` keeps the file
    open between reads. Without it every read opens the file, so that thousands of them stay below the limit of open files.
    """

    _handle = -1

    def __init__(self, path: Path, stamp: tuple[int, int, int], *, keep_open: bool = True) -> None:
        self.path = path
        self.stamp = stamp
        self._keep_open = keep_open

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the file."""
        handle = self._opened()
        try:
            data = os.pread(handle, length, offset)
            while len(data) < length and (more := os.pread(handle, length - len(data), offset + len(data))):
                data += more  # one call reads at most 2 GiB
        except OSError as error:
            raise DataError(f"{printable(str(self.path))} cannot be read at offset {offset:,}: {error.strerror}") from error
        finally:
            if not self._keep_open:
                os.close(handle)
        return data

    def _opened(self) -> int:
        if self._handle >= 0:
            return self._handle
        try:
            handle = open_handle(self.path)
        except OSError as error:
            raise DataError(f"{printable(str(self.path))} cannot be read: {error.strerror}") from error
        if stamp_of(os.fstat(handle))[:2] != self.stamp[:2]:
            os.close(handle)
            raise DataError(f"{printable(str(self.path))} has changed since it was opened", hint="start again")
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


class Names:
    """An immutable list of names in two buffers: a million of them are pickled, forked and loaded at once.

    A list of str would be copied into every forked worker, because reading a str changes its reference count.
    Names are those of the file system, including undecodable bytes.
    """

    __slots__ = ("_blob", "_ends")

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        self._blob = b"".join(encoded)
        self._ends: NDArray[np.int64] = np.cumsum([0, *map(len, encoded)], dtype=np.int64)

    @classmethod
    def from_buffers(cls, blob: bytes, ends: NDArray[np.int64]) -> Names:
        """The names of these `buffers`; ValueError if they are inconsistent."""
        if ends.ndim != 1 or len(ends) == 0 or ends[0] != 0 or ends[-1] != len(blob) or np.any(np.diff(ends) < 0):
            raise ValueError("these buffers do not hold names")
        names = cls(())
        names._blob, names._ends = blob, ends
        return names

    def buffers(self) -> tuple[bytes, NDArray[np.int64]]:
        """All characters end to end, and where each name ends, starting with 0."""
        return self._blob, self._ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._blob[self._ends[index] : self._ends[index + 1]].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        ends = self._ends.tolist()
        for start, end in pairwise(ends):
            yield self._blob[start:end].decode("utf-8", "surrogateescape")

    def take(self, rows: NDArray[np.int64]) -> Names:
        """The names of these rows, in this order."""
        return Names(self[int(row)] for row in rows)
