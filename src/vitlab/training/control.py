"""Wishes from outside while a run goes on: stop, save now. Set by signals or by a listener, read between two updates."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from vitlab.training.events import Reason

TERMINATED = 143  # the exit code of a run that SIGTERM ended with a checkpoint
INTERRUPTED = 130  # and of one that Ctrl-C ended


class Stopped(BaseException):
    """A stop was asked for while the run waited for images: they will not be waited for.

    As KeyboardInterrupt it is no Exception: it may strike in the middle of a view, which is not to be blamed for it.
    """


class Control:
    """What the loop is asked to do at the next opportunity."""

    def __init__(self) -> None:
        self.stop: Reason | None = None
        self.save = False
        self.waits = False

    def ask_stop(self, reason: Reason) -> None:
        """End after the current update, with a checkpoint."""
        self.stop = reason

    def ask_save(self) -> None:
        """Write a checkpoint after the current update and go on."""
        self.save = True

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A signal that asks for a stop within the block leaves it at once, by `Stopped`; so does one that asked before."""
        if self.stop is not None:
            raise Stopped
        self.waits = True
        try:
            yield
        finally:
            self.waits = False


@contextmanager
def signals(control: Control) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the run with a checkpoint, a second one ends it at once; SIGUSR1 asks for a checkpoint.

    The update under way is finished first; waiting for images, to learn from or to be judged by, is not. Ctrl-C that is ignored,
    as under `nohup` and in a background job, stays ignored.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        reason: Reason = "terminated" if number == signal.SIGTERM else "interrupted"
        if control.stop is not None:
            os._exit(TERMINATED if number == signal.SIGTERM else INTERRUPTED)
        control.ask_stop(reason)
        if control.waits:  # what is waited for may never come
            raise Stopped

    def save(number: int, frame: FrameType | None) -> None:
        control.ask_save()

    wanted = {signal.SIGTERM: stop}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        wanted[signal.SIGINT] = stop
    if sys.platform != "win32":
        wanted[signal.SIGUSR1] = save
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
