"""Atomic writes and file locks: a file or folder appears complete or not at all, also after a power cut.

The content goes to a temporary name beside the target, then to disk, then gets its name, then the folder's entry goes to disk.
Writers lock what they write. So a later writer of the same name can tell a killed writer's leftovers, which it removes, from a
file that another process is still writing. The operating system releases a lock when its holder closes the file or dies, so a
killed process never leaves a lock behind.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO

from vitlab.errors import CheckpointError, DataError, VitlabError
from vitlab.io.files import is_folder

if sys.platform != "win32":
    import fcntl

UNFINISHED = ".vitlab-tmp"
"""End of the name of a file or folder that is being written."""
REPLACED = ".vitlab-old"
"""End of the name of a folder that is being replaced."""
DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""Error numbers of a full disk, a full quota, and a file that may not grow further."""


@contextmanager
def replacing(path: Path, *, needed: int, error: type[VitlabError] = CheckpointError) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the block succeeds and is removed when it fails.

    `needed` is the number of bytes to be written; the message about a full disk names it. Any problem is raised as `error`.
    The file's mode is 0666 minus the umask. Until the new file is complete on disk, `path` stays as it was.
    """
    check_parent(path, error)
    if is_folder(path):
        raise error(f"cannot write {path}: it is a folder", hint="give the name of a file")
    temporary = _temporary(path, UNFINISHED)
    try:
        clear_unfinished(path)
        with temporary.open("xb") as file:  # the system applies the umask; reading the umask is not thread-safe
            try_lock(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as fault:
        raise cannot_write(path, fault, needed=needed, error=error) from fault
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file atomically."""
    with replacing(path, needed=len(data), error=DataError) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically, as UTF-8."""
    write_bytes(path, text.encode())


@contextmanager
def replacing_folder(path: Path, *, needed: int, names: tuple[str, ...]) -> Iterator[Path]:
    """Make a new folder that replaces the folder `path` when the block succeeds and is removed when it fails.

    An existing folder is replaced only if it holds nothing but `names`; other files belong to the user. Write each file of
    the new folder with `replacing`, so that it is on disk.
    """
    check_parent(path, CheckpointError)
    temporary = _temporary(path, UNFINISHED)
    try:
        clear_unfinished(path)
        _check_holds_only(path, names)
        temporary.mkdir()
        with _locked_folder(temporary):
            yield temporary
            sync_folder(temporary)
            _swap(temporary, path)
        sync_folder(path.parent)
    except OSError as fault:
        raise cannot_write(path, fault, needed=needed) from fault
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Be the only process of vitlab that writes the file `path` during the block; DataError names the other one.

    The lock is a hidden file beside it, which goes away with the block. Pipes and devices are not locked.
    """
    path = path.resolve()  # a file may have several names
    check_parent(path, DataError)
    with ExitStack() as stack:
        if path.is_file() or not path.exists():
            try:
                stack.enter_context(locked(path.with_name(f".{path.name}.lock"), refuse=partial(_in_use, path), keep=False))
            except OSError as fault:
                raise cannot_write(path, fault, error=DataError) from fault
        yield


def _in_use(path: Path, holder: str) -> DataError:
    return DataError(f"{path} is being written by {holder}", hint="wait for it, stop it, or choose another file")


def unfinished_folder(path: Path) -> Path:
    """The temporary folder that several processes fill together before `put_in_place` renames it to `path`.

    It has no lock. Only a process that holds the lock of the whole output may remove it.
    """
    return path.parent / f"{_prefix(path)}together{UNFINISHED}"


def put_in_place(folder: Path, path: Path, *, needed: int, names: tuple[str, ...]) -> None:
    """Let a complete folder replace `path`, which may hold nothing but `names`; it is on disk when this returns."""
    try:
        _check_holds_only(path, names)
        sync_folder(folder)
        _swap(folder, path)
        sync_folder(path.parent)
    except OSError as fault:
        raise cannot_write(path, fault, needed=needed) from fault


def clear_unfinished(path: Path) -> None:
    """Remove what killed writers of `path` left beside it, and restore a folder whose replacement did not arrive."""
    prefix = _prefix(path)
    for entry in list(path.parent.iterdir()):
        if not entry.name.startswith(prefix):
            continue
        if entry.name.endswith(UNFINISHED) and _abandoned(entry):
            with suppress(OSError):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        elif entry.name.endswith(REPLACED):
            if path.exists():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.rename(path)


def sync_folder(folder: Path) -> None:
    """Write a folder's entries (the names in it) to disk."""
    if sys.platform == "win32":  # Windows cannot open a folder, and journals renames
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, fault: OSError, *, needed: int = 0, error: type[VitlabError] = CheckpointError) -> VitlabError:
    """The error for a file or folder that cannot be written; for a full disk it names the bytes needed and free."""
    reason = os.strerror(fault.errno) if fault.errno else str(fault)
    if fault.errno not in DISK_FULL:
        return error(f"cannot write {path}: {reason}")
    free = shutil.disk_usage(path.parent).free
    return error(
        f"cannot write {path}: {reason}; "
        + (f"{needed:,} bytes are needed and {free:,} are free" if needed else f"{free:,} bytes are free"),
        hint="the previous version is unchanged; free some space and run this again, or write to another disk",
    )


def _swap(new: Path, path: Path) -> None:
    """Rename `new` to `path`. No system call replaces a folder that is not empty, so the old one moves aside first."""
    if not path.exists():
        new.replace(path)
        return
    old = _temporary(path, REPLACED)
    path.replace(old)
    try:
        new.replace(path)
    except OSError:
        old.replace(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _check_holds_only(path: Path, names: tuple[str, ...]) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise CheckpointError(f"cannot write the folder {path}: there is a file of that name")
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in names)
    if others:
        listed = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
        raise CheckpointError(f"will not replace the folder {path}: it also holds {listed}", hint="give the name of a new folder")


def check_parent(path: Path, error: type[VitlabError]) -> None:
    """An error that says how to make the folder of `path`, if there is none."""
    if not is_folder(path.parent):
        raise error(f"cannot write {path}: there is no folder {path.parent}", hint=f"create it first: mkdir -p {path.parent}")


def _prefix(path: Path) -> str:
    """Start of the temporary names of `path`, short enough that the whole name stays below 255 bytes."""
    return f".{path.name[:40]}."


def _temporary(path: Path, ending: str) -> Path:
    return path.parent / f"{_prefix(path)}{secrets.token_hex(6)}{ending}"


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try_lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _abandoned(entry: Path) -> bool:
    """Whether no process is writing it any more."""
    if sys.platform == "win32":
        return True
    try:
        descriptor = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return try_lock(descriptor, unsupported=False)
    finally:
        os.close(descriptor)


_WORKERS_END = 10.0  # seconds
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def try_lock(descriptor: int, *, unsupported: bool = True) -> bool:
    """Lock an open file or folder until it is closed; False if another process holds the lock.

    `unsupported` is the answer on a file system that has no locks.
    """
    if sys.platform == "win32":  # Windows does not delete or rename a file that is open, which serves as a lock
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        return unsupported
    return True


@contextmanager
def locked(
    path: Path, *, refuse: Callable[[str], VitlabError] | None = None, keep: bool = True, wait: float = 0.0
) -> Iterator[None]:
    """Hold the lock file `path` during the block; the file is created if needed, and stays unless `keep` is False.

    If another process holds the lock, this waits for it, or, with `refuse`, raises the error that `refuse` makes from a
    description of the holder ("process 123 on host"), after `wait` seconds.
    """
    with _acquired(path, refuse, wait) as file:
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            if not keep:
                with suppress(OSError):  # the folder may be gone, or read-only by now
                    path.unlink()


def _lock_or_refuse(file: TextIO, refuse: Callable[[str], VitlabError], wait: float) -> None:
    """Lock the file; the worker processes of a killed holder, which share its lock, get a few seconds to end."""
    began = time.monotonic()
    while not try_lock(file.fileno()):
        file.seek(0)
        holder = file.read().strip()
        if time.monotonic() - began > max(wait, _WORKERS_END if has_died(holder) else 0.0):
            raise refuse(holder or "another process")
        time.sleep(0.05)


def has_died(holder: str) -> bool:
    """Whether the process of "process 123 on host" was on this host and has ended, also if its parent has not noticed yet."""
    found = re.fullmatch(r"process (\d+) on (.*)", holder)
    if sys.platform == "win32" or found is None or found[2] != socket.gethostname():
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is somebody else's
        return False
    return _is_zombie(int(found[1]))


def _is_zombie(process: int) -> bool:
    try:
        facts = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # no such process any more, or a system without /proc
        return False
    return facts.rpartition(")")[2].split()[:1] == ["Z"]


def _acquired(path: Path, refuse: Callable[[str], VitlabError] | None, wait: float) -> TextIO:
    """The lock file, open and locked. A former holder may have removed it while it was opened here: then it is made again."""
    while True:
        with ExitStack() as stack:
            file = stack.enter_context(path.open("a+"))
            if refuse is not None:
                _lock_or_refuse(file, refuse, wait)
            if refuse is None and sys.platform != "win32":
                fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    stack.pop_all()
                    return file
