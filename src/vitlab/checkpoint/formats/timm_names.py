"""What timm calls a rival of ours, and the arguments with which it builds it."""

from __future__ import annotations

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import EfficientNetConfig
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.rivals import SCALES, RivalConfig, rival_name
from vitlab.config.swin import SwinConfig
from vitlab.config.text import Json

CLASSIFIERS = {"swin": "head.fc", "convnext": "head.fc", "efficientnet": "classifier"}
FIRST = {"swin": "patch_embed.proj", "convnext": "stem.0", "efficientnet": "conv_stem"}


def architecture_of(config: RivalConfig) -> str | None:
    """A name under which timm builds a model whose shape can be given by arguments, or None."""
    match config:
        case SwinConfig():
            # Of a window that is not square timm 1.0 takes the table for that of another, and fails to resize it.
            square = all(down == across for down, across in (config.patch_size, *config.windows))
            return "swin_base_patch4_window7_224" if square and _timms_windows(config) == config.windows else None
        case ConvNeXtConfig():
            return "convnext_base" if len(config.depths) == 4 else None
        case EfficientNetConfig():
            size = (rival_name(config) or "").removeprefix("EfficientNet-")
            prefix = "tf_" if config.padding == "same" else ""
            usual = config.norm_eps == (1e-3 if config.padding == "same" else 1e-5) and config.squeeze == 0.25
            return f"{prefix}efficientnet_{size.lower()}" if size in SCALES and usual else None
        case RecurrentConfig():
            return None


def arguments_of(config: RivalConfig) -> dict[str, Json]:
    """The arguments that make timm's model of that name this one."""
    match config:
        case SwinConfig():
            return {
                "img_size": list(config.image_size),
                "patch_size": config.patch_size[0],
                "in_chans": config.channels,
                "embed_dim": config.width,
                "depths": list(config.depths),
                "num_heads": list(config.heads),
                "window_size": config.window[0] if config.window[0] == config.window[1] else list(config.window),
                "mlp_ratio": config.mlp_ratio,
                "qkv_bias": config.qkv_bias,
            }
        case ConvNeXtConfig():
            return {
                "in_chans": config.channels,
                "depths": list(config.depths),
                "dims": list(config.widths),
                "kernel_sizes": config.kernel,
                "patch_size": config.patch_size,
                "ls_init_value": config.layer_scale or None,
            }
        case _:
            return {"in_chans": config.channels}


def _timms_windows(config: SwinConfig) -> tuple[tuple[int, int], ...] | None:
    """The windows that timm makes, which counts odd maps without their last row; None for a picture that patches do not divide."""
    (height, width), (down, across) = config.image_size, config.patch_size
    if height % down or width % across:
        return None
    grids = [(height // down >> stage, width // across >> stage) for stage in range(len(config.depths))]
    return tuple((min(config.window[0], g), min(config.window[1], j)) for g, j in grids)
