"""The initial values of the rivals' authors. Heads begin at zero, as a ViT's does, so that the first step is the same for all."""

from __future__ import annotations

import math

from torch import Tensor, nn

from vitlab.model.batchnorm import BatchNorm
from vitlab.model.convnext import Block as ConvNeXtBlock
from vitlab.model.convnext import ConvNeXt
from vitlab.model.draw import Draw
from vitlab.model.efficientnet import Conv, EfficientNet
from vitlab.model.patches import Patches
from vitlab.model.recurrent import Layer, Recurrent
from vitlab.model.swin import Swin, WindowAttention

Rival = Swin | ConvNeXt | EfficientNet | Recurrent


def is_rival(model: nn.Module) -> bool:
    """Whether this model's initial values are found here."""
    return isinstance(model, Rival)


def initialise_rival(model: nn.Module, draw: Draw) -> None:
    """Give every parameter and running statistic its initial value."""
    assert isinstance(model, Rival)
    std = None if isinstance(model, EfficientNet | Recurrent) else 0.02
    for module in model.modules():
        _initialise(module, draw, std)
    for module in model.modules():
        if isinstance(module, Layer):
            _recurrent(module, draw)
    if model.head is not None:
        model.head.weight.zero_()
        model.head.bias.fill_(model.config.head_bias)


def _initialise(module: nn.Module, draw: Draw, std: float | None) -> None:
    match module:
        case WindowAttention():
            draw.trunc_normal(module.offset_bias, 0.02)
        case ConvNeXtBlock():
            if module.scale is not None:
                module.scale.fill_(module.layer_scale)
        case Patches():
            _as_torch_does(module.weight, module.bias, draw)  # the authors of Swin leave it to torch
        case Conv():
            outputs, kernel = module.weight.shape[0] // module.groups, module.weight[0, 0].numel()
            draw.normal(module.weight, math.sqrt(2 / (outputs * kernel)))  # He et al. 2015, by the numbers going out
        case nn.Conv2d() if std is not None:
            draw.trunc_normal(module.weight, std)
            _zero(module.bias)
        case nn.Linear() if std is not None:
            draw.trunc_normal(module.weight, std)
            _zero(module.bias)
        case nn.Linear():  # of squeeze and excitation, which the authors have as 1x1 convolutions
            draw.normal(module.weight, math.sqrt(2 / module.weight.shape[0]))
            _zero(module.bias)
        case nn.LayerNorm() | BatchNorm():
            module.weight.fill_(1)
            module.bias.zero_()
            if isinstance(module, BatchNorm):
                module.running_mean.zero_()
                module.running_var.fill_(1)
        case _:
            pass


def _recurrent(layer: Layer, draw: Draw) -> None:
    """Matrices uniform as in torch's cells; biases 0, but 1 for an LSTM's forget gate, which else forgets half at each step."""
    width = layer.state.weight.shape[1]
    for dense in (layer.input, layer.state):
        draw.uniform(dense.weight, 1 / math.sqrt(width))
        _zero(dense.bias)
    if layer.cell == "lstm":
        layer.input.bias[width : 2 * width].fill_(1)  # Jozefowicz et al. 2015


def _as_torch_does(weight: Tensor, bias: Tensor, draw: Draw) -> None:
    """Uniform within 1 / sqrt(inputs), torch's own choice for dense layers and convolutions."""
    bound = 1 / math.sqrt(weight[0].numel())
    draw.uniform(weight, bound)
    draw.uniform(bias, bound)


def _zero(bias: Tensor | None) -> None:
    if bias is not None:
        bias.zero_()
