"""From indices to a batch of pixels: read, transform, and report images that cannot be read; and the boxes that move with an image.

The same code runs in the caller and in every worker.

Axes: B rows of a batch, H height, W width, C channels; K classes; M boxes.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import UNKNOWN, Dataset, ImageBoxes, ImageDataset, Label, Pixels, RawSample
from vitlab.data.sampler import Indices, Picks, rng_of, substitute
from vitlab.errors import ConfigError, DataError, VitlabError
from vitlab.io.display import printable
from vitlab.io.machine import is_out_of_memory

# --- boxes -------------------------------------------------------------------------------------------------------------------

# The boxes of a batch are one array (B, M, 6), a row for each box: its class, its left, top, right and bottom as fractions of what
# the model sees, and 1 if it counts for nothing, else 0. Images with fewer boxes than M are filled with rows of class -1.

NO_BOX = -1
"""The class of a row that is no box."""

VISIBLE = 0.25
"""In training, a box of which a crop leaves less than this fraction counts for nothing: nobody could tell what it shows."""

BatchBoxes = NDArray[np.float32]


class Frame(NamedTuple):
    """Where an image of (height, width) pixels lies in what the model sees.

    Its point (x, y), in pixels, lies at (x * across + left, y * down + top), in fractions of what the model sees; `across` is
    negative for a mirrored image.
    """

    height: int
    width: int
    across: float
    left: float
    down: float
    top: float

    def mirrored(self) -> Frame:
        """The same, flipped horizontally."""
        return self._replace(across=-self.across, left=1 - self.left)

    def forward(self, corners_M4: NDArray[np.float64]) -> NDArray[np.float64]:
        """Boxes in pixels of the image as fractions of what the model sees."""
        x_M2 = np.sort(corners_M4[:, 0::2] * self.across + self.left, axis=1)
        y_M2 = corners_M4[:, 1::2] * self.down + self.top
        return np.stack([x_M2[:, 0], y_M2[:, 0], x_M2[:, 1], y_M2[:, 1]], axis=1)

    def back(self, corners_M4: NDArray[np.float64]) -> NDArray[np.float64]:
        """Boxes as fractions of what the model sees in pixels of the image."""
        x_M2 = np.sort((corners_M4[:, 0::2] - self.left) / self.across, axis=1)
        y_M2 = (corners_M4[:, 1::2] - self.top) / self.down
        return np.stack([x_M2[:, 0], y_M2[:, 0], x_M2[:, 1], y_M2[:, 1]], axis=1)


class Framed(NamedTuple):
    """What a transform of images with boxes gives: pixels, and where the image lies in them."""

    image_HWC: Pixels
    frame: Frame


def whole_frame(height: int, width: int) -> Frame:
    """The frame of an image that is squashed: it fills what the model sees."""
    return Frame(height=height, width=width, across=1 / width, left=0.0, down=1 / height, top=0.0)


def areas(corners_M4: NDArray[np.float64]) -> NDArray[np.float64]:
    """Width times height of each box, 0 for one whose sides are not positive."""
    found_M: NDArray[np.float64] = (corners_M4[:, 2:] - corners_M4[:, :2]).clip(0).prod(1)
    return found_M


def inside_image(boxes: ImageBoxes, size: tuple[int, int]) -> NDArray[np.float64]:
    """The boxes cut at the edges of an image of (height, width) `size`."""
    height, width = size
    return boxes.corners_M4.clip(0, np.array([width, height, width, height], np.float64))


def move_boxes(boxes: ImageBoxes, frame: Frame, *, visible: float = 0.0) -> BatchBoxes:
    """The boxes of an image in what the model sees, (M, 6) as in a batch, cut at its edges.

    A box without area inside the image or inside the frame is left out. One of which the frame shows less than the fraction
    `visible` counts for nothing.
    """
    own_M4 = inside_image(boxes, (frame.height, frame.width))
    whole_M4 = frame.forward(own_M4)
    seen_M4 = whole_M4.clip(0, 1)
    area_M, seen_M = areas(whole_M4), areas(seen_M4)
    kept_M = (area_M > 0) & (seen_M > 0)
    ignored_M = boxes.ignored_M | (seen_M < visible * area_M)
    moved_M6 = np.concatenate([boxes.codes_M[:, None], seen_M4, ignored_M[:, None]], axis=1)
    return moved_M6[kept_M].astype(np.float32)


def batch_boxes(images: Sequence[BatchBoxes]) -> BatchBoxes:
    """The boxes of several images as one array, at least one row an image."""
    most = max([1, *map(len, images)])
    filled_BM6 = np.zeros((len(images), most, 6), np.float32)
    filled_BM6[:, :, 0] = NO_BOX
    for row, boxes_M6 in enumerate(images):
        filled_BM6[row, : len(boxes_M6)] = boxes_M6
    return filled_BM6


Transform = Callable[[RawSample, np.random.Generator], Pixels | Framed]
"""From a sample and its own random generator to uint8 pixels of the loader's shape; with boxes, also where the image lies in it."""

Decode = Callable[[RawSample], Pixels]
"""From a sample to all its pixels, uint8 (H, W, C)."""


@runtime_checkable
class BatchReadable(Protocol):
    """A dataset that gives many images at once: the same bits as one by one, but much faster."""

    def images(self, indices: Indices) -> Pixels:
        """The pixels of these images, uint8 (B, H, W, C)."""
        ...


OnImage = Callable[[int, str], None]
"""Called with the index of each image before it is read, and again with its name when that is known."""

_SUBSTITUTES = 8  # that may fail in a row; after that the problem is larger than an image


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How a sample becomes pixels.

    `transform` gives pixels of `shape` (height, width, channels). `decode`, if decoded images may be cached, gives all pixels of
    an image, to which `transform` is then applied; `settings` is a text that changes whenever the result of `decode` does.
    With `masks`, the last channel of `shape` is the class of each pixel, which a batch then holds apart. With `boxes`, the
    transform says where it puts each image, and the loader moves the boxes of the dataset with it.
    """

    transform: Transform
    shape: tuple[int, int, int]
    decode: Decode | None = None
    settings: str = ""
    masks: bool = False
    boxes: bool = False

    def __post_init__(self) -> None:
        if min(self.shape) < 1:
            raise ConfigError(f"shape={self.shape} must be a height, a width and a number of channels, each at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An image that could not be read, and why; `replaced_by` is the index of the image in its place, None if there is none."""

    index: int
    name: str
    reason: str
    replaced_by: int | None = None

    def __str__(self) -> str:
        return self.reason if self.name in self.reason else f"{printable(self.name)}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """A batch of one rank.

    `labels` is int64 (B,), -1 for unknown; or float32 (B, K): zeros and ones for multi-label data, probabilities for soft labels.
    `index_B` is each row's index in the dataset. `epoch` is that of the first image; `position` is the number of images that all
    ranks together have consumed after this batch, and the number to resume from.
    `failed` are images that could not be read: in training each is replaced by another, in evaluation each is left out.
    `masks_BHW` is the class of each pixel, 255 for one that counts for nothing; None unless the pipeline reads masks.
    `boxes_BM6` are the boxes of each image as `vitlab.data.batch` describes them; None unless the pipeline moves boxes.
    """

    images_BHWC: Pixels
    labels: NDArray[np.int64] | NDArray[np.float32]
    index_B: Indices
    epoch: int
    position: int
    failed: tuple[Failure, ...] = ()
    masks_BHW: Pixels | None = None
    boxes_BM6: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.index_B)

    @property
    def targets(self) -> NDArray[np.int64] | NDArray[np.float32] | Pixels:
        """What a task learns from: the labels, or the masks or boxes where there are some."""
        if self.boxes_BM6 is not None:
            return self.boxes_BM6
        return self.labels if self.masks_BHW is None else self.masks_BHW

    @property
    def n_replaced(self) -> int:
        """Rows that hold a replacement."""
        return sum(failure.replaced_by is not None for failure in self.failed)

    @property
    def n_failed(self) -> int:
        """Images without a row; evaluation counts them in its denominator."""
        return len(self.failed) - self.n_replaced

    @property
    def n_asked(self) -> int:
        """Images that were requested: the rows and those left out."""
        return len(self) + self.n_failed


@dataclass(frozen=True, slots=True, kw_only=True)
class FatalError:
    """An error that cannot be skipped: a bug in a transform or dataset, no replacement for an image, or no memory. Picklable."""

    message: str
    hint: str | None = None
    traceback: str | None = None
    no_memory: bool = False

    def error(self) -> DataError | MemoryError:
        """The error to raise, with the worker's traceback as its cause."""
        error = MemoryError(self.message) if self.no_memory else DataError(self.message, hint=self.hint)
        if self.traceback is not None:
            error.__cause__ = WorkerTraceback(self.traceback)
        return error


class WorkerTraceback(Exception):  # noqa: N818 (it is shown, never raised)
    """A worker's traceback as text, because frames cannot be pickled."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(slots=True, kw_only=True)
class Report:
    """The result of filling consecutive rows: the index and label of each, failures, and what stopped it early.

    `frames` says where each image lies in its row, None if the transform does not say.
    """

    index: list[int] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    frames: list[Frame | None] = field(default_factory=list)
    failures: list[tuple[int, Failure]] = field(default_factory=list)  # with the row, counted from the report's first
    fatal: FatalError | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filler:
    """Reads and transforms images into rows of a batch. Picklable if its dataset and transform are.

    `shape` is (height, width, channels). `replace` puts another image in the place of one that cannot be read; without it the
    row is left as it is. `skip` continues after such an image; without it the first one ends the report.
    """

    dataset: Dataset
    transform: Transform
    shape: tuple[int, int, int]
    seed: int
    replace: bool
    skip: bool

    def expect(self, picks: Picks) -> None:
        """Begin to read these rows, if they are on a server; `fill` will ask for them."""
        if isinstance(self.dataset, ImageDataset):
            self.dataset.expect(picks.index_B.tolist())

    def fill(self, picks: Picks, images_BHWC: Pixels, on_image: OnImage) -> Report:
        """Fill the rows of `images_BHWC`. Errors are in the report; only an interrupt is raised."""
        report = Report()
        on_image = _Current(on_image)
        try:
            if isinstance(self.dataset, BatchReadable):
                return self._fill_at_once(self.dataset, picks, images_BHWC, on_image)
            for row in range(len(picks)):
                if not self._fill_row(picks, row, images_BHWC, on_image, report):
                    break
        except Exception as error:  # noqa: BLE001 (any error must reach the caller, with the image's name)
            report.fatal = FatalError(
                message=f"{printable(on_image.name)}: {_described(error)}",
                hint=error.hint
                if isinstance(error, VitlabError)
                else "this is a bug in the transform or the dataset, not a broken image",
                traceback=traceback.format_exc(),
                no_memory=is_out_of_memory(error),
            )
        return report

    def _fill_row(self, picks: Picks, row: int, images_BHWC: Pixels, on_image: _Current, report: Report) -> bool:
        index, epoch, repeat = int(picks.index_B[row]), int(picks.epoch_B[row]), int(picks.repeat_B[row])
        rng = rng_of(self.seed, epoch, index, repeat=repeat)
        found = self._read(index, rng, images_BHWC[row], on_image)
        if not isinstance(found, Failure):
            _append(report, index, *found)
            return True
        if not self.replace or not self.skip:
            _append(report, index, None, None)
            report.failures.append((row, found))
            return self.skip
        for attempt in range(_SUBSTITUTES):
            other = substitute(self.seed, epoch, index, attempt, length=len(self.dataset))
            # The row keeps its random generator, so the replacement differs from its own appearance in this epoch.
            instead = self._read(other, rng_of(self.seed, epoch, index, repeat=repeat), images_BHWC[row], on_image)
            if not isinstance(instead, Failure):
                _append(report, other, *instead)
                report.failures.append((row, _replaced(found, other)))
                return True
        report.fatal = FatalError(
            message=f"{found}; and none of {_SUBSTITUTES} replacements could be read, the last: {instead}",
            hint="`vitlab data check` lists what is wrong; is the disk or archive with the images still available?",
        )
        return False

    def _fill_at_once(self, dataset: BatchReadable, picks: Picks, images_BHWC: Pixels, on_image: OnImage) -> Report:
        """As `fill`, for images that are drawn and cannot be broken."""
        report = Report()
        if len(picks):
            on_image(int(picks.index_B[0]), f"image {picks.index_B[0]} and its batch")
        for row, pixels_HWC in enumerate(dataset.images(picks.index_B) if len(picks) else ()):
            index, epoch, repeat = int(picks.index_B[row]), int(picks.epoch_B[row]), int(picks.repeat_B[row])
            on_image(index, f"image {index}")
            sample = RawSample(name=f"image {index}", content=pixels_HWC, label=self.dataset.label(index))
            images_BHWC[row], frame = self._checked(self.transform(sample, rng_of(self.seed, epoch, index, repeat=repeat)))
            _append(report, index, sample.label, frame)
        return report

    def _read(
        self, index: int, rng: np.random.Generator, out_HWC: Pixels, on_image: _Current
    ) -> tuple[Label, Frame | None] | Failure:
        on_image(index, f"image {index}")
        try:
            sample = self.dataset.read(index)
            on_image(index, sample.name)
            made = self.transform(sample, rng)
        except (DataError, OSError) as error:
            reason = error.message if isinstance(error, DataError) else _described(error)
            return Failure(index=index, name=on_image.name, reason=reason)
        out_HWC[...], frame = self._checked(made)
        return sample.label, frame

    def _checked(self, made: Pixels | Framed) -> tuple[Pixels, Frame | None]:
        image_HWC, frame = made if isinstance(made, Framed) else (made, None)
        if image_HWC.shape != self.shape or image_HWC.dtype != np.uint8:
            raise DataError(
                f"the transform returned {_size(image_HWC.shape)} of {image_HWC.dtype}, but the pipeline's shape is"
                f" {_size(self.shape)} of uint8",
                hint="set the pipeline's shape to the transform's output: height, width, channels",
            )
        return image_HWC, frame


def _append(report: Report, index: int, label: Label, frame: Frame | None) -> None:
    report.index.append(index)
    report.labels.append(label)
    report.frames.append(frame)


class _Current:
    """Forwards the calls, and remembers the last name."""

    __slots__ = ("_on_image", "name")

    def __init__(self, on_image: OnImage) -> None:
        self._on_image = on_image
        self.name = "no image yet"

    def __call__(self, index: int, name: str) -> None:
        self.name = name
        self._on_image(index, name)


def label_array(labels: Sequence[Label], classes: int, *, multi_label: bool) -> NDArray[np.int64] | NDArray[np.float32]:
    """Labels as in a batch: int64 (B,) with -1 for unknown, or float32 (B, K) of zeros and ones."""
    if not multi_label:
        return np.array([UNKNOWN if label is None else label for label in labels], np.int64)
    hot_BK = np.zeros((len(labels), classes), np.float32)
    for row, label in enumerate(labels):
        hot_BK[row, [] if label is None else label] = 1
    return hot_BK


def _replaced(failure: Failure, other: int) -> Failure:
    return Failure(index=failure.index, name=failure.name, reason=failure.reason, replaced_by=other)


def _described(error: Exception) -> str:
    text = error.message if isinstance(error, VitlabError) else str(error)
    return text if isinstance(error, VitlabError) else f"{type(error).__name__}: {text}" if text else type(error).__name__


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
