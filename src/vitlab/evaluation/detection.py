"""Evaluate a detector on images with boxes, in pixels of each image: AP, AP50, AP75, AP by the size of objects, AP of each class.

Axes: C classes of the model, D found objects, M wanted objects, N images.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import CorruptPolicy
from vitlab.data.batch import areas, inside_image
from vitlab.data.dataset import ImageBoxes, ImageDataset, align_labels
from vitlab.errors import DataError
from vitlab.evaluation.evaluation import known, named_images, percent, unless_skipped, write_lines
from vitlab.inference.detections import DetectedImage, Detector
from vitlab.inference.results import Unreadable
from vitlab.io.display import Block, Displayed, ProgressCallback, silent
from vitlab.objective.metrics import AveragePrecision, DetectionScores, FoundBoxes, WantedBoxes, box_iou

LEAST = 0.01
"""Score below which a found object is not evaluated: it could only follow all others."""

_DIGITS = 1  # of a percentage in a table
_RESAMPLES = 200
_MOST_RESAMPLED = 2_000_000  # found objects; beyond, no interval is computed


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxScore:
    """How well the objects of one image were found: the mean, over its objects, of the IoU with the best found box of the class.

    An object that is not found counts 0, and so does each false box with a score above 0.5; `iou` is 1 for an image without
    objects in which nothing is found.
    """

    index: int
    name: str
    wanted: int
    found: int
    iou: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DetectionEvaluation(Displayed):
    """The evaluation of a detector, with COCO's numbers. `interval` is the 95 % interval of AP50, by resampling images.

    `by_size` has the AP of small (up to 32 x 32 pixels of the image), medium and large (from 96 x 96) objects. `failures` are
    images that could not be read, which count for nothing.
    """

    model: str
    data: str
    labels: tuple[str, ...]
    precision: AveragePrecision
    by_size: dict[str, float]
    objects: tuple[int, ...]
    images: tuple[BoxScore, ...]
    interval: tuple[float, float] | None
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ap(self) -> float:
        """AP over IoUs from 0.5 to 0.95, from 0 to 1."""
        return self.precision.ap

    @property
    def ap50(self) -> float:
        """AP at an IoU of 0.5, from 0 to 1."""
        return self.precision.ap50

    @property
    def ap75(self) -> float:
        """AP at an IoU of 0.75, from 0 to 1."""
        return self.precision.ap75

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics by name."""
        sizes = {f"ap_{size}": value for size, value in self.by_size.items()}
        return {"ap": self.ap, "ap50": self.ap50, "ap75": self.ap75, **sizes}

    def class_rows(self) -> list[dict[str, Any]]:
        """AP, AP50, AP75 and the number of objects of each class, the lowest AP first."""
        rows = [
            {
                "class": label,
                "ap": known(float(self.precision.by_class_CT[code].mean())),
                "ap50": known(float(self.precision.by_class_CT[code, 0])),
                "ap75": known(float(self.precision.by_class_CT[code, 5])),
                "objects": self.objects[code],
            }
            for code, label in enumerate(self.labels)
        ]
        return sorted(rows, key=lambda row: (row["ap"] is None, row["ap"] or 0.0))

    def tables(self) -> Iterable[Block]:
        """The metrics, then each class."""
        facts: dict[str, Any] = {
            "model": self.model,
            "data": self.data,
            "images": len(self.images),
            "objects": sum(self.objects),
            "AP": percent(self.ap, _DIGITS),
            "AP50": percent(self.ap50, _DIGITS, self.interval),
            "AP75": percent(self.ap75, _DIGITS),
            "AP_small_medium_large": ", ".join(percent(value, _DIGITS) for value in self.by_size.values()),
        }
        if self.failures:
            facts["unreadable"] = len(self.failures)
        yield facts
        yield [
            {
                "class": row["class"],
                "AP": percent(row["ap"], _DIGITS),
                "AP50": percent(row["ap50"], _DIGITS),
                "AP75": percent(row["ap75"], _DIGITS),
                "objects": f"{row['objects']:,}",
            }
            for row in self.class_rows()
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain values; null for what has no object."""
        return {
            "model": self.model,
            "data": self.data,
            "images": len(self.images),
            "objects": sum(self.objects),
            "metrics": {name: known(value) for name, value in self.metrics.items()},
            "ap50_interval": None if self.interval is None else list(self.interval),
            "classes": self.class_rows(),
            "unreadable": list(self.failures),
            "notes": list(self.notes),
        }

    def write_per_image(self, path: Path) -> None:
        """A CSV line for each image: its name, wanted and found objects, and their mean IoU."""
        rows = ((score.name, (str(score.wanted), str(score.found), f"{score.iou:.4f}")) for score in self.images)
        write_lines(path, ("image", "wanted", "found", "mean_iou"), rows)


def evaluate_detection(
    dataset: ImageDataset,
    *,
    detector: Detector,
    model: str,
    data: str,
    subset: bool = False,
    corrupt: CorruptPolicy = "fail",
    notes: tuple[str, ...] = (),
    progress: ProgressCallback = silent,
) -> DetectionEvaluation:
    """Find the objects of each image and compare them with its boxes; with `subset`, classes are matched by name.

    `detector` has a threshold of at most LEAST.
    """
    if dataset.boxes is None:
        raise DataError(
            f"{data} has no boxes, and this model is an object detector", hint="boxes.csv, COCO's JSON or VOC's XML; or boxes:PATH"
        )
    code_of_C = np.array(align_labels(dataset.labels, detector.labels, reorder=subset), np.int64)
    number_of = {label: number for number, label in enumerate(detector.labels)}
    scores = DetectionScores(len(detector.labels), sizes=("small", "medium", "large"))
    each: list[BoxScore] = []
    failures: list[str] = []
    progress("detecting", 0, len(dataset))
    for index, found in enumerate(detector.stream(named_images(dataset))):
        progress("detecting", index + 1, len(dataset))
        if isinstance(found, Unreadable):
            failures.append(unless_skipped(str(found), corrupt))
            continue
        boxes, wanted = _found(found, number_of), _wanted(dataset.boxes[index], found.size, code_of_C)
        scores.add(boxes, wanted)
        each.append(_image_score(index, found.name, boxes, wanted))
    if not each:
        raise DataError(f"none of {len(failures):,} images could be read; the first: {failures[0]}")
    return DetectionEvaluation(
        model=model,
        data=data,
        labels=detector.labels,
        precision=scores.of_size(),
        by_size={size: scores.of_size(size).ap for size in ("small", "medium", "large")},
        objects=tuple(scores.wanted(code) for code in range(len(detector.labels))),
        images=tuple(each),
        interval=_interval(scores),
        failures=tuple(failures),
        notes=notes,
    )


def _found(image: DetectedImage, number_of: dict[str, int]) -> FoundBoxes:
    return FoundBoxes(
        corners_D4=np.array([(one.x, one.y, one.x + one.width, one.y + one.height) for one in image.boxes]).reshape(-1, 4),
        scores_D=np.array([one.score for one in image.boxes], np.float64),
        codes_D=np.array([number_of[one.label] for one in image.boxes], np.int64),
    )


def _wanted(boxes: ImageBoxes, size: tuple[int, int], code_of_C: NDArray[np.int64]) -> WantedBoxes:
    """The boxes of an image, cut at its edges, in the model's classes; those without area are left out."""
    corners_M4 = inside_image(boxes, size)
    kept_M = areas(corners_M4) > 0
    return WantedBoxes(
        corners_M4=corners_M4[kept_M],
        codes_M=code_of_C[boxes.codes_M[kept_M]],
        ignored_M=boxes.ignored_M[kept_M],
        areas_M=boxes.areas_M[kept_M],
    )


def _image_score(index: int, name: str, found: FoundBoxes, wanted: WantedBoxes) -> BoxScore:
    counted_M = ~wanted.ignored_M
    iou_DM = box_iou(found.corners_D4, wanted.corners_M4) * (found.codes_D[:, None] == wanted.codes_M[None])
    sure_D = found.scores_D > 0.5
    best_M = iou_DM.max(0, initial=0.0)[counted_M]
    false = int((sure_D & (iou_DM.max(1, initial=0.0) < 0.5)).sum())
    total = int(counted_M.sum()) + false
    iou = float(best_M.sum() / total) if total else 1.0
    return BoxScore(index=index, name=name, wanted=int(counted_M.sum()), found=int(sure_D.sum()), iou=iou)


def _interval(scores: DetectionScores) -> tuple[float, float] | None:
    """The 95 % interval of AP50, by resampling images with replacement."""
    if scores.images < 2 or scores.found > _MOST_RESAMPLED:
        return None
    rng = np.random.default_rng(0)
    found = [
        scores.of_size(weights_I=np.bincount(rng.integers(0, scores.images, scores.images), minlength=scores.images).astype(float))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.nanquantile([one.ap50 for one in found], [0.025, 0.975])
    return float(low), float(high)
