"""Bad input is answered with 4xx, a stable code and a sentence; no traceback and no path of the server is in it."""

from __future__ import annotations

import base64
import json
import struct
import zlib

import pytest

from tests.data.images import encode, scene
from tests.serving.small import Process, ask, form, photo


def png_of(width: int, height: int) -> bytes:
    """A PNG file whose header promises so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


GOOD = base64.b64encode(photo()).decode()
CASES: list[tuple[str, bytes, str, int, str]] = [
    ("an empty body", b"", "image/jpeg", 422, "no_image"),
    ("garbage", b"\x00\x01garbage" * 50, "image/jpeg", 415, "unsupported_image"),
    ("a page", b"<html><body>404</body></html>", "image/jpeg", 415, "unsupported_image"),
    ("half a JPEG", photo()[: len(photo()) // 2], "image/jpeg", 422, "unreadable_image"),
    ("a TIFF", encode(scene(), "TIFF"), "image/tiff", 415, "unsupported_image"),
    ("a bomb", png_of(13_000, 13_000), "image/png", 413, "too_many_pixels"),
    ("text", b"hello", "text/plain", 415, "unsupported_media_type"),
    ("a form of another kind", b"file=abc", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
    ("not JSON", b"{", "application/json", 400, "bad_request"),
    ("deep JSON", b"[" * 100_000, "application/json", 400, "bad_request"),
    ("JSON that is no object", b"[1]", "application/json", 400, "bad_request"),
    ("JSON without an image", b"{}", "application/json", 422, "no_image"),
    ("not base64", as_json({"image": "***"}), "application/json", 422, "invalid_option"),
    ("a number for an image", as_json({"images": [3]}), "application/json", 422, "invalid_option"),
    ("both", as_json({"image": GOOD, "images": [GOOD]}), "application/json", 422, "invalid_option"),
    ("too many", as_json({"images": [GOOD] * 5}), "application/json", 422, "too_many_images"),
    ("an unknown option", as_json({"image": GOOD, "topp": 3}), "application/json", 422, "invalid_option"),
    ("no number", as_json({"image": GOOD, "top": "many"}), "application/json", 422, "invalid_option"),
    ("a wrong number", as_json({"image": GOOD, "top": -1}), "application/json", 422, "invalid_option"),
    ("a wrong flag", as_json({"image": GOOD, "probabilities": "perhaps"}), "application/json", 422, "invalid_option"),
    ("an unknown model", as_json({"image": GOOD, "model": "../../etc/passwd"}), "application/json", 404, "not_found"),
    ("a model of another type", as_json({"image": GOOD, "model": ["tiny"]}), "application/json", 404, "not_found"),
    ("a wrong field", *form([("a.jpg", photo())], field="picture"), 422, "invalid_option"),
    ("too many files", *form([("a.jpg", photo())] * 5), 422, "too_many_images"),
    ("a form without a file", *form([], {"top": "3"}), 422, "no_image"),
    ("a form without its boundary", form([("a.jpg", photo())])[0], "multipart/form-data", 400, "bad_request"),
    ("a form that is not one", b"abc", "multipart/form-data; boundary=x", 400, "bad_request"),
]


@pytest.mark.parametrize(("body", "kind", "status", "code"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_bad_input_is_refused_by_its_cause(served: Process, body: bytes, kind: str, status: int, code: str) -> None:
    reply = ask(served.url, "/v1/predict", body, kind=kind)
    assert (reply.status, reply.code) == (status, code), reply.body
    assert reply.json["error"]["message"]
    text = reply.body.decode()
    assert "Traceback" not in text
    assert str(served.log.parent) not in text


@pytest.mark.parametrize(
    "query",
    [
        "method=guess",
        "layer=99",
        "layer=x",
        "head=12",
        "query=9,9,9",
        "query=99,0",
        "class=yes",
        "method=rollout&layer=1",
        "format=gif",
    ],
)
def test_an_explanation_that_is_not_possible_is_refused(served: Process, query: str) -> None:
    method = "" if "method" in query else "&method=relevance" if "class" in query else "&method=attention"
    reply = ask(served.url, f"/v1/explain?{query}{method}", photo())
    assert (reply.status, reply.code) == (422, "invalid_option")


def test_an_unknown_path_and_a_wrong_method_are_refused(served: Process) -> None:
    assert (ask(served.url, "/v2/predict", photo()).status, ask(served.url, "/v1/predict").status) == (404, 405)
    assert ask(served.url, "/v1/predict/", photo()).status == 404
