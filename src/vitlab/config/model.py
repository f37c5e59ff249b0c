"""Every architecture family that vitlab builds, and model names: "ViT-B/16", "R50+ViT-L/32", "Swin-B-w12". No torch here.

An architecture is a config class and a model class. This file has the one list of them (`ModelConfig`); the model of `config/x.py`
is in `models/x.py`. A config class is a frozen dataclass with:

- `family`, `title`, `names`: the word in files, the words in messages, the published names;
- `from_name(name, image_size)` and `name`: the config of a name, and the name of a config;
- `image_size`, `channels`, `num_classes`, `head_bias`, `feature_width`: what every model has;
- `first_kernel`, `block_count`, `computed_numbers`, `fit_options`: what checkpoints need to know of a model before it is built;
- `facts()` and `count(counter)`: what `vitlab describe` shows, and the cost.

Names in timm's spelling, "vit_base_patch16_224", are in `vitlab.config.timm_names`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import EfficientNetConfig
from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.segmenter import SegmenterConfig
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import Pool, ViTConfig, with_profile
from vitlab.errors import ConfigError, did_you_mean, pair

ModelConfig = (
    ViTConfig
    | ResNetConfig
    | SwinConfig
    | ConvNeXtConfig
    | EfficientNetConfig
    | RecurrentConfig
    | SegmenterConfig
    | GridDetectorConfig
)
Task = Literal["classify", "segment", "detect"]
"""What a model is for: a class for each image, for each pixel, or for each object with its box."""

MODEL_CONFIGS: tuple[type[ModelConfig], ...] = get_args(ModelConfig)
NAMES: tuple[str, ...] = tuple(name for family in MODEL_CONFIGS for name in family.names)


def variant(
    name: str,
    *,
    image_size: int | Sequence[int] | None = None,
    num_classes: int | None = None,
    channels: int = 3,
    pool: Pool | None = None,
    pad: bool = False,
    profile: str | None = None,
) -> ModelConfig:
    """The config of the model of that name, the authors' or timm's; vary it further with `dataclasses.replace`.

    `image_size` is one number or (height, width) in pixels; 224 unless the size has another. A Swin's window depends on it: 7, but
    12 at multiples of 384, or the number at the end of its name, "-w12". `num_classes` is 1000 unless given. `pool` is `token`;
    `"mean"` and `"map"` remove the class token. `profile` chooses the numerics: `official`, `timm`, `huggingface`, `torchvision`.
    A name of timm's, "vit_base_patch16_224", is the model that timm builds: its image size, head, pooling and numerics.
    """
    size = None if image_size is None else pair("image_size", image_size)
    config = (_timm(name) if "_" in name else None) or _named(name, size)
    if isinstance(config, ViTConfig):
        config = config if profile is None else with_profile(config, profile)
        if pool is not None and pool != config.pool:
            config = replace(config, pool=pool, class_token=pool == "token", norm_after_pool=False)
        config = replace(config, pad=pad, image_size=size or config.image_size)
    elif pool is not None or pad or profile is not None:
        raise ConfigError(f"{name} is not a ViT: pool, pad and profile are options of a ViT")
    classes = config.num_classes if num_classes is None else num_classes
    return replace(config, image_size=size or config.image_size, num_classes=classes, channels=channels)


def task_of(config: ModelConfig) -> Task:
    """What a model is for. The config decides: no other setting can contradict it."""
    if isinstance(config, SegmenterConfig):
        return "segment"
    boxes = isinstance(config, GridDetectorConfig) or (isinstance(config, ViTConfig) and config.detection_classes > 0)
    return "detect" if boxes else "classify"


def flexible_vit(config: ModelConfig) -> ViTConfig | None:
    """The ViT that can be trained at several patch sizes: the model itself, or a segmenter's backbone; None if there is none."""
    inner = config.backbone if isinstance(config, SegmenterConfig) else config
    return inner if isinstance(inner, ViTConfig) else None


def with_patches(config: ModelConfig, size: tuple[int, int]) -> ModelConfig:
    """The model with patches of another size in its flexible ViT, at its own image size."""
    inner = flexible_vit(config)
    assert inner is not None, "the caller asks first"
    other = replace(inner, patch_size=size)
    return replace(config, backbone=other) if isinstance(config, SegmenterConfig) else other


def _named(name: str, image_size: tuple[int, int] | None) -> ModelConfig:
    for family in MODEL_CONFIGS:
        if (config := family.from_name(name, image_size)) is not None:
            return config
    raise _unknown(name)


def _timm(name: str) -> ModelConfig | None:
    """The model with that name in timm, if there is one."""
    from vitlab.config.timm_names import config_of  # whose tables are made of the sizes of every family

    return config_of(name)


def _unknown(name: str) -> ConfigError:
    from vitlab.config.timm_names import architectures, refusal

    if error := refusal(name):
        return error
    known = (*NAMES, *architectures())
    always = (*ViTConfig.names, *ResNetConfig.names)
    alike = [other for other in known if other in always or other[:2].casefold() == name[:2].casefold()]
    hint = did_you_mean(name, alike, count=2) or "`vitlab models` lists all names"
    return ConfigError(f"no model called {name!r}", hint=hint)
