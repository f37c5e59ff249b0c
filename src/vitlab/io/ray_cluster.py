"""A connection to a Ray cluster, or a Ray of our own on this machine; and what its errors mean.

Ray is imported here and nowhere else but in the functions that run on it. Nothing is reported to anybody: see `io/optional.py`.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitlab import errors
from vitlab.errors import ClusterError, ConfigError, VitlabError
from vitlab.io.display import printable
from vitlab.io.optional import optional_import

REACH_SECONDS = 10.0
"""How long a cluster may take to answer."""
STORE_BYTES = 2 * 2**30
"""Most shared memory that a Ray of our own takes for objects."""
_STORE_FRACTION = 0.2  # of the free shared memory
_THREADS = ("StreamingExecutor", "iter_threaded", "ray-data-metadata-prefetch")  # how the names of Ray Data's threads begin
_PATIENCE = 60.0  # seconds that such a thread has to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the nodes of a cluster have together; `node_cores` is the least that a node with cores has."""

    nodes: int
    cores: int
    node_cores: int
    gpus: int


def check_installed() -> None:
    """ConfigError with the extra to install where Ray or pyarrow is missing; before a model is loaded."""
    for package in ("ray", "pyarrow"):
        if find_spec(package) is None:
            raise ConfigError(f"clusters need {package}, which is not installed", hint="pip install 'vitlab[ray]'")


@contextmanager
def connected(address: str | None, *, purpose: str) -> Iterator[Any]:
    """The module ray, connected to the cluster at `address` while the block runs; None starts a Ray on this machine alone.

    A connection that the caller has already is used and left as it is. ClusterError if the cluster cannot be reached.
    """
    if address is None and "ray" not in sys.modules:  # else Ray has read these already, and its processes would read others
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # its name for: listen on 127.0.0.1 alone
        if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one into the user's home
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # of what goes to this terminal; Ray's own log files have the rest
    ray = optional_import("ray", purpose=purpose)
    if ray.is_initialized():
        yield ray
        return
    try:
        if address is None:
            ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=_store_bytes(),
                log_to_driver=False,
                logging_level="ERROR",
            )
        else:
            ray.init(address=_reachable(address), log_to_driver=False, logging_level="ERROR")
    except VitlabError:
        raise
    except Exception as error:  # Ray raises plain ones, for example when a loaded machine starts it slowly
        where = "on this machine" if address is None else f"at {address}"
        raise ClusterError(
            f"Ray {where} does not answer: {_first_line(error)}",
            hint="`ray status` shows a cluster that runs; leave `address` out to start one",
        ) from error
    try:
        yield ray
    finally:
        _wait_for_threads()
        ray.shutdown()


def resources(ray: Any) -> Resources:
    """What the nodes have that are alive now."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores = [int(found.get("CPU", 0)) for found in alive if found.get("CPU", 0) >= 1]
    if not cores:
        raise ClusterError("no node of the cluster has a core for tasks", hint="start one with `ray start`")
    return Resources(
        nodes=len(alive), cores=sum(cores), node_cores=min(cores), gpus=sum(int(found.get("GPU", 0)) for found in alive)
    )


def explained(error: Exception, *, doing: str) -> VitlabError:
    """The error of Ray in one sentence; `doing` says what failed."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, VitlabError):
            return cause
        if isinstance(cause, ModuleNotFoundError) or "No module named 'vitlab" in str(cause):
            return ClusterError(
                f"{doing}: a node cannot import what it needs ({_last_line(cause)})",
                hint="install the same vitlab and its extras on every node of the cluster",
            )
        cause = cause.__cause__
    return ClusterError(
        f"{doing}: {_last_line(error)}", hint="run the same command again to resume; Ray's logs are in /tmp/ray/session_latest/logs"
    )


# Actors that keep a little state; they start fast, because this file imports no torch.


class Attempts:
    """Counts how often a chunk was begun. Ray starts dead workers again without end, and a chunk that kills them all must end."""

    def __init__(self) -> None:
        self._begun: Counter[tuple[str, int, int]] = Counter()

    def begin(self, worker: str, part: int, place: int) -> int:
        """How often it was begun, this time included."""
        self._begun[worker, part, place] += 1
        return self._begun[worker, part, place]


class Mailbox:
    """Holds events of tasks until they are taken, and whether the tasks should stop. An actor."""

    def __init__(self) -> None:
        self._events: list[tuple[str, object]] = []
        self._stop = False

    def put(self, name: str, event: object) -> bool:
        """Add an event; whether to stop."""
        self._events.append((name, event))
        return self._stop

    def take(self) -> list[tuple[str, object]]:
        """All events since the last call."""
        taken, self._events = self._events, []
        return taken

    def stop(self) -> None:
        """Ask every task to stop."""
        self._stop = True


def error_text(error: VitlabError | None) -> str:
    """An error of a worker as text; empty for none."""
    return "" if error is None else json.dumps([type(error).__name__, error.message, error.hint])


def raise_error(text: str) -> None:
    """Raise the error of a worker here, if there is one."""
    if text:
        kind, message, hint = json.loads(text)
        raise getattr(errors, kind)(message, hint=hint)


def _wait_for_threads() -> None:
    """Wait for the threads of Ray Data: one that asks Ray for something after its shutdown ends this process without a word."""
    for thread in threading.enumerate():
        if thread.name.startswith(_THREADS):
            thread.join(_PATIENCE)


def _reachable(address: str) -> str:
    """host:port of a cluster that accepts connections."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"address={address} is of Ray Client, which vitlab does not use",
            hint="run this on a node of the cluster, with address='auto'",
        )
    found = _of_this_machine() if address == "auto" else address
    host, _, port = found.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"address={address!r} is neither auto nor host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"{found}: {error.strerror or error}") from error
    return found


def _of_this_machine() -> str:
    """The address of the cluster that `ray start` made or joined here."""
    if found := os.environ.get("RAY_ADDRESS"):
        return found
    path = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        raise ConnectionError("this machine belongs to no cluster") from None


def _store_bytes() -> int:
    """A fifth of the free shared memory, at most 2 GiB and at least what Ray asks for."""
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return STORE_BYTES // 4
    return max(80 * 2**20, min(STORE_BYTES, int(_STORE_FRACTION * status.f_bavail * status.f_frsize)))


def _first_line(error: BaseException) -> str:
    return printable((str(error).strip() or type(error).__name__).splitlines()[0])


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[-1] if lines else type(error).__name__)
