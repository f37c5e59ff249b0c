"""Object detection: a YOLOS finds objects in images, each with a class, a score and a box.

    detector = Detector("yolos-tiny")
    detector("street.jpg").boxes                         # [DetectedObject(label="car", score=0.98, x=..., y=..., ...), ...]

Images run one by one: each keeps its aspect ratio, so that no two need have the same size.

Axes: H height, W width, C channels; Q detection tokens.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, overload

import torch

from vitlab.checkpoints import Checkpoint, load
from vitlab.checkpoints.native import tensors_digest
from vitlab.config.data import DecodeLimits, is_detector
from vitlab.config.serialize import to_text
from vitlab.data.decode import decode, fit_channels
from vitlab.data.transforms import EvaluationTransform, normalise, preprocess
from vitlab.errors import CheckpointError, ConfigError, DataError, at_least, fraction
from vitlab.inference.images import ImageLike, ImageReader, ImagesLike, Pixels, as_list_of_images, image_name, load_pil
from vitlab.inference.results import Unreadable
from vitlab.io.display import Block, Displayed
from vitlab.io.names import printable
from vitlab.io.prefetch import prefetched
from vitlab.models.device import resolve_device
from vitlab.models.vit import ViT

_SHOWN = 20  # images that DetectedImages shows
_WHOLE = ("fit", "squash")  # ways of resizing that keep the whole image and nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedObject:
    """An object in an image: its class, a score from 0 to 1, and its box in pixels of the original image.

    `x` and `y` are the upper left corner, counted from that of the image; a box may reach over the edge.
    """

    label: str
    score: float
    x: float
    y: float
    width: float
    height: float

    def to_json(self) -> dict[str, Any]:
        """Label, score and box as plain values."""
        box = {name: round(getattr(self, name), 2) for name in ("x", "y", "width", "height")}
        return {"label": self.label, "score": round(self.score, 6), "box": box}


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedImage:
    """The objects in one image, best first. `size` is its (height, width) in pixels, upright."""

    name: str
    size: tuple[int, int]
    boxes: tuple[DetectedObject, ...]

    def to_json(self, k: int = 0) -> dict[str, Any]:
        """Name, size and boxes as plain values."""
        size = {"height": self.size[0], "width": self.size[1]}
        return {"name": self.name, "size": size, "boxes": [found.to_json() for found in self.boxes]}

    def lines(self) -> list[str]:
        """For a terminal: the image, and under it its objects."""
        rows = [
            f"  {100 * found.score:6.2f} %  {printable(found.label)}  x {found.x:.0f}  y {found.y:.0f}"
            f"  width {found.width:.0f}  height {found.height:.0f}"
            for found in self.boxes
        ]
        return [printable(self.name), *(rows or ["  no objects above the threshold"])]


class DetectedImages(Displayed, Sequence[DetectedImage]):
    """The objects in several images, in order: a sequence that prints as a table."""

    def __init__(self, images: Sequence[DetectedImage]) -> None:
        self._images = tuple(images)

    def __len__(self) -> int:
        return len(self._images)

    @overload
    def __getitem__(self, index: int) -> DetectedImage: ...
    @overload
    def __getitem__(self, index: slice) -> DetectedImages: ...
    def __getitem__(self, index: int | slice) -> DetectedImage | DetectedImages:
        return DetectedImages(self._images[index]) if isinstance(index, slice) else self._images[index]

    @property
    def boxes(self) -> list[Any]:
        """The objects of each image, best first; of one image alone, that list itself."""
        found = [list(image.boxes) for image in self]
        return found[0] if len(found) == 1 else found

    def to_json(self) -> list[dict[str, Any]]:
        """A list of plain values, one object for each image."""
        return [image.to_json() for image in self]

    def __repr__(self) -> str:
        return str(self) if len(self) else "no images"

    def tables(self) -> Iterator[Block]:
        """The objects of the first images."""
        rows = [
            {"image": image.name, "object": found.label, "score": f"{100 * found.score:.2f} %"}
            | {name: f"{value:.0f}" for name, value in asdict(found).items() if name not in ("label", "score")}
            for image in self._images[:_SHOWN]
            for found in image.boxes
        ]
        yield rows or "no objects above the threshold"
        if len(self) > _SHOWN:
            yield f"... and {len(self) - _SHOWN:,} more images"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole(EvaluationTransform):
    """Reads an image without resizing it: boxes are given in its pixels."""

    def apply(self, content: bytes | Pixels, *, name: str) -> Pixels:
        channels = self.preprocess.channels
        if isinstance(content, bytes):
            return decode(content, name=name, limits=self.limits, channels=channels, scale=self.preprocess.pixel_scale)
        return fit_channels(content, channels, name=name)


class Detector:
    """A checkpoint with detection heads, by its path or itself, ready to find objects; those up to `threshold` are left out.

    `workers` threads read the next images (0: the caller reads).
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str] | Checkpoint,
        *,
        threshold: float = 0.5,
        workers: int = 2,
        device: str | torch.device = "auto",
        limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
    ) -> None:
        fraction("threshold", threshold)
        at_least("workers", workers, 0)
        self.checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else load(os.fspath(checkpoint))
        if not is_detector(self.checkpoint.config):
            raise CheckpointError("the checkpoint has no detection heads", hint="a YOLOS has; vitlab predict classifies")
        self.preprocess = self.checkpoint.preprocess
        if self.preprocess.resize not in _WHOLE:
            raise ConfigError(
                f"resize={self.preprocess.resize!r} does not show a detector the whole image alone",
                hint="leave resize out, or give squash with an image_size",
            )
        self.threshold, self.workers = threshold, workers
        self._device = resolve_device(device)
        assert isinstance(self.checkpoint.model, ViT)
        self._model = self.checkpoint.model.to(self._device).eval()
        self._reader = ImageReader(_Whole(preprocess=self.preprocess, limits=limits))

    def __call__(self, images: ImagesLike) -> DetectedImages:
        """The objects of one image or several, in order; DataError names the first image that cannot be read."""
        found = []
        for result in self.stream(images):
            if isinstance(result, Unreadable):
                raise DataError(str(result), hint="detector.stream reports such images and continues")
            found.append(result)
        return DetectedImages(found)

    def stream(self, images: ImagesLike, *, done: Container[str] | None = None) -> Iterator[DetectedImage | Unreadable]:
        """The objects of any number of images, in order, without those in `done`; one that cannot be read is `Unreadable`."""
        named = ((image_name(image, index), image) for index, image in enumerate(as_list_of_images(images)))
        wanted = ((name, image) for name, image in named if name not in (done or ()))
        if not self.workers:
            yield from map(self._result, map(self._read, wanted))
            return
        with closing(prefetched(self._read, wanted, threads=self.workers, depth=2 * self.workers)) as read:
            yield from map(self._result, read)

    @cached_property
    def digest(self) -> str:
        """64 hexadecimal digits of the weights, config, preprocessing, labels and threshold: equal digests mean equal boxes."""
        made = sha256(tensors_digest(self._model.state_dict()).encode())
        for part in (self.checkpoint.config, self.preprocess, self.checkpoint.labels, self.threshold):
            made.update(to_text(part).encode())
        return made.hexdigest()

    def _read(self, item: tuple[str, ImageLike]) -> tuple[str, tuple[int, int], Pixels | str]:
        """A name with the image's size and the model's input, or with the reason why it cannot be read."""
        name, image = item
        load_pil(image)
        try:
            image_HWC = self._reader(image, name)
        except DataError as error:
            return name, (0, 0), error.message
        return name, (image_HWC.shape[0], image_HWC.shape[1]), preprocess(image_HWC, self.preprocess)

    def _result(self, read: tuple[str, tuple[int, int], Pixels | str]) -> DetectedImage | Unreadable:
        name, size, pixels_HWC = read
        if isinstance(pixels_HWC, str):
            return Unreadable(name=name, reason=pixels_HWC)
        dtype = next(self._model.parameters()).dtype
        with torch.inference_mode():
            images_BCHW = normalise(torch.from_numpy(pixels_HWC)[None].to(self._device), self.preprocess, dtype)
            logits_BQC, boxes_BQ4 = self._model.detect(images_BCHW)
            score_Q, class_Q = logits_BQC[0].float().softmax(-1)[:, :-1].max(-1)  # the last class is "no object"
            boxes_Q4 = boxes_BQ4[0].float()
        if not (self.checkpoint.allow_nonfinite or bool(score_Q.isfinite().all() and boxes_Q4.isfinite().all())):
            raise CheckpointError(
                f"the model's output for {name} holds NaN or Inf",
                hint="its weights overflow or are damaged; `allow_nonfinite` shows what it computes all the same",
            )
        kept = [q for q in score_Q.argsort(descending=True, stable=True).tolist() if score_Q[q] > self.threshold]
        return DetectedImage(
            name=name,
            size=size,
            boxes=tuple(self._object(int(class_Q[q]), float(score_Q[q]), boxes_Q4[q].tolist(), size) for q in kept),
        )

    def _object(self, number: int, score: float, box: list[float], size: tuple[int, int]) -> DetectedObject:
        """From a box's centre, width and height as fractions of the image to pixels."""
        across, down, wide, high = box
        height, width = size
        labels = self.checkpoint.labels
        return DetectedObject(
            label=str(number) if labels is None else labels[number],
            score=score,
            x=(across - wide / 2) * width,
            y=(down - high / 2) * height,
            width=wide * width,
            height=high * height,
        )
