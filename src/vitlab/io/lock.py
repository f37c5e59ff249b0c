"""File locks: one process at a time.

The operating system releases a lock when its holder closes the file or dies, so a killed process never leaves a lock behind.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vitlab.errors import VitlabError

if sys.platform != "win32":
    import fcntl

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
def locked(path: Path, *, refuse: Callable[[str], VitlabError] | None = None) -> Iterator[None]:
    """Hold the lock file `path` during the block; the file is created if needed and stays.

    If another process holds the lock, this waits for it, or, with `refuse`, raises the error that `refuse` makes from a
    description of the holder ("process 123 on host").
    """
    with path.open("a+") as file:
        if refuse is not None and not try_lock(file.fileno()):
            file.seek(0)
            raise refuse(file.read().strip() or "another process")
        if refuse is None and sys.platform != "win32":
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
