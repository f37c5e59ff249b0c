"""The Vision Transformer of "An Image is Worth 16x16 Words" (Dosovitskiy et al. 2021): section 3 and appendix A in one file.

Read it top to bottom: patches (eq. 1), attention (eq. 5 to 8), MLP, block (eq. 2 and 3), encoder, pooling, and the whole model
(eq. 1 and 4). Beside it: `position.py` (also rotary and biases), `attention_variants.py` (local, axial, relative), `vit_parts.py`
(other MLPs, detection), `stems.py` (convolutions before the patches) and `record.py` (how a caller asks for a model's inside).

Axes: B batch, C channels or classes, H W pixels, G x J patches down and across, P x Q pixels of a patch, N tokens (class,
distillation and register tokens, then patches), D width, H heads, K = D / H width of a head, M width inside the MLP, R queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.config.vit import Gelu, ViTConfig
from vitlab.config.vit_parts import FeedForward
from vitlab.errors import ConfigError
from vitlab.models import stems
from vitlab.models.attention_variants import (
    AttentionCapture,
    AttentionContext,
    Axis,
    attend,
    attention_weights,
    axial_attention,
    axial_mask,
    local_mask,
    relative_logits,
)
from vitlab.models.model import Draw, Family, Model, init_head, init_norm, zero
from vitlab.models.position import BiasMlp, Grid, Positions, init_frequencies
from vitlab.models.record import Record
from vitlab.models.stems import ConvolutionalStem, ResNetBody, init_stem
from vitlab.models.vit_parts import DetectionHead, Detections, MlpVariant, gelu, init_detection, make_norm


def patchify(images_BCHW: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Patches in reading order, each a row of its C P Q values: (B, N, C P Q)."""
    b, c, h, w = images_BCHW.shape
    p, q = patch_size
    if images_BCHW.requires_grad and images_BCHW.is_contiguous(memory_format=torch.channels_last):
        # The same values; so read, the gradient has channels last too. One of another order makes a stem's backward pass slow.
        x_BGPJQC = images_BCHW.permute(0, 2, 3, 1).reshape(b, h // p, p, w // q, q, c)
        return x_BGPJQC.permute(0, 1, 3, 5, 2, 4).reshape(b, (h // p) * (w // q), c * p * q).contiguous()
    x_BCGPJQ = images_BCHW.reshape(b, c, h // p, p, w // q, q)
    return x_BCGPJQ.permute(0, 2, 4, 1, 3, 5).reshape(b, (h // p) * (w // q), c * p * q).contiguous()


class PatchEmbedding(nn.Module):
    """The linear embedding of patches; `pad` fills the right and lower edge with zeros to a whole patch, `crop` leaves it out."""

    def __init__(
        self, channels: int, width: int, patch_size: tuple[int, int], *, pad: bool, crop: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.pad, self.crop = pad, crop
        self.weight = nn.Parameter(torch.empty(width, channels, *patch_size))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def forward(self, images_BCHW: Tensor) -> Tensor:
        p, q = self.patch_size
        if self.pad:
            images_BCHW = F.pad(images_BCHW, (0, -images_BCHW.shape[3] % q, 0, -images_BCHW.shape[2] % p))
        elif self.crop:
            images_BCHW = images_BCHW[:, :, : images_BCHW.shape[2] // p * p, : images_BCHW.shape[3] // q * q]
        return F.linear(patchify(images_BCHW, self.patch_size), self.weight.flatten(1), self.bias)  # x_p E of eq. 1


class Attention(nn.Module):
    """Multi-head self-attention (app. A); `axis` restricts patches to their own row or column (app. D.6)."""

    def __init__(self, config: ViTConfig, layer: int = 0, axis: Axis | None = None) -> None:
        super().__init__()
        form, width = config.projections, config.width
        self.heads, self.head_width = config.heads, width // config.heads
        self.kv_heads = form.kv_heads[layer] if form.kv_heads else config.heads
        self.axis = axis
        self.qkv = nn.Linear(width, width + 2 * self.kv_heads * self.head_width, bias=config.qkv_bias and form.key_bias)
        apart = config.qkv_bias and not form.key_bias  # keys have no bias
        self.query_bias = nn.Parameter(torch.empty(width)) if apart else None
        self.value_bias = nn.Parameter(torch.empty(width)) if apart else None
        self.query_norm = make_norm(config, self.head_width) if form.qk_norm else None
        self.key_norm = make_norm(config, self.head_width) if form.qk_norm else None
        self.norm = make_norm(config) if form.out_norm else None
        self.out = nn.Linear(width, width, bias=form.out_bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BND: Tensor, context: AttentionContext, record: Record | None = None) -> Tensor:
        q_BHNK, k_BHNK, v_BHNK = self.queries_keys_values(x_BND, context)  # eq. 5
        bias = context.mask_NN if context.bias_1HNN is None else context.bias_1HNN[:, :, : context.read].to(q_BHNK.dtype)
        bias = bias if context.offsets_MD is None else relative_logits(q_BHNK, context)
        if self.axis is None:
            y_BHNK = attend(q_BHNK, k_BHNK, v_BHNK, bias)  # eq. 6 and 7
        else:
            y_BHNK = axial_attention(self.axis, q_BHNK, k_BHNK, v_BHNK, context)
        if record is not None and record.sees_attention(context.layer):
            capture = AttentionCapture(
                queries_BHNK=q_BHNK, keys_BHNK=k_BHNK, values_BHNK=v_BHNK, mixed_BHNK=y_BHNK, context=context, axis=self.axis
            )
            _record_attention(record, capture, bias)
        y_BND: Tensor = y_BHNK.transpose(1, 2).flatten(2)
        y_BND = y_BND if self.norm is None else self.norm(y_BND)
        y_BND = self.dropout(self.out(y_BND))  # eq. 8
        return y_BND

    def queries_keys_values(self, x_BND: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of each head, (B, H, N, K); queries only of the `context.read` first tokens, where that is given."""
        width, grouped = x_BND.shape[-1], self.kv_heads * self.head_width
        weight, bias = self.qkv.weight, self.all_biases()
        if context.read is None:
            qkv_BND = F.linear(x_BND, weight, bias)
            q_BND, k_BND, v_BND = qkv_BND[..., :width], qkv_BND[..., width:-grouped], qkv_BND[..., -grouped:]
        else:  # the same numbers for less work
            q_BND = F.linear(x_BND[:, : context.read], weight[:width], None if bias is None else bias[:width])
            k_BND, v_BND = F.linear(x_BND, weight[width:], None if bias is None else bias[width:]).chunk(2, dim=-1)
        q_BHNK, k_BHNK, v_BHNK = (split_heads(part_BND, self.head_width) for part_BND in (q_BND, k_BND, v_BND))
        if self.query_norm is not None and self.key_norm is not None:
            q_BHNK, k_BHNK = self.query_norm(q_BHNK), self.key_norm(k_BHNK)
        if context.rotation is not None:  # of the tokens that are read alone none is a patch: none is turned
            q_BHNK, k_BHNK = q_BHNK if context.read else context.rotation(q_BHNK), context.rotation(k_BHNK)
        if self.kv_heads != self.heads:
            k_BHNK, v_BHNK = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (k_BHNK, v_BHNK))
        return q_BHNK, k_BHNK, v_BHNK

    def all_biases(self) -> Tensor | None:
        """The bias of q, k and v as one vector, with zeros for keys that have none."""
        if self.query_bias is None or self.value_bias is None:
            return cast("Tensor | None", self.qkv.bias)
        return torch.cat([self.query_bias, torch.zeros_like(self.query_bias), self.value_bias])


def split_heads(x_BND: Tensor, head_width: int) -> Tensor:
    """(B, N, D) as (B, H, N, K)."""
    return x_BND.view(*x_BND.shape[:2], -1, head_width).transpose(1, 2)


def _record_attention(record: Record, capture: AttentionCapture, bias: Tensor | None) -> None:
    """Put what the caller asked for into `record`: attention matrices, queries and keys, or captures."""
    q_BHNK, k_BHNK, context = capture.queries_BHNK, capture.keys_BHNK, capture.context
    if record.wants_attention:
        seen = bias if capture.axis is None else axial_mask(capture.axis, context.grid, context.prefix, q_BHNK.device)
        record.attention_BHNN.append(attention_weights(q_BHNK, k_BHNK, seen))
    if record.wants_queries_keys:
        record.queries_BHNK.append(q_BHNK)
        record.keys_BHNK.append(k_BHNK)
    if record.wants_captures:
        flows = capture.mixed_BHNK is not None and capture.mixed_BHNK.requires_grad
        record.captures.append(capture if flows else capture.without_values())


class Mlp(nn.Module):
    """Dense, GELU, dropout, dense, dropout; the GELU is exact or an approximation, the authors' being tanh."""

    def __init__(self, width: int, hidden: int, *, gelu: Gelu, dropout: float) -> None:
        super().__init__()
        self.gelu = gelu
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BND: Tensor) -> Tensor:
        hidden_BNM: Tensor = self.dropout(gelu(self.up(x_BND), self.gelu))
        y_BND: Tensor = self.dropout(self.down(hidden_BNM))
        return y_BND


def drop_path_rates(last: float, depths: Sequence[int]) -> list[list[float]]:
    """Rates of stochastic depth for stages of `depths` blocks: rising linearly from 0 at the first block to `last` at the last."""
    total, rates, begun = sum(depths), list[list[float]](), 0
    for blocks in depths:
        rates.append([last * block / max(total - 1, 1) for block in range(begun, begun + blocks)])
        begun += blocks
    return rates


def residual_branch(y_BND: Tensor, scale_D: Tensor | None, drop: float) -> Tensor:
    """The branch times its layer scale; stochastic depth drops it with probability `drop` an image and scales up the others."""
    if scale_D is not None:
        y_BND = y_BND * scale_D
    if drop > 0:
        kept_B = torch.rand(y_BND.shape[0], device=y_BND.device) >= drop
        y_BND = y_BND * (kept_B / (1 - drop)).to(y_BND.dtype).view(-1, *[1] * (y_BND.ndim - 1))
    return y_BND


class Block(nn.Module):
    """One layer of the encoder: z' = MSA(LN(z)) + z, eq. 2, and MLP(LN(z')) + z', eq. 3."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        axis: Axis | None = None
        if config.attention == "axial":
            axis = "rows" if layer % 2 == 0 else "columns"  # app. D.6
        self.post, self.parallel = config.norm.place == "res-post", config.parallel == "mlp"
        self.norm1 = make_norm(config)
        self.attention = Attention(config, layer, axis)
        self.norm2 = None if self.parallel else make_norm(config)
        self.mlp = make_mlp(config)
        scale1, scale2 = config.layer_scale > 0, config.layer_scale > 0 and config.layer_scale_on == "both" and not self.parallel
        self.scale1 = nn.Parameter(torch.empty(config.width)) if scale1 else None
        self.scale2 = nn.Parameter(torch.empty(config.width)) if scale2 else None
        self.layer_scale = config.layer_scale
        self.drop = config.drop_path * layer / max(config.layers - 1, 1)

    def forward(self, z_BND: Tensor, context: AttentionContext, record: Record | None = None) -> Tensor:
        z_BND = z_BND[:, : context.read] + self.attended(z_BND, context, record)  # eq. 2
        return z_BND if self.parallel else z_BND + self.transformed(z_BND)  # eq. 3

    def attended(self, z_BND: Tensor, context: AttentionContext, record: Record | None) -> Tensor:
        """The branch MSA(LN(z)) of eq. 2; LN(MSA(z)) for norms after the branches; plus MLP(LN(z)) where they are parallel."""
        x_BND = z_BND if self.post else self.norm1(z_BND)
        y_BND = self.attention(x_BND, context, record)
        if self.post:
            y_BND = self.norm1(y_BND)
        elif self.parallel:
            y_BND = y_BND + self.mlp(x_BND[:, : context.read])
        return residual_branch(y_BND, self.scale1, self.drop if self.training else 0.0)

    def transformed(self, z_BND: Tensor) -> Tensor:
        """The branch MLP(LN(z')) of eq. 3, or LN(MLP(z'))."""
        assert self.norm2 is not None
        y_BND = self.norm2(self.mlp(z_BND)) if self.post else self.mlp(self.norm2(z_BND))
        return residual_branch(y_BND, self.scale2, self.drop if self.training else 0.0)


def make_mlp(config: ViTConfig) -> Mlp | MlpVariant:
    """The MLP of a layer: the paper's, or one with a gate, a norm inside or no biases."""
    if config.mlp == FeedForward():
        return Mlp(config.width, config.mlp_width, gelu=config.numerics.gelu, dropout=config.dropout)
    return MlpVariant(config)


class BranchedBlock(nn.Module):
    """A layer of two attentions side by side and then two MLPs ("Three things everyone should know about Vision Transformers")."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(Block(config, layer) for _ in range(2))

    def forward(self, z_BND: Tensor, context: AttentionContext, record: Record | None = None) -> Tensor:
        if record is not None and record.sees_attention(context.layer):
            raise ConfigError(
                "a layer of parallel branches has two attentions to record", hint="Record(attention=False, tokens=True)"
            )
        blocks = [cast("Block", block) for block in self.branches]
        z_BND = z_BND[:, : context.read] + sum(block.attended(z_BND, context, None) for block in blocks)
        return z_BND + sum(block.transformed(z_BND) for block in blocks)


class Encoder(nn.Module):
    """The Transformer encoder: blocks, then a LayerNorm; positions enter at every layer where the config says so."""

    def __init__(self, config: ViTConfig, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.window = config.window if config.attention == "local" else None
        self.prefix = config.prefix_tokens
        self.blocks = nn.ModuleList(blocks)
        self.recompute = False
        self.pre_norm = make_norm(config) if config.norm.before else None
        self.norm = make_norm(config) if config.norm.last and not config.norm_after_pool else None

    def forward(
        self, z_BND: Tensor, position: Positions, grid: Grid, record: Record | None = None, read: int | None = None
    ) -> Tensor:
        """All tokens after the last layer, or only the first `read` of them."""
        mask_NN = None if self.window is None else local_mask(self.window, grid, self.prefix, z_BND.device)
        if record is not None:
            record.start(len(self.blocks))
        z_BND = z_BND if self.pre_norm is None else self.pre_norm(z_BND)
        bias_1HNN: Tensor | None = None
        for layer, block in enumerate(self.blocks):
            if layer > 0 and (added_1ND := position.added(layer, grid)) is not None:
                z_BND = z_BND + added_1ND  # Table 8: positions at each layer; the first has them from eq. 1
            if layer == 0 or not position.shares_bias:
                bias_1HNN = position.attention_bias(layer, grid)
            context = AttentionContext(
                layer=layer,
                grid=grid,
                prefix=self.prefix,
                mask_NN=mask_NN,
                offsets_MD=position.offset_keys(layer, grid),
                rotation=position.rotation(layer, grid),
                bias_1HNN=bias_1HNN,
            )
            if read is not None and layer == len(self.blocks) - 1:
                if record is not None and record.sees(layer):
                    record.keep_tokens(layer, block(z_BND, context, record))  # beside it, so that recording changes no bit
                context, record = replace(context, read=read), None
            z_BND = self.run_block(block, z_BND, context, record)
            if record is not None:
                record.keep_tokens(layer, z_BND)
        return z_BND if self.norm is None else self.norm(z_BND)

    def run_block(self, block: nn.Module, z_BND: Tensor, context: AttentionContext, record: Record | None) -> Tensor:
        """One layer; with `recompute` (activation checkpointing) the backward pass computes its activations again."""
        if self.recompute and torch.is_grad_enabled() and record is None:
            z_BND = checkpoint(block, z_BND, context, use_reentrant=False)
        else:
            z_BND = block(z_BND, context, record)
        return z_BND


def make_block(config: ViTConfig, layer: int) -> Block | BranchedBlock:
    """One layer of the encoder."""
    return BranchedBlock(config, layer) if config.parallel == "branches" else Block(config, layer)


class AttentionPool(nn.Module):
    """Multihead attention pooling (Zhai et al. 2021): one learned query attends to all patches, then an MLP with a residual."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width, numerics = config.width, config.numerics
        self.heads = config.pooling.heads or config.heads
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm = make_norm(config)
        self.mlp = Mlp(width, config.pooling.mlp_width or config.mlp_width, gelu=numerics.gelu, dropout=config.dropout)

    def forward(self, z_BND: Tensor) -> Tensor:
        return self.project(F.scaled_dot_product_attention(*self.query_key_value(z_BND)))

    def query_key_value(self, z_BND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The learned query (B, H, 1, K), and each token's key and value (B, H, N, K)."""
        q_1H1K = self.query(self.probe).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        kv_BN2HK = self.key_value(z_BND).unflatten(-1, (2, self.heads, -1))
        k_BHNK, v_BHNK = kv_BN2HK.permute(2, 0, 3, 1, 4).unbind(0)
        return q_1H1K.expand(z_BND.shape[0], -1, -1, -1), k_BHNK, v_BHNK

    def project(self, y_BH1K: Tensor) -> Tensor:
        """The pooled vector, (B, D), from the attention's output."""
        y_BD: Tensor = self.out(y_BH1K.flatten(1))
        y_BD = y_BD + self.mlp(self.norm(y_BD))
        return y_BD


class ViT(Model):
    """Normalised images (B, C, H, W) to logits (B, classes); a hybrid when `config.stem` puts a ResNet before the patches."""

    def forward(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """Logits (B, classes), or features where there is no head."""
        return self.logits_from(self.encode_for_pool(images_BCHW, record))

    def features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """What the head sees, (B, feature_width); with a distillation token, the mean of what the two heads see."""
        return self.represent(self.pool_tokens(self.encode_for_pool(images_BCHW, record)))

    def forward_features(self, images_BCHW: Tensor) -> Tensor:
        """timm's name of `encode_images`."""
        return self.encode_images(images_BCHW)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits from all tokens; with `pre_logits`, what the head sees."""
        return self.represent(self.pool_tokens(features)) if pre_logits else self.logits_from(features)

    def encode_images(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """All tokens after the encoder, (B, N, D), patches in reading order."""
        grid = self.check_images(images_BCHW, record)
        return self.encode(self.embed(images_BCHW), grid, record)

    def encode_for_pool(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """The tokens that the pool reads, and maybe more: with `skip_unused_tokens`, the last layer computes no others."""
        grid = self.check_images(images_BCHW, record)
        return self.encode(self.embed(images_BCHW), grid, record, tokens_read(self.config) if self.skip_unused_tokens else None)

    def embed(self, images_BCHW: Tensor) -> Tensor:
        """Patches as vectors, (B, patches, D): x_p E of equation 1."""
        before = self.early if self.stem is None else self.stem
        patches_BND: Tensor = self.patches(images_BCHW if before is None else before(images_BCHW))
        return patches_BND if self.patch_norm is None else self.patch_norm(patches_BND)

    def encode(self, z_BND: Tensor, grid: Grid, record: Record | None = None, read: int | None = None) -> Tensor:
        """All tokens after the encoder, or the first `read`, from embedded patches."""
        z_BND = torch.cat([*self.prefix(z_BND.shape[0]), z_BND], dim=1)  # [x_class; x_p E]
        if (E_pos_1ND := self.position.added(0, grid)) is not None:
            z_BND = z_BND + E_pos_1ND  # eq. 1: z_0 = [x_class; x_p E] + E_pos
        z_BND = self.drop_patches(self.dropout(z_BND))
        z_BND = self.encoder(z_BND, self.position, grid, record, read)  # eq. 2 and 3 in each Block; then the LN of eq. 4
        return z_BND

    def pool_tokens(self, z_BND: Tensor) -> Tensor:
        """One vector an image, (B, pooled_width)."""
        first = 0 if self.config.pooling.prefix else self.config.prefix_tokens  # of those that mean and attention pooling read
        if self.pool is not None:
            y_BD: Tensor = self.pool(z_BND[:, first:])
        elif self.config.pool == "mean":
            y_BD = z_BND[:, first:].mean(1)
        elif self.config.pool == "token+mean":
            y_BD = torch.cat([z_BND[:, 0], z_BND[:, first:].mean(1)], dim=1)
        elif self.config.distill_token:
            y_BD = z_BND[:, :2].mean(1)
        else:
            y_BD = z_BND[:, 0]  # eq. 4: y = LN(z_L)[class]
        y_BD = y_BD if self.pool_norm is None else self.pool_norm(y_BD)
        return y_BD

    def represent(self, y_BD: Tensor) -> Tensor:
        """What the head sees of the pooled vector, (B, feature_width): section 3.1's hidden layer where there is one."""
        if self.projection is not None:
            return self.projection(y_BD)  # type: ignore[no-any-return]
        return y_BD if self.representation is None else torch.tanh(self.representation(y_BD))

    def logits_from(self, z_BND: Tensor) -> Tensor:
        """Logits (B, classes) from the encoder's tokens; without a head the features."""
        if self.distill_head is not None:
            return torch.stack(self.both_logits_from(z_BND)).mean(0)
        features_BD = self.represent(self.pool_tokens(z_BND))
        return features_BD if self.head is None else self.head(features_BD)

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config: ViTConfig = config
        self.skip_unused_tokens = False  # True: the last layer leaves out the tokens nobody reads; the same numbers to rounding
        self.any_size = config.dynamic_size  # also True during progressive resizing
        self.stem = None if config.stem is None else ResNetBody(config.stem, config.channels)
        self.early = (  # the convolutional stem; its name is part of the state dict
            None if config.conv_stem is None else ConvolutionalStem(config.conv_stem, config.channels, gelu=config.numerics.gelu)
        )
        channels = config.channels if config.before is None else config.before.out_width
        self.patches = PatchEmbedding(
            channels, config.width, config.patch_size, pad=config.pad, crop=config.crop, bias=not config.norm.before
        )
        self.patch_norm = make_norm(config) if config.norm.patches else None
        self.class_token = _tokens(config, int(config.class_token))
        self.distill_token = _tokens(config, int(config.distill_token))
        self.register_tokens = _tokens(config, config.register_tokens)
        self.position = Positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config, [make_block(config, layer) for layer in range(config.layers)])
        self.pool = AttentionPool(config) if config.pool == "map" else None
        self.pool_norm = make_norm(config) if config.norm_after_pool else None
        self.representation = nn.Linear(config.width, config.representation_width) if config.representation_width else None
        self.projection = nn.Linear(config.pooled_width, config.projection_width, bias=False) if config.projection_width else None
        self.detection = DetectionHead(config.width, config.detection_classes) if config.detection_classes else None
        self.head: nn.Linear | None = nn.Linear(config.feature_width, config.num_classes) if config.num_classes else None
        self.distill_head = nn.Linear(config.width, config.num_classes) if config.distill_token and config.num_classes else None

    @property
    def recompute(self) -> bool:
        """Whether the backward pass computes the activations of each layer again (activation checkpointing)."""
        return self.encoder.recompute

    @recompute.setter
    def recompute(self, value: bool) -> None:
        self.encoder.recompute = value

    def detect(self, images_BCHW: Tensor, record: Record | None = None) -> Detections:
        """What each register token detects: logits of its class (B, Q, C) and a box (B, Q, 4)."""
        if self.detection is None:
            raise ConfigError("this model has no detection heads", hint="detection_classes above 0")
        prefix = self.config.prefix_tokens
        found: Detections = self.detection(
            self.encode_images(images_BCHW, record)[:, prefix - self.config.register_tokens : prefix]
        )
        return found

    def class_and_distill_logits(self, images_BCHW: Tensor, record: Record | None = None) -> tuple[Tensor, Tensor]:
        """The logits of the class token's head and of the distillation token's head (Touvron et al. 2021), for training."""
        return self.both_logits_from(self.encode_for_pool(images_BCHW, record))

    def both_logits_from(self, z_BND: Tensor) -> tuple[Tensor, Tensor]:
        """The same from the encoder's tokens."""
        if self.head is None or self.distill_head is None:
            raise ConfigError("this model has no distillation head", hint="distill_token=True and num_classes above 0")
        if self.pool_norm is not None:
            z_BND = self.pool_norm(z_BND[:, :2])
        return self.head(z_BND[:, 0]), self.distill_head(z_BND[:, 1])

    def prefix(self, batch: int) -> list[Tensor]:
        """The class, distillation and register tokens that the model has, for each image."""
        tokens = (self.class_token, self.distill_token, self.register_tokens)
        return [tokens_1ND.expand(batch, -1, -1) for tokens_1ND in tokens if tokens_1ND is not None]

    def drop_patches(self, z_BND: Tensor) -> Tensor:
        """In training, leave out a random `config.patch_dropout` of the patches; else keep all."""
        if not self.training or self.config.patch_dropout == 0:
            return z_BND
        b, n, d = z_BND.shape
        prefix = self.config.prefix_tokens
        kept = max(1, round((n - prefix) * (1 - self.config.patch_dropout)))
        chosen_BN = torch.rand(b, n - prefix, device=z_BND.device).argsort(1)[:, :kept].sort(1).values + prefix
        patches_BND = z_BND.gather(1, chosen_BN[:, :, None].expand(-1, -1, d))
        return torch.cat([z_BND[:, :prefix], patches_BND], dim=1)

    def check_images(self, images_BCHW: Tensor, record: Record | None) -> Grid:
        """The grid of patches of these images, or an error that says what the model takes."""
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
                hint=f"load(..., image_size=({height}, {width})) resizes its positions once; dynamic_size=True takes any size",
            )
        step_h, step_w = config.step
        if not config.pad and not config.crop and (height % step_h or width % step_w):
            raise ConfigError(f"the images are {height}x{width}, not a multiple of the patch {step_h}x{step_w}", hint="pad=True")
        return config.grid_of((height, width))


def tokens_read(config: ViTConfig) -> int | None:
    """How many of the first tokens the pool reads; None where it reads all, or where attention is not among all tokens."""
    among_all = config.attention == "global" and config.position.kind != "relative"
    return 1 + int(config.distill_token) if config.pool == "token" and among_all else None


def init_vit(model: ViT, draw: Draw) -> None:
    """The authors' initial values.

    Dense layers of the encoder are Xavier-uniform, q, k and v each on its own; convolutions, the patch embedding and the hidden
    layer of the pre-training head LeCun-normal (Flax's default); positions N(0, 0.02); biases of MLPs N(0, 1e-6); the class token
    and the head zero.
    """
    zero(model.class_token)
    for tokens_1ND in (model.distill_token, model.register_tokens):
        if tokens_1ND is not None:  # not zero: without positions such tokens would stay equal for ever
            draw.normal(tokens_1ND, 0.02)
    if model.representation is not None:
        draw.lecun_normal(model.representation.weight)
        zero(model.representation.bias)
    if model.projection is not None:
        draw.lecun_normal(model.projection.weight)
    for child in model.children():
        if isinstance(child, ResNetBody | ConvolutionalStem):
            init_stem(child, draw)
        else:
            for module in child.modules():
                _init_module(module, draw)
    for head in (model.head, model.distill_head):
        init_head(head, model.config.head_bias)


def _init_module(module: nn.Module, draw: Draw) -> None:
    match module:
        case Block():
            for scale_D in (module.scale1, module.scale2):
                if scale_D is not None:
                    scale_D.fill_(module.layer_scale)
        case Attention():
            query_DD, key_value_DD = module.qkv.weight[: module.qkv.in_features], module.qkv.weight[module.qkv.in_features :]
            for matrix in (query_DD, *key_value_DD.chunk(2), module.out.weight):
                draw.xavier_uniform(matrix)
            zero(module.qkv.bias, module.query_bias, module.value_bias, module.out.bias)
        case AttentionPool():
            matrices = (module.query.weight, *module.key_value.weight.chunk(2), module.out.weight)
            for matrix in (module.probe[0], *matrices):
                draw.xavier_uniform(matrix)
            zero(module.query.bias, module.key_value.bias, module.out.bias)
        case Mlp() | MlpVariant() | BiasMlp():
            for dense in (module.up, module.down):
                draw.xavier_uniform(dense.weight)
                if dense.bias is not None:
                    draw.normal(dense.bias, 1e-6)
        case DetectionHead():
            init_detection(module, draw)
        case PatchEmbedding():
            draw.lecun_normal(module.weight)
            zero(module.bias)
        case Positions():
            for name, parameter in module.named_parameters():
                if name == "frequencies":
                    init_frequencies(parameter, module, draw)
                elif name.startswith(("bias.", "shared_bias")):
                    zero(parameter)  # as BEiT's authors do
                elif not name.startswith("bias_mlps."):
                    draw.normal(parameter, 0.02)
        case nn.LayerNorm() | nn.RMSNorm():
            init_norm(module)
        case _:
            pass


def _tokens(config: ViTConfig, count: int) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(1, count, config.width)) if count else None


FAMILY = Family(
    model=ViT,
    initialise=init_vit,
    layers=(r"encoder\.blocks\.(\d+)\.", r"position\.bias\.(\d+)", r"position\.bias_mlps\.(\d+)\."),
    hidden=(r"encoder\.blocks\.", r"early\.stages\.(?!0\.0\.)"),
    sharded=(Block, stems.Unit),
)
