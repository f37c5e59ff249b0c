"""EfficientNet (Tan and Le 2019), up to the L2 of Noisy Student (Xie et al. 2020), as the authors' TensorFlow code computes it.

Axes: B batch, C channels or classes, H W cells of a map, D width of the features; in a kernel O outputs, I inputs.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitlab.config.efficientnet import EfficientNetConfig, MbStage, Padding
from vitlab.errors import ConfigError
from vitlab.models.batch_norm import BatchNorm, init_batch_norm, once
from vitlab.models.model import Draw, Family, Model, init_head, zero
from vitlab.models.record import Record
from vitlab.models.resnet import conv_same
from vitlab.models.vit import residual_branch


class Conv(nn.Module):
    """A convolution without bias; `depthwise` has one kernel a channel, `padding` is one of `EfficientNetConfig.padding`."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, depthwise: bool = False, padding: Padding = "same"
    ) -> None:
        super().__init__()
        self.padding: Padding = padding
        self.groups = inputs if depthwise else 1
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(outputs, inputs // self.groups, kernel, kernel))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        half = self.weight.shape[2] // 2
        if self.padding == "uneven" and self.stride > 1:
            x_BCHW = F.pad(x_BCHW, (half - 1, half, half - 1, half))
            return F.conv2d(x_BCHW, self.weight, stride=self.stride, groups=self.groups)
        if self.padding != "same":
            return F.conv2d(x_BCHW, self.weight, stride=self.stride, padding=half, groups=self.groups)
        return conv_same(x_BCHW, self.weight, stride=self.stride, groups=self.groups)


class Squeeze(nn.Module):
    """Squeeze and excitation (Hu et al. 2018): each channel times a factor in (0, 1), computed from all channels' means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(channels, squeezed)
        self.expand = nn.Linear(squeezed, channels)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        factor_BC: Tensor = self.expand(F.silu(self.reduce(x_BCHW.mean(dim=(2, 3))))).sigmoid()
        return x_BCHW * factor_BC[:, :, None, None]


class Unit(nn.Module):
    """An inverted bottleneck: 1x1 to `expansion` times the width, depthwise, squeeze and excitation, 1x1 back; swish between.

    If input and output have the same shape, the unit has a shortcut, and stochastic depth drops it the more often the higher its
    `number`.
    """

    def __init__(self, config: EfficientNetConfig, stage: MbStage, inputs: int, *, stride: int, number: int) -> None:
        super().__init__()
        inner = inputs * stage.expansion
        self.expand = Conv(inputs, inner, 1) if stage.expansion > 1 else None
        self.expand_norm = _norm(config, inner) if stage.expansion > 1 else None
        padding = "half" if number in config.even_blocks else config.padding
        self.depthwise = Conv(inner, inner, stage.kernel, stride=stride, depthwise=True, padding=padding)
        self.depthwise_norm = _norm(config, inner)
        self.squeeze = Squeeze(inner, config.squeezed(inputs))
        self.project = Conv(inner, stage.width, 1)
        self.project_norm = _norm(config, stage.width)
        self.adds = stride == 1 and inputs == stage.width
        self.drop = config.drop_path * number / config.block_count  # the authors' drop-connect

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW = x_BCHW
        if self.expand is not None and self.expand_norm is not None:
            y_BCHW = F.silu(self.expand_norm(self.expand(y_BCHW)), inplace=True)
        y_BCHW = F.silu(self.depthwise_norm(self.depthwise(y_BCHW)), inplace=True)
        y_BCHW = self.project_norm(self.project(self.squeeze(y_BCHW)))
        return x_BCHW + residual_branch(y_BCHW, None, self.drop if self.training else 0.0) if self.adds else y_BCHW


class EfficientNet(Model):
    """Normalised images (B, C, H, W) of any size to logits (B, classes); `config.image_size` is the size it was built for."""

    def __init__(self, config: EfficientNetConfig) -> None:
        super().__init__()
        self.config: EfficientNetConfig = config
        self.recompute = False
        self.stem = Conv(config.channels, config.stem_width, 3, stride=2, padding=config.padding)
        self.stem_norm = _norm(config, config.stem_width)
        self.stages = nn.ModuleList()
        inputs, number = config.stem_width, 0
        for stage in config.plan:
            units = []
            for unit in range(stage.blocks):
                units.append(Unit(config, stage, inputs, stride=1 if unit else stage.stride, number=number))
                inputs, number = stage.width, number + 1
            self.stages.append(nn.Sequential(*units))
        self.last = Conv(inputs, config.head_width, 1)
        self.last_norm = _norm(config, config.head_width)
        self.dropout = nn.Dropout(config.dropout)
        self.head: nn.Linear | None = nn.Linear(config.head_width, config.num_classes) if config.num_classes else None

    def forward(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """Logits (B, classes) of normalised images; without a head (`num_classes` 0) the features."""
        y_BD = self.features(images_BCHW, record)
        return y_BD if self.head is None else self.head(self.dropout(y_BD))

    def features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """What the head sees, (B, D): the mean over places of the last maps."""
        if images_BCHW.ndim != 4:
            raise ConfigError(f"images are (batch, channels, height, width), not of shape {tuple(images_BCHW.shape)}")
        if images_BCHW.shape[1] != self.config.channels:
            raise ConfigError(f"the images have {images_BCHW.shape[1]} channels and the model takes {self.config.channels}")
        if record is not None:
            record.refuse_attention("an EfficientNet")
            record.start(len(self.stages))
        x_BCHW = images_BCHW.contiguous(memory_format=torch.channels_last)  # faster for depthwise convolutions
        x_BCHW = F.silu(self.stem_norm(self.stem(x_BCHW)), inplace=True)
        for index, stage in enumerate(self.stages):
            x_BCHW = self._run(stage, x_BCHW)
            if record is not None:
                record.keep_maps(index, x_BCHW)
        return F.silu(self.last_norm(self.last(x_BCHW)), inplace=True).mean(dim=(2, 3))

    def _run(self, stage: nn.Module, x_BCHW: Tensor) -> Tensor:
        """One stage; with `recompute` the backward pass computes it again, and BatchNorm counts the batch once."""
        again = self.recompute and torch.is_grad_enabled()
        contexts = partial(once, stage)
        x_BCHW = checkpoint(stage, x_BCHW, use_reentrant=False, context_fn=contexts) if again else stage(x_BCHW)
        return x_BCHW


def init_efficientnet(model: EfficientNet, draw: Draw) -> None:
    """The authors' initial values: normal, by the number of outputs (He et al. 2015)."""
    for module in model.modules():
        match module:
            case Conv():
                outputs, kernel = module.weight.shape[0] // module.groups, module.weight[0, 0].numel()
                draw.normal(module.weight, math.sqrt(2 / (outputs * kernel)))
            case nn.Linear():  # of squeeze and excitation, which the authors write as 1x1 convolutions
                draw.normal(module.weight, math.sqrt(2 / module.weight.shape[0]))
                zero(module.bias)
            case BatchNorm():
                init_batch_norm(module)
            case _:
                pass
    init_head(model.head, model.config.head_bias)


def _norm(config: EfficientNetConfig, channels: int) -> BatchNorm:
    return BatchNorm(channels, eps=config.norm_eps, momentum=config.momentum)


FAMILY = Family(
    model=EfficientNet,
    initialise=init_efficientnet,
    layers=(r"stages\.(\d+)\.",),
    hidden=(),
    sharded=(Unit,),
)
