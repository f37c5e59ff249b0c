"""Attention rollout (Abnar & Zuidema 2020; section 4.5 and app. D.8, Fig. 6 and 14): from which patches the answer comes.

Axes: B batch, H heads, N tokens, Q rows that are rolled, G x J patches down and across, K width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitlab.inspect.asking import Floats, Rows, as_floats, at_rest, batches, blocks, bytes_kept, needs_attention, on_grid
from vitlab.model.attention import weights
from vitlab.model.record import Record
from vitlab.model.vit import ViT


def rollout(model: nn.Module, images_BCHW: Tensor) -> Floats:
    """How much each patch is in what the pool reads, (B, G, J): shares of one whole, of which prefix tokens keep some.

    Heads averaged, the identity added for the residual connection, and the layers multiplied. It starts from what the pool
    reads: the class token; with a distillation token, from both; with mean pooling, from all patches alike; with attention
    pooling, from what the probe looks at.
    """
    vit = needs_attention(model, "attention rollout")
    maps = []
    with at_rest(vit), torch.inference_mode():
        for part_BCHW in batches(vit, images_BCHW, bytes_each=bytes_kept(vit, images_BCHW, len(vit.encoder.blocks))):
            record = Record(attention=False, gazes=True)
            z_BND = vit.encoded(part_BCHW, record)
            row_B1N = roll(pool_reads(vit, z_BND), record.gazes)
            grid = vit.config.grid_of((part_BCHW.shape[2], part_BCHW.shape[3]))
            maps.append(on_grid(row_B1N[:, 0, vit.config.prefix_tokens :], grid).cpu())
    return as_floats(torch.cat(maps))


def roll(row_BQN: Tensor, layers: Sequence[Rows]) -> Tensor:
    """Rows of tokens' shares followed from the last layer back to the first, (B, Q, N).

    The identity for `row_BQN` gives the whole matrix; one row costs no memory of N x N. (A + I) / 2 is A + I with its rows
    brought to sum one: the authors' sum differs by a factor of two a layer, and so not in the picture.
    """
    for layer in reversed(layers):
        row_BQN = (row_BQN + through(row_BQN, layer)) / 2
    return row_BQN


def through(row_BQN: Tensor, layer: Rows) -> Tensor:
    """The rows times the layer's attention, heads averaged, (B, Q, N): a block at a time, leaving out tokens without a share."""
    out_BQN = torch.zeros_like(row_BQN)
    asking = row_BQN.ne(0).any(0).any(0).nonzero().flatten().tolist()
    if asking:
        for tokens, rows_BHRN in blocks(layer, asking[0], asking[-1] + 1):
            out_BQN += row_BQN[:, :, tokens] @ rows_BHRN.mean(1)
    return out_BQN


def pool_reads(model: ViT, z_BND: Tensor) -> Tensor:
    """The share of each token in the pooled vector, (B, 1, N), of sum one."""
    config = model.config
    batch, tokens = z_BND.shape[:2]
    row_B1N = torch.zeros(batch, 1, tokens, device=z_BND.device)
    if model.pool is not None:
        q_BH1K, k_BHNK, _ = model.pool.asked(z_BND[:, config.prefix_tokens :])
        row_B1N[:, :, config.prefix_tokens :] = weights(q_BH1K, k_BHNK, None).mean(1).float()
    elif config.pool == "mean":
        row_B1N[:, :, config.prefix_tokens :] = 1 / (tokens - config.prefix_tokens)
    else:
        read = 1 + int(config.distill_token)
        row_B1N[:, :, :read] = 1 / read
    return row_B1N
