"""Small models of every family, alike in size, for studies that train them all: pictures of 32 pixels, a few 100,000 parameters."""

from __future__ import annotations

from dataclasses import replace

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.model import ModelConfig, ResNetConfig, ResNetStem, ViTConfig
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.variants import variant


def _vit() -> ViTConfig:
    mini = variant("ViT-Mini/8", pool="mean")
    assert isinstance(mini, ViTConfig)
    return replace(mini, width=96, depth=3, heads=3, mlp_width=384)


SIDE = 32
FAMILIES: dict[str, ModelConfig] = {
    "ViT": _vit(),
    "hybrid": replace(_vit(), stem=ResNetStem(blocks=(1,), width=32), patch_size=(2, 2)),
    "BiT ResNet": ResNetConfig(blocks=(1, 1, 1), stage_widths=(64, 128, 256), root_width=32, groups=16, image_size=(SIDE, SIDE)),
    "ConvNeXt": ConvNeXtConfig(depths=(1, 2, 1), widths=(32, 64, 128), patch_size=2, layer_scale=0.1, image_size=(SIDE, SIDE)),
    "LSTM": RecurrentConfig(cell="lstm", width=160, depth=1, patch_size=(8, 8), image_size=(SIDE, SIDE)),
}
