"""A bad image among good ones fails alone: in one request, and in one batch of several clients."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.inference import small
from tests.serving.small import Process, ask, form, photo
from vitlab.inference import Predictor


def test_a_bad_image_of_a_request_fails_alone(served: Process) -> None:
    files = [("a.jpg", photo(0)), ("broken.jpg", photo(1)[:300]), ("text.jpg", b"text"), ("b.jpg", photo(2))]
    body, kind = form(files)
    for path, key in (("/v1/predict", "predictions"), ("/v1/embed", "embeddings")):
        reply = ask(served.url, path, body, kind=kind)
        assert reply.status == 200
        found = [(entry["name"], entry.get("error", {}).get("code")) for entry in reply.json[key]]
        assert found == [("a.jpg", None), ("broken.jpg", "unreadable_image"), ("text.jpg", "unsupported_image"), ("b.jpg", None)]


def test_bad_images_of_some_clients_do_not_change_what_others_are_answered(served: Process) -> None:
    predictor = Predictor(small.checkpoint(), backend="torch")
    known = {seed: predictor(photo(seed))[0].label for seed in range(10)}
    bodies = [photo(number % 10) if number % 4 else photo(number % 10)[:200] for number in range(60)]
    with ThreadPoolExecutor(12) as clients:
        replies = list(clients.map(lambda body: ask(served.url, "/v1/predict", body), bodies))
    for number, reply in enumerate(replies):
        if number % 4:
            assert reply.json["predictions"][0]["top"][0]["label"] == known[number % 10]
        else:
            assert reply.status == 422
