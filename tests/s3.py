"""A real S3-compatible server on loopback (moto), behind a proxy that counts its requests and can be slow, busy or broken.

with storage(monkeypatch) as s3:              # the environment has the address and the credentials
    s3.put("bucket/train-000.tar", content)
    s3.faults = [Fault(status=503), Fault(cut=100)]   # of the next requests that match
    s3.latency = 0.02

The proxy stands in the caller's process; moto, which reads a whole object for each range of it, in a process of its own.
"""

from __future__ import annotations

import http.client
import io
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from PIL import Image

from tests import processes

_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test-key-of-nobody",
    "AWS_SECRET_ACCESS_KEY": "test-secret-of-nobody",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to one request: an answer with this `status`, a body `cut` after so many bytes, a connection that is `reset`, or
    silence for `hang` seconds. `method` and `path` (a regular expression) choose the request."""

    status: int | None = None
    code: str = "SlowDown"
    cut: int | None = None
    reset: bool = False
    hang: float = 0.0
    method: str = "GET"
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that arrived: its key without the bucket's query, and the range that it asks for."""

    method: str
    path: str
    query: str
    first: int | None
    last: int | None


@dataclass
class Storage:
    """The server. `requests` are all that arrived; `faults` are used up one by one; `latency` is in seconds."""

    address: str
    upstream: str
    latency: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self) -> Any:
        """boto3's client of the server itself, past the proxy."""
        import boto3  # type: ignore[import-untyped, unused-ignore]

        return boto3.client("s3", endpoint_url=self.upstream)

    def put(self, key: str, content: bytes) -> None:
        """Store an object, past the proxy."""
        bucket, _, name = key.partition("/")
        self.client().put_object(Bucket=bucket, Key=name, Body=content)

    def get(self, key: str) -> bytes:
        """The content of an object, past the proxy."""
        bucket, _, name = key.partition("/")
        content: bytes = self.client().get_object(Bucket=bucket, Key=name)["Body"].read()
        return content

    def keys(self, bucket: str) -> list[str]:
        """The names of all objects."""
        return [entry["Key"] for entry in self.client().list_objects_v2(Bucket=bucket).get("Contents", [])]

    def ranges(self, ending: str = "") -> list[tuple[str, int, int]]:
        """(key, first byte, last byte) of each range that was read of objects whose name ends so."""
        with self.lock:
            return [
                (one.path, one.first, -1 if one.last is None else one.last)
                for one in self.requests
                if one.method == "GET" and one.first is not None and one.path.endswith(ending)
            ]

    def take_fault(self, request: Request) -> Fault | None:
        """The fault of this request, which is then used up."""
        with self.lock:
            self.requests.append(request)
            for number, fault in enumerate(self.faults):
                if fault.method == request.method and re.search(fault.path, request.path + request.query):
                    return self.faults.pop(number)
        return None


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    storage: Storage
    timeout = 60

    def do_GET(self) -> None:
        body = self._body()
        storage = self.storage
        place = urlsplit(self.path)
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(found[1]), int(found[2]) if found[2] else None) if found else (None, None)
        fault = storage.take_fault(
            Request(method=self.command, path=unquote(place.path).lstrip("/"), query=place.query, first=first, last=last)
        )
        if storage.latency:
            time.sleep(storage.latency)
        if fault is not None and fault.hang:
            time.sleep(fault.hang)
        if fault is not None and fault.reset:
            self.close_connection = True
            return
        if fault is not None and fault.status is not None:
            text = f"<Error><Code>{fault.code}</Code><Message>please wait</Message></Error>".encode()
            self._send(fault.status, {"Content-Type": "application/xml"}, text)
            return
        connection = http.client.HTTPConnection(urlsplit(storage.upstream).netloc, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
            connection.request(self.command, self.path, body=body, headers=headers)
            answer = connection.getresponse()
            content = answer.read()
            length = answer.headers.get("Content-Length") if self.command == "HEAD" else None
        finally:
            connection.close()
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        cut = None if fault is None else fault.cut
        self._send(answer.status, kept, content, length=length, cut=cut)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(
        self, status: int, headers: dict[str, str], content: bytes, *, length: str | None = None, cut: int | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content if cut is None else content[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name is the library's)
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that leaves is part of the plan


@contextmanager
def proxied(upstream: str) -> Iterator[Storage]:
    """A proxy in front of the server at this address."""
    storage = Storage(address="", upstream=upstream)
    handler = type("Handler", (_Proxy,), {"storage": storage})
    server = _Server(("127.0.0.1", 0), handler)
    storage.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield storage
    finally:
        server.shutdown()
        server.server_close()
        thread.join(processes.LIMIT)


@contextmanager
def moto_server() -> Iterator[str]:
    """The address of a moto server on loopback, in threads of this process."""
    from moto.server import ThreadedMotoServer  # type: ignore[import-not-found, unused-ignore]

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def storage(upstream: str, patch: pytest.MonkeyPatch, *buckets: str) -> Iterator[Storage]:
    """A proxy with fresh buckets, and an environment in which s3:// addresses lead to it."""
    for name, value in ENVIRONMENT.items():
        patch.setenv(name, value)
    with proxied(upstream) as found:
        patch.setenv("AWS_ENDPOINT_URL", found.address)
        for bucket in buckets:
            found.client().create_bucket(Bucket=bucket)
        yield found


def jpeg(number: int) -> bytes:
    """A small image of noise that depends on the number."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 255, (24, 20, 3)).astype(np.uint8)).save(file, "JPEG")
    return file.getvalue()
