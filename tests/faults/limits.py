"""Limits of the operating system that tests set for a while."""

from __future__ import annotations

import os
import resource
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def no_file_above(most: int) -> Iterator[None]:
    """Within the block no file of this process may grow beyond `most` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def as_nobody(work: Callable[[], str]) -> str:
    """What `work` returns for a user who is not the superuser, whom no permission stops; in a child process if need be.

    The working folder is made accessible; paths outside it may not be.
    """
    if os.geteuid() != 0:
        return work()
    Path().chmod(0o755)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(write, work().encode())
            code = 0
        except BaseException:  # noqa: BLE001 (whatever it is, the child ends here)
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        text = answer.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, "see the traceback of the child"
    return text
