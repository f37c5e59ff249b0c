"""Random requests, broken images and junk on the socket: no answer above 499, no hang; memory and open files stay as they are."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as some

from benchmarks.fuzz_server import broken_images
from tests import processes
from tests.serving.small import Process, Reply, ask, photo

_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")
_PATHS = (
    "/",
    "/v1/predict",
    "/v1/embed",
    "/v1/explain",
    "/v1/models",
    "/metrics",
    "/openapi.json",
    "/v1",
    "/%00",
    "/%ff",
    "/a" * 50,
)
_KINDS = (
    "image/jpeg",
    "application/json",
    "multipart/form-data; boundary=x",
    "multipart/form-data",
    "text/plain",
    "",
    "é",
    "a/b;" * 20,
)
_JSON = some.recursive(
    some.none() | some.booleans() | some.floats() | some.integers() | some.text(max_size=20),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.sampled_from(("image", "images", "top", "x")), inner),
    max_leaves=8,
)
_BODIES = some.none() | some.binary(max_size=300) | _JSON.map(lambda value: repr(value).replace("'", '"').encode(errors="replace"))


def open_files(served: Process) -> int:
    """Files and sockets of the server itself; the process that the test started stands for it."""
    text = ask(served.url, "/metrics").body.decode()
    return round(float(next(line.split()[1] for line in text.splitlines() if line.startswith("process_open_fds "))))


def expect(reply: Reply) -> None:
    assert reply.status < 500, reply.body
    if reply.status >= 400 and reply.body:
        assert reply.json["error"]["message"]


@settings(max_examples=200)
@given(
    some.sampled_from(_METHODS), some.sampled_from(_PATHS), some.sampled_from(_KINDS), some.text("?&=abtop%1", max_size=12), _BODIES
)
def test_random_requests_are_answered_below_500(
    served: Process, method: str, path: str, kind: str, query: str, body: bytes | None
) -> None:
    encoded = kind.encode().decode("latin-1")
    expect(ask(served.url, f"{path}?{query}", body, method=method, kind=encoded))


def test_broken_images_are_read_or_refused(served: Process) -> None:
    for content in broken_images(120, seed=48):
        if len(content) < 1 << 20:
            expect(ask(served.url, "/v1/predict", content, kind="application/octet-stream"))


def test_junk_on_the_socket_is_refused_and_leaves_nothing_behind(served: Process) -> None:
    ask(served.url, "/v1/predict", photo())
    before = open_files(served)
    rng = random.Random(48)
    for number in range(60):
        junk = [
            rng.randbytes(200),
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /v1/predict HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"POST /v1/predict HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST /v1/predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 5,
        ][number % 8]
        with served.connect() as connection, suppress(ConnectionError):
            connection.sendall(junk)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
            assert not answer.startswith(b"HTTP/1.1 5")
            while connection.recv(1 << 16):
                pass
    assert ask(served.url, "/v1/predict", photo()).status == 200
    processes.eventually(lambda: open_files(served) <= before)
    assert "Traceback" not in served.log.read_text()


def test_headers_above_64_kib_are_refused(served: Process) -> None:
    with served.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        with suppress(ConnectionError):
            for _ in range(4):
                connection.sendall(b"a" * 30_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 431")


def test_the_log_of_all_this_is_one_json_object_a_line(served: Process) -> None:
    assert {line["event"] for line in served.lines()} <= {"note", "listening", "ready", "request"}
    assert Path(served.log).stat().st_size
