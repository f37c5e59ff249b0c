"""The effective receptive field: which pixels a feature in the middle of the image depends on (Luo et al. 2016).

It is the mean size of the gradient of that feature with respect to each pixel. A convolution sees a spot that grows with depth; a
patch of a ViT sees the whole image from the first layer on.

Axes: L layers or stages, B batch, C channels, H height, W width, G x J places down and across, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.errors import ConfigError
from vitlab.inference.backends import evaluating
from vitlab.interpretation.attention import Floats, as_floats, batches, chosen_layers
from vitlab.models.families import Model
from vitlab.models.record import Record
from vitlab.models.recurrent import Recurrent
from vitlab.models.vit import ViT

_IMAGES = 4  # at a time, since all layers keep what their gradients need


def receptive_fields(
    model: nn.Module, images_BCHW: Tensor, *, layers: Sequence[int] | None = None, seed: int = 0
) -> tuple[list[int], Floats]:
    """The numbers of the chosen layers (of a convolutional model: stages), and a field for each, (L, H, W); None means all layers.

    A field is the mean over images of the absolute gradient of one number, a random sum of the middle place's features with signs
    drawn by `seed`, summed over channels, and divided by its sum.
    """
    if not isinstance(model, Model):
        raise ConfigError(f"the receptive field is for vitlab's own models, not for a {type(model).__name__}")
    total_LHW: Tensor | None = None
    chosen: list[int] = []
    with evaluating(model), torch.enable_grad():
        for few_BCHW in torch.split(images_BCHW, _IMAGES):
            for part_BCHW in batches(model, few_BCHW, bytes_each=1):
                pixels_BCHW = part_BCHW.clone().requires_grad_()
                seen = _places(model, pixels_BCHW)
                chosen = chosen_layers(len(seen), layers)
                fields = [_field(seen[layer], pixels_BCHW, seed) for layer in chosen]
                part_LHW = torch.stack(fields)
                total_LHW = part_LHW if total_LHW is None else total_LHW + part_LHW
    assert total_LHW is not None
    return chosen, as_floats(total_LHW / total_LHW.sum((1, 2), keepdim=True))


def _places(model: Model, images_BCHW: Tensor) -> list[Tensor]:
    """The features of every layer or stage by place, (B, G, J, D) each."""
    if isinstance(model, ViT | Recurrent):
        record = Record(attention=False, tokens=True)
        _ = model.encode_images(images_BCHW, record) if isinstance(model, ViT) else model.features(images_BCHW, record)
        prefix = model.config.prefix_tokens if isinstance(model, ViT) else 0
        step = model.config.step if isinstance(model, ViT) else model.config.patch_size
        grid = -(-images_BCHW.shape[2] // step[0]), -(-images_BCHW.shape[3] // step[1])
        return [z_BND[:, prefix:].reshape(len(z_BND), *grid, -1) for z_BND in record.tokens_BND]
    record = Record(attention=False, maps=True)
    model.features(images_BCHW, record)
    return [x_BCHW.permute(0, 2, 3, 1) for x_BCHW in record.maps_BCHW]


def _field(features_BGJD: Tensor, pixels_BCHW: Tensor, seed: int) -> Tensor:
    _, g, j, d = features_BGJD.shape
    signs_D = torch.randint(0, 2, (d,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    one = (features_BGJD[:, g // 2, j // 2] * signs_D.to(features_BGJD)).sum()
    (gradient_BCHW,) = torch.autograd.grad(one, pixels_BCHW, retain_graph=True)
    return gradient_BCHW.abs().sum((0, 1)).double().cpu()


def field_distance(field_HW: Floats, grid: tuple[int, int]) -> float:
    """Mean distance in pixels from the middle place of a grid to the pixels that it depends on, weighted by the field.

    The same measure as attention distance: it compares what a layer attends to with what it depends on.
    """
    height, width = field_HW.shape
    middle = ((grid[0] // 2 + 0.5) * height / grid[0], (grid[1] // 2 + 0.5) * width / grid[1])
    down_HW, across_HW = np.meshgrid(np.arange(height) + 0.5 - middle[0], np.arange(width) + 0.5 - middle[1], indexing="ij")
    return float((field_HW * np.hypot(down_HW, across_HW)).sum() / field_HW.sum())
