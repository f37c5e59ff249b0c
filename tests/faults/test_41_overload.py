"""More requests than the queue holds get 429 with Retry-After at once; those that were accepted are answered."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.inference import small
from tests.serving.small import ask, photo, server_process
from vitlab.inference import Predictor


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
