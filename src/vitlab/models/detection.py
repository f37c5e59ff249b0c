"""Object detection by tokens (YOLOS, Fang et al. 2021): each detection token says a class and a box.

Axes: B batch, Q detection tokens, D width, C classes of which the last is "no object", 4 the box: centre across and down, width and
height, as fractions of the image.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.models.model import Draw, zero


class Detections(NamedTuple):
    """What the detection tokens of each image say."""

    logits_BQC: Tensor
    boxes_BQ4: Tensor


class DetectionHead(nn.Module):
    """Two MLPs of three dense layers over each detection token: the logits of its class, and its box."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.classes = nn.ModuleList(nn.Linear(width, outputs) for outputs in (width, width, classes))
        self.boxes = nn.ModuleList(nn.Linear(width, outputs) for outputs in (width, width, 4))

    def forward(self, z_BQD: Tensor) -> Detections:
        return Detections(logits_BQC=_through(self.classes, z_BQD), boxes_BQ4=_through(self.boxes, z_BQD).sigmoid())


def _through(layers: nn.ModuleList, x_BQD: Tensor) -> Tensor:
    first, second, last = layers
    y_BQD: Tensor = last(F.relu(second(F.relu(first(x_BQD)))))
    return y_BQD


def init_detection(head: DetectionHead, draw: Draw) -> None:
    """Xavier-uniform weights and biases of zero."""
    for dense in (*head.classes, *head.boxes):
        assert isinstance(dense, nn.Linear)
        draw.xavier_uniform(dense.weight)
        zero(dense.bias)
