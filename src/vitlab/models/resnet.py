"""The paper's baseline, a BiT ResNet: pre-activation, GroupNorm, standardised weights (Kolesnikov et al. 2020).

Weight-standardised convolution (Qiao et al. 2019) stands here with its two paddings, XLA's "SAME" and half a kernel, since the stem
of a hybrid uses them too.

Axes: B batch, C channels (of logits: classes), H height, W width, D width of the features; in a kernel O outputs, I inputs.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitlab.config.resnet import ResNetConfig
from vitlab.config.vit_parts import Standardise
from vitlab.errors import ConfigError
from vitlab.models.model import Draw, Family, Model, init_head, init_norm
from vitlab.models.record import Record

Padding = Literal["same", "half"]


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Cells that XLA's "SAME" adds (before, after) one axis, so that it comes out ceil(size / stride) long.

    If the total is odd the end gets one more: at stride 2 an even side is padded on one side only, which no symmetric padding
    reproduces.
    """
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def pad_same(x_BCHW: Tensor, *, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """The maps with XLA's "SAME" padding of `value` around them."""
    top, bottom = same_padding(x_BCHW.shape[2], kernel, stride)
    left, right = same_padding(x_BCHW.shape[3], kernel, stride)
    return F.pad(x_BCHW, (left, right, top, bottom), value=value)


def conv_same(x_BCHW: Tensor, weight_OIHW: Tensor, *, stride: int, groups: int = 1) -> Tensor:
    """A convolution with XLA's and TensorFlow's "SAME" padding, whose output is ceil(size / stride) long."""
    top, bottom = same_padding(x_BCHW.shape[2], weight_OIHW.shape[2], stride)
    left, right = same_padding(x_BCHW.shape[3], weight_OIHW.shape[3], stride)
    if top == bottom and left == right:  # the convolution pads by itself, without a copy
        return F.conv2d(x_BCHW, weight_OIHW, stride=stride, padding=(top, left), groups=groups)
    return F.conv2d(F.pad(x_BCHW, (left, right, top, bottom)), weight_OIHW, stride=stride, groups=groups)


def convolved(x_BCHW: Tensor, weight_OIHW: Tensor, *, stride: int, padding: Padding) -> Tensor:
    """A convolution with one of the two paddings."""
    if padding == "half":
        return F.conv2d(x_BCHW, weight_OIHW, stride=stride, padding=weight_OIHW.shape[2] // 2)
    return conv_same(x_BCHW, weight_OIHW, stride=stride)


def max_pool(x_BCHW: Tensor) -> Tensor:
    """The largest of each 3x3 window at stride 2, without padding."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or x_BCHW.device.type != "cpu":
        return F.max_pool2d(x_BCHW, 3, stride=2)
    # With channels last PyTorch's kernel works on eight or more channels at once: with both copies 1.9 instead of 7.6 ms for
    # one image's 64 maps of 112 x 112.
    return F.max_pool2d(x_BCHW.contiguous(memory_format=torch.channels_last), 3, stride=2).contiguous()


def standardise(weight_OIHW: Tensor, *, form: Standardise, eps: float) -> Tensor:
    """The kernel with mean 0 and variance 1 over each output's inputs, the variance being the biased one.

    `form` "std" divides by (std + eps), "variance" by sqrt(variance + eps). A half-precision kernel is standardised in float32:
    the sums run over thousands of numbers. A constant filter becomes 0, and its gradient stays finite.
    """
    wide_OIHW = weight_OIHW.to(torch.promote_types(weight_OIHW.dtype, torch.float32))
    centred_OIHW = wide_OIHW - wide_OIHW.mean(dim=(1, 2, 3), keepdim=True)
    if form == "std":
        # The norm over sqrt(count) is the std, with a gradient of 0 where sqrt(0) would give infinity times zero.
        norm_O111: Tensor = torch.linalg.vector_norm(centred_OIHW, dim=(1, 2, 3), keepdim=True)
        scale_O111 = norm_O111 / math.sqrt(weight_OIHW[0].numel()) + eps
    else:
        scale_O111 = (centred_OIHW.square().mean(dim=(1, 2, 3), keepdim=True) + eps).sqrt()
    return (centred_OIHW / scale_O111).to(weight_OIHW.dtype)


class StandardisedConv(nn.Module):
    """A square convolution without bias whose kernel is standardised each time it is used.

    `padding`: "same" is XLA's, which depends on the size of what comes in; "half" adds kernel // 2 on every side.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        padding: Padding,
        form: Standardise,
        eps: float,
        stride: int = 1,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel, kernel))
        self.kernel = kernel
        self.stride = stride
        self.padding: Padding = padding
        self.form: Standardise = form
        self.eps = eps

    def forward(self, x_BCHW: Tensor) -> Tensor:
        weight_OIHW = standardise(self.weight, form=self.form, eps=self.eps)
        return convolved(x_BCHW, weight_OIHW, stride=self.stride, padding=self.padding)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape[:2]
        shape = f"{inputs}, {outputs}, {self.kernel}, stride={self.stride}"
        return f"{shape}, padding={self.padding!r}, form={self.form!r}, eps={self.eps}"


class Unit(nn.Module):
    """A pre-activation bottleneck: shortcut + (norm, relu, convolution) three times, of kernels 1, 3 and 1.

    The middle convolution has a quarter of the `outputs` and takes the stride. `first` of its stage: the shortcut is projected,
    from the activated input.
    """

    def __init__(self, config: ResNetConfig, inputs: int, outputs: int, *, first: bool, stride: int) -> None:
        super().__init__()
        width = outputs // 4
        self.norm1 = _norm(config, inputs)
        self.conv1 = _conv(config, inputs, width, 1)
        self.norm2 = _norm(config, width)
        self.conv2 = _conv(config, width, width, 3, stride=stride)
        self.norm3 = _norm(config, width)
        self.conv3 = _conv(config, width, outputs, 1)
        self.shortcut = _conv(config, inputs, outputs, 1, stride=stride) if first else None

    def forward(self, x_BCHW: Tensor) -> Tensor:
        active_BCHW = F.relu(self.norm1(x_BCHW), inplace=True)
        shortcut_BCHW: Tensor = x_BCHW if self.shortcut is None else self.shortcut(active_BCHW)
        y_BCHW: Tensor = self.conv1(active_BCHW)
        y_BCHW = self.conv2(F.relu(self.norm2(y_BCHW), inplace=True))
        y_BCHW = self.conv3(F.relu(self.norm3(y_BCHW), inplace=True))
        return shortcut_BCHW + y_BCHW


class ResNet(Model):
    """Normalised images (B, C, H, W) of any size to logits (B, classes); `config.image_size` is the size it was built for."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config: ResNetConfig = config
        self.recompute = False
        inputs = config.root_width * config.width_factor
        self.root = _conv(config, config.channels, inputs, 7, stride=2)
        self.stages = nn.ModuleList()
        for stage, (units, stage_width) in enumerate(zip(config.blocks, config.stage_widths, strict=True)):
            outputs = stage_width * config.width_factor
            layers = []
            for unit in range(units):
                first = unit == 0
                layers.append(Unit(config, inputs, outputs, first=first, stride=2 if first and stage else 1))
                inputs = outputs
            self.stages.append(nn.Sequential(*layers))
        self.norm = _norm(config, inputs)
        self.head: nn.Linear | None = nn.Linear(inputs, config.num_classes) if config.num_classes else None

    def forward(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """Logits (B, classes) of normalised images; without a head (`num_classes` 0) the features."""
        y_BD = self.features(images_BCHW, record)
        return y_BD if self.head is None else self.head(y_BD)

    def features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """What the head sees, (B, D): the mean over places of the last maps, normalised and rectified."""
        if images_BCHW.ndim != 4:
            raise ConfigError(f"images are (batch, channels, height, width), not of shape {tuple(images_BCHW.shape)}")
        if images_BCHW.shape[1] != self.config.channels:
            raise ConfigError(f"the images have {images_BCHW.shape[1]} channels and the model takes {self.config.channels}")
        if record is not None:
            record.refuse_attention("a BiT ResNet")
            record.start(len(self.stages))
        x_BCHW: Tensor = self.root(images_BCHW)
        x_BCHW = max_pool(_framed(x_BCHW))
        for index, stage in enumerate(self.stages):
            x_BCHW = self._run(stage, x_BCHW)
            if record is not None:
                record.keep_maps(index, x_BCHW)
        return F.relu(self.norm(x_BCHW), inplace=True).mean(dim=(2, 3))

    def _run(self, stage: nn.Module, x_BCHW: Tensor) -> Tensor:
        """One stage; with `recompute` (activation checkpointing) the backward pass computes its activations again."""
        again = self.recompute and torch.is_grad_enabled()
        x_BCHW = checkpoint(stage, x_BCHW, use_reentrant=False) if again else stage(x_BCHW)
        return x_BCHW


def init_resnet(model: ResNet, draw: Draw) -> None:
    """The authors' initial values: LeCun-normal kernels."""
    for module in model.modules():
        match module:
            case StandardisedConv():
                draw.lecun_normal(module.weight)
            case nn.GroupNorm():
                init_norm(module)
            case _:
                pass
    init_head(model.head, model.config.head_bias)


def _framed(x_BCHW: Tensor) -> Tensor:
    """The maps with a border of zeros, which wins over negative values in the authors' pooling; `padding=1` would not.

    By `cat`, not `pad`: ONNX Runtime merges a pad into the pooling after it, where padding means minus infinity.
    """
    b, c, h, w = x_BCHW.shape
    above_BC1W = x_BCHW.new_zeros(b, c, 1, w)
    x_BCHW = torch.cat([above_BC1W, x_BCHW, above_BC1W], dim=2)
    left_BCH1 = x_BCHW.new_zeros(b, c, h + 2, 1)
    return torch.cat([left_BCH1, x_BCHW, left_BCH1], dim=3)


def _conv(config: ResNetConfig, inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> StandardisedConv:
    eps = config.standardise_eps
    return StandardisedConv(inputs, outputs, kernel, padding="half", form="variance", eps=eps, stride=stride)


def _norm(config: ResNetConfig, channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(config.groups, channels, eps=config.norm_eps)


FAMILY = Family(
    model=ResNet,
    initialise=init_resnet,
    layers=(r"stages\.(\d+)\.",),
    hidden=(),
    sharded=(Unit,),
)
