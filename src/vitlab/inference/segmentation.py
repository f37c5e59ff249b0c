"""A class for each pixel of any image, at the image's own size; written as PNG, overlay and run lengths.

    predictor = SegmentPredictor(load("model.safetensors"))
    for found in predictor.stream(["cat.jpg", array]):
        found.classes_HW, found.areas(), found.overlay_HWC()

An image goes through the model whole, squashed or padded to its image size, or in overlapping windows; the logits are interpolated
back to the image's pixels, and each pixel takes the best class.

Axes: B batch, C classes, H W pixels of an image or of a window.
"""

from __future__ import annotations

import io
import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, TextIO, overload

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import DecodeLimits
from vitlab.config.segmenter import SegmenterConfig
from vitlab.data.decode import decode, fit_channels
from vitlab.data.readers.coco import run_lengths
from vitlab.data.transforms import EvaluationTransform, fitted_size, preprocess, resize, short_side_size
from vitlab.errors import ConfigError, DataError, UsageError, at_least
from vitlab.inference.backends import TorchBackend
from vitlab.inference.detections import colours
from vitlab.inference.engine import run_batches
from vitlab.inference.images import ImageLike, ImageReader, ImagesLike, as_list_of_images, image_name, load_pil
from vitlab.inference.results import Unreadable
from vitlab.inference.writing import all_images
from vitlab.io.atomic import replacing
from vitlab.io.display import Block, Displayed, ProgressCallback, json_text, printable, silent
from vitlab.io.machine import prefetched
from vitlab.models.backbone import Backbone, GridModel
from vitlab.models.device import resolve_device
from vitlab.models.families import build_on_meta
from vitlab.models.segmenter import Segmenter
from vitlab.models.vit import ViT

Pixels = NDArray[np.uint8]

_SHOWN = 20  # images that MaskPredictions shows
_TINT = 0.5  # of the colour of a class over the image
_UNMARKED = ("background", "ground", "other", "void")
"""Classes that an overlay leaves as they are."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskPrediction:
    """The class of each pixel of an image, at its own size; `image_HWC` are its pixels."""

    name: str
    classes_HW: Pixels
    image_HWC: Pixels
    labels: tuple[str, ...]

    def areas(self) -> dict[str, float]:
        """The fraction of the image that each class covers, largest first; classes that do not occur are left out."""
        counts_C = np.bincount(self.classes_HW.ravel(), minlength=len(self.labels))
        order = sorted(np.flatnonzero(counts_C).tolist(), key=lambda code: (-int(counts_C[code]), code))
        return {self.labels[code]: float(counts_C[code] / self.classes_HW.size) for code in order}

    def mask_png(self) -> bytes:
        """The mask as a PNG with a palette: its values are the numbers of the classes."""
        image = Image.fromarray(self.classes_HW)
        image.putpalette([level for colour in colours(len(self.labels)) for level in colour])
        file = io.BytesIO()
        image.save(file, "PNG", optimize=True)
        return file.getvalue()

    def overlay_HWC(self) -> Pixels:
        """The image with each class in its colour over it, and a line where classes meet."""
        return draw_overlay(self.image_HWC, self.classes_HW, self.labels)

    def to_json(self) -> dict[str, Any]:
        """Name, size (height, width), and for each class its area and its pixels as run lengths, as COCO writes them."""
        found = self.areas()
        masks = [
            {"label": label, "area": round(area, 6), "rle": run_lengths(self.classes_HW == self.labels.index(label))}
            for label, area in found.items()
        ]
        return {"name": self.name, "size": list(self.classes_HW.shape), "masks": masks}


class MaskPredictions(Displayed, Sequence[MaskPrediction]):
    """The masks of several images, in order; prints the area of each class."""

    def __init__(self, predictions: Sequence[MaskPrediction]) -> None:
        self._predictions = tuple(predictions)

    def __len__(self) -> int:
        return len(self._predictions)

    @overload
    def __getitem__(self, index: int) -> MaskPrediction: ...
    @overload
    def __getitem__(self, index: slice) -> MaskPredictions: ...
    def __getitem__(self, index: int | slice) -> MaskPrediction | MaskPredictions:
        return MaskPredictions(self._predictions[index]) if isinstance(index, slice) else self._predictions[index]

    def to_json(self) -> list[dict[str, Any]]:
        """A list of plain values, one object an image."""
        return [found.to_json() for found in self]

    def tables(self) -> Iterable[Block]:
        """The area of each class in the first images."""
        yield "\n".join(areas_line(found) for found in self._predictions[:_SHOWN])
        if len(self) > _SHOWN:
            yield f"and {len(self) - _SHOWN:,} more"


def areas_line(found: MaskPrediction) -> str:
    """`cat.jpg: background 71.3 %, cat 28.7 %`"""
    return (
        f"{printable(found.name)}: {', '.join(f'{printable(label)} {100 * area:.1f} %' for label, area in found.areas().items())}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole(EvaluationTransform):
    """All pixels of an image, as it is."""

    def apply(self, content: bytes | Pixels, *, name: str) -> Pixels:
        """The decoded image in the model's channels."""
        if isinstance(content, bytes):
            config = self.preprocess
            return decode(content, name=name, limits=self.limits, channels=config.channels, scale=config.pixel_scale)
        return fit_channels(content, self.preprocess.channels, name=name)


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    """An image on its way through the model: its windows that are not back yet, and the logits of those that are."""

    name: str
    image_HWC: Pixels | None
    reason: str | None = None
    size: tuple[int, int] = (0, 0)  # of the map of logits, before it is interpolated to the image
    corners: tuple[tuple[int, int], ...] = ()
    waiting: int = 0
    logits_CHW: torch.Tensor | None = None
    times_HW: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tiles:
    """Windows of one or several images, ready for the backend."""

    images_BHWC: Pixels
    owners: tuple[tuple[_Job, int], ...]
    n_asked: int = 0


class SegmentPredictor:
    """A segmenter that gives each pixel of any image a class.

    `windows` above 0 scales the shorter side of each image to that many pixels and cuts windows of the model's image size out of
    it, which overlap by at least half; where they overlap, their logits are averaged. 0 takes the whole image at once.
    `refine` moves the borders of masks to the edges of the image.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        batch_size: int = 32,
        workers: int = 2,
        device: str | torch.device = "auto",
        windows: int = 0,
        refine: bool = False,
        limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
    ) -> None:
        at_least("batch_size", batch_size, 1)
        at_least("workers", workers, 0)
        at_least("windows", windows, 0)
        if not isinstance(checkpoint.config, SegmenterConfig):
            raise ConfigError(
                f"{checkpoint.config.title} gives each image a class, not each pixel", hint="finetune with task='segment'"
            )
        self.preprocess = checkpoint.preprocess
        if self.preprocess.resize not in ("squash", "pad") and not windows:
            raise ConfigError(
                f"resize={self.preprocess.resize!r} crops images or gives them other sizes than the model's",
                hint="resize='squash' or 'pad': every pixel needs a class",
            )
        if windows and windows < max(self.preprocess.image_size):
            height, width = self.preprocess.image_size
            raise ConfigError(f"windows={windows} is smaller than a window, which is the model's {height}x{width} pixels")
        assert isinstance(checkpoint.model, Segmenter)
        self.model = checkpoint.model
        self.checkpoint = checkpoint
        self.labels = checkpoint.labels or tuple(f"class {code}" for code in range(checkpoint.config.num_classes))
        self.batch_size = batch_size
        self.workers = workers
        self.windows = windows
        self.refine = refine
        self.backend = TorchBackend(checkpoint.model, self.preprocess, device=resolve_device(device))
        self._reader = ImageReader(_Whole(preprocess=self.preprocess, limits=limits))

    def __call__(self, images: ImagesLike, *, progress: ProgressCallback = silent) -> MaskPredictions:
        """The masks of one image or several, in order; DataError names the first image that cannot be read."""
        found = []
        for result in self.stream(images, progress=progress):
            if isinstance(result, Unreadable):
                raise DataError(str(result), hint="predictor.stream reports such images and continues")
            found.append(result)
        return MaskPredictions(found)

    def stream(
        self, images: ImagesLike, *, total: int | None = None, progress: ProgressCallback = silent
    ) -> Iterator[MaskPrediction | Unreadable]:
        """The masks of any number of images, in order; an image that cannot be read is `Unreadable`."""
        jobs: deque[_Job] = deque()
        done = 0
        progress("predicting", done, total)
        with closing(self._tiles(as_list_of_images(images), jobs)) as tiles:
            for batch, outputs in run_batches(self.backend, tiles):
                if outputs is not None:
                    for (job, place), logits_CHW in zip(batch.owners, outputs.logits_BK, strict=True):
                        self._add(job, place, torch.from_numpy(logits_CHW))
                while jobs and not jobs[0].waiting:
                    yield self._finished(jobs.popleft())
                    done += 1
                progress("predicting", done, total)
        assert not jobs, "every image is back when all batches are"

    def _tiles(self, images: Iterable[ImageLike], jobs: deque[_Job]) -> Generator[_Tiles, None, None]:
        """Batches of windows, of whole images mostly; each image is appended to `jobs` as it is read."""
        owners: list[tuple[_Job, int]] = []
        pixels: list[Pixels] = []
        named = ((image_name(image, place), image) for place, image in enumerate(images))
        read = prefetched(self._read, _loaded(named), threads=max(1, self.workers), depth=2 * self.batch_size)
        with closing(read) as ready:
            for job, windows in ready:
                jobs.append(job)
                for place, window_HWC in enumerate(windows):
                    owners.append((job, place))
                    pixels.append(window_HWC)
                    if len(pixels) == self.batch_size:
                        yield _Tiles(images_BHWC=np.stack(pixels), owners=tuple(owners))
                        owners, pixels = [], []
        empty = np.zeros((0, 1, 1, 1), np.uint8)
        yield _Tiles(images_BHWC=np.stack(pixels) if pixels else empty, owners=tuple(owners))

    def _read(self, item: tuple[str, ImageLike]) -> tuple[_Job, list[Pixels]]:
        name, image = item
        try:
            image_HWC = self._reader(image, name)
        except DataError as error:
            return _Job(name=name, image_HWC=None, reason=error.message), []
        height, width = image_HWC.shape[:2]
        if not self.windows:
            job = _Job(name=name, image_HWC=image_HWC, size=self.preprocess.image_size, corners=((0, 0),), waiting=1)
            return job, [preprocess(image_HWC, self.preprocess)]
        size = short_side_size(height, width, self.windows)
        scaled_HWC = resize(image_HWC, size, self.preprocess.interpolation)
        tall, wide = self.preprocess.image_size
        corners = tuple((top, left) for top in starts(size[0], tall) for left in starts(size[1], wide))
        job = _Job(name=name, image_HWC=image_HWC, size=size, corners=corners, waiting=len(corners))
        return job, [np.ascontiguousarray(scaled_HWC[top : top + tall, left : left + wide]) for top, left in corners]

    def _add(self, job: _Job, place: int, logits_CHW: torch.Tensor) -> None:
        """Add the logits of a window to those of its image."""
        job.waiting -= 1
        if len(job.corners) == 1 and logits_CHW.shape[1:] == job.size:
            job.logits_CHW = logits_CHW
            return
        if job.logits_CHW is None or job.times_HW is None:
            job.logits_CHW, job.times_HW = torch.zeros(len(logits_CHW), *job.size), torch.zeros(job.size)
        (top, left), (tall, wide) = job.corners[place], logits_CHW.shape[1:]
        job.logits_CHW[:, top : top + tall, left : left + wide] += logits_CHW
        job.times_HW[top : top + tall, left : left + wide] += 1

    def _finished(self, job: _Job) -> MaskPrediction | Unreadable:
        if job.image_HWC is None:
            return Unreadable(name=job.name, reason=job.reason or "")
        assert job.logits_CHW is not None
        logits_CHW = job.logits_CHW if job.times_HW is None else job.logits_CHW / job.times_HW
        height, width = job.image_HWC.shape[:2]
        if not self.windows and self.preprocess.resize == "pad":
            (tall, wide), (down, across) = fitted_size(height, width, job.size), job.size
            top, left = (down - tall) // 2, (across - wide) // 2
            logits_CHW = logits_CHW[:, top : top + tall, left : left + wide]
        own_CHW = F.interpolate(logits_CHW[None].float(), size=(height, width), mode="bilinear", align_corners=False)[0]
        if self.refine:
            (down, across), (tall, wide) = self.model.config.step, logits_CHW.shape[1:]
            own_CHW = refined(own_CHW, job.image_HWC, patch=(down * height / tall, across * width / wide))
        classes_HW: Pixels = own_CHW.argmax(0).to(torch.uint8).numpy()
        return MaskPrediction(name=job.name, classes_HW=classes_HW, image_HWC=job.image_HWC, labels=self.labels)


def backbone_of(checkpoint: Checkpoint) -> Checkpoint:
    """The backbone of a segmenter or detector as a checkpoint of its own, for a look inside; any other checkpoint as it is.

    A decoder reads the patches and no class token: so does the pool of this backbone.
    """
    if not isinstance(checkpoint.model, GridModel):
        return checkpoint
    backbone: Backbone = checkpoint.model.backbone
    if isinstance(backbone, ViT) and backbone.config.pool == "token":
        pooled = build_on_meta(replace(backbone.config, pool="mean"))
        assert isinstance(pooled, ViT)
        pooled.load_state_dict(backbone.state_dict(), assign=True)
        backbone = pooled.eval()
    return replace(checkpoint, model=backbone, config=backbone.config, labels=None)


def _loaded(named: Iterable[tuple[str, ImageLike]]) -> Iterator[tuple[str, ImageLike]]:
    for name, image in named:
        load_pil(image)
        yield name, image


def starts(length: int, window: int) -> list[int]:
    """Where windows begin that cover `length` pixels and overlap by at least half; one window if it is not longer."""
    if length <= window:
        return [0]
    count = -(-(length - window) // max(1, window // 2)) + 1
    return [round(place) for place in np.linspace(0, length - window, count).tolist()]


def draw_overlay(image_HWC: Pixels, classes_HW: Pixels, labels: Sequence[str]) -> Pixels:
    """An image with each class in its colour over it, and a dark line where classes meet; ignored pixels stay as they are."""
    rgb_HWC = np.repeat(image_HWC[:, :, :1], 3, axis=2) if image_HWC.shape[2] < 3 else image_HWC[:, :, :3]
    table = np.zeros((256, 3), np.float64)
    strength = np.zeros(256)
    for code, colour in enumerate(colours(len(labels))):
        table[code] = colour
        strength[code] = 0.0 if labels[code].casefold() in _UNMARKED else _TINT
    strength_HW1 = strength[classes_HW][:, :, None]
    mixed_HWC = rgb_HWC * (1 - strength_HW1) + table[classes_HW] * strength_HW1
    meets_HW = np.zeros(classes_HW.shape, np.bool_)
    meets_HW[:-1] |= classes_HW[:-1] != classes_HW[1:]
    meets_HW[:, :-1] |= classes_HW[:, :-1] != classes_HW[:, 1:]
    mixed_HWC[meets_HW] *= 0.4
    return np.rint(mixed_HWC).astype(np.uint8)


def segment_images(
    predictor: SegmentPredictor,
    images: ImagesLike,
    *,
    out: str | os.PathLike[str] | TextIO | None,
    as_json: bool | None,
    overwrite: bool,
    strict: bool,
    progress: ProgressCallback,
    notify: Callable[[str], None],
) -> MaskPredictions:
    """`vitlab.predict` of a segmenter: the masks, or none if they were written to `out`.

    `out` is a stream, a file that ends in .jsonl, or else a folder: it gets a mask and an overlay of each image, and masks.jsonl.
    """
    found, countable = all_images(images)
    total = sum(1 for _ in all_images(images)[0]) if countable else None
    results = predictor.stream(found, total=total, progress=progress)
    kept: list[MaskPrediction] = []
    if out is None:
        failed, seen = _pour(results, kept.append, notify)
    elif not isinstance(out, str | os.PathLike):
        stream = out
        failed, seen = _pour(results, lambda one: _write_line(stream, one, as_json=bool(as_json)), notify)
        stream.flush()
    else:
        failed, seen = _write_files(results, Path(out), as_json=as_json, overwrite=overwrite, notify=notify)
    if failed:
        sentence = f"{failed:,} of {seen:,} images could not be read"
        if failed == seen or strict:
            raise DataError(sentence)
        notify(f"note: {sentence}")
    return MaskPredictions(kept)


def _pour(
    results: Iterator[MaskPrediction | Unreadable], take: Callable[[MaskPrediction], object], notify: Callable[[str], None]
) -> tuple[int, int]:
    failed = seen = 0
    for result in results:
        seen += 1
        if isinstance(result, Unreadable):
            failed += 1
            notify(f"unreadable: {result}")
        else:
            take(result)
    return failed, seen


def _write_line(stream: TextIO, found: MaskPrediction, *, as_json: bool) -> None:
    stream.write((json_text(found.to_json()) if as_json else areas_line(found)) + "\n")


def _write_files(
    results: Iterator[MaskPrediction | Unreadable],
    out: Path,
    *,
    as_json: bool | None,
    overwrite: bool,
    notify: Callable[[str], None],
) -> tuple[int, int]:
    lines: list[str] = []
    alone = out.suffix.lower() == ".jsonl"
    if as_json is False:
        raise UsageError("masks are written as JSON lines or as a folder of images", hint="give `out` masks.jsonl, or a folder")
    if out.exists() and not overwrite:
        raise DataError(f"{out} exists already", hint="`overwrite=True` replaces its files")
    if not alone:
        out.mkdir(parents=True, exist_ok=True)
    used: set[str] = set()

    def take(found: MaskPrediction) -> None:
        described = found.to_json()
        if not alone:
            stem = _unused(PurePosixPath(found.name.replace("\\", "/")).stem or "image", used)
            described |= {"mask": f"{stem}.png", "overlay": f"{stem}-overlay.png"}
            _write(out / f"{stem}.png", found.mask_png())
            _write(out / f"{stem}-overlay.png", _png(found.overlay_HWC()))
        lines.append(json_text(described))

    counts = _pour(results, take, notify)
    _write(out if alone else out / "masks.jsonl", "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return counts


def _unused(stem: str, used: set[str]) -> str:
    """The name itself, or with a number if it was used before."""
    clean = "".join(letter if letter.isalnum() or letter in "-_. ()" else "_" for letter in stem)
    name, number = clean, 1
    while name in used or f"{name}-overlay" in used:
        number += 1
        name = f"{clean}-{number}"
    used |= {name, f"{name}-overlay"}
    return name


def _write(path: Path, content: bytes) -> None:
    with replacing(path, needed=len(content)) as file:
        file.write(content)


def _png(pixels_HWC: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels_HWC).save(file, "PNG")
    return file.getvalue()


# --- sharper masks: the mean field of a dense CRF -----------------------------------------------------------------------------

# Chosen on the val split of Oxford-IIIT Pets among weights of 2, 5, 10 and colours of 10, 20: docs/log.md.
_REACH = 4  # offsets to each side, so 80 neighbours
_SPREAD = 3.0  # standard deviation of the distance, in offsets
_COLOUR = 20.0  # standard deviation of the difference of colours, in levels
_WEIGHT = 5.0  # of the neighbours beside the pixel's own logits
_ROUNDS = 3


def refined(logits_CHW: Tensor, image_HWK: NDArray[np.uint8], *, patch: tuple[float, float]) -> Tensor:
    """Logits of an image's pixels after the mean field; `patch` is the (height, width) of a patch in pixels of the image.

    The window reaches half a patch to each side: as far as a mask can be wrong because its grid is coarse.
    """
    height, width = logits_CHW.shape[1:]
    down, across = (max(1, round(side / (2 * _REACH))) for side in patch)
    image_KHW = torch.from_numpy(np.ascontiguousarray(image_HWK)).permute(2, 0, 1).to(logits_CHW.dtype)
    scale = 3 / (image_KHW.shape[0] * 2 * _COLOUR**2)  # colours of three channels and grey levels count alike
    steps = [(row, column) for row in range(-_REACH, _REACH + 1) for column in range(-_REACH, _REACH + 1) if row or column]
    steps = [(row, column) for row, column in steps if abs(row * down) < height and abs(column * across) < width]
    chances_CHW = logits_CHW.softmax(0)
    for _ in range(_ROUNDS if steps else 0):
        message_CHW, total_HW = torch.zeros_like(logits_CHW), torch.full((height, width), 1e-6, dtype=logits_CHW.dtype)
        for row, column in steps:
            near = math.exp(-(row**2 + column**2) / (2 * _SPREAD**2))
            here, there = _overlap(row * down, height, column * across, width)
            difference_HW = (image_KHW[there] - image_KHW[here]).square_().sum(0)
            kernel_HW = difference_HW.mul_(-scale).exp_().mul_(near)
            message_CHW[here] += chances_CHW[there] * kernel_HW
            total_HW[here[1:]] += kernel_HW
        chances_CHW = (logits_CHW + _WEIGHT * message_CHW / total_HW).softmax(0)
    return chances_CHW.log() if steps else logits_CHW


def _overlap(down: int, height: int, across: int, width: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where pixels have a neighbour at this offset, and where those neighbours are."""
    here = (slice(max(0, -down), height - max(0, down)), slice(max(0, -across), width - max(0, across)))
    there = (slice(max(0, down), height - max(0, -down)), slice(max(0, across), width - max(0, -across)))
    return (slice(None), *here), (slice(None), *there)
