"""File locks: one process at a time.

The operating system releases a lock when its holder closes the file or dies, so a killed process never leaves a lock behind.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from vitlab.errors import VitlabError

if sys.platform != "win32":
    import fcntl

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
