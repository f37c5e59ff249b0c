"""From a config to a model."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import nn

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import EfficientNetConfig
from vitlab.config.model import ModelConfig, ResNetConfig, ViTConfig
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.swin import SwinConfig
from vitlab.models.convnext import ConvNeXt
from vitlab.models.efficientnet import EfficientNet
from vitlab.models.init import initialise
from vitlab.models.recurrent import Recurrent
from vitlab.models.resnet import ResNet
from vitlab.models.swin import Swin
from vitlab.models.vit import ViT

Model = ViT | ResNet | Swin | ConvNeXt | EfficientNet | Recurrent


def build(config: ModelConfig, *, seed: int = 0, device: str | torch.device = "cpu") -> Model:
    """The model of that config with the authors' initial values, a function of `seed` alone; `device="meta"` builds shapes only.

    `model(images_BCHW)` gives logits, `model.features(images_BCHW)` what the head sees, `model.config` the config.
    """
    model = skeleton(config)
    if torch.device(device).type == "meta":
        return model.to("meta")
    materialise(model, device)
    initialise(model, seed)
    return model


def skeleton(config: ModelConfig) -> Model:
    """The model without values: parameters on the meta device, to be loaded with `load_state_dict(..., assign=True)`."""
    with torch.device("meta"):
        match config:
            case ViTConfig():
                return ViT(config)
            case ResNetConfig():
                return ResNet(config)
            case SwinConfig():
                return Swin(config)
            case ConvNeXtConfig():
                return ConvNeXt(config)
            case EfficientNetConfig():
                return EfficientNet(config)
            case RecurrentConfig():
                return Recurrent(config)


def materialise(model: nn.Module, device: str | torch.device) -> None:
    """Give the parameters of a skeleton memory on a device, without values; buffers move there with theirs, those without too."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = torch.empty_like(parameter, device=device)
            setattr(module, name, nn.Parameter(empty, requires_grad=parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device=device) if buffer.is_meta else buffer.to(device))


# How deep in a model a parameter stands, by its name: for rates that fall layer by layer, and for training the last blocks.

# Where a parameter of a block has its numbers, family by family; they count up from the images to the head.
_BLOCKS = (
    re.compile(r"encoder\.blocks\.(\d+)\."),  # ViT
    re.compile(r"layers\.(\d+)\."),  # recurrent
    re.compile(r"stages\.(\d+)\.blocks\.(\d+)\."),  # Swin, ConvNeXt
    re.compile(r"stages\.(\d+)\.(?:merge|halved)\."),  # which come before a stage's first block, and learn with it
    re.compile(r"stages\.(\d+)\.\d+\."),  # BiT ResNet, EfficientNet: their layers are their stages
)
_AFTER = ("head.", "distill_head.", "representation.", "pool.", "pool_norm.", "encoder.norm.", "norm.", "last.", "last_norm.")


def layers_by_name(names: Iterable[str]) -> tuple[dict[str, int], int]:
    """The layer of each parameter, and how many layers there are between the embedding and the head.

    0 is the embedding, 1 to that many are the blocks, one more is the head and what comes after the blocks.
    """
    places = {name: _place(name) for name in names}
    order = {place: number for number, place in enumerate(sorted({place for place in places.values() if place}), start=1)}
    last = len(order) + 1
    layers = {name: order[place] if place else last if name.startswith(_AFTER) else 0 for name, place in places.items()}
    return layers, len(order)


def _place(name: str) -> tuple[int, ...]:
    """The numbers of a parameter's stage and block; empty outside of blocks."""
    for pattern in _BLOCKS:
        if found := pattern.match(name):
            numbers = tuple(int(number) for number in found.groups())
            return (*numbers, 0) if "merge" in pattern.pattern else numbers
    return ()
