"""Files that appear whole or not at all: written beside their name, made durable, and renamed.

The order is what keeps a power cut harmless: bytes to disk, then the name, then the folder that holds the name.
A writer holds a lock on what it has not finished, so what an earlier writer left behind when it was killed can be told from what
another is still writing, and is removed at the next write of the same name.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from vitlab.errors import CheckpointError, DataError
from vitlab.io.files import is_folder

if sys.platform != "win32":
    import fcntl

UNFINISHED = ".vitlab-tmp"  # ends the name of everything not yet renamed
REPLACED = ".vitlab-old"  # ends the name of a folder on its way out
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@contextmanager
def replacing(path: Path, *, needed: int) -> Iterator[BinaryIO]:
    """An open new file that takes the place of `path` when the block ends well, and vanishes when it does not.

    `needed` is the number of bytes about to be written, for the message of a full disk. The mode is 0666 less the umask.
    Whatever was at `path` stays byte for byte as it was until the new file is complete on disk.
    """
    _folder_exists(path)
    if is_folder(path):
        raise CheckpointError(f"cannot write {path}: it is a folder", hint="give the name of a file")
    temporary = _beside(path, UNFINISHED)
    try:
        clear_unfinished(path)
        with temporary.open(
            "xb"
        ) as file:  # "x" asks for 0666 and lets the system apply the umask; reading the umask is not thread-safe
            _lock(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path, error, needed) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path, *, needed: int, names: tuple[str, ...]) -> Iterator[Path]:
    """A new folder to fill, that takes the place of the folder `path` when the block ends well, and vanishes when it does not.

    An existing folder is replaced only if it holds nothing but `names`: what else lies in it is nobody's to delete.
    The files in the new folder must be made durable by who writes them, with `replacing`.
    """
    _folder_exists(path)
    temporary = _beside(path, UNFINISHED)
    try:
        clear_unfinished(path)
        _only_holds(path, names)
        temporary.mkdir()
        with _locked_folder(temporary):
            yield temporary
            _sync_folder(temporary)
            _swap(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path, error, needed) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def unfinished_folder(path: Path) -> Path:
    """The one name under which several processes together fill what `put_in_place` will call `path`.

    It has no lock: whoever may write beside `path` at all removes what killed processes left of it.
    """
    return path.parent / f"{_start(path)}together{UNFINISHED}"


def put_in_place(folder: Path, path: Path, *, needed: int, names: tuple[str, ...]) -> None:
    """Let a folder that others filled take the place of `path`, which may hold nothing but `names`; durable when this returns."""
    try:
        _only_holds(path, names)
        _sync_folder(folder)
        _swap(folder, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path, error, needed) from error


def clear_unfinished(path: Path) -> None:
    """Remove what killed writers of `path` left beside it, and put back a folder whose replacement never came."""
    start = _start(path)
    for entry in list(path.parent.iterdir()):
        if not entry.name.startswith(start):
            continue
        if entry.name.endswith(UNFINISHED) and _abandoned(entry):
            with suppress(OSError):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        elif entry.name.endswith(REPLACED):
            if path.exists():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.rename(path)


def _swap(new: Path, path: Path) -> None:
    """Rename `new` to `path`; no system call replaces a full folder, so the old one steps aside for a moment."""
    if not path.exists():
        new.replace(path)
        return
    old = _beside(path, REPLACED)
    path.replace(old)
    try:
        new.replace(path)
    except OSError:
        old.replace(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _only_holds(path: Path, names: tuple[str, ...]) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise CheckpointError(f"cannot write the folder {path}: there is a file of that name")
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in names)
    if others:
        shown = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
        raise CheckpointError(f"will not replace the folder {path}: it also holds {shown}", hint="give the name of a new folder")


def _folder_exists(path: Path) -> None:
    if not is_folder(path.parent):
        raise CheckpointError(
            f"cannot write {path}: there is no folder {path.parent}", hint=f"make it first: mkdir -p {path.parent}"
        )


def _start(path: Path) -> str:
    """How the unfinished versions of `path` begin; cut so that the whole stays below the 255 bytes a name may have."""
    return f".{path.name[:40]}."


def _beside(path: Path, ending: str) -> Path:
    return path.parent / f"{_start(path)}{secrets.token_hex(6)}{ending}"


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":  # a folder cannot be opened there, and renames are journalled
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Hold `descriptor` until it is closed, also by the death of the process; False if another holds it."""
    if sys.platform == "win32":  # an open file cannot be removed there, which is lock enough
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
        return False  # a file system without locks: nothing is ever taken for abandoned
    return True


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _abandoned(entry: Path) -> bool:
    """Whether nobody is writing it any more."""
    if sys.platform == "win32":
        return True
    try:
        descriptor = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return _lock(descriptor)
    finally:
        os.close(descriptor)


def _cannot_write(path: Path, error: OSError, needed: int) -> CheckpointError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno not in _FULL:
        return CheckpointError(f"cannot write {path}: {reason}")
    free = shutil.disk_usage(path.parent).free
    return CheckpointError(
        f"cannot write {path}: {reason}; {needed:,} bytes are needed and {free:,} are free",
        hint="what was there before is untouched; make room, or write to another disk",
    )


# Small writes that survive a power cut, and what is said where a disk is full.

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""What the system calls a disk, a quota or a file that can grow no more."""


def write_all(file: FileIO, data: bytes) -> None:
    """Append all of it. The file has no buffer, so a full disk is heard of here and not once more when it is closed."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def write_text(path: Path, text: str) -> None:
    """A small text file, whole or not at all, and on disk when this returns."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """A small file, whole or not at all, and on disk when this returns."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as fault:
        partial.unlink(missing_ok=True)
        raise unwritable(path, fault) from fault


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unwritable(path: Path, fault: OSError) -> DataError:
    """The error of a file that could not be written, with the room that is left where that is why."""
    if fault.errno not in FULL:
        return DataError(f"{path} cannot be written: {fault.strerror}")
    free = shutil.disk_usage(path.parent).free
    return DataError(
        f"no room for {path.name} in {path.parent}: {free:,} bytes are free",
        hint="make room and run this again: it goes on from where it stopped",
    )
