"""A local web server that serves one file, correctly or badly, and records its requests."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests import processes
from vitlab.data.catalog.sets import PublicSet, RemoteFile, find_set


@dataclass
class Served:
    """What is served, and how.

    `cut` closes the connection after so many bytes of a body; `reset` does so with a TCP reset; both only for the first
    `bad_answers` questions. `status` answers these with a status and no file.
    """

    content: bytes
    ranges: bool = True
    etag: str | None = '"one"'
    modified: str | None = None
    length: bool = True
    cut: int | None = None
    reset: bool = False
    bad_answers: int = 0
    status: int | None = None
    retry_after: str | None = None
    location: str | None = None
    encoding: str | None = None
    announced: int | None = None
    asked: list[dict[str, str]] = field(default_factory=list)
    address: str = ""


def _answer(request: BaseHTTPRequestHandler, served: Served) -> None:
    served.asked.append(dict(request.headers.items()))
    bad = len(served.asked) <= served.bad_answers
    if served.location is not None and request.path == "/file":
        request.send_response(302)
        request.send_header("Location", served.location)
        request.send_header("Content-Length", "0")
        request.end_headers()
        return
    if served.status is not None and bad:
        request.send_response(served.status)
        if served.retry_after:
            request.send_header("Retry-After", served.retry_after)
        request.send_header("Content-Length", "0")
        request.end_headers()
        return
    start = 0
    wanted = request.headers.get("Range", "")
    same = request.headers.get("If-Range") in (None, served.etag, served.modified)
    if served.ranges and same and wanted.startswith("bytes="):
        start = int(wanted.removeprefix("bytes=").partition("-")[0])
    if start >= len(served.content) and start:
        request.send_response(416)
        request.send_header("Content-Length", "0")
        request.end_headers()
        return
    body = served.content[start:]
    request.send_response(206 if start else 200)
    if start:
        request.send_header("Content-Range", f"bytes {start}-{len(served.content) - 1}/{len(served.content)}")
    if served.length:
        request.send_header("Content-Length", str(len(body) if served.announced is None else served.announced))
    for name, value in (("ETag", served.etag), ("Last-Modified", served.modified), ("Content-Encoding", served.encoding)):
        if value:
            request.send_header(name, value)
    request.end_headers()
    if served.cut is not None and bad:
        request.wfile.write(body[: served.cut])
        if served.reset:
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # on, for no time at all: closing then resets
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            request.wfile.flush()
            request.connection.close()
    else:
        request.wfile.write(body)
    request.close_connection = True


@contextmanager
def serving(served: Served) -> Iterator[Served]:
    """Serve at `served.address` until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(self, served)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name is the library's)
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that leaves is part of the plan

    server = Server(("127.0.0.1", 0), Handler)
    served.address = f"http://127.0.0.1:{server.server_address[1]}/file"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join(processes.LIMIT)


def plain_set(content: bytes = b"content") -> PublicSet:
    """A set of one file that is read as it is, at an address nobody has."""
    file = RemoteFile(
        name="file.bin",
        addresses=("http://127.0.0.1:9/file.bin",),
        size=len(content),
        checksum=f"sha256:{hashlib.sha256(content).hexdigest()}",
    )
    return replace(find_set("mnist"), files=(file,), name="plain")
