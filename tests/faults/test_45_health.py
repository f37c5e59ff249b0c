"""The server lives before it is ready, is ready when its models have run once, and ends when the thread that runs a model dies."""

from __future__ import annotations

import io
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.inference import small
from tests.serving.small import LIMIT, ask, photo
from vitlab.errors import VitlabError
from vitlab.inference.engine import Engine
from vitlab.serving.config import ServeConfig
from vitlab.serving.models import Source
from vitlab.serving.server import Server


def a_server() -> Server:
    return Server([Source(name="tiny", open=small.checkpoint)], ServeConfig(port=0), backend="torch", log=io.StringIO())


def test_the_server_lives_before_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    may_settle = threading.Event()

    def settle(engine: Engine, like: Engine | None = None) -> None:
        assert may_settle.wait(LIMIT)

    monkeypatch.setattr(Engine, "settle", settle)
    server = a_server()
    serving = threading.Thread(target=server.run)
    serving.start()
    try:
        assert ask(server.url, "/healthz").status == 200
        for path, body in (("/readyz", None), ("/v1/predict", photo()), ("/v1/models", None)):
            reply = ask(server.url, path, body)
            assert (reply.status, reply.code) == (503, "not_ready")
            assert "retry-after" in reply.headers
        may_settle.set()
        processes.eventually(lambda: ask(server.url, "/readyz").status == 200, limit=LIMIT)
        assert ask(server.url, "/v1/predict", photo()).status == 200
    finally:
        may_settle.set()
        server.stop()
        serving.join(LIMIT)


def test_the_server_ends_with_an_error_when_the_thread_of_a_model_dies() -> None:
    server = a_server()
    found: list[BaseException] = []

    def run() -> None:
        try:
            server.run()
        except VitlabError as error:
            found.append(error)

    serving = threading.Thread(target=run)
    serving.start()
    processes.eventually(lambda: ask(server.url, "/readyz").status == 200, limit=LIMIT)

    def die(*images: Any, **options: Any) -> Any:
        raise SystemExit("the thread ends")

    backend = server.models.find(None).batcher.engine.backend
    backend.run = die  # type: ignore[method-assign]
    assert ask(server.url, "/v1/predict", photo()).status == 500
    serving.join(LIMIT)
    assert not serving.is_alive()
    assert "the thread ends" in str(found[0])


def test_a_corrupt_model_at_the_start_is_an_error_and_nothing_listens(warm: Path, tmp_path: Path) -> None:
    model = small.saved(tmp_path / "tiny.safetensors")
    model.write_bytes(model.read_bytes()[:-100])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    done = processes.run([warm / "vitlab", "serve", model, "--port", str(port)], check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.1", port))
