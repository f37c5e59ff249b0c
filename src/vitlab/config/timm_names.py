"""timm's names of models, both ways: `vit_base_patch16_224` is `ViT-B/16` with timm's numerics. No torch here.

A name is an architecture, or an architecture and after a dot the tag of its public weights:
`vit_base_patch16_224.augreg_in21k`. An architecture that vitlab does not build exactly is refused with what it needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from vitlab.config.convnext import CONVNEXTS, ConvNeXtConfig
from vitlab.config.efficientnet import SCALES, EfficientNetConfig, efficientnet
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import RESNETS, ResNetConfig
from vitlab.config.swin import SWINS, SwinConfig
from vitlab.config.timm_vits import style_of, timm_vit, vit_names
from vitlab.config.vit import PROFILES, SIZES, STEMS, ViTConfig
from vitlab.errors import ConfigError

# Architecture -> size, the key of its stem in STEMS, image size.
_HYBRIDS: dict[str, tuple[str, tuple[str, int], int]] = {
    "vit_tiny_r_s16_p8_224": ("Ti", ("R", 16), 224),
    "vit_tiny_r_s16_p8_384": ("Ti", ("R", 16), 384),
    "vit_small_r26_s32_224": ("S", ("R26", 32), 224),
    "vit_small_r26_s32_384": ("S", ("R26", 32), 384),
    "vit_base_r26_s32_224": ("B", ("R26", 32), 224),
    "vit_base_r50_s16_224": ("B", ("R50", 16), 224),
    "vit_base_r50_s16_384": ("B", ("R50", 16), 384),
    "vit_large_r50_s32_224": ("L", ("R50", 32), 224),
    "vit_large_r50_s32_384": ("L", ("R50", 32), 384),
}
# Architecture -> depth and width factor.
_BITS: dict[str, tuple[int, int]] = {
    "resnetv2_50x1_bit": (50, 1),
    "resnetv2_50x3_bit": (50, 3),
    "resnetv2_101x1_bit": (101, 1),
    "resnetv2_101x3_bit": (101, 3),
    "resnetv2_152x2_bit": (152, 2),
    "resnetv2_152x4_bit": (152, 4),
}
# Architecture -> size, window, image size. At 224 pixels the last map is 7x7, so that S3-S's windows are 14, 14, 14, 7.
_SWINS: dict[str, tuple[str, int, int]] = {
    "swin_tiny_patch4_window7_224": ("T", 7, 224),
    "swin_small_patch4_window7_224": ("S", 7, 224),
    "swin_base_patch4_window7_224": ("B", 7, 224),
    "swin_base_patch4_window12_384": ("B", 12, 384),
    "swin_large_patch4_window7_224": ("L", 7, 224),
    "swin_large_patch4_window12_384": ("L", 12, 384),
    "swin_s3_small_224": ("S", 14, 224),
}
_CONVNEXTS: dict[str, ConvNeXtConfig] = {
    "convnext_atto": ConvNeXtConfig(depths=(2, 2, 6, 2), widths=(40, 80, 160, 320)),
    "convnext_femto": ConvNeXtConfig(depths=(2, 2, 6, 2), widths=(48, 96, 192, 384)),
    "convnext_pico": ConvNeXtConfig(depths=(2, 2, 6, 2), widths=(64, 128, 256, 512)),
    "convnext_nano": ConvNeXtConfig(depths=(2, 2, 8, 2), widths=(80, 160, 320, 640)),
    "convnext_tiny": CONVNEXTS["T"],
    "convnext_small": CONVNEXTS["S"],
    "convnext_base": CONVNEXTS["B"],
    "convnext_large": CONVNEXTS["L"],
    "convnext_xlarge": CONVNEXTS["XL"],
    "convnext_xxlarge": ConvNeXtConfig(depths=(3, 4, 30, 3), widths=(384, 768, 1536, 3072), image_size=(256, 256), norm_eps=1e-5),
}
# The TensorFlow authors' weights are called tf_; timm trained its own at other image sizes.
_OWN_SIDES = {"B2": 256, "B3": 288, "B4": 320, "B5": 448}

_FAMILY = "an architecture family that vitlab does not have"
# What timm's other architectures need; the first pattern that fits the whole name answers.
_NEEDS: tuple[tuple[str, str], ...] = (
    (r"vit_(dwee|dpwee|dlittle)_\w+", "differential attention"),
    (r"vit_\w+_resnet\w+|vit_base_mci_224", "another convolutional stem"),
    (r"naflexvit_\w+_(par|parfac)_gap", "positions that keep their aspect ratio on images that are not square"),
    (r"test_convnext\d?", "the tanh GELU in a ConvNeXt"),
    (r"resnetv2_\d\w*", "a pre-activation ResNet with other norms than BiT's"),
    (r"swin_s3_(tiny|base)_224", "a window of its own at each stage"),
    (r"swinv2\w*", "Swin V2's attention"),
    (r"convnextv2_\w+", "global response normalisation"),
    (r"convnext_\w+_ols", "an overlapping stem"),
    (r"convnext_\w+_rms", "RMSNorm"),
    (r"convnext_\w+_mlp", "a hidden layer before the head"),
    (r"convnext_\w+_hnf", "the last norm before the pooling"),
    (r"((tf|gc)_)?efficientnetv2_\w+", "fused inverted bottlenecks"),
    (r"((tf|test)_)?efficientnet(_\w+)?|tinynet_[a-e]", "another EfficientNet than B0 to B8 and L2"),
    (r"(cait|coat|coatnet|crossvit|davit|hiera|levit|maxvit|mobilevit|mvit|pit|pvt|tnt|twins|volo|xcit)\w*_\w+", _FAMILY),
    (r"(densenet|dpn|hrnet_w|inception_v|mixer_|nfnet|regnet|resne[sx]?t|tiny_vit|vgg)\w*\d\w*", _FAMILY),
    (r"(tf_)?(fbnet|mixnet|mnasnet|mobilenet|semnasnet|spnasnet)\w*_\w+", _FAMILY),
)


class Shape(NamedTuple):
    """What makes two models the same architecture: the grid of patches or windows that their tensors fix, and the rest.

    Classes, channels, numerics and dropout are left out, and for a ConvNet the image size.
    """

    grid: object
    rest: tuple[object, ...]


def config_of(name: str) -> ModelConfig | None:
    """The model that timm builds under this name, with its numerics; None where the name is not timm's.

    Image size and classes are those of the weights that the tag names, without a tag of the architecture's default weights.
    """
    architecture, _, tag = name.partition(".")
    config = architecture_config(architecture)
    if config is None:
        if error := refusal(name):
            raise error
        return None
    from vitlab.config.public_weights import tagged

    row = tagged(architecture, tag)
    if row is None:
        return config
    return replace(config, image_size=(row.image_size, row.image_size), num_classes=row.num_classes)


def refusal(name: str) -> ConfigError | None:
    """Why a model of timm's cannot be built; None for a name that is not timm's, or that can."""
    architecture = name.partition(".")[0]
    need = need_of(architecture)
    if need is None:
        return None
    return ConfigError(
        f"vitlab does not build timm's {architecture} yet: it needs {need}", hint="`vitlab models` lists what it builds"
    )


def timm_name(config: ModelConfig) -> str | None:
    """timm's name of the architecture, or None."""
    return _by_shape().get(shape_of(config))


@cache
def architectures() -> tuple[str, ...]:
    """Every architecture of timm that vitlab builds exactly."""
    return tuple(_builders())


@cache
def architecture_config(architecture: str) -> ModelConfig | None:
    """The model of an architecture at its own image size, with 1000 classes; None for one that vitlab does not build."""
    build = _builders().get(architecture)
    return None if build is None else build(architecture)


def need_of(architecture: str) -> str | None:
    """What vitlab lacks to build an architecture of timm; None for one that it builds, and for a name that is not timm's."""
    if architecture in _builders():
        return None
    return next((need for pattern, need in _NEEDS if re.fullmatch(pattern, architecture)), None)


@cache
def _builders() -> dict[str, Callable[[str], ModelConfig]]:
    nets = [f"{prefix}efficientnet_{size.lower()}" for prefix in ("tf_", "") for size in SCALES]
    return {
        **dict.fromkeys(vit_names(), timm_vit),
        **dict.fromkeys(_HYBRIDS, _hybrid),
        **dict.fromkeys(_BITS, _bit),
        **dict.fromkeys(_SWINS, _swin),
        **dict.fromkeys(_CONVNEXTS, _CONVNEXTS.__getitem__),
        **dict.fromkeys(nets, _efficientnet),
    }


def _hybrid(name: str) -> ViTConfig:
    word, key, side = _HYBRIDS[name]
    size, (stem, cells) = SIZES[word], STEMS[key]
    return ViTConfig(
        width=size.width,
        depth=size.depth,
        heads=size.heads,
        mlp_width=size.mlp_width,
        patch_size=(cells, cells),
        image_size=(side, side),
        stem=replace(stem, standardise="variance", standardise_eps=1e-8, norm_eps=1e-5),
        numerics=PROFILES["timm"],
    )


def _bit(name: str) -> ResNetConfig:
    depth, factor = _BITS[name]
    return ResNetConfig(blocks=RESNETS[depth], width_factor=factor, standardise_eps=1e-8)


def _swin(name: str) -> SwinConfig:
    size, window, side = _SWINS[name]
    return replace(SWINS[size], window=(window, window), image_size=(side, side), pad_first=False)


def _efficientnet(name: str) -> EfficientNetConfig:
    size = name.rpartition("_")[2].upper()
    net = efficientnet(size)
    if name.startswith("tf_"):
        return net
    side = _OWN_SIDES.get(size, net.image_size[0])
    return replace(net, image_size=(side, side), padding="half", norm_eps=1e-5)


@cache
def _by_shape() -> dict[Shape, str]:
    shapes: dict[Shape, str] = {}
    for name in architectures():
        config = architecture_config(name)
        assert config is not None
        shapes.setdefault(shape_of(config), name)
    return shapes


def shape_of(config: ModelConfig) -> Shape:
    """The architecture of a model, to be compared with that of another."""
    size: tuple[object, ...]
    match config:
        case ViTConfig():
            stem = None if config.stem is None else (config.stem.blocks, config.stem.width, config.stem.groups)
            size = (config.width, config.depth, config.heads, config.mlp_width, config.patch_size, config.projections.kv_heads)
            plain = replace(style_of(config), numerics=PROFILES["timm"])
            quick = config.numerics.gelu == "quick"  # two functions of one size, with weights of their own
            return Shape(config.grid, ("vit", *size, stem, config.conv_stem, plain, quick))
        case ResNetConfig():
            return Shape(
                None, ("resnet", config.blocks, config.width_factor, config.root_width, config.stage_widths, config.groups)
            )
        case SwinConfig():
            size = (config.width, config.depths, config.heads, config.patch_size, config.mlp_ratio)
            return Shape(config.windows, ("swin", *size, config.window, config.qkv_bias))
        case ConvNeXtConfig():
            size = (config.depths, config.widths, config.kernel, config.patch_size, config.mlp_ratio)
            return Shape(None, ("convnext", *size, config.layer_scale > 0))
        case EfficientNetConfig():
            return Shape(
                None, ("efficientnet", config.stages, config.stem_width, config.head_width, config.squeeze, config.padding)
            )
        case _:  # a family that timm does not have
            return Shape(None, (config.family, config))
