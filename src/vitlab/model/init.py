"""The authors' initial values; those of Swin, ConvNeXt, EfficientNet and recurrent networks are in `init_rivals`.

Dense layers of the encoder are Xavier-uniform, q, k and v each on its own and not as one fused matrix; convolutions, the patch
embedding and the pre-training head's hidden layer LeCun-normal (Flax's default); positions N(0, 0.02); the class token and the
head's kernel zero; the head's bias as the config says; MLP biases N(0, 1e-6).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitlab.model.attention import Attention
from vitlab.model.draw import Draw
from vitlab.model.early import EarlyConv
from vitlab.model.hybrid import Unit
from vitlab.model.init_rivals import initialise_rival, is_rival
from vitlab.model.mlp import Mlp
from vitlab.model.patches import Patches
from vitlab.model.pool import MapPool
from vitlab.model.position import Positions
from vitlab.model.resnet import ResNet
from vitlab.model.standardised import StandardisedConv
from vitlab.model.vit import Block, ViT


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Give every parameter its initial value: a function of `seed` alone, the same on every device."""
    draw = Draw(seed)
    if is_rival(model):
        initialise_rival(model, draw)
        return
    for module in model.modules():
        _initialise(module, draw)
    for module in model.modules():
        if isinstance(module, Unit):  # a hybrid's unit begins as its shortcut alone
            module.norm3.weight.zero_()


def _initialise(module: nn.Module, draw: Draw) -> None:
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
            _zero(module.qkv.bias, module.out.bias)
        case MapPool():
            draw.xavier_uniform(module.probe[0])
            for matrix in (module.query.weight, *module.key_value.weight.chunk(2), module.out.weight):
                draw.xavier_uniform(matrix)
            _zero(module.query.bias, module.key_value.bias, module.out.bias)
        case Mlp():
            for dense in (module.up, module.down):
                draw.xavier_uniform(dense.weight)
                draw.normal(dense.bias, 1e-6)
        case Patches():
            draw.lecun_normal(module.weight)
            _zero(module.bias)
        case Positions():
            for parameter in module.parameters():
                draw.normal(parameter, 0.02)
        case StandardisedConv() | EarlyConv():
            draw.lecun_normal(module.weight)
        case nn.LayerNorm() | nn.GroupNorm():
            module.weight.fill_(1)
            module.bias.zero_()
        case _:
            pass


def _vit(model: ViT, draw: Draw) -> None:
    _zero(model.class_token)
    for tokens_1ND in (model.distill_token, model.register_tokens):
        if tokens_1ND is not None:  # zeros would leave two tokens alike for ever where they have no position
            draw.normal(tokens_1ND, 0.02)
    if model.representation is not None:
        draw.lecun_normal(model.representation.weight)
        _zero(model.representation.bias)
    for head in (model.head, model.distill_head):
        _head(head, model.config.head_bias)


def _head(head: nn.Linear | None, bias: float) -> None:
    if head is not None:
        head.weight.zero_()
        head.bias.fill_(bias)


def _zero(*parameters: Tensor | None) -> None:
    for parameter in parameters:
        if parameter is not None:
            parameter.zero_()
