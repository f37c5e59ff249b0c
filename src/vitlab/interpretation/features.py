"""What features show: principal components of patch features as a map of three colours, in which similar patches get similar
colours; and Grad-CAM (Selvaraju et al. 2017), the evidence of each place for a class, for models without attention.

Axes: B batch, C channels or classes, G x J places down and across, N = G J, D width, M components.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitlab.errors import ConfigError, at_least
from vitlab.inference.backends import evaluating
from vitlab.interpretation.attention import Floats, a_class_each, as_floats, batches, bytes_kept, chosen_classes, needs_head
from vitlab.interpretation.weights import principal_directions
from vitlab.models.families import Model
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
