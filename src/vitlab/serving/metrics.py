"""What the server counts, for Prometheus. Each server has its own registry."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters by path, method and status; batches and images by model. `waiting` gives the images in the queue."""

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
        queue = Gauge("vitlab_queue_images", "Images accepted and not yet answered", registry=self.registry)
        queue.set_function(waiting)

    def text(self) -> bytes:
        """Everything, in the format that Prometheus reads."""
        return generate_latest(self.registry)
