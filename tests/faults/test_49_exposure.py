"""What the server exposes: this machine alone unless asked, no file of its disk, no address on the network, no page's script."""

from __future__ import annotations

import inspect
import json

import pytest

import vitlab
from tests.serving.small import Process, ask
from vitlab.serving.config import ServeConfig


def test_the_default_address_is_that_of_this_machine_alone(served: Process) -> None:
    assert inspect.signature(vitlab.serve).parameters["host"].default == ServeConfig().host == "127.0.0.1"
    assert served.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("start", ["/", "/static/", "/explorer/", "/v1/models/"])
@pytest.mark.parametrize(
    "path",
    ["../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "..%5c..%5cetc", "....//etc/passwd", "%00"],
)
def test_no_path_leads_to_a_file(served: Process, start: str, path: str) -> None:
    reply = ask(served.url, start + path)
    assert reply.status in (400, 404)
    assert b"root:" not in reply.body


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/x.jpg", "file:///etc/passwd", "//example.org/x.jpg"])
def test_no_address_is_fetched_for_a_client(served: Process, address: str) -> None:
    for body in ({"image": address}, {"images": [{"data": address}]}, {"url": address}):
        reply = ask(served.url, "/v1/predict", json.dumps(body).encode(), kind="application/json")
        assert (reply.status, reply.code) == (422, "invalid_option")


def test_every_answer_tells_a_browser_to_run_and_load_nothing_from_elsewhere(served: Process) -> None:
    for path in ("/", "/v1/models", "/nothing", "/metrics"):
        headers = ask(served.url, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers
