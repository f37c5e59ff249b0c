"""SIGTERM under load: every accepted request is answered, new connections are refused, and the exit code is 0."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests import processes
from tests.inference import small
from tests.serving.small import ask, photo, server_process


def test_sigterm_answers_what_was_accepted_and_refuses_what_is_new(warm: Path, tmp_path: Path) -> None:
    model = small.saved(tmp_path / "tiny.safetensors")
    with server_process(warm, tmp_path, model) as served, ThreadPoolExecutor(16) as clients:

        def client(number: int) -> list[int]:
            """Ask until the server refuses; the statuses of the answers."""
            found = []
            while True:
                try:
                    found.append(ask(served.url, "/v1/predict", photo(number)).status)
                except ConnectionError:  # refused, or closed before the request was taken
                    return found

        asking = [clients.submit(client, number) for number in range(16)]
        processes.eventually(lambda: len(served.lines()) > 60, served.process)
        served.process.send_signal(signal.SIGTERM)
        answers = [one.result(processes.LIMIT) for one in asking]
        assert served.process.wait(processes.LIMIT) == 0
    assert all(status in (200, 503) for found in answers for status in found)
    told = [line["status"] for line in served.lines() if line["event"] == "request"]
    assert told.count(200) == sum(found.count(200) for found in answers), "an answer that the server sent did not arrive"
    assert served.lines()[-1]["event"] == "ended"
