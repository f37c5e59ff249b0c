"""Attention beyond "every token sees every token": local, axial and relative attention, and capturing attention for inspection.

`vit.py` holds the attention of the paper's appendix A. This file holds what changes it: the mask of local attention, axial
attention along rows and columns (app. D.6), relative positions inside attention (app. D.4), and `AttentionCapture`, from which
any rows of a layer's attention matrix are computed later.

Axes: B batch, N tokens (P prefix tokens, then G x J patches), D width, H heads, K = D / H width of a head, M = 2 G J - 1 offsets,
R some of the N queries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.models.position import Rotation

Axis = Literal["rows", "columns"]
_SHORT = 256  # tokens up to which the whole attention matrix is kept for the backward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionContext:
    """What a layer needs besides its tokens.

    `grid` is the number of patches (down, across) and `prefix` the number of tokens before them. `mask_NN` says which tokens see
    which. `offsets_MD` embeds the offset between two patches. `rotation` turns queries and keys; `bias_1HNN` is added to the
    attention logits. `read` is the number of first tokens that are read after this
    layer, None for all: the other tokens need not be computed.
    """

    layer: int
    grid: tuple[int, int]
    prefix: int
    mask_NN: Tensor | None = None
    offsets_MD: Tensor | None = None
    rotation: Rotation | None = None
    bias_1HNN: Tensor | None = None
    read: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionCapture:
    """The queries and keys of one layer, normed and turned, from which any rows of its attention matrix follow without the others.

    `values_BHNK` and `mixed_BHNK`, the output of the fused kernel, are kept for gradients, and only where gradients flow.
    """

    queries_BHNK: Tensor
    keys_BHNK: Tensor
    values_BHNK: Tensor | None
    mixed_BHNK: Tensor | None
    context: AttentionContext
    axis: Axis | None

    def rows(self, first: int, last: int) -> Tensor:
        """The attention of the tokens `first` to `last` - 1 to all tokens, (B, H, R, N), in float32 or wider; rows sum to one."""
        wide = torch.promote_types(self.queries_BHNK.dtype, torch.float32)
        q_BHRK, k_BHNK = self.queries_BHNK[:, :, first:last].to(wide), self.keys_BHNK.to(wide)
        return attention_weights(q_BHRK, k_BHNK, self._bias(q_BHRK, first))

    def without_values(self) -> AttentionCapture:
        """The same rows in half the memory: copies of q and k, which otherwise keep the array alive that they share with v."""
        q_BHNK, k_BHNK = self.queries_BHNK.clone(), self.keys_BHNK.clone()
        return replace(self, queries_BHNK=q_BHNK, keys_BHNK=k_BHNK, values_BHNK=None, mixed_BHNK=None)

    def _bias(self, q_BHRK: Tensor, first: int) -> Tensor | None:
        context, last = self.context, first + q_BHRK.shape[2]
        if self.axis is not None:
            return axial_mask(self.axis, context.grid, context.prefix, q_BHRK.device, rows=slice(first, last))
        if context.offsets_MD is not None:
            return relative_logits(q_BHRK, context, first)
        if context.bias_1HNN is not None:
            return context.bias_1HNN[:, :, first:last].to(q_BHRK.dtype)
        return None if context.mask_NN is None else context.mask_NN[first:last]


def attention_weights(q_BHNK: Tensor, k_BHNK: Tensor, bias: Tensor | None) -> Tensor:
    """The attention matrix of eq. 6, (B, H, N, N), or fewer rows for fewer queries; rows sum to one.

    A `bias` of bool says which tokens are seen; any other is added to the logits.
    """
    logits_BHNN: Tensor = (q_BHNK * q_BHNK.shape[-1] ** -0.5) @ k_BHNK.transpose(-2, -1)
    if bias is not None:
        logits_BHNN = logits_BHNN.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else logits_BHNN + bias
    return logits_BHNN.softmax(-1)


def attend(q_BHNK: Tensor, k_BHNK: Tensor, v_BHNK: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(q k / sqrt(K) + bias) v, eq. 6 and 7, by torch's fused kernel.

    Not where a CPU trains in bfloat16 on short sequences: there the fused kernel's backward pass takes two to six times as long as
    plain matrix products (16 to 197 tokens).
    """
    tokens = max(q_BHNK.shape[2], k_BHNK.shape[2])
    if q_BHNK.requires_grad and keeps_weights(tokens, bfloat16=q_BHNK.dtype == torch.bfloat16, device=q_BHNK.device):
        return attention_weights(q_BHNK, k_BHNK, bias) @ v_BHNK
    return F.scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, attn_mask=bias)


def keeps_weights(tokens: int, *, bfloat16: bool, device: torch.device) -> bool:
    """Whether training keeps the weights of attention, (B, H, N, N), for the backward pass: `attend` then uses no fused kernel."""
    return bfloat16 and device.type == "cpu" and tokens <= _SHORT


def local_mask(window: int, grid: tuple[int, int], prefix: int, device: torch.device) -> Tensor:
    """Local attention (Parmar et al. 2018), (N, N) of bool: a patch sees patches at most window // 2 away in each direction."""
    place_N = torch.arange(grid[0] * grid[1], device=device)
    row_N, column_N = place_N // grid[1], place_N % grid[1]
    reach = window // 2
    near_NN = ((row_N[:, None] - row_N).abs() <= reach) & ((column_N[:, None] - column_N).abs() <= reach)
    return F.pad(near_NN, (prefix, 0, prefix, 0), value=True)


def axial_mask(axis: Axis, grid: tuple[int, int], prefix: int, device: torch.device, *, rows: slice = slice(None)) -> Tensor:
    """Axial attention as a mask, (N, N) of bool, or only some rows of it: a patch sees its own line and the prefix tokens."""
    place_N = torch.arange(grid[0] * grid[1], device=device)
    line_N = F.pad(place_N // grid[1] if axis == "rows" else place_N % grid[1], (prefix, 0), value=-1)
    line_R = line_N[rows]
    return (line_R[:, None] == line_N[None, :]) | (line_R[:, None] < 0) | (line_N[None, :] < 0)  # prefix tokens see and are seen


def axial_attention(axis: Axis, q_BHNK: Tensor, k_BHNK: Tensor, v_BHNK: Tensor, context: AttentionContext) -> Tensor:
    """The output of axial attention, at a cost of N (G or J) instead of N squared (app. D.6)."""
    p, (g, j) = context.prefix, context.grid
    b, h, _, k = q_BHNK.shape
    count, length = (g, j) if axis == "rows" else (j, g)
    order = (0, 2, 1, 3, 4) if axis == "rows" else (0, 3, 1, 2, 4)  # lines beside the batch, heads, patches of a line

    def lines(x_BHNK: Tensor) -> Tensor:  # lines join the batch axis: the fused kernels take four axes
        return x_BHNK[:, :, p:].reshape(b, h, g, j, k).permute(order).reshape(b * count, h, length, k)

    def with_prefix(x_BHNK: Tensor) -> Tensor:
        prefix = x_BHNK[:, None, :, :p].expand(b, count, h, p, k).reshape(b * count, h, p, k)
        return torch.cat([prefix, lines(x_BHNK)], dim=2)

    patches = F.scaled_dot_product_attention(lines(q_BHNK), with_prefix(k_BHNK), with_prefix(v_BHNK))
    back = (0, 2, 1, 3, 4) if axis == "rows" else (0, 2, 3, 1, 4)
    patches_BHNK = patches.view(b, count, h, length, k).permute(back).flatten(2, 3)
    if p == 0:
        return patches_BHNK
    prefix_BHPK = F.scaled_dot_product_attention(q_BHNK[:, :, :p], k_BHNK, v_BHNK)  # prefix tokens see every token
    return torch.cat([prefix_BHPK, patches_BHNK], dim=2)


def relative_logits(q_BHRK: Tensor, context: AttentionContext, first: int = 0) -> Tensor:
    """The logits of relative positions, (B, H, R, N): each query against the embedding of each offset (app. D.4).

    The queries are those of the tokens from `first` on. Offsets between patches are counted in reading order; prefix tokens have
    no offset and get 0.
    """
    assert context.offsets_MD is not None
    heads, width = q_BHRK.shape[1], q_BHRK.shape[-1]
    n, p = context.grid[0] * context.grid[1], context.prefix
    last = first + q_BHRK.shape[2]
    without = min(max(p - first, 0), last - first)  # queries that are prefix tokens
    keys_HKM = context.offsets_MD.view(-1, heads, width).permute(1, 2, 0)
    logits_BHRM = (q_BHRK[:, :, without:] * width**-0.5) @ keys_HKM.to(q_BHRK.dtype)
    place_R = torch.arange(first + without - p, last - p, device=q_BHRK.device)
    place_N = torch.arange(n, device=q_BHRK.device)
    offset_RN = place_R[:, None] - place_N[None, :] + n - 1
    logits_BHRN = logits_BHRM.gather(-1, offset_RN.expand(*logits_BHRM.shape[:3], n))
    bias = F.pad(logits_BHRN, (p, 0, without, 0))
    seen = context.mask_NN
    return bias if seen is None else bias.masked_fill(~seen[first:last], -torch.inf)
