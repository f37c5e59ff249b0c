"""`vitlab serve --restart`: a process that holds the port, runs the server in a child, and starts it again when it is killed.

While a child starts, clients wait in the socket's backlog and are not refused. What the killed child had accepted is lost: its
connections are reset. Signals are passed on. The child ends when this process does, however that ends.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from vitlab.errors import UsageError, VitlabError
from vitlab.io.display import json_text

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_QUICK = 30.0  # seconds: a child that is killed sooner after its start, this many times in a row, is given up
_QUICK_DEATHS = 5


def supervise(bound: socket.socket) -> Callable[[Callable[[], None]], None]:
    """Return in a child, as often as one is needed; this process ends with the exit code of its last child.

    The result is a function for the child: it calls its argument when the supervisor has ended.
    """
    if threading.active_count() > 1:
        raise UsageError("`restart` needs a process without other threads", hint="use it on the command line")
    quick = 0
    while True:
        began = time.monotonic()
        read, write = os.pipe()  # ends when this process does
        child = os.fork()
        if child == 0:
            os.close(write)
            os.setpgid(0, 0)  # Ctrl-C in a terminal reaches the supervisor alone, which passes it on
            return lambda ended: threading.Thread(target=_wait, args=(read, ended), name="vitlab-supervised", daemon=True).start()
        os.close(read)
        code, asked = _ended(child, bound)
        os.close(write)
        if code >= 0 or asked:
            os._exit(code if code >= 0 else 128 - code)
        quick = quick + 1 if time.monotonic() - began < _QUICK else 0
        _say(f"the server was killed by {signal.Signals(-code).name}", again=quick < _QUICK_DEATHS)
        if quick >= _QUICK_DEATHS:
            raise VitlabError(f"the server was killed {quick} times in a row, within {_QUICK:g} s each", hint="its log says more")


def _ended(child: int, bound: socket.socket) -> tuple[int, bool]:
    """Wait for the child: its exit code, negative for a signal, and whether it had been asked to end."""
    asked = False

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if number != signal.SIGHUP:
            asked = True
            bound.close()  # else new clients would wait at a port that nobody answers any more
        with suppress(ProcessLookupError):
            os.kill(child, number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        _, status = os.waitpid(child, 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return os.waitstatus_to_exitcode(status), asked


def _wait(read: int, ended: Callable[[], None]) -> None:
    os.read(read, 1)
    ended()


def _say(message: str, *, again: bool) -> None:
    with suppress(OSError, ValueError):
        print(json_text({"event": "restart" if again else "error", "message": message}), file=sys.stderr, flush=True)
