"""Predictor: any number of pictures in, predictions out, in order; the next ones are decoded while the model works.

Axes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator
from functools import cached_property
from hashlib import sha256
from itertools import count, islice
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
from vitlab.data.view import EvaluationView
from vitlab.errors import ConfigError, DataError
from vitlab.predict.ahead import Read, ReadAhead
from vitlab.predict.auto_backend import AutoBackend
from vitlab.predict.backend import Backend
from vitlab.predict.fused_backend import torch_backend
from vitlab.predict.prediction import Chance, Prediction, Unreadable
from vitlab.predict.reading import Picture, Reader, name_of
from vitlab.predict.runtime_backends import CompiledBackend, OnnxRuntimeBackend, OpenVINOBackend

BackendName = Literal["auto", "torch", "compile", "onnxruntime", "openvino"]


class Predictor:
    """A checkpoint ready for pictures.

        predictor = Predictor("model.safetensors")
        predictor(["cat.jpg", pillow_image, uint8_array])[0].top(5)    # [(label, probability), ...]

    `batch_size` pictures go through the model at once, read ahead by `workers` threads (0: by the caller, in turn).
    `backend` is what runs the model: `torch`, `compile`, `onnxruntime`, `openvino`, or `auto`: torch, until a measurement on this
    machine says that another is faster. All give the same numbers to rounding. `merge` above 0 joins so many pairs of alike
    patches a layer, on average, of a ViT: faster, and slightly other numbers. `limits` says which files are let in. `say` is called
    with a sentence when something is chosen later on. `labels`, `preprocess` and `notes` (a sentence for everything that was
    chosen or guessed) may be read.
    """

    def __init__(
        self,
        checkpoint: str | Path | Checkpoint,
        *,
        backend: BackendName = "auto",
        batch_size: int = 32,
        workers: int = 2,
        device: str | torch.device = "cpu",
        merge: int = 0,
        say: Callable[[str], None] | None = None,
        limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
    ) -> None:
        choice("backend", backend, BackendName)
        at_least("batch_size", batch_size, 1)
        at_least("workers", workers, 0)
        at_least("merge", merge, 0)
        self.checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else load(checkpoint)
        self.preprocess = self.checkpoint.preprocess
        self.labels = self.checkpoint.labels
        self.merge = merge
        self.backend, chosen = self._made(backend, torch.device(device), say or _unsaid)
        self.batch_size = batch_size
        self.workers = workers
        self.chance, how = chance_of(self.checkpoint)
        self.notes: tuple[str, ...] = (*self.checkpoint.notes, *chosen, *_notes(self.checkpoint), *how)
        self._reader = Reader(EvaluationView(preprocess=self.preprocess, limits=limits))

    def __call__(self, pictures: Iterable[Picture], *, features: bool = False) -> list[Prediction]:
        """The predictions of some pictures, in order; DataError, naming it, for the first that cannot be read."""
        found = []
        for item in self.stream(pictures, features=features):
            if isinstance(item, Unreadable):
                raise DataError(str(item), hint="predictor.stream goes on after such pictures and reports them")
            found.append(item)
        return found

    def stream(
        self, pictures: Iterable[Picture], *, features: bool = False, done: Container[str] | None = None
    ) -> Iterator[Prediction | Unreadable]:
        """Predictions of any number of pictures, in order and in constant memory; one that cannot be read is Unreadable.

        Pictures are taken from the iterable in the caller's thread, as many ahead as fill two batches. Those whose names are in
        `done` are left out. Batches are cut as if they were not: the last bits of an answer depend on the size of its batch.
        """
        if isinstance(pictures, str | bytes | os.PathLike | Image.Image):
            raise ConfigError("this is one picture", hint="give a list of pictures: predictor([picture])")
        if done is None:
            return self._stream(iter(pictures), features)
        results = self._stream(_undone(iter(pictures), self.batch_size, done), features)
        return (result for result in results if result.name not in done)

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
        if self.merge:
            made.update(f"merge {self.merge}".encode())
        return made.hexdigest()

    def _made(self, name: BackendName, device: torch.device, say: Callable[[str], None]) -> tuple[Backend, tuple[str, ...]]:
        """The backend, and what there is to say about it."""
        checkpoint = self.checkpoint
        if name not in ("auto", "torch"):
            if device.type != "cpu":
                raise ConfigError(f"backend={name!r} is for the processor, not for {device.type}", hint="backend='torch'")
            checkpoint.model.eval()
        merged: tuple[str, ...] = ()
        if self.merge:
            merged = (f"{self.merge} pairs of patches a layer are merged: answers are not quite the model's own",)
        match name:
            case "compile":
                return CompiledBackend(checkpoint, merge=self.merge), merged
            case "onnxruntime":
                return OnnxRuntimeBackend(checkpoint, self.features_digest, merge=self.merge), merged
            case "openvino":
                return OpenVINOBackend(checkpoint, self.features_digest, merge=self.merge), merged
        made, why = torch_backend(checkpoint, device=device, merge=self.merge)
        notes = merged if why is None else (f"the model is run as it is built: {why}", *merged)
        if name == "torch" or device.type != "cpu":
            return made, notes
        return AutoBackend(checkpoint, made, lambda: self.features_digest, say=say, merge=self.merge), notes

    def _stream(self, pictures: Iterator[Picture], features: bool) -> Iterator[Prediction | Unreadable]:
        with ReadAhead(self._reader, pictures, workers=self.workers, ahead=2 * self.batch_size) as ahead:
            while batch := ahead.take(self.batch_size):
                yield from self._predicted(batch, features)

    def _predicted(self, batch: list[Read], features: bool) -> Iterator[Prediction | Unreadable]:
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


def _undone(pictures: Iterator[Picture], batch_size: int, done: Container[str]) -> Iterator[Picture]:
    """The pictures without the batches of which every one is done."""
    for first in count(0, batch_size):
        batch = list(islice(pictures, batch_size))
        if not batch:
            return
        if not all(name_of(picture, first + row) in done for row, picture in enumerate(batch)):
            yield from batch


def _unsaid(sentence: str) -> None:
    """Nobody asked."""


def _notes(checkpoint: Checkpoint) -> tuple[str, ...]:
    return () if checkpoint.labels is not None else ("the checkpoint has no labels: classes are called by their numbers",)


def chance_of(checkpoint: Checkpoint) -> tuple[Chance, tuple[str, ...]]:
    """How logits become probabilities: as the run that made the checkpoint trained them, where it says so."""
    train = (checkpoint.recipe or {}).get("train")
    if isinstance(train, dict) and train.get("loss") == "sigmoid":
        return "sigmoid", ("trained with a sigmoid for each class: probabilities of different classes do not sum to 1",)
    return "softmax", ()
