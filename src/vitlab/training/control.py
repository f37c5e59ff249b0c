"""Control of a running training process: requests to stop or to write a checkpoint, the signals that make them, and its allocator.

The trainer reads the requests between two steps.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from vitlab.training.events import Reason

TERMINATED = 143  # exit code of a run that SIGTERM stopped with a checkpoint
INTERRUPTED = 130  # exit code of a run that Ctrl-C stopped with a checkpoint

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt, from malloc.h
_NEVER, _NONE = -1, 0


class StopRequested(BaseException):
    """A stop was requested while the run waited for images, so it waits no longer.

    Like KeyboardInterrupt it is no Exception: it may strike inside a transform, whose error handling must not swallow it.
    """


class Control:
    """Requests to a running trainer: `stop` is the reason to stop, or None; `save` asks for a checkpoint."""

    def __init__(self) -> None:
        self.stop: Reason | None = None
        self.save = False
        self.interruptible = False

    def request_stop(self, reason: Reason) -> None:
        """Stop after the current step, with a checkpoint."""
        self.stop = reason

    def request_checkpoint(self) -> None:
        """Write a checkpoint after the current step, and continue."""
        self.save = True

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside the block, a signal that requests a stop raises StopRequested at once; so does a request made before it."""
        if self.stop is not None:
            raise StopRequested
        self.interruptible = True
        try:
            yield
        finally:
            self.interruptible = False


@contextmanager
def signals(control: Control) -> Iterator[None]:
    """SIGTERM and Ctrl-C stop the run with a checkpoint, a second one ends it at once; SIGUSR1 writes a checkpoint.

    The current step is finished first, but the run does not wait for images. A Ctrl-C that is ignored, as under `nohup` and in
    a background job, stays ignored. Signals that the parent process has blocked are received all the same.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        reason: Reason = "terminated" if number == signal.SIGTERM else "interrupted"
        if control.stop is not None:
            os._exit(TERMINATED if number == signal.SIGTERM else INTERRUPTED)
        control.request_stop(reason)
        if control.interruptible:  # the images may never arrive
            raise StopRequested

    def save(number: int, frame: FrameType | None) -> None:
        control.request_checkpoint()

    handlers = {signal.SIGTERM: stop}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        handlers[signal.SIGINT] = stop
    if sys.platform != "win32":
        handlers[signal.SIGUSR1] = save
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    blocked = set[int]() if sys.platform == "win32" else signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers) & set(handlers)
    try:
        yield
    finally:
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)


def keep_memory() -> bool:
    """Let this process keep the memory it frees for its next allocation; returns whether the C library was asked to.

    A training step frees hundreds of megabytes, and the next step allocates them again. glibc returns large blocks to the
    system each time, which then clears every page: 11 to 15 % of a step of ViT-Ti/16 (64 images, 224 px, CPU). The setting
    lasts as long as the process and changes no result. Other C libraries are left alone.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(_TRIM_THRESHOLD, _NEVER) and library.mallopt(_MMAP_MAX, _NONE))
