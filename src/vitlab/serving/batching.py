"""Batches across clients: images of any requests become batches of one model, run by the one inference loop in a thread.

    batcher = Batcher(engine, config, ...)
    future = batcher.submit(content, name, pool)   # decoded in the pool's threads, then run in a batch
    future.result()                                # Answer, or the error of this image alone

A future that is cancelled (the client left, or its time is over) is dropped where it stands: it is neither decoded nor run.

Axes: B batch, H height, W width, C channels of an image, K classes, D width of the features.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import CheckpointError, VitlabError
from vitlab.inference.backends import Outputs, Pixels
from vitlab.inference.engine import Engine, run_batches


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The model's output for one image."""

    logits_K: NDArray[np.float32]
    features_D: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A batch: the pixels of its images, and who waits for each."""

    images_BHWC: Pixels
    futures: list[Future[Answer]]

    @property
    def n_asked(self) -> int:
        """Images in the batch."""
        return len(self.futures)


class Batcher:
    """One model's queue and the thread that runs its batches.

    `on_batch(images, seconds)` is called after each batch. `on_death(error)` is called if the thread ends by an error that is not
    an image's: nothing is answered any more.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        batch_size: int,
        batch_wait: float,
        on_batch: Callable[[int, float], None],
        on_death: Callable[[BaseException], None],
    ) -> None:
        self.engine = engine
        self._size, self._wait = batch_size, batch_wait / 1000
        self._on_batch, self._on_death = on_batch, on_death
        self._ready: deque[tuple[Pixels, Future[Answer], float]] = deque()
        self._decoding = 0
        self._closed = False
        self._changed = threading.Condition()
        self._running: list[Future[Answer]] = []
        self._thread = threading.Thread(target=self._run, name="vitlab-batches", daemon=True)
        self._thread.start()

    def submit(self, content: bytes, name: str, pool: Executor) -> Future[Answer]:
        """Decode an image in the pool and run it in the next batch."""
        future: Future[Answer] = Future()
        with self._changed:
            self._decoding += 1
        pool.submit(self._decode, content, name, future)
        return future

    def close(self) -> None:
        """End after what was submitted has been answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _decode(self, content: bytes, name: str, future: Future[Answer]) -> None:
        try:
            pixels_HWC = None if future.cancelled() else self.engine.read(content, name)
        except Exception as error:  # noqa: BLE001 - whatever an image causes is that image's answer
            pixels_HWC = None
            if isinstance(
                error, VitlabError
            ):  # expected: its traceback would keep the image and this future in memory, in a circle
                error.__traceback__ = error.__cause__ = error.__context__ = None
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        with self._changed:
            self._decoding -= 1
            if pixels_HWC is not None:
                self._ready.append((pixels_HWC, future, time.perf_counter()))
            self._changed.notify()

    def _run(self) -> None:
        try:
            while True:
                try:
                    for batch, outputs in run_batches(self.engine.backend, self._batches(), features=True):
                        self._deliver(batch, outputs)
                    return
                except Exception as error:  # noqa: BLE001 - a batch that fails is answered, and the next one runs
                    self._fail(error)
        except BaseException as error:  # noqa: BLE001 - the thread ends here: whoever owns the server must know
            with self._changed:
                self._running += [future for _, future, _ in self._ready if future.set_running_or_notify_cancel()]
                self._ready.clear()
            self._fail(error)
            self._on_death(error)

    def _batches(self) -> Iterator[Waiting]:
        """Batches as they become ready, until the batcher is closed and its queue is empty."""
        while (taken := self._take()) is not None:
            wanted = [(pixels_HWC, future) for pixels_HWC, future, _ in taken if future.set_running_or_notify_cancel()]
            if wanted:
                self._running = [future for _, future in wanted]
                began = time.perf_counter()
                yield Waiting(np.stack([pixels_HWC for pixels_HWC, _ in wanted]), self._running)
                self._on_batch(len(wanted), time.perf_counter() - began)

    def _take(self) -> list[tuple[Pixels, Future[Answer], float]] | None:
        """The next images: a full batch, or what is there when nothing more is being decoded or the first has waited enough."""
        with self._changed:
            while not self._ready:
                if self._closed and not self._decoding:
                    return None
                self._changed.wait()
            until = self._ready[0][2] + self._wait
            while len(self._ready) < self._size and self._decoding and (left := until - time.perf_counter()) > 0:
                self._changed.wait(left)
            return [self._ready.popleft() for _ in range(min(self._size, len(self._ready)))]

    def _deliver(self, batch: Waiting, outputs: Outputs | None) -> None:
        assert outputs is not None, "a batch is not empty"
        assert outputs.features_BD is not None, "features are asked for"
        finite_BX = np.isfinite(np.concatenate([outputs.logits_BK, outputs.features_BD], axis=1))
        for row, future in enumerate(batch.futures):
            if finite_BX[row].all() or self.engine.checkpoint.allow_nonfinite:
                future.set_result(Answer(outputs.logits_BK[row], outputs.features_BD[row]))
            else:
                future.set_exception(CheckpointError("the model's output for this image holds NaN or Inf"))
        self._running = []

    def _fail(self, error: BaseException) -> None:
        for future in self._running:
            if not future.done():
                future.set_exception(error)
        self._running = []
