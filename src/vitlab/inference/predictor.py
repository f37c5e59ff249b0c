"""Predictor: a checkpoint that classifies images.

    predictor = Predictor("model.safetensors")
    predictor("cat.jpg").top(5)                          # [(label, probability), ...]
    predictor(["cat.jpg", pil_image, uint8_array])       # one Prediction per image

The engine (`vitlab.inference.engine`) does the work; a `Prediction` (`vitlab.inference.results`) adds labels and probabilities.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Generator, Iterable, Iterator
from contextlib import closing
from functools import cached_property
from hashlib import sha256
from itertools import count, islice

import torch

from vitlab.checkpoints import Checkpoint, load
from vitlab.config.data import DecodeLimits
from vitlab.config.evaluation import BackendName
from vitlab.config.serialize import to_text
from vitlab.errors import DataError, at_least
from vitlab.inference.backends import Backend, Outputs
from vitlab.inference.engine import Engine, ImageBatch
from vitlab.inference.folded import activation_of
from vitlab.inference.images import ImageLike, ImagesLike, as_list_of_images, image_name
from vitlab.inference.results import Prediction, Predictions, Unreadable
from vitlab.io.display import ProgressCallback, silent


class Predictor:
    """A checkpoint, by its path or itself, ready to classify images.

    `batch_size` images run through the model at once; `workers` threads read the next ones (0: the caller reads). `backend`,
    `device`, `merge` and `notify` are those of the engine. `limits` says which files are accepted. `labels`, `preprocess` and
    `notes` (a sentence for everything that was chosen or guessed) may be read.
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str] | Checkpoint,
        *,
        backend: BackendName = "auto",
        batch_size: int = 32,
        workers: int = 2,
        device: str | torch.device = "auto",
        merge: int = 0,
        notify: Callable[[str], None] | None = None,
        limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
    ) -> None:
        at_least("batch_size", batch_size, 1)
        at_least("workers", workers, 0)
        self.checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else load(os.fspath(checkpoint))
        self.engine = Engine(self.checkpoint, backend=backend, device=device, merge=merge, limits=limits, notify=notify)
        self.preprocess = self.checkpoint.preprocess
        self.labels = self.checkpoint.labels
        self.activation = activation_of(self.checkpoint)
        self.batch_size = batch_size
        self.workers = workers
        self.notes: tuple[str, ...] = (*self.checkpoint.notes, *self.engine.notes, *self._notes())

    @property
    def backend(self) -> Backend:
        """What runs the model."""
        return self.engine.backend

    def __call__(self, images: ImagesLike, *, features: bool = False, progress: ProgressCallback = silent) -> Predictions:
        """The predictions of one image or several, in order; DataError names the first image that cannot be read."""
        found = []
        for result in self.stream(images, features=features, progress=progress):
            if isinstance(result, Unreadable):
                raise DataError(str(result), hint="predictor.stream reports such images and continues")
            found.append(result)
        return Predictions(found)

    def stream(
        self,
        images: ImagesLike,
        *,
        features: bool = False,
        done: Container[str] | None = None,
        total: int | None = None,
        progress: ProgressCallback = silent,
    ) -> Iterator[Prediction | Unreadable]:
        """Predictions of any number of images, in order and in constant memory; an image that cannot be read is `Unreadable`.

        The iterable is consumed in the caller's thread, at most two batches ahead. Images whose names are in `done` are left out;
        the batches of the others stay the same, since the last bits of a result depend on the size of its batch. `total` is for
        `progress`.
        """
        items: Iterable[ImageLike] = as_list_of_images(images)
        if done:
            items = _without_finished_batches(iter(items), self.batch_size, done)
        batches = self.engine.run_images(
            items, batch_size=self.batch_size, workers=self.workers, features=features, total=total, progress=progress
        )
        return self._stream(batches, done or ())

    def of_batches(self, batches: Iterable[ImageBatch]) -> Iterator[Prediction | Unreadable]:
        """Predictions of batches that `read_batches` made, here or on another machine, in order."""
        return self._stream(self.engine.run_read(batches), ())

    def _stream(
        self, batches: Generator[tuple[ImageBatch, Outputs | None], None, None], done: Container[str]
    ) -> Iterator[Prediction | Unreadable]:
        with closing(batches):  # ends the threads when the consumer stops early
            for batch, outputs in batches:
                yield from (result for result in self._results(batch, outputs) if result.name not in done)

    @cached_property
    def digest(self) -> str:
        """64 hexadecimal digits of the weights, config, preprocessing and labels: equal digests mean equal predictions."""
        return sha256((self.features_digest + to_text(self.labels)).encode()).hexdigest()

    @property
    def features_digest(self) -> str:
        """The same without the labels: equal digests mean equal features."""
        return self.engine.digest

    def _results(self, batch: ImageBatch, outputs: Outputs | None) -> Iterator[Prediction | Unreadable]:
        """A result for each image of the batch, in order."""
        failed = {failure.index: failure.reason for failure in batch.failed}
        row = 0
        for place, name in enumerate(batch.names):
            if place in failed:
                yield Unreadable(name=name, reason=failed[place])
                continue
            assert outputs is not None, "a batch with a readable image was run"
            yield Prediction(
                name=name,
                logits=outputs.logits_BK[row],
                features=None if outputs.features_BD is None else outputs.features_BD[row],
                labels=self.labels,
                activation=self.activation,
            )
            row += 1

    def _notes(self) -> Iterator[str]:
        if self.labels is None:
            yield "the checkpoint has no labels: classes are named by their numbers"
        if self.activation == "sigmoid":
            yield "trained with a sigmoid for each class: probabilities of different classes do not sum to 1"


def _without_finished_batches(images: Iterator[ImageLike], batch_size: int, done: Container[str]) -> Iterator[ImageLike]:
    """The images, without the batches of which every image is done."""
    for first in count(0, batch_size):
        batch = list(islice(images, batch_size))
        if not batch:
            return
        if not all(image_name(image, first + row) in done for row, image in enumerate(batch)):
            yield from batch
