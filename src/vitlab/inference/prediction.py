"""What comes back for a image: a prediction, or why there is none.

Axes: C classes, D width of the features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import ConfigError

Chance = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """What the model says of one image.

    `name` is the image's path, or `image 3` (from 0) for one without. `logits` (C,) are the model's own numbers; `features`
    (D,) is what its head saw, where that was asked for. `labels` are the names of the classes, or None where they have none.
    `chance` is how logits become probabilities: `softmax` where a image has one class, `sigmoid` where it may have several.
    """

    name: str
    logits: NDArray[np.float32]
    features: NDArray[np.float32] | None = None
    labels: tuple[str, ...] | None = None
    chance: Chance = "softmax"

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """The probability of each class, (C,), 0 to 1; they sum to 1 where a image has one class."""
        wide_C = self.logits.astype(np.float64)
        if self.chance == "sigmoid":
            chance_C: NDArray[np.float64] = np.exp(-np.logaddexp(0, -wide_C))
        else:
            chance_C = np.exp(wide_C - wide_C.max(initial=-np.inf))
            chance_C /= chance_C.sum()
        return chance_C.astype(np.float32)

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The k likeliest classes, or all where there are fewer: (label, probability), best first, of equals the first in order.

        A class without a label is called by its number.
        """
        if k < 1:
            raise ConfigError(f"k={k} must be at least 1")
        if not len(self.logits):
            raise ConfigError("this model has no head, so it knows no classes", hint="ask for features=True")
        best = np.argsort(-self.logits, kind="stable")[:k].tolist()
        probabilities_C = self.probabilities
        return [(str(place) if self.labels is None else self.labels[place], float(probabilities_C[place])) for place in best]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A image that could not be read, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return self.reason if self.name in self.reason else f"{self.name}: {self.reason}"
