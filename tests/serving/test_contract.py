"""/openapi.json is true to what is served; keys, origins and ids hold for every endpoint."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route

from tests.inference import small
from tests.serving.small import Reply, ask, form, photo, serving
from vitlab.serving.app import OPTIONS, create_app
from vitlab.serving.config import ServeConfig
from vitlab.serving.requests import CODES
from vitlab.serving.server import Server

KEY = "a-key-of-this-test-0123456789"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = {"tiny": small.checkpoint(), "other": small.checkpoint(None, seed=1)}
    with serving(models, config=ServeConfig(port=0, max_images=4)) as server:
        yield server


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = ask(server.url, "/openapi.json").json
    return found


def check(document: dict[str, Any], path: str, method: str, reply: Reply) -> None:
    """The reply is one that the document names, with a body of its schema."""
    responses = document["paths"][path][method]["responses"]
    assert str(reply.status) in responses, f"{method} {path} gives {reply.status}: {reply.body[:200]!r}"
    kind = reply.headers["content-type"].partition(";")[0]
    content = responses[str(reply.status)]["content"]
    assert kind in content
    if "schema" in content[kind]:
        Draft202012Validator({**content[kind]["schema"], "components": document["components"]}).validate(reply.json)
    if reply.status >= 400:
        assert CODES[reply.code][0] == reply.status
        assert f"{reply.code}:" in responses[str(reply.status)]["description"]


def test_the_document_names_every_path_and_method_that_is_served(server: Server, document: dict[str, Any]) -> None:
    served = {
        (route.path, method.lower())
        for route in create_app(server.service).routes
        if isinstance(route, Route) and "{" not in route.path and route.path != "/"
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert served == {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert {name for name, _ in served if name in OPTIONS} == set(OPTIONS)


def test_every_answer_is_as_the_document_says(server: Server, document: dict[str, Any]) -> None:
    image, broken = photo(), photo()[:200]
    several, kind = form([("a.jpg", image), ("b.jpg", broken)], {"probabilities": "true"})
    asked: list[tuple[str, str, bytes | None, str]] = [
        *[(path, "", None, "") for path in ("/healthz", "/readyz", "/v1/models", "/metrics", "/openapi.json")],
        ("/v1/predict", "", image, "image/jpeg"),
        ("/v1/predict", "?top=3&model=other&probabilities=1", image, "image/jpeg"),
        ("/v1/predict", "", several, kind),
        ("/v1/predict", "", broken, "image/jpeg"),
        ("/v1/predict", "", b"x", "image/jpeg"),
        ("/v1/predict", "", b"x", "text/plain"),
        ("/v1/predict", "?model=none", image, "image/jpeg"),
        ("/v1/predict", "?top=x", image, "image/jpeg"),
        ("/v1/predict", "", b"{", "application/json"),
        ("/v1/predict", "", bytes(17 << 20), "image/jpeg"),
        ("/v1/embed", "", image, "image/jpeg"),
        ("/v1/embed", "?top=3", image, "image/jpeg"),
        *[("/v1/explain", f"?method={method}", image, "image/jpeg") for method in ("attention", "rollout", "relevance", "none")],
        ("/v1/explain", "?method=attention&layer=0&head=1&query=2,3", image, "image/jpeg"),
        ("/v1/explain", "?method=relevance&class=owl", image, "image/jpeg"),
        ("/v1/explain", "?format=png&overlay=colour", image, "image/jpeg"),
        ("/v1/explain", "", broken, "image/jpeg"),
    ]
    for path, query, body, content_type in asked:
        reply = ask(server.url, path + query, body, kind=content_type)
        check(document, path, "get" if body is None else "post", reply)


def test_an_option_means_the_same_in_the_query_in_a_form_and_in_json(server: Server) -> None:
    wanted = {"method": "attention", "layer": "0", "head": "1", "query": "1,2"}
    query = "&".join(f"{name}={value}" for name, value in wanted.items())
    body, kind = form([("a.jpg", photo())], wanted)
    encoded = {"image": base64.b64encode(photo()).decode(), "method": "attention", "layer": 0, "head": 1, "query": [1, 2]}
    replies = [
        ask(server.url, f"/v1/explain?{query}", photo()),
        ask(server.url, "/v1/explain", body, kind=kind),
        ask(server.url, "/v1/explain", json.dumps(encoded).encode(), kind="application/json"),
    ]
    assert all(reply.json == replies[0].json for reply in replies)
    assert replies[0].json["shape"] == [4, 4]


def test_models_are_chosen_by_name_and_the_first_is_the_default(server: Server) -> None:
    names = [entry["name"] for entry in ask(server.url, "/v1/models").json["models"]]
    assert names == ["tiny", "other"]
    told = {name: ask(server.url, f"/v1/predict?model={name}", photo()).json for name in names}
    assert ask(server.url, "/v1/predict", photo()).json == told["tiny"]
    assert told["tiny"]["predictions"] != told["other"]["predictions"]


def test_a_request_keeps_its_id_in_the_answer_and_in_the_log() -> None:
    log = io.StringIO()
    with serving(log=log) as server:
        assert ask(server.url, "/healthz", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
        made = [ask(server.url, "/healthz", headers={"x-request-id": bad}).headers["x-request-id"] for bad in ("", "a b", "x" * 65)]
    assert len(set(made)) == 3
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in made)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["request_id"] for line in lines if line["event"] == "request"] == ["mine-1", *made]


def test_with_keys_only_who_has_one_may_ask() -> None:
    with serving(config=ServeConfig(port=0, keys=("another-key-0123456789", KEY), origins=("https://a.example",))) as server:
        document = ask(server.url, "/openapi.json").json
        assert document["components"]["securitySchemes"]
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": KEY[:-1]}, {"authorization": f"Basic {KEY}"}):
            reply = ask(server.url, "/v1/predict", photo(), headers=headers)
            assert (reply.status, reply.code) == (401, "no_key")
            assert reply.headers["www-authenticate"] == "Bearer"
            check(document, "/v1/predict", "post", reply)
            assert ask(server.url, "/metrics", headers=headers).status == 401
        for headers in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
            assert ask(server.url, "/v1/predict", photo(), headers=headers).status == 200
        assert ask(server.url, "/healthz").status == ask(server.url, "/readyz").status == 200
        told = ask(server.url, "/v1/models", headers={"x-api-key": KEY, "origin": "https://a.example"}).headers
        assert told["access-control-allow-origin"] == "https://a.example"
        other = ask(server.url, "/v1/models", headers={"x-api-key": KEY, "origin": "https://b.example"}).headers
        assert "access-control-allow-origin" not in other
        asking = {
            "origin": "https://a.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "x-api-key",
        }
        assert ask(server.url, "/v1/predict", method="OPTIONS", headers=asking).status == 200
