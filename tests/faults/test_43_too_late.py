"""A request whose time passes in the queue gets 504, one whose client left is dropped; the model runs neither."""

from __future__ import annotations

import io
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests import processes
from tests.serving.small import LIMIT, ask, photo, serving
from vitlab.inference.backends import Pixels
from vitlab.inference.engine import Engine
from vitlab.serving.config import ServeConfig
from vitlab.serving.models import Batcher
from vitlab.serving.server import Server


class Held:
    """A backend that waits until it may run, and counts the images that it ran."""

    name = "held"

    def __init__(self, inner: Any) -> None:
        self.inner, self.images = inner, 0
        self.entered, self.go = threading.Event(), threading.Event()

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Any:
        """Wait, then run the model."""
        self.entered.set()
        assert self.go.wait(LIMIT)
        self.images += len(images_BHWC)
        return self.inner.run(images_BHWC, features=features)


def hold(engine: Engine) -> Held:
    held = Held(engine.backend)
    engine.backend = held
    return held


def running(server: Server) -> Held:
    """The server's model, held; a thread has the backend that it began with, so the held one gets a thread of its own."""
    model = server.models.find(None)
    before = model.batcher
    held = hold(before.engine)
    model.batcher = Batcher(
        before.engine, batch_size=4, batch_wait=0, on_batch=lambda images, seconds: None, on_death=lambda error: None
    )
    before.close()
    return held


@pytest.mark.timeout(120)
def test_a_request_whose_time_is_over_in_the_queue_never_runs() -> None:
    with serving(config=ServeConfig(port=0, answer_seconds=2)) as server, ThreadPoolExecutor(4) as clients:
        held = running(server)
        first = clients.submit(ask, server.url, "/v1/predict", photo(0))
        assert held.entered.wait(LIMIT)  # the model is busy with the first
        late = [clients.submit(ask, server.url, "/v1/predict", photo(seed)) for seed in (1, 2)]
        assert [(reply.result(LIMIT).status, reply.result().code) for reply in [first, *late]] == [(504, "too_late")] * 3
        held.go.set()
    assert held.images == 1  # the first, which was running


@pytest.mark.timeout(120)
def test_a_request_whose_client_left_never_runs_and_is_no_error() -> None:
    log = io.StringIO()
    with serving(log=log) as server, ThreadPoolExecutor(1) as clients:
        held = running(server)
        first = clients.submit(ask, server.url, "/v1/predict", photo(0))
        assert held.entered.wait(LIMIT)
        with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT) as connection:
            body = photo(1)
            head = f"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            processes.eventually(lambda: server.service.waiting == 2, limit=LIMIT)
        processes.eventually(lambda: server.service.waiting == 1, limit=LIMIT)
        held.go.set()
        assert first.result(LIMIT).status == 200
        assert ask(server.url, "/v1/predict", photo(2)).status == 200
        assert held.images == 2
    assert '"status": 499' in log.getvalue()
    assert "Traceback" not in log.getvalue()
