"""A range arrives as it was sent, however it is cut on the way; everything else is an error or is left to another client."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.processes import LIMIT
from vitlab.io import range_client
from vitlab.io.range_client import BrokenAnswerError, RangeConnection

CONTENT = bytes(range(256)) * 1200
Script = Sequence[bytes | None]
"""What a server sends after each request: bytes; None is silence. An empty answer closes the connection."""


class Host:
    """A server of one connection that sends what it is told, and keeps what it was asked."""

    def __init__(self, script: Sequence[Script], context: ssl.SSLContext | None = None) -> None:
        self.asked: list[bytes] = []
        self.connections = 0
        self._script, self._context = script, context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(LIMIT)
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # a client that leaves is part of the plan
            for answers in self._script:
                plain, _ = self._listener.accept()
                self.connections += 1
                plain.settimeout(LIMIT)
                with plain if self._context is None else self._context.wrap_socket(plain, server_side=True) as connection:
                    self._talk(connection, answers)

    def _talk(self, connection: socket.socket, answers: Script) -> None:
        for answer in answers:
            self.asked.append(connection.recv(4096))
            if answer is None:
                self._end.wait(LIMIT)
                return
            for part in (answer[:10], answer[10:90], answer[90:]):  # heads and bodies are cut anywhere
                connection.sendall(part)

    def close(self) -> None:
        self._end.set()
        self._listener.close()
        self._thread.join(LIMIT)


@pytest.fixture
def serve() -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def begin(*script: Script, context: ssl.SSLContext | None = None) -> Host:
        hosts.append(Host(script, context))
        return hosts[-1]

    yield begin
    for host in hosts:
        host.close()


def ranged(offset: int, length: int, *more: str, status: str = "206 Partial Content", stated: int | None = None) -> bytes:
    """An answer with a range of CONTENT."""
    lines = [
        f"HTTP/1.1 {status}",
        f"content-length: {length if stated is None else stated}",
        f"Content-Range: bytes {offset}-{offset + length - 1}/{len(CONTENT)}",
        'ETag: "1a"',
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + CONTENT[offset : offset + length]


def test_ranges_arrive_whole_on_one_connection(serve: Callable[..., Host]) -> None:
    ranges = [(0, 1), (7, 300_000), (100, 900)]
    host = serve([ranged(*one) for one in ranges])
    connection = RangeConnection("http", host.host, timeout=LIMIT)
    for offset, length in ranges:
        answer = connection.get("/bucket/key?x=1", offset, length, seconds=LIMIT)
        assert answer.data == CONTENT[offset : offset + length]
        assert (answer.status, answer.size, answer.tag) == (206, len(CONTENT), "1a")
    assert connection.is_open
    assert host.connections == 1
    assert all(request.startswith(b"GET /bucket/key?x=1 HTTP/1.1\r\n") for request in host.asked)
    for (offset, length), request in zip(ranges, host.asked, strict=True):
        assert f"\r\nRange: bytes={offset}-{offset + length - 1}\r\n".encode() in request
    connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        ranged(5, 100, status="200 OK"),
        ranged(5, 100, status="503 Slow Down"),
        ranged(5, 100, "Transfer-Encoding: chunked"),
        ranged(5, 100, "Content-Encoding: gzip"),
        ranged(6, 100),
        ranged(5, 200),
        b"HTTP/1.1 206 Partial Content\r\n\r\n",
        b"HTTP/1.1 301 Moved\r\nLocation: http://elsewhere\r\n\r\n",
    ],
    ids=["200", "503", "chunked", "gzip", "another range", "too long", "no length", "moved"],
)
def test_what_is_not_simply_the_range_is_left_to_another_client(answer: bytes, serve: Callable[..., Host]) -> None:
    connection = RangeConnection("http", serve([answer]).host, timeout=LIMIT)
    found = connection.get("/key", 5, 100, seconds=LIMIT)
    assert found.data is None
    assert found.status == int(answer[9:12])
    assert not connection.is_open


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (ranged(5, 60, stated=100), BrokenAnswerError),
        (b"HTTP/1.1 206 Partial", BrokenAnswerError),
        (b"SSH-2.0-server\r\n\r\n", BrokenAnswerError),
        (b"HTTP/1.1 206 OK\r\n" + b"x: y\r\n" * 20_000, BrokenAnswerError),
        (b"", ConnectionResetError),
    ],
    ids=["cut body", "cut head", "no HTTP", "endless head", "closed"],
)
def test_a_broken_answer_is_an_error_that_another_attempt_may_change(
    answer: bytes, error: type[Exception], serve: Callable[..., Host]
) -> None:
    connection = RangeConnection("http", serve([answer]).host, timeout=LIMIT)
    with pytest.raises((error, ConnectionResetError) if len(answer) > 9999 else error):
        connection.get("/key", 5, 100, seconds=LIMIT)
    assert not connection.is_open


def test_a_connection_that_the_server_ends_is_not_used_again(serve: Callable[..., Host]) -> None:
    connection = RangeConnection("http", serve([ranged(5, 100, "Connection: close")]).host, timeout=LIMIT)
    assert connection.get("/key", 5, 100, seconds=LIMIT).data == CONTENT[5:105]
    assert not connection.is_open


def test_one_thread_asks_on_several_connections_before_it_waits(serve: Callable[..., Host]) -> None:
    offsets = (5, 70_000, 0)
    connections = [RangeConnection("http", serve([ranged(offset, 50_000)]).host, timeout=LIMIT) for offset in offsets]
    for connection, offset in zip(connections, offsets, strict=True):
        connection.ask("/key", offset, 50_000)
    for connection, offset in zip(connections, offsets, strict=True):
        assert connection.answer(seconds=LIMIT).data == CONTENT[offset : offset + 50_000]
        connection.close()


def test_silence_and_an_answer_that_takes_too_long_end_in_time(serve: Callable[..., Host]) -> None:
    silent = RangeConnection("http", serve([None]).host, timeout=0.05)
    with pytest.raises(TimeoutError):
        silent.get("/key", 5, 100, seconds=LIMIT)
    slow = RangeConnection("http", serve([ranged(5, 100)]).host, timeout=LIMIT)
    with pytest.raises(TimeoutError):
        slow.get("/key", 5, 100, seconds=-1.0)  # it ought to have been here already
    assert not silent.is_open
    assert not slow.is_open


def test_without_a_time_limit_in_the_kernel_the_answers_are_the_same(
    serve: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_client, "_KERNEL_TIMEOUT", False)
    connection = RangeConnection("http", serve([ranged(7, 300_000), None]).host, timeout=0.5)
    assert connection.get("/key", 7, 300_000, seconds=LIMIT).data == CONTENT[7:300_007]
    with pytest.raises(TimeoutError):
        connection.get("/key", 7, 10, seconds=LIMIT)


@pytest.mark.cluster
def test_ranges_arrive_over_tls_and_an_unknown_certificate_is_refused(
    serve: Callable[..., Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_certificate(tmp_path))
    host = serve([ranged(7, 300_000), ranged(100, 900)], context=context)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "host.pem"))
    connection = RangeConnection("https", host.host, timeout=LIMIT)
    assert connection.get("/key", 7, 300_000, seconds=LIMIT).data == CONTENT[7:300_007]
    assert connection.get("/key", 100, 900, seconds=LIMIT).data == CONTENT[100:1000]
    connection.close()
    monkeypatch.delenv("AWS_CA_BUNDLE")
    other = serve([[]], context=context)
    with pytest.raises(ssl.SSLCertVerificationError):
        RangeConnection("https", other.host, timeout=LIMIT)


def _certificate(folder: Path) -> Path:
    """A key and a certificate of 127.0.0.1 that it signs itself, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "host.pem"
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path
