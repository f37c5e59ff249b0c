"""The tables of sizes, and the one parser of model names: "ViT-B/16", "R50+ViT-L/32", "BiT-R152x4", "Swin-B-w12", "LSTM-S/16".

Names in timm's spelling, "vit_base_patch16_224", are those of `vitlab.config.timm_names`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import HEAD, STEM, EfficientNetConfig, scaled_stages, scaled_width
from vitlab.config.model import PROFILES, ModelConfig, Pool, ResNetConfig, ResNetStem, ViTConfig, with_profile
from vitlab.config.recurrent import Cell, RecurrentConfig
from vitlab.config.swin import SwinConfig
from vitlab.errors import ConfigError, did_you_mean, pair

T = TypeVar("T")
RivalConfig = SwinConfig | ConvNeXtConfig | EfficientNetConfig | RecurrentConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """An encoder's size: Table 1 of the paper and its successors."""

    width: int
    depth: int
    heads: int
    mlp_width: int
    image_size: int = 224


SIZES: dict[str, Size] = {
    "Mini": Size(width=64, depth=2, heads=4, mlp_width=128, image_size=32),  # for tests and first steps
    "Ti": Size(width=192, depth=12, heads=3, mlp_width=768),
    "S": Size(width=384, depth=12, heads=6, mlp_width=1536),
    "B": Size(width=768, depth=12, heads=12, mlp_width=3072),  # Table 1
    "b": Size(width=384, depth=12, heads=12, mlp_width=1536),  # Fig. 4: B with all hidden dimensions halved, the heads' too
    "L": Size(width=1024, depth=24, heads=16, mlp_width=4096),  # Table 1
    "So400m": Size(width=1152, depth=27, heads=16, mlp_width=4304),  # Alabdulmohsin et al. 2023
    "H": Size(width=1280, depth=32, heads=16, mlp_width=5120),  # Table 1
    "g": Size(width=1408, depth=40, heads=16, mlp_width=6144),  # Zhai et al. 2021
    "G": Size(width=1664, depth=48, heads=16, mlp_width=8192),  # Zhai et al. 2021
}

# (ResNet, the name's "patch") -> stages and the patch on the feature map. At /16 stage 4's units stand in stage 3 (section 4.1).
# R+Ti/16 is called /16 by its authors, but a stride-4 root and 8x8 patches step 32 pixels.
STEMS: dict[tuple[str, int], tuple[ResNetStem, int]] = {
    ("R", 16): (ResNetStem(blocks=()), 8),
    ("R26", 32): (ResNetStem(blocks=(2, 2, 2, 2)), 1),
    ("R50", 16): (ResNetStem(blocks=(3, 4, 9)), 1),
    ("R50", 32): (ResNetStem(blocks=(3, 4, 6, 3)), 1),
}

RESNETS: dict[int, tuple[int, ...]] = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}

SWINS: dict[str, SwinConfig] = {
    "Mini": SwinConfig(width=32, depths=(2, 2), heads=(2, 4), window=(4, 4), image_size=(32, 32)),  # for tests and first steps
    "T": SwinConfig(width=96, depths=(2, 2, 6, 2), heads=(3, 6, 12, 24)),
    "S": SwinConfig(width=96, depths=(2, 2, 18, 2), heads=(3, 6, 12, 24)),
    "B": SwinConfig(width=128, depths=(2, 2, 18, 2), heads=(4, 8, 16, 32)),
    "L": SwinConfig(width=192, depths=(2, 2, 18, 2), heads=(6, 12, 24, 48)),
}

CONVNEXTS: dict[str, ConvNeXtConfig] = {
    "Mini": ConvNeXtConfig(depths=(1, 2, 1), widths=(16, 32, 64), image_size=(32, 32)),
    "T": ConvNeXtConfig(depths=(3, 3, 9, 3), widths=(96, 192, 384, 768)),
    "S": ConvNeXtConfig(depths=(3, 3, 27, 3), widths=(96, 192, 384, 768)),
    "B": ConvNeXtConfig(depths=(3, 3, 27, 3), widths=(128, 256, 512, 1024)),
    "L": ConvNeXtConfig(depths=(3, 3, 27, 3), widths=(192, 384, 768, 1536)),
    "XL": ConvNeXtConfig(depths=(3, 3, 27, 3), widths=(256, 512, 1024, 2048)),
}

# Width factor, depth factor, image size, dropout: the authors' compound scaling of B0.
SCALES: dict[str, tuple[float, float, int, float]] = {
    "B0": (1.0, 1.0, 224, 0.2),
    "B1": (1.0, 1.1, 240, 0.2),
    "B2": (1.1, 1.2, 260, 0.3),
    "B3": (1.2, 1.4, 300, 0.3),
    "B4": (1.4, 1.8, 380, 0.4),
    "B5": (1.6, 2.2, 456, 0.4),
    "B6": (1.8, 2.6, 528, 0.5),
    "B7": (2.0, 3.1, 600, 0.5),
    "B8": (2.2, 3.6, 672, 0.5),  # Xie et al. 2020, AdvProp
    "L2": (4.3, 5.3, 800, 0.5),  # Xie et al. 2020
}
MINI = EfficientNetConfig(
    stages=((1, 3, 1, 1, 8), (2, 3, 2, 4, 16), (1, 5, 2, 4, 24)), stem_width=8, head_width=64, image_size=(32, 32)
)

# Widths are those of ViTs of the same letter; two layers are as many as plain recurrent networks learn well.
RECURRENT: dict[str, tuple[int, int, int]] = {  # width, depth, image size
    "Mini": (64, 1, 32),
    "Ti": (192, 2, 224),
    "S": (384, 2, 224),
    "B": (768, 2, 224),
}

# What is published under a name; the parser also takes any other patch size or width factor.
_VIT_NAMES: tuple[str, ...] = (
    *("ViT-Mini/8", "ViT-Ti/16", "ViT-S/16", "ViT-S/32", "ViT-B/8", "ViT-B/16", "ViT-B/32", "ViT-b/32", "ViT-L/16", "ViT-L/32"),
    *("ViT-So400m/14", "ViT-H/14", "ViT-g/14", "ViT-G/14"),
    *("R+ViT-Ti/16", "R26+ViT-S/32", "R50+ViT-B/16", "R50+ViT-B/32", "R50+ViT-L/16", "R50+ViT-L/32"),
    *("BiT-R50x1", "BiT-R50x2", "BiT-R50x3", "BiT-R101x1", "BiT-R101x3"),
    *("BiT-R152x1", "BiT-R152x2", "BiT-R152x4", "BiT-R200x3"),
)
RIVAL_NAMES: tuple[str, ...] = (
    *("Swin-Mini", "Swin-T", "Swin-S", "Swin-B", "Swin-L"),
    *("ConvNeXt-Mini", "ConvNeXt-T", "ConvNeXt-S", "ConvNeXt-B", "ConvNeXt-L", "ConvNeXt-XL"),
    *("EfficientNet-Mini", *(f"EfficientNet-{size}" for size in SCALES)),
    *("LSTM-Mini/8", "LSTM-Ti/16", "LSTM-S/16", "RNN-Mini/8", "RNN-S/16"),
)
NAMES: tuple[str, ...] = (*_VIT_NAMES, *RIVAL_NAMES)

_VIT = re.compile(
    r"(?:(?P<stem>R\d*)\+)?(?P<prefix>ViT[-_ ])?(?P<size>[A-Za-z][A-Za-z0-9]*?)(?P<mark>[/_-])(?P<p>\d+)(?:x(?P<q>\d+))?",
    re.IGNORECASE,
)
_BIT = re.compile(r"(?:BiT[-_ ]?)?R(?P<depth>\d+)x(?P<factor>\d+)", re.IGNORECASE)
_SWIN = re.compile(r"swin[-_ ]?(?P<size>[a-z]+?)(?:[-_ ]?w(?P<window>\d+))?", re.IGNORECASE)
_CONVNEXT = re.compile(r"convnext[-_ ]?(?P<size>[a-z]+)", re.IGNORECASE)
_EFFICIENTNET = re.compile(r"efficientnet[-_ ]?(?P<size>[a-z]+\d?)", re.IGNORECASE)
_RECURRENT = re.compile(r"(?P<cell>lstm|rnn)[-_ ](?P<size>[a-z]+)[/_-](?P<p>\d+)(?:x(?P<q>\d+))?", re.IGNORECASE)


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
    """The model of that name, the authors' or timm's; vary it further with `dataclasses.replace`.

    `image_size` is one number or (height, width) in pixels; 224 unless the size says otherwise. A Swin's window follows it: 7, but
    12 at multiples of 384, or what "-w12" at the end of its name says. `num_classes` is 1000. `pool` is `token`; `"mean"` and
    `"map"` leave the class token out. `profile` is whose numerics: `official`, `timm`, `huggingface`, `torchvision`.
    A name of timm's, "vit_base_patch16_224", is the model that timm builds: its image size, head, pooling and numerics.
    """
    size = None if image_size is None else pair("image_size", image_size)
    config = (_timm(name) if "_" in name else None) or _resnet(name) or rival_of(name, size) or _vit(name, size, pad=pad)
    if isinstance(config, ViTConfig):
        config = config if profile is None else with_profile(config, profile)
        if pool is not None and pool != config.pool:
            config = replace(config, pool=pool, class_token=pool == "token", norm_after_pool=False)
        config = replace(config, pad=pad, image_size=size or config.image_size)
    elif pool is not None or pad or profile is not None:
        raise ConfigError(f"{name} is no ViT: pool, pad and profile are choices of a ViT")
    classes = config.num_classes if num_classes is None else num_classes
    return replace(config, image_size=size or config.image_size, num_classes=classes, channels=channels)


_CALLED = {
    "vit": "a ViT",
    "resnet": "a BiT ResNet",
    "swin": "a Swin Transformer",
    "convnext": "a ConvNeXt",
    "efficientnet": "an EfficientNet",
    "recurrent": "a recurrent network",
}


def called(config: ModelConfig) -> str:
    """The family in words, with its article."""
    return _CALLED[config.kind]


def name_of(config: ModelConfig) -> str | None:
    """The name whose size this model has, or None: what `variant` would have to be given, image size and head aside."""
    if isinstance(config, ResNetConfig):
        depth = next((depth for depth, blocks in RESNETS.items() if blocks == config.blocks), None)
        standard = ResNetConfig(blocks=config.blocks).stage_widths if depth else ()
        known = depth is not None and config.stage_widths == standard and config.root_width == 64
        return f"BiT-R{depth}x{config.width_factor}" if known else None
    if not isinstance(config, ViTConfig):
        return rival_name(config)
    for name, size in SIZES.items():
        if (config.width, config.depth, config.heads, config.mlp_width) == (
            size.width,
            size.depth,
            size.heads,
            size.mlp_width,
        ):
            return _full_name(config, name)
    return None


def _full_name(config: ViTConfig, size: str) -> str | None:
    height, width = config.patch_size
    if config.early is not None:
        return None
    if config.stem is None:
        return f"ViT-{size}/{height}" if height == width else f"ViT-{size}/{height}x{width}"
    for (resnet, patch), (stem, cells) in STEMS.items():
        if stem.blocks == config.stem.blocks and stem.width == config.stem.width and (cells, cells) == config.patch_size:
            return f"{resnet}+ViT-{size}/{patch}"
    return None


def rival_of(name: str, image_size: tuple[int, int] | None) -> RivalConfig | None:
    """The model of another family than ViT and BiT, at its own image size or at another; None where there is no such name.

    A Swin's window is 7, but 12 at multiples of 384 pixels, as its authors have it; "-w12" at the end of its name says another.
    """
    config = _named(name, image_size)
    return config if config is None or image_size is None else replace(config, image_size=image_size)


def rival_name(config: RivalConfig) -> str | None:
    """The name of a model of another family than ViT and BiT, image size and head aside; None where nobody has named it."""
    match config:
        case SwinConfig():
            return _swin_name(config)
        case ConvNeXtConfig():
            found = (size for size, known in CONVNEXTS.items() if (known.depths, known.widths) == (config.depths, config.widths))
            size = next(found, None)
            return None if size is None or config.kernel != 7 else f"ConvNeXt-{size}"
        case EfficientNetConfig():
            for size in ("Mini", *SCALES):
                known = efficientnet(size)
                if (known.stages, known.stem_width, known.head_width) == (config.stages, config.stem_width, config.head_width):
                    return f"EfficientNet-{size}"
            return None
        case RecurrentConfig():
            down, across = config.patch_size
            patch = f"{down}" if down == across else f"{down}x{across}"
            sizes = (size for size, known in RECURRENT.items() if known[:2] == (config.width, config.depth))
            return next((f"{config.cell.upper()}-{size}/{patch}" for size in sizes), None)


def efficientnet(size: str) -> EfficientNetConfig:
    """The EfficientNet of that size at its own image size."""
    if size == "Mini":
        return MINI
    width, depth, side, dropout = SCALES[size]
    return EfficientNetConfig(
        stages=scaled_stages(width, depth),
        stem_width=scaled_width(STEM, width),
        head_width=scaled_width(HEAD, width),
        image_size=(side, side),
        dropout=dropout,
    )


def _named(name: str, image_size: tuple[int, int] | None) -> RivalConfig | None:
    if match := _SWIN.fullmatch(name):
        swin = _looked_up(SWINS, match["size"])
        if swin is None or match["window"] == "0":
            return None
        window = int(match["window"]) if match["window"] else _usual_window(swin, image_size or swin.image_size)
        return replace(swin, window=(window, window))
    if match := _CONVNEXT.fullmatch(name):
        return _looked_up(CONVNEXTS, match["size"])
    if match := _EFFICIENTNET.fullmatch(name):
        size = _looked_up({size: size for size in ("Mini", *SCALES)}, match["size"])
        return None if size is None else efficientnet(size)
    if match := _RECURRENT.fullmatch(name):
        entry = _looked_up(RECURRENT, match["size"])
        if entry is None or int(match["p"]) < 1 or int(match["q"] or 1) < 1:
            return None
        width, depth, side = entry
        cell: Cell = "lstm" if match["cell"].casefold() == "lstm" else "rnn"
        patch = (int(match["p"]), int(match["q"] or match["p"]))
        return RecurrentConfig(cell=cell, width=width, depth=depth, patch_size=patch, image_size=(side, side))
    return None


def _looked_up(table: dict[str, T], written: str) -> T | None:
    """The entry of that name in any case of letters."""
    return next((entry for size, entry in table.items() if size.casefold() == written.casefold()), None)


def _usual_window(swin: SwinConfig, image_size: tuple[int, int]) -> int:
    return 12 if len(swin.depths) == 4 and all(side % 384 == 0 for side in image_size) else swin.window[0]


def _swin_name(config: SwinConfig) -> str | None:
    shape = (config.width, config.depths, config.heads)
    for size, known in SWINS.items():
        if shape == (known.width, known.depths, known.heads) and config.patch_size == (4, 4):
            down, across = config.window
            if down != across:
                return None
            return f"Swin-{size}" if down == _usual_window(known, config.image_size) else f"Swin-{size}-w{down}"
    return None


def _timm(name: str) -> ModelConfig | None:
    """The model that timm calls so, if it does."""
    from vitlab.config.timm_names import config_of  # which is made of the tables here

    return config_of(name)


def _vit(name: str, image_size: tuple[int, int] | None, *, pad: bool) -> ViTConfig:
    match = _VIT.fullmatch(name)
    if match is None:
        raise _unknown(name)
    entry = SIZES[_size_name(name, match)]
    stem, patch = _stem(name, match["stem"], (int(match["p"]), int(match["q"] or match["p"])))
    return ViTConfig(
        width=entry.width,
        depth=entry.depth,
        heads=entry.heads,
        mlp_width=entry.mlp_width,
        patch_size=patch,
        image_size=image_size or (entry.image_size, entry.image_size),
        pad=pad,
        stem=stem,
        numerics=PROFILES["official"],
    )


def _size_name(name: str, match: re.Match[str]) -> str:
    """The size meant: by exact letters in the paper's spelling (g is not G), else by letters of any case if only one fits.

    The paper's ViT-b is meant by nothing but this spelling: vit_b_16 is torchvision's name of ViT-B/16.
    """
    written, prefix = match["size"], match["prefix"]
    exact = match["mark"] == "/" and (prefix or "ViT-") == "ViT-"
    if exact and written in SIZES and (written != "b" or prefix):
        return written
    fitting = [size for size in SIZES if size.casefold() == written.casefold() and (size != "b" or (exact and not prefix))]
    if len(fitting) > 1:
        spelled = " or ".join(f"ViT-{size}/{match['p']}" for size in fitting)
        raise ConfigError(
            f"{name!r} could be {spelled}",
            hint="write it as the paper does, with the size's own capital or small letter",
        )
    if not fitting:
        raise _unknown(name)
    return fitting[0]


def _stem(name: str, resnet: str | None, patch: tuple[int, int]) -> tuple[ResNetStem | None, tuple[int, int]]:
    if resnet is None:
        return None, patch
    key = (resnet.upper(), patch[0])
    if patch[0] != patch[1] or key not in STEMS:
        raise _unknown(name)
    stem, cells = STEMS[key]
    return stem, (cells, cells)


def _resnet(name: str) -> ResNetConfig | None:
    match = _BIT.fullmatch(name)
    if match is None:
        return None
    depth, factor = int(match["depth"]), int(match["factor"])
    if depth not in RESNETS or factor < 1:
        raise _unknown(name)
    return ResNetConfig(blocks=RESNETS[depth], width_factor=factor)


def _unknown(name: str) -> ConfigError:
    from vitlab.config.timm_names import architectures, refusal

    if error := refusal(name):
        return error
    known = (*NAMES, *architectures())
    alike = [other for other in known if other in _VIT_NAMES or other[:2].casefold() == name[:2].casefold()]
    hint = did_you_mean(name, alike, count=2) or f"one of {', '.join(NAMES)}, or a name of timm's"
    return ConfigError(f"no model called {name!r}", hint=hint)
