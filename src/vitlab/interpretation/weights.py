"""What the weights show: filters of the first layer (Fig. 7 left) and the similarity of positions (Fig. 7 centre).

Axes: O filters (outputs), M components, C channels, P x Q pixels of a filter, V = P Q C values of a filter, G x J patches down and
across, N = G J, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.errors import ConfigError, at_least
from vitlab.interpretation.attention import Floats, as_floats, chosen_layers, needs_attention
from vitlab.models.model import Model
from vitlab.models.resnet import StandardisedConv, standardise


def first_filters(model: nn.Module) -> Floats:
    """The filters on the pixels, (O, P, Q, C): the patch embedding, or the first convolution where there is one.

    Convolutions with weight standardisation (hybrids and BiT ResNets) give their standardised weights.
    """
    return as_floats(_first_OCPQ(model).permute(0, 2, 3, 1))


def principal_filters(model: nn.Module, count: int = 28) -> Floats:
    """The first principal components of those filters, (M, P, Q, C), orthonormal, the strongest first (Fig. 7 left).

    They are the directions in which the centred filters vary most. There are at most as many as a filter has values, and one less
    than there are filters. The sign makes the largest value positive.
    """
    at_least("count", count, 1)
    filters_OCPQ = _first_OCPQ(model)
    components_MV = principal_directions(filters_OCPQ.permute(0, 2, 3, 1).flatten(1))[0][:count]
    _, channels, height, width = filters_OCPQ.shape
    return as_floats(components_MV.view(-1, height, width, channels))


def principal_directions(samples_OV: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal directions of variance, (M, V), the strongest first, and the fraction of the variance in each, (M,).

    Directions without variance are left out: only rounding would choose them.
    """
    centred_OV = samples_OV.double() - samples_OV.double().mean(0)
    _, strength_M, directions_MV = torch.linalg.svd(centred_OV, full_matrices=False)
    kept = int((strength_M > strength_M[:1] * 1e-7).sum())
    if kept == 0:
        raise ConfigError("all filters are the same, so they have no principal components", hint="is the model initialised?")
    directions_MV, strength_M = directions_MV[:kept], strength_M[:kept]
    largest_M1 = directions_MV.gather(1, directions_MV.abs().argmax(1, keepdim=True))
    variance_M = strength_M.square()
    return directions_MV * largest_M1.sign(), variance_M / variance_M.sum()


def meets_pixels_by(model: nn.Module) -> str:
    """In words, which layer the first filters are of."""
    return "patch embedding" if _own(model).config.first_kernel == "patches.weight" else "first convolution"


def _first_OCPQ(model: nn.Module) -> Tensor:
    name = _own(model).config.first_kernel
    layer, kernel_OCPQ = model.get_submodule(name.rpartition(".")[0]), model.get_parameter(name).detach()
    if isinstance(layer, StandardisedConv):
        return standardise(kernel_OCPQ, form=layer.form, eps=layer.eps)
    return kernel_OCPQ


def _own(model: nn.Module) -> Model:
    if not isinstance(model, Model):
        raise ConfigError(f"first_filters works for vitlab's own models, not for a {type(model).__name__}")
    return model


def position_similarity(model: nn.Module, *, layer: int = 0) -> Floats:
    """Cosine similarity of each patch's position embedding to all others, (G, J, G, J), from -1 to 1; `[row, column]` is one tile.

    `layer` matters only where each layer has its own positions.
    """
    vit = needs_attention(model, "position similarity")
    position = vit.config.position
    chosen_layers(len(vit.encoder.blocks), [layer])
    if position.kind == "none":
        inside = "; its positions act inside attention" if position.rotary is not None or position.bias is not None else ""
        raise ConfigError(f"the model has no position embeddings to compare{inside}")
    if position.kind == "relative":
        raise ConfigError("the model embeds offsets between patches, so no patch has a position of its own to compare")
    g, j = vit.config.grid
    with torch.inference_mode():
        table_1ND = vit.position.added(layer % len(vit.encoder.blocks), (g, j))
        if table_1ND is None:
            raise ConfigError(f"positions are added before the first layer only, not at layer {layer}", hint="layer=0")
        unit_ND = F.normalize(table_1ND[0, vit.config.prefix_tokens :].double(), dim=1)
        return as_floats((unit_ND @ unit_ND.T).view(g, j, g, j))
