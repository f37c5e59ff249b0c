"""What the server answers is what the library computes, however the image was sent."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.inference import small as models
from tests.serving.small import Reply, ask, form, photo, serving
from vitlab.inference import Predictor
from vitlab.serving.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor(models.checkpoint(), backend="torch")


def first(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json["predictions"][0]
    return found


def test_an_answer_equals_that_of_predict(server: Server, predictor: Predictor) -> None:
    for seed in range(3):
        told, known = first(ask(server.url, "/v1/predict", photo(seed))), predictor(photo(seed))[0].to_json()
        assert told == known


def test_an_image_is_answered_alike_however_it_is_sent(server: Server) -> None:
    content = photo(3)
    body, kind = form([("a.jpg", content)], {"top": "2"})
    as_json = json.dumps({"image": base64.b64encode(content).decode(), "top": 2}).encode()
    replies = [
        ask(server.url, "/v1/predict?top=2", content),
        ask(server.url, "/v1/predict?top=2", content, kind="application/octet-stream"),
        ask(server.url, "/v1/predict", body, kind=kind),
        ask(server.url, "/v1/predict", as_json, kind="application/json"),
    ]
    tops = [first(reply)["top"] for reply in replies]
    assert all(top == tops[0] for top in tops)
    assert len(tops[0]) == 2


def test_images_of_one_request_are_answered_in_their_order_and_by_their_names(server: Server, predictor: Predictor) -> None:
    files = [(f"photo {seed}.jpg", photo(seed)) for seed in range(5)]
    body, kind = form(files)
    told = ask(server.url, "/v1/predict", body, kind=kind).json["predictions"]
    assert [entry["name"] for entry in told] == [name for name, _ in files]
    for entry, (_, content) in zip(told, files, strict=True):
        assert entry["top"][0]["label"] == predictor(content)[0].label


def test_probabilities_of_all_classes_sum_to_one(server: Server) -> None:
    told = first(ask(server.url, "/v1/predict?probabilities=true", photo()))
    assert np.isclose(np.sum(told["probabilities"]), 1, atol=1e-5)


def test_concurrent_clients_each_get_their_own_answer(server: Server, predictor: Predictor) -> None:
    seeds = [seed % 40 for seed in range(200)]
    known = {seed: predictor(photo(seed))[0] for seed in set(seeds)}
    with ThreadPoolExecutor(16) as clients:
        replies = list(clients.map(lambda seed: ask(server.url, "/v1/predict?probabilities=true", photo(seed)), seeds))
    for seed, reply in zip(seeds, replies, strict=True):
        assert np.allclose(first(reply)["probabilities"], known[seed].probabilities, atol=1e-5)


def test_features_equal_those_of_the_library(server: Server, predictor: Predictor) -> None:
    reply = ask(server.url, "/v1/embed", photo(1))
    known = predictor(photo(1), features=True)[0].features
    assert known is not None
    assert reply.json["width"] == len(known)
    assert np.allclose(reply.json["embeddings"][0]["features"], known, atol=1e-5)
