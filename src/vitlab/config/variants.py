"""The table of sizes, and the one parser of model names: "ViT-B/16", "R50+ViT-L/32", "BiT-R152x4", "Swin-T", "LSTM-S/16"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vitlab.config.check import did_you_mean, pair
from vitlab.config.model import ModelConfig, Pool, ResNetConfig, ResNetStem, ViTConfig, with_profile
from vitlab.config.rivals import RIVAL_NAMES, foreign_hint, rival_name, rival_of
from vitlab.errors import ConfigError


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

# What is published under a name; the parser also takes any other patch size or width factor.
NAMES: tuple[str, ...] = (
    *("ViT-Mini/8", "ViT-Ti/16", "ViT-S/16", "ViT-S/32", "ViT-B/8", "ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32"),
    *("ViT-So400m/14", "ViT-H/14", "ViT-g/14", "ViT-G/14"),
    *("R+ViT-Ti/16", "R26+ViT-S/32", "R50+ViT-B/16", "R50+ViT-B/32", "R50+ViT-L/16", "R50+ViT-L/32"),
    *("BiT-R50x1", "BiT-R50x2", "BiT-R50x3", "BiT-R101x1", "BiT-R101x3"),
    *("BiT-R152x1", "BiT-R152x2", "BiT-R152x4", "BiT-R200x3"),
    *RIVAL_NAMES,
)

_VIT = re.compile(
    r"(?:(?P<stem>R\d*)\+)?(?P<prefix>ViT[-_ ])?(?P<size>[A-Za-z][A-Za-z0-9]*?)(?P<mark>[/_-])(?P<p>\d+)(?:x(?P<q>\d+))?",
    re.IGNORECASE,
)
_BIT = re.compile(r"(?:BiT[-_ ]?)?R(?P<depth>\d+)x(?P<factor>\d+)", re.IGNORECASE)
_TIMM_STYLE = re.compile(r"vit_(tiny|small|base|large|huge)_patch(\d+)(?:_(\d+))?.*")
_TIMM_SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}


def variant(
    name: str,
    *,
    image_size: int | Sequence[int] | None = None,
    num_classes: int = 1000,
    channels: int = 3,
    pool: Pool = "token",
    pad: bool = False,
    profile: str = "official",
) -> ModelConfig:
    """The model of that name, as the authors have it; vary it further with `dataclasses.replace`.

    `image_size` is one number or (height, width) in pixels; 224 unless the size says otherwise. A Swin's window follows it: 7, but
    12 at multiples of 384, or what "-w12" at the end of its name says. `pool="mean"` and `"map"` leave
    the class token out. `profile` is whose numerics: `official`, `timm`, `huggingface`, `torchvision`.
    """
    if bit := _BIT.fullmatch(name):
        if pool != "token" or pad:
            raise ConfigError(f"{name} is a ResNet: pool and pad are choices of a ViT")
        resnet = _resnet(name, int(bit["depth"]), int(bit["factor"]))
        size = resnet.image_size if image_size is None else pair("image_size", image_size)
        return replace(resnet, image_size=size, num_classes=num_classes, channels=channels)
    rival = rival_of(name, None if image_size is None else pair("image_size", image_size))
    if rival is not None:
        if pool != "token" or pad:
            raise ConfigError(f"{name} is no ViT: pool and pad are choices of a ViT")
        return replace(rival, num_classes=num_classes, channels=channels)
    match = _VIT.fullmatch(name)
    if match is None:
        raise _unknown(name)
    size_name = _size_name(name, match)
    patch = (int(match["p"]), int(match["q"] or match["p"]))
    stem, patch = _stem(name, match["stem"], patch)
    entry = SIZES[size_name]
    config = ViTConfig(
        width=entry.width,
        depth=entry.depth,
        heads=entry.heads,
        mlp_width=entry.mlp_width,
        patch_size=patch,
        image_size=pair("image_size", entry.image_size if image_size is None else image_size),
        channels=channels,
        num_classes=num_classes,
        pad=pad,
        stem=stem,
        pool=pool,
        class_token=pool == "token",
    )
    return with_profile(config, profile)


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


def _size_name(name: str, match: re.Match[str]) -> str:
    """The size meant: by exact letters in the paper's spelling (g is not G), else by letters of any case if only one fits."""
    written = match["size"]
    exact = match["mark"] == "/" and (match["prefix"] or "ViT-") == "ViT-"
    if exact and written in SIZES:
        return written
    fitting = [size for size in SIZES if size.casefold() == written.casefold()]
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


def _resnet(name: str, depth: int, factor: int) -> ResNetConfig:
    if depth not in RESNETS or factor < 1:
        raise _unknown(name)
    return ResNetConfig(blocks=RESNETS[depth], width_factor=factor)


def _unknown(name: str) -> ConfigError:
    if foreign := _TIMM_STYLE.fullmatch(name):
        size, patch, pixels = foreign.groups()
        at = f" with image_size={pixels}" if pixels else ""
        return ConfigError(f"no variant called {name!r}", hint=f"did you mean ViT-{_TIMM_SIZES[size]}/{patch}{at}?")
    if hint := foreign_hint(name):
        return ConfigError(f"no variant called {name!r}", hint=hint)
    alike = [known for known in NAMES if known not in RIVAL_NAMES or known[:2].casefold() == name[:2].casefold()]
    hint = did_you_mean(name, alike) or f"one of {', '.join(NAMES)}"
    return ConfigError(f"no variant called {name!r}", hint=hint)
