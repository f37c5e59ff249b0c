"""The models of a server: loaded, warmed up, and replaced while the server runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import DecodeLimits
from vitlab.config.evaluation import BackendName
from vitlab.errors import did_you_mean
from vitlab.inference.predictor import Predictor
from vitlab.models.vit import ViT
from vitlab.serving.batching import Batcher
from vitlab.serving.config import ServeConfig
from vitlab.serving.monitoring import Metrics
from vitlab.serving.refusals import Refusal

_DECODING = 2**29  # bytes that decoding one image may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model by the name that clients use, and how to open its file, now and when it has been replaced."""

    name: str
    open: Callable[[], Checkpoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How every model of the server runs."""

    config: ServeConfig
    backend: BackendName
    device: str
    merge: int
    metrics: Metrics
    notify: Callable[[str], None]
    on_death: Callable[[BaseException], None]


class ServedModel:
    """A checkpoint that is ready to answer: its backend is chosen and has run once, and its batches have a thread.

    A model that replaces the one `before` takes over its backend, where that fits.
    """

    def __init__(self, name: str, checkpoint: Checkpoint, running: Running, *, before: ServedModel | None = None) -> None:
        config, metrics = running.config, running.metrics
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
        batches, seconds = metrics.batches.labels(name), metrics.batch_seconds.labels(name)

        def on_batch(images: int, elapsed: float) -> None:
            batches.observe(images)
            seconds.observe(elapsed)

        self.batcher = Batcher(
            engine, batch_size=config.batch_size, batch_wait=config.batch_wait, on_batch=on_batch, on_death=running.on_death
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
