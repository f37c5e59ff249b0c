"""Classification by the nearest training images: no training, and so the plainest look at what features hold.

Wu et al. 2018, and DINO after it: the k nearest by cosine vote for their classes, each with weight exp(cosine / temperature).

Axes: N images learned from, M images judged by, B some of them, D width of the features, K classes, k neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.config.evaluation import NeighboursConfig
from vitlab.errors import DataError
from vitlab.evaluation.features import Features

_IN_MEMORY = 2**25  # cosines at once: 128 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """How many of the test images were right by their `k` nearest; `of` counts the unreadable ones too."""

    k: int
    right: int
    of: int

    @property
    def accuracy(self) -> float:
        """0 to 1."""
        return self.right / self.of


def knn(
    train: Features,
    test: Features,
    config: NeighboursConfig = NeighboursConfig(),  # noqa: B008 (a frozen value)
) -> tuple[Neighbours, ...]:
    """Judge by every image of `test`, for each k; of equal votes the first class wins."""
    if train.names != test.names:
        raise DataError("the images learned from and those judged by have different classes")
    most = max(config.k)
    if most > len(train):
        raise DataError(f"k={most} neighbours of {len(train):,} images", hint="ask for fewer neighbours")
    right = dict.fromkeys(config.k, 0)
    for rows, votes in _votes(unit(train.features_ND), train.labels_N, unit(test.features_ND), len(train.names), config):
        for k, votes_BK in votes:
            right[k] += int(np.count_nonzero(votes_BK.argmax(1) == test.labels_N[rows]))
    return tuple(Neighbours(k=k, right=right[k], of=test.asked) for k in config.k)


def unit(x_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of length 1; a row of zeros stays one."""
    length_N1 = np.linalg.norm(x_ND, axis=1, keepdims=True)
    rows_ND = np.zeros_like(x_ND)
    np.divide(x_ND, length_N1, out=rows_ND, where=length_N1 > 0)
    return rows_ND


_Votes = Iterator[tuple[int, NDArray[np.float64]]]


def _votes(
    train_ND: NDArray[np.float32],
    labels_N: NDArray[np.int64],
    test_MD: NDArray[np.float32],
    classes: int,
    config: NeighboursConfig,
) -> Iterator[tuple[slice, _Votes]]:
    """Test images a slice at a time, and for each k the votes of their neighbours."""
    step = max(1, _IN_MEMORY // len(train_ND))
    for start in range(0, len(test_MD), step):
        cosine_BN = test_MD[start : start + step] @ train_ND.T
        nearest_Bk = _nearest(cosine_BN, max(config.k))
        cosine_Bk = np.take_along_axis(cosine_BN, nearest_Bk, 1).astype(np.float64)
        # Against the nearest: the factor is the same for all of an image's neighbours, and nothing overflows.
        weight_Bk = np.exp((cosine_Bk - cosine_Bk[:, :1]) / config.temperature)
        yield slice(start, start + len(cosine_BN)), _counted(labels_N[nearest_Bk], weight_Bk, classes, config.k)


def _counted(labels_Bk: NDArray[np.int64], weight_Bk: NDArray[np.float64], classes: int, several: tuple[int, ...]) -> _Votes:
    votes_BK = np.zeros((len(labels_Bk), classes))
    row_B = np.arange(len(labels_Bk))
    before = 0
    for k in several:
        for place in range(before, k):
            votes_BK[row_B, labels_Bk[:, place]] += weight_Bk[:, place]
        before = k
        yield k, votes_BK


def _nearest(cosine_BN: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """The k best of each row, best first; of equal ones the first in order."""
    if k < cosine_BN.shape[1]:
        some_Bk = np.sort(np.argpartition(-cosine_BN, k - 1, axis=1)[:, :k], axis=1)
    else:
        some_Bk = np.broadcast_to(np.arange(k), (len(cosine_BN), k))
    order_Bk = np.argsort(-np.take_along_axis(cosine_BN, some_Bk, 1), axis=1, kind="stable")
    return np.take_along_axis(some_Bk, order_Bk, 1)
