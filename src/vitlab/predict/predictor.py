"""Predictor: any number of pictures in, predictions out, in order; the next ones are decoded while the model works.

Axes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image

from vitlab.checkpoint import Checkpoint, load
from vitlab.checkpoint.native import tensors_digest
from vitlab.config.check import at_least, choice
from vitlab.config.decode import DecodeLimits
from vitlab.config.text import to_text
from vitlab.data.view import EvaluationView, Pixels
from vitlab.errors import ConfigError, DataError
from vitlab.predict.backend import Backend
from vitlab.predict.prediction import Chance, Prediction, Unreadable
from vitlab.predict.reading import Picture, Reader, name_of
from vitlab.predict.torch_backend import TorchBackend

BackendName = Literal["auto", "torch"]


class Predictor:
    """A checkpoint ready for pictures.

        predictor = Predictor("model.safetensors")
        predictor(["cat.jpg", pillow_image, uint8_array])[0].top(5)    # [(label, probability), ...]

    `batch_size` pictures go through the model at once, read ahead by `workers` threads (0: by the caller, in turn).
    `limits` says which files are let in. `labels`, `preprocess` and `notes` (a sentence for everything that was chosen or
    guessed) may be read.
    """

    def __init__(
        self,
        checkpoint: str | Path | Checkpoint,
        *,
        backend: BackendName = "auto",
        batch_size: int = 32,
        workers: int = 2,
        device: str | torch.device = "cpu",
        limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
    ) -> None:
        choice("backend", backend, BackendName)
        at_least("batch_size", batch_size, 1)
        at_least("workers", workers, 0)
        self.checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else load(checkpoint)
        self.preprocess = self.checkpoint.preprocess
        self.labels = self.checkpoint.labels
        self.backend: Backend = TorchBackend(self.checkpoint, device=device)
        self.batch_size = batch_size
        self.workers = workers
        self.chance, how = chance_of(self.checkpoint)
        self.notes: tuple[str, ...] = (*self.checkpoint.notes, *_notes(self.checkpoint, backend), *how)
        self._reader = Reader(EvaluationView(preprocess=self.preprocess, limits=limits))

    def __call__(self, pictures: Iterable[Picture], *, features: bool = False) -> list[Prediction]:
        """The predictions of some pictures, in order; DataError, naming it, for the first that cannot be read."""
        found = []
        for item in self.stream(pictures, features=features):
            if isinstance(item, Unreadable):
                raise DataError(str(item), hint="predictor.stream goes on after such pictures and reports them")
            found.append(item)
        return found

    def stream(self, pictures: Iterable[Picture], *, features: bool = False) -> Iterator[Prediction | Unreadable]:
        """Predictions of any number of pictures, in order and in constant memory; one that cannot be read is Unreadable.

        Pictures are taken from the iterable in the caller's thread, as many ahead as fill two batches.
        """
        if isinstance(pictures, str | bytes | os.PathLike | Image.Image):
            raise ConfigError("this is one picture", hint="give a list of pictures: predictor([picture])")
        return self._stream(iter(pictures), features)

    @cached_property
    def digest(self) -> str:
        """64 hexadecimal digits of the weights, the config, the preprocessing and the labels: equal where answers are."""
        return sha256((self.features_digest + to_text(self.labels)).encode()).hexdigest()

    @cached_property
    def features_digest(self) -> str:
        """The same without the labels: equal where features are."""
        made = sha256(tensors_digest(self.checkpoint.model.state_dict()).encode())
        for part in (self.checkpoint.config, self.preprocess):
            made.update(to_text(part).encode())
        return made.hexdigest()

    def _stream(self, pictures: Iterator[Picture], features: bool) -> Iterator[Prediction | Unreadable]:
        with _ReadAhead(self._reader, pictures, workers=self.workers, ahead=2 * self.batch_size) as ahead:
            while batch := ahead.take(self.batch_size):
                yield from self._predicted(batch, features)

    def _predicted(self, batch: list[_Read], features: bool) -> Iterator[Prediction | Unreadable]:
        images = [read.seen for read in batch if not isinstance(read.seen, Unreadable)]
        out = self.backend.run(np.stack(images), features=features) if images else None
        row = 0
        for read in batch:
            if isinstance(read.seen, Unreadable) or out is None:
                assert isinstance(read.seen, Unreadable)
                yield read.seen
                continue
            yield Prediction(
                name=read.name,
                logits=out.logits_BK[row],
                features=None if out.features_BD is None else out.features_BD[row],
                labels=self.labels,
                chance=self.chance,
            )
            row += 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Read:
    name: str
    seen: Pixels | Unreadable


class _ReadAhead:
    """Pictures read by threads, at most `ahead` before they are taken, given back in order."""

    def __init__(self, reader: Reader, pictures: Iterator[Picture], *, workers: int, ahead: int) -> None:
        self._reader = reader
        self._pictures = pictures
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="predict") if workers else None
        self._ahead = ahead
        self._under_way: deque[Future[_Read]] = deque()
        self._place = 0

    def __enter__(self) -> _ReadAhead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def take(self, count: int) -> list[_Read]:
        """The next pictures, fewer only at the end; the ones after them are under way when this returns."""
        taken: list[_Read] = []
        self._start(self._ahead)
        while len(taken) < count and self._under_way:
            taken.append(self._under_way.popleft().result())
            self._start(1)
        return taken

    def _start(self, most: int) -> None:
        room = self._ahead - len(self._under_way)
        for picture in islice(self._pictures, min(most, room)):
            name = name_of(picture, self._place)
            self._place += 1
            if isinstance(picture, Image.Image):
                _load(picture)
            if self._pool is None:
                self._under_way.append(Future())
                self._under_way[-1].set_result(self._read(picture, name))
            else:
                self._under_way.append(self._pool.submit(self._read, picture, name))

    def _read(self, picture: Picture, name: str) -> _Read:
        try:
            return _Read(name=name, seen=self._reader(picture, name))
        except DataError as error:
            return _Read(name=name, seen=Unreadable(name=name, reason=error.message))


def _load(image: Image.Image) -> None:
    """Decoded in the caller's thread: Pillow may not load one image from two threads, and a list may hold it twice."""
    with suppress(OSError):  # raised again, and said with its name, where it is read
        image.load()


def _notes(checkpoint: Checkpoint, backend: BackendName) -> tuple[str, ...]:
    chosen = ("the backend is torch: it is the only one there is",) if backend == "auto" else ()
    return (
        chosen if checkpoint.labels is not None else (*chosen, "the checkpoint has no labels: classes are called by their numbers")
    )


def chance_of(checkpoint: Checkpoint) -> tuple[Chance, tuple[str, ...]]:
    """How logits become probabilities: as the run that made the checkpoint trained them, where it says so."""
    train = (checkpoint.recipe or {}).get("train")
    if isinstance(train, dict) and train.get("loss") == "sigmoid":
        return "sigmoid", ("trained with a sigmoid for each class: probabilities of different classes do not sum to 1",)
    return "softmax", ()
