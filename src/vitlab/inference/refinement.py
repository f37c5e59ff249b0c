"""Sharper masks: a fully connected CRF's mean field (Kraehenbuehl and Koltun 2011), restricted to a window around each pixel.

A mask is as coarse as the grid of patches, and the image is not. A few rounds move each pixel towards the classes of pixels near it
of similar colour, so that the border of a mask follows the edges of the image.

Axes: C classes, H W pixels, K channels of the image.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Chosen on the val split of Oxford-IIIT Pets among weights of 2, 5, 10 and colours of 10, 20: docs/log.md.
_REACH = 4  # offsets to each side, so 80 neighbours
_SPREAD = 3.0  # standard deviation of the distance, in offsets
_COLOUR = 20.0  # standard deviation of the difference of colours, in levels
_WEIGHT = 5.0  # of the neighbours beside the pixel's own logits
_ROUNDS = 3


def refined(logits_CHW: Tensor, image_HWK: NDArray[np.uint8], *, patch: tuple[float, float]) -> Tensor:
    """Logits of an image's pixels after the mean field; `patch` is the (height, width) of a patch in pixels of the image.

    The window reaches half a patch to each side: as far as a mask can be wrong because its grid is coarse.
    """
    height, width = logits_CHW.shape[1:]
    down, across = (max(1, round(side / (2 * _REACH))) for side in patch)
    image_KHW = torch.from_numpy(np.ascontiguousarray(image_HWK)).permute(2, 0, 1).to(logits_CHW.dtype)
    scale = 3 / (image_KHW.shape[0] * 2 * _COLOUR**2)  # colours of three channels and grey levels count alike
    steps = [(row, column) for row in range(-_REACH, _REACH + 1) for column in range(-_REACH, _REACH + 1) if row or column]
    steps = [(row, column) for row, column in steps if abs(row * down) < height and abs(column * across) < width]
    chances_CHW = logits_CHW.softmax(0)
    for _ in range(_ROUNDS if steps else 0):
        message_CHW, total_HW = torch.zeros_like(logits_CHW), torch.full((height, width), 1e-6, dtype=logits_CHW.dtype)
        for row, column in steps:
            near = math.exp(-(row**2 + column**2) / (2 * _SPREAD**2))
            here, there = _overlap(row * down, height, column * across, width)
            difference_HW = (image_KHW[there] - image_KHW[here]).square_().sum(0)
            kernel_HW = difference_HW.mul_(-scale).exp_().mul_(near)
            message_CHW[here] += chances_CHW[there] * kernel_HW
            total_HW[here[1:]] += kernel_HW
        chances_CHW = (logits_CHW + _WEIGHT * message_CHW / total_HW).softmax(0)
    return chances_CHW.log() if steps else logits_CHW


def _overlap(down: int, height: int, across: int, width: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where pixels have a neighbour at this offset, and where those neighbours are."""
    here = (slice(max(0, -down), height - max(0, down)), slice(max(0, -across), width - max(0, across)))
    there = (slice(max(0, down), height - max(0, -down)), slice(max(0, across), width - max(0, -across)))
    return (slice(None), *here), (slice(None), *there)
