"""Prediction: `Predictor`, a checkpoint that classifies images, and the engine, the one loop that runs a model over images.

    predictor = Predictor("model.safetensors")
    predictor("cat.jpg").top(5)                             # [(label, probability), ...]
    predictor(["cat.jpg", pil_image, uint8_array])          # one Prediction per image

    engine = Engine(checkpoint)                             # backend="auto", device="auto"
    for batch, outputs in engine.run_images(paths):         # any images, as `vitlab predict` takes them
    for batch, outputs in engine.run_dataset(dataset, ...): # every sample of a dataset, as `vitlab evaluate` reads them
    for batch, outputs in run_batches(backend, batches):    # the loop itself, for any backend and batches

Threads (or the loader's worker processes) read and decode the next images while the model runs. Batches come in the order of the
images and are freed as the consumer continues, so memory stays constant. An image that cannot be read is reported in its batch.
Prediction, evaluation, features, pseudo-labels and validation during training all run here. A `Prediction`
(`vitlab.inference.results`) adds labels and probabilities.

Axes: B batch, H height, W width, C channels of an image.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from itertools import count, islice
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.checkpoints import load
from vitlab.checkpoints.checkpoint import Checkpoint, of_one_size
from vitlab.checkpoints.native import tensors_digest
from vitlab.config.data import DecodeLimits, LoaderConfig
from vitlab.config.evaluation import BackendName, Tta
from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.model import task_of
from vitlab.config.serialize import to_text
from vitlab.config.vit import ViTConfig
from vitlab.data.batch import Batch, Failure, Pipeline
from vitlab.data.dataset import Dataset
from vitlab.data.loader import Loader
from vitlab.data.transforms import CROPS, CropsTransform, EvaluationTransform, NativeTransform
from vitlab.errors import CheckpointError, ConfigError, DataError, OutOfMemoryError, at_least, choice
from vitlab.inference.auto import AutoBackend, create_backend
from vitlab.inference.backends import Backend, Outputs, Pixels
from vitlab.inference.folded import activation_of
from vitlab.inference.images import ImageLike, ImageReader, ImagesLike, as_list_of_images, image_name, load_pil
from vitlab.inference.packed import packed_backend
from vitlab.inference.results import Prediction, Predictions, Unreadable
from vitlab.io.display import ProgressCallback, silent
from vitlab.io.machine import is_out_of_memory, prefetched
from vitlab.models.device import resolve_device


class InputBatch(Protocol):
    """Images ready for a backend. The loader's `Batch` and `ImageBatch` are such batches."""

    @property
    def images_BHWC(self) -> NDArray[np.uint8]:
        """The images that could be read."""
        ...

    @property
    def n_asked(self) -> int:
        """How many images the batch stands for, unreadable ones included."""
        ...


B = TypeVar("B", bound=InputBatch)


def run_batches(
    backend: Backend,
    batches: Iterable[B],
    *,
    features: bool = False,
    total: int | None = None,
    description: str = "predicting",
    progress: ProgressCallback = silent,
) -> Iterator[tuple[B, Outputs | None]]:
    """Run the backend on each batch: (batch, outputs), in order; outputs are None for a batch without a readable image.

    This is the only loop in vitlab that runs a model over images. `progress` is called after each batch has been consumed. When
    memory runs out, fewer images run at a time: half as many, down to one; OutOfMemoryError if one is too many.
    """
    done = most = 0
    progress(description, done, total)
    for batch in batches:
        outputs: Outputs | None = None
        if len(batch.images_BHWC):
            outputs, most = _run(backend, batch.images_BHWC, most, features=features)
        yield batch, outputs
        done += batch.n_asked
        progress(description, done, total)


def _run(backend: Backend, images_BHWC: Pixels, most: int, *, features: bool) -> tuple[Outputs, int]:
    """The outputs of a batch, and how many images at a time memory allows; 0 for any number."""
    while True:
        try:
            if not most:
                return backend.run(images_BHWC, features=features), most
            starts = range(0, len(images_BHWC), most)
            return _joined([backend.run(images_BHWC[start : start + most], features=features) for start in starts]), most
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if most == 1 or len(images_BHWC) == 1:
                raise OutOfMemoryError(
                    f"out of memory with a single image at a time: {str(error) or 'no more can be allocated'}",
                    hint="use a smaller model or image size, or a machine with more memory",
                ) from error
            most = -(-min(most or len(images_BHWC), len(images_BHWC)) // 2)


def _joined(parts: list[Outputs]) -> Outputs:
    features = [part.features_BD for part in parts if part.features_BD is not None]
    return Outputs(
        logits_BK=np.concatenate([part.logits_BK for part in parts]), features_BD=np.concatenate(features) if features else None
    )


class Averaged:
    """A backend for test-time augmentation: it runs the backend inside on several views of each image, and gives the mean."""

    def __init__(self, inner: Backend, tta: Tta) -> None:
        self._inner = inner
        self._tta = tta

    @property
    def name(self) -> str:
        """The name of the backend inside."""
        return self._inner.name

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """The mean logits and, if asked for, the mean features; for `crops` the images are those of `CropsTransform`."""
        views = (images_BHWC, images_BHWC[:, :, ::-1]) if self._tta == "mirror" else np.split(images_BHWC, CROPS, axis=1)
        seen = [self._inner.run(np.ascontiguousarray(view_BHWC), features=features) for view_BHWC in views]
        found = [outputs.features_BD for outputs in seen if outputs.features_BD is not None]
        return Outputs(
            logits_BK=np.mean([outputs.logits_BK for outputs in seen], axis=0),
            features_BD=np.mean(found, axis=0) if found else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageBatch:
    """A batch of images that a user gave: the names of all, the pixels of those that could be read, and why others could not.

    `failed` gives the place of an unreadable image within the batch as its `index`.
    """

    names: tuple[str, ...]
    images_BHWC: Pixels
    failed: tuple[Failure, ...]

    @property
    def n_asked(self) -> int:
        """Images in the batch, unreadable ones included."""
        return len(self.names)

    @property
    def read_names(self) -> list[str]:
        """The names of the images that could be read, one a row of `images_BHWC`."""
        failed = {failure.index for failure in self.failed}
        return [name for place, name in enumerate(self.names) if place not in failed]


class Engine:
    """A checkpoint's model, ready to run over images.

    `backend`: `torch`, `compile`, `onnxruntime`, `openvino`, or `auto`: torch until a measurement on this machine finds another one
    faster. All give the same numbers to rounding. `device`: `auto` takes the GPU if there is one. `merge` above 0 merges this many
    pairs of similar patches per layer, on average, in a ViT: faster, but not exactly the model's numbers. `tta` averages the
    outputs of several views of each image: `mirror`, the image and its mirror image; `crops`, both ends and the middle of the
    longer side. `notify` is called with a sentence when something is chosen later. `notes` says what was chosen, a sentence each.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        backend: BackendName = "auto",
        device: str | torch.device = "auto",
        merge: int = 0,
        tta: Tta | None = None,
        limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
        notify: Callable[[str], None] | None = None,
    ) -> None:
        at_least("merge", merge, 0)
        if tta is not None:
            choice("tta", tta, Tta)
        if isinstance(checkpoint.config, GridDetectorConfig):
            raise ConfigError(
                "this model finds objects, and gives no class of an image",
                hint="vitlab predict, evaluate, report and export take it; inference.detections.Detector runs it",
            )
        if task_of(checkpoint.config) == "segment":
            raise ConfigError(
                "this model gives each pixel a class, not each image",
                hint="vitlab predict, evaluate, report and export take it; inference.segmentation.SegmentPredictor runs it",
            )
        native, fed = checkpoint.preprocess.resize == "native", tuple[str, ...]()
        if native and tta:
            raise ConfigError(
                f"tta={tta!r} is not for images of their native aspect ratio", hint="leave `tta` out, or resize otherwise"
            )
        if not native:
            checkpoint, fed = of_one_size(checkpoint)
        self.checkpoint = checkpoint
        self.merge = merge
        self.device = resolve_device(device)
        if tta == "crops" and checkpoint.preprocess.resize != "short-side":
            raise ConfigError(
                f"tta='crops' is for resize='short-side', and resize={checkpoint.preprocess.resize!r} shows the whole image",
                hint="tta='mirror', or leave `tta` out",
            )
        transform = CropsTransform if tta == "crops" else EvaluationTransform
        self.transform = transform(preprocess=checkpoint.preprocess, limits=limits)
        self.backend: Backend
        notes = tuple[str, ...]()
        if native:  # images of different shapes, packed
            self.backend = packed_backend(checkpoint, backend, self.device, merge=merge)
            assert isinstance(checkpoint.config, ViTConfig), "packed_backend refuses others"
            self.transform = NativeTransform(preprocess=checkpoint.preprocess, limits=limits, patch=checkpoint.config.patch_size)
        else:
            self.backend, notes = create_backend(
                checkpoint, backend, self.device, lambda: self._graph_digest, merge=merge, notify=notify or _ignore
            )
        on_gpu = device == "auto" and self.device.type != "cpu"
        views = {"mirror": "the image and its mirror image", "crops": "three crops along the longer side of the image"}
        averaged = (f"each result is the mean over {views[tta]}",) if tta else ()
        self.notes: tuple[str, ...] = (*fed, *((f"runs on {self.device.type}",) if on_gpu else ()), *notes, *averaged)
        self._tta = tta
        self._runs: Backend = Averaged(self.backend, tta) if tta else self.backend
        self._reader = ImageReader(self.transform)

    @property
    def digest(self) -> str:
        """64 hexadecimal digits of the weights, the config and the preprocessing: equal digests mean equal features."""
        return sha256(f"{self._graph_digest} {self._tta}".encode()).hexdigest() if self._tta else self._graph_digest

    @cached_property
    def _graph_digest(self) -> str:
        """The same of one pass of the model."""
        made = sha256(tensors_digest(self.checkpoint.model.state_dict()).encode())
        for part in (self.checkpoint.config, self.checkpoint.preprocess):
            made.update(to_text(part).encode())
        if self.merge:
            made.update(f"merge {self.merge}".encode())
        return made.hexdigest()

    def settle(self, like: Engine | None = None) -> None:
        """Choose the backend now and for good, where it is `auto`: by a kept measurement, or by measuring, which takes a minute.

        With `like`, an engine of the same config and other weights, its choice is taken over.
        """
        if isinstance(self.backend, AutoBackend):
            other = like.backend if like is not None and like.checkpoint.config == self.checkpoint.config else None
            self.backend.settle(other if isinstance(other, AutoBackend) else None)

    def read(self, image: ImageLike, name: str) -> Pixels:
        """One image, decoded and transformed to the model's input size; DataError if it cannot be read. For any thread."""
        return self._reader(image, name)

    def run_dataset(
        self,
        dataset: Dataset,
        *,
        loader: LoaderConfig,
        pipeline: Pipeline | None = None,
        features: bool = False,
        description: str = "predicting",
        progress: ProgressCallback = silent,
    ) -> Iterator[tuple[Batch, Outputs | None]]:
        """Run over every sample of a dataset, in its order: (batch, outputs).

        `loader` sets batch size, workers, and whether an unreadable image is skipped or an error. `pipeline` is the transform,
        where it is not the checkpoint's own preprocessing.
        """
        pipeline = self.transform.pipeline() if pipeline is None else pipeline
        with Loader(dataset, pipeline, config=loader, train=False) as images, images.batches() as batches:
            results = run_batches(
                self._runs, batches, features=features, total=len(dataset), description=description, progress=progress
            )
            for batch, outputs in results:
                self._check(outputs, [f"sample {index}" for index in batch.index_B])
                yield batch, outputs

    def run_images(
        self,
        images: Iterable[ImageLike],
        *,
        batch_size: int = 32,
        workers: int = 2,
        features: bool = False,
        total: int | None = None,
        progress: ProgressCallback = silent,
    ) -> Generator[tuple[ImageBatch, Outputs | None], None, None]:
        """Run over images in any form, in their order: (batch, outputs).

        The iterable is consumed in the caller's thread, at most two batches ahead.
        """
        with closing(read_batches(self._reader, images, batch_size=batch_size, workers=workers)) as batches:
            yield from self.run_read(batches, features=features, total=total, progress=progress)

    def run_read(
        self,
        batches: Iterable[ImageBatch],
        *,
        features: bool = False,
        total: int | None = None,
        progress: ProgressCallback = silent,
    ) -> Generator[tuple[ImageBatch, Outputs | None], None, None]:
        """Run over batches that `read_batches` made, here or elsewhere: (batch, outputs)."""
        for batch, outputs in run_batches(self._runs, batches, features=features, total=total, progress=progress):
            self._check(outputs, batch.read_names)
            yield batch, outputs

    def _check(self, outputs: Outputs | None, names: Sequence[str]) -> None:
        """Refuse outputs that hold NaN or Inf. It costs 10 microseconds for 32 images of 1,000 classes."""
        if outputs is None or self.checkpoint.allow_nonfinite:
            return
        for values_BX in (outputs.logits_BK, outputs.features_BD):
            if values_BX is not None and not np.isfinite(values_BX).all():
                row = int(np.flatnonzero(~np.isfinite(values_BX).all(1))[0])
                raise CheckpointError(
                    f"the model's output for {names[row]} holds NaN or Inf",
                    hint="its weights overflow or are damaged; `allow_nonfinite` shows what it computes all the same",
                )


def read_batches(
    reader: ImageReader, images: Iterable[ImageLike], *, batch_size: int, workers: int
) -> Generator[ImageBatch, None, None]:
    """Read and decode images with so many threads (0: in the caller's), and put them into batches, in order."""
    at_least("batch_size", batch_size, 1)
    at_least("workers", workers, 0)
    read = partial(_read, reader)
    named = _named(images)
    if not workers:
        yield from _batched(map(read, named), batch_size)
        return
    with closing(prefetched(read, named, threads=workers, depth=2 * batch_size)) as found:
        yield from _batched(found, batch_size)


def _read(reader: ImageReader, item: tuple[str, ImageLike]) -> tuple[str, Pixels | str]:
    """A name with the pixels, or with the reason why the image cannot be read."""
    name, image = item
    try:
        return name, reader(image, name)
    except DataError as error:
        return name, error.message


def _named(images: Iterable[ImageLike]) -> Iterator[tuple[str, ImageLike]]:
    for index, image in enumerate(images):
        load_pil(image)
        yield image_name(image, index), image


def _batched(read: Iterator[tuple[str, Pixels | str]], batch_size: int) -> Iterator[ImageBatch]:
    while items := list(islice(read, batch_size)):
        pixels = [found for _, found in items if not isinstance(found, str)]
        failed = tuple(
            Failure(index=place, name=name, reason=found) for place, (name, found) in enumerate(items) if isinstance(found, str)
        )
        images_BHWC = np.stack(pixels) if pixels else np.zeros((0, 1, 1, 1), np.uint8)
        yield ImageBatch(names=tuple(name for name, _ in items), images_BHWC=images_BHWC, failed=failed)


def _ignore(sentence: str) -> None:
    """The default `notify`."""


# --- a checkpoint that classifies images --------------------------------------------------------------------------------------


class Predictor:
    """A checkpoint, by its path or itself, ready to classify images.

    `batch_size` images run through the model at once; `workers` threads read the next ones (0: the caller reads). `backend`,
    `device`, `merge`, `tta` and `notify` are those of the engine. `limits` says which files are accepted. `labels`, `preprocess`
    and `notes` (a sentence for everything that was chosen or guessed) may be read.
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
        tta: Tta | None = None,
        notify: Callable[[str], None] | None = None,
        limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
    ) -> None:
        at_least("batch_size", batch_size, 1)
        at_least("workers", workers, 0)
        self.checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else load(os.fspath(checkpoint))
        self.engine = Engine(self.checkpoint, backend=backend, device=device, merge=merge, tta=tta, limits=limits, notify=notify)
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
