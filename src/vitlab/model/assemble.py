"""From a config to a model."""

from __future__ import annotations

import torch
from torch import nn

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import EfficientNetConfig
from vitlab.config.model import ModelConfig, ResNetConfig, ViTConfig
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.swin import SwinConfig
from vitlab.model.convnext import ConvNeXt
from vitlab.model.efficientnet import EfficientNet
from vitlab.model.init import initialise
from vitlab.model.recurrent import Recurrent
from vitlab.model.resnet import ResNet
from vitlab.model.swin import Swin
from vitlab.model.vit import ViT

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
