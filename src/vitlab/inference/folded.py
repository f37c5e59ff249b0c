"""The graph that inference and export run: plain operators, with a ViT's weights folded where that is possible.

`exportable` gives the graph of any checkpoint. Folding multiplies out, once, everything that is constant at inference:

- (pixel / 255 - mean) / std goes into the patch embedding, which takes raw pixels;
- the embedding's bias, the position embeddings and the prefix tokens become one table;
- 1 / sqrt(K) goes into the queries' weights;
- the bias of the keys adds one constant to all attention logits of a query, and softmax ignores it: it is dropped, unless keys are
  turned or normed;
- the bias of the values passes through attention unchanged, since the weights sum to 1: it goes into the output's bias, unless the
  output is normed;
- layer scale goes into the output's and the MLP's last weights;
- rotary positions turn halves of a head instead of neighbours: queries and keys are sorted so, which changes no product;
- a relative position bias becomes a table for each pair of tokens.

Folded results equal the model's own to about 1e-6 of the largest logit.

The same graph merges tokens (Bolya et al. 2023, "Token Merging: Your ViT But Faster") where that is asked for: the most similar
pairs of patches become one token, the mean of both weighted by how many patches each stands for. Pairs are formed between two
halves, every second patch in each: this is cheap and forms no chains. Prefix tokens are never merged. A token that stands for s
patches counts s times in attention.

Axes: B batch, H heads or height, W width, C channels or classes; N tokens, T = B N rows, D width, M hidden width of the MLP,
K width of a head, P patches, A and E the two halves of them, R patches that are merged away and S patches of A that stay;
Q = patch height x patch width x C, the pixels of a patch in memory order; in a convolution kernel O outputs and I inputs.
"""

from __future__ import annotations

from copy import copy
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import Preprocess
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError, choice
from vitlab.models.model import Model
from vitlab.models.position import Rotation
from vitlab.models.resnet import StandardisedConv, convolved, standardise
from vitlab.models.segmenter import Segmenter
from vitlab.models.vit import Attention, Block, Mlp, ViT, tokens_read
from vitlab.models.vit_parts import AnyNorm, gelu

Input = Literal["pixels", "normalised"]
Output = Literal["logits", "probabilities", "features", "both"]
Activation = Literal["softmax", "sigmoid"]
"""How logits become probabilities: `softmax` for one class per image, `sigmoid` for several."""

M = TypeVar("M", bound=nn.Module)


def activation_of(checkpoint: Checkpoint) -> Activation:
    """The activation that the checkpoint was trained with; softmax where it does not say."""
    train = (checkpoint.recipe or {}).get("train")
    return "sigmoid" if isinstance(train, dict) and train.get("loss") == "sigmoid" else "softmax"


def why_not_folded(model: torch.nn.Module) -> str | None:
    """The reason why this model cannot be folded, or None if it can."""
    if not isinstance(model, ViT):
        return f"a {type(model).__name__} is not folded"
    config = model.config
    if config.attention != "global":
        return f"{config.attention} attention is not folded"
    if config.position.kind == "relative":
        return "relative positions are not folded"
    if config.norm.patches or config.parallel == "branches":
        return "norms of patch embeddings and parallel branches are not folded"
    if config.position.bias is not None and config.layers * config.heads * config.tokens**2 > _MOST_BIASES:
        return "a relative position bias of so many tokens is not folded"
    first = next(model.parameters())
    if first.device.type != "cpu":
        return f"models on {first.device.type} are not folded"
    if first.dtype != torch.float32:
        return f"weights of {str(first.dtype).removeprefix('torch.')} are not folded"
    return None


class FinishedConv(nn.Module):
    """A weight-standardised convolution whose kernel is standardised once, at construction."""

    weight_OIHW: Tensor

    def __init__(self, conv: StandardisedConv) -> None:
        super().__init__()
        self.stride, self.padding = conv.stride, conv.padding
        with torch.no_grad():
            kernel_OIHW = standardise(conv.weight, form=conv.form, eps=conv.eps)
        self.register_buffer("weight_OIHW", kernel_OIHW, persistent=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return convolved(x_BCHW, self.weight_OIHW, stride=self.stride, padding=self.padding)


def finished(model: M) -> M:
    """A copy of the model for inference, whose standardised kernels are computed once; its outputs are bit-identical.

    The copy shares all other parameters with the model, which is not changed. A model without such kernels is returned itself.
    """
    made = _finished_copy(model)
    assert isinstance(made, type(model))
    return made


def _finished_copy(module: nn.Module) -> nn.Module:
    if isinstance(module, StandardisedConv):
        return FinishedConv(module)
    children = {name: None if child is None else _finished_copy(child) for name, child in module._modules.items()}
    if all(children[name] is child for name, child in module._modules.items()):
        return module
    made = copy(module)
    made._modules = children
    return made


_MOST_BIASES = 1 << 27  # numbers of all tables of relative position biases: half a gigabyte
_TOGETHER = 3  # layers whose merges happen at once


def why_not_merged(config: ViTConfig) -> str | None:
    """The reason why tokens of this model cannot be merged, or None if they can."""
    if config.pool == "map":
        return "its attention pooling reads single patches"
    if config.position.place != "stem" and config.position.kind != "none":
        return "it adds positions at every layer, and merged patches have none"
    if config.position.rotary is not None or config.position.bias is not None:
        return "its attention needs the place of every patch, and merged patches have none"
    if config.parallel != "no" or config.pooling.prefix or config.pool == "token+mean":
        return "its layers or its pooling are not the paper's"
    return None


def schedule(layers: int, merge: int) -> tuple[int, ...]:
    """Pairs to merge in each layer but the last, `merge` on average.

    The merges of three layers happen at once, in the middle one: as accurate as merging in every layer, for a third of the sorting.
    """
    steps = layers - 1
    counts = [0] * steps
    for first in range(0, steps, _TOGETHER):
        end = min(first + _TOGETHER, steps)
        counts[min(first + _TOGETHER // 2, end - 1)] = merge * (end - first)
    return tuple(counts)


def merged_count(tokens: int, prefix: int, most: int) -> int:
    """How many pairs a layer merges: `most`, or as many as the smaller half of the patches has."""
    return max(0, min(most, (tokens - prefix) // 2))


def merge(z_BND: Tensor, k_HBNK: Tensor, size_BN: Tensor, *, count: int, prefix: int) -> tuple[Tensor, Tensor]:
    """Merge the `count` pairs of tokens whose keys, averaged over heads, are most similar. Returns the tokens and their sizes.

    Prefix tokens stay first, then come the remaining patches of the first half, the most similar first, then those of the second.
    Only operators that every runtime has are used: rows are moved by index, and sums are a small matrix product.
    """
    b, n, d = z_BND.shape
    key_BPK = k_HBNK.sum(0)[:, prefix:]
    key_BPK = key_BPK * key_BPK.square().sum(-1, keepdim=True).clamp_min(1e-24).rsqrt()
    similarity_BAE = key_BPK[:, ::2] @ key_BPK[:, 1::2].transpose(1, 2)
    best_BA, partner_BA = similarity_BAE.max(-1)
    order_BA = best_BA.argsort(dim=-1, descending=True)  # sorted once, so that no token both goes and stays
    gone_BR, kept_BS = order_BA[:, :count], order_BA[:, count:]
    begin_B1 = n * torch.arange(b, device=z_BND.device)[:, None]
    go, stay = (prefix + 2 * gone_BR + begin_B1).flatten(), (prefix + 2 * kept_BS + begin_B1).flatten()
    flat_TD, size_T = z_BND.reshape(-1, d), size_BN.reshape(-1)
    going_BR1, going_BRD = size_T.index_select(0, go).view(b, count, 1), flat_TD.index_select(0, go).view(b, count, d)
    second_BED, size_BE1 = z_BND[:, prefix + 1 :: 2], size_BN[:, prefix + 1 :: 2, None]
    place_E1 = torch.arange(similarity_BAE.shape[2], device=z_BND.device)[:, None]
    joins_BER = (partner_BA.gather(1, gone_BR)[:, None] == place_E1).to(z_BND.dtype)
    after_BE1 = size_BE1 + joins_BER @ going_BR1
    mean_BED = (second_BED * size_BE1 + joins_BER @ (going_BRD * going_BR1)) / after_BE1
    left = kept_BS.shape[1]
    return (
        torch.cat([z_BND[:, :prefix], flat_TD.index_select(0, stay).view(b, left, d), mean_BED], dim=1),
        torch.cat([size_BN[:, :prefix], size_T.index_select(0, stay).view(b, left), after_BE1[:, :, 0]], dim=1),
    )


def weighted(z_BND: Tensor, size_BN: Tensor, prefix: int) -> Tensor:
    """Patch tokens scaled by their size, so that their plain mean is the mean over all original patches."""
    size_BP = size_BN[:, prefix:]
    factor_BP1 = (size_BP * (size_BP.shape[1] / size_BP.sum(1, keepdim=True)))[:, :, None]
    return torch.cat([z_BND[:, :prefix], z_BND[:, prefix:] * factor_BP1], dim=1)


def exportable(
    checkpoint: Checkpoint,
    *,
    takes: Input = "pixels",
    gives: Output = "logits",
    activation: Activation = "softmax",
    merge: int = 0,
) -> nn.Module:
    """A checkpoint's model as one module in evaluation mode, ready for torch.export, torch.compile and OpenVINO.

    `takes`: `pixels` is uint8 (B, H, W, C) of the preprocessing's size; `normalised` is float32 (B, C, H, W), the model's input.
    `gives`: `logits` or `probabilities` (B, C), of a segmenter (B, C, H, W), the latter by `activation`; `features` (B, D); `both`
    is (logits, features).
    The batch may have any size. A ViT is folded where possible (`why_not_folded`); any other model is wrapped unchanged. `merge`
    pairs of patches are merged per layer, on average.
    """
    choice("takes", takes, Input)
    choice("gives", gives, Output)
    model = checkpoint.model
    if not isinstance(model, Model):
        raise ConfigError(
            f"a {type(model).__name__} is not a vitlab model", hint="create it with vitlab.create_model or vitlab.load"
        )
    if gives in ("logits", "probabilities", "both") and model.head is None:
        raise ConfigError(f"this model has no head and gives no {gives}", hint="use gives='features'")
    if isinstance(model, ViT) and why_not_folded(model) is None:
        inner: nn.Module = FoldedGraph(model, checkpoint.preprocess, pixels=takes == "pixels", merge=merge)
    elif merge:
        raise ConfigError(f"tokens of this model cannot be merged: {why_not_folded(model)}", hint="leave merge out")
    else:
        inner = PlainGraph(model, checkpoint.preprocess, pixels=takes == "pixels")
    return OutputGraph(inner, gives=gives, activation=activation).eval()


class OutputGraph(nn.Module):
    """Selects what a graph gives: logits, probabilities, features, or logits and features."""

    def __init__(self, inner: nn.Module, *, gives: Output, activation: Activation) -> None:
        super().__init__()
        self.inner = inner
        self.gives = gives
        self.activation = activation

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features_BD, logits_BC = self.inner(images)
        if self.gives == "features":
            output: Tensor | tuple[Tensor, Tensor] = features_BD
        elif self.gives == "both":
            output = (logits_BC, features_BD)
        elif self.gives == "logits":
            output = logits_BC
        else:
            output = logits_BC.softmax(1) if self.activation == "softmax" else logits_BC.sigmoid()
        return output


class Normalise(nn.Module):
    """uint8 (B, H, W, C) to normalised float32 (B, C, H, W), with the same rounding as vitlab.data.transforms."""

    mean_C11: Tensor
    std_C11: Tensor

    def __init__(self, preprocess: Preprocess) -> None:
        super().__init__()
        for name, values in (("mean_C11", preprocess.mean), ("std_C11", preprocess.std)):
            scaled = 255 * torch.tensor(values, dtype=torch.float64).view(-1, 1, 1)
            self.register_buffer(name, scaled.float(), persistent=False)

    def forward(self, images_BHWC: Tensor) -> Tensor:
        images_BCHW = images_BHWC.permute(0, 3, 1, 2).float()
        return (images_BCHW - self.mean_C11) / self.std_C11


class PlainGraph(nn.Module):
    """A model that is not folded."""

    def __init__(self, model: Model, preprocess: Preprocess, *, pixels: bool) -> None:
        super().__init__()
        self.model = finished(model.eval())
        self.normalise = Normalise(preprocess) if pixels else None

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        images_BCHW = images if self.normalise is None else self.normalise(images)
        if isinstance(self.model, ViT):
            z_BND = self.model.encode_for_pool(images_BCHW)
            features_BD: Tensor = self.model.represent(self.model.pool_tokens(z_BND))
            return features_BD, self.model.logits_from(z_BND)
        if isinstance(self.model, Segmenter):
            features_BDGJ = self.model.grid_features(images_BCHW)
            return features_BDGJ.mean((2, 3)), self.model.pixel_logits(features_BDGJ, images_BCHW.shape[-2:])
        features_BD = self.model.features(images_BCHW)
        return features_BD, features_BD if self.model.head is None else self.model.head(features_BD)


class FoldedGraph(nn.Module):
    """A ViT with folded weights for images of one size; its last layer computes only the tokens that the pool reads.

    `start_1ND` is added to the patch embeddings: positions, prefix tokens and, where raw pixels are embedded, the folded bias.
    The model itself is not changed.
    """

    start_1ND: Tensor
    patch_DQ: Tensor | None
    fill_C: Tensor

    @torch.no_grad()
    def __init__(self, model: ViT, preprocess: Preprocess, *, pixels: bool, merge: int = 0) -> None:
        super().__init__()
        _check(model, preprocess, merge=merge)
        config = model.config
        self.model = finished(model.eval())
        self.patch_size, self.prefix, self.pool = config.patch_size, config.prefix_tokens, config.pool
        self.grid = config.grid_of(preprocess.image_size)
        start_1ND = start_table(model, self.grid)
        patch_DQ: Tensor | None = None
        if pixels and config.before is None:  # raw pixels go straight into the folded embedding
            patch_DQ, bias_D = folded_patches(model, preprocess)
            start_1ND[:, self.prefix :] += bias_D
        self.normalise = Normalise(preprocess) if pixels and patch_DQ is None else None
        self.register_buffer("start_1ND", start_1ND, persistent=False)
        self.register_buffer("patch_DQ", patch_DQ, persistent=False)
        self.register_buffer("fill_C", 255 * torch.tensor(preprocess.mean), persistent=False)  # normalises to zero
        blocks = [block for block in model.encoder.blocks if isinstance(block, Block)]
        last, counts = len(blocks) - 1, (*schedule(len(blocks), merge), 0)
        self.layers = nn.ModuleList(
            FoldedLayer(
                block,
                config,
                added_1ND=model.position.added(place, self.grid) if place else None,
                read=tokens_read(config) if place == last else None,
                merge=counts[place],
                rotation=model.position.rotation(place, self.grid),
                bias_1HNN=model.position.attention_bias(place, self.grid),
            )
            for place, block in enumerate(blocks)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        z_BND = self.embedded(images) + self.start_1ND[:, self.prefix :]
        if self.prefix:
            z_BND = torch.cat([self.start_1ND[:, : self.prefix].expand(z_BND.shape[0], -1, -1), z_BND], dim=1)
        if self.model.encoder.pre_norm is not None:
            z_BND = self.model.encoder.pre_norm(z_BND)
        size_BN: Tensor | None = None
        for layer in self.layers:
            z_BND, size_BN = layer(z_BND, size_BN)
        if self.model.encoder.norm is not None:
            z_BND = self.model.encoder.norm(z_BND)
        if size_BN is not None and self.pool == "mean":
            z_BND = weighted(z_BND, size_BN, self.prefix)
        return self.model.represent(self.model.pool_tokens(z_BND)), self.model.logits_from(z_BND)

    def embedded(self, images: Tensor) -> Tensor:
        """Patch embeddings (B, N, D), without the table start_1ND."""
        if self.patch_DQ is None:
            embedded_BND: Tensor = self.model.embed(images if self.normalise is None else self.normalise(images))
            return embedded_BND
        (g, j), (p, q) = self.grid, self.patch_size
        _, h, w, c = images.shape
        images_BHWC = images.float()
        if h > g * p or w > j * q:
            images_BHWC = images_BHWC[:, : g * p, : j * q]
        elif (h, w) != (g * p, j * q):
            edge_BHWC = F.pad(images_BHWC - self.fill_C, (0, 0, 0, j * q - w, 0, g * p - h))
            images_BHWC = edge_BHWC + self.fill_C
        patches_BNQ = images_BHWC.reshape(-1, g, p, j, q * c).permute(0, 1, 3, 2, 4).reshape(-1, g * j, p * q * c)
        return F.linear(patches_BNQ, self.patch_DQ)


def _check(model: ViT, preprocess: Preprocess, *, merge: int) -> None:
    """Refuse a model that cannot be folded, tokens that cannot be merged, and images that the model does not take."""
    if (why := why_not_folded(model)) is not None:
        raise ConfigError(f"this model cannot be folded: {why}")
    if merge and (why := why_not_merged(model.config)) is not None:
        raise ConfigError(f"tokens of this model cannot be merged: {why}", hint="leave merge out")
    config, size = model.config, preprocess.image_size
    if size != config.image_size and not config.dynamic_size:
        raise ConfigError(
            f"the preprocessing makes {size[0]}x{size[1]} images, the model takes {config.image_size[0]}x{config.image_size[1]}"
        )
    if preprocess.channels != config.channels:
        raise ConfigError(f"the preprocessing makes images of {preprocess.channels} channels, the model takes {config.channels}")


def start_table(model: ViT, grid: tuple[int, int]) -> Tensor:
    """Positions and prefix tokens, (1, N, D)."""
    config = model.config
    table_1ND = torch.zeros(1, config.prefix_tokens + grid[0] * grid[1], config.width)
    if (positions_1ND := model.position.added(0, grid)) is not None:
        table_1ND = table_1ND + positions_1ND
    if prefix := model.prefix(1):
        table_1ND[:, : config.prefix_tokens] += torch.cat(prefix, dim=1)
    return table_1ND


def folded_patches(model: ViT, preprocess: Preprocess) -> tuple[Tensor, Tensor]:
    """The embedding of raw pixels: E / (255 std) and bias - E mean / std, computed in float64."""
    weight_DCPQ = model.patches.weight.double()
    bias_D = weight_DCPQ.new_zeros(len(weight_DCPQ)) if model.patches.bias is None else model.patches.bias.double()
    std_C11 = torch.tensor(preprocess.std, dtype=torch.float64).view(-1, 1, 1)
    mean_C11 = torch.tensor(preprocess.mean, dtype=torch.float64).view(-1, 1, 1)
    scaled_DCPQ = weight_DCPQ / std_C11
    bias_D = bias_D - (scaled_DCPQ * mean_C11).sum(dim=(1, 2, 3))
    patch_DQ = (scaled_DCPQ / 255).permute(0, 2, 3, 1).reshape(len(bias_D), -1)
    return patch_DQ.float().contiguous(), bias_D.float()


class FoldedLayer(nn.Module):
    """Equations 2 and 3 with folded weights, in operators that every runtime has.

    `read` tokens, the first ones, are computed (None: all); `merge` pairs of patches are merged after attention.
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    out_bias: Tensor
    up: Tensor
    up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor
    added: Tensor | None
    cos: Tensor | None
    sin: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        block: Block,
        config: ViTConfig,
        *,
        added_1ND: Tensor | None,
        read: int | None,
        merge: int,
        rotation: Rotation | None = None,
        bias_1HNN: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.merge, self.read, self.prefix = merge, read, config.prefix_tokens
        self.heads, self.width = config.heads, config.width
        self.gelu, self.gated = config.numerics.gelu, config.mlp.gated
        self.post, self.parallel = block.post, block.parallel
        attention = block.attention
        order_K = torch.arange(attention.head_width)  # of the values of a head
        if rotation is not None and not rotation.halves:
            order_K = torch.cat([order_K[::2], order_K[1::2]])
        factor = attention.head_width**-0.5
        self.norm1, self.norm2 = FoldedNorm(block.norm1), None if block.norm2 is None else FoldedNorm(block.norm2)
        normed = attention.query_norm is not None
        self.query_norm = None if attention.query_norm is None else FoldedNorm(attention.query_norm, order_K, factor)
        self.key_norm = None if attention.key_norm is None else FoldedNorm(attention.key_norm, order_K)
        self.out_norm = None if attention.norm is None else FoldedNorm(attention.norm)
        self.mlp_norm = None if isinstance(block.mlp, Mlp) or block.mlp.norm is None else FoldedNorm(block.mlp.norm)
        out, down = attention.out.weight.double(), block.mlp.down.weight.double()
        out_bias = _wide(attention.out.bias, config.width)
        down_bias = _wide(block.mlp.down.bias, config.width)
        query, key, value = _parts(attention, order_K, attention.qkv.weight.double())
        qkv_bias: Tensor | None = None
        if (biases := attention.all_biases()) is not None:
            query_bias, key_bias, value_bias = _parts(attention, order_K, biases.double())
            if self.out_norm is None:  # values pass through attention
                out_bias, value_bias = out_bias + out @ value_bias, torch.zeros_like(value_bias)
            if rotation is None and not normed:  # the same for every key: softmax ignores it
                key_bias = torch.zeros_like(key_bias)
            qkv_bias = torch.cat([query_bias * (1 if normed else factor), key_bias, value_bias])
        if block.scale1 is not None:
            scale1 = block.scale1.double()
            out, out_bias = out * scale1[:, None], out_bias * scale1
        if (scale2 := block.scale1 if block.parallel else block.scale2) is not None:
            down, down_bias = down * scale2.double()[:, None], down_bias * scale2.double()
        turn = None if rotation is None else (rotation.cos_NK[..., order_K], rotation.sin_NK[..., order_K])
        tensors = {
            "qkv": torch.cat([query * (1 if normed else factor), key, value]),
            "qkv_bias": qkv_bias,
            "out": out,
            "out_bias": out_bias,
            "up": block.mlp.up.weight,
            "up_bias": block.mlp.up.bias,
            "down": down,
            "down_bias": down_bias,
            "added": added_1ND,
            "cos": None if turn is None else turn[0],
            "sin": None if turn is None else turn[1],
            "bias": None if bias_1HNN is None else bias_1HNN[:, :, :read],
        }
        for name, tensor in tensors.items():
            own = None if tensor is None else tensor.detach().float().clone()
            self.register_buffer(name, own, persistent=False)

    def forward(self, z_BND: Tensor, size_BN: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.added is not None:
            z_BND = z_BND + self.added
        x_BND = z_BND if self.post else self.norm1(z_BND)
        q_BHNK, k_BHNK, v_BHNK = self.projected(x_BND)
        seen = self.bias if size_BN is None else size_BN.log()[:, None, None]
        y_BHNK = F.scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, attn_mask=seen, scale=1.0)
        y_BND = y_BHNK.transpose(1, 2).flatten(2)
        y_BND = F.linear(y_BND if self.out_norm is None else self.out_norm(y_BND), self.out, self.out_bias)
        if self.parallel:
            y_BND = y_BND + self.transformed(x_BND if self.read is None else x_BND[:, : self.read])
        y_BND = self.norm1(y_BND) if self.post else y_BND
        z_BND = (z_BND if self.read is None else z_BND[:, : self.read]) + y_BND
        if self.merge and (count := merged_count(z_BND.shape[1], self.prefix, self.merge)):
            size_BN = z_BND.new_ones(z_BND.shape[:2]) if size_BN is None else size_BN
            z_BND, size_BN = merge(z_BND, k_BHNK.transpose(0, 1), size_BN, count=count, prefix=self.prefix)
        if self.norm2 is None:
            return z_BND, size_BN
        y_BND = self.norm2(self.transformed(z_BND)) if self.post else self.transformed(self.norm2(z_BND))
        return z_BND + y_BND, size_BN

    def transformed(self, x_BND: Tensor) -> Tensor:
        """The MLP."""
        hidden_BNM = F.linear(x_BND, self.up, self.up_bias)
        if self.gated:
            gate_BNM, value_BNM = hidden_BNM.chunk(2, dim=-1)
            hidden_BNM = F.silu(gate_BNM) * value_BNM
        else:
            hidden_BNM = gelu(hidden_BNM, self.gelu)
        return F.linear(hidden_BNM if self.mlp_norm is None else self.mlp_norm(hidden_BNM), self.down, self.down_bias)

    def projected(self, x_BND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, normed and turned; queries only of the tokens that are read."""
        if self.read is None:
            qkv_BND = F.linear(x_BND, self.qkv, self.qkv_bias)
            q_BHNK, k_BHNK, v_BHNK = self.split(qkv_BND, 3)
        else:
            q_BHNK, k_BHNK, v_BHNK = self.projected_apart(x_BND[:, : self.read], x_BND)
        if self.query_norm is not None and self.key_norm is not None:
            q_BHNK, k_BHNK = self.query_norm(q_BHNK), self.key_norm(k_BHNK)
        if self.cos is not None and self.sin is not None:  # of the tokens that are read alone none is a patch: none is turned
            q_BHNK, k_BHNK = q_BHNK if self.read else self.turned(q_BHNK), self.turned(k_BHNK)
        return q_BHNK, k_BHNK, v_BHNK

    def projected_apart(self, few_BRD: Tensor, x_BND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of a few tokens, and keys and values of all, neither normed nor turned."""
        width, bias = self.width, self.qkv_bias
        q_BRD = F.linear(few_BRD, self.qkv[:width], None if bias is None else bias[:width])
        kv_BND = F.linear(x_BND, self.qkv[width:], None if bias is None else bias[width:])
        (q_BHRK,), (k_BHNK, v_BHNK) = self.split(q_BRD, 1), self.split(kv_BND, 2)
        return q_BHRK, k_BHNK, v_BHNK

    def split(self, x_BND: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B, N, parts D) as that many of (B, H, N, K)."""
        x_BNPHK = x_BND.view(x_BND.shape[0], -1, parts, self.heads, self.width // self.heads)
        return x_BNPHK.permute(2, 0, 3, 1, 4).unbind(0)

    def turned(self, x_BHNK: Tensor) -> Tensor:
        """Queries or keys, turned by their positions."""
        assert self.cos is not None
        assert self.sin is not None
        first, second = x_BHNK.chunk(2, dim=-1)
        return x_BHNK * self.cos + torch.cat([-second, first], dim=-1) * self.sin


class FoldedNorm(nn.Module):
    """A norm with weights of its own; `order` sorts them as the values are sorted, `factor` multiplies what it gives."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, norm: AnyNorm, order: Tensor | None = None, factor: float = 1.0) -> None:
        super().__init__()
        self.layer_norm, self.eps = isinstance(norm, nn.LayerNorm), norm.eps
        bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
        for name, tensor in (("weight", norm.weight), ("bias", bias)):
            own = None if tensor is None else factor * (tensor if order is None else tensor[order]).detach().double()
            self.register_buffer(name, None if own is None else own.float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.layer_norm:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps or 0.0)
        return F.rms_norm(x, list(self.weight.shape), self.weight, self.eps)


def _wide(bias: Tensor | None, width: int) -> Tensor:
    """A bias in float64, zeros where there is none."""
    return torch.zeros(width, dtype=torch.float64) if bias is None else bias.double()


def _parts(attention: Attention, order_K: Tensor, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights or biases of queries, keys and values, one head after the other; shared heads are repeated, q and k sorted."""
    width = attention.heads * attention.head_width
    query, (key, value) = qkv[:width], qkv[width:].chunk(2)

    def heads(part: Tensor, order: Tensor) -> Tensor:
        by_head = part.view(-1, attention.head_width, *part.shape[1:])[:, order]
        return by_head.repeat_interleave(attention.heads // len(by_head), dim=0).flatten(0, 1)

    return heads(query, order_K), heads(key, order_K), heads(value, torch.arange(attention.head_width))
