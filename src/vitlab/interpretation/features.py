"""What features show: principal components of patch features as a map of three colours, in which similar patches get similar
colours; Grad-CAM (Selvaraju et al. 2017), the evidence of each place for a class, for models without attention; and the effective
receptive field (Luo et al. 2016), which pixels a feature in the middle of the image depends on.

The receptive field is the mean size of the gradient of that feature with respect to each pixel. A convolution sees a spot that
grows with depth; a patch of a ViT sees the whole image from the first layer on.

Axes: L layers or stages, B batch, C channels or classes, H height, W width, G x J places down and across, N = G J, D width, M
components.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.errors import ConfigError, at_least
from vitlab.inference.backends import evaluating
from vitlab.interpretation.attention import (
    Floats,
    a_class_each,
    as_floats,
    batches,
    bytes_kept,
    chosen_classes,
    chosen_layers,
    needs_head,
)
from vitlab.interpretation.weights import principal_directions
from vitlab.models.model import Model
from vitlab.models.record import Record
from vitlab.models.recurrent import Recurrent
from vitlab.models.vit import ViT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenPca:
    """`scores_BGJM`: each place's coordinate along each component; `explained_M`: the fraction of the variance it explains."""

    scores_BGJM: Floats
    explained_M: Floats


def token_pca(model: nn.Module, images_BCHW: Tensor, *, layer: int | None = None, components: int = 3) -> TokenPca:
    """The principal components of patch features over all images together: similar places get similar scores.

    `layer` is a layer, or a convolutional model's or Swin's stage, from 0 or negative from the end; None is the last, a ViT's
    after its last LayerNorm.
    """
    at_least("components", components, 1)
    return principal_components(place_features(model, images_BCHW, layer=layer), components)


def principal_components(features_BGJD: Tensor, components: int = 3) -> TokenPca:
    """The principal components of features that are given, over all images together."""
    b, g, j, d = features_BGJD.shape
    flat_ND = features_BGJD.reshape(-1, d).double()
    directions_MD, explained_M = principal_directions(flat_ND)
    scores_NM = (flat_ND - flat_ND.mean(0)) @ directions_MD[:components].T
    return TokenPca(scores_BGJM=as_floats(scores_NM.view(b, g, j, -1)), explained_M=as_floats(explained_M[:components]))


def place_features(model: nn.Module, images_BCHW: Tensor, *, layer: int | None = None) -> Tensor:
    """The features of each patch, or of each place of a stage's maps, (B, G, J, D), on the CPU."""
    with evaluating(model), torch.inference_mode():
        parts = batches(model, images_BCHW, bytes_each=_bytes(model, images_BCHW))
        return torch.cat([_features(model, part_BCHW, layer).float().cpu() for part_BCHW in parts])


def _features(model: nn.Module, images_BCHW: Tensor, layer: int | None) -> Tensor:
    asked = [-1 if layer is None else layer]
    match model:
        case ViT():
            record = Record(layers=asked, attention=False, tokens=layer is not None)
            z_BND = model.encode_images(images_BCHW, record)
            z_BND = z_BND if layer is None else record.tokens_BND[0]
            grid = model.config.grid_of((images_BCHW.shape[2], images_BCHW.shape[3]))
            return z_BND[:, model.config.prefix_tokens :].reshape(len(z_BND), *grid, -1)
        case Recurrent():
            record = Record(layers=asked, attention=False, tokens=True)
            model.features(images_BCHW, record)
            down, across = model.config.patch_size
            grid = -(-images_BCHW.shape[2] // down), -(-images_BCHW.shape[3] // across)
            return record.tokens_BND[0].reshape(len(images_BCHW), *grid, -1)
    if isinstance(model, Model):  # every other family has maps
        record = Record(layers=asked, attention=False, maps=True)
        model.features(images_BCHW, record)
        return record.maps_BCHW[0].permute(0, 2, 3, 1)
    raise ConfigError(f"token_pca works for vitlab's own models, not for a {type(model).__name__}")


def _bytes(model: nn.Module, images_BCHW: Tensor) -> int:
    """Bytes that one image keeps: a ViT's tokens, or other models' largest maps, about 64 bytes a pixel."""
    if isinstance(model, ViT):
        return bytes_kept(model, images_BCHW, 1)
    return int(images_BCHW.shape[-1] * images_BCHW.shape[-2]) * 64


def class_activation(model: nn.Module, images_BCHW: Tensor, classes: int | Sequence[int] | None = None) -> Floats:
    """The evidence of each place of the last feature maps for a class, (B, G, J), at least 0.

    Each map is weighted by the mean gradient of the class's logit over its places; negative sums count as zero. `classes` is one
    for all images or one for each; None takes the predicted class.
    """
    needs_head(model, "Grad-CAM")
    if not isinstance(model, Model) or isinstance(model, ViT | Recurrent):
        raise ConfigError(f"Grad-CAM needs feature maps, and a {type(model).__name__} has tokens", hint="use relevance")
    wanted = a_class_each(classes, len(images_BCHW))
    maps, done = [], 0
    with evaluating(model):
        for part_BCHW in batches(model, images_BCHW, bytes_each=int(images_BCHW.shape[-1] * images_BCHW.shape[-2]) * 512):
            own = None if wanted is None else wanted[done : done + len(part_BCHW)]
            done += len(part_BCHW)
            maps.append(_evidence(model, part_BCHW, own).float().cpu())
    return as_floats(torch.cat(maps))


def _evidence(model: Model, images_BCHW: Tensor, classes: Sequence[int] | None) -> Tensor:
    record = Record(layers=[-1], attention=False, maps=True)
    with torch.inference_mode(False), torch.enable_grad():  # whatever mode the caller is in
        logits_BC: Tensor = model(images_BCHW.clone().detach().requires_grad_(), record)
        chosen = logits_BC.gather(1, chosen_classes(logits_BC, classes)[:, None]).sum()
        (gradient_BCGJ,) = torch.autograd.grad(chosen, [record.maps_BCHW[0]])
    maps_BCGJ = record.maps_BCHW[0].detach()
    return (gradient_BCGJ.mean((2, 3), keepdim=True) * maps_BCGJ).sum(1).relu()


# --- the effective receptive field --------------------------------------------------------------------------------------------

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
