"""A local server that speaks the protocol of the Hugging Face Hub for one repository, well or badly, and records its requests."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests import processes

REVISION = "3f49326eb077187dfe1c2a2bb15fbd74e6ab91e3"


@dataclass
class Hub:
    """The files of the repository `name`, and how it is served.

    `gated` refuses its files without the `token`; `cut` ends the connection after so many bytes of the weights, while it is set;
    `corrupt` sends one wrong byte in them; `instead` is what describes the repository, if it is not the truth. `asked` has (path,
    Range header) of each request for a file's content, `requests` counts all.
    """

    files: dict[str, bytes]
    name: str = "owner/name"
    gated: bool = False
    token: str = "hf_nobody"
    cut: int | None = None
    corrupt: bool = False
    instead: bytes | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)
    requests: int = 0
    address: str = ""

    def entry(self, path: str) -> dict[str, object]:
        """A file in the listing of the repository: weights are stored by their SHA-256, texts as Git objects."""
        content = self.files[path]
        about: dict[str, object] = {"type": "file", "path": path, "rfilename": path, "size": len(content), "oid": self.etag(path)}
        if path.endswith(".safetensors"):
            about["lfs"] = {"oid": self.etag(path), "sha256": self.etag(path), "size": len(content), "pointerSize": 130}
        return about

    def etag(self, path: str) -> str:
        """The checksum by which the Hub names a file's content."""
        content = self.files[path]
        if path.endswith(".safetensors"):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _answer(request: BaseHTTPRequestHandler, hub: Hub) -> None:
    hub.requests += 1
    path, listed = urlsplit(request.path).path, [hub.entry(name) for name in hub.files]
    if hub.name not in path:
        _refuse(request, 401, "RepoNotFound", "Repository Not Found")
    elif path in (f"/api/models/{hub.name}/revision/main", f"/api/models/{hub.name}/revision/{REVISION}"):
        about = {"id": hub.name, "sha": REVISION, "siblings": listed, "gated": hub.gated, "tags": [], "private": False}
        _send(request, hub.instead or json.dumps(about).encode())
    elif path == f"/api/models/{hub.name}/tree/{REVISION}":
        _send(request, json.dumps(listed).encode())
    elif path.startswith(f"/api/models/{hub.name}/revision/"):
        _refuse(request, 404, "RevisionNotFound", "Invalid rev id")
    elif hub.gated and request.headers.get("Authorization") != f"Bearer {hub.token}":
        _refuse(request, 403, "GatedRepo", f"Access to model {hub.name} is restricted")
    else:
        _file(request, hub, path.rpartition(f"/resolve/{REVISION}/")[2])


def _file(request: BaseHTTPRequestHandler, hub: Hub, name: str) -> None:
    if name not in hub.files:
        _refuse(request, 404, "EntryNotFound", "Entry not found")
        return
    content, weights = hub.files[name], name.endswith(".safetensors")
    wanted = request.headers.get("Range", "")
    start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
    body = content[start:]
    request.send_response(206 if start else 200)
    request.send_header("X-Repo-Commit", REVISION)
    request.send_header("ETag", f'"{hub.etag(name)}"')
    request.send_header("Accept-Ranges", "bytes")
    request.send_header("Content-Length", str(len(body)))
    if start:
        request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    request.end_headers()
    if request.command == "HEAD":
        return
    hub.asked.append((name, wanted))
    if weights and hub.corrupt:
        body = body[:-1] + bytes([body[-1] ^ 1])
    request.wfile.write(body[: hub.cut] if weights and hub.cut is not None else body)
    request.close_connection = True


def _send(request: BaseHTTPRequestHandler, text: bytes) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(text)))
    request.end_headers()
    request.wfile.write(text)


def _refuse(request: BaseHTTPRequestHandler, status: int, code: str, message: str) -> None:
    request.send_response(status)
    request.send_header("X-Error-Code", code)
    request.send_header("X-Error-Message", message)
    request.send_header("Content-Length", "0")
    request.end_headers()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve at `hub.address` until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(self, hub)

        def do_HEAD(self) -> None:
            _answer(self, hub)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name is the library's)
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that leaves is part of the plan

    server = Server(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(processes.LIMIT)
