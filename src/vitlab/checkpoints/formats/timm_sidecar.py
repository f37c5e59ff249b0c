"""The config.json of a timm model's folder: read for the model and its preprocessing, and written."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from vitlab.checkpoints.formats import sidecar
from vitlab.checkpoints.formats.infer import UNUSED, per_channel
from vitlab.checkpoints.formats.sidecar import Sidecar
from vitlab.checkpoints.formats.timm_vit import Said, is_evas
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.data import Interpolation, Preprocess, Resize
from vitlab.config.efficientnet import SCALES, EfficientNetConfig
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.serialize import Json, to_json
from vitlab.config.swin import SwinConfig
from vitlab.config.timm_names import architecture_config, need_of
from vitlab.config.timm_vits import STYLES, style_of
from vitlab.config.vit import Gelu, Pool, ViTConfig
from vitlab.errors import CheckpointError

CLASSIFIERS = {"swin": "head.fc", "convnext": "head.fc", "efficientnet": "classifier"}
FIRST = {"swin": "patch_embed.proj", "convnext": "stem.0", "efficientnet": "conv_stem"}


def architecture_of(config: ModelConfig) -> str | None:
    """A name under which timm builds a model whose shape can be given by arguments, or None."""
    match config:
        case SwinConfig():
            # timm 1.0 fails to resize the table of a window that is not square, and reads a file without a head as the authors'.
            square = all(down == across for down, across in (config.patch_size, *config.windows))
            builds = square and config.num_classes and _timms_windows(config) == config.windows
            return "swin_base_patch4_window7_224" if builds else None
        case ConvNeXtConfig():
            return "convnext_base" if len(config.depths) == 4 else None
        case EfficientNetConfig():
            size = (config.name or "").removeprefix("EfficientNet-")
            prefix = "tf_" if config.padding == "same" else ""
            usual = config.norm_eps == (1e-3 if config.padding == "same" else 1e-5) and config.squeeze == 0.25
            return f"{prefix}efficientnet_{size.lower()}" if size in SCALES and usual else None
        case _:
            return None


def arguments_of(config: ModelConfig) -> dict[str, Json]:
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
                **({} if config.norm_eps == CONVNEXT_EPS else {"norm_eps": config.norm_eps}),
            }
        case _:
            return {"in_chans": config.channels}


def _timms_windows(config: SwinConfig) -> tuple[tuple[int, int], ...] | None:
    """The windows that timm makes, which counts odd maps without their last row; None for an image that patches do not divide."""
    (height, width), (down, across) = config.image_size, config.patch_size
    if height % down or width % across:
        return None
    grids = [(height // down >> stage, width // across >> stage) for stage in range(len(config.depths))]
    return tuple((min(config.window[0], g), min(config.window[1], j)) for g, j in grids)


POOLS: dict[str, Pool] = {"token": "token", "avg": "mean", "map": "map"}
CROPS: dict[str, Resize] = {"center": "short-side", "squash": "squash", "border": "pad"}
INTERPOLATIONS: dict[str, Interpolation] = {"bilinear": "bilinear", "bicubic": "bicubic"}
# Arguments of a timm ViT that its tensors show, that a style has, or that only training sees.
READ = re.compile(
    r"img_size|patch_size|in_chans|num_classes|embed_dim|depth|num_heads|num_kv_heads|mlp_ratio|qkv_bias|class_token|(num_)?reg_tokens"
    r"|no_embed_class|pos_embed|global_pool|(use_)?fc_norm|act_layer|init_values|pool_include_prefix|attn_pool_mlp_ratio"
    r"|\w*drop\w*_rate|dynamic_img_size|strict_img_size|weight_init|fix_init|head_init_scale"
)
CONVNEXT_EPS = 1e-6  # of timm's ConvNeXts by default
# The same for its Swins, ConvNeXts and EfficientNets: name -> the values vitlab has (None: the argument is not given).
UNSEEN_IN_FAMILY: dict[str, dict[str, tuple[str | None, ...]]] = {
    "swin": {"act_layer": (None, "gelu")},
    "convnext": {"act_layer": (None, "gelu")},
    "efficientnet": {"act_layer": (None, "swish", "silu"), "aa_layer": (None,)},
}
# Architectures that set such an argument by themselves.
ARGUMENTS = {
    "efficientnet_blur_b0": {"aa_layer": "blurpc"},
    "test_convnext": {"act_layer": "gelu_tanh"},
    "test_convnext2": {"act_layer": "gelu_tanh"},
}

# The units of a hybrid's stages -> a timm model with that ResNet; everything after the ResNet is an argument.
HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
# timm's names of the models that vitlab's `name_of` names as the paper does.
RESNETS = {
    "BiT-R50x1": "resnetv2_50x1_bit",
    "BiT-R50x3": "resnetv2_50x3_bit",
    "BiT-R101x1": "resnetv2_101x1_bit",
    "BiT-R101x3": "resnetv2_101x3_bit",
    "BiT-R152x2": "resnetv2_152x2_bit",
    "BiT-R152x4": "resnetv2_152x4_bit",
}


def is_timm(data: Sidecar | None) -> bool:
    """Whether a config.json is timm's; transformers' has `architectures` and `model_type` instead."""
    return data is not None and isinstance(data.get("architecture"), str)


def said_of(data: Sidecar) -> Said:
    """What timm's config.json says about the model itself; CheckpointError for an architecture that vitlab does not have."""
    arguments = sidecar.within(data, "model_args")
    style = _style(data, arguments)
    pool = sidecar.text(data, "global_pool") or sidecar.text(arguments, "global_pool")
    if pool and pool not in POOLS:
        raise CheckpointError(f"config.json says global_pool={pool!r}, which vitlab does not have", hint="token, avg or map")
    return Said(
        heads=sidecar.whole(arguments, "num_heads"),
        image_size=image_size_of(data),
        pool=POOLS[pool] if pool else None,
        gelu=_gelu(arguments),
        style=style,
    )


def _style(data: Sidecar, arguments: Sidecar) -> ViTConfig:
    """The architecture that config.json names, with those arguments that its tensors cannot show."""
    architecture = (sidecar.text(data, "architecture") or "").partition(".")[0]
    style = architecture_config(architecture)
    if style is None:
        need = need_of(architecture)
        lacks = f"it needs {need}, which vitlab does not have" if need else "vitlab does not know it"
        raise CheckpointError(
            f"config.json names timm's architecture {architecture!r}: {lacks}", hint="`vitlab models` lists what it reads"
        )
    if not isinstance(style, ViTConfig):
        raise CheckpointError(f"config.json names timm's {architecture}, and the tensors are those of a Vision Transformer")
    unread = [f"{key}={value!r}" for key, value in arguments.items() if not READ.fullmatch(key) and value is not None]
    if unread:
        raise CheckpointError(f"config.json says {', '.join(unread)}, which vitlab does not read")
    prefix = sidecar.flag(arguments, "pool_include_prefix", style.pooling.prefix)
    if prefix and not style.pooling.prefix:
        raise CheckpointError(f"config.json says pool_include_prefix=True, which vitlab does not have for {architecture}")
    return style


def refuse_unseen(data: Sidecar, family: str) -> None:
    """Refuse a model that computes, by its config.json, something that vitlab does not have."""
    arguments = {**ARGUMENTS.get(sidecar.text(data, "architecture") or "", {}), **sidecar.within(data, "model_args")}
    for key, known in UNSEEN_IN_FAMILY[family].items():
        if (value := sidecar.text(arguments, key)) not in known:
            raise CheckpointError(f"config.json says {key}={value!r}, which vitlab does not have for this {family}")


def image_size_of(data: Sidecar) -> tuple[int, int] | None:
    """The image size of the model in timm's config.json."""
    return sidecar.size(sidecar.within(data, "model_args"), "img_size") or _input_size(data)


def preprocess_of(data: Sidecar, config: ModelConfig) -> tuple[Preprocess, list[str]]:
    """The preprocessing with which timm evaluates this model, and notes of what vitlab cannot do in the same way."""
    fed = _pretrained(data)
    height, width = _input_size(data) or config.image_size
    interpolation, crop = sidecar.text(fed, "interpolation") or "bicubic", sidecar.text(fed, "crop_mode") or "center"
    share = sidecar.number(fed, "crop_pct") or 0.875
    if not 0.1 <= share <= 1:
        raise CheckpointError(f"config.json says crop_pct={share}, which is not a share of the image")
    notes = []
    if interpolation not in INTERPOLATIONS:
        notes.append(f"config.json says interpolation={interpolation!r}: bicubic is used")
    if crop not in CROPS:
        notes.append(f"config.json says crop_mode={crop!r}: the centre is used")
    if (height, width) != config.image_size:
        seen = f"{config.image_size[0]}x{config.image_size[1]}"
        notes.append(f"config.json says images of {height}x{width}, and the model sees {seen}: fed with that")
    mean, std = sidecar.numbers(fed, "mean") or (0.5,), sidecar.numbers(fed, "std") or (0.5,)
    resize = CROPS.get(crop, "short-side")
    fits = len(mean) == len(std) == config.channels
    preprocess = Preprocess(
        image_size=config.image_size,
        resize=resize,
        resize_to=max(math.floor(max(height, width) / share), max(config.image_size)) if resize == "short-side" else UNUSED,
        interpolation=INTERPOLATIONS.get(interpolation, "bicubic"),
        mean=mean if fits else per_channel(mean, config.channels),
        std=std if fits else per_channel(mean, config.channels),
    )
    return preprocess, notes


def labels_of(data: Sidecar, classes: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """The names of the classes, if there is one for each."""
    value = data.get("label_names", _pretrained(data).get("label_names"))
    if value is None or not classes:
        return None, []
    labels = sidecar.names(value, classes, key="label_names")
    return labels, [] if labels else [f"config.json's label_names are not {classes} names: left out"]


def sidecar_of(config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Json:
    """A config.json from which timm builds this model, or None if timm cannot build it."""
    architecture = _architecture(config)
    if architecture is None:
        return None
    arguments: dict[str, Json] = {}
    if isinstance(config, ViTConfig):
        arguments = _styled_arguments(config) if config.traits else _arguments(config)
    elif not isinstance(config, ResNetConfig):
        arguments = arguments_of(config)
    crop = {resize: mode for mode, resize in CROPS.items()}[preprocess.resize]
    fed: dict[str, Json] = {
        "input_size": [config.channels, *preprocess.image_size],
        "fixed_input_size": isinstance(config, ViTConfig | SwinConfig),
        "interpolation": "bicubic" if preprocess.interpolation == "bicubic" else "bilinear",
        "crop_pct": _share(preprocess) if crop == "center" else 1.0,
        "crop_mode": crop,
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "num_classes": config.num_classes,
        "classifier": _classifier(config),
    }
    if config.channels == 3:  # timm adapts what it finds under this name to other images as if it were made for three channels
        fed["first_conv"] = _first_convolution(config)
    named: dict[str, Json] = {} if labels is None else {"label_names": list(labels)}
    return {
        "architecture": architecture,
        "num_classes": config.num_classes,
        "num_features": config.feature_width,
        "global_pool": _timm_pool(config),
        **named,
        "model_args": arguments,
        "pretrained_cfg": fed,
    }


def _architecture(config: ModelConfig) -> str | None:
    """A name under which timm builds a model whose arguments can all be given; a hybrid's ResNet cannot."""
    if isinstance(config, ResNetConfig):
        return RESNETS.get(config.name or "") if config.groups == 32 else None
    if not isinstance(config, ViTConfig):
        return architecture_of(config)
    if config.traits:
        return styled_architecture(config)
    if config.representation_width:
        return None
    if config.stem is not None:
        return HYBRIDS.get(config.stem.blocks) if (config.stem.width, config.stem.groups) == (64, 32) else None
    return "deit_base_distilled_patch16_224" if config.distill_token else "vit_base_patch16_224"


def _classifier(config: ModelConfig) -> Json:
    """The layers that timm replaces for another number of classes."""
    if isinstance(config, ResNetConfig):
        return "head.fc"
    if not isinstance(config, ViTConfig):
        return CLASSIFIERS[config.family]
    return ["head", "head_dist"] if config.distill_token else "head"


def _first_convolution(config: ModelConfig) -> str:
    if isinstance(config, ResNetConfig):
        return "stem.conv"
    if not isinstance(config, ViTConfig):
        return FIRST[config.family]
    if config.stem is None:
        return "patch_embed.proj"
    return "patch_embed.backbone.stem.conv" if config.stem.blocks else "patch_embed.backbone.conv"


def styled_architecture(config: ViTConfig) -> str | None:
    """The architecture of timm that is this model in all but its sizes, or None; for models with traits."""
    if config.representation_width or config.before is not None or not config.traits:
        return None
    wanted = style_of(replace(config, numerics=replace(config.numerics, resize="bicubic")))
    for style, names in STYLES:
        if style_of(replace(style, numerics=replace(style.numerics, resize="bicubic"))) == wanted:
            return names.split()[0]
    return None


def _styled_arguments(config: ViTConfig) -> dict[str, Json]:
    """The sizes that make timm's architecture this model."""
    arguments: dict[str, Json] = {
        "img_size": list(config.image_size),
        "patch_size": to_json(config.patch_size),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": _ratio(config, 2 if config.mlp.gated and config.mlp.bias and not is_evas(config) else 1),
    }
    if config.position.grid is not None:  # NaFlex takes any size
        del arguments["img_size"]
    if config.projections.kv_heads:
        arguments["num_kv_heads"] = list(config.projections.kv_heads)
    if config.pooling.mlp_width:
        arguments["attn_pool_mlp_ratio"] = config.pooling.mlp_width / config.width
    return arguments


def _arguments(config: ViTConfig) -> dict[str, Json]:
    grid, step = config.grid, config.step
    arguments: dict[str, Json] = {
        "img_size": [grid[0] * step[0], grid[1] * step[1]],  # timm rounds down where a padded model rounds up
        "patch_size": to_json(config.patch_size),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": _ratio(config),
        "qkv_bias": config.qkv_bias,
        "class_token": config.class_token,
        "reg_tokens": config.register_tokens,
        "no_embed_class": bool(config.prefix_tokens) and not config.position.prefix,
        "pos_embed": "none" if config.position.kind == "none" else "learn",
        "global_pool": _timm_pool(config),
        "fc_norm": config.norm_after_pool,
        "act_layer": "gelu_tanh" if config.numerics.gelu == "tanh" else "gelu",
    }
    if config.layer_scale:
        arguments["init_values"] = config.layer_scale
    return arguments


def _ratio(config: ViTConfig, times: int = 1) -> float:
    """timm's MLP width is int(width * ratio): a ratio whose rounded product is the model's, or twice it where gates count too."""
    wanted = times * config.mlp_width
    ratio = wanted / config.width
    return ratio if int(config.width * ratio) == wanted else (wanted + 0.5) / config.width


def _share(preprocess: Preprocess) -> float:
    """timm scales the short side to floor(size / fraction): a fraction whose rounded quotient is the model's."""
    size = max(preprocess.image_size)
    share = size / preprocess.resize_to
    return share if math.floor(size / share) == preprocess.resize_to else size / (preprocess.resize_to + 0.5)


def _timm_pool(config: ModelConfig) -> str:
    if not isinstance(config, ViTConfig):
        return "avg"
    return {pool: word for word, pool in POOLS.items()}[config.pool]


def _pretrained(data: Sidecar) -> Sidecar:
    """The settings of the preprocessing: an object of their own, in the oldest files the whole file."""
    return sidecar.within(data, "pretrained_cfg") if "pretrained_cfg" in data else data


def _input_size(data: Sidecar) -> tuple[int, int] | None:
    fed = _pretrained(data)
    shape = sidecar.numbers(fed, "input_size")
    if shape is None:
        return None
    if len(shape) != 3:
        raise CheckpointError(f"config.json says input_size={list(shape)}, which is not channels, height, width")
    return sidecar.size({"input_size": [int(side) for side in shape[1:]]}, "input_size")


def _gelu(arguments: Sidecar) -> Gelu | None:
    match sidecar.text(arguments, "act_layer"):
        case "gelu_tanh":
            return "tanh"
        case "gelu":
            return "exact"
        case "quick_gelu":
            return "quick"
        case None:
            return None
        case other:
            raise CheckpointError(f"config.json says act_layer={other!r}, which vitlab does not have", hint="gelu or gelu_tanh")
