"""Evaluate a segmenter on images with masks, at each image's own size: IoU by class, pixel accuracy, boundary F.

Axes: C classes of the model, H W pixels, N images, R resamples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import CorruptPolicy, DecodeLimits
from vitlab.data.dataset import IGNORED, ImageDataset, Pixels, align_labels
from vitlab.errors import DataError
from vitlab.evaluation.evaluation import known, named_images, percent, unless_skipped, write_lines
from vitlab.inference.results import Unreadable
from vitlab.inference.segmentation import MaskPrediction, SegmentPredictor
from vitlab.io.display import Block, Displayed, ProgressCallback, silent
from vitlab.objective.metrics import (
    BoundaryCounts,
    boundary_counts,
    iou_by_class,
    mean_iou,
    pixel_confusion,
)

_DIGITS = 2  # of a percentage in a table
_RESAMPLES = 1000
_MOST_RESAMPLED = 50_000_000  # numbers of all images' confusion matrices; beyond, no interval is computed


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskScore:
    """How well one image was segmented: the mean IoU of the classes in its mask or prediction, and the accuracy of its pixels.

    Both are nan for an image without a pixel that counts.
    """

    index: int
    name: str
    iou: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SegmentationEvaluation(Displayed):
    """The evaluation of a segmenter. Pixels are counted over all images together; ignored pixels count for nothing.

    `confusion_CC` counts pixels (right class, predicted class). `interval` is the 95 % interval of the mean IoU, by resampling
    images. `failures` are images that could not be read, which count for nothing.
    """

    model: str
    data: str
    labels: tuple[str, ...]
    confusion_CC: NDArray[np.int64]
    boundary: BoundaryCounts
    images: tuple[MaskScore, ...]
    interval: tuple[float, float] | None
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def mean_iou(self) -> float:
        """The mean IoU over classes, from 0 to 1."""
        return mean_iou(self.confusion_CC)

    @property
    def pixel_accuracy(self) -> float:
        """The fraction of all pixels that are right, from 0 to 1."""
        return float(np.diag(self.confusion_CC).sum() / max(int(self.confusion_CC.sum()), 1))

    @property
    def boundary_f(self) -> float:
        """The mean boundary F over classes, from 0 to 1; nan where no boundary counts, as in trimaps that ignore it."""
        return self.boundary.f

    @property
    def iou(self) -> dict[str, float]:
        """The IoU of each class, nan for one that does not occur."""
        return dict(zip(self.labels, iou_by_class(self.confusion_CC).tolist(), strict=True))

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics by name."""
        return {"mean_iou": self.mean_iou, "pixel_accuracy": self.pixel_accuracy, "boundary_f": self.boundary_f}

    def class_rows(self) -> list[dict[str, Any]]:
        """IoU, boundary F and the fraction of the pixels of each class, the lowest IoU first."""
        pixels_C, total = self.confusion_CC.sum(1), max(int(self.confusion_CC.sum()), 1)
        rows = [
            {
                "class": label,
                "iou": known(iou),
                "boundary_f": known(float(self.boundary.f_by_class[code])),
                "pixels": float(pixels_C[code] / total),
            }
            for code, (label, iou) in enumerate(self.iou.items())
        ]
        return sorted(rows, key=lambda row: (row["iou"] is None, row["iou"] or 0.0))

    def tables(self) -> Iterable[Block]:
        """The metrics, then each class."""
        facts: dict[str, Any] = {
            "model": self.model,
            "data": self.data,
            "images": len(self.images),
            "mean_IoU": percent(self.mean_iou, _DIGITS, self.interval),
            "pixel_accuracy": percent(self.pixel_accuracy, _DIGITS),
            "boundary_F": percent(self.boundary_f, _DIGITS),
        }
        if self.failures:
            facts["unreadable"] = len(self.failures)
        yield facts
        yield [
            {
                "class": row["class"],
                "IoU": percent(row["iou"], _DIGITS),
                "boundary_F": percent(row["boundary_f"], _DIGITS),
                "pixels": percent(row["pixels"], _DIGITS),
            }
            for row in self.class_rows()
        ]

    def to_json(self) -> dict[str, Any]:
        """Every metric as plain values; what is not a number is null."""
        return {
            "model": self.model,
            "data": self.data,
            "images": len(self.images),
            **{name: known(value) for name, value in self.metrics.items()},
            "mean_iou_interval": None if self.interval is None else list(self.interval),
            "classes": self.class_rows(),
            "confusion": self.confusion_CC.tolist(),
            "failures": list(self.failures),
            "notes": list(self.notes),
        }

    def write_per_image(self, path: Path) -> None:
        """Write a CSV with a line for each image: name, iou, accuracy; empty where no pixel counts."""
        values = ((score.name, (score.iou, score.accuracy)) for score in self.images)
        rows = ((image, ["" if np.isnan(value) else f"{value:.6f}" for value in both]) for image, both in values)
        write_lines(path, ("name", "iou", "accuracy"), rows)


def evaluate_segmentation(
    checkpoint: Checkpoint,
    dataset: ImageDataset,
    *,
    predictor: SegmentPredictor,
    model: str,
    data: str,
    subset: bool = False,
    corrupt: CorruptPolicy = "fail",
    notes: tuple[str, ...] = (),
    progress: ProgressCallback = silent,
) -> SegmentationEvaluation:
    """Evaluate a segmenter on every image of a dataset with masks. `subset` accepts other classes or orders, matched by name."""
    if dataset.masks is None:
        raise DataError(
            f"{data} has no masks, and this model gives each pixel a class", hint="images/ beside masks/, or masks.json"
        )
    code_of = np.full(256, IGNORED, np.uint8)
    code_of[: len(dataset.labels)] = align_labels(dataset.labels, predictor.labels, reorder=subset)
    classes = len(predictor.labels)
    total_CC, boundary = np.zeros((classes, classes), np.int64), BoundaryCounts.none(classes)
    scores: list[MaskScore] = []
    each: list[NDArray[np.int64]] = []
    failures: list[str] = []
    for index, found in enumerate(predictor.stream(named_images(dataset), total=len(dataset), progress=progress)):
        wanted_HW = str(found) if isinstance(found, Unreadable) else _wanted(dataset, index, found, code_of)
        if isinstance(found, Unreadable) or isinstance(wanted_HW, str):
            failures.append(unless_skipped(str(wanted_HW), corrupt))
            continue
        confusion_CC = pixel_confusion(wanted_HW, found.classes_HW, classes)
        total_CC += confusion_CC
        boundary = boundary + boundary_counts(wanted_HW, found.classes_HW, classes)
        each.append(confusion_CC)
        pixels = int(confusion_CC.sum())
        accuracy = float(np.diag(confusion_CC).sum() / pixels) if pixels else float("nan")
        scores.append(MaskScore(index=index, name=found.name, iou=mean_iou(confusion_CC), accuracy=accuracy))
    if not scores:
        raise DataError(f"none of {len(failures):,} images could be read; the first: {failures[0]}")
    return SegmentationEvaluation(
        model=model,
        data=data,
        labels=predictor.labels,
        confusion_CC=total_CC,
        boundary=boundary,
        images=tuple(scores),
        interval=_interval(np.stack(each)),
        failures=tuple(failures),
        notes=notes,
    )


def _wanted(dataset: ImageDataset, index: int, found: MaskPrediction, code_of: NDArray[np.uint8]) -> Pixels | str:
    """The classes of an image's pixels in the model's numbers, or the reason why they cannot be read."""
    assert dataset.masks is not None
    try:
        classes_HW: Pixels = code_of[dataset.masks.read(index).classes(found.classes_HW.shape, limits=DecodeLimits())]
    except DataError as error:
        return error.message
    return classes_HW


def _interval(each_NCC: NDArray[np.int64]) -> tuple[float, float] | None:
    """The 95 % interval of the mean IoU, by resampling images with replacement."""
    images, classes = len(each_NCC), each_NCC.shape[1]
    if images < 2 or images * classes**2 > _MOST_RESAMPLED:
        return None
    rng = np.random.default_rng(0)
    flat = each_NCC.reshape(images, -1).astype(np.float64)
    found = []
    for _ in range(_RESAMPLES):
        times_N = np.bincount(rng.integers(0, images, images), minlength=images)
        found.append(mean_iou((times_N @ flat).reshape(classes, classes).astype(np.int64)))
    low, high = np.nanquantile(found, [0.025, 0.975])
    return float(low), float(high)
