"""What runs the model: the small door behind which PyTorch stands, and other runtimes can.

Axes: B batch, H height, W width, C channels of a picture, K classes, D width of the features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outputs:
    """Logits (B, K), K being 0 for a model without a head, and features (B, D) where asked for; float32."""

    logits_BK: NDArray[np.float32]
    features_BD: NDArray[np.float32] | None = None


class Backend(Protocol):
    """Runs one model on batches of any size from 1 on."""

    @property
    def name(self) -> str:
        """What it is called: `torch`."""
        ...

    def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        """The model's answer to pictures of the size it is fed with, as uint8; normalisation is the backend's part."""
        ...
