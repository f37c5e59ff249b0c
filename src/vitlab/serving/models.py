"""The models of a server: loaded, warmed up, replaced while the server runs; and batches of one model across clients.

    batcher = Batcher(engine, ...)
    future = batcher.submit(content, name, pool)   # decoded in the pool's threads, then run in a batch
    future.result()                                # Answer, or the error of this image alone

Images of any requests become batches, run by the one inference loop in a thread. A future that is cancelled (the client left,
or its time is over) is dropped where it stands: it is neither decoded nor run.

Axes: B batch, H height, W width, C channels of an image, K classes, D width of the features.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import DecodeLimits
from vitlab.config.evaluation import BackendName
from vitlab.errors import CheckpointError, VitlabError, did_you_mean
from vitlab.inference.backends import Outputs, Pixels
from vitlab.inference.engine import Engine, Predictor, run_batches
from vitlab.models.vit import ViT
from vitlab.serving.config import ServeConfig
from vitlab.serving.requests import Refusal

_DECODING = 2**29  # bytes that decoding one image may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model by the name that clients use, and how to open its file, now and when it has been replaced."""

    name: str
    open: Callable[[], Checkpoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How every model of the server runs. `count_batches(name)` gives the function that counts the batches of that model."""

    config: ServeConfig
    backend: BackendName
    device: str
    merge: int
    count_batches: Callable[[str], Callable[[int, float], None]]
    notify: Callable[[str], None]
    on_death: Callable[[BaseException], None]


class ServedModel:
    """A checkpoint that is ready to answer: its backend is chosen and has run once, and its batches have a thread.

    A model that replaces the one `before` takes over its backend, where that fits.
    """

    def __init__(self, name: str, checkpoint: Checkpoint, running: Running, *, before: ServedModel | None = None) -> None:
        config = running.config
        self.name = name
        self.checkpoint = checkpoint
        self.limits = DecodeLimits(
            formats=("jpeg", "png", "webp", "bmp", "gif"), max_pixels=config.max_pixels, max_memory=_DECODING
        )
        self.predictor = Predictor(
            checkpoint,
            backend=running.backend,
            device=running.device,
            merge=running.merge,
            notify=running.notify,
            limits=self.limits,
        )
        engine = self.predictor.engine
        engine.settle(None if before is None else before.predictor.engine)
        shape = (*checkpoint.preprocess.image_size, checkpoint.preprocess.channels)
        for count in (1, config.batch_size):
            engine.backend.run(np.zeros((count, *shape), np.uint8), features=True)
        self.digest = self.predictor.digest
        self.batcher = Batcher(
            engine,
            batch_size=config.batch_size,
            batch_wait=config.batch_wait,
            on_batch=running.count_batches(name),
            on_death=running.on_death,
        )

    @property
    def explanations(self) -> tuple[str, ...]:
        """What /v1/explain can say about this model."""
        if not isinstance(self.checkpoint.model, ViT):
            return ()
        return ("attention", "rollout", "relevance") if self.checkpoint.model.config.num_classes > 1 else ("attention", "rollout")

    def to_json(self) -> dict[str, Any]:
        """What /v1/models says about it."""
        checkpoint = self.checkpoint
        return {
            "name": self.name,
            "architecture": checkpoint.config.title.partition(" ")[2],
            "classes": checkpoint.config.num_classes,
            "labelled": checkpoint.labels is not None,
            "features": checkpoint.config.feature_width,
            "image_size": list(checkpoint.preprocess.image_size),
            "channels": checkpoint.preprocess.channels,
            "parameters": sum(parameter.numel() for parameter in checkpoint.model.parameters()),
            "activation": self.predictor.activation,
            "backend": self.predictor.backend.name,
            "digest": self.digest,
            "explanations": list(self.explanations),
        }


class Models:
    """The models by name, in the order they were given; the first is the default."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        self._served: dict[str, ServedModel] = {}
        self.reloading = threading.Lock()

    def __iter__(self) -> Iterator[ServedModel]:
        return (self._served[source.name] for source in self.sources if source.name in self._served)

    def put(self, model: ServedModel) -> ServedModel | None:
        """Serve a model from now on; the one that it replaces, which still has to answer what it accepted."""
        before = self._served.get(model.name)
        self._served[model.name] = model
        return before

    def find(self, name: Any) -> ServedModel:
        """The model of that name, or the default for None; Refusal names those there are."""
        if name is None:
            return self._served[self.sources[0].name]
        if isinstance(name, str) and name in self._served:
            return self._served[name]
        known = [source.name for source in self.sources]
        hint = did_you_mean(str(name)[:100], known) or f"models are {', '.join(known)}"
        raise Refusal("not_found", "no model of that name", hint=hint)

    @property
    def loaded(self) -> bool:
        """Whether every model is ready."""
        return len(self._served) == len(self.sources)


# --- batches across clients ---------------------------------------------------------------------------------------------------


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
