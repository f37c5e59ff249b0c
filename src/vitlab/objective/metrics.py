"""Metrics: of classification (accuracy, calibration, average precision, confidence intervals), of segmentation (IoU, boundary F),
of detection (average precision as COCO defines it). Pure functions of arrays.

The numbers of detection equal those of COCO's own evaluation (pycocotools); a test in tests/peer compares both. Found objects are
sorted by score and matched with wanted ones greedily: each takes the one of its class in its image that it overlaps most and that
no better one has taken. What matches an ignored object counts for nothing.

Axes: N or I images, C classes, K predicted classes, R resamples; H W pixels of a mask. Of detection: D found objects, M wanted
objects, T thresholds of IoU, R recalls; 4 left, top, right, bottom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_AT_ONCE = 1 << 22  # logits converted to double precision at a time, so that 50,000 x 1,000 of them are not copied at once


def log_softmax(logits_NC: NDArray[np.floating]) -> Floats:
    """Logarithms of the probabilities, in double precision; nan for an image with a logit of +inf."""
    wide_NC = np.asarray(logits_NC, np.float64)
    with np.errstate(invalid="ignore"):
        shifted_NC = wide_NC - wide_NC.max(-1, keepdims=True)
    log_NC: Floats = shifted_NC - np.log(np.exp(shifted_NC).sum(-1, keepdims=True))
    return log_NC


def top_classes(logits_NC: NDArray[np.floating], k: int) -> Ints:
    """The k classes with the largest logits, best first; the lower class number first among equals."""
    return np.argsort(-np.asarray(logits_NC), axis=-1, kind="stable")[:, :k].astype(np.int64)


def hits(logits_NC: NDArray[np.floating], labels_N: Ints, k: int = 1) -> Bools:
    """Whether the right class is among the k best, for each image."""
    right_N: Bools = (top_classes(logits_NC, k) == np.asarray(labels_N)[:, None]).any(-1)
    return right_N


def ranks(logits_NC: NDArray[np.floating], labels_N: Ints) -> Ints:
    """How many classes rank above the right one, 0 to C - 1 in the order of `top_classes`; C if a logit is not a number."""
    rank_N = np.empty(len(labels_N), np.int64)
    for rows, logits in _parts(logits_NC):
        right_R1 = np.asarray(labels_N)[rows, None]
        own_R1 = np.take_along_axis(logits, right_R1, 1)
        before = (logits > own_R1) | ((logits == own_R1) & (np.arange(logits.shape[1]) < right_R1))
        rank_N[rows] = np.where(np.isnan(logits).any(1), logits.shape[1], before.sum(1))
    return rank_N


def real_hits(logits_NC: NDArray[np.floating], labels: Sequence[Sequence[int]]) -> Bools:
    """Whether the best class is one of the image's ReaL labels, for images that have any (Beyer et al. 2020)."""
    best_N = top_classes(logits_NC, 1)[:, 0]
    return np.array([int(best) in right for best, right in zip(best_N, labels, strict=True) if len(right)], bool)


def confusion(labels_N: Ints, chosen_N: Ints, classes: int) -> Ints:
    """Counts (right class, predicted class)."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (np.asarray(labels_N), np.asarray(chosen_N)), 1)
    return counts


def per_class_accuracy(confusion_CC: Ints) -> Floats:
    """The accuracy on the images of each class; nan for a class without images."""
    totals_C = confusion_CC.sum(1)
    with np.errstate(invalid="ignore"):
        return np.where(totals_C > 0, np.diag(confusion_CC) / np.maximum(totals_C, 1), np.nan)


def losses(logits_NC: NDArray[np.floating], labels_N: Ints) -> Floats:
    """Minus the log-probability of the right class of each image, in nats."""
    loss_N = np.empty(len(labels_N), np.float64)
    for rows, logits in _parts(logits_NC):
        loss_N[rows] = -np.take_along_axis(log_softmax(logits), np.asarray(labels_N)[rows, None], 1)[:, 0]
    return loss_N


def negative_log_likelihood(logits_NC: NDArray[np.floating], labels_N: Ints) -> float:
    """The mean of `losses`."""
    return float(losses(logits_NC, labels_N).mean())


def sigmoid_losses(logits_NC: NDArray[np.floating], right_NC: NDArray[np.floating] | Bools) -> Floats:
    """For multi-label images: the binary cross-entropy summed over classes, in nats."""
    wide_NC = np.asarray(logits_NC, np.float64)
    with np.errstate(invalid="ignore"):
        each_NC: Floats = np.logaddexp(0, wide_NC) - wide_NC * np.asarray(right_NC, np.float64)
    return np.asarray(each_NC.sum(-1))


def confidences(logits_NC: NDArray[np.floating]) -> Floats:
    """The largest probability of each image."""
    chance_N = np.empty(len(logits_NC), np.float64)
    for rows, logits in _parts(logits_NC):
        chance_N[rows] = np.exp(log_softmax(logits).max(-1))
    return chance_N


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Confidence against accuracy in bins of equal width; `error` is the expected calibration error, 0 to 1."""

    error: float
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    count: tuple[int, ...]


def calibration(logits_NC: NDArray[np.floating], labels_N: Ints, *, bins: int = 15) -> Calibration:
    """Confidence in the predicted class against its accuracy; empty bins are nan."""
    return calibration_of(confidences(logits_NC), ranks(logits_NC, labels_N) == 0, bins=bins)


def calibration_of(chance_N: Floats, right_N: Bools, *, bins: int = 15) -> Calibration:
    """The same from confidences, 0 to 1, and whether each prediction is correct; of a confidence that is nan, so is the error."""
    if not (known_N := np.isfinite(chance_N)).all():
        return replace(calibration_of(chance_N[known_N], right_N[known_N], bins=bins), error=float("nan"))
    bin_N = np.minimum((chance_N * bins).astype(int), bins - 1)
    count = np.bincount(bin_N, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(bin_N, chance_N, minlength=bins) / count
        accuracy = np.bincount(bin_N, right_N, minlength=bins) / count
    full = count > 0
    error = float((np.abs(confidence - accuracy)[full] * count[full]).sum() / max(len(chance_N), 1))
    return Calibration(error=error, confidence=tuple(confidence), accuracy=tuple(accuracy), count=tuple(count.tolist()))


def temperature(logits_NC: NDArray[np.floating], labels_N: Ints) -> float:
    """The temperature that minimises the loss, between 0.01 and 100 (Guo et al. 2017): divide the logits by it."""
    low, high = 0.01, 100.0  # of the inverse temperature, in which the likelihood has a single peak
    inverse = 1.0
    for _ in range(100):
        slope, bend = _slope_and_bend(logits_NC, labels_N, inverse)
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        step = inverse - slope / bend if bend > 0 else low
        following = step if low < step < high else float(np.sqrt(low * high))
        if abs(following - inverse) <= 1e-10 * inverse:
            break
        inverse = following
    return 1 / inverse


def _slope_and_bend(logits_NC: NDArray[np.floating], labels_N: Ints, inverse: float) -> tuple[float, float]:
    """First and second derivative of the summed loss by the inverse temperature."""
    slope = bend = 0.0
    for rows, logits in _parts(logits_NC):
        wide_RC = np.asarray(logits, np.float64)
        wide_RC = wide_RC - wide_RC.max(-1, keepdims=True)
        chance_RC = np.exp(inverse * wide_RC)
        chance_RC /= chance_RC.sum(-1, keepdims=True)
        mean_R = (chance_RC * wide_RC).sum(-1)
        own_R = np.take_along_axis(wide_RC, np.asarray(labels_N)[rows, None], 1)[:, 0]
        slope += float((mean_R - own_R).sum())
        bend += float(((chance_RC * wide_RC**2).sum(-1) - mean_R**2).sum())
    return slope, bend


def proportion_interval(correct: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a proportion by Wilson's score, which also says how little 8 of 8 images prove: 67.6 to 100 %."""
    z_squared = 1.959964**2
    centre = (correct + z_squared / 2) / (total + z_squared)
    half = math.sqrt(z_squared * (correct * (total - correct) / total + z_squared / 4)) / (total + z_squared)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def bootstrap(
    values_N: NDArray[np.floating] | Bools,
    *,
    statistic: Callable[[Floats], Floats] | None = None,
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
) -> tuple[float, float]:
    """The confidence interval of the mean of `values_N` at that level, by resampling images with replacement.

    `statistic` maps resampled values (R, N) to one number each (R,); the mean unless given.
    """
    values_N = np.asarray(values_N, np.float64)
    if not len(values_N):
        raise DataError("there are no images to resample")
    rng = np.random.default_rng(seed)
    of = (lambda drawn_RN: drawn_RN.mean(-1)) if statistic is None else statistic
    rows = max(1, min(resamples, 4_000_000 // len(values_N)))  # resamples at a time, to bound memory
    found: list[Floats] = []
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        found.append(of(values_N[rng.integers(0, len(values_N), (count, len(values_N)))]))
    low, high = np.quantile(np.concatenate(found), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def average_precision(scores_N: NDArray[np.floating], right_N: Bools) -> float:
    """The area under the precision-recall curve of one class, as steps; nan if no image has the class."""
    right_N = np.asarray(right_N, bool)
    if not right_N.any():
        return float("nan")
    order = np.argsort(-np.asarray(scores_N), kind="stable")
    scores, right = np.asarray(scores_N)[order], right_N[order]
    ends = np.append(np.flatnonzero(scores[1:] != scores[:-1]), len(scores) - 1)  # equal scores count together
    found = np.cumsum(right)[ends]
    precision, recall = found / (ends + 1), found / right.sum()
    return float((np.diff(recall, prepend=0.0) * precision).sum())


def roc_auc(scores_N: NDArray[np.floating], right_N: Bools) -> float:
    """The area under the ROC curve of one class: how often a right image scores above a wrong one, equal scores counting half.

    nan if all images are right, or none is.
    """
    right_N = np.asarray(right_N, bool)
    right, wrong = int(right_N.sum()), int((~right_N).sum())
    if not right or not wrong:
        return float("nan")
    _, place_N, count = np.unique(np.asarray(scores_N), return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    rank_N = (ends - (count - 1) / 2)[place_N]  # from 1; equal scores share their mean rank
    return float((rank_N[right_N].sum() - right * (right + 1) / 2) / (right * wrong))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """Of all scores of at least `threshold`, the fraction `precision` is right; they are the fraction `coverage` of all images."""

    threshold: float
    precision: float
    coverage: float


def threshold_for(scores_N: NDArray[np.floating], right_N: Bools, precision: float) -> OperatingPoint | None:
    """The lowest threshold at and above which at least the fraction `precision` of the images is right; None if there is none."""
    if not len(scores_N):
        return None
    order = np.argsort(-np.asarray(scores_N), kind="stable")
    scores, right = np.asarray(scores_N)[order], np.asarray(right_N, bool)[order]
    ends = np.append(np.flatnonzero(scores[1:] != scores[:-1]), len(scores) - 1)
    reached = np.cumsum(right)[ends] / (ends + 1)
    good = np.flatnonzero(reached >= precision)
    if not len(good):
        return None
    last = int(good[-1])
    end = int(ends[last])
    return OperatingPoint(threshold=float(scores[end]), precision=float(reached[last]), coverage=(end + 1) / len(scores))


def mean_average_precision(scores_NC: NDArray[np.floating], right_NC: Bools) -> float:
    """The mean of `average_precision` over the classes that have an image; nan if none has."""
    each = [average_precision(scores_N, right_N) for scores_N, right_N in zip(scores_NC.T, np.asarray(right_NC).T, strict=True)]
    known = [value for value in each if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def _parts(logits_NC: NDArray[np.floating]) -> Iterator[tuple[slice, NDArray[np.floating]]]:
    """Blocks of rows with their slices."""
    count, classes = logits_NC.shape
    step = max(1, _AT_ONCE // max(classes, 1))
    for start in range(0, count, step):
        rows = slice(start, min(start + step, count))
        yield rows, np.asarray(logits_NC[rows])


# --- segmentation: a pixel of class IGNORE counts for nothing -----------------------------------------------------------------

IGNORE = 255
"""The class of a pixel that counts for nothing."""

Classes = NDArray[np.uint8]


def pixel_confusion(wanted: Classes, predicted: Classes, classes: int) -> Ints:
    """Ints of pixels (right class, predicted class), of arrays of one shape."""
    kept = wanted != IGNORE
    codes = wanted[kept].astype(np.int64) * classes + predicted[kept]
    return np.bincount(codes, minlength=classes * classes).reshape(classes, classes)


def iou_by_class(confusion_CC: Ints) -> NDArray[np.float64]:
    """Intersection over union of each class: pixels that have it and are predicted to, over those of either; nan for none."""
    right_C = np.diag(confusion_CC).astype(np.float64)
    union_C = confusion_CC.sum(0) + confusion_CC.sum(1) - right_C
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(union_C > 0, right_C / np.maximum(union_C, 1), np.nan)


def mean_iou(confusion_CC: Ints) -> float:
    """The mean of `iou_by_class` over the classes that occur in the masks or in the predictions; nan if none does."""
    known = iou_by_class(confusion_CC)
    known = known[np.isfinite(known)]
    return float(known.mean()) if len(known) else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryCounts:
    """Pixels of boundaries, summed over images, one number a class: predicted ones, those of them near a right one, and so on.

    `hidden_C` are pixels of the right masks beside ignored ones: a boundary that cannot be compared.
    """

    predicted_C: Ints
    predicted_near_C: Ints
    right_C: Ints
    right_near_C: Ints
    hidden_C: Ints

    @classmethod
    def none(cls, classes: int) -> BoundaryCounts:
        """The counts of no image."""
        zero = np.zeros(classes, np.int64)
        return cls(predicted_C=zero, predicted_near_C=zero, right_C=zero, right_near_C=zero, hidden_C=zero)

    def __add__(self, other: BoundaryCounts) -> BoundaryCounts:
        return BoundaryCounts(
            predicted_C=self.predicted_C + other.predicted_C,
            predicted_near_C=self.predicted_near_C + other.predicted_near_C,
            right_C=self.right_C + other.right_C,
            right_near_C=self.right_near_C + other.right_near_C,
            hidden_C=self.hidden_C + other.hidden_C,
        )

    @property
    def f_by_class(self) -> NDArray[np.float64]:
        """The boundary F of each class; nan for a class whose right masks ignore most of its boundary, or have none."""
        any_C = self.right_C > self.hidden_C
        precision_C = self.predicted_near_C / np.maximum(self.predicted_C, 1)
        recall_C = self.right_near_C / np.maximum(self.right_C, 1)
        both_C = precision_C + recall_C
        return np.where(any_C, np.where(both_C > 0, 2 * precision_C * recall_C / np.where(both_C > 0, both_C, 1), 0.0), np.nan)

    @property
    def f(self) -> float:
        """The mean of `f_by_class` over the classes that have a boundary; nan if none has."""
        known = self.f_by_class
        known = known[np.isfinite(known)]
        return float(known.mean()) if len(known) else float("nan")


def boundary_counts(wanted_HW: Classes, predicted_HW: Classes, classes: int, *, tolerance: int | None = None) -> BoundaryCounts:
    """What the boundary F of one image is computed from.

    The boundary of a class are its pixels that have a pixel of another class above, below, left or right of them; the edge of the
    image is no boundary. A predicted boundary pixel is right if a boundary pixel of the right mask of the same class lies within
    `tolerance` pixels along both axes (a square), and the other way round: precision and recall, whose harmonic mean is F (the
    contour accuracy of DAVIS, Perazzi et al. 2016). `tolerance` is 0.75 % of the image's diagonal, at least 1, unless given.
    Ignored pixels have no boundary, and within `tolerance` of them nothing counts.
    """
    height, width = wanted_HW.shape
    reach = max(1, round(0.0075 * float(np.hypot(height, width)))) if tolerance is None else tolerance
    ignored_HW = wanted_HW == IGNORE
    counted_HW = ~_grown(ignored_HW, reach) if ignored_HW.any() else ~ignored_HW
    found = np.zeros((5, classes), np.int64)
    for code in range(classes):
        found[4, code] = _edges(wanted_HW == code, ignored_HW).sum()
        right_HW = _edges(wanted_HW == code, ~ignored_HW) & counted_HW
        made_HW = _edges((predicted_HW == code) & ~ignored_HW, ~ignored_HW) & counted_HW
        if not right_HW.any() and not made_HW.any():
            continue
        found[:4, code] = (
            made_HW.sum(),
            (made_HW & _grown(right_HW, reach)).sum(),
            right_HW.sum(),
            (right_HW & _grown(made_HW, reach)).sum(),
        )
    return BoundaryCounts(
        predicted_C=found[0], predicted_near_C=found[1], right_C=found[2], right_near_C=found[3], hidden_C=found[4]
    )


def _edges(inside_HW: NDArray[np.bool_], known_HW: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pixels of a region that touch a known pixel outside of it."""
    outside_HW = known_HW & ~inside_HW
    near_HW = np.zeros_like(inside_HW)
    near_HW[1:] |= outside_HW[:-1]
    near_HW[:-1] |= outside_HW[1:]
    near_HW[:, 1:] |= outside_HW[:, :-1]
    near_HW[:, :-1] |= outside_HW[:, 1:]
    return inside_HW & near_HW


def _grown(marked_HW: NDArray[np.bool_], reach: int) -> NDArray[np.bool_]:
    """The pixels within `reach` of a marked one along both axes."""
    grown_HW = marked_HW.copy()
    for shift in range(1, reach + 1):
        grown_HW[shift:] |= marked_HW[:-shift]
        grown_HW[:-shift] |= marked_HW[shift:]
    wide_HW = grown_HW.copy()
    for shift in range(1, reach + 1):
        wide_HW[:, shift:] |= grown_HW[:, :-shift]
        wide_HW[:, :-shift] |= grown_HW[:, shift:]
    return wide_HW


# --- detection: average precision ---------------------------------------------------------------------------------------------

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
