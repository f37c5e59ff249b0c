"""Logits made by hand, and a model that says what its images show."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.batch import Batch, Failure
from vitlab.evaluation.classification import Logits
from vitlab.evaluation.label_mapping import Targets, match_by_name

Floats = NDArray[np.float32]


def made(seed: int = 0, *, images: int = 200, classes: int = 8, failed: int = 0) -> Logits:
    """Random answers, somewhat right."""
    rng = np.random.default_rng(seed)
    labels_N = rng.integers(0, classes, images)
    logits_NC = rng.normal(size=(images, classes)).astype(np.float32)
    logits_NC[np.arange(images), labels_N] += 1.5
    return Logits(
        logits_NC=logits_NC,
        labels=labels_N,
        indices_N=np.arange(images),
        failures=failures(failed, first=images),
    )


def failures(count: int, *, first: int = 0) -> tuple[Failure, ...]:
    return tuple(Failure(index=first + row, name=f"{first + row}.jpg", reason="broken") for row in range(count))


def same(classes: int = 8) -> Targets:
    """Every class is its own."""
    names = tuple(f"class {code}" for code in range(classes))
    return match_by_name(names, names, classes=classes)


class Echo(torch.nn.Module):
    """Logits are the first pixels of the image's first row; dropout, while training, would lose all of them."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.dropout = torch.nn.Dropout(1.0)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.batches: list[int] = []

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        self.batches.append(len(images_BCHW))
        logits_BC: torch.Tensor = self.dropout(images_BCHW[:, 0, 0, : self.classes] * self.scale)
        return logits_BC


def batches(pixels_NC: NDArray[np.uint8], labels: NDArray[np.int64] | Floats, *, size: int) -> list[Batch]:
    """Images of one row, whose pixels are what Echo will answer."""
    count, classes = pixels_NC.shape
    images_NHWC = np.broadcast_to(pixels_NC[:, None, :, None], (count, 1, classes, 3))
    return [
        Batch(
            images_BHWC=np.ascontiguousarray(images_NHWC[start : start + size]),
            labels=labels[start : start + size],
            index_B=np.arange(start, min(start + size, count)),
            epoch=0,
            position=min(start + size, count),
        )
        for start in range(0, count, size)
    ]
