"""Multi-head self-attention (app. A): among all tokens, among neighbours, or along rows and columns.

Axes: B batch, N tokens (P prefix tokens, then G x J patches), D width, H heads, K = D / H width of a head, M = 2 G J - 1 offsets,
R some of the N queries, E some widths side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config.model import ViTConfig
from vitlab.model.by_hand import in_parts
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaze:
    """Who looks at whom in one layer, as the queries and keys it follows from: any rows of it without the others.

    `values_BHNK` and `mixed_BHNK`, what the fused kernel made of them, are for gradients, and there only where gradients flow.
    """

    queries_BHNK: Tensor
    keys_BHNK: Tensor
    values_BHNK: Tensor | None
    mixed_BHNK: Tensor | None
    scene: Scene
    axis: Axis | None

    def rows(self, first: int, last: int) -> Tensor:
        """The attention of the tokens `first` to `last` - 1 to all, (B, H, R, N), each row of sum one; in float32 at least."""
        wide = torch.promote_types(self.queries_BHNK.dtype, torch.float32)
        q_BHRK, k_BHNK = self.queries_BHNK[:, :, first:last].to(wide), self.keys_BHNK.to(wide)
        return weights(q_BHRK, k_BHNK, self._bias(q_BHRK, first))

    def without_values(self) -> Gaze:
        """The same rows in half the memory: q and k out of the one array that they share with v."""
        q_BHNK, k_BHNK = self.queries_BHNK.clone(), self.keys_BHNK.clone()
        return replace(self, queries_BHNK=q_BHNK, keys_BHNK=k_BHNK, values_BHNK=None, mixed_BHNK=None)

    def _bias(self, q_BHRK: Tensor, first: int) -> Tensor | None:
        scene, last = self.scene, first + q_BHRK.shape[2]
        if self.axis is not None:
            return same_line(self.axis, scene.grid, scene.prefix, q_BHRK.device, rows=slice(first, last))
        if scene.offsets_MD is not None:
            return relative_logits(q_BHRK, scene, first)
        return None if scene.mask_NN is None else scene.mask_NN[first:last]


class Attention(nn.Module):
    """Multi-head self-attention; `axis` restricts patches to their own row or column (app. D.6)."""

    def __init__(self, config: ViTConfig, axis: Axis | None) -> None:
        super().__init__()
        self.heads = config.heads
        self.axis = axis
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.out = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.by_hand = False  # True: the backward pass of q, k and v is vitlab's own, for less time on a processor

    def forward(self, x_BND: Tensor, scene: Scene, record: Record | None = None) -> Tensor:
        if scene.read is not None:
            return self.of_first(x_BND, scene.read)
        qkv_BND = in_parts(x_BND, self.qkv, 3) if self.by_hand else self.qkv(x_BND).chunk(3, dim=-1)
        q_BHNK, k_BHNK, v_BHNK = (in_heads(part_BND, self.heads) for part_BND in qkv_BND)  # eq. 5
        bias = scene.mask_NN if scene.offsets_MD is None else relative_logits(q_BHNK, scene)
        if self.axis is None:
            y_BHNK = F.scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, attn_mask=bias)  # eq. 6 and 7
        else:
            y_BHNK = along(self.axis, q_BHNK, k_BHNK, v_BHNK, scene)
        if record is not None and record.sees_attention(scene.layer):
            gaze = Gaze(queries_BHNK=q_BHNK, keys_BHNK=k_BHNK, values_BHNK=v_BHNK, mixed_BHNK=y_BHNK, scene=scene, axis=self.axis)
            keep(record, gaze, bias)
        y_BND: Tensor = self.dropout(self.out(y_BHNK.transpose(1, 2).flatten(2)))  # eq. 8
        return y_BND

    def of_first(self, x_BND: Tensor, read: int) -> Tensor:
        """What the first `read` tokens see among all, (B, read, D): the same numbers with their queries alone."""
        width = x_BND.shape[-1]
        weight, bias = self.qkv.weight, cast("Tensor | None", self.qkv.bias)
        q_BRD = F.linear(x_BND[:, :read], weight[:width], None if bias is None else bias[:width])
        kv_BND = F.linear(x_BND, weight[width:], None if bias is None else bias[width:]).chunk(2, dim=-1)
        k_BHNK, v_BHNK = (in_heads(part_BND, self.heads) for part_BND in kv_BND)
        q_BHRK = in_heads(q_BRD, self.heads)
        y_BHRK = F.scaled_dot_product_attention(q_BHRK, k_BHNK, v_BHNK)
        y_BRD: Tensor = self.dropout(self.out(y_BHRK.transpose(1, 2).flatten(2)))
        return y_BRD


def in_heads(x_BND: Tensor, heads: int) -> Tensor:
    """(B, N, D) as (B, H, N, K).

    q, k and v are cut along the width before: their gradients then come together in one copy, where a permuted tensor needs two.
    """
    return x_BND.view(*x_BND.shape[:2], heads, -1).transpose(1, 2)


def keep(record: Record, gaze: Gaze, bias: Tensor | None) -> None:
    """Note a layer's attention, and what it is made of, for who asked."""
    q_BHNK, k_BHNK, scene = gaze.queries_BHNK, gaze.keys_BHNK, gaze.scene
    if record.wants_attention:
        seen = bias if gaze.axis is None else same_line(gaze.axis, scene.grid, scene.prefix, q_BHNK.device)
        record.attention_BHNN.append(weights(q_BHNK, k_BHNK, seen))
    if record.wants_queries_keys:
        record.queries_BHNK.append(q_BHNK)
        record.keys_BHNK.append(k_BHNK)
    if record.wants_gazes:
        flows = gaze.mixed_BHNK is not None and gaze.mixed_BHNK.requires_grad
        record.gazes.append(gaze if flows else gaze.without_values())


def weights(q_BHNK: Tensor, k_BHNK: Tensor, bias: Tensor | None) -> Tensor:
    """The attention itself, (B, H, N, N), or fewer rows for fewer queries: each row sums to one.

    `bias` is a mask of who is seen, or is added to the logits.
    """
    logits_BHNN: Tensor = (q_BHNK * q_BHNK.shape[-1] ** -0.5) @ k_BHNK.transpose(-2, -1)
    if bias is not None:
        logits_BHNN = logits_BHNN.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else logits_BHNN + bias
    return logits_BHNN.softmax(-1)


def relative_logits(q_BHRK: Tensor, scene: Scene, first: int = 0) -> Tensor:
    """The content's query against the embedding of each offset, (B, H, R, N), to be added to the logits (app. D.4).

    The queries are those of the tokens from `first` on. Offsets p_q - p_k are counted in reading order between patches; prefix
    tokens have none and get 0.
    """
    assert scene.offsets_MD is not None
    heads, width = q_BHRK.shape[1], q_BHRK.shape[-1]
    n, p = scene.grid[0] * scene.grid[1], scene.prefix
    last = first + q_BHRK.shape[2]
    without = min(max(p - first, 0), last - first)  # queries that are prefix tokens
    keys_HKM = scene.offsets_MD.view(-1, heads, width).permute(1, 2, 0)
    logits_BHRM = (q_BHRK[:, :, without:] * width**-0.5) @ keys_HKM.to(q_BHRK.dtype)
    place_R = torch.arange(first + without - p, last - p, device=q_BHRK.device)
    place_N = torch.arange(n, device=q_BHRK.device)
    offset_RN = place_R[:, None] - place_N[None, :] + n - 1
    logits_BHRN = logits_BHRM.gather(-1, offset_RN.expand(*logits_BHRM.shape[:3], n))
    bias = F.pad(logits_BHRN, (p, 0, without, 0))
    seen = scene.mask_NN
    return bias if seen is None else bias.masked_fill(~seen[first:last], -torch.inf)


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


def same_line(axis: Axis, grid: tuple[int, int], prefix: int, device: torch.device, *, rows: slice = slice(None)) -> Tensor:
    """Who sees whom in axial attention, (N, N) of bool, or only some rows of it."""
    place_N = torch.arange(grid[0] * grid[1], device=device)
    line_N = F.pad(place_N // grid[1] if axis == "rows" else place_N % grid[1], (prefix, 0), value=-1)
    line_R = line_N[rows]
    return (line_R[:, None] == line_N[None, :]) | (line_R[:, None] < 0) | (line_N[None, :] < 0)  # prefix tokens see and are seen


def neighbours(window: int, grid: tuple[int, int], prefix: int, device: torch.device) -> Tensor:
    """Who sees whom in local attention, (N, N) of bool: patches at most window // 2 away in each direction (Parmar et al. 2018)."""
    place_N = torch.arange(grid[0] * grid[1], device=device)
    row_N, column_N = place_N // grid[1], place_N % grid[1]
    reach = window // 2
    near_NN = ((row_N[:, None] - row_N).abs() <= reach) & ((column_N[:, None] - column_N).abs() <= reach)
    return F.pad(near_NN, (prefix, 0, prefix, 0), value=True)
