"""The authors' initial values; those of Swin, ConvNeXt, EfficientNet and recurrent networks are in `init_rivals`.

Dense layers of the encoder are Xavier-uniform, q, k and v each on its own and not as one fused matrix; convolutions, the patch
embedding and the pre-training head's hidden layer LeCun-normal (Flax's default); positions N(0, 0.02); the class token and the
head's kernel zero; the head's bias as the config says; MLP biases N(0, 1e-6).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitlab.models.convnext import Block as ConvNeXtBlock
from vitlab.models.convnext import ConvNeXt
from vitlab.models.efficientnet import BatchNorm, Conv, EfficientNet
from vitlab.models.position import Positions
from vitlab.models.recurrent import Layer, Recurrent
from vitlab.models.resnet import ResNet, StandardisedConv
from vitlab.models.stems import StemConvolution, Unit
from vitlab.models.swin import Swin, WindowAttention
from vitlab.models.vit import Attention, AttentionPool, Block, Mlp, PatchEmbedding, ViT

# Random values from a seed, for initial weights.


class Draw:
    """Random values from one seed, drawn on the CPU so that every device gets the same."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator("cpu").manual_seed(seed)

    def normal(self, parameter: Tensor, std: float) -> None:
        """Independent N(0, std) values."""
        parameter.copy_(torch.empty(parameter.shape).normal_(0, std, generator=self.generator))

    def xavier_uniform(self, matrix: Tensor) -> None:
        """Uniform within sqrt(6 / (inputs + outputs))."""
        bound = math.sqrt(6 / (matrix.shape[0] + matrix.shape[1]))
        matrix.copy_(torch.empty(matrix.shape).uniform_(-bound, bound, generator=self.generator))

    def lecun_normal(self, kernel: Tensor) -> None:
        """Normal of variance 1 / inputs, cut at two standard deviations and rescaled for the cut, as Flax does."""
        std = math.sqrt(1 / kernel[0].numel()) / 0.87962566103423978
        values = torch.empty(kernel.shape)
        nn.init.trunc_normal_(values, 0, std, -2 * std, 2 * std, generator=self.generator)
        kernel.copy_(values)

    def trunc_normal(self, parameter: Tensor, std: float) -> None:
        """N(0, std) values cut at -2 and 2, as timm and the authors of Swin and ConvNeXt draw them."""
        values = torch.empty(parameter.shape)
        nn.init.trunc_normal_(values, 0, std, -2, 2, generator=self.generator)
        parameter.copy_(values)

    def uniform(self, parameter: Tensor, bound: float) -> None:
        """Uniform within +-bound."""
        parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=self.generator))


# The initial values of the rivals' authors. Heads begin at zero, as a ViT's does, so that the first step is the same for all.

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
        case PatchEmbedding():
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


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Give every parameter its initial value: a function of `seed` alone, the same on every device."""
    draw = Draw(seed)
    if is_rival(model):
        initialise_rival(model, draw)
        return
    for module in model.modules():
        _initialise_vit(module, draw)
    for module in model.modules():
        if isinstance(module, Unit):  # a hybrid's unit begins as its shortcut alone
            module.norm3.weight.zero_()


def _initialise_vit(module: nn.Module, draw: Draw) -> None:
    match module:
        case ViT():
            _vit(module, draw)
        case ResNet():
            _head(module.head, module.config.head_bias)
        case Block():
            for scale_D in (module.scale1, module.scale2):
                if scale_D is not None:
                    scale_D.fill_(module.layer_scale)
        case Attention():
            for matrix in module.qkv.weight.chunk(3):
                draw.xavier_uniform(matrix)
            draw.xavier_uniform(module.out.weight)
            _zero_module(module.qkv.bias, module.out.bias)
        case AttentionPool():
            draw.xavier_uniform(module.probe[0])
            for matrix in (module.query.weight, *module.key_value.weight.chunk(2), module.out.weight):
                draw.xavier_uniform(matrix)
            _zero_module(module.query.bias, module.key_value.bias, module.out.bias)
        case Mlp():
            for dense in (module.up, module.down):
                draw.xavier_uniform(dense.weight)
                draw.normal(dense.bias, 1e-6)
        case PatchEmbedding():
            draw.lecun_normal(module.weight)
            _zero_module(module.bias)
        case Positions():
            for parameter in module.parameters():
                draw.normal(parameter, 0.02)
        case StandardisedConv() | StemConvolution():
            draw.lecun_normal(module.weight)
        case nn.LayerNorm() | nn.GroupNorm():
            module.weight.fill_(1)
            module.bias.zero_()
        case _:
            pass


def _vit(model: ViT, draw: Draw) -> None:
    _zero_module(model.class_token)
    for tokens_1ND in (model.distill_token, model.register_tokens):
        if tokens_1ND is not None:  # zeros would leave two tokens alike for ever where they have no position
            draw.normal(tokens_1ND, 0.02)
    if model.representation is not None:
        draw.lecun_normal(model.representation.weight)
        _zero_module(model.representation.bias)
    for head in (model.head, model.distill_head):
        _head(head, model.config.head_bias)


def _head(head: nn.Linear | None, bias: float) -> None:
    if head is not None:
        head.weight.zero_()
        head.bias.fill_(bias)


def _zero_module(*parameters: Tensor | None) -> None:
    for parameter in parameters:
        if parameter is not None:
            parameter.zero_()
