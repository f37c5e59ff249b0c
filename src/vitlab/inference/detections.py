"""Object detection: a model finds objects in images, each with a class, a score and a box.

    detector = Detector("yolos-tiny")
    detector("street.jpg").boxes                         # [DetectedObject(label="car", score=0.98, x=..., y=..., ...), ...]

Images that keep their aspect ratio (`resize='fit'`) run one by one, since no two need have the same size; others in batches. Of the
overlapping boxes that a grid detector finds, the best is kept; the tokens of a YOLOS need no such choice.

Axes: H height, W width, C channels; B batch, N objects (cells of a grid, or detection tokens), X edges and class logits.
"""

from __future__ import annotations

import colorsys
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import islice
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitlab.checkpoints import Checkpoint, load
from vitlab.checkpoints.native import tensors_digest
from vitlab.config.data import DecodeLimits, is_detector, named_classes
from vitlab.config.serialize import to_text
from vitlab.data.contact_sheet import drawable, font_for
from vitlab.data.decode import decode, fit_channels
from vitlab.data.dense import preprocess_frame
from vitlab.data.transforms import EvaluationTransform, preprocess
from vitlab.errors import CheckpointError, ConfigError, DataError, at_least, fraction
from vitlab.inference.backends import TorchBackend
from vitlab.inference.engine import run_batches
from vitlab.inference.images import ImageLike, ImageReader, ImagesLike, Pixels, as_list_of_images, image_name, load_pil
from vitlab.inference.results import Unreadable
from vitlab.io.display import Block, Displayed, printable
from vitlab.io.machine import prefetched
from vitlab.models.device import resolve_device
from vitlab.models.grid_detector import as_objects, class_scores, of_tokens
from vitlab.objective.losses import iou_and_giou
from vitlab.objective.metrics import FoundBoxes

_SHOWN = 20  # images that DetectedImages shows
_WHOLE = ("fit", "squash", "pad")  # ways of resizing that show the whole image
_CANDIDATES = 300  # best objects of a grid among which suppression chooses
_MOST = 100  # objects of an image
_DRAWN_SIDE, _LIGHT = 512, 380  # pixels of a drawn image; sum of the levels of a colour on which text is black
OVERLAP = 0.6
"""IoU above which the worse of two found boxes of a class is dropped."""


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
    """The objects in one image, best first. `size` is its (height, width) in pixels, upright.

    `image_HWC` are its pixels if the detector was asked to keep them, for drawing.
    """

    name: str
    size: tuple[int, int]
    boxes: tuple[DetectedObject, ...]
    image_HWC: Pixels | None = field(default=None, compare=False, repr=False)

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


def best_objects(objects_NX: torch.Tensor, *, tokens: bool, least: float) -> FoundBoxes:
    """The objects of one image with a score above `least`, best first, at most 100; boxes are fractions of what the model sees.

    A token has one class, its likeliest. A cell of a grid may have several, and of overlapping boxes of a class the best is kept.
    """
    scores_NC, corners_N4 = class_scores(objects_NX, tokens=tokens), objects_NX[:, :4].float()
    if tokens:
        score_N, code_N = scores_NC.max(-1)
        kept = score_N.argsort(descending=True, stable=True)
        kept = kept[score_N[kept] > least]
    else:
        cell_N, code_N = torch.nonzero(scores_NC > least, as_tuple=True)
        score_N, corners_N4 = scores_NC[cell_N, code_N], corners_N4[cell_N].clamp(0, 1)
        best = score_N.argsort(descending=True, stable=True)[:_CANDIDATES]
        score_N, code_N, corners_N4 = score_N[best], code_N[best], corners_N4[best]
        kept = suppress(corners_N4, score_N, code_N, overlap=OVERLAP)
    kept = kept[:_MOST]
    return FoundBoxes(
        corners_D4=corners_N4[kept].double().cpu().numpy(),
        scores_D=score_N[kept].double().cpu().numpy(),
        codes_D=code_N[kept].cpu().numpy(),
    )


def suppress(corners_N4: torch.Tensor, scores_N: torch.Tensor, codes_N: torch.Tensor, *, overlap: float) -> torch.Tensor:
    """Non-maximum suppression: the numbers of the boxes to keep, best first.

    A box is dropped if its IoU with a better box of its class that is kept is above `overlap`. Instead of one box after the other,
    all are compared at once with those that are still kept, until nothing changes: the same result (Zheng et al. 2020).
    """
    order_N = scores_N.argsort(descending=True, stable=True)
    corners_N4, codes_N = corners_N4[order_N], codes_N[order_N]
    iou_NN, _ = iou_and_giou(corners_N4[:, None], corners_N4[None])
    drops_NN = ((iou_NN > overlap) & (codes_N[:, None] == codes_N[None])).triu(1)  # row: the better box
    kept_N = torch.ones_like(codes_N, dtype=torch.bool)
    while not torch.equal(now_N := ~(drops_NN & kept_N[:, None]).any(0), kept_N):
        kept_N = now_N
    return order_N[kept_N]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole(EvaluationTransform):
    """Reads an image without resizing it: boxes are given in its pixels."""

    def apply(self, content: bytes | Pixels, *, name: str) -> Pixels:
        channels = self.preprocess.channels
        if isinstance(content, bytes):
            return decode(content, name=name, limits=self.limits, channels=channels, scale=self.preprocess.pixel_scale)
        return fit_channels(content, channels, name=name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Read:
    """An image that was read, with the model's input; or the reason why it cannot be."""

    name: str
    size: tuple[int, int] = (0, 0)
    input_HWC: Pixels | None = None
    image_HWC: Pixels | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ReadBatch:
    """Images for one forward pass, and those among them that could not be read."""

    images: tuple[_Read, ...]
    images_BHWC: Pixels
    n_asked: int = 0


class Detector:
    """A checkpoint that detects, by its path or itself, ready to find objects; those up to `threshold` are left out.

    `workers` threads read the next images (0: the caller reads). `keep_images` keeps the pixels of each image with its result.
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str] | Checkpoint,
        *,
        threshold: float = 0.5,
        batch_size: int = 32,
        workers: int = 2,
        device: str | torch.device = "auto",
        keep_images: bool = False,
        limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
    ) -> None:
        fraction("threshold", threshold)
        at_least("batch_size", batch_size, 1)
        at_least("workers", workers, 0)
        self.checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else load(os.fspath(checkpoint))
        config = self.checkpoint.config
        if not is_detector(config):
            raise CheckpointError(
                "the checkpoint has no detection heads", hint="a YOLOS has, and finetune with task='detect' makes them"
            )
        self.preprocess = self.checkpoint.preprocess
        if self.preprocess.resize not in _WHOLE:
            raise ConfigError(
                f"resize={self.preprocess.resize!r} does not show a detector the whole image",
                hint="leave resize out, or give squash or pad with an image_size",
            )
        self.threshold, self.workers, self.keep_images = threshold, workers, keep_images
        self.batch_size = 1 if self.preprocess.resize == "fit" else batch_size
        self.labels = self.checkpoint.labels or tuple(map(str, range(named_classes(config))))
        self._tokens = of_tokens(config)
        self._backend = TorchBackend(as_objects(self.checkpoint.model), self.preprocess, device=resolve_device(device))
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
            yield from self._results(map(self._read, wanted))
            return
        with closing(prefetched(self._read, wanted, threads=self.workers, depth=2 * max(self.workers, self.batch_size))) as read:
            yield from self._results(read)

    @cached_property
    def digest(self) -> str:
        """64 hexadecimal digits of the weights, config, preprocessing, labels and threshold: equal digests mean equal boxes."""
        made = sha256(tensors_digest(self.checkpoint.model.state_dict()).encode())
        for part in (self.checkpoint.config, self.preprocess, self.checkpoint.labels, self.threshold):
            made.update(to_text(part).encode())
        return made.hexdigest()

    def _read(self, item: tuple[str, ImageLike]) -> _Read:
        name, image = item
        load_pil(image)
        try:
            image_HWC = self._reader(image, name)
        except DataError as error:
            return _Read(name=name, reason=error.message)
        return _Read(
            name=name,
            size=(image_HWC.shape[0], image_HWC.shape[1]),
            input_HWC=preprocess(image_HWC, self.preprocess),
            image_HWC=image_HWC if self.keep_images else None,
        )

    def _results(self, read: Iterable[_Read]) -> Iterator[DetectedImage | Unreadable]:
        for batch, outputs in run_batches(self._backend, _batches(read, self.batch_size)):
            objects = iter(() if outputs is None else outputs.logits_BK)
            for image in batch.images:
                if image.input_HWC is None:
                    yield Unreadable(name=image.name, reason=image.reason)
                else:
                    yield self._result(image, next(objects))

    def _result(self, image: _Read, objects_NX: NDArray[np.float32]) -> DetectedImage:
        if not (self.checkpoint.allow_nonfinite or bool(np.isfinite(objects_NX).all())):
            raise CheckpointError(
                f"the model's output for {image.name} holds NaN or Inf",
                hint="its weights overflow or are damaged; `allow_nonfinite` shows what it computes all the same",
            )
        found = best_objects(torch.from_numpy(objects_NX), tokens=self._tokens, least=self.threshold)
        height, width = image.size
        corners_D4 = preprocess_frame(height, width, self.preprocess).back(found.corners_D4)
        if not self._tokens:  # what a grid finds in the padding, or beyond the edge, is not part of the image
            corners_D4 = corners_D4.clip(0, np.array([width, height, width, height]))
        objects = tuple(
            DetectedObject(label=self.labels[int(code)], score=score, x=left, y=top, width=right - left, height=bottom - top)
            for code, score, (left, top, right, bottom) in zip(
                found.codes_D, found.scores_D.tolist(), corners_D4.tolist(), strict=True
            )
        )
        return DetectedImage(name=image.name, size=image.size, boxes=objects, image_HWC=image.image_HWC)


def _batches(read: Iterable[_Read], size: int) -> Iterator[_ReadBatch]:
    waiting = iter(read)
    while images := tuple(islice(waiting, size)):
        pixels = [image.input_HWC for image in images if image.input_HWC is not None]
        yield _ReadBatch(images=images, images_BHWC=np.stack(pixels) if pixels else np.zeros((0, 1, 1, 1), np.uint8))


def draw_boxes(image_HWC: Pixels, boxes: Sequence[DetectedObject], labels: Sequence[str], *, scores: bool = True) -> Pixels:
    """An image with each box in the colour of its class, and its name, with its score in percent, in the upper left corner."""
    rgb_HWC = np.repeat(image_HWC[:, :, :1], 3, axis=2) if image_HWC.shape[2] < 3 else image_HWC[:, :, :3]
    enlarged = max(1, round(_DRAWN_SIDE / max(rgb_HWC.shape[:2])))  # names on a thumbnail would hide it
    drawn = Image.fromarray(np.ascontiguousarray(rgb_HWC))
    drawn = drawn.resize((drawn.width * enlarged, drawn.height * enlarged), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(drawn)
    line, letters = max(2, max(drawn.size) // 128), max(12, max(drawn.size) // 24)
    colour_of = dict(zip(labels, colours(len(labels)), strict=True))
    for found in reversed(boxes):  # the best on top
        colour = colour_of[found.label]
        left, top = found.x * enlarged, found.y * enlarged
        right, bottom = left + found.width * enlarged, top + found.height * enlarged
        pen.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=line)
        text = printable(found.label) + (f" {100 * found.score:.0f}" if scores else "")
        font = font_for(text, letters)
        text = drawable(text, font)
        place = (max(0.0, left), max(0.0, top))
        pen.rectangle(pen.textbbox(place, text, font=font), fill=colour)
        pen.text(place, text, fill="black" if sum(colour) > _LIGHT else "white", font=font)
    return np.asarray(drawn)


_COLOURS = (  # colours that nearly everybody can tell apart (Okabe and Ito), then hues in steps of the golden angle
    *((213, 94, 0), (0, 114, 178), (0, 158, 115), (240, 228, 66)),
    *((204, 121, 167), (86, 180, 233), (230, 159, 0), (120, 120, 120)),
)


def colours(classes: int) -> list[tuple[int, int, int]]:
    """A colour for each class, as far apart as possible."""
    more = (
        tuple(round(255 * level) for level in colorsys.hsv_to_rgb((code * 0.618034) % 1, 0.55 + 0.4 * (code % 2), 0.9))
        for code in range(max(0, classes - len(_COLOURS)))
    )
    return [*_COLOURS, *((red, green, blue) for red, green, blue in more)][:classes]
