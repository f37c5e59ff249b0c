"""Metrics equal the client's own counts, also after errors and after clients that left."""

from __future__ import annotations

import re
from collections import Counter

from tests import processes
from tests.serving.small import Process, ask, form, photo


def counts(served: Process, name: str) -> Counter[tuple[str, ...]]:
    """The values of a counter, by its labels' values in their order."""
    text = ask(served.url, "/metrics").body.decode()
    found = Counter[tuple[str, ...]]()
    for labels, value in re.findall(rf"^{name}{{(.*?)}} (\S+)$", text, re.MULTILINE):
        found[tuple(re.findall(r'"(.*?)"', labels))] = round(float(value))
    return found


def test_requests_and_images_are_counted_as_the_client_saw_them(served: Process) -> None:
    before, images_before = counts(served, "vitlab_requests_total"), counts(served, "vitlab_images_total")
    own = Counter[tuple[str, ...]]()

    def asked(path: str, body: bytes | None = None, kind: str = "image/jpeg", *, label: str | None = None) -> None:
        reply = ask(served.url, path, body, kind=kind)
        own["GET" if body is None else "POST", label or path.partition("?")[0], str(reply.status)] += 1

    for seed in range(5):
        asked("/v1/predict", photo(seed))
    asked("/v1/predict", photo()[:200])
    asked("/v1/predict", b"text")
    asked("/v1/predict?top=0", photo())
    asked("/v1/embed", *form([("a.jpg", photo()), ("b.jpg", photo()[:100])]))
    asked("/v1/explain", photo())
    asked("/nothing/here", label="other")
    asked("/healthz")
    with served.connect() as connection:
        connection.sendall(b"POST /v1/embed HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nContent-Length: 99\r\n\r\n\xff")
    own["POST", "/v1/embed", "499"] += 1
    own["GET", "/metrics", "200"] += 2  # the reads before and between; the last one is not counted yet

    def seen() -> Counter[tuple[str, ...]]:
        found = counts(served, "vitlab_requests_total")
        found.subtract(before)
        return Counter({key: value for key, value in found.items() if value})

    processes.eventually(lambda: seen()["POST", "/v1/embed", "499"] == 1)
    after = seen()
    for counted in (own, after):
        del counted["GET", "/metrics", "200"]  # reading the counters counts too
    assert after == own
    images = counts(served, "vitlab_images_total")
    images.subtract(images_before)
    assert images["tiny", "answered"] == 6
    assert images["tiny", "refused"] == 3
