"""What the endpoints share: models, queue, limits, threads, log and counters; and whether the server takes requests.

`Service` is called from the event loop; decoding, batches and explanations run in threads. The log has one JSON object per line. A
thread of its own writes it, so that a slow or full disk never delays a request.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.requests import ClientDisconnect, Request

from vitlab.inference.backends import Pixels
from vitlab.io.display import json_text
from vitlab.serving.config import ServeConfig
from vitlab.serving.models import Answer, Models, ServedModel
from vitlab.serving.requests import Memory, Refusal, Upload, read_request, refusal_of

T = TypeVar("T")
Answered = list[tuple[Upload, Answer | Refusal]]


class Service:
    """The state of a running server. `draining`: it answers what it accepted, and nothing new."""

    def __init__(self, config: ServeConfig, models: Models, metrics: Metrics, log: Log) -> None:
        self.config, self.models, self.metrics, self.log = config, models, metrics, log
        self.memory = Memory(config.max_memory)
        self.draining = False
        self.waiting = 0
        self._decoders = ThreadPoolExecutor(config.workers, thread_name_prefix="vitlab-decode")
        self._explainer = ThreadPoolExecutor(1, thread_name_prefix="vitlab-explain")

    @property
    def ready(self) -> bool:
        """Whether requests are accepted."""
        return self.models.loaded and not self.draining

    async def predict(
        self, request: Request, known: tuple[str, ...], read_options: Callable[[ServedModel, Mapping[str, Any]], T]
    ) -> tuple[ServedModel, T, Answered]:
        """Read the request and run its images: the model, the options, and an answer or a refusal for each image.

        `known` are the names of the options. Refusal for the whole request if no image could be read.
        """
        self.check_open(1)
        with self.memory.reserved() as take:
            sent = await read_request(request, self.config, take, known)
            with self._admitted(len(sent.images)):
                model = self.models.find(sent.options.get("model"))
                options = read_options(model, sent.options)
                # No await between finding the model and submitting: a model that is replaced answers what it was given.
                futures = [model.batcher.submit(image.content, image.name, self._decoders) for image in sent.images]
                found = await self._all(request, futures)
        answered: Answered = []
        for image, answer in zip(sent.images, found, strict=True):
            if isinstance(answer, Answer):
                answered.append((image, answer))
            else:
                answered.append((image, self._refused(request, answer, image.content, model)))
        for _, result in answered:
            self.metrics.images.labels(model.name, "refused" if isinstance(result, Refusal) else "answered").inc()
        refusals = [result for _, result in answered if isinstance(result, Refusal)]
        if len(refusals) == len(answered):
            raise refusals[0]
        return model, options, answered

    async def compute(
        self, request: Request, known: tuple[str, ...], work: Callable[[ServedModel, Pixels, Mapping[str, Any]], T]
    ) -> T:
        """Read a request with one image, and run `work(model, pixels, options)` in the thread of explanations."""
        self.check_open(1)
        with self.memory.reserved() as take:
            sent = await read_request(request, self.config, take, known)
            if len(sent.images) > 1:
                raise Refusal("too_many_images", "this endpoint takes one image")
            with self._admitted(1):
                model, image = self.models.find(sent.options.get("model")), sent.images[0]

                def decode_and_work() -> T:
                    return work(model, model.predictor.engine.read(image.content, image.name), sent.options)

                found = (await self._all(request, [self._explainer.submit(decode_and_work)]))[0]
        if isinstance(found, BaseException):
            raise self._refused(request, found, image.content, model)
        return found

    def check_open(self, images: int) -> None:
        """Refusal if the server starts or ends, or if its queue has no place for so many images."""
        if self.draining:
            raise Refusal("not_ready", "the server is shutting down")
        if not self.models.loaded:
            raise Refusal("not_ready", "the server is loading its models")
        if self.waiting + images > self.config.queue:
            raise Refusal("queue_full", f"the queue has {self.waiting} images; the limit is {self.config.queue}")

    def close(self) -> None:
        """End the threads, after what was accepted has been answered."""
        for model in self.models:
            model.batcher.close()
        self._decoders.shutdown()
        self._explainer.shutdown()

    @contextmanager
    def _admitted(self, images: int) -> Iterator[None]:
        if self.waiting + images > self.config.queue:
            raise Refusal("queue_full", f"the queue has {self.waiting} images; the limit is {self.config.queue}")
        self.waiting += images
        try:
            yield
        finally:
            self.waiting -= images

    async def _all(self, request: Request, futures: Sequence[Future[T]]) -> list[T | BaseException]:
        """The results of all futures, or their errors. If time is over or the client leaves, they are cancelled."""
        loop = asyncio.get_running_loop()
        finished, left = loop.create_future(), len(futures)

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0 and not finished.done():
                finished.set_result(None)

        for future in futures:
            future.add_done_callback(lambda _: loop.call_soon_threadsafe(count))
        leaving = asyncio.ensure_future(_left(request))
        try:
            waited: list[asyncio.Future[None]] = [finished, leaving]
            await asyncio.wait(waited, timeout=self.config.answer_seconds, return_when=asyncio.FIRST_COMPLETED)
            if finished.done():
                return [future.exception() or future.result() for future in futures]
            if leaving.done():
                raise ClientDisconnect
            raise Refusal("too_late", f"the answer was not ready within {self.config.answer_seconds:g} s")
        finally:
            leaving.cancel()
            for future in futures:
                future.cancel()  # at once: what has not begun never runs

    def _refused(self, request: Request, error: BaseException, content: bytes, model: ServedModel) -> Refusal:
        """An image's error as a refusal; one that is nobody's mistake goes to the log."""
        if not isinstance(error, Exception):
            error = RuntimeError(f"the thread that runs the model ended: {error!r}")
        refusal = refusal_of(error, content, model.limits)
        if refusal.code == "failed":
            self.log.event("error", {"request_id": request.state.id, "message": f"{type(error).__name__}: {error}"})
        return refusal


async def _left(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- what the server records: its log, and what it counts for Prometheus ------------------------------------------------------

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

    def count_batches(self, model: str) -> Callable[[int, float], None]:
        """A function that counts a batch of that model: its images, and the seconds it ran."""
        batches, seconds = self.batches.labels(model), self.batch_seconds.labels(model)

        def count(images: int, elapsed: float) -> None:
            batches.observe(images)
            seconds.observe(elapsed)

        return count

    def text(self) -> bytes:
        """Everything, in the format that Prometheus reads."""
        return generate_latest(self.registry)
