"""Markup and control characters in the names of classes and files stay text: in JSON, in the log, and for a browser."""

from __future__ import annotations

from pathlib import Path

from tests.inference import small
from tests.serving.small import ask, form, photo, server_process

_MARKUP = "<img src=x onerror=alert(1)>"
_LABELS = (_MARKUP, "dog</script><script>", "\x1b[31mowl", "emu", "yak", "ant", "bee")


def test_names_are_returned_as_data_that_a_browser_does_not_run(warm: Path, tmp_path: Path) -> None:
    model = small.saved(tmp_path / "tiny.safetensors", _LABELS)
    with server_process(warm, tmp_path, model) as served:
        body, kind = form([(f"{_MARKUP}.jpg", photo())])
        reply = ask(served.url, "/v1/predict?top=7", body, kind=kind)
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["x-content-type-options"] == "nosniff"
        entry = reply.json["predictions"][0]
        assert entry["name"] == f"{_MARKUP}.jpg"
        assert {found["label"] for found in entry["top"]} == set(_LABELS)
        page = ask(served.url, "/").body
        assert _MARKUP.encode() not in page
        for path in (f"/{_MARKUP}", "/%1b[31m", "/a%0aevent"):
            ask(served.url, path.replace(" ", "%20"), headers={"x-request-id": "a b"})
    assert "\x1b" not in served.log.read_text()
    assert [line["status"] for line in served.lines() if line["event"] == "request"] == [200, 200, 404, 404, 404]
