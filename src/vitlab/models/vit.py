"""The Vision Transformer of "An Image is Worth 16x16 Words" (Dosovitskiy et al. 2021): equations 1 to 4 in one screen.

Axes: B batch, C channels or classes, H W pixels, N tokens (class, distillation, registers, then patches), D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.config.model import Gelu, ViTConfig
from vitlab.errors import ConfigError
from vitlab.models.by_hand import in_parts, mlp
from vitlab.models.position import Grid, Positions
from vitlab.models.record import Record
from vitlab.models.stems import Early, Stem

# Images to patches to vectors: the linear projection E of equation 1.
#
# Axes: B batch, C channels, H W pixels, G x J patches down and across, P x Q pixels of a patch, N = G J tokens, D width.


def cut(images_BCHW: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Patches in reading order, each a row of its C P Q values: (B, N, C P Q)."""
    b, c, h, w = images_BCHW.shape
    p, q = patch_size
    x_BCGPJQ = images_BCHW.reshape(b, c, h // p, p, w // q, q)
    return x_BCGPJQ.permute(0, 2, 4, 1, 3, 5).reshape(b, (h // p) * (w // q), c * p * q).contiguous()


class Patches(nn.Module):
    """The linear embedding of patches; `pad` fills the right and lower edge with zeros up to a whole patch."""

    def __init__(self, channels: int, width: int, patch_size: tuple[int, int], *, pad: bool) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.pad = pad
        self.weight = nn.Parameter(torch.empty(width, channels, *patch_size))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        if self.pad:
            p, q = self.patch_size
            images_BCHW = F.pad(images_BCHW, (0, -images_BCHW.shape[3] % q, 0, -images_BCHW.shape[2] % p))
        return F.linear(cut(images_BCHW, self.patch_size), self.weight.flatten(1), self.bias)  # x_p E of eq. 1


# A residual branch's layer scale and stochastic depth.
#
# Axes: B batch, N tokens, D width.


def rising(last: float, depths: Sequence[int]) -> list[list[float]]:
    """Rates of stochastic depth for stages of that many blocks each: evenly from 0 at the first block to `last` at the last."""
    total, rates, begun = sum(depths), list[list[float]](), 0
    for blocks in depths:
        rates.append([last * block / max(total - 1, 1) for block in range(begun, begun + blocks)])
        begun += blocks
    return rates


def branch(y_BND: Tensor, scale_D: Tensor | None, drop: float) -> Tensor:
    """The branch times its layer scale, left out with probability `drop` for each image, the others scaled up to match."""
    if scale_D is not None:
        y_BND = y_BND * scale_D
    if drop > 0:
        kept_B = torch.rand(y_BND.shape[0], device=y_BND.device) >= drop
        y_BND = y_BND * (kept_B / (1 - drop)).to(y_BND.dtype).view(-1, *[1] * (y_BND.ndim - 1))
    return y_BND


# The MLP of equation 3: two dense layers with a GELU between them.


class Mlp(nn.Module):
    """Dense, GELU, dropout, dense, dropout; the GELU is the error-function form or the authors' tanh approximation."""

    def __init__(self, width: int, hidden: int, *, gelu: Gelu, dropout: float) -> None:
        super().__init__()
        self.approximate = "tanh" if gelu == "tanh" else "none"
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)
        self.by_hand = False  # True: the backward pass is vitlab's own where there is no dropout, for less time on a processor

    def forward(self, x_BND: Tensor) -> Tensor:
        if self.by_hand and not (self.training and self.dropout.p):
            return mlp(x_BND, self.up, self.down, self.approximate)
        hidden_BNM: Tensor = self.dropout(F.gelu(self.up(x_BND), approximate=self.approximate))
        y_BND: Tensor = self.dropout(self.down(hidden_BNM))
        return y_BND


# Multi-head self-attention (app. A): among all tokens, among neighbours, or along rows and columns.
#
# Axes: B batch, N tokens (P prefix tokens, then G x J patches), D width, H heads, K = D / H width of a head, M = 2 G J - 1 offsets,
# R some of the N queries, E some widths side by side.

Axis = Literal["rows", "columns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionContext:
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
class AttentionCapture:
    """Who looks at whom in one layer, as the queries and keys it follows from: any rows of it without the others.

    `values_BHNK` and `mixed_BHNK`, what the fused kernel made of them, are for gradients, and there only where gradients flow.
    """

    queries_BHNK: Tensor
    keys_BHNK: Tensor
    values_BHNK: Tensor | None
    mixed_BHNK: Tensor | None
    scene: AttentionContext
    axis: Axis | None

    def rows(self, first: int, last: int) -> Tensor:
        """The attention of the tokens `first` to `last` - 1 to all, (B, H, R, N), each row of sum one; in float32 at least."""
        wide = torch.promote_types(self.queries_BHNK.dtype, torch.float32)
        q_BHRK, k_BHNK = self.queries_BHNK[:, :, first:last].to(wide), self.keys_BHNK.to(wide)
        return weights(q_BHRK, k_BHNK, self._bias(q_BHRK, first))

    def without_values(self) -> AttentionCapture:
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

    def forward(self, x_BND: Tensor, scene: AttentionContext, record: Record | None = None) -> Tensor:
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
            capture = AttentionCapture(
                queries_BHNK=q_BHNK, keys_BHNK=k_BHNK, values_BHNK=v_BHNK, mixed_BHNK=y_BHNK, scene=scene, axis=self.axis
            )
            keep(record, capture, bias)
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


def keep(record: Record, capture: AttentionCapture, bias: Tensor | None) -> None:
    """Note a layer's attention, and what it is made of, for who asked."""
    q_BHNK, k_BHNK, scene = capture.queries_BHNK, capture.keys_BHNK, capture.scene
    if record.wants_attention:
        seen = bias if capture.axis is None else same_line(capture.axis, scene.grid, scene.prefix, q_BHNK.device)
        record.attention_BHNN.append(weights(q_BHNK, k_BHNK, seen))
    if record.wants_queries_keys:
        record.queries_BHNK.append(q_BHNK)
        record.keys_BHNK.append(k_BHNK)
    if record.wants_gazes:
        flows = capture.mixed_BHNK is not None and capture.mixed_BHNK.requires_grad
        record.gazes.append(capture if flows else capture.without_values())


def weights(q_BHNK: Tensor, k_BHNK: Tensor, bias: Tensor | None) -> Tensor:
    """The attention itself, (B, H, N, N), or fewer rows for fewer queries: each row sums to one.

    `bias` is a mask of who is seen, or is added to the logits.
    """
    logits_BHNN: Tensor = (q_BHNK * q_BHNK.shape[-1] ** -0.5) @ k_BHNK.transpose(-2, -1)
    if bias is not None:
        logits_BHNN = logits_BHNN.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else logits_BHNN + bias
    return logits_BHNN.softmax(-1)


def relative_logits(q_BHRK: Tensor, scene: AttentionContext, first: int = 0) -> Tensor:
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


def along(axis: Axis, q_BHNK: Tensor, k_BHNK: Tensor, v_BHNK: Tensor, scene: AttentionContext) -> Tensor:
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


# From the encoder's tokens to one vector: the class token, the mean of the patches, or attention by a learned probe.
#
# Axes: B batch, N tokens, D width, H heads, K width of a head.


class MapPool(nn.Module):
    """Multihead attention pooling (Zhai et al. 2021): one learned probe asks all patches, then an MLP beside a residual."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width, numerics = config.width, config.numerics
        self.heads = config.heads
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=numerics.norm_eps)
        self.mlp = Mlp(width, config.mlp_width, gelu=numerics.gelu, dropout=config.dropout)

    def forward(self, z_BND: Tensor) -> Tensor:
        return self.answered(F.scaled_dot_product_attention(*self.asked(z_BND)))

    def asked(self, z_BND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The probe's query (B, H, 1, K), and each token's key and value (B, H, N, K)."""
        q_1H1K = self.query(self.probe).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        kv_BN2HK = self.key_value(z_BND).unflatten(-1, (2, self.heads, -1))
        k_BHNK, v_BHNK = kv_BN2HK.permute(2, 0, 3, 1, 4).unbind(0)
        return q_1H1K.expand(z_BND.shape[0], -1, -1, -1), k_BHNK, v_BHNK

    def answered(self, y_BH1K: Tensor) -> Tensor:
        """What is made of the values the probe got, (B, D)."""
        y_BD: Tensor = self.out(y_BH1K.flatten(1))
        y_BD = y_BD + self.mlp(self.norm(y_BD))
        return y_BD


# The Transformer encoder: layer upon layer, and the LayerNorm at its end.
#
# Axes: B batch, N tokens, D width.


class Encoder(nn.Module):
    """Runs the blocks it is given; positions enter at every layer where the config says so."""

    def __init__(self, config: ViTConfig, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.window = config.window if config.attention == "local" else None
        self.prefix = config.prefix_tokens
        self.blocks = nn.ModuleList(blocks)
        self.recompute = False
        self.norm = None if config.norm_after_pool else nn.LayerNorm(config.width, eps=config.numerics.norm_eps)

    def forward(
        self, z_BND: Tensor, position: Positions, grid: Grid, record: Record | None = None, read: int | None = None
    ) -> Tensor:
        """All tokens, or only the first `read` of them."""
        mask_NN = None if self.window is None else neighbours(self.window, grid, self.prefix, z_BND.device)
        if record is not None:
            record.start(len(self.blocks))
        for layer, block in enumerate(self.blocks):
            if layer > 0 and (added_1ND := position.added(layer, grid)) is not None:
                z_BND = z_BND + added_1ND  # Table 8: positions at each layer; the first has them from eq. 1
            offsets_MD = position.offset_keys(layer, grid)
            scene = AttentionContext(layer=layer, grid=grid, prefix=self.prefix, mask_NN=mask_NN, offsets_MD=offsets_MD)
            if read is not None and layer == len(self.blocks) - 1:
                if record is not None and record.sees(layer):
                    record.keep_tokens(layer, block(z_BND, scene, record))  # beside it, so that recording changes no bit
                scene, record = replace(scene, read=read), None
            z_BND = self.run(block, z_BND, scene, record)
            if record is not None:
                record.keep_tokens(layer, z_BND)
        return z_BND if self.norm is None else self.norm(z_BND)

    def run(self, block: nn.Module, z_BND: Tensor, scene: AttentionContext, record: Record | None) -> Tensor:
        """One layer; where `recompute`, its activations are computed again for the backward pass instead of being kept."""
        if self.recompute and torch.is_grad_enabled() and record is None:
            z_BND = checkpoint(block, z_BND, scene, use_reentrant=False)
        else:
            z_BND = block(z_BND, scene, record)
        return z_BND


class Block(nn.Module):
    """One layer of the encoder: z' = MSA(LN(z)) + z, eq. 2, and MLP(LN(z')) + z', eq. 3."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        axis: Axis | None = None
        if config.attention == "axial":
            axis = "rows" if layer % 2 == 0 else "columns"  # app. D.6
        eps = config.numerics.norm_eps
        self.norm1 = nn.LayerNorm(config.width, eps=eps)
        self.attention = Attention(config, axis)
        self.norm2 = nn.LayerNorm(config.width, eps=eps)
        self.mlp = Mlp(config.width, config.mlp_width, gelu=config.numerics.gelu, dropout=config.dropout)
        self.scale1 = nn.Parameter(torch.empty(config.width)) if config.layer_scale else None
        self.scale2 = nn.Parameter(torch.empty(config.width)) if config.layer_scale else None
        self.layer_scale = config.layer_scale
        self.drop = config.drop_path * layer / max(config.layers - 1, 1)

    def forward(self, z_BND: Tensor, scene: AttentionContext, record: Record | None = None) -> Tensor:
        drop = self.drop if self.training else 0.0
        z_BND = z_BND[:, : scene.read] + branch(self.attention(self.norm1(z_BND), scene, record), self.scale1, drop)  # eq. 2
        return z_BND + branch(self.mlp(self.norm2(z_BND)), self.scale2, drop)  # eq. 3


class ViT(nn.Module):
    """Normalised images (B, C, H, W) to logits (B, classes); a hybrid when `config.stem` puts a ResNet before the patches."""

    def encoded(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """All tokens after the encoder, (B, N, D), patches in reading order."""
        grid = self.checked_grid(images_BCHW, record)
        return self.encode(self.embedded(images_BCHW), grid, record)

    def read(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """The tokens that the pool reads, and maybe more: where `lean`, the last layer computes nothing else."""
        grid = self.checked_grid(images_BCHW, record)
        return self.encode(self.embedded(images_BCHW), grid, record, tokens_read(self.config) if self.lean else None)

    def embedded(self, images_BCHW: Tensor) -> Tensor:
        """Patches as vectors, (B, patches, D): x_p E of equation 1."""
        before = self.early if self.stem is None else self.stem
        patches_BND: Tensor = self.patches(images_BCHW if before is None else before(images_BCHW))
        return patches_BND

    def encode(self, z_BND: Tensor, grid: Grid, record: Record | None = None, read: int | None = None) -> Tensor:
        """All tokens after the encoder, or the first `read`, from embedded patches, whose name is reused to let go of them."""
        z_BND = torch.cat([*self.prefix(z_BND.shape[0]), z_BND], dim=1)  # [x_class; x_p E]
        if (E_pos_1ND := self.position.added(0, grid)) is not None:
            z_BND = z_BND + E_pos_1ND  # eq. 1: z_0 = [x_class; x_p E] + E_pos
        z_BND = self.thinned(self.dropout(z_BND))
        z_BND = self.encoder(z_BND, self.position, grid, record, read)  # eq. 2 and 3 in each Block; then the LN of eq. 4
        return z_BND

    def pooled(self, z_BND: Tensor) -> Tensor:
        """One vector a image, (B, D)."""
        if self.pool is not None:
            y_BD: Tensor = self.pool(z_BND[:, self.config.prefix_tokens :])
        elif self.config.pool == "mean":
            y_BD = z_BND[:, self.config.prefix_tokens :].mean(1)
        elif self.config.distill_token:
            y_BD = z_BND[:, :2].mean(1)
        else:
            y_BD = z_BND[:, 0]  # eq. 4: y = LN(z_L)[class]
        y_BD = y_BD if self.pool_norm is None else self.pool_norm(y_BD)
        return y_BD

    def represented(self, y_BD: Tensor) -> Tensor:
        """What the head sees of the pooled vector, (B, feature_width)."""
        return y_BD if self.representation is None else torch.tanh(self.representation(y_BD))  # section 3.1: hidden layer

    def features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """What the head sees, (B, feature_width); with a distillation token, the mean of what the two heads see."""
        return self.represented(self.pooled(self.read(images_BCHW, record)))

    def forward(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        return self.answered(self.read(images_BCHW, record))

    def answered(self, z_BND: Tensor) -> Tensor:
        """Logits (B, classes) from the encoder's tokens; without a head the features."""
        if self.distill_head is not None:
            return torch.stack(self.two_logits(z_BND)).mean(0)
        features_BD = self.represented(self.pooled(z_BND))
        return features_BD if self.head is None else self.head(features_BD)

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.lean = False  # True: leave out of the last layer what no one reads; the same numbers to rounding, for less
        self.any_size = config.dynamic_size  # also True while it learns from images that grow
        self.stem = None if config.stem is None else Stem(config.stem, config.channels)
        self.early = None if config.early is None else Early(config.early, config.channels, gelu=config.numerics.gelu)
        channels = config.channels if config.before is None else config.before.out_width
        self.patches = Patches(channels, config.width, config.patch_size, pad=config.pad)
        self.class_token = _tokens(config, int(config.class_token))
        self.distill_token = _tokens(config, int(config.distill_token))
        self.register_tokens = _tokens(config, config.register_tokens)
        self.position = Positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config, [Block(config, layer) for layer in range(config.layers)])
        self.pool = MapPool(config) if config.pool == "map" else None
        self.pool_norm = nn.LayerNorm(config.width, eps=config.numerics.norm_eps) if config.norm_after_pool else None
        self.representation = nn.Linear(config.width, config.representation_width) if config.representation_width else None
        self.head = nn.Linear(config.feature_width, config.num_classes) if config.num_classes else None
        self.distill_head = nn.Linear(config.width, config.num_classes) if config.distill_token and config.num_classes else None

    def class_and_distill_logits(self, images_BCHW: Tensor, record: Record | None = None) -> tuple[Tensor, Tensor]:
        """The logits of the class token's head and of the distillation token's (Touvron et al. 2021), for training."""
        return self.two_logits(self.read(images_BCHW, record))

    def two_logits(self, z_BND: Tensor) -> tuple[Tensor, Tensor]:
        """The same from the encoder's tokens."""
        if self.head is None or self.distill_head is None:
            raise ConfigError("this model has no distillation head", hint="distill_token=True and num_classes above 0")
        if self.pool_norm is not None:
            z_BND = self.pool_norm(z_BND[:, :2])
        return self.head(z_BND[:, 0]), self.distill_head(z_BND[:, 1])

    def prefix(self, batch: int) -> list[Tensor]:
        """Class, distillation and register tokens, as many of them as there are, for each image."""
        tokens = (self.class_token, self.distill_token, self.register_tokens)
        return [tokens_1ND.expand(batch, -1, -1) for tokens_1ND in tokens if tokens_1ND is not None]

    def thinned(self, z_BND: Tensor) -> Tensor:
        """In training, a random choice of the patches without `config.patch_dropout` of them; else all."""
        if not self.training or self.config.patch_dropout == 0:
            return z_BND
        b, n, d = z_BND.shape
        prefix = self.config.prefix_tokens
        kept = max(1, round((n - prefix) * (1 - self.config.patch_dropout)))
        chosen_BN = torch.rand(b, n - prefix, device=z_BND.device).argsort(1)[:, :kept].sort(1).values + prefix
        patches_BND = z_BND.gather(1, chosen_BN[:, :, None].expand(-1, -1, d))
        return torch.cat([z_BND[:, :prefix], patches_BND], dim=1)

    def checked_grid(self, images_BCHW: Tensor, record: Record | None) -> Grid:
        """The grid of patches of these images, or a refusal that says what the model takes."""
        config = self.config
        if record is not None:
            record.refuse_maps("a ViT")
        if images_BCHW.ndim != 4:
            raise ConfigError(f"images of shape {tuple(images_BCHW.shape)} are not (batch, {config.channels}, height, width)")
        _, channels, height, width = images_BCHW.shape
        if channels != config.channels:
            raise ConfigError(f"the images have {channels} channels and the model takes {config.channels}")
        if not self.any_size and (height, width) != config.image_size:
            raise ConfigError(
                f"the images are {height}x{width} and the model takes {config.image_size[0]}x{config.image_size[1]}",
                hint=f"load(..., image_size=({height}, {width})) fits it once, dynamic_size=True lets it take any size",
            )
        step_h, step_w = config.step
        if not config.pad and (height % step_h or width % step_w):
            raise ConfigError(f"the images are {height}x{width}, not a multiple of the patch {step_h}x{step_w}", hint="pad=True")
        return config.grid_of((height, width))


def tokens_read(config: ViTConfig) -> int | None:
    """How many of the first tokens the pool reads, or None where it is all of them or attention is not among all."""
    among_all = config.attention == "global" and config.position.kind != "relative"
    return 1 + int(config.distill_token) if config.pool == "token" and among_all else None


def _tokens(config: ViTConfig, count: int) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(1, count, config.width)) if count else None
