"""Average precision of detectors, as COCO defines it: AP over ten IoUs, AP50, AP75, AP by the size of objects, AP of each class.

The numbers equal those of COCO's own evaluation (pycocotools); a test in tests/peer compares both. Found objects are sorted by
score and matched with wanted ones greedily: each takes the one of its class in its image that it overlaps most and that no better
one has taken. What matches an ignored object counts for nothing.

Axes: D found objects, M wanted objects, T thresholds of IoU, R recalls, C classes, I images; 4 left, top, right, bottom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Size = Literal["all", "small", "medium", "large"]

THRESHOLDS_T: Floats = np.linspace(0.5, 0.95, 10)
RECALLS_R: Floats = np.linspace(0, 1, 101)
SIZES: dict[Size, tuple[float, float]] = {
    "all": (0, 1e10),
    "small": (0, 32**2),
    "medium": (32**2, 96**2),
    "large": (96**2, 1e10),
}
"""Areas in pixels of the image, both ends included."""

MOST_FOUND = 100
"""Objects of one class in one image that count, the best ones."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundBoxes:
    """What a detector found in one image: boxes, their scores and classes."""

    corners_D4: Floats
    scores_D: Floats
    codes_D: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WantedBoxes:
    """What there is to find in one image; `ignored_M` counts for nothing, and may be matched by any number of found objects.

    `areas_M` are those by which objects are small, medium or large.
    """

    corners_M4: Floats
    codes_M: NDArray[np.int64]
    ignored_M: NDArray[np.bool_]
    areas_M: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matches:
    """How the found objects of one class in one image were matched, best first: (T, D) right, and counting for nothing."""

    image: int
    scores_D: Floats
    right_TD: NDArray[np.bool_]
    ignored_TD: NDArray[np.bool_]
    wanted: int


def box_iou(found_D4: Floats, wanted_M4: Floats, ignored_M: NDArray[np.bool_] | None = None) -> Floats:
    """Intersection over union of each two boxes, (D, M); over the found box's own area where the wanted one is ignored."""
    low_DM2 = np.maximum(found_D4[:, None, :2], wanted_M4[None, :, :2])
    high_DM2 = np.minimum(found_D4[:, None, 2:], wanted_M4[None, :, 2:])
    shared_DM = (high_DM2 - low_DM2).clip(0).prod(2)
    own_D1 = (found_D4[:, 2:] - found_D4[:, :2]).clip(0).prod(1)[:, None]
    other_1M = (wanted_M4[:, 2:] - wanted_M4[:, :2]).clip(0).prod(1)[None]
    union_DM = own_D1 + other_1M - shared_DM
    if ignored_M is not None:
        union_DM = np.where(ignored_M[None], own_D1, union_DM)
    return np.where(union_DM > 0, shared_DM / np.where(union_DM > 0, union_DM, 1), 0.0)


def match_class(found: FoundBoxes, wanted: WantedBoxes, code: int, *, size: Size = "all", image: int = 0) -> Matches:
    """Match what was found of one class in one image with what there is to find."""
    of_class = np.flatnonzero(found.codes_D == code)
    order = of_class[np.argsort(-found.scores_D[of_class], kind="stable")][:MOST_FOUND]
    corners_D4 = found.corners_D4[order]
    mine = np.flatnonzero(wanted.codes_M == code)
    low, high = SIZES[size]
    left_out_M = wanted.ignored_M[mine] | (wanted.areas_M[mine] < low) | (wanted.areas_M[mine] > high)
    iou_DM = box_iou(corners_D4, wanted.corners_M4[mine], wanted.ignored_M[mine])
    right_TD, ignored_TD = _greedy(iou_DM, left_out_M, wanted.ignored_M[mine])
    areas_D = (corners_D4[:, 2:] - corners_D4[:, :2]).clip(0).prod(1)
    outside_D = (areas_D < low) | (areas_D > high)
    ignored_TD |= ~right_TD & outside_D[None]
    return Matches(
        image=image,
        scores_D=found.scores_D[order],
        right_TD=right_TD & ~ignored_TD,
        ignored_TD=ignored_TD,
        wanted=int((~left_out_M).sum()),
    )


def _greedy(
    iou_DM: Floats, left_out_M: NDArray[np.bool_], shared_M: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(T, D) whether a found object is matched at all, and whether with one that is left out; ignored ones are shared by many."""
    thresholds_T1, found = THRESHOLDS_T[:, None], len(iou_DM)
    matched_TD, ignored_TD = np.zeros((2, len(THRESHOLDS_T), found), np.bool_)
    if not iou_DM.shape[1]:
        return matched_TD, ignored_TD
    taken_TM = np.zeros((len(THRESHOLDS_T), iou_DM.shape[1]), np.bool_)
    every_T = np.arange(len(THRESHOLDS_T))
    for number in np.flatnonzero(iou_DM.max(1) >= THRESHOLDS_T[0] - 1e-9).tolist():
        near_TM = (iou_DM[number][None] >= np.minimum(thresholds_T1, 1 - 1e-10)) & (~taken_TM | shared_M[None])
        counted_TM = near_TM & ~left_out_M[None]
        # One that counts goes before one that is left out, and of equal overlaps the last.
        choice_TM = np.where(counted_TM.any(1, keepdims=True), counted_TM, near_TM)
        overlap_TM = np.where(choice_TM, iou_DM[number][None], -1.0)
        best_T = overlap_TM.shape[1] - 1 - overlap_TM[:, ::-1].argmax(1)
        any_T = choice_TM.any(1)
        matched_TD[:, number] = any_T
        ignored_TD[:, number] = any_T & left_out_M[best_T]
        taken_TM[every_T[any_T], best_T[any_T]] = True
    return matched_TD, ignored_TD


def precision_at_recalls(matches: Sequence[Matches], weights_I: Floats | None = None) -> Floats | None:
    """Precision (T, R) of one class over images at 101 recalls, each the best at that recall or a higher one; None without objects.

    `weights_I` counts each image so many times, for resampling.
    """
    wanted = sum(one.wanted * (1.0 if weights_I is None else weights_I[one.image]) for one in matches)
    if not wanted:
        return None
    scores_D = np.concatenate([one.scores_D for one in matches])
    order = np.argsort(-scores_D, kind="stable")
    right_TD = np.concatenate([one.right_TD for one in matches], axis=1)[:, order]
    counted_TD = ~np.concatenate([one.ignored_TD for one in matches], axis=1)[:, order]
    if weights_I is None:
        times_D = np.ones(len(order))
    else:
        times_D = np.concatenate([np.full(len(one.scores_D), weights_I[one.image]) for one in matches])[order]
    tp_TD = np.cumsum(right_TD * times_D, axis=1)
    both_TD = np.cumsum(counted_TD * times_D, axis=1)
    recall_TD = tp_TD / wanted
    precision_TD = tp_TD / (both_TD + np.spacing(1))
    best_TD = np.maximum.accumulate(precision_TD[:, ::-1], axis=1)[:, ::-1]
    precision_TR = np.zeros((len(THRESHOLDS_T), len(RECALLS_R)))
    for row in range(len(THRESHOLDS_T)):
        places_R = np.searchsorted(recall_TD[row], RECALLS_R, side="left")
        reached_R = places_R < best_TD.shape[1]
        precision_TR[row, reached_R] = best_TD[row, places_R[reached_R]]
    return precision_TR


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AveragePrecision:
    """AP of each class at each IoU, (C, T), nan for a class without objects; and its means."""

    by_class_CT: Floats

    @property
    def ap(self) -> float:
        """The mean over classes and the ten IoUs from 0.5 to 0.95; nan without objects."""
        return _mean(self.by_class_CT)

    @property
    def ap50(self) -> float:
        """The mean over classes at an IoU of 0.5."""
        return _mean(self.by_class_CT[:, 0])

    @property
    def ap75(self) -> float:
        """The mean over classes at an IoU of 0.75."""
        return _mean(self.by_class_CT[:, 5])


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


class DetectionScores:
    """Collects what was found and wanted in images, one after the other, and computes average precision.

    `sizes` are those of objects that are asked for: "all" is always among them.
    """

    def __init__(self, classes: int, *, sizes: Sequence[Size] = ("all",)) -> None:
        self.classes = classes
        self.sizes = tuple(dict.fromkeys(("all", *sizes)))
        self.images = 0
        self._matches: dict[tuple[Size, int], list[Matches]] = {(size, code): [] for size in self.sizes for code in range(classes)}

    def add(self, found: FoundBoxes, wanted: WantedBoxes) -> None:
        """Add an image; images are counted from 0 in the order in which they are added."""
        for code in np.union1d(found.codes_D, wanted.codes_M).tolist():
            for size in self.sizes:
                self._matches[size, code].append(match_class(found, wanted, code, size=size, image=self.images))
        self.images += 1

    def extend(self, other: DetectionScores) -> None:
        """Add the images of another collection after those of this one."""
        for key, found in other._matches.items():
            self._matches[key] += [
                Matches(
                    image=one.image + self.images,
                    scores_D=one.scores_D,
                    right_TD=one.right_TD,
                    ignored_TD=one.ignored_TD,
                    wanted=one.wanted,
                )
                for one in found
            ]
        self.images += other.images

    def of_size(self, size: Size = "all", weights_I: Floats | None = None) -> AveragePrecision:
        """Average precision over the objects of a size; `weights_I` counts each image so many times."""
        by_class_CT = np.full((self.classes, len(THRESHOLDS_T)), np.nan)
        for code in range(self.classes):
            matches = self._matches[size, code]
            precision_TR = precision_at_recalls(matches, weights_I) if matches else None
            if precision_TR is not None:
                by_class_CT[code] = precision_TR.mean(1)
        return AveragePrecision(by_class_CT=by_class_CT)

    def wanted(self, code: int) -> int:
        """Objects of a class that count."""
        return sum(one.wanted for one in self._matches["all", code])

    @property
    def found(self) -> int:
        """Found objects that were matched or not, over all classes."""
        return sum(len(one.scores_D) for code in range(self.classes) for one in self._matches["all", code])
