"""Runs a function in a child process that may die of it: a fork, which has everything imported already."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable

UNEXPECTED = 99


def exit_code_of(act: Callable[[], None]) -> int:
    """How the child ended: 0 when `act` returned, what it gave `os._exit`, or 99 for an exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: fork beside threads, which the child does not use
        child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child must never return into the test runner
            traceback.print_exc()
            os._exit(UNEXPECTED)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
