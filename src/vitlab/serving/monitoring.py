"""What the server records: its log, and what it counts for Prometheus.

The log has one JSON object per line. A thread of its own writes it, so that a slow or full disk never delays a request.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from vitlab.io.display import json_text

_MOST_LINES = 10_000  # that wait to be written; further ones are dropped and counted
_PATIENCE = 5.0  # seconds that writing may take at the end
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)


class Log:
    """Writes lines to a stream; `on_drop` is called for each line that could not be written."""

    def __init__(self, stream: TextIO, *, on_drop: Callable[[], None]) -> None:
        self._stream = stream
        self._on_drop = on_drop
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="vitlab-log", daemon=True)
        self._thread.start()

    def event(self, event: str, fields: dict[str, Any]) -> None:
        """Write one line; it is ASCII, and control characters are escaped."""
        if self._lines.qsize() >= _MOST_LINES:
            self._on_drop()
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._lines.put(json_text({"time": now, "event": event} | fields))

    def note(self, sentence: str) -> None:
        """Write one sentence."""
        self.event("note", {"message": sentence})

    def close(self) -> None:
        """Write what waits, if that is possible in a few seconds."""
        self._lines.put(None)
        self._thread.join(_PATIENCE)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # a full disk, a reader that left; ValueError: the stream is closed
                self._on_drop()


class Metrics:
    """Counters by path, method and status; batches and images by model. `waiting` gives the images in the queue.

    Each server has its own registry.
    """

    def __init__(self, waiting: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "vitlab_requests",
            "Requests that ended, by status; 499: the client left",
            ("path", "method", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "vitlab_request_seconds",
            "Seconds from a request's headers to its answer",
            ("path",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.images = Counter("vitlab_images", "Images, by what became of them", ("model", "outcome"), registry=self.registry)
        self.batches = Histogram("vitlab_batch_images", "Images in a batch", ("model",), buckets=_IMAGES, registry=self.registry)
        self.batch_seconds = Histogram(
            "vitlab_batch_seconds", "Seconds that a batch ran", ("model",), buckets=_SECONDS, registry=self.registry
        )
        self.reloads = Counter("vitlab_reloads", "Models that were loaded again", ("outcome",), registry=self.registry)
        self.dropped_lines = Counter("vitlab_log_lines_dropped", "Log lines that could not be written", registry=self.registry)
        gauge = Gauge("vitlab_queue_images", "Images accepted and not yet answered", registry=self.registry)
        gauge.set_function(waiting)

    def text(self) -> bytes:
        """Everything, in the format that Prometheus reads."""
        return generate_latest(self.registry)
