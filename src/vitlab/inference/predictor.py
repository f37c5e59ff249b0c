"""Predictor: any number of images in, predictions out, in order; the next ones are decoded while the model works.

Axes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitlab.checkpoints import Checkpoint, load
from vitlab.checkpoints.native import tensors_digest
from vitlab.config.data import DecodeLimits
from vitlab.config.serialize import to_text
from vitlab.data.decode import from_pillow
from vitlab.data.transforms import EvaluationTransform, Pixels
from vitlab.errors import ConfigError, DataError, at_least, choice
from vitlab.inference.auto import AutoBackend
from vitlab.inference.backends import Backend, CompiledBackend, OnnxRuntimeBackend, OpenVINOBackend, torch_backend
from vitlab.inference.prediction import Chance, Prediction, Unreadable
from vitlab.io.archive_limits import READ_IN_PLACE
from vitlab.io.names import printable
from vitlab.io.zip import ZipContents, read_zip_index

# Everything a user may call a image: a path, a member of a zip, bytes, Pillow's image, an array, a tensor.
#
# Axes: H height, W width, C channels.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Named:
    """A image that is read when its turn comes: `read` gives an encoded file, or pixels (H, W, C)."""

    name: str
    read: Callable[[], bytes | Pixels]


ImageLike = str | os.PathLike[str] | bytes | Image.Image | NDArray[np.uint8] | torch.Tensor | Named


def name_of(image: ImageLike, place: int) -> str:
    """A path as it was given; `image 3` for what has no name, `place` being its place among all, from 0."""
    match image:
        case str():
            return image
        case os.PathLike():
            return os.fspath(image)
        case Named():
            return image.name
    return f"image {place}"


class Reader:
    """Reads images and gives the model's view of them. Safe to share between threads; keeps the zip archives it has opened."""

    def __init__(self, view: EvaluationTransform) -> None:
        self._view = view
        self._archives: dict[str, tuple[ZipContents, dict[str, int]]] = {}
        self._lock = threading.Lock()

    def __call__(self, image: ImageLike, name: str) -> Pixels:
        """uint8 [H, W, C] of the model's size; DataError, naming the image, where it cannot be read."""
        match image:
            case str() | os.PathLike():
                return self._view.see(self._file(os.fspath(image)), name=printable(name))
            case Named():
                return self._view.see(image.read(), name=printable(name))
            case bytes() | np.ndarray():
                return self._view.see(image, name=name)
            case Image.Image():
                view = self._view
                pixels_HWC = from_pillow(image, name=name, limits=view.limits, channels=view.preprocess.channels)
                return view.see(pixels_HWC, name=name)
            case torch.Tensor():
                return self._view.see(_of_tensor(image, name), name=name)
        raise DataError(
            f"{name} is a {type(image).__name__}, which is no image",
            hint="give a path, bytes, a Pillow image, a uint8 array [height, width, channels] or tensor [channels, height, width]",
        )

    def _file(self, path: str) -> bytes:
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (a Path cannot hold every name)
                size = os.fstat(file.fileno()).st_size
                if size > READ_IN_PLACE.entry_bytes:
                    limit = READ_IN_PLACE.entry_bytes
                    raise DataError(f"{printable(path)} has {size:,} bytes; a image may have {limit:,} (entry_bytes)")
                return file.read()
        except (NotADirectoryError, FileNotFoundError) as error:
            split = split_archive(path)
            if split is None:
                raise DataError(f"{printable(path)} does not exist") from error
            return self._member(*split)
        except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
            raise DataError(f"{printable(path)} cannot be read: {getattr(error, 'strerror', None) or error}") from error

    def _member(self, archive: str, inside: str) -> bytes:
        with self._lock:
            if archive not in self._archives:
                index = read_zip_index(Path(archive))
                self._archives[archive] = ZipContents(index), {name: row for row, name in enumerate(index.names)}
            contents, row_of = self._archives[archive]
        if inside not in row_of:
            raise DataError(f"{printable(archive)} holds no file {printable(inside)}")
        return contents.read(row_of[inside])


def split_archive(path: str) -> tuple[str, str] | None:
    """`photos.zip/cats/1.jpg` as the archive on disk and the name inside it; None where no part of the path is an archive."""
    at = path.lower().find(".zip/")
    while at >= 0:
        archive = path[: at + 4]
        if os.path.isfile(archive):  # noqa: PTH113
            return archive, path[at + 5 :]
        at = path.lower().find(".zip/", at + 1)
    return None


def _of_tensor(tensor: torch.Tensor, name: str) -> Pixels:
    """uint8 [C, H, W] of 0..255, or floating point of 0..1, as pixels [H, W, C]."""
    if tensor.ndim not in (2, 3):
        raise DataError(f"{name} is a tensor of shape {list(tensor.shape)}, not [channels, height, width]")
    if tensor.is_floating_point():
        low, high = (float(tensor.min()), float(tensor.max())) if tensor.numel() else (0.0, 0.0)
        if not (low >= 0 and high <= 1):
            raise DataError(
                f"{name} is a tensor of numbers from {low:.3g} to {high:.3g}, and pixels are from 0 to 1",
                hint="undo its normalisation, or call the model itself: model(images_BCHW)",
            )
        tensor = (tensor.float() * 255).round().to(torch.uint8)
    if tensor.dtype != torch.uint8:
        raise DataError(f"{name} is a tensor of {tensor.dtype}", hint="give uint8 from 0 to 255, or floating point from 0 to 1")
    image = tensor.detach().cpu()
    pixels: Pixels = (image if image.ndim == 2 else image.permute(1, 2, 0)).contiguous().numpy()
    return pixels


# Images read ahead by threads, in order, while the model works.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Read:
    """A image as the model sees it, or why it could not be read."""

    name: str
    seen: Pixels | Unreadable


class ReadAhead:
    """Images read by threads, at most `ahead` before they are taken, given back in order."""

    def __init__(self, reader: Reader, images: Iterator[ImageLike], *, workers: int, ahead: int) -> None:
        self._reader = reader
        self._images = images
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="predict") if workers else None
        self._ahead = ahead
        self._under_way: deque[Future[Read]] = deque()
        self._place = 0

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def take(self, count: int) -> list[Read]:
        """The next images, fewer only at the end; the ones after them are under way when this returns."""
        taken: list[Read] = []
        self._start(self._ahead)
        while len(taken) < count and self._under_way:
            taken.append(self._under_way.popleft().result())
            self._start(1)
        return taken

    def _start(self, most: int) -> None:
        room = self._ahead - len(self._under_way)
        for image in islice(self._images, min(most, room)):
            name = name_of(image, self._place)
            self._place += 1
            if isinstance(image, Image.Image):
                _load(image)
            if self._pool is None:
                self._under_way.append(Future())
                self._under_way[-1].set_result(self._read(image, name))
            else:
                self._under_way.append(self._pool.submit(self._read, image, name))

    def _read(self, image: ImageLike, name: str) -> Read:
        try:
            return Read(name=name, seen=self._reader(image, name))
        except DataError as error:
            return Read(name=name, seen=Unreadable(name=name, reason=error.message))


def _load(image: Image.Image) -> None:
    """Decoded in the caller's thread: Pillow may not load one image from two threads, and a list may hold it twice."""
    with suppress(OSError):  # raised again, and said with its name, where it is read
        image.load()


BackendName = Literal["auto", "torch", "compile", "onnxruntime", "openvino"]


class Predictor:
    """A checkpoint ready for images.

        predictor = Predictor("model.safetensors")
        predictor(["cat.jpg", pillow_image, uint8_array])[0].top(5)    # [(label, probability), ...]

    `batch_size` images go through the model at once, read ahead by `workers` threads (0: by the caller, in turn).
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
        self._reader = Reader(EvaluationTransform(preprocess=self.preprocess, limits=limits))

    def __call__(self, images: Iterable[ImageLike], *, features: bool = False) -> list[Prediction]:
        """The predictions of some images, in order; DataError, naming it, for the first that cannot be read."""
        found = []
        for item in self.stream(images, features=features):
            if isinstance(item, Unreadable):
                raise DataError(str(item), hint="predictor.stream goes on after such images and reports them")
            found.append(item)
        return found

    def stream(
        self, images: Iterable[ImageLike], *, features: bool = False, done: Container[str] | None = None
    ) -> Iterator[Prediction | Unreadable]:
        """Predictions of any number of images, in order and in constant memory; one that cannot be read is Unreadable.

        Images are taken from the iterable in the caller's thread, as many ahead as fill two batches. Those whose names are in
        `done` are left out. Batches are cut as if they were not: the last bits of an answer depend on the size of its batch.
        """
        if isinstance(images, str | bytes | os.PathLike | Image.Image):
            raise ConfigError("this is one image", hint="give a list of images: predictor([image])")
        if done is None:
            return self._stream(iter(images), features)
        results = self._stream(_undone(iter(images), self.batch_size, done), features)
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

    def _stream(self, images: Iterator[ImageLike], features: bool) -> Iterator[Prediction | Unreadable]:
        with ReadAhead(self._reader, images, workers=self.workers, ahead=2 * self.batch_size) as ahead:
            while batch := ahead.take(self.batch_size):
                yield from self._predicted(batch, features)

    def _predicted(self, batch: list[Read], features: bool) -> Iterator[Prediction | Unreadable]:
        pixels = [read.seen for read in batch if not isinstance(read.seen, Unreadable)]
        out = self.backend.run(np.stack(pixels), features=features) if pixels else None
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


def _undone(images: Iterator[ImageLike], batch_size: int, done: Container[str]) -> Iterator[ImageLike]:
    """The images without the batches of which every one is done."""
    for first in count(0, batch_size):
        batch = list(islice(images, batch_size))
        if not batch:
            return
        if not all(name_of(image, first + row) in done for row, image in enumerate(batch)):
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
