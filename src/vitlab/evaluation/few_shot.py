"""Few-shot linear classification in closed form: regularised least squares from features to {-1, 1}^K (sec. 4.1).

As in big_vision: features are whitened by the mean and deviation of the images learned from, a constant feature of 100 is
appended and regularised like the others (so large that its coefficient, the bias, hardly is), and the strength is fixed.

Axes: N images learned from, M images judged by, D width of the features, E = D + 1 with the constant, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.config.evaluation import FewShotConfig
from vitlab.errors import DataError
from vitlab.evaluation.features import Features

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CONSTANT = 100.0
_SMALLEST = 1e-5  # added to a deviation, as in big_vision
_AT_ONCE = 4096  # images whose scores are in memory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ridge:
    """A linear rule: scores of K classes are ((x - mean) / deviation, 100) @ weights."""

    mean_D: Floats
    deviation_D: Floats
    weights_EK: Floats

    def scores(self, x_MD: NDArray[np.floating]) -> Floats:
        """(M, K), near 1 for the class of an image and near -1 for the others."""
        scores_MK: Floats = _with_constant((x_MD - self.mean_D) / self.deviation_D) @ self.weights_EK
        return scores_MK

    def right(self, features: Features) -> int:
        """How many images have their highest score in their own class."""
        rows = range(0, len(features), _AT_ONCE)
        return sum(
            int(np.count_nonzero(self.scores(features.features_ND[row : row + _AT_ONCE]).argmax(1) == labels))
            for row in rows
            for labels in [features.labels_N[row : row + _AT_ONCE]]
        )


def ridge(x_ND: NDArray[np.floating], labels_N: Ints, *, classes: int, l2: float) -> Ridge:
    """The rule that minimises ||x W - y||^2 + l2 ||W||^2 over the whitened images, y being 1 for the class and -1 elsewhere.

    One symmetric matrix is decomposed, x'x or xx', whichever is smaller; in float64, so that the constant's 10^4 N beside the
    features' N costs no digits that matter.
    """
    wide_ND = x_ND.astype(np.float64)
    mean_D, deviation_D = wide_ND.mean(0), wide_ND.std(0) + _SMALLEST
    x_NE = _with_constant((wide_ND - mean_D) / deviation_D)
    y_NK = np.where(labels_N[:, None] == np.arange(classes), 1.0, -1.0)
    return Ridge(mean_D=mean_D, deviation_D=deviation_D, weights_EK=solve(x_NE, y_NK, l2, wide=len(x_NE) < x_NE.shape[1]))


def solve(x_NE: Floats, y_NK: Floats, l2: float, *, wide: bool) -> Floats:
    """(x'x + l2)^-1 x'y, or the same as x'(xx' + l2)^-1 y, the cheaper one where there are fewer images than features."""
    values, vectors = np.linalg.eigh(x_NE @ x_NE.T if wide else x_NE.T @ x_NE)
    target = vectors.T @ (y_NK if wide else x_NE.T @ y_NK)
    # Rounding makes eigenvalues that are 0 a little negative; l2 > 0 keeps the division safe.
    weights = vectors @ (target / (np.maximum(values, 0.0) + l2)[:, None])
    weights_EK: Floats = x_NE.T @ weights if wide else weights
    return weights_EK


def draw(labels_N: Ints, *, classes: int, seed: int) -> list[Ints]:
    """The images of each class in the order in which they are drawn: a few shots are the first of more.

    The order of a class depends on (seed, class) and on its own images, so other classes change nothing in it.
    """
    in_order = np.argsort(labels_N, kind="stable")
    ends = np.searchsorted(labels_N[in_order], np.arange(1, classes))
    groups = np.split(in_order.astype(np.int64), ends)
    return [np.random.default_rng([seed, code]).permutation(group) for code, group in enumerate(groups)]


def drawn_by_any(labels_N: Ints, *, classes: int, config: FewShotConfig) -> Ints:
    """The images that any seed draws, in order: no other need be read."""
    most = max(config.shots)
    orders = [order[:most] for seed in config.seeds for order in draw(labels_N, classes=classes, seed=seed)]
    return np.unique(np.concatenate(orders))


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShot:
    """Accuracy, 0 to 1, at one number of shots: of each seed, their mean, and their sample deviation (0 of one seed).

    `short` are classes with fewer images than that; they gave all they have.
    """

    shots: int
    accuracies: tuple[float, ...]
    short: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return float(np.mean(self.accuracies))

    @property
    def deviation(self) -> float:
        """Between the seeds."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else 0.0


def fewshot(
    train: Features,
    test: Features,
    config: FewShotConfig = FewShotConfig(),  # noqa: B008 (a frozen value)
    *,
    labels: Ints | None = None,
) -> Iterator[FewShot]:
    """Learn from a few images of each class and judge by all of `test`, where an unreadable image is wrong.

    `labels` are the classes of all images of the source that the indices of `train` are of, where `train` has only some of
    them (those of `drawn_by_any`, or those that could be read): the same ones are then drawn as if it had all.
    """
    if train.names != test.names:
        raise DataError("the images learned from and those judged by have different classes")
    classes = len(train.names)
    whole = train.labels_N if labels is None else labels
    places = np.arange(len(train)) if labels is None else train.indices_N
    row_of = {place: row for row, place in enumerate(places.tolist())}
    counts = np.bincount(whole, minlength=classes)
    if not counts.all():
        raise DataError(f"there is nothing to learn {train.names[int(counts.argmin())]} from: it has no image to be drawn")
    orders = {seed: draw(whole, classes=classes, seed=seed) for seed in config.seeds}
    for shots in config.shots:
        accuracies = []
        for seed in config.seeds:
            rows = _rows(orders[seed], shots, row_of)
            rule = ridge(train.features_ND[rows], train.labels_N[rows], classes=classes, l2=config.l2)
            accuracies.append(rule.right(test) / test.asked)
        short = tuple(name for name, count in zip(train.names, counts.tolist(), strict=True) if count < shots)
        yield FewShot(shots=shots, accuracies=tuple(accuracies), short=short)


def _rows(orders: Sequence[Ints], shots: int, row_of: dict[int, int]) -> list[int]:
    """The rows of the first images of each class; one that could not be read is not replaced."""
    return [row_of[place] for order in orders for place in order[:shots].tolist() if place in row_of]


def _with_constant(x_ND: Floats) -> Floats:
    return np.concatenate([x_ND, np.full((len(x_ND), 1), CONSTANT)], axis=1)
