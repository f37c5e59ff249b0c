"""Attention as a filter: the weights A of a layer, the values v, and the filtered values A v (eq. 7).

Axes: B batch, C channels, H heads (of images: height), W width, N tokens, K width of a head, G x J patches down and across.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitlab.inference.backends import evaluating
from vitlab.interpretation.attention import Query, batches, chosen_layers, needs_attention, on_grid, place_of
from vitlab.models.record import Record


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filtered:
    """One layer: the attention of one token, (B, H, G, J), and by patch the values and the filtered values, (B, H, G, J, K)."""

    filter_BHGJ: Tensor
    values_BHGJK: Tensor
    filtered_BHGJK: Tensor


def filtered_values(model: nn.Module, images_BCHW: Tensor, query: Query, *, layer: int = -1) -> Filtered:
    """What a layer's attention makes of its values; `query` is the token whose filter is returned.

    The filtered values of a patch are the mean of all tokens' values, weighted by what it attends to; prefix tokens are part of it.
    """
    vit = needs_attention(model, "the attention filter")
    (chosen,) = chosen_layers(len(vit.encoder.blocks), [layer])
    prefix, filters, values, filtered = vit.config.prefix_tokens, list[Tensor](), list[Tensor](), list[Tensor]()
    with evaluating(vit), torch.enable_grad():  # a layer keeps its values where gradients flow
        for part_BCHW in batches(vit, images_BCHW, bytes_each=1 << 24):
            grid = vit.config.grid_of((part_BCHW.shape[2], part_BCHW.shape[3]))
            record = Record(layers=[chosen], attention=False, captures=True)
            vit.encode_images(part_BCHW.clone().requires_grad_(), record)
            (seen,) = record.captures
            assert seen.values_BHNK is not None
            assert seen.mixed_BHNK is not None
            token = place_of(query, vit.config, grid)
            filters.append(on_grid(seen.rows(token, token + 1)[:, :, 0, prefix:], grid).detach().float().cpu())
            for kept, numbers_BHNK in ((values, seen.values_BHNK), (filtered, seen.mixed_BHNK)):
                b, h, _, k = numbers_BHNK.shape
                kept.append(numbers_BHNK[:, :, prefix:].reshape(b, h, *grid, k).detach().float().cpu())
    return Filtered(filter_BHGJ=torch.cat(filters), values_BHGJK=torch.cat(values), filtered_BHGJK=torch.cat(filtered))
