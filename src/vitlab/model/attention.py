"""Multi-head self-attention (app. A): among all tokens, among neighbours, or along rows and columns.

Axes: B batch, N tokens (P prefix tokens, then G x J patches), D width, H heads, K = D / H width of a head, M = 2 G J - 1 offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config.model import ViTConfig
from vitlab.model.record import Record

Axis = Literal["rows", "columns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a layer is told besides its tokens: the grid of patches, who may see whom, and how offsets are embedded.

    `read` is how many of the first tokens anybody reads after this layer, None for all: the others need not be computed.
    """

    layer: int
    grid: tuple[int, int]
    prefix: int
    mask_NN: Tensor | None = None
    offsets_MD: Tensor | None = None
    read: int | None = None


class Attention(nn.Module):
    """Multi-head self-attention; `axis` restricts patches to their own row or column (app. D.6)."""

    def __init__(self, config: ViTConfig, axis: Axis | None) -> None:
        super().__init__()
        self.heads = config.heads
        self.axis = axis
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.out = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BND: Tensor, scene: Scene, record: Record | None = None) -> Tensor:
        if scene.read is not None:
            return self.of_first(x_BND, scene.read)
        qkv_BN3HK: Tensor = self.qkv(x_BND).unflatten(-1, (3, self.heads, -1))
        q_BHNK, k_BHNK, v_BHNK = qkv_BN3HK.permute(2, 0, 3, 1, 4).unbind(0)  # eq. 5
        bias = scene.mask_NN if scene.offsets_MD is None else relative_logits(q_BHNK, scene)
        if self.axis is None:
            y_BHNK = F.scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, attn_mask=bias)  # eq. 6 and 7
        else:
            y_BHNK = along(self.axis, q_BHNK, k_BHNK, v_BHNK, scene)
        if record is not None and record.sees_attention(scene.layer):
            seen = bias if self.axis is None else same_line(self.axis, scene.grid, scene.prefix, q_BHNK.device)
            keep(record, q_BHNK, k_BHNK, seen)
        y_BND: Tensor = self.dropout(self.out(y_BHNK.transpose(1, 2).flatten(2)))  # eq. 8
        return y_BND

    def of_first(self, x_BND: Tensor, read: int) -> Tensor:
        """What the first `read` tokens see among all, (B, read, D): the same numbers with their queries alone."""
        width = x_BND.shape[-1]
        weight, bias = self.qkv.weight, cast("Tensor | None", self.qkv.bias)
        q_BRD = F.linear(x_BND[:, :read], weight[:width], None if bias is None else bias[:width])
        kv_BND = F.linear(x_BND, weight[width:], None if bias is None else bias[width:])
        kv_BN2HK = kv_BND.view(*x_BND.shape[:2], 2, self.heads, -1)
        k_BHNK, v_BHNK = kv_BN2HK.permute(2, 0, 3, 1, 4).unbind(0)
        q_BHRK = q_BRD.view(*q_BRD.shape[:2], self.heads, -1).transpose(1, 2)
        y_BHRK = F.scaled_dot_product_attention(q_BHRK, k_BHNK, v_BHNK)
        y_BRD: Tensor = self.dropout(self.out(y_BHRK.transpose(1, 2).flatten(2)))
        return y_BRD


def keep(record: Record, q_BHNK: Tensor, k_BHNK: Tensor, bias: Tensor | None) -> None:
    """Note a layer's attention, and its queries and keys, for who asked."""
    if record.wants_attention:
        record.attention_BHNN.append(weights(q_BHNK, k_BHNK, bias))
    if record.wants_queries_keys:
        record.queries_BHNK.append(q_BHNK)
        record.keys_BHNK.append(k_BHNK)


def weights(q_BHNK: Tensor, k_BHNK: Tensor, bias: Tensor | None) -> Tensor:
    """The attention itself, (B, H, N, N): each row sums to one. `bias` is a mask of who is seen, or is added to the logits."""
    logits_BHNN: Tensor = (q_BHNK * q_BHNK.shape[-1] ** -0.5) @ k_BHNK.transpose(-2, -1)
    if bias is not None:
        logits_BHNN = logits_BHNN.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else logits_BHNN + bias
    return logits_BHNN.softmax(-1)


def relative_logits(q_BHNK: Tensor, scene: Scene) -> Tensor:
    """The content's query against the embedding of each offset, (B, H, N, N), to be added to the logits (app. D.4).

    Offsets p_q - p_k are counted in reading order between patches; prefix tokens have none and get 0.
    """
    assert scene.offsets_MD is not None
    heads, width = q_BHNK.shape[1], q_BHNK.shape[-1]
    n, p = scene.grid[0] * scene.grid[1], scene.prefix
    keys_HKM = scene.offsets_MD.view(-1, heads, width).permute(1, 2, 0)
    logits_BHNM = (q_BHNK[:, :, p:] * width**-0.5) @ keys_HKM
    place_N = torch.arange(n, device=q_BHNK.device)
    offset_NN = place_N[:, None] - place_N[None, :] + n - 1
    logits_BHNN = logits_BHNM.gather(-1, offset_NN.expand(*logits_BHNM.shape[:2], n, n))
    bias = F.pad(logits_BHNN, (p, 0, p, 0))
    seen = scene.mask_NN
    return bias if seen is None else bias.masked_fill(~seen, -torch.inf)


def along(axis: Axis, q_BHNK: Tensor, k_BHNK: Tensor, v_BHNK: Tensor, scene: Scene) -> Tensor:
    """Each patch sees its own line and the prefix tokens, which themselves see all: cost N (G or J) and not N squared."""
    p, (g, j) = scene.prefix, scene.grid
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
    prefix_BHPK = F.scaled_dot_product_attention(q_BHNK[:, :, :p], k_BHNK, v_BHNK)
    return torch.cat([prefix_BHPK, patches_BHNK], dim=2)


def same_line(axis: Axis, grid: tuple[int, int], prefix: int, device: torch.device) -> Tensor:
    """Who sees whom in axial attention, (N, N) of bool."""
    place_N = torch.arange(grid[0] * grid[1], device=device)
    line_N = place_N // grid[1] if axis == "rows" else place_N % grid[1]
    return F.pad(line_N[:, None] == line_N[None, :], (prefix, 0, prefix, 0), value=True)


def neighbours(window: int, grid: tuple[int, int], prefix: int, device: torch.device) -> Tensor:
    """Who sees whom in local attention, (N, N) of bool: patches at most window // 2 away in each direction (Parmar et al. 2018)."""
    place_N = torch.arange(grid[0] * grid[1], device=device)
    row_N, column_N = place_N // grid[1], place_N % grid[1]
    reach = window // 2
    near_NN = ((row_N[:, None] - row_N).abs() <= reach) & ((column_N[:, None] - column_N).abs() <= reach)
    return F.pad(near_NN, (prefix, 0, prefix, 0), value=True)
