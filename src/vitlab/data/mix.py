"""Mixup and CutMix of the images and targets of a batch. Pure functions of (batch, targets, rng).

A batch is uint8 or float; its targets are soft, [B, K]; the sum of each row is kept.
Axes: B batch, H height, W width, C channels, K classes.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from vitlab.config.data import Augment
from vitlab.errors import DataError

Layout = Literal["BHWC", "BCHW"]
Mixed = tuple[torch.Tensor, torch.Tensor]


def mix(
    images: torch.Tensor, targets_BK: torch.Tensor, rng: np.random.Generator, config: Augment, *, layout: Layout = "BHWC"
) -> Mixed:
    """Apply mixup or CutMix as `config` says; if both are on, each batch takes one of them with equal probability."""
    either = config.mixup > 0 and config.cutmix > 0
    if rng.random() < 0.5 if either else config.mixup > 0:
        return mixup(images, targets_BK, rng, config.mixup)
    if config.cutmix:
        return cutmix(images, targets_BK, rng, config.cutmix, layout=layout)
    return images, targets_BK


def mixup(images: torch.Tensor, targets_BK: torch.Tensor, rng: np.random.Generator, alpha: float) -> Mixed:
    """Blend every image with its partner, with one weight from Beta(alpha, alpha) for the whole batch.

    The image itself has the larger weight, as in the official code; uint8 is rounded back to uint8.
    """
    _check(images, targets_BK, alpha)
    weight = rng.beta(alpha, alpha)
    weight = max(weight, 1 - weight)
    blended = _blend(images, partners(images), weight)
    return blended, _blend(targets_BK, partners(targets_BK), weight)


def cutmix(
    images: torch.Tensor, targets_BK: torch.Tensor, rng: np.random.Generator, alpha: float, *, layout: Layout = "BHWC"
) -> Mixed:
    """Paste one box, the same for the whole batch, from each image's partner; targets are weighted by area.

    The box has the image's aspect ratio and a fraction 1 - Beta(alpha, alpha) of its area, around a uniformly random centre,
    clipped at the border ("CutMix", Yun et al., 2019, eq. 2); the weight is that of the clipped box.
    """
    _check(images, targets_BK, alpha)
    height_axis, width_axis = layout.index("H"), layout.index("W")
    height, width = images.shape[height_axis], images.shape[width_axis]
    side = math.sqrt(1 - rng.beta(alpha, alpha))
    down, across = rng.random(2)
    top, bottom = _reach(int(down * height), int(height * side), height)
    left, right = _reach(int(across * width), int(width * side), width)
    mixed = images.clone()
    box = mixed.narrow(height_axis, top, bottom - top).narrow(width_axis, left, right - left)
    other = partners(images).narrow(height_axis, top, bottom - top).narrow(width_axis, left, right - left)
    box.copy_(other)
    weight = 1 - (bottom - top) * (right - left) / (height * width)
    return mixed, _blend(targets_BK, partners(targets_BK), weight)


def partners(rows: torch.Tensor) -> torch.Tensor:
    """The partner of each row: rows 0 and 1 are partners, 2 and 3, ...; a last odd row takes the row before it.

    So a rank with an even number of rows mixes them as the whole batch would.
    """
    other_B = torch.arange(len(rows), device=rows.device) ^ 1
    return rows[torch.where(other_B < len(rows), other_B, max(len(rows) - 2, 0))]


def one_hot(labels_B: torch.Tensor, classes: int) -> torch.Tensor:
    """Labels as float targets, [B, K]; DataError if a label is not below `classes`."""
    if labels_B.numel() and not 0 <= int(labels_B.min()) <= int(labels_B.max()) < classes:
        raise DataError(f"labels run from {int(labels_B.min())} to {int(labels_B.max())}, but there are {classes} classes")
    return F.one_hot(labels_B.long(), classes).float()


def _reach(centre: int, length: int, most: int) -> tuple[int, int]:
    return max(0, centre - length // 2), min(most, centre - length // 2 + length)


def _blend(mine: torch.Tensor, other: torch.Tensor, weight: float) -> torch.Tensor:
    if mine.dtype == torch.uint8:
        return torch.lerp(other.float(), mine.float(), weight).round_().to(torch.uint8)
    return torch.lerp(other, mine, weight)


def _check(images: torch.Tensor, targets_BK: torch.Tensor, alpha: float) -> None:
    if images.ndim != 4 or targets_BK.ndim != 2 or len(images) != len(targets_BK):
        raise DataError(f"a batch {list(images.shape)} cannot be mixed with targets {list(targets_BK.shape)}")
    if not targets_BK.is_floating_point():
        raise DataError("mixing needs soft targets [batch, classes]", hint="make them with one_hot")
    assert alpha > 0, "no mixing was asked for"
