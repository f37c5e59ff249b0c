"""A ViT's weights folded for inference: what is constant at inference is multiplied out once, and never again.

- (pixel / 255 - mean) / std goes into the patch embedding, which takes raw pixels;
- the embedding's bias, positions and prefix tokens become one table;
- 1 / sqrt(K) goes into the queries' weights;
- a key's bias adds the same to all logits of a query, which softmax does not see: it is dropped;
- a value's bias comes out of attention as it went in, since weights sum to one: it goes into the output's bias;
- layer scale goes into the output's and the MLP's last weights.

Axes: B batch, H heads, K width of a head, D width, M hidden width of the MLP, N tokens, P prefix tokens, C channels,
Q = patch height x patch width x C, the numbers of a patch in the order of the pixels in memory.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import Preprocess
from vitlab.config.model import Gelu, ViTConfig
from vitlab.errors import ConfigError, choice
from vitlab.inference.prediction import Chance
from vitlab.models.families import Model
from vitlab.models.resnet import StandardisedConv, convolved, standardise
from vitlab.models.vit import Block, ViT, tokens_read


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoldedLayer:
    """One layer's weights, each as (inputs, outputs)."""

    norm1: tuple[Tensor, Tensor]
    qkv_D3D: Tensor
    query_bias_D: Tensor | None
    out_DD: Tensor
    out_bias_D: Tensor
    norm2: tuple[Tensor, Tensor]
    up_DM: Tensor
    up_bias_M: Tensor
    down_MD: Tensor
    down_bias_D: Tensor
    added_1ND: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Folded:
    """A whole ViT's weights, for images of one size.

    `patch_QD` is None where a stem of convolutions stands before the patches, and the model's own `embedded` is used.
    `start_1ND` is what patches are added to and prefix tokens begin as; `bare_1ND` the same for patches that `embedded` made, whose
    bias is in them already. `fill_C` are the pixel values that stand for the zeros
    beyond a padded image's edge. `read` is how many of the first tokens the pool reads, None for all.
    """

    config: ViTConfig
    image_size: tuple[int, int]
    patch_QD: Tensor | None
    start_1ND: Tensor
    bare_1ND: Tensor
    fill_C: Tensor
    layers: tuple[FoldedLayer, ...]
    read: int | None

    @property
    def grid(self) -> tuple[int, int]:
        """Patches (down, across)."""
        return self.config.grid_of(self.image_size)

    @property
    def tokens(self) -> int:
        """Length of the sequence the encoder sees."""
        return self.start_1ND.shape[1]

    @property
    def gelu(self) -> Gelu:
        """Which form of the GELU."""
        return self.config.numerics.gelu


def why_not_folded(model: torch.nn.Module) -> str | None:
    """Why this model cannot be folded, or None where it can."""
    if not isinstance(model, ViT):
        return f"a {type(model).__name__} is run as it is"
    config = model.config
    if config.attention != "global":
        return f"{config.attention} attention is run as it is"
    if config.position.kind == "relative":
        return "relative positions are run as they are"
    first = next(model.parameters())
    if first.device.type != "cpu":
        return f"on {first.device.type} the model is run as it is"
    if first.dtype != torch.float32:
        return f"weights of {str(first.dtype).removeprefix('torch.')} are run as they are"
    return None


@torch.no_grad()
def fold(model: ViT, preprocess: Preprocess) -> Folded:
    """The folded weights of a model that is fed like this; the model itself is not changed."""
    if (why := why_not_folded(model)) is not None:
        raise ConfigError(f"this model cannot be folded: {why}")
    config, size = model.config, preprocess.image_size
    if size != config.image_size and not config.dynamic_size:
        raise ConfigError(f"images of {size[0]}x{size[1]} are fed to a model of {config.image_size[0]}x{config.image_size[1]}")
    if preprocess.channels != config.channels:
        raise ConfigError(f"images of {preprocess.channels} channels are fed to a model of {config.channels}")
    grid = config.grid_of(size)
    bare_1ND = torch.zeros(1, config.prefix_tokens + grid[0] * grid[1], config.width)
    if (positions_1ND := model.position.added(0, grid)) is not None:
        bare_1ND = bare_1ND + positions_1ND
    if prefix := model.prefix(1):
        bare_1ND[:, : config.prefix_tokens] += torch.cat(prefix, dim=1)
    patch_QD, start_1ND = None, bare_1ND
    if config.before is None:
        patch_QD, bias_D = _patches(model, preprocess)
        start_1ND = bare_1ND.clone()
        start_1ND[:, config.prefix_tokens :] += bias_D
    return Folded(
        config=config,
        image_size=size,
        patch_QD=patch_QD,
        start_1ND=start_1ND,
        bare_1ND=bare_1ND,
        fill_C=255 * torch.tensor(preprocess.mean),
        layers=tuple(
            _layer(block, config, model.position.added(layer, grid) if layer else None)
            for layer, block in enumerate(model.encoder.blocks)
            if isinstance(block, Block)
        ),
        read=tokens_read(config),
    )


def _patches(model: ViT, preprocess: Preprocess) -> tuple[Tensor, Tensor]:
    """The embedding of raw pixels: E / (255 std) and bias - E mean / std, in float64 until the end."""
    weight_DCPQ, bias_D = model.patches.weight.double(), model.patches.bias.double()
    std_C11 = torch.tensor(preprocess.std, dtype=torch.float64).view(-1, 1, 1)
    mean_C11 = torch.tensor(preprocess.mean, dtype=torch.float64).view(-1, 1, 1)
    scaled_DCPQ = weight_DCPQ / std_C11
    bias_D = bias_D - (scaled_DCPQ * mean_C11).sum(dim=(1, 2, 3))
    patch_QD = (scaled_DCPQ / 255).permute(2, 3, 1, 0).reshape(-1, len(bias_D))
    return patch_QD.float().contiguous(), bias_D.float()


def _layer(block: Block, config: ViTConfig, added_1ND: Tensor | None) -> FoldedLayer:
    width = config.width
    factor = (width // config.heads) ** -0.5
    qkv = block.attention.qkv.weight.double()  # (3 D, D)
    qkv = torch.cat([qkv[:width] * factor, qkv[width:]])
    out = block.attention.out.weight.double()
    out_bias_D = block.attention.out.bias.double()
    query_bias_D: Tensor | None = None
    if config.qkv_bias:
        bias = block.attention.qkv.bias.double()
        query_bias_D = (bias[:width] * factor).float()
        out_bias_D = out_bias_D + out @ bias[2 * width :]
    down, down_bias_D = block.mlp.down.weight.double(), block.mlp.down.bias.double()
    if block.scale1 is not None and block.scale2 is not None:
        out, out_bias_D = out * block.scale1.double()[:, None], out_bias_D * block.scale1.double()
        down, down_bias_D = down * block.scale2.double()[:, None], down_bias_D * block.scale2.double()
    return FoldedLayer(
        norm1=(block.norm1.weight.detach().clone(), block.norm1.bias.detach().clone()),
        qkv_D3D=_turned(qkv),
        query_bias_D=query_bias_D,
        out_DD=_turned(out),
        out_bias_D=out_bias_D.float(),
        norm2=(block.norm2.weight.detach().clone(), block.norm2.bias.detach().clone()),
        up_DM=_turned(block.mlp.up.weight),
        up_bias_M=block.mlp.up.bias.detach().clone(),
        down_MD=_turned(down),
        down_bias_D=down_bias_D.float(),
        added_1ND=None if added_1ND is None else added_1ND.detach().clone(),
    )


def _turned(weight: Tensor) -> Tensor:
    return weight.detach().float().t().contiguous()


# Models whose kernels are standardised at every call, with the finished kernels instead: BiT ResNets and the stems of hybrids.
#
# B batch, C channels, H height, W width; in a kernel O outputs, I inputs.

M = TypeVar("M", bound=nn.Module)


class FinishedConv(nn.Module):
    """A standardised convolution with the kernel it has now, not computed again."""

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
    """The same model for inference with its kernels as they are now; bit for bit the same answers.

    All other parameters are the given model's own, which is not changed; what has nothing to standardise is given back itself.
    """
    twin = _twin(model)
    assert isinstance(twin, type(model))
    return twin


def _twin(module: nn.Module) -> nn.Module:
    if isinstance(module, StandardisedConv):
        return FinishedConv(module)
    children = {name: None if child is None else _twin(child) for name, child in module._modules.items()}
    if all(children[name] is child for name, child in module._modules.items()):
        return module
    twin = copy(module)
    twin._modules = children
    return twin


# Token merging at inference (Bolya et al. 2023, "Token Merging: Your ViT But Faster"): the most alike pairs of patches,
# r a layer, become one token each, the mean of both weighted by how many patches each stands for.
#
# Pairs are found among two halves, every second patch in each: cheap, and no chains. Prefix tokens are never merged. A token that
# stands for s patches counts s times in attention. With r = 0 nothing changes.
#
# Axes: B batch, N tokens, T = B N rows, P patches, A and E the two halves of these, R patches that go and S those of A that stay,
# D width, H heads, K width of a head.

_TOGETHER = 3  # layers


def why_not_merged(config: ViTConfig) -> str | None:
    """Why tokens of this model cannot be merged, or None where they can."""
    if config.pool == "map":
        return "its attention pooling asks patches one by one"
    if config.position.place != "stem" and config.position.kind != "none":
        return "its positions are added at every layer, and merged patches have none"
    return None


def schedule(layers: int, merge: int) -> tuple[int, ...]:
    """Pairs to merge in each layer but the last, `merge` on average: those of three layers are merged at once, in the middle one.

    As accurate as some in every layer, for a third of the sorting.
    """
    steps = layers - 1
    counts = [0] * steps
    for first in range(0, steps, _TOGETHER):
        end = min(first + _TOGETHER, steps)
        counts[min(first + _TOGETHER // 2, end - 1)] = merge * (end - first)
    return tuple(counts)


def merged_count(tokens: int, prefix: int, most: int) -> int:
    """How many pairs a layer merges: `most`, or as many as the smaller half has."""
    return max(0, min(most, (tokens - prefix) // 2))


def merge(z_BND: Tensor, k_HBNK: Tensor, size_BN: Tensor, *, count: int, prefix: int) -> tuple[Tensor, Tensor]:
    """Tokens and their sizes after `count` merges: those tokens whose keys are most alike, the mean over heads, become one.

    Prefix tokens come first as before, then the patches of the first half that are left, the least alike last in line to go, then
    those of the second. In operators that every runtime has: tokens move by their rows in memory, and sums are a small product.
    """
    b, n, d = z_BND.shape
    key_BPK = k_HBNK.sum(0)[:, prefix:]
    key_BPK = key_BPK * key_BPK.square().sum(-1, keepdim=True).clamp_min(1e-24).rsqrt()
    alike_BAE = key_BPK[:, ::2] @ key_BPK[:, 1::2].transpose(1, 2)
    most_BA, partner_BA = alike_BAE.max(-1)
    order_BA = most_BA.argsort(dim=-1, descending=True)  # once, so that whoever goes does not also stay
    gone_BR, kept_BS = order_BA[:, :count], order_BA[:, count:]
    begin_B1 = n * torch.arange(b, device=z_BND.device)[:, None]
    go, stay = (prefix + 2 * gone_BR + begin_B1).flatten(), (prefix + 2 * kept_BS + begin_B1).flatten()
    flat_TD, size_T = z_BND.reshape(-1, d), size_BN.reshape(-1)
    going_BR1, going_BRD = size_T.index_select(0, go).view(b, count, 1), flat_TD.index_select(0, go).view(b, count, d)
    second_BED, size_BE1 = z_BND[:, prefix + 1 :: 2], size_BN[:, prefix + 1 :: 2, None]
    place_E1 = torch.arange(alike_BAE.shape[2], device=z_BND.device)[:, None]
    joins_BER = (partner_BA.gather(1, gone_BR)[:, None] == place_E1).to(z_BND.dtype)
    after_BE1 = size_BE1 + joins_BER @ going_BR1
    mean_BED = (second_BED * size_BE1 + joins_BER @ (going_BRD * going_BR1)) / after_BE1
    left = kept_BS.shape[1]
    return (
        torch.cat([z_BND[:, :prefix], flat_TD.index_select(0, stay).view(b, left, d), mean_BED], dim=1),
        torch.cat([size_BN[:, :prefix], size_T.index_select(0, stay).view(b, left), after_BE1[:, :, 0]], dim=1),
    )


def weighed(z_BND: Tensor, size_BN: Tensor, prefix: int) -> Tensor:
    """Tokens times what they stand for, so that the plain mean of them is the mean over patches."""
    size_BP = size_BN[:, prefix:]
    factor_BP1 = (size_BP * (size_BP.shape[1] / size_BP.sum(1, keepdim=True)))[:, :, None]
    return torch.cat([z_BND[:, :prefix], z_BND[:, prefix:] * factor_BP1], dim=1)


# Any model as one module of plain operators, for torch.compile and for export: pixels or normalised images in, answers out.
#
# Axes: B batch, H height, W width, C channels of a image or classes; N tokens, D width, K width of a head, Q numbers of a patch.

Input = Literal["pixels", "normalised"]
Output = Literal["logits", "probabilities", "features", "both"]


def exportable(
    checkpoint: Checkpoint, *, takes: Input = "pixels", gives: Output = "logits", chance: Chance = "softmax", merge: int = 0
) -> nn.Module:
    """A checkpoint's model as a module in evaluation mode for one tensor in, ready for torch.export, torch.compile and OpenVINO.

    `takes` `pixels`: uint8 (B, H, W, C) of the preprocessing's size, as images are in memory; `normalised`: float32
    (B, C, H, W), as the model itself takes them. `gives` `logits` or `probabilities` (B, C), the latter by `chance`; `features`
    (B, D); `both`: logits and features. The batch is of any size. A ViT is folded where it can be (`why_not_folded`), any other
    model is wrapped as it is; standardised kernels are finished in both. `merge` pairs of patches become one in every layer, on
    average, of a ViT that allows it.
    """
    choice("takes", takes, Input)
    choice("gives", gives, Output)
    model = checkpoint.model
    if not isinstance(model, Model):
        raise ConfigError(f"a {type(model).__name__} is not one of vitlab's models", hint="build or load it with vitlab")
    if gives in ("logits", "probabilities", "both") and model.head is None:
        raise ConfigError(f"this model has no head, and {gives} are asked for", hint="gives='features'")
    if isinstance(model, ViT) and why_not_folded(model) is None:
        inner: nn.Module = FoldedGraph(model, checkpoint.preprocess, pixels=takes == "pixels", merge=merge)
    elif merge:
        raise ConfigError(f"tokens of this model cannot be merged: {why_not_folded(model)}", hint="leave merge out")
    else:
        inner = PlainGraph(model, checkpoint.preprocess, pixels=takes == "pixels")
    return Answer(inner, gives=gives, chance=chance).eval()


class Answer(nn.Module):
    """The encoder's part, then the pool and the head."""

    def __init__(self, inner: nn.Module, *, gives: Output, chance: Chance) -> None:
        super().__init__()
        self.inner = inner
        self.gives = gives
        self.chance = chance

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features_BD, logits_BC = self.inner(images)
        if self.gives == "features":
            answer: Tensor | tuple[Tensor, Tensor] = features_BD
        elif self.gives == "both":
            answer = (logits_BC, features_BD)
        elif self.gives == "logits":
            answer = logits_BC
        else:
            answer = logits_BC.softmax(-1) if self.chance == "softmax" else logits_BC.sigmoid()
        return answer


class Normalise(nn.Module):
    """uint8 (B, H, W, C) to normalised float32 (B, C, H, W), with the same roundings as vitlab.data.transforms."""

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
    """A model as it is."""

    def __init__(self, model: Model, preprocess: Preprocess, *, pixels: bool) -> None:
        super().__init__()
        self.model = finished(model.eval())
        self.normalise = Normalise(preprocess) if pixels else None

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        images_BCHW = images if self.normalise is None else self.normalise(images)
        if isinstance(self.model, ViT):
            z_BND = self.model.read(images_BCHW)
            features_BD: Tensor = self.model.represented(self.model.pooled(z_BND))
            return features_BD, self.model.answered(z_BND)
        features_BD = self.model.features(images_BCHW)
        return features_BD, features_BD if self.model.head is None else self.model.head(features_BD)


class FoldedGraph(nn.Module):
    """A ViT with folded weights; the last layer computes only the tokens that are read."""

    start_1ND: Tensor

    def __init__(self, model: ViT, preprocess: Preprocess, *, pixels: bool, merge: int = 0) -> None:
        super().__init__()
        if merge and (why := why_not_merged(model.config)) is not None:
            raise ConfigError(f"tokens of this model cannot be merged: {why}", hint="leave merge out")
        folded = fold(model, preprocess)
        self.model = finished(model.eval())
        self.folded = folded
        self.pixels = pixels
        own = pixels and folded.patch_QD is not None
        self.normalise = Normalise(preprocess) if pixels and not own else None
        self.patch = nn.Buffer(folded.patch_QD.t().contiguous(), persistent=False) if own and folded.patch_QD is not None else None
        self.register_buffer("start_1ND", folded.start_1ND if own else folded.bare_1ND, persistent=False)
        last = len(folded.layers) - 1
        counts = (*schedule(len(folded.layers), merge), 0)
        self.layers = nn.ModuleList(
            GraphLayer(layer, folded, last=place == last, merge=counts[place]) for place, layer in enumerate(folded.layers)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        embedded_BND = self.embedded(images)
        prefix = self.folded.config.prefix_tokens
        z_BND = embedded_BND + self.start_1ND[:, prefix:]
        if prefix:
            z_BND = torch.cat([self.start_1ND[:, :prefix].expand(z_BND.shape[0], -1, -1), z_BND], dim=1)
        size_BN: Tensor | None = None
        for layer in self.layers:
            z_BND, size_BN = layer(z_BND, size_BN)
        if self.model.encoder.norm is not None:
            z_BND = self.model.encoder.norm(z_BND)
        if size_BN is not None and self.folded.config.pool == "mean":
            z_BND = weighed(z_BND, size_BN, prefix)
        return self.model.represented(self.model.pooled(z_BND)), self.model.answered(z_BND)

    def embedded(self, images: Tensor) -> Tensor:
        """Patches as vectors, (B, N, D), without what start_1ND adds."""
        if self.patch is None:
            embedded_BND: Tensor = self.model.embedded(images if self.normalise is None else self.normalise(images))
            return embedded_BND
        (g, j), (p, q) = self.folded.grid, self.folded.config.patch_size
        _, h, w, c = images.shape
        images_BHWC = images.float()
        if (h, w) != (g * p, j * q):
            edge_BHWC = F.pad(images_BHWC - self.folded.fill_C, (0, 0, 0, j * q - w, 0, g * p - h))
            images_BHWC = edge_BHWC + self.folded.fill_C
        patches_BNQ = images_BHWC.reshape(-1, g, p, j, q * c).permute(0, 1, 3, 2, 4).reshape(-1, g * j, p * q * c)
        return F.linear(patches_BNQ, self.patch)


class GraphLayer(nn.Module):
    """Equations 2 and 3 with folded weights, in operators that every runtime knows."""

    def __init__(self, layer: FoldedLayer, folded: Folded, *, last: bool, merge: int) -> None:
        super().__init__()
        config = folded.config
        self.merge, self.prefix = merge, config.prefix_tokens
        self.heads, self.width, self.eps = config.heads, config.width, config.numerics.norm_eps
        self.approximate = "tanh" if folded.gelu == "tanh" else "none"
        self.read = folded.read if last else None
        tensors = {
            "norm1_weight": layer.norm1[0],
            "norm1_bias": layer.norm1[1],
            "qkv": layer.qkv_D3D.t().contiguous(),
            "query_bias": layer.query_bias_D,
            "out": layer.out_DD.t().contiguous(),
            "out_bias": layer.out_bias_D,
            "norm2_weight": layer.norm2[0],
            "norm2_bias": layer.norm2[1],
            "up": layer.up_DM.t().contiguous(),
            "up_bias": layer.up_bias_M,
            "down": layer.down_MD.t().contiguous(),
            "down_bias": layer.down_bias_D,
            "added": layer.added_1ND,
        }
        if layer.query_bias_D is not None and self.read is None:  # one product: zeros for keys and values
            tensors["query_bias"] = F.pad(layer.query_bias_D, (0, 2 * config.width))
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor, persistent=False)

    norm1_weight: Tensor
    norm1_bias: Tensor
    qkv: Tensor
    query_bias: Tensor | None
    out: Tensor
    out_bias: Tensor
    norm2_weight: Tensor
    norm2_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    added: Tensor | None

    def forward(self, z_BND: Tensor, size_BN: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.added is not None:
            z_BND = z_BND + self.added
        x_BND = F.layer_norm(z_BND, (self.width,), self.norm1_weight, self.norm1_bias, self.eps)
        q_BHNK, k_BHNK, v_BHNK = self.projected(x_BND)
        seen = None if size_BN is None else size_BN.log()[:, None, None]
        y_BHNK = F.scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, attn_mask=seen, scale=1.0)
        y_BND = F.linear(y_BHNK.transpose(1, 2).flatten(2), self.out, self.out_bias)
        z_BND = (z_BND if self.read is None else z_BND[:, : self.read]) + y_BND
        if self.merge and (count := merged_count(z_BND.shape[1], self.prefix, self.merge)):
            size_BN = z_BND.new_ones(z_BND.shape[:2]) if size_BN is None else size_BN
            z_BND, size_BN = merge(z_BND, k_BHNK.transpose(0, 1), size_BN, count=count, prefix=self.prefix)
        x_BND = F.layer_norm(z_BND, (self.width,), self.norm2_weight, self.norm2_bias, self.eps)
        hidden_BNM = F.gelu(F.linear(x_BND, self.up, self.up_bias), approximate=self.approximate)
        return z_BND + F.linear(hidden_BNM, self.down, self.down_bias), size_BN

    def projected(self, x_BND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; queries of the tokens that are read alone, where not all are."""
        if self.read is None:
            qkv_BND = F.linear(x_BND, self.qkv, self.query_bias)
            qkv_BN3HK = qkv_BND.view(x_BND.shape[0], -1, 3, self.heads, self.width // self.heads)
            q_BHNK, k_BHNK, v_BHNK = qkv_BN3HK.permute(2, 0, 3, 1, 4).unbind(0)
            return q_BHNK, k_BHNK, v_BHNK
        q_BRD = F.linear(x_BND[:, : self.read], self.qkv[: self.width], self.query_bias)
        kv_BND = F.linear(x_BND, self.qkv[self.width :])
        kv_BN2HK = kv_BND.view(x_BND.shape[0], -1, 2, self.heads, self.width // self.heads)
        k_BHNK, v_BHNK = kv_BN2HK.permute(2, 0, 3, 1, 4).unbind(0)
        q_BRHK = q_BRD.view(x_BND.shape[0], -1, self.heads, self.width // self.heads)
        return q_BRHK.transpose(1, 2), k_BHNK, v_BHNK
