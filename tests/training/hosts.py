"""Hosts for tests of elastic training: network namespaces of this machine, or processes on its loopback address.

    with namespaces(folder, 4) as hosts:    # needs root and `ip` of iproute2
    with loopback(folder, 4) as hosts:      # works everywhere

A host has an address, a name, and a process that starts commands in milliseconds (tests/warm.py). `die` ends everything on it at
once; `cut` takes its network away first, as when a machine loses its power: the others hear nothing any more.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests import processes
from tests.warm import _COMMAND

_SUBNET = "10.213.7"


@dataclass(kw_only=True)
class Host:
    """One host: `python` starts Python on it."""

    name: str
    address: str
    python: Path
    namespace: str | None
    server: subprocess.Popen[str]
    agents: list[subprocess.Popen[str]] = field(default_factory=list)

    def cut(self) -> None:
        """Take the network away; only a namespace has one."""
        assert self.namespace is not None
        _ip("-n", self.namespace, "link", "set", "eth0", "down")

    def die(self) -> None:
        """End everything on this host at once."""
        for pid in [*processes.descendants(self.server.pid), *self._inside()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.server.kill()
        self.server.wait(processes.LIMIT)

    def _inside(self) -> list[int]:
        """The processes of the namespace; without one, those that run as children of the agents."""
        if self.namespace is not None:
            return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]
        return [pid for agent in self.agents for pid in (*processes.descendants(agent.pid), agent.pid)]


def why_no_namespaces() -> str | None:
    """Why network namespaces cannot be made here, or None."""
    if sys.platform != "linux" or shutil.which("ip") is None or shutil.which("unshare") is None:
        return "network namespaces need Linux with `ip` (iproute2) and `unshare` (util-linux)"
    name = f"vitlab-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
    if tried.returncode:
        return f"network namespaces cannot be made: {tried.stderr.strip()}"
    made = subprocess.run(
        ["ip", "netns", "exec", name, "unshare", "--uts", "hostname", name], check=False, capture_output=True, text=True
    )
    subprocess.run(["ip", "netns", "del", name], check=True)
    return f"no command can be run in a network namespace: {made.stderr.strip()}" if made.returncode else None


@contextmanager
def namespaces(folder: Path, count: int) -> Iterator[list[Host]]:
    """Hosts with a network namespace and a host name each, joined by a bridge in a namespace of its own."""
    mark = f"vitlab-{os.getpid()}"
    with ExitStack() as stack:
        switch = stack.enter_context(_namespace(f"{mark}-switch"))
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        hosts = []
        for number in range(count):
            name, address = f"host-{'abcd'[number]}", f"{_SUBNET}.{number + 1}"
            inside = stack.enter_context(_namespace(f"{mark}-{number}"))
            port = f"port{number}"
            _ip("link", "add", "eth0", "netns", inside, "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", inside, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", inside, "link", "set", device, "up")
            within = ["ip", "netns", "exec", inside, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]
            hosts.append(stack.enter_context(_host(folder, within, name=name, address=address, namespace=inside)))
        yield [_ready(host) for host in hosts]


@contextmanager
def loopback(folder: Path, count: int) -> Iterator[list[Host]]:
    """Hosts that are processes on the loopback address."""
    with ExitStack() as stack:
        names = [f"host-{'abcd'[number]}" for number in range(count)]
        hosts = [stack.enter_context(_host(folder, [], name=name, address="127.0.0.1", namespace=None)) for name in names]
        yield [_ready(host) for host in hosts]


@contextmanager
def _namespace(name: str) -> Iterator[str]:
    _ip("netns", "add", name)
    try:
        yield name
    finally:
        for pid in _ip("netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _ip("netns", "del", name)


@contextmanager
def _host(folder: Path, within: Sequence[str], *, name: str, address: str, namespace: str | None) -> Iterator[Host]:
    path = folder / name
    path.mkdir()
    at = path / "socket"
    python = path / "python"
    python.write_text(_COMMAND.format(python=sys.executable, address=str(at), words=()))
    python.chmod(0o755)
    words = [*within, sys.executable, "-m", "tests.warm", str(at)]
    with processes.started(words, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE) as server:
        host = Host(name=name, address=address, python=python, namespace=namespace, server=server)
        try:
            yield host
        finally:
            host.die()


def _ready(host: Host) -> Host:
    assert host.server.stdout is not None
    assert host.server.stdout.readline() == "ready\n", host.server.communicate(timeout=processes.LIMIT)[1]
    return host


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True, timeout=processes.LIMIT)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout
