"""transformers' Swin, ConvNeXt, BiT and EfficientNet: the model of a folder, its rows, and its config.json.

Each family has two functions: one reads the tensors and config.json, the other writes config.json for a config and refuses what
transformers cannot build. The names of the tensors are in the family's own layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from vitlab.checkpoints.formats import bit, convnext, sidecar, swin
from vitlab.checkpoints.formats.bit import bit_config, bit_rows
from vitlab.checkpoints.formats.contract import Hints
from vitlab.checkpoints.formats.convnext import convnext_config, convnext_rows
from vitlab.checkpoints.formats.efficientnet import without_counters
from vitlab.checkpoints.formats.hf_json import Read, Tensors, cannot_write, expect, one_or_two
from vitlab.checkpoints.formats.infer import making, outputs
from vitlab.checkpoints.formats.sidecar import Sidecar
from vitlab.checkpoints.formats.swin import swin_config, swin_rows, without_computed
from vitlab.checkpoints.table import Row, layer, same, shaped
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import HEAD, SCALES, STEM, EfficientNetConfig, scaled_width
from vitlab.config.resnet import ResNetConfig
from vitlab.config.serialize import Json
from vitlab.config.swin import SwinConfig
from vitlab.errors import CheckpointError

# Swin.


def read_swin(tensors: Tensors, data: Sidecar, hints: Hints, *, where: str) -> Read:
    """A Swin of transformers, which pads a map before it shifts it."""
    names, kept = swin.HUGGINGFACE, without_computed(tensors)
    expect(data, {"use_absolute_embeddings": False, "hidden_act": "gelu"}, where=where)
    window = sidecar.size(data, "window_size")
    config, notes = swin_config(
        kept, names, hints, swin.Said(image_size=sidecar.size(data, "image_size"), window=window), where=where
    )
    with making(where):
        config = replace(config, norm_eps=sidecar.number(data, "layer_norm_eps") or 1e-5)
    return Read(config=config, tensors=kept, rows=list(swin_rows(config, names)), notes=notes)


def swin_json(config: SwinConfig) -> dict[str, Json]:
    """The config.json of a Swin; transformers has one square window for all stages."""
    if any(window != (config.window[0],) * 2 for window in config.windows):
        raise cannot_write(
            f"windows of {', '.join(f'{down}x{across}' for down, across in config.windows)}: transformers has one square window"
        )
    if config.patch_size[0] != config.patch_size[1]:
        raise cannot_write(f"patches of {config.patch_size[0]}x{config.patch_size[1]}")
    return {
        "image_size": one_or_two(config.image_size),
        "patch_size": config.patch_size[0],
        "num_channels": config.channels,
        "embed_dim": config.width,
        "depths": list(config.depths),
        "num_heads": list(config.heads),
        "window_size": config.window[0],
        "mlp_ratio": float(config.mlp_ratio),
        "qkv_bias": config.qkv_bias,
        "layer_norm_eps": config.norm_eps,
        "drop_path_rate": config.drop_path,
        "hidden_act": "gelu",
        "use_absolute_embeddings": False,
        "hidden_size": config.feature_width,
    }


# ConvNeXt.


def read_convnext(tensors: Tensors, data: Sidecar, hints: Hints, *, where: str) -> Read:
    """A ConvNeXt of transformers, whose last norm has an eps of its own."""
    names = convnext.HUGGINGFACE
    expect(data, {"hidden_act": "gelu"}, where=where)
    config, notes = convnext_config(tensors, names, hints, sidecar.size(data, "image_size"), where=where)
    with making(where):
        last = sidecar.number(data, "layer_norm_eps")
        config = replace(config, last_norm_eps=1e-12 if last is None else last)
    return Read(config=config, tensors=tensors, rows=list(convnext_rows(config, names)), notes=notes)


def convnext_json(config: ConvNeXtConfig) -> dict[str, Json]:
    """The config.json of a ConvNeXt."""
    if config.norm_eps != 1e-6 or config.kernel != 7 or config.mlp_ratio != 4:
        raise cannot_write(
            f"norm_eps={config.norm_eps:g}, kernel={config.kernel}, mlp_ratio={config.mlp_ratio}: transformers has 1e-06, 7 and 4"
        )
    return {
        "image_size": one_or_two(config.image_size),
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "num_stages": len(config.depths),
        "depths": list(config.depths),
        "hidden_sizes": list(config.widths),
        "layer_scale_init_value": config.layer_scale,
        "layer_norm_eps": config.last_norm_eps or config.norm_eps,
        "drop_path_rate": config.drop_path,
        "hidden_act": "gelu",
    }


# BiT.


def read_bit(tensors: Tensors, data: Sidecar, hints: Hints, *, where: str) -> Read:
    """A BiT ResNet of transformers, which standardises weights as timm does."""
    expected: dict[str, Json] = {"layer_type": "preactivation", "hidden_act": "relu", "global_padding": None, "output_stride": 32}
    expect(data, expected | {"embedding_dynamic_padding": False}, where=where)
    config, notes = bit_config(tensors, hints, names=bit.HUGGINGFACE, where=where)
    size = sidecar.size(data, "image_size")
    with making(where):
        config = replace(config, groups=sidecar.whole(data, "num_groups") or config.groups, image_size=size or config.image_size)
    notes = notes if size is None else []
    return Read(config=config, tensors=tensors, rows=list(bit_rows(config, bit.HUGGINGFACE)), notes=notes)


def bit_json(config: ResNetConfig) -> dict[str, Json]:
    """The config.json of a BiT ResNet, with its true widths: transformers' width factor misses the last norm."""
    widths = [width * config.width_factor for width in config.stage_widths]
    if any(width % 32 for width in widths):
        raise cannot_write(
            f"stages of {', '.join(map(str, widths))} channels: transformers rounds a quarter of them to multiples of 8"
        )
    if config.norm_eps != 1e-5:
        raise cannot_write(f"norm_eps={config.norm_eps:g}: transformers has 1e-05")
    return {
        "num_channels": config.channels,
        "embedding_size": config.root_width * config.width_factor,
        "depths": list(config.blocks),
        "hidden_sizes": [*widths],
        "width_factor": 1,
        "num_groups": config.groups,
        "layer_type": "preactivation",
        "hidden_act": "relu",
        "global_padding": None,
        "output_stride": 32,
        "embedding_dynamic_padding": False,
        "drop_path_rate": 0.0,
    }


# EfficientNet.

STAGE_LISTS = ("kernel_sizes", "in_channels", "out_channels", "strides", "num_block_repeats", "expand_ratios")


def read_efficientnet(tensors: Tensors, data: Sidecar, hints: Hints, *, where: str) -> Read:
    """An EfficientNet of transformers; the tensors show neither its stages nor its strides, so config.json is needed."""
    if hints.heads is not None or hints.grid is not None:
        raise CheckpointError(f"{where} holds an EfficientNet: it has no heads and no grid to give")
    if not data:
        raise CheckpointError(
            f"{where} is an EfficientNet of transformers without the config.json that says its strides",
            hint="give the folder with both files",
        )
    expect(data, {"hidden_act": "swish", "pooling_type": "mean", "depth_divisor": 8}, where=where)
    width, depth = sidecar.number(data, "width_coefficient") or 2.0, sidecar.number(data, "depth_coefficient") or 3.1
    lists = [sidecar.wholes(data, name) for name in STAGE_LISTS]
    if any(one is None or len(one) != len(lists[0] or ()) for one in lists):
        raise CheckpointError(f"{where}: config.json does not give {', '.join(STAGE_LISTS)} for every stage")
    kernels, _, widths, strides, repeats, expansions = (one or () for one in lists)
    blocks = [math.ceil(depth * number) for number in repeats]
    scaled = [scaled_width(number, width) for number in widths]
    kept = without_counters(tensors)
    with making(where):
        config = EfficientNetConfig(
            stages=tuple(zip(blocks, kernels, strides, expansions, scaled, strict=True)),
            stem_width=scaled_width(STEM, width),
            head_width=scaled_width(HEAD, width),
            squeeze=sidecar.number(data, "squeeze_expansion_ratio") or 0.25,
            image_size=sidecar.size(data, "image_size") or (224, 224),
            channels=sidecar.whole(data, "num_channels") or 3,
            num_classes=outputs(tensors, ("classifier.weight", "classifier.bias"), 0),
            dropout=sidecar.number(data, "dropout_rate") or 0.0,
            drop_path=sidecar.number(data, "drop_connect_rate") or 0.0,
            padding="uneven",
            even_blocks=sidecar.wholes(data, "depthwise_padding") or (),
            norm_eps=sidecar.number(data, "batch_norm_eps") or 1e-3,
        )
    if _adds_first(config):
        raise CheckpointError(
            f"{where}: a stage begins at stride 1 with its input's width, where transformers adds no shortcut and vitlab does"
        )
    return Read(config=config, tensors=kept, rows=list(efficientnet_rows(config)), notes=[])


def efficientnet_json(config: EfficientNetConfig) -> dict[str, Json]:
    """The config.json of an EfficientNet, whose stem and head are 32 and 1280 channels times one factor in transformers."""
    factors = [config.head_width / HEAD, config.stem_width / STEM, *(scale[0] for scale in SCALES.values())]
    shape = (config.stem_width, config.head_width)
    factor = next((f for f in factors if (scaled_width(STEM, f), scaled_width(HEAD, f)) == shape), None)
    plan = config.plan
    widths = [] if factor is None else [_unscaled(stage.width, factor) for stage in plan]
    if factor is None or None in widths or _adds_first(config):
        raise cannot_write(
            "these widths: in transformers the stem, stages and head are 32, 1280 and whole numbers times one factor"
        )
    return {
        "image_size": one_or_two(config.image_size),
        "num_channels": config.channels,
        "width_coefficient": factor,
        "depth_coefficient": 1.0,
        "depth_divisor": 8,
        "kernel_sizes": [stage.kernel for stage in plan],
        "in_channels": [STEM, *widths[:-1]],
        "out_channels": [*widths],
        "depthwise_padding": list(config.even_blocks),
        "strides": [stage.stride for stage in plan],
        "num_block_repeats": [stage.blocks for stage in plan],
        "expand_ratios": [stage.expansion for stage in plan],
        "squeeze_expansion_ratio": config.squeeze,
        "hidden_act": "swish",
        "hidden_dim": config.head_width,
        "pooling_type": "mean",
        "batch_norm_eps": config.norm_eps,
        "batch_norm_momentum": 1 - config.momentum,
        "dropout_rate": config.dropout,
        "drop_connect_rate": config.drop_path,
    }


def efficientnet_notes(config: EfficientNetConfig) -> list[str]:
    """Where transformers computes something else than this model."""
    if config.padding == "uneven":
        return []
    return [f"this model's padding is {config.padding!r} and transformers' is uneven at every image size: its logits may differ"]


def efficientnet_rows(config: EfficientNetConfig) -> Iterator[Row]:
    """The rows of an EfficientNet, whose blocks transformers numbers through all stages."""
    prefix = "efficientnet."
    yield same("stem.weight", f"{prefix}embeddings.convolution.weight")
    yield from _batch_norm("stem_norm", f"{prefix}embeddings.batchnorm")
    inputs, number = config.stem_width, 0
    for s, stage in enumerate(config.plan):
        for u in range(stage.blocks):
            ours, theirs = f"stages.{s}.{u}", f"{prefix}encoder.blocks.{number}"
            if stage.expansion > 1:
                yield same(f"{ours}.expand.weight", f"{theirs}.expansion.expand_conv.weight")
                yield from _batch_norm(f"{ours}.expand_norm", f"{theirs}.expansion.expand_bn")
            yield same(f"{ours}.depthwise.weight", f"{theirs}.depthwise_conv.depthwise_conv.weight")
            yield from _batch_norm(f"{ours}.depthwise_norm", f"{theirs}.depthwise_conv.depthwise_norm")
            for part, width in (("reduce", config.squeezed(inputs)), ("expand", inputs * stage.expansion)):
                mine, foreign = f"{ours}.squeeze.{part}", f"{theirs}.squeeze_excite.{part}"
                yield shaped(f"{mine}.weight", f"{foreign}.weight", (width, -1), (width, -1, 1, 1))
                yield same(f"{mine}.bias", f"{foreign}.bias")
            yield same(f"{ours}.project.weight", f"{theirs}.projection.project_conv.weight")
            yield from _batch_norm(f"{ours}.project_norm", f"{theirs}.projection.project_bn")
            inputs, number = stage.width, number + 1
    yield same("last.weight", f"{prefix}encoder.top_conv.weight")
    yield from _batch_norm("last_norm", f"{prefix}encoder.top_bn")
    if config.num_classes:
        yield from layer("head", "classifier")


def _batch_norm(ours: str, theirs: str) -> Iterator[Row]:
    for part in ("weight", "bias", "running_mean", "running_var"):
        yield same(f"{ours}.{part}", f"{theirs}.{part}")


def _unscaled(width: int, factor: float) -> int | None:
    """A whole number that transformers scales to this width, the nearest one if there are several."""
    middle = round(width / factor)
    return next(
        (number for step in range(8) for number in (middle + step, middle - step) if scaled_width(number, factor) == width), None
    )


def _adds_first(config: EfficientNetConfig) -> bool:
    """Whether a stage's first block has a shortcut here, which transformers never gives it."""
    inputs = (config.stem_width, *(stage.width for stage in config.plan))
    return any(stage.stride == 1 and stage.width == before for stage, before in zip(config.plan, inputs, strict=False))
