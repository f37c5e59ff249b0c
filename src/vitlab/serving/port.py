"""The port: bound, listened on, and held while a server that was killed starts again. Imports no torch: `supervise` forks.

`vitlab serve --restart` is a process that holds the port, runs the server in a child, and starts it again when it is killed.
While a child starts, clients wait in the socket's backlog and are not refused. What the killed child had accepted is lost: its
connections are reset. Signals are passed on. The child ends when this process does, however that ends.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from vitlab.errors import ConfigError, UsageError, VitlabError
from vitlab.io.display import json_text
from vitlab.serving.config import ServeConfig

_BACKLOG = 2048  # connections that wait to be accepted
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_QUICK = 30.0  # seconds: a child that is killed sooner after its start, this many times in a row, is given up
_QUICK_DEATHS = 5


def bind(host: str, port: int) -> socket.socket:
    """A socket of that address, which does not listen yet; ConfigError if it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host={host!r} is not an address of this machine", hint="127.0.0.1, or 0.0.0.0 for everybody") from error
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        raise _refused(host, port, error) from error
    return found


def listen(bound: socket.socket, config: ServeConfig) -> None:
    """Accept connections from now on."""
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        raise _refused(config.host, config.port, error) from error


def _refused(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} of {host} is taken", hint="another `port`, or 0 for any that is free")
    if error.errno == errno.EACCES:
        return ConfigError(f"port {port} needs more rights", hint="use a `port` from 1024 on")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"host={host!r} is not an address of this machine", hint="127.0.0.1, or 0.0.0.0 for everybody")
    return ConfigError(f"port {port} of {host} cannot be used: {error.strerror}")


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
