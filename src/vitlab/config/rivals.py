"""The table of ViT's rivals by name: "Swin-T", "Swin-B-w12", "ConvNeXt-XL", "EfficientNet-L2", "LSTM-S/16"."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TypeVar

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import HEAD, STEM, EfficientNetConfig, scaled_stages, scaled_width
from vitlab.config.recurrent import Cell, RecurrentConfig
from vitlab.config.swin import SwinConfig

T = TypeVar("T")
RivalConfig = SwinConfig | ConvNeXtConfig | EfficientNetConfig | RecurrentConfig

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

RIVAL_NAMES: tuple[str, ...] = (
    *("Swin-Mini", "Swin-T", "Swin-S", "Swin-B", "Swin-L"),
    *("ConvNeXt-Mini", "ConvNeXt-T", "ConvNeXt-S", "ConvNeXt-B", "ConvNeXt-L", "ConvNeXt-XL"),
    *("EfficientNet-Mini", *(f"EfficientNet-{size}" for size in SCALES)),
    *("LSTM-Mini/8", "LSTM-Ti/16", "LSTM-S/16", "RNN-Mini/8", "RNN-S/16"),
)

_SWIN = re.compile(r"swin[-_ ]?(?P<size>[a-z]+?)(?:[-_ ]?w(?P<window>\d+))?", re.IGNORECASE)
_CONVNEXT = re.compile(r"convnext[-_ ]?(?P<size>[a-z]+)", re.IGNORECASE)
_EFFICIENTNET = re.compile(r"efficientnet[-_ ]?(?P<size>[a-z]+\d?)", re.IGNORECASE)
_RECURRENT = re.compile(r"(?P<cell>lstm|rnn)[-_ ](?P<size>[a-z]+)[/_-](?P<p>\d+)(?:x(?P<q>\d+))?", re.IGNORECASE)
_FOREIGN = {"tiny": "T", "small": "S", "base": "B", "large": "L", "xlarge": "XL"}
_FOREIGN_SWIN = re.compile(r"swin_(tiny|small|base|large)_patch4_window(\d+)_(\d+).*")
_FOREIGN_CONVNEXT = re.compile(r"convnext_(tiny|small|base|large|xlarge)(?:[._].*)?")
_FOREIGN_EFFICIENTNET = re.compile(r"(?:tf_)?efficientnet_(b[0-7]|l2)(?:_ns)?(?:[._].*)?")


def rival_of(name: str, image_size: tuple[int, int] | None) -> RivalConfig | None:
    """The rival of that name at its own image size or at another; None where there is no such name.

    A Swin's window is 7, but 12 at multiples of 384 pixels, as its authors have it; "-w12" at the end of its name says another.
    """
    config = _named(name, image_size)
    return config if config is None or image_size is None else replace(config, image_size=image_size)


def rival_name(config: RivalConfig) -> str | None:
    """The name of a rival of this size, image size and head aside; None where nobody has named it."""
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


def foreign_hint(name: str) -> str | None:
    """What a model is called here that timm calls by this name."""
    if swin := _FOREIGN_SWIN.fullmatch(name):
        return f"did you mean Swin-{_FOREIGN[swin[1]]}-w{swin[2]} with image_size={swin[3]}?"
    if convnext := _FOREIGN_CONVNEXT.fullmatch(name):
        return f"did you mean ConvNeXt-{_FOREIGN[convnext[1]]}?"
    if efficientnet_name := _FOREIGN_EFFICIENTNET.fullmatch(name):
        return f"did you mean EfficientNet-{efficientnet_name[1].upper()}?"
    return None


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
