"""From picks to a batch: read, view, and say what could not be read. The same code runs in the caller and in every worker.

Axes: B rows of a batch, H height, W width, C channels; K classes.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import UNKNOWN, Label
from vitlab.data.sampler import Indices, Picks, rng_of, substitute
from vitlab.errors import ConfigError, DataError, VitlabError
from vitlab.io.names import printable

if TYPE_CHECKING:
    from vitlab.data.dataset import Dataset, Sample


Pixels = NDArray[np.uint8]
View = Callable[["Sample", np.random.Generator], Pixels]
"""From an image as its source gives it, and the image's own randomness, to uint8 pixels of the loader's shape."""

Decode = Callable[["Sample"], Pixels]
"""From an image as its source gives it to all its pixels, uint8 (H, W, C)."""


@runtime_checkable
class InBulk(Protocol):
    """A source that makes many images at once, the same bits as one by one but much faster."""

    def images(self, indices: Indices) -> Pixels:
        """The pixels of these images, uint8 (B, H, W, C)."""
        ...


Telling = Callable[[int, str], None]
"""Told the index of each image before it is read, and again with its name once that is known."""

_SUBSTITUTES = 8  # that fail one after the other before something larger than an image must be broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """How an image becomes pixels.

    `view` makes pixels of `shape` (height, width, channels). `decode`, where decoded images may be kept, gives all pixels of
    an image, to be viewed in its place; `settings` is text that changes whenever what it gives does.
    """

    view: View
    shape: tuple[int, int, int]
    decode: Decode | None = None
    settings: str = ""

    def __post_init__(self) -> None:
        if min(self.shape) < 1:
            raise ConfigError(f"shape={self.shape} must be a height, a width and a number of channels, each at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An image that could not be read, and why; `replaced_by` is the index of the one in its place, None where it is left out."""

    index: int
    name: str
    reason: str
    replaced_by: int | None = None

    def __str__(self) -> str:
        return self.reason if self.name in self.reason else f"{printable(self.name)}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Images ready for the device, this rank's part of a step.

    `labels` is int64 (B,), -1 where unknown, or float32 (B, K): of zeros and ones where an image may have several classes, of
    shares that add up to 1 where labels are soft.
    `index_B` is each row's index in the source. `epoch` is that of the step's first image; `position` is where the step
    ends: the number of images that all ranks together have then consumed, and the number to resume from.
    `failed` are the images that could not be read: in training each was replaced, in evaluation each is missing from the rows.
    """

    images_BHWC: Pixels
    labels: NDArray[np.int64] | NDArray[np.float32]
    index_B: Indices
    epoch: int
    position: int
    failed: tuple[Failure, ...] = ()

    def __len__(self) -> int:
        return len(self.index_B)

    @property
    def n_replaced(self) -> int:
        """Rows that hold another image than the one it was the turn of."""
        return sum(failure.replaced_by is not None for failure in self.failed)

    @property
    def n_failed(self) -> int:
        """Images without a row: what evaluation must add to its denominator."""
        return len(self.failed) - self.n_replaced

    @property
    def n_asked(self) -> int:
        """Images whose turn it was: rows and those left out."""
        return len(self) + self.n_failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What no policy can skip: a mistake in a view or a source, or nothing left to put in an image's place."""

    message: str
    hint: str | None = None
    traceback: str | None = None

    def error(self) -> DataError:
        """As an error to raise, with the worker's traceback as its cause."""
        error = DataError(self.message, hint=self.hint)
        if self.traceback is not None:
            error.__cause__ = WorkerTraceback(self.traceback)
        return error


class WorkerTraceback(Exception):  # noqa: N818 (it is shown, never raised)
    """Where in a worker it went wrong, as text: frames do not travel between processes."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(slots=True, kw_only=True)
class Report:
    """What became of consecutive rows: the index and label in each, which failed, and what stopped it early."""

    index: list[int] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    failures: list[tuple[int, Failure]] = field(default_factory=list)  # with the row, from the report's first
    trouble: Trouble | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filler:
    """Reads and views images into rows. Picklable where its source and view are.

    `shape` is (height, width, channels) of every view. `replace` puts another image in the place of one that cannot be
    read; without it the row is left as it is. `patient` goes on after such an image, else the first ends the report.
    """

    dataset: Dataset
    view: View
    shape: tuple[int, int, int]
    seed: int
    replace: bool
    patient: bool

    def fill(self, picks: Picks, images_BHWC: Pixels, telling: Telling) -> Report:
        """Fill the rows of `images_BHWC`; never raises but for an interrupt: what went wrong is in the report."""
        report = Report()
        telling = _Remembering(telling)
        try:
            if isinstance(self.dataset, InBulk):
                return self._fill_in_bulk(self.dataset, picks, images_BHWC, telling)
            for row in range(len(picks)):
                if not self._fill_row(picks, row, images_BHWC, telling, report):
                    break
        except Exception as error:  # noqa: BLE001 (whatever it is must reach the caller, with the image's name)
            report.trouble = Trouble(
                message=f"{printable(telling.name)}: {_said(error)}",
                hint=error.hint
                if isinstance(error, VitlabError)
                else "this is a mistake in the view or the source, not in the image",
                traceback=traceback.format_exc(),
            )
        return report

    def _fill_row(self, picks: Picks, row: int, images_BHWC: Pixels, telling: _Remembering, report: Report) -> bool:
        index, epoch, repeat = int(picks.index_B[row]), int(picks.epoch_B[row]), int(picks.repeat_B[row])
        rng = rng_of(self.seed, epoch, index, repeat=repeat)
        found = self._read(index, rng, images_BHWC[row], telling)
        if not isinstance(found, Failure):
            report.index.append(index)
            report.labels.append(found[0])
            return True
        if not self.replace or not self.patient:
            report.index.append(index)
            report.labels.append(None)
            report.failures.append((row, found))
            return self.patient
        for attempt in range(_SUBSTITUTES):
            other = substitute(self.seed, epoch, index, attempt, length=len(self.dataset))
            # The place keeps its randomness, so the image is not shown as in its own place of this epoch.
            instead = self._read(other, rng_of(self.seed, epoch, index, repeat=repeat), images_BHWC[row], telling)
            if not isinstance(instead, Failure):
                report.index.append(other)
                report.labels.append(instead[0])
                report.failures.append((row, _replaced(found, other)))
                return True
        report.trouble = Trouble(
            message=f"{found}; and none of {_SUBSTITUTES} images tried in its place could be read, the last: {instead}",
            hint="is the disk or archive that holds the images still there?",
        )
        return False

    def _fill_in_bulk(self, dataset: InBulk, picks: Picks, images_BHWC: Pixels, telling: Telling) -> Report:
        """As `fill`; made rather than read, no image can be corrupt."""
        from vitlab.data.dataset import Sample

        report = Report()
        if len(picks):
            telling(int(picks.index_B[0]), f"image {picks.index_B[0]} and those with it")
        for row, pixels_HWC in enumerate(dataset.images(picks.index_B) if len(picks) else ()):
            index, epoch, repeat = int(picks.index_B[row]), int(picks.epoch_B[row]), int(picks.repeat_B[row])
            telling(index, f"image {index}")
            sample = Sample(name=f"image {index}", content=pixels_HWC, label=self.dataset.label(index))
            images_BHWC[row] = self._checked(self.view(sample, rng_of(self.seed, epoch, index, repeat=repeat)))
            report.index.append(index)
            report.labels.append(sample.label)
        return report

    def _read(self, index: int, rng: np.random.Generator, out_HWC: Pixels, telling: _Remembering) -> tuple[Label] | Failure:
        telling(index, f"image {index}")
        try:
            sample = self.dataset[index]
            telling(index, sample.name)
            seen_HWC = self.view(sample, rng)
        except (DataError, OSError) as error:
            reason = error.message if isinstance(error, DataError) else _said(error)
            return Failure(index=index, name=telling.name, reason=reason)
        out_HWC[...] = self._checked(seen_HWC)
        return (sample.label,)

    def _checked(self, seen_HWC: Pixels) -> Pixels:
        if seen_HWC.shape != self.shape or seen_HWC.dtype != np.uint8:
            raise DataError(
                f"the view gave {_size(seen_HWC.shape)} of {seen_HWC.dtype}, the loader was promised {_size(self.shape)} of uint8",
                hint="give the loader the shape that the view makes: height, width, channels",
            )
        return seen_HWC


class _Remembering:
    """Passes on what it is told, and remembers the last name."""

    __slots__ = ("_telling", "name")

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        self.name = "no image yet"

    def __call__(self, index: int, name: str) -> None:
        self.name = name
        self._telling(index, name)


def label_array(labels: Sequence[Label], classes: int, *, multi_label: bool) -> NDArray[np.int64] | NDArray[np.float32]:
    """Labels as a batch holds them: int64 (B,) with -1 for unknown, or float32 (B, K) of zeros and ones."""
    if not multi_label:
        return np.array([UNKNOWN if label is None else label for label in labels], np.int64)
    hot_BK = np.zeros((len(labels), classes), np.float32)
    for row, label in enumerate(labels):
        hot_BK[row, [] if label is None else label] = 1
    return hot_BK


def _replaced(failure: Failure, other: int) -> Failure:
    return Failure(index=failure.index, name=failure.name, reason=failure.reason, replaced_by=other)


def _said(error: Exception) -> str:
    text = error.message if isinstance(error, VitlabError) else str(error)
    return text if isinstance(error, VitlabError) else f"{type(error).__name__}: {text}" if text else type(error).__name__


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
