"""ConvNeXt (Liu et al. 2022): a convolutional network built like a Transformer.

Axes: B batch, C channels or classes, H W cells of a map, D width of the features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.errors import ConfigError
from vitlab.models.model import Draw, Family, Model, init_head, init_norm, zero
from vitlab.models.record import Record
from vitlab.models.vit import Mlp, drop_path_rates, residual_branch


class Block(nn.Module):
    """x + scale MLP(LN(depthwise 7x7(x)))."""

    def __init__(self, config: ConvNeXtConfig, width: int, drop: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, config.kernel, padding=config.kernel // 2, groups=width)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.mlp = Mlp(width, width * config.mlp_ratio, gelu="exact", dropout=0.0)
        self.scale = nn.Parameter(torch.empty(width)) if config.layer_scale else None
        self.layer_scale = config.layer_scale
        self.drop = drop

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BHWC: Tensor = self.mlp(self.norm(self.depthwise(x_BCHW).permute(0, 2, 3, 1)))
        y_BHWC = residual_branch(y_BHWC, self.scale, self.drop if self.training else 0.0)
        return x_BCHW + y_BHWC.permute(0, 3, 1, 2)


class Halved(nn.Module):
    """LayerNorm, then a 2x2 convolution of stride 2: half the resolution, another width."""

    def __init__(self, inputs: int, outputs: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(inputs, eps=eps)
        self.conv = nn.Conv2d(inputs, outputs, 2, stride=2)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        halved_BCHW: Tensor = self.conv(over_channels(self.norm, x_BCHW))
        return halved_BCHW


class Stage(nn.Module):
    """Blocks; every stage but the first halves the resolution before them."""

    def __init__(self, config: ConvNeXtConfig, stage: int, drops: list[float]) -> None:
        super().__init__()
        width = config.widths[stage]
        self.halved = Halved(config.widths[stage - 1], width, config.norm_eps) if stage else None
        self.blocks = nn.ModuleList(Block(config, width, drop) for drop in drops)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        if self.halved is not None:
            x_BCHW = self.halved(x_BCHW)
        for block in self.blocks:
            x_BCHW = block(x_BCHW)
        return x_BCHW


class ConvNeXt(Model):
    """Normalised images (B, C, H, W) to logits (B, classes); any size that leaves the last stage a cell."""

    def __init__(self, config: ConvNeXtConfig) -> None:
        super().__init__()
        self.config: ConvNeXtConfig = config
        self.recompute = False
        self.patches = nn.Conv2d(config.channels, config.widths[0], config.patch_size, stride=config.patch_size)
        self.patch_norm = nn.LayerNorm(config.widths[0], eps=config.norm_eps)
        drops = drop_path_rates(config.drop_path, config.depths)
        self.stages = nn.ModuleList(Stage(config, stage, rates) for stage, rates in enumerate(drops))
        self.norm = nn.LayerNorm(config.feature_width, eps=config.last_norm_eps or config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.head: nn.Linear | None = nn.Linear(config.feature_width, config.num_classes) if config.num_classes else None

    def forward(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """Logits (B, classes) of normalised images; without a head (`num_classes` 0) the features."""
        y_BD = self.features(images_BCHW, record)
        return y_BD if self.head is None else self.head(self.dropout(y_BD))

    def features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """What the head sees, (B, D): the mean over places of the last maps, normalised."""
        self._check(images_BCHW, record)
        x_BCHW = images_BCHW.contiguous(memory_format=torch.channels_last)  # so that norms and MLPs need no copy
        x_BCHW = over_channels(self.patch_norm, self.patches(x_BCHW))
        for index, stage in enumerate(self.stages):
            again = self.recompute and torch.is_grad_enabled()
            x_BCHW = checkpoint(stage, x_BCHW, use_reentrant=False) if again else stage(x_BCHW)
            if record is not None:
                record.keep_maps(index, x_BCHW)
        y_BD: Tensor = self.norm(x_BCHW.mean(dim=(2, 3)))
        return y_BD

    def _check(self, images_BCHW: Tensor, record: Record | None) -> None:
        if images_BCHW.ndim != 4:
            raise ConfigError(f"images are (batch, channels, height, width), not of shape {tuple(images_BCHW.shape)}")
        if images_BCHW.shape[1] != self.config.channels:
            raise ConfigError(f"the images have {images_BCHW.shape[1]} channels and the model takes {self.config.channels}")
        height, width = images_BCHW.shape[2:]
        if min(height, width) < self.config.step:
            raise ConfigError(
                f"the images are {height}x{width}, smaller than one cell of the last stage",
                hint=f"use images of at least {self.config.step}x{self.config.step}",
            )
        if record is not None:
            record.refuse_attention("a ConvNeXt")
            record.start(len(self.stages))


def init_convnext(model: ConvNeXt, draw: Draw) -> None:
    """The authors' initial values: N(0, 0.02) cut at +-2."""
    for module in model.modules():
        match module:
            case Block():
                if module.scale is not None:
                    module.scale.fill_(module.layer_scale)
            case nn.Conv2d() | nn.Linear():
                draw.trunc_normal(module.weight, 0.02)
                zero(module.bias)
            case nn.LayerNorm():
                init_norm(module)
            case _:
                pass
    init_head(model.head, model.config.head_bias)


def over_channels(norm: nn.LayerNorm, x_BCHW: Tensor) -> Tensor:
    """A LayerNorm over the channels of each cell."""
    normal_BCHW: Tensor = norm(x_BCHW.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return normal_BCHW


FAMILY = Family(
    model=ConvNeXt,
    initialise=init_convnext,
    layers=(r"stages\.(\d+)\.blocks\.(\d+)\.", r"stages\.(\d+)\.halved\."),
    hidden=(r"stages\.\d+\.blocks\.\d+\.(?:attention|mlp)\.",),
    sharded=(Block,),
)
