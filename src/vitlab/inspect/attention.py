"""What one token looks at, in any layer and head: a patch, the class token, or the probe of an attention pool.

Axes: L layers, B batch, H heads, N tokens, G x J patches down and across.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from vitlab.config.model import ViTConfig
from vitlab.errors import ConfigError
from vitlab.inspect.asking import Floats, as_floats, at_rest, batches, bytes_kept, chosen_layers, needs_attention, on_grid
from vitlab.model.attention import weights
from vitlab.model.record import Record
from vitlab.model.vit import ViT

Query = Literal["class", "distill"] | tuple[int, int]  # a token by its name, or a patch by (row, column) from 0


def class_attention(model: nn.Module, images_BCHW: Tensor, *, layers: Sequence[int] | None = None) -> Floats:
    """What the class token looks at, (L, B, H, G, J); without one, what an attention pool's probe looks at, as the one layer.

    Attention to class and other prefix tokens is cut and the rest not renormalised: a map sums to at most one.
    """
    vit = needs_attention(model, "class-token attention")
    if vit.config.class_token:
        return query_attention(vit, images_BCHW, "class", layers=layers)
    if vit.pool is None:
        raise ConfigError(
            "the model has no class token: the mean of its patches is what the head sees",
            hint="rollout follows that mean; query_attention takes a patch",
        )
    if layers is not None:
        raise ConfigError(
            "the model has no class token: its pool's probe looks once, after the last layer", hint="leave layers out"
        )
    return _probe_attention(vit, images_BCHW)


def query_attention(model: nn.Module, images_BCHW: Tensor, query: Query, *, layers: Sequence[int] | None = None) -> Floats:
    """What one token looks at, (L, B, H, G, J): a patch by (row, column) from 0, or "class" or "distill".

    Attention to class and other prefix tokens is cut and the rest not renormalised: a map sums to at most one.
    """
    vit = needs_attention(model, "attention")
    chosen = chosen_layers(len(vit.encoder.blocks), layers)
    parts = []
    with at_rest(vit), torch.inference_mode():
        for part_BCHW in batches(vit, images_BCHW, bytes_each=bytes_kept(vit, images_BCHW, len(chosen))):
            grid = vit.config.grid_of((part_BCHW.shape[2], part_BCHW.shape[3]))
            token = place_of(query, vit.config, grid)
            record = Record(layers=chosen, attention=False, gazes=True)
            vit.encoded(part_BCHW, record)
            seen = dict(zip(record.recorded, record.gazes, strict=True))
            rows_LBHN = torch.stack([seen[layer].rows(token, token + 1)[:, :, 0] for layer in chosen])
            parts.append(on_grid(rows_LBHN[..., vit.config.prefix_tokens :], grid).cpu())
    return as_floats(torch.cat(parts, dim=1))


def place_of(query: Query, config: ViTConfig, grid: tuple[int, int]) -> int:
    """The token's place in the sequence."""
    match query:
        case "class":
            if not config.class_token:
                raise ConfigError("the model has no class token", hint="query a patch by (row, column)")
            return 0
        case "distill":
            if not config.distill_token:
                raise ConfigError("the model has no distillation token", hint="query a patch by (row, column)")
            return int(config.class_token)
        case (row, column):
            if not (0 <= row < grid[0] and 0 <= column < grid[1]):
                raise ConfigError(f"there is no patch ({row}, {column}): the grid is {grid[0]} x {grid[1]}, counted from 0")
            return config.prefix_tokens + row * grid[1] + column


def _probe_attention(vit: ViT, images_BCHW: Tensor) -> Floats:
    assert vit.pool is not None
    parts = []
    with at_rest(vit), torch.inference_mode():
        for part_BCHW in batches(vit, images_BCHW, bytes_each=bytes_kept(vit, images_BCHW, 1)):
            z_BND = vit.encoded(part_BCHW)
            q_BH1K, k_BHNK, _ = vit.pool.asked(z_BND[:, vit.config.prefix_tokens :])
            grid = vit.config.grid_of((part_BCHW.shape[2], part_BCHW.shape[3]))
            parts.append(on_grid(weights(q_BH1K, k_BHNK, None)[:, :, 0], grid).float().cpu())
    return as_floats(torch.cat(parts)[None])
