"""Clients that stop in the middle of a request get 408 and lose their connection; others are served meanwhile."""

from __future__ import annotations

from contextlib import ExitStack

from tests.serving.small import Process, ask, photo


def test_clients_that_stop_are_given_up_and_others_are_served(served: Process) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nContent-Length: 50000\r\n\r\n"
    with ExitStack() as stack:
        connections = [stack.enter_context(served.connect()) for _ in range(12)]
        *stalled, in_headers, silent = connections
        for connection in stalled:
            connection.sendall(head + b"\xff\xd8\xff")
        in_headers.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert ask(served.url, "/v1/predict", photo()).status == 200
        for connection in (*stalled, in_headers):
            assert connection.recv(4096).startswith(b"HTTP/1.1 408")
        assert silent.recv(4096) == b""
        for connection in (*stalled, in_headers):
            while connection.recv(4096):  # until the server closes it
                pass


def test_an_upload_that_is_aborted_leaves_the_server_healthy_and_no_traceback(served: Process) -> None:
    for _ in range(5):
        with served.connect() as connection:
            connection.sendall(
                b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nContent-Length: 50000\r\n\r\n\xff\xd8"
            )
    assert ask(served.url, "/v1/predict", photo()).status == 200
    assert "Traceback" not in served.log.read_text()
