"""The end of our standard output and error, when whoever reads them leaves or the disk behind them is full."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


def reader_left() -> bool:
    """Whether our own output is what broke; if so, nothing more goes there, not even as the interpreter ends."""
    left = [stream for stream in (sys.stdout, sys.stderr) if _is_broken(stream)]
    for stream in left:
        _discard(stream)
    return bool(left)


def give_up() -> None:
    """Drop what standard output still holds, so that the interpreter's end does not try to write it again."""
    _discard(sys.stdout)


def _is_broken(stream: TextIO) -> bool:
    try:
        stream.flush()
    except BrokenPipeError:
        return True
    if sys.platform == "win32":
        return False
    # An unbuffered stream (PYTHONUNBUFFERED) has nothing left to flush: ask the system whether its pipe has a reader.
    import select

    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:  # replaced by an object that is no file
        return False
    asked = select.poll()
    asked.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in asked.poll(0))


def _discard(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
