"""Mean attention distance (section 4.5 and app. D.7, Fig. 7 right and Fig. 11): how far each head looks, in pixels.

Axes: L layers, B batch, H heads, N patches, R some of the N queries.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitlab.inspect.asking import Floats, Rows, as_floats, at_rest, batches, blocks, bytes_kept, chosen_layers, needs_attention
from vitlab.model.record import Record


def attention_distance(model: nn.Module, images_BCHW: Tensor, *, layers: Sequence[int] | None = None) -> Floats:
    """How far each head looks, (L, H), in pixels of the model's input, the mean over pictures and over asking patches.

    The authors' definition: the distance between the centres of two patches, weighted by attention, class and other prefix
    tokens cut on both sides and the rest not renormalised. Their figure is of 128 pictures.
    """
    vit = needs_attention(model, "attention distance")
    chosen = chosen_layers(len(vit.encoder.blocks), layers)
    total_LH = torch.zeros(len(chosen), vit.config.heads, dtype=torch.float64)
    with at_rest(vit), torch.inference_mode():
        for part_BCHW in batches(vit, images_BCHW, bytes_each=bytes_kept(vit, images_BCHW, len(chosen))):
            record = Record(layers=chosen, attention=False, gazes=True)
            vit.encoded(part_BCHW, record)
            grid, seen = (
                vit.config.grid_of((part_BCHW.shape[2], part_BCHW.shape[3])),
                dict(zip(record.recorded, record.gazes, strict=True)),
            )
            for place, layer in enumerate(chosen):
                total_LH[place] += distance(seen[layer], grid, vit.config.step, vit.config.prefix_tokens).sum(0).cpu()
    return as_floats(total_LH / len(images_BCHW))


def distance(layer: Rows, grid: tuple[int, int], step: tuple[int, int], prefix: int) -> Tensor:
    """One layer's mean distance, (B, H), `step` pixels lying between neighbours (down, across); a block of queries at a time."""
    patches = grid[0] * grid[1]
    total_BH: Tensor | None = None
    for tokens, rows_BHRN in blocks(layer, prefix, prefix + patches):
        far_RN = apart(torch.arange(tokens.start - prefix, tokens.stop - prefix, device=rows_BHRN.device), grid, step)
        part_BH = (rows_BHRN[..., prefix:] * far_RN.to(rows_BHRN.dtype)).sum((-2, -1)).double()
        total_BH = part_BH if total_BH is None else total_BH + part_BH
    assert total_BH is not None, "a grid has patches"
    return total_BH / patches


def apart(place_R: Tensor, grid: tuple[int, int], step: tuple[int, int]) -> Tensor:
    """Pixels between the centres of some patches, by their numbers in reading order, and of all, (R, N)."""
    place_N = torch.arange(grid[0] * grid[1], device=place_R.device)
    down_RN = (place_R[:, None] // grid[1] - place_N // grid[1]) * float(step[0])
    across_RN = (place_R[:, None] % grid[1] - place_N % grid[1]) * float(step[1])
    return torch.hypot(down_RN, across_RN)
