"""The numbers of a classifier, out of its answers: shares with their intervals, calibration, classes and confusions.

Axes: N images with an answer, A all images asked about, C classes of the model, K classes of the data, M right classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitlab.config.data import Preprocess
from vitlab.config.evaluation import EvaluateConfig
from vitlab.data.batch import Batch, Failure
from vitlab.data.transforms import normalise
from vitlab.errors import DataError
from vitlab.evaluation.label_mapping import Targets
from vitlab.objective import metrics
from vitlab.objective.metrics import Bools, Calibration, Floats, Ints, losses, mean_average_precision, ranks, sigmoid_losses

# What a model answers to every image of a loader, and the numbers one looks at first.
#
# Axes: B rows of a batch, N images, C classes; H height, W width.

Labels = NDArray[np.int64] | NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """The logits for each image that could be read, beside its label, and the images that could not.

    `labels` is one class a image (N,), -1 where unknown, or zeros and ones (N, classes) where a image may have several.
    `indices_N` are the images' numbers in their source. A image of `failures` has no row and still counts: see `asked`.
    """

    logits_NC: NDArray[np.float32]
    labels: Labels
    indices_N: NDArray[np.int64]
    failures: tuple[Failure, ...] = ()

    def __len__(self) -> int:
        return len(self.indices_N)

    @property
    def asked(self) -> int:
        """Images the model was asked about: what shares are shares of."""
        return len(self) + len(self.failures)

    @property
    def multi_label(self) -> bool:
        """Whether a image may have several classes."""
        return self.labels.ndim == 2


def answer(
    model: nn.Module,
    batches: Iterable[Batch],
    preprocess: Preprocess,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Answers:
    """Run the model, in evaluation mode and without gradients, over all batches; its training mode is put back afterwards.

    The model must be on `device`. `dtype` is what it computes in; where that is less than its weights' type, by autocast.
    """
    place = torch.device(device)
    weights = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    logits, labels, indices, failures = list[NDArray[np.float32]](), list[Labels](), list[NDArray[np.int64]](), list[Failure]()
    lower = torch.autocast(place.type, dtype=dtype, enabled=dtype != weights and dtype in (torch.bfloat16, torch.float16))
    with torch.inference_mode(), evaluating(model), lower:
        for batch in batches:
            failures += (failure for failure in batch.failed if failure.replaced_by is None)
            if not len(batch):
                continue
            images_BHWC = torch.from_numpy(batch.images_BHWC).to(place)
            logits_BC: torch.Tensor = model(normalise(images_BHWC, preprocess, weights))
            logits.append(logits_BC.float().cpu().numpy())
            labels.append(batch.labels)
            indices.append(batch.index_B)
    if not logits:
        raise _nothing(failures)
    joined: Labels = np.concatenate(labels)  # type: ignore[assignment]  # all of one type, and numpy's stubs cannot say so
    return Answers(
        logits_NC=np.concatenate(logits),
        labels=joined,
        indices_N=np.concatenate(indices),
        failures=tuple(failures),
    )


def headline(answers: Answers) -> dict[str, float]:
    """`loss`, `top1` and `top5`; or `loss` and `mean_average_precision` where a image may have several classes.

    The loss is cross-entropy in nats a image (of several classes: the sigmoid's, summed over classes), over the images that
    could be read. The shares, 0 to 1, are of all images: one that could not be read counts as wrong.
    """
    check_labels(answers)
    if answers.multi_label:
        right_NC = answers.labels.astype(bool)
        return {
            "loss": float(sigmoid_losses(answers.logits_NC, right_NC).mean()),
            "mean_average_precision": mean_average_precision(answers.logits_NC, right_NC),
        }
    labels_N = answers.labels.astype(np.int64)
    rank_N = ranks(answers.logits_NC, labels_N)
    return {
        "loss": float(losses(answers.logits_NC, labels_N).mean()),
        "top1": np.count_nonzero(rank_N < 1) / answers.asked,
        "top5": np.count_nonzero(rank_N < 5) / answers.asked,
    }


def check_labels(answers: Answers) -> None:
    """Refuse labels that are unknown or that the model has no class for."""
    classes = answers.logits_NC.shape[1]
    if answers.multi_label:
        if answers.labels.shape[1] != classes:
            raise DataError(f"the data has {answers.labels.shape[1]:,} classes and the model {classes:,}")
        return
    if (unknown := np.count_nonzero(answers.labels < 0)) > 0:
        raise DataError(f"{unknown:,} of {len(answers):,} images have no label", hint="evaluate a part of the data that has them")
    if answers.labels.max() >= classes:
        raise DataError(f"the data has a label {int(answers.labels.max())}, and the model has classes 0 to {classes - 1} only")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module is as it was, also where only some of them were training."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _nothing(failures: list[Failure]) -> DataError:
    if failures:
        return DataError(f"none of {len(failures):,} images could be read; the first: {failures[0]}")
    return DataError("there are no images to evaluate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """`right` of `of` images, and the 95 % interval of the share by bootstrap (None where none was asked for)."""

    right: int
    of: int
    interval: tuple[float, float] | None = None

    @property
    def value(self) -> float:
        """0 to 1; nan of no images."""
        return self.right / self.of if self.of else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassScore:
    """How many of a class's images were recognised."""

    label: str
    right: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """How well one class a image was told.

    `images` counts all that were asked about, the `unreadable` among them as wrong. `top1` and `top5` are over all classes of
    the model; `within_top1` and `within_top5`, where the data has a part of the classes, choose among those alone. `real` is of
    the images that have a ReaL label. `loss` is in nats a image, `calibration` and `temperature` are those of the answers
    there are. `mean_class_accuracy` weighs every class with images alike. `confusion` lists (class of the data, class of the
    model chosen, count), right ones included, for counts above 0.
    """

    images: int
    unreadable: int
    top1: Share
    top5: Share | None
    real: Share | None
    within_top1: Share | None
    within_top5: Share | None
    loss: float
    loss_interval: tuple[float, float] | None
    mean_class_accuracy: float
    calibration: Calibration
    temperature: float | None
    per_class: tuple[ClassScore, ...]
    confusion: tuple[tuple[int, int, int], ...]

    def measures(self) -> Iterator[tuple[str, float]]:
        """The numbers by name."""
        for name in ("top1", "top5", "real", "within_top1", "within_top5"):
            if (share := getattr(self, name)) is not None:
                yield name, share.value
        yield "loss", self.loss
        yield "mean_class_accuracy", self.mean_class_accuracy
        yield "calibration_error", self.calibration.error
        if self.temperature is not None:
            yield "temperature", self.temperature


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """Each answer against what is right: the class chosen, the best of the right ones, and how many stand before it."""

    chosen_N: Ints
    right_N: Ints
    rank_N: Ints
    confidence_N: Floats
    loss_N: Floats


def judge(answers: Answers, targets: Targets) -> Judged:
    """What became of each image that was read."""
    logits_NC = answers.logits_NC
    labels_N = answers.labels.astype(np.int64)
    right_KM, used_KM = _table(targets.right)
    right_NM = right_KM[labels_N]
    own_NM = np.where(used_KM[labels_N], np.take_along_axis(logits_NC, right_NM, 1), -np.inf)
    right_N = np.take_along_axis(right_NM, own_NM.argmax(1)[:, None], 1)[:, 0]
    if targets.one_each:
        loss_N = metrics.losses(logits_NC, right_N)
    else:  # the probability of a class of the data is that of all its classes of the model
        log_NC = metrics.log_softmax(logits_NC)
        log_NM = np.where(used_KM[labels_N], np.take_along_axis(log_NC, right_NM, 1), -np.inf)
        loss_N = -np.logaddexp.reduce(log_NM, axis=1)
    return Judged(
        chosen_N=logits_NC.argmax(1).astype(np.int64),
        right_N=right_N,
        rank_N=metrics.ranks(logits_NC, right_N),
        confidence_N=metrics.confidences(logits_NC),
        loss_N=loss_N,
    )


def classify(
    answers: Answers,
    judged: Judged,
    targets: Targets,
    *,
    failed_labels: Sequence[int],
    real: Sequence[Sequence[int]] | None = None,
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008 (a frozen value)
) -> Classification:
    """All numbers of single-label answers; labels are classes of `targets`, and no image's class is mapped to nothing.

    `failed_labels` are those of `answers.failures`. `real` holds the right classes of each image: first those of the answers
    in their order, then those of the failures.
    """
    labels_N = answers.labels.astype(np.int64)
    failed = np.asarray(failed_labels, np.int64)
    unread = len(answers.failures)
    classes = len(targets.names)
    within = _within(answers, targets, labels_N) if targets.in_part else None
    totals_K = np.bincount(np.concatenate([labels_N, failed]), minlength=len(targets.labels))
    right_K = np.bincount(labels_N[judged.rank_N == 0], minlength=len(targets.labels))
    seen_K = totals_K > 0
    finite = bool(np.isfinite(answers.logits_NC).all())
    return Classification(
        images=answers.asked,
        unreadable=unread,
        top1=_share(judged.rank_N < 1, unread, config),
        top5=_share(judged.rank_N < 5, unread, config) if classes > 5 else None,
        real=None if real is None else _real(answers.logits_NC, real, config),
        within_top1=None if within is None else _share(within < 1, unread, config),
        within_top5=None if within is None or len(targets.labels) <= 5 else _share(within < 5, unread, config),
        loss=float(judged.loss_N.mean()),
        loss_interval=_interval(judged.loss_N, config),
        mean_class_accuracy=float((right_K[seen_K] / totals_K[seen_K]).mean()),
        calibration=metrics.calibration_of(np.nan_to_num(judged.confidence_N), judged.rank_N == 0, bins=config.bins),
        temperature=metrics.temperature(answers.logits_NC, judged.right_N) if targets.one_each and finite else None,
        per_class=tuple(
            ClassScore(label=label, right=int(right), of=int(of))
            for label, right, of in zip(targets.labels, right_K, totals_K, strict=True)
        ),
        confusion=_pairs(labels_N, judged.chosen_N, classes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiLabel:
    """How well several classes a image were told: the mean over classes of average precision, and the sigmoid's loss.

    An unreadable image stands last in the order of every class. `per_class` is average precision, None without a image.
    """

    images: int
    unreadable: int
    mean_average_precision: float
    interval: tuple[float, float] | None
    loss: float
    per_class: tuple[tuple[str, float | None, int], ...]

    def measures(self) -> Iterator[tuple[str, float]]:
        """The numbers by name."""
        yield "mean_average_precision", self.mean_average_precision
        yield "loss", self.loss


_MOST_RESAMPLED = 2_000_000  # scores; a resample sorts every class anew
_RESAMPLES = 200


def classify_multi_label(
    answers: Answers,
    targets: Targets,
    *,
    failed_AK: Bools,
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008
) -> MultiLabel:
    """All numbers of multi-label answers; `failed_AK` says which classes the images of `answers.failures` have."""
    columns = [places[0] for places in targets.right]
    scores_NK = answers.logits_NC[:, columns]
    right_NK = answers.labels.astype(bool)
    scores_AK = np.concatenate([scores_NK, np.full(failed_AK.shape, -np.inf, np.float32)])
    right_AK = np.concatenate([right_NK, failed_AK])
    each = [metrics.average_precision(scores, right) for scores, right in zip(scores_AK.T, right_AK.T, strict=True)]
    interval = None
    if config.resamples and scores_AK.size <= _MOST_RESAMPLED:
        rows = np.random.default_rng(config.seed).integers(0, len(scores_AK), (_RESAMPLES, len(scores_AK)))
        drawn = [metrics.mean_average_precision(scores_AK[row], right_AK[row]) for row in rows]
        low, high = np.nanquantile(drawn, [0.025, 0.975])
        interval = float(low), float(high)
    return MultiLabel(
        images=answers.asked,
        unreadable=len(answers.failures),
        mean_average_precision=metrics.mean_average_precision(scores_AK, right_AK),
        interval=interval,
        loss=float(metrics.sigmoid_losses(scores_NK, right_NK).mean()),
        per_class=tuple(
            (label, None if np.isnan(value) else value, int(count))
            for label, value, count in zip(targets.labels, each, right_AK.sum(0), strict=True)
        ),
    )


def _table(right: Sequence[Sequence[int]]) -> tuple[Ints, Bools]:
    """The right classes of each class of the data in rows of one length, and which of the entries are meant."""
    most = max(1, *map(len, right))
    places_KM = np.zeros((len(right), most), np.int64)
    used_KM = np.zeros((len(right), most), np.bool_)
    for row, places in enumerate(right):
        places_KM[row, : len(places)] = places
        used_KM[row, : len(places)] = True
    return places_KM, used_KM


def _within(answers: Answers, targets: Targets, labels_N: Ints) -> Ints:
    """Ranks among the data's classes alone."""
    return metrics.ranks(answers.logits_NC[:, [places[0] for places in targets.right]], labels_N)


def _share(right_N: Bools, unread: int, config: EvaluateConfig) -> Share:
    counted = np.concatenate([right_N, np.zeros(unread, np.bool_)])
    return Share(right=int(counted.sum()), of=len(counted), interval=_interval(counted, config))


def _real(logits_NC: NDArray[np.float32], real: Sequence[Sequence[int]], config: EvaluateConfig) -> Share:
    """Beyer et al. 2020: images without a label are left out; those that could not be read are wrong where they have one."""
    right_N = metrics.real_hits(logits_NC, real[: len(logits_NC)])
    return _share(right_N, sum(len(classes) > 0 for classes in real[len(logits_NC) :]), config)


def _interval(values: Floats | Bools, config: EvaluateConfig) -> tuple[float, float] | None:
    if not config.resamples or not len(values):
        return None
    return metrics.bootstrap(values, seed=config.seed, resamples=config.resamples)


def _pairs(labels_N: Ints, chosen_N: Ints, classes: int) -> tuple[tuple[int, int, int], ...]:
    codes, counts = np.unique(labels_N * classes + chosen_N, return_counts=True)
    return tuple((int(code // classes), int(code % classes), int(count)) for code, count in zip(codes, counts, strict=True))
