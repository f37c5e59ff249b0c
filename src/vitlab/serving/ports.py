"""The port of a server, and why it cannot be had."""

from __future__ import annotations

import errno
import socket

from vitlab.errors import ConfigError
from vitlab.serving.config import ServeConfig

_BACKLOG = 2048


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
