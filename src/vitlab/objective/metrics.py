"""Metrics of a classifier: accuracy, calibration, average precision, confidence intervals. Pure functions of arrays.

Axes: N images, C classes, K predicted classes, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

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
