"""More requests than the queue holds get 429 with Retry-After at once; those that were accepted are answered."""

from __future__ import annotations

import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests import processes
from tests.inference import small
from tests.serving.small import LIMIT, ask, photo, server_process, serving
from vitlab.inference import Predictor
from vitlab.serving.config import ServeConfig


def test_under_overload_every_request_is_answered_rightly_or_refused_with_a_time_to_wait(warm: Path, tmp_path: Path) -> None:
    model = small.saved(tmp_path / "tiny.safetensors")
    known = [entry.label for entry in Predictor(model, backend="torch")([photo(seed) for seed in range(8)])]
    with server_process(warm, tmp_path, model, "--queue", "4", "--max-images", "4") as served, ThreadPoolExecutor(64) as clients:
        replies = list(clients.map(lambda number: ask(served.url, "/v1/predict", photo(number % 8)), range(256)))
        statuses = Counter(reply.status for reply in replies)
        assert set(statuses) <= {200, 429}
        assert statuses[200] >= 1
        for number, reply in enumerate(replies):
            if reply.status == 200:
                assert reply.json["predictions"][0]["top"][0]["label"] == known[number % 8]
            else:
                assert reply.code == "queue_full"
                assert int(reply.headers["retry-after"]) >= 1
        assert ask(served.url, "/v1/predict", photo()).status == 200  # the queue is empty again


def test_more_connections_than_the_limit_are_refused_and_closing_one_makes_room() -> None:
    with serving(config=ServeConfig(port=0, max_connections=3)) as server, ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT)) for _ in range(3)]
        for connection in held:  # answered, and kept open
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        reply = ask(server.url, "/healthz")
        assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "not_ready", "1")
        held[0].close()
        processes.eventually(lambda: ask(server.url, "/healthz").status == 200, limit=LIMIT)
