"""NaViT (Dehghani et al. 2023): images of different shapes packed into one sequence, each of which attends to itself alone.

All tokens of the pack go through norms and dense layers together, whatever image they belong to; attention runs over the slice of
each image, so no mask and no padding is computed. Positions are those of each image's own grid, interpolated from the model's
table: a patch at a third of the height has the position of a third of the height, in every shape.

Axes: B images, C channels or classes, R rows and V pixels of a patch as in `data/transforms.py`, T tokens of all images, N of one,
H heads, K width of a head, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.models.attention_variants import AttentionContext
from vitlab.models.position import Grid, Positions, Rotation
from vitlab.models.vit import Attention, Block, ViT


class PackedViT(nn.Module):
    """A ViT that takes images of different shapes as rows of patches (B, C, R, V), normalised, with the grid of each image.

    The result for an image is that of the ViT for the image alone, to rounding.
    """

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, images_BCRV: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Logits (B, classes), or features where there is no head."""
        return torch.cat([self.vit.logits_from(z_1ND) for z_1ND in self.encode(images_BCRV, grids)])

    def both(self, images_BCRV: Tensor, grids: Sequence[Grid]) -> tuple[Tensor, Tensor]:
        """Logits (B, classes) and features (B, D)."""
        vit, found = self.vit, self.encode(images_BCRV, grids)
        features_BD = torch.cat([vit.represent(vit.pool_tokens(z_1ND)) for z_1ND in found])
        return torch.cat([vit.logits_from(z_1ND) for z_1ND in found]), features_BD

    def encode(self, images_BCRV: Tensor, grids: Sequence[Grid]) -> list[Tensor]:
        """The tokens of each image after the encoder, (1, N, D)."""
        vit, position, encoder = self.vit, self.vit.position, self.vit.encoder
        used = [image_CRV[:, : g * j].transpose(0, 1).flatten(1) for image_CRV, (g, j) in zip(images_BCRV, grids, strict=True)]
        patches_TD = F.linear(torch.cat(used), vit.patches.weight.flatten(1), vit.patches.bias)  # x_p E of eq. 1
        patches_TD = patches_TD if vit.patch_norm is None else vit.patch_norm(patches_TD)
        parts = [
            torch.cat([*vit.prefix(1), part_ND[None]], dim=1) for part_ND in torch.split(patches_TD, [len(rows) for rows in used])
        ]
        z_1TD = torch.cat(parts, dim=1)
        if (E_pos_1TD := added(position, 0, grids)) is not None:
            z_1TD = z_1TD + E_pos_1TD  # eq. 1
        kept = [vit.drop_patches(z_1ND) for z_1ND in torch.split(vit.dropout(z_1TD), [part.shape[1] for part in parts], dim=1)]
        lengths, z_1TD = [z_1ND.shape[1] for z_1ND in kept], torch.cat(kept, dim=1)
        z_1TD = z_1TD if encoder.pre_norm is None else encoder.pre_norm(z_1TD)
        for layer, block in enumerate(encoder.blocks):
            assert isinstance(block, Block), "`why_not_packed` refuses others"
            if layer > 0 and (added_1TD := added(position, layer, grids)) is not None:
                z_1TD = z_1TD + added_1TD
            inside = layer, rotation(position, layer, grids), biases(position, layer, grids)
            if encoder.recompute and torch.is_grad_enabled():
                z_1TD = checkpoint(packed_block, block, z_1TD, lengths, *inside, use_reentrant=False)
            else:
                z_1TD = packed_block(block, z_1TD, lengths, *inside)
        z_1TD = z_1TD if encoder.norm is None else encoder.norm(z_1TD)
        return list(torch.split(z_1TD, lengths, dim=1))


def packed_block(
    block: Block, z_1TD: Tensor, lengths: list[int], layer: int, turn: Rotation | None, bias: list[Tensor] | None
) -> Tensor:
    """One layer of the encoder, eq. 2 and 3, for images of these numbers of tokens."""
    drop = block.drop if block.training else 0.0
    x_1TD = z_1TD if block.post else block.norm1(z_1TD)
    y_1TD = packed_attention(block.attention, x_1TD, lengths, layer, turn, bias)
    if block.post:
        y_1TD = block.norm1(y_1TD)
    elif block.parallel:
        y_1TD = y_1TD + block.mlp(x_1TD)
    z_1TD = z_1TD + dropped(y_1TD, block.scale1, drop, lengths)  # eq. 2
    if block.norm2 is None:
        return z_1TD
    y_1TD = block.norm2(block.mlp(z_1TD)) if block.post else block.mlp(block.norm2(z_1TD))
    return z_1TD + dropped(y_1TD, block.scale2, drop, lengths)  # eq. 3


def packed_attention(
    attention: Attention, x_1TD: Tensor, lengths: list[int], layer: int, turn: Rotation | None, bias: list[Tensor] | None
) -> Tensor:
    """Attention of each image among its own tokens."""
    context = AttentionContext(layer=layer, grid=(1, 1), prefix=0, mask_NN=None, rotation=turn)
    queries, keys, values = (torch.split(x, lengths, dim=2) for x in attention.queries_keys_values(x_1TD, context))  # eq. 5
    masks = [None] * len(lengths) if bias is None else [one.to(x_1TD.dtype) for one in bias]
    mixed = [
        F.scaled_dot_product_attention(q_1HNK, k_1HNK, v_1HNK, attn_mask=mask)  # eq. 6 and 7
        for q_1HNK, k_1HNK, v_1HNK, mask in zip(queries, keys, values, masks, strict=True)
    ]
    y_1TD = torch.cat(mixed, dim=2).transpose(1, 2).flatten(2)
    y_1TD = y_1TD if attention.norm is None else attention.norm(y_1TD)
    out_1TD: Tensor = attention.dropout(attention.out(y_1TD))  # eq. 8
    return out_1TD


def dropped(y_1TD: Tensor, scale_D: Tensor | None, drop: float, lengths: list[int]) -> Tensor:
    """A residual branch times its layer scale; stochastic depth drops it for whole images."""
    if scale_D is not None:
        y_1TD = y_1TD * scale_D
    if drop > 0:
        kept_B = (torch.rand(len(lengths), device=y_1TD.device) >= drop).to(y_1TD.dtype) / (1 - drop)
        y_1TD = y_1TD * kept_B.repeat_interleave(torch.tensor(lengths, device=y_1TD.device))[None, :, None]
    return y_1TD


def added(position: Positions, layer: int, grids: Sequence[Grid]) -> Tensor | None:
    """What is added to the tokens that enter this layer, (1, T, D), or None."""
    tables = {grid: position.added(layer, grid) for grid in dict.fromkeys(grids)}
    found = [table for grid in grids if (table := tables[grid]) is not None]
    return torch.cat(found, dim=1) if found else None


def rotation(position: Positions, layer: int, grids: Sequence[Grid]) -> Rotation | None:
    """How this layer turns the queries and keys of all images, or None."""
    turns = {grid: position.rotation(layer, grid) for grid in dict.fromkeys(grids)}
    found = [turn for grid in grids if (turn := turns[grid]) is not None]
    if not found:
        return None
    cos, sin = torch.cat([turn.cos_NK for turn in found], dim=-2), torch.cat([turn.sin_NK for turn in found], dim=-2)
    return Rotation(cos_NK=cos, sin_NK=sin, halves=found[0].halves)


def biases(position: Positions, layer: int, grids: Sequence[Grid]) -> list[Tensor] | None:
    """What this layer adds to the attention logits of each image, or None."""
    tables = {grid: position.attention_bias(layer, grid) for grid in dict.fromkeys(grids)}
    found = [bias for grid in grids if (bias := tables[grid]) is not None]
    return found or None
