"""A load generator for HTTP servers on this machine: many clients in one light process. `benchmarks/serve.py` starts it.

    echo '{"port": 8000, "clients": 64, ...}' | python benchmarks/load.py

Clients of a closed loop ask again as soon as they are answered. In an open loop (`rate` above 0) requests begin at a fixed rate,
whether or not earlier ones were answered. Prints JSON: the seconds of each request that was answered with 200, how often each
status came, and how many were lost: a connection that broke before an answer.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

_BOUNDARY = "a-boundary-that-no-image-holds"
_MOST_OPEN = 1500  # connections of an open loop


def request_of(path: Path, place: str, form: str) -> bytes:
    """A whole HTTP request with one image, as a form or as JSON with base64."""
    content = path.read_bytes()
    if form == "json":
        body, kind = json.dumps({"image": base64.b64encode(content).decode()}).encode(), "application/json"
    else:
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{path.name}"\r\n\r\n'
        body = head.encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
        kind = f"multipart/form-data; boundary={_BOUNDARY}"
    return (
        f"POST {place} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )


class Load:
    """The clients, and what they saw."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.requests = [request_of(Path(path), settings["place"], settings["form"]) for path in settings["images"]]
        self.seconds: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.lost = 0
        self.best: dict[int, float] = {}
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._open = 0

    async def ask(self, number: int) -> None:
        """One request on an idle connection, or on a new one."""
        which = number % len(self.requests)
        began = time.perf_counter()
        try:
            if self._idle:
                reader, writer = self._idle.pop()
            else:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.settings["port"])
            writer.write(self.requests[which])
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode().lower().split("\r\n")
            length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
            body = await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            self.lost += 1
            return
        status = lines[0].split()[1]
        if "connection: close" in lines:
            writer.close()
        else:
            self._idle.append((reader, writer))
        self.statuses[status] += 1
        if status == "200":
            self.seconds.append(time.perf_counter() - began)
            if which not in self.best:
                found = json.loads(body)
                self.best[which] = (found["predictions"][0] if "predictions" in found else found)["top"][0]["probability"]

    async def closed(self, clients: int, seconds: float, most: int) -> None:
        """So many clients, each asking again and again."""
        end, number = time.perf_counter() + seconds, iter(range(most))

        async def client() -> None:
            while time.perf_counter() < end and (own := next(number, None)) is not None:
                await self.ask(own)

        await asyncio.gather(*(client() for _ in range(clients)))

    async def opened(self, rate: float, seconds: float) -> None:
        """So many requests a second."""
        began, running = time.perf_counter(), set[asyncio.Task[None]]()
        for number in range(round(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            while len(running) >= _MOST_OPEN:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.ensure_future(self.ask(number))
            running.add(task)
            task.add_done_callback(running.discard)
        if running:
            await asyncio.wait(running)


async def main() -> None:
    """Read the settings, load the server, print what was seen."""
    settings = json.loads(sys.stdin.read())
    load = Load(settings)
    began = time.perf_counter()
    if settings["rate"]:
        await load.opened(settings["rate"], settings["seconds"])
    else:
        await load.closed(settings["clients"], settings["seconds"], settings["most"])
    took = time.perf_counter() - began
    found = {"took": took, "seconds": load.seconds, "statuses": load.statuses, "lost": load.lost, "best": load.best}
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
