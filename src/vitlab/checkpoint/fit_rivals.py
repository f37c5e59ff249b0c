"""Rivals' weights fitted to other pictures and classes: what `fit` does for models that are neither ViTs nor BiT ResNets."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from vitlab.config.rivals import RivalConfig
from vitlab.config.swin import SwinConfig

# The kernel that sees the picture, by kind of model.
FIRST = {"swin": "patches.weight", "convnext": "patches.weight", "efficientnet": "stem.weight", "recurrent": "patches.weight"}


def fit_size(
    state: dict[str, Tensor],
    config: RivalConfig,
    image_size: tuple[int, int] | None,
    window: tuple[int, int] | None,
    notes: list[str],
) -> RivalConfig:
    """The model for pictures of another size; a Swin's tables of offsets are resized where its windows become others."""
    if not isinstance(config, SwinConfig):
        return config if image_size is None else replace(config, image_size=image_size)
    target = replace(config, image_size=image_size or config.image_size, window=window or config.window)
    for stage, (old, new) in enumerate(zip(config.windows, target.windows, strict=True)):
        if old != new:
            for block in range(config.depths[stage]):
                key = f"stages.{stage}.blocks.{block}.attention.offset_bias"
                state[key] = resize_offsets(state[key], old, new)
            notes.append(
                f"stage {stage}: windows of {_by(new)} instead of {_by(old)} patches, their offset biases resized (bicubic)"
            )
    return target


def resize_offsets(table_OH: Tensor, window: tuple[int, int], other: tuple[int, int]) -> Tensor:
    """A table of one bias for each offset and head, for another window: bicubic, as the authors of Swin load it."""
    down, across = 2 * window[0] - 1, 2 * window[1] - 1
    size = (2 * other[0] - 1, 2 * other[1] - 1)
    maps_1HGJ = table_OH.float().T.reshape(1, -1, down, across)
    resized_1HGJ = F.interpolate(maps_1HGJ, size, mode="bicubic", align_corners=False)
    return resized_1HGJ.reshape(table_OH.shape[1], -1).T.contiguous().to(table_OH.dtype)


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
