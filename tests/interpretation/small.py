"""Small models of every kind, with values in all their parts, and images for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitlab.config import ModelConfig, Position, ResNetConfig, ResNetStem, ViTConfig, variant
from vitlab.config.efficientnet import EfficientNetConfig
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.vit_parts import ConvStem
from vitlab.models import build
from vitlab.models.model import Model
from vitlab.models.vit import ViT


def mini() -> ViTConfig:
    config = variant("ViT-Mini/8", num_classes=5)
    assert isinstance(config, ViTConfig)
    return replace(config, depth=3)


VITS: dict[str, ViTConfig] = {
    "token": mini(),
    "mean": replace(mini(), pool="mean", class_token=False),
    "mean-with-class": replace(mini(), pool="mean", norm_after_pool=True),
    "map": replace(mini(), pool="map", class_token=False, register_tokens=1),
    "distilled": replace(mini(), distill_token=True),
    "registers": replace(mini(), register_tokens=3, position=Position(prefix=False)),
    "representation": replace(mini(), representation_width=24),
    "rectangular": replace(mini(), image_size=(24, 40), patch_size=(8, 4)),
    "local": replace(mini(), attention="local", window=3),
    "axial": replace(mini(), attention="axial"),
    "relative": replace(mini(), position=Position(kind="relative", place="every")),
    "relative-local": replace(mini(), position=Position(kind="relative", place="shared"), attention="local", window=3),
    "relative-registers": replace(mini(), position=Position(kind="relative", place="stem"), register_tokens=2),
    "padded": replace(mini(), image_size=(30, 41), pad=True),
    "hybrid": replace(mini(), stem=ResNetStem(blocks=(1, 1), width=32), patch_size=(1, 1), image_size=(64, 64)),
}

OTHERS: dict[str, ModelConfig] = {
    "resnet": ResNetConfig(blocks=(1, 1), stage_widths=(128, 256), root_width=32, image_size=(64, 64), num_classes=5),
    "swin": variant("Swin-Mini", num_classes=5, image_size=32),
    "convnext": variant("ConvNeXt-Mini", num_classes=5, image_size=32),
    "efficientnet": EfficientNetConfig(
        stages=((1, 3, 1, 1, 8), (1, 3, 2, 2, 16)), stem_width=8, image_size=(32, 32), num_classes=5
    ),
    "recurrent": RecurrentConfig(cell="lstm", width=16, depth=2, patch_size=(8, 8), image_size=(30, 41), num_classes=5),
}
EARLY = replace(mini(), conv_stem=ConvStem(widths=(16, 16), units=(1, 1)), patch_size=(2, 2))


def model_of(config: ModelConfig) -> Model:
    """A model whose head and other zero-initialised parts have values too."""
    model = build(config, seed=1).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model


def vit_of(name: str) -> ViT:
    model = model_of(VITS[name])
    assert isinstance(model, ViT)
    return model


def images(config: ModelConfig, count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, config.channels, *config.image_size, generator=generator)


@dataclass(frozen=True, slots=True)
class Dense:
    """A whole matrix of attention, answering as a layer of a model does."""

    attention_BHNN: Tensor

    def rows(self, first: int, last: int) -> Tensor:
        return self.attention_BHNN[:, :, first:last]
