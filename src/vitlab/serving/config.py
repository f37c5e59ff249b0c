"""Settings of the server: where it listens, how it batches, what it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitlab.errors import ConfigError, at_least
from vitlab.io.files import read_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Where the server listens, how requests are batched, and the limits of a request.

    `batch_size` images of any clients run through the model at once; a batch that is not full waits up to `batch_wait`
    milliseconds, and only while other images are being decoded. `workers` threads decode. `queue` is the number of images that may
    be accepted and not yet answered. `max_body` (bytes), `max_images` and `max_pixels` (of one image) limit a request; all
    bodies in memory together take at most `max_memory` bytes. A request must arrive within `receive_seconds` and be answered
    within `answer_seconds` after that. `keys`, if there are any, are the API keys that are accepted; `origins` are the origins of
    web pages whose scripts may call the server (CORS). `index` is a search index of the first model, for the page's nearest images.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    batch_size: int = 16
    batch_wait: float = 3.0
    workers: int = 2
    queue: int = 80
    max_body: int = 16 << 20
    max_images: int = 32
    max_pixels: int = 50_000_000
    max_memory: int = 256 << 20
    max_connections: int = 512
    receive_seconds: float = 20.0
    answer_seconds: float = 30.0
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    index: Path | None = None

    def __post_init__(self) -> None:
        at_least("port", self.port, 0, 65_535)
        for name in ("batch_size", "workers", "max_body", "max_images", "max_pixels", "max_memory", "max_connections"):
            at_least(name, getattr(self, name), 1)
        at_least("batch_wait", self.batch_wait, 0, 1000)
        at_least("queue", self.queue, self.max_images)
        at_least("max_memory", self.max_memory, self.max_body)
        for name in ("receive_seconds", "answer_seconds"):
            at_least(name, getattr(self, name), 0.01, 3600)
        for key in self.keys:
            if len(key) < 16 or not key.isascii() or not key.isprintable() or " " in key:
                raise ConfigError("an API key has at least 16 printable ASCII characters and no space")
        for origin in self.origins:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise ConfigError(f"origins={origin!r} is not the origin of a web page", hint="for example https://example.org")


def read_keys(path: Path) -> tuple[str, ...]:
    """The API keys of a file, one per line; empty lines and lines that begin with # are left out."""
    lines = [line.strip() for line in read_bytes(path, most=1 << 20).decode("utf-8", "replace").splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"{path} holds no API key", hint="write one per line, of at least 16 characters")
    return keys
