"""The metrics of a classifier, computed from its logits: accuracies with intervals, loss, calibration, classes and confusions.

`collect_logits` runs a model over a loader's batches; `headline` gives the first few numbers (validation during training uses these
two); `classify` and `classify_multi_label` give all of them.

Axes: N images with logits, A all images (unreadable ones included), C classes of the model, K classes of the data, M correct
classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.config.evaluation import EvaluateConfig
from vitlab.data.batch import Batch, Failure
from vitlab.errors import DataError
from vitlab.evaluation.label_mapping import Targets
from vitlab.inference.backends import Outputs
from vitlab.objective import metrics
from vitlab.objective.metrics import Bools, Calibration, Floats, Ints, OperatingPoint

Labels = NDArray[np.int64] | NDArray[np.float32]

_MAX_RESAMPLED = 2_000_000  # scores; each resample sorts every class again
_RESAMPLES = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Logits:
    """The logits of each image that could be read, its label, and the images that could not be read.

    `labels` is one class per image (N,), -1 if unknown, or zeros and ones (N, classes) if an image may have several classes.
    `indices_N` are the images' indices in their dataset. An image of `failures` has no row, but still counts: see `total`.
    """

    logits_NC: NDArray[np.float32]
    labels: Labels
    indices_N: NDArray[np.int64]
    failures: tuple[Failure, ...] = ()

    def __len__(self) -> int:
        return len(self.indices_N)

    @property
    def total(self) -> int:
        """All images, unreadable ones included: the denominator of every accuracy."""
        return len(self) + len(self.failures)

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several classes."""
        return self.labels.ndim == 2


def collect_logits(results: Iterable[tuple[Batch, Outputs | None]]) -> Logits:
    """Gather what the engine (`run_batches` or `Engine.run_dataset`) gives; DataError if no image could be read."""
    logits, labels, indices, failures = list[NDArray[np.float32]](), list[Labels](), list[NDArray[np.int64]](), list[Failure]()
    for batch, outputs in results:
        failures += (failure for failure in batch.failed if failure.replaced_by is None)
        if outputs is None:
            continue
        logits.append(outputs.logits_BK)
        labels.append(batch.labels)
        indices.append(batch.index_B)
    if not logits and failures:
        raise DataError(f"none of {len(failures):,} images could be read; the first: {failures[0]}")
    if not logits:
        raise DataError("there are no images to evaluate")
    joined: Labels = np.concatenate(labels)  # type: ignore[assignment]  # all of one type, and numpy's stubs cannot say so
    return Logits(logits_NC=np.concatenate(logits), labels=joined, indices_N=np.concatenate(indices), failures=tuple(failures))


def headline(found: Logits) -> dict[str, float]:
    """`loss`, `top1` and `top5`; or `loss` and `mean_average_precision` if an image may have several classes.

    The loss is cross-entropy in nats per image (for several classes, the sigmoid loss summed over classes), over the images that
    could be read. Accuracies, from 0 to 1, are over all images: one that could not be read counts as wrong.
    """
    check_labels(found)
    if found.multi_label:
        correct_NC = found.labels.astype(bool)
        return {
            "loss": float(metrics.sigmoid_losses(found.logits_NC, correct_NC).mean()),
            "mean_average_precision": metrics.mean_average_precision(found.logits_NC, correct_NC),
        }
    labels_N = found.labels.astype(np.int64)
    rank_N = metrics.ranks(found.logits_NC, labels_N)
    return {
        "loss": float(metrics.losses(found.logits_NC, labels_N).mean()),
        "top1": np.count_nonzero(rank_N < 1) / found.total,
        "top5": np.count_nonzero(rank_N < 5) / found.total,
    }


def check_labels(found: Logits) -> None:
    """Refuse labels that are unknown or that the model has no class for."""
    classes = found.logits_NC.shape[1]
    if found.multi_label:
        if found.labels.shape[1] != classes:
            raise DataError(f"the data has {found.labels.shape[1]:,} classes and the model {classes:,}")
        return
    if (unknown := np.count_nonzero(found.labels < 0)) > 0:
        raise DataError(f"{unknown:,} of {len(found):,} images have no label", hint="evaluate on a split that has labels")
    if found.labels.max() >= classes:
        raise DataError(f"the data has a label {int(found.labels.max())}, and the model has classes 0 to {classes - 1} only")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """`correct` of `total` images, and the 95 % interval of their ratio by Wilson's score (None if it was not computed)."""

    correct: int
    total: int
    interval: tuple[float, float] | None = None

    @property
    def value(self) -> float:
        """From 0 to 1; nan of no images."""
        return self.correct / self.total if self.total else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassAccuracy:
    """How many images of a class are classified correctly."""

    label: str
    correct: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassScores:
    """How well one class is told from the others; each is from 0 to 1, or None if there is nothing to compute it from.

    `precision` is over the images that are predicted to be of the class, `recall` over those that are, `f1` their harmonic mean.
    `average_precision` and `roc_auc` are of the probability of the class. An unreadable image is not predicted, and ranks last.
    """

    label: str
    precision: float | None
    recall: float | None
    f1: float | None
    average_precision: float | None
    roc_auc: float | None
    images: int
    predicted: int


SCORES = ("precision", "recall", "f1", "average_precision", "roc_auc")


def averaged(scores: Sequence[ClassScores]) -> dict[str, float | None]:
    """The mean of each score over the classes that have images (macro average); no prediction is a precision of 0."""
    seen = [score for score in scores if score.images]
    found: dict[str, float | None] = {}
    for name in SCORES:
        values = [getattr(score, name) for score in seen]
        if name == "precision":
            values = [0.0 if value is None else value for value in values]
        known = [value for value in values if value is not None]
        found[name] = sum(known) / len(known) if known else None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """The metrics of a classifier with one class per image.

    `images` counts all images, the `unreadable` among them as wrong. `top1` and `top5` are over all classes of the model;
    `within_top1` and `within_top5`, if the data has only some of the classes, choose among those alone. `real` is over the images
    that have a ReaL label. `loss` is in nats per image; `calibration` and `temperature` are over the images that could be read.
    `mean_class_accuracy` weights every class with images equally. `confusion` lists (class of the data, class predicted, count),
    correct ones included, for counts above 0. `scores` are precision, recall and more of each class, None if several classes of the
    model count as one of the data. `operating_point` is the threshold of the confidence for the precision that was asked for.
    """

    images: int
    unreadable: int
    top1: Accuracy
    top5: Accuracy | None
    real: Accuracy | None
    within_top1: Accuracy | None
    within_top5: Accuracy | None
    loss: float
    loss_interval: tuple[float, float] | None
    mean_class_accuracy: float
    calibration: Calibration
    temperature: float | None
    per_class: tuple[ClassAccuracy, ...]
    confusion: tuple[tuple[int, int, int], ...]
    scores: tuple[ClassScores, ...] | None = None
    operating_point: OperatingPoint | None = None

    def measures(self) -> Iterator[tuple[str, float]]:
        """The metrics by name."""
        for name in ("top1", "top5", "real", "within_top1", "within_top5"):
            if (accuracy := getattr(self, name)) is not None:
                yield name, accuracy.value
        yield "loss", self.loss
        yield "mean_class_accuracy", self.mean_class_accuracy
        yield "calibration_error", self.calibration.error
        if self.temperature is not None:
            yield "temperature", self.temperature
        for name, value in averaged(self.scores or ()).items():
            if value is not None:
                yield f"macro_{name}", value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PerImage:
    """Each image and its target: the class predicted, the best of the correct ones, and how many classes rank above that."""

    predicted_N: Ints
    target_N: Ints
    rank_N: Ints
    confidence_N: Floats
    loss_N: Floats


def compare_with_targets(found: Logits, targets: Targets) -> PerImage:
    """Compare each image that could be read with its target."""
    logits_NC = found.logits_NC
    labels_N = found.labels.astype(np.int64)
    classes_KM, used_KM = _padded(targets.correct)
    classes_NM = classes_KM[labels_N]
    own_NM = np.where(used_KM[labels_N], np.take_along_axis(logits_NC, classes_NM, 1), -np.inf)
    target_N = np.take_along_axis(classes_NM, own_NM.argmax(1)[:, None], 1)[:, 0]
    if targets.one_to_one:
        loss_N = metrics.losses(logits_NC, target_N)
    else:  # the probability of a class of the data is the sum over its classes of the model
        log_NC = metrics.log_softmax(logits_NC)
        log_NM = np.where(used_KM[labels_N], np.take_along_axis(log_NC, classes_NM, 1), -np.inf)
        loss_N = -np.logaddexp.reduce(log_NM, axis=1)
    return PerImage(
        predicted_N=logits_NC.argmax(1).astype(np.int64),
        target_N=target_N,
        rank_N=metrics.ranks(logits_NC, target_N),
        confidence_N=metrics.confidences(logits_NC),
        loss_N=loss_N,
    )


def classify(
    found: Logits,
    per_image: PerImage,
    targets: Targets,
    *,
    failed_labels: Sequence[int],
    real: Sequence[Sequence[int]] | None = None,
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008 (a frozen value)
) -> Classification:
    """All metrics of single-label logits; labels are classes of `targets`, and every image's class maps to some class of the model.

    `failed_labels` are those of `found.failures`. `real` holds the correct classes of each image: first of the rows in their order,
    then of the failures.
    """
    labels_N = found.labels.astype(np.int64)
    failed = np.asarray(failed_labels, np.int64)
    unread = len(found.failures)
    classes = len(targets.names)
    within = _ranks_within(found, targets, labels_N) if targets.is_subset else None
    totals_K = np.bincount(np.concatenate([labels_N, failed]), minlength=len(targets.labels))
    correct_K = np.bincount(labels_N[per_image.rank_N == 0], minlength=len(targets.labels))
    seen_K = totals_K > 0
    finite = bool(np.isfinite(found.logits_NC).all())
    return Classification(
        images=found.total,
        unreadable=unread,
        top1=_accuracy(per_image.rank_N < 1, unread, config),
        top5=_accuracy(per_image.rank_N < 5, unread, config) if classes > 5 else None,
        real=None if real is None else _real(found.logits_NC, real, config),
        within_top1=None if within is None else _accuracy(within < 1, unread, config),
        within_top5=None if within is None or len(targets.labels) <= 5 else _accuracy(within < 5, unread, config),
        loss=float(per_image.loss_N.mean()),
        loss_interval=_interval(per_image.loss_N, config),
        mean_class_accuracy=float((correct_K[seen_K] / totals_K[seen_K]).mean()),
        calibration=metrics.calibration_of(per_image.confidence_N, per_image.rank_N == 0, bins=config.bins),
        temperature=metrics.temperature(found.logits_NC, per_image.target_N) if targets.one_to_one and finite else None,
        per_class=tuple(
            ClassAccuracy(label=label, correct=int(correct), total=int(total))
            for label, correct, total in zip(targets.labels, correct_K, totals_K, strict=True)
        ),
        confusion=_confusion(labels_N, per_image.predicted_N, classes),
        scores=_class_scores(found, per_image, targets, failed) if targets.one_to_one else None,
        operating_point=None
        if config.precision is None
        else metrics.threshold_for(per_image.confidence_N, per_image.rank_N == 0, config.precision),
    )


def _class_scores(found: Logits, per_image: PerImage, targets: Targets, failed: Ints) -> tuple[ClassScores, ...]:
    labels_A = np.concatenate([found.labels.astype(np.int64), failed])
    predicted_A = np.concatenate([per_image.predicted_N, np.full(len(failed), -1)])
    log_NC = metrics.log_softmax(found.logits_NC)
    unread = np.full(len(failed), -np.inf)
    made = []
    for place, (label, (column,)) in enumerate(zip(targets.labels, targets.correct, strict=True)):
        own_A, chosen_A = labels_A == place, predicted_A == column
        hit, images, predicted = int((own_A & chosen_A).sum()), int(own_A.sum()), int(chosen_A.sum())
        score_A = np.concatenate([log_NC[:, column], unread])
        made.append(
            ClassScores(
                label=label,
                precision=hit / predicted if predicted else None,
                recall=hit / images if images else None,
                f1=2 * hit / (images + predicted) if images else None,
                average_precision=_known(metrics.average_precision(score_A, own_A)),
                roc_auc=_known(metrics.roc_auc(score_A, own_A)),
                images=images,
                predicted=predicted,
            )
        )
    return tuple(made)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiLabel:
    """The metrics of a classifier with several classes per image: mean average precision over classes, and the sigmoid loss.

    An unreadable image ranks last for every class. `per_class` is (label, average precision or None without an image, images).
    """

    images: int
    unreadable: int
    mean_average_precision: float
    interval: tuple[float, float] | None
    loss: float
    per_class: tuple[tuple[str, float | None, int], ...]

    def measures(self) -> Iterator[tuple[str, float]]:
        """The metrics by name."""
        yield "mean_average_precision", self.mean_average_precision
        yield "loss", self.loss


def classify_multi_label(
    found: Logits,
    targets: Targets,
    *,
    failed_AK: Bools,
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008
) -> MultiLabel:
    """All metrics of multi-label logits; `failed_AK` says which classes the images of `found.failures` have."""
    columns = [places[0] for places in targets.correct]
    scores_NK = found.logits_NC[:, columns]
    correct_NK = found.labels.astype(bool)
    scores_AK = np.concatenate([scores_NK, np.full(failed_AK.shape, -np.inf, np.float32)])
    correct_AK = np.concatenate([correct_NK, failed_AK])
    each = [metrics.average_precision(scores, correct) for scores, correct in zip(scores_AK.T, correct_AK.T, strict=True)]
    interval = None
    if config.resamples and scores_AK.size <= _MAX_RESAMPLED:
        rows = np.random.default_rng(config.seed).integers(0, len(scores_AK), (_RESAMPLES, len(scores_AK)))
        drawn = [metrics.mean_average_precision(scores_AK[row], correct_AK[row]) for row in rows]
        low, high = np.nanquantile(drawn, [0.025, 0.975])
        interval = float(low), float(high)
    return MultiLabel(
        images=found.total,
        unreadable=len(found.failures),
        mean_average_precision=metrics.mean_average_precision(scores_AK, correct_AK),
        interval=interval,
        loss=float(metrics.sigmoid_losses(scores_NK, correct_NK).mean()),
        per_class=tuple(
            (label, None if np.isnan(value) else value, int(count))
            for label, value, count in zip(targets.labels, each, correct_AK.sum(0), strict=True)
        ),
    )


def _padded(correct: Sequence[Sequence[int]]) -> tuple[Ints, Bools]:
    """The correct classes of each class of the data, padded to one length, and which entries are used."""
    most = max(1, *map(len, correct))
    places_KM = np.zeros((len(correct), most), np.int64)
    used_KM = np.zeros((len(correct), most), np.bool_)
    for row, places in enumerate(correct):
        places_KM[row, : len(places)] = places
        used_KM[row, : len(places)] = True
    return places_KM, used_KM


def _ranks_within(found: Logits, targets: Targets, labels_N: Ints) -> Ints:
    """Ranks among the data's classes alone."""
    return metrics.ranks(found.logits_NC[:, [places[0] for places in targets.correct]], labels_N)


def _accuracy(correct_N: Bools, unread: int, config: EvaluateConfig) -> Accuracy:
    correct, total = int(correct_N.sum()), len(correct_N) + unread
    interval = metrics.proportion_interval(correct, total) if config.resamples and total else None
    return Accuracy(correct=correct, total=total, interval=interval)


def _real(logits_NC: NDArray[np.float32], real: Sequence[Sequence[int]], config: EvaluateConfig) -> Accuracy:
    """Beyer et al. 2020: images without a label are left out; an unreadable image with a label is wrong."""
    correct_N = metrics.real_hits(logits_NC, real[: len(logits_NC)])
    return _accuracy(correct_N, sum(len(classes) > 0 for classes in real[len(logits_NC) :]), config)


def _interval(values: Floats, config: EvaluateConfig) -> tuple[float, float] | None:
    if not config.resamples or not len(values):
        return None
    return metrics.bootstrap(values, seed=config.seed, resamples=config.resamples)


def _confusion(labels_N: Ints, predicted_N: Ints, classes: int) -> tuple[tuple[int, int, int], ...]:
    codes, counts = np.unique(labels_N * classes + predicted_N, return_counts=True)
    return tuple((int(code // classes), int(code % classes), int(count)) for code, count in zip(codes, counts, strict=True))
