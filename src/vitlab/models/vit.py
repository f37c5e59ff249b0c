"""The Vision Transformer of "An Image is Worth 16x16 Words" (Dosovitskiy et al. 2021): section 3 and appendix A in one file.

Read it top to bottom: patches (eq. 1), attention (eq. 5 to 8), MLP, block (eq. 2 and 3), encoder, pooling, and the whole model
(eq. 1 and 4). Beside it: `position.py`, `attention_variants.py` (local, axial, relative), `stems.py` (convolutions before the
patches) and `record.py` (how a caller asks for a model's inside).

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
from vitlab.errors import ConfigError
from vitlab.models.attention_variants import (
    AttentionCapture,
    AttentionContext,
    Axis,
    attention_weights,
    axial_attention,
    axial_mask,
    local_mask,
    relative_logits,
)
from vitlab.models.init import Draw, init_head, init_norm, zero
from vitlab.models.position import Grid, Positions
from vitlab.models.record import Record
from vitlab.models.stems import ConvolutionalStem, ResNetBody, init_stem


def patchify(images_BCHW: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Patches in reading order, each a row of its C P Q values: (B, N, C P Q)."""
    b, c, h, w = images_BCHW.shape
    p, q = patch_size
    x_BCGPJQ = images_BCHW.reshape(b, c, h // p, p, w // q, q)
    return x_BCGPJQ.permute(0, 2, 4, 1, 3, 5).reshape(b, (h // p) * (w // q), c * p * q).contiguous()


class PatchEmbedding(nn.Module):
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
        return F.linear(patchify(images_BCHW, self.patch_size), self.weight.flatten(1), self.bias)  # x_p E of eq. 1


class Attention(nn.Module):
    """Multi-head self-attention (app. A); `axis` restricts patches to their own row or column (app. D.6)."""

    def __init__(self, config: ViTConfig, axis: Axis | None) -> None:
        super().__init__()
        self.heads = config.heads
        self.axis = axis
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.out = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BND: Tensor, context: AttentionContext, record: Record | None = None) -> Tensor:
        if context.read is not None:
            return self.of_first_tokens(x_BND, context.read)
        q_BHNK, k_BHNK, v_BHNK = (split_heads(part_BND, self.heads) for part_BND in self.qkv(x_BND).chunk(3, dim=-1))  # eq. 5
        bias = context.mask_NN if context.offsets_MD is None else relative_logits(q_BHNK, context)
        if self.axis is None:
            y_BHNK = F.scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, attn_mask=bias)  # eq. 6 and 7
        else:
            y_BHNK = axial_attention(self.axis, q_BHNK, k_BHNK, v_BHNK, context)
        if record is not None and record.sees_attention(context.layer):
            capture = AttentionCapture(
                queries_BHNK=q_BHNK, keys_BHNK=k_BHNK, values_BHNK=v_BHNK, mixed_BHNK=y_BHNK, context=context, axis=self.axis
            )
            _record_attention(record, capture, bias)
        y_BND: Tensor = self.dropout(self.out(y_BHNK.transpose(1, 2).flatten(2)))  # eq. 8
        return y_BND

    def of_first_tokens(self, x_BND: Tensor, read: int) -> Tensor:
        """The attention output of the first `read` tokens alone, (B, read, D): the same numbers for less work."""
        width = x_BND.shape[-1]
        weight, bias = self.qkv.weight, cast("Tensor | None", self.qkv.bias)
        q_BRD = F.linear(x_BND[:, :read], weight[:width], None if bias is None else bias[:width])
        kv_BND = F.linear(x_BND, weight[width:], None if bias is None else bias[width:]).chunk(2, dim=-1)
        k_BHNK, v_BHNK = (split_heads(part_BND, self.heads) for part_BND in kv_BND)
        y_BHRK = F.scaled_dot_product_attention(split_heads(q_BRD, self.heads), k_BHNK, v_BHNK)
        y_BRD: Tensor = self.dropout(self.out(y_BHRK.transpose(1, 2).flatten(2)))
        return y_BRD


def split_heads(x_BND: Tensor, heads: int) -> Tensor:
    """(B, N, D) as (B, H, N, K)."""
    return x_BND.view(*x_BND.shape[:2], heads, -1).transpose(1, 2)


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
    """Dense, GELU, dropout, dense, dropout; the GELU is exact or the authors' tanh approximation."""

    def __init__(self, width: int, hidden: int, *, gelu: Gelu, dropout: float) -> None:
        super().__init__()
        self.approximate = "tanh" if gelu == "tanh" else "none"
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BND: Tensor) -> Tensor:
        hidden_BNM: Tensor = self.dropout(F.gelu(self.up(x_BND), approximate=self.approximate))
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
        eps = config.numerics.norm_eps
        self.norm1 = nn.LayerNorm(config.width, eps=eps)
        self.attention = Attention(config, axis)
        self.norm2 = nn.LayerNorm(config.width, eps=eps)
        self.mlp = Mlp(config.width, config.mlp_width, gelu=config.numerics.gelu, dropout=config.dropout)
        self.scale1 = nn.Parameter(torch.empty(config.width)) if config.layer_scale else None
        self.scale2 = nn.Parameter(torch.empty(config.width)) if config.layer_scale else None
        self.layer_scale = config.layer_scale
        self.drop = config.drop_path * layer / max(config.layers - 1, 1)

    def forward(self, z_BND: Tensor, context: AttentionContext, record: Record | None = None) -> Tensor:
        drop = self.drop if self.training else 0.0
        branch = residual_branch(self.attention(self.norm1(z_BND), context, record), self.scale1, drop)
        z_BND = z_BND[:, : context.read] + branch  # eq. 2
        del branch  # or it would be alive at the peak of memory, in the MLP
        return z_BND + residual_branch(self.mlp(self.norm2(z_BND)), self.scale2, drop)  # eq. 3


class Encoder(nn.Module):
    """The Transformer encoder: blocks, then a LayerNorm; positions enter at every layer where the config says so."""

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
        """All tokens after the last layer, or only the first `read` of them."""
        mask_NN = None if self.window is None else local_mask(self.window, grid, self.prefix, z_BND.device)
        if record is not None:
            record.start(len(self.blocks))
        for layer, block in enumerate(self.blocks):
            if layer > 0 and (added_1ND := position.added(layer, grid)) is not None:
                z_BND = z_BND + added_1ND  # Table 8: positions at each layer; the first has them from eq. 1
            offsets_MD = position.offset_keys(layer, grid)
            context = AttentionContext(layer=layer, grid=grid, prefix=self.prefix, mask_NN=mask_NN, offsets_MD=offsets_MD)
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


class AttentionPool(nn.Module):
    """Multihead attention pooling (Zhai et al. 2021): one learned query attends to all patches, then an MLP with a residual."""

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


class ViT(nn.Module):
    """Normalised images (B, C, H, W) to logits (B, classes); a hybrid when `config.stem` puts a ResNet before the patches."""

    def forward(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """Logits (B, classes), or features where there is no head."""
        return self.logits_from(self.encode_for_pool(images_BCHW, record))

    def features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """What the head sees, (B, feature_width); with a distillation token, the mean of what the two heads see."""
        return self.represent(self.pool_tokens(self.encode_for_pool(images_BCHW, record)))

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
        return patches_BND

    def encode(self, z_BND: Tensor, grid: Grid, record: Record | None = None, read: int | None = None) -> Tensor:
        """All tokens after the encoder, or the first `read`, from embedded patches."""
        z_BND = torch.cat([*self.prefix(z_BND.shape[0]), z_BND], dim=1)  # [x_class; x_p E]
        if (E_pos_1ND := self.position.added(0, grid)) is not None:
            z_BND = z_BND + E_pos_1ND  # eq. 1: z_0 = [x_class; x_p E] + E_pos
        z_BND = self.drop_patches(self.dropout(z_BND))
        z_BND = self.encoder(z_BND, self.position, grid, record, read)  # eq. 2 and 3 in each Block; then the LN of eq. 4
        return z_BND

    def pool_tokens(self, z_BND: Tensor) -> Tensor:
        """One vector an image, (B, D)."""
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

    def represent(self, y_BD: Tensor) -> Tensor:
        """What the head sees of the pooled vector, (B, feature_width): section 3.1's hidden layer where there is one."""
        return y_BD if self.representation is None else torch.tanh(self.representation(y_BD))

    def logits_from(self, z_BND: Tensor) -> Tensor:
        """Logits (B, classes) from the encoder's tokens; without a head the features."""
        if self.distill_head is not None:
            return torch.stack(self.both_logits_from(z_BND)).mean(0)
        features_BD = self.represent(self.pool_tokens(z_BND))
        return features_BD if self.head is None else self.head(features_BD)

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.skip_unused_tokens = False  # True: the last layer leaves out the tokens nobody reads; the same numbers to rounding
        self.any_size = config.dynamic_size  # also True during progressive resizing
        self.stem = None if config.stem is None else ResNetBody(config.stem, config.channels)
        self.early = (  # the convolutional stem; its name is part of the state dict
            None if config.conv_stem is None else ConvolutionalStem(config.conv_stem, config.channels, gelu=config.numerics.gelu)
        )
        channels = config.channels if config.before is None else config.before.out_width
        self.patches = PatchEmbedding(channels, config.width, config.patch_size, pad=config.pad)
        self.class_token = _tokens(config, int(config.class_token))
        self.distill_token = _tokens(config, int(config.distill_token))
        self.register_tokens = _tokens(config, config.register_tokens)
        self.position = Positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config, [Block(config, layer) for layer in range(config.layers)])
        self.pool = AttentionPool(config) if config.pool == "map" else None
        self.pool_norm = nn.LayerNorm(config.width, eps=config.numerics.norm_eps) if config.norm_after_pool else None
        self.representation = nn.Linear(config.width, config.representation_width) if config.representation_width else None
        self.head = nn.Linear(config.feature_width, config.num_classes) if config.num_classes else None
        self.distill_head = nn.Linear(config.width, config.num_classes) if config.distill_token and config.num_classes else None

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
        if not config.pad and (height % step_h or width % step_w):
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
            for matrix in (*module.qkv.weight.chunk(3), module.out.weight):
                draw.xavier_uniform(matrix)
            zero(module.qkv.bias, module.out.bias)
        case AttentionPool():
            matrices = (module.query.weight, *module.key_value.weight.chunk(2), module.out.weight)
            for matrix in (module.probe[0], *matrices):
                draw.xavier_uniform(matrix)
            zero(module.query.bias, module.key_value.bias, module.out.bias)
        case Mlp():
            for dense in (module.up, module.down):
                draw.xavier_uniform(dense.weight)
                draw.normal(dense.bias, 1e-6)
        case PatchEmbedding():
            draw.lecun_normal(module.weight)
            zero(module.bias)
        case Positions():
            for parameter in module.parameters():
                draw.normal(parameter, 0.02)
        case nn.LayerNorm():
            init_norm(module)
        case _:
            pass


def _tokens(config: ViTConfig, count: int) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(1, count, config.width)) if count else None
