"""A server of a miniature model, in this process or as a process of its own, and a client that knows nothing of vitlab."""

from __future__ import annotations

import http.client
import io
import json
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests import processes
from tests.data.images import jpeg, scene
from tests.inference import small
from vitlab.checkpoints import Checkpoint
from vitlab.serving.config import ServeConfig
from vitlab.serving.models import Source
from vitlab.serving.server import Server

LIMIT = 60.0  # seconds for an answer: only a server that hangs takes so long


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as a value."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a refusal."""
        return str(self.json["error"]["code"])


def ask(
    url: str,
    path: str,
    body: bytes | None = None,
    *,
    method: str | None = None,
    kind: str = "image/jpeg",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """One request on a connection of its own; POST if there is a body."""
    place = urlsplit(url)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=LIMIT)
    try:
        given = {"content-type": kind, **(headers or {})} if body is not None else dict(headers or {})
        connection.request(method or ("GET" if body is None else "POST"), path, body, given)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, found, response.read())
    finally:
        connection.close()


def form(files: Sequence[tuple[str, bytes]], fields: Mapping[str, str] | None = None, *, field: str = "file") -> tuple[bytes, str]:
    """A form with files and fields as a body and its content type."""
    boundary = uuid.uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'.encode() + content + b"\r\n"
        for name, content in files
    ]
    parts += [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in (fields or {}).items()
    ]
    return b"".join([*parts, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"


def photo(seed: int = 0) -> bytes:
    """A JPEG file; another one for each seed."""
    return jpeg(scene(40 + seed % 5, 52 - seed % 7, seed=seed))


@contextmanager
def serving(
    checkpoints: Mapping[str, Checkpoint] | None = None, *, config: ServeConfig | None = None, log: io.StringIO | None = None
) -> Iterator[Server]:
    """A server in a thread of this process, on a free port."""
    models = {"tiny": small.checkpoint()} if checkpoints is None else checkpoints
    sources = [Source(name=name, open=lambda own=own: own) for name, own in models.items()]  # type: ignore[misc]
    with Server(sources, config or ServeConfig(port=0), backend="torch", log=log or io.StringIO()) as server:
        yield server


@dataclass(frozen=True, slots=True)
class Process:
    """A server as a process of its own."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.url.rpartition(":")[2])

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def connect(self) -> socket.socket:
        """A connection as it comes from the operating system."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT)


@contextmanager
def server_process(warm: Path, folder: Path, model: Path, *options: str) -> Iterator[Process]:
    """`vitlab serve MODEL OPTIONS` on a free port, ready; its log goes into a file of the folder."""
    log = folder / "log.jsonl"
    words = ("serve", str(model), "--port", "0", "--backend", "torch", *options)
    command = ["/bin/sh", "-c", f'exec "$0" "$@" 2>{log}', str(warm / "vitlab"), *words]
    with processes.started(command) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://"), log.read_text()
        try:
            yield Process(url, process, log)
        finally:
            process.send_signal(
                signal.SIGTERM
            )  # ends by itself: its stand-in, killed, might not take it along at the end of a session
            process.wait(processes.LIMIT)
