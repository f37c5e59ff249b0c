"""What may stand before the patches: plain convolutions (Xiao et al. 2021), or the ResNet of a hybrid (section 3.1).

Axes: B batch, C channels, H height, W width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config.vit import Gelu
from vitlab.config.vit_parts import ConvStem, ResNetStem
from vitlab.models.batch_norm import BatchNorm, init_batch_norm
from vitlab.models.model import Draw, init_norm
from vitlab.models.resnet import StandardisedConv, max_pool, pad_same

_MOMENTUM = 0.1  # of BatchNorm, torch's default


class StemConvolution(nn.Module):
    """A 3x3 convolution without bias, a norm, and GELU or ReLU; a rest of pixels at the edge makes one more cell."""

    def __init__(self, config: ConvStem, inputs: int, outputs: int, *, stride: int, gelu: Gelu) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        self.norm = (
            BatchNorm(outputs, eps=config.norm_eps, momentum=_MOMENTUM)
            if config.norm == "batch"
            else nn.GroupNorm(outputs // config.group_width, outputs, eps=config.norm_eps)
        )
        self.stride = stride
        self.activation = config.activation
        self.approximate = "tanh" if gelu == "tanh" else "none"

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = F.conv2d(x_BCHW, self.weight, stride=self.stride, padding=1)
        x_BCHW = self.norm(x_BCHW)
        return F.relu(x_BCHW) if self.activation == "relu" else F.gelu(x_BCHW, approximate=self.approximate)


class ConvolutionalStem(nn.Module):
    """Images to feature maps of `config.out_width` channels, one cell for each `config.stride` pixels, rounded up."""

    def __init__(self, config: ConvStem, channels: int, *, gelu: Gelu) -> None:
        super().__init__()
        self.norm = config.norm
        self.stages = nn.ModuleList()
        for width, units in zip(config.widths, config.units, strict=True):
            first = StemConvolution(config, channels, width, stride=2, gelu=gelu)
            rest = (StemConvolution(config, width, width, stride=1, gelu=gelu) for _ in range(units - 1))
            self.stages.append(nn.ModuleList([first, *rest]))
            channels = width

    def forward(self, images_BCHW: Tensor) -> Tensor:
        # Channels last: on a CPU the convolutions of narrow maps are up to 1.6 times as fast. Not for a GroupNorm in bfloat16:
        # it takes six times as long with channels last, while convolutions gain a tenth.
        half = images_BCHW.device.type == "cpu" and (torch.is_autocast_enabled("cpu") or images_BCHW.dtype == torch.bfloat16)
        first = half and self.norm == "group"
        x_BCHW = images_BCHW.contiguous(memory_format=torch.contiguous_format if first else torch.channels_last)
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleList)
            shrink, *rest = stage
            x_BCHW = shrink(x_BCHW)
            for unit in rest:
                x_BCHW = x_BCHW + unit(x_BCHW)
        return x_BCHW


class Unit(nn.Module):
    """A bottleneck: relu(shortcut + 1x1, 3x3, 1x1), a GroupNorm after each convolution.

    `inputs` channels come in and 4 * `width` go out. `first` of its stage: the shortcut is projected and takes the stride.
    """

    def __init__(self, config: ResNetStem, inputs: int, width: int, *, first: bool, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(config, inputs, width, 1)
        self.norm1 = _norm(config, width)
        self.conv2 = _conv(config, width, width, 3, stride=stride)
        self.norm2 = _norm(config, width)
        self.conv3 = _conv(config, width, width * 4, 1)
        self.norm3 = _norm(config, width * 4)
        self.shortcut = _conv(config, inputs, width * 4, 1, stride=stride) if first else None
        self.shortcut_norm = _norm(config, width * 4) if first else None

    def forward(self, x_BCHW: Tensor) -> Tensor:
        shortcut_BCHW = x_BCHW
        if self.shortcut is not None and self.shortcut_norm is not None:
            shortcut_BCHW = self.shortcut_norm(self.shortcut(x_BCHW))
        x_BCHW = F.relu(self.norm1(self.conv1(x_BCHW)), inplace=True)
        x_BCHW = F.relu(self.norm2(self.conv2(x_BCHW)), inplace=True)
        x_BCHW = self.norm3(self.conv3(x_BCHW))
        return F.relu(shortcut_BCHW + x_BCHW, inplace=True)


class ResNetBody(nn.Module):
    """The ResNet of a hybrid: images to feature maps of `config.out_width` channels, one cell for each `config.stride` pixels.

    It is the authors' Flax network: post-activation, a GroupNorm after each convolution, the stride on the 3x3 convolution, and a
    projected shortcut in the first unit of each stage. XLA's "SAME" padding rounds up, so that no edge of an image is lost.
    `channels` is the number of channels of the images.
    """

    def __init__(self, config: ResNetStem, channels: int) -> None:
        super().__init__()
        self.config = config
        self.root = _conv(config, channels, config.width, 7, stride=2)
        self.root_norm = _norm(config, config.width)
        self.stages = nn.ModuleList()
        inputs = config.width
        for stage, units in enumerate(config.blocks):
            width = config.width * 2**stage
            layers = []
            for unit in range(units):
                first = unit == 0
                layers.append(Unit(config, inputs, width, first=first, stride=2 if first and stage else 1))
                inputs = width * 4
            self.stages.append(nn.Sequential(*layers))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        x_BCHW = F.relu(self.root_norm(self.root(images_BCHW)), inplace=True)
        # Minus infinity, so that the edge never wins; after a ReLU zero would do as well.
        x_BCHW = max_pool(pad_same(x_BCHW, kernel=3, stride=2, value=float("-inf")))
        for stage in self.stages:
            x_BCHW = stage(x_BCHW)
        return x_BCHW


def init_stem(stem: ConvolutionalStem | ResNetBody, draw: Draw) -> None:
    """LeCun-normal kernels; the third norm of a ResNet's unit is zero, so that the unit begins as its shortcut alone."""
    for module in stem.modules():
        match module:
            case StandardisedConv() | StemConvolution():
                draw.lecun_normal(module.weight)
            case nn.GroupNorm():
                init_norm(module)
            case BatchNorm():
                init_batch_norm(module)
            case _:
                pass
    for module in stem.modules():
        if isinstance(module, Unit):
            module.norm3.weight.zero_()


def _conv(config: ResNetStem, inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> StandardisedConv:
    return StandardisedConv(
        inputs,
        outputs,
        kernel,
        padding="same",
        form=config.standardise,
        eps=config.standardise_eps,
        stride=stride,
    )


def _norm(config: ResNetStem, channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(config.groups, channels, eps=config.norm_eps)
