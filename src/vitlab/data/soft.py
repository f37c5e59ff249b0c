"""Soft labels: several classes of a picture, each with its share.

Axes: N pictures, K classes kept of each, B rows of a batch, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftLabels:
    """The likeliest classes of each picture and their shares, 0 to 1, which add up to 1. A share of 0 fills a row up."""

    codes_NK: NDArray[np.int32]
    shares_NK: NDArray[np.float32]

    def __post_init__(self) -> None:
        assert self.codes_NK.shape == self.shares_NK.shape

    def __len__(self) -> int:
        return len(self.codes_NK)

    def take(self, rows: NDArray[np.int64]) -> SoftLabels:
        """Those of these pictures, in this order."""
        return SoftLabels(codes_NK=self.codes_NK[rows], shares_NK=self.shares_NK[rows])

    def targets(self, rows: NDArray[np.int64], classes: int) -> NDArray[np.float32]:
        """Those of these pictures as probabilities of all classes, (B, C)."""
        targets_BC = np.zeros((len(rows), classes), np.float32)
        np.add.at(targets_BC, (np.arange(len(rows))[:, None], self.codes_NK[rows]), self.shares_NK[rows])
        return targets_BC
