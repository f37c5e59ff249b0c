"""Features without a model: clouds of random points, one for each class."""

from __future__ import annotations

import numpy as np

from vitlab.data.batch import Failure
from vitlab.evaluation.features import Features


def clouds(
    counts: tuple[int, ...], *, width: int, seed: int, spread: float = 1.0, centres: int = 7, unreadable: int = 0
) -> Features:
    """So many points of each class around the class's centre; sets with the same `centres` belong together."""
    classes = len(counts)
    centre_KD = np.random.default_rng(centres).normal(size=(classes, width))
    rng = np.random.default_rng(seed)
    labels_N = rng.permutation(np.repeat(np.arange(classes), counts))
    features_ND = centre_KD[labels_N] + spread * rng.normal(size=(len(labels_N), width))
    return Features(
        features_ND=features_ND.astype(np.float32),
        labels_N=labels_N.astype(np.int64),
        indices_N=np.arange(len(labels_N)),
        names=tuple(f"class {code}" for code in range(classes)),
        failures=tuple(Failure(index=place, name=f"{place}.jpg", reason="broken") for place in range(unreadable)),
    )
