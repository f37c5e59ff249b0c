"""A request body above the limit is refused with 413, by its length or as it arrives, and the server stays healthy."""

from __future__ import annotations

import pytest

from tests.serving.small import Process, ask, form, photo


def healthy(served: Process) -> bool:
    return ask(served.url, "/v1/predict", photo()).status == 200


@pytest.mark.parametrize("kind", ["image/jpeg", "application/json", "multipart"])
def test_a_body_that_says_it_is_too_large_is_refused(served: Process, kind: str) -> None:
    body = photo() + bytes(1 << 20)
    if kind == "multipart":
        body, kind = form([("large.jpg", body)])
    reply = ask(served.url, "/v1/predict", body, kind=kind)
    assert (reply.status, reply.code) == (413, "body_too_large")
    assert healthy(served)


def test_a_body_that_does_not_say_its_length_is_refused_when_it_is_too_large(served: Process) -> None:
    with served.connect() as connection:
        connection.sendall(
            b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(20):
            connection.sendall(b"10000\r\n" + bytes(0x10000) + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    assert healthy(served)


def test_a_body_of_exactly_the_limit_is_read(served: Process) -> None:
    body = photo() + bytes((1 << 20) - len(photo()))
    assert ask(served.url, "/v1/predict", body).status in (200, 422)  # zeros after an image: the decoder's to say
