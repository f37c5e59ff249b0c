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

from dataclasses import dataclass

import torch
from torch import Tensor

from vitlab.config.data import Preprocess
from vitlab.config.model import Gelu, ViTConfig
from vitlab.errors import ConfigError
from vitlab.model.vit import Block, ViT, tokens_read


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
    """A whole ViT's weights, for pictures of one size.

    `patch_QD` is None where a stem of convolutions stands before the patches, and the model's own `embedded` is used.
    `start_1ND` is what patches are added to and prefix tokens begin as; `bare_1ND` the same for patches that `embedded` made, whose
    bias is in them already. `fill_C` are the pixel values that stand for the zeros
    beyond a padded picture's edge. `read` is how many of the first tokens the pool reads, None for all.
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
        raise ConfigError(f"pictures of {size[0]}x{size[1]} are fed to a model of {config.image_size[0]}x{config.image_size[1]}")
    if preprocess.channels != config.channels:
        raise ConfigError(f"pictures of {preprocess.channels} channels are fed to a model of {config.channels}")
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
