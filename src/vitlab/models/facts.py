"""A model's config as the properties one asks for first, in the order one asks. No torch."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import EfficientNetConfig
from vitlab.config.model import PROFILES, ModelConfig, ResNetConfig, ViTConfig
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.serialize import Json, to_json
from vitlab.config.swin import SwinConfig
from vitlab.models.cost import cost


def model_facts(config: ModelConfig) -> dict[str, Json]:
    """Parameters, multiply-adds and float32 memory for one image, sizes, choices; then each unusual setting."""
    spent = cost(config)
    told: dict[str, Json] = {
        "kind": _kind(config),
        "parameters": spent.parameters,
        "macs": spent.macs,
        "activations": spent.activations,
        "weight_bytes": spent.weight_bytes(),
        "inference_bytes": spent.inference_bytes(),
    }
    match config:
        case ViTConfig():
            told |= _vit(config)
        case ResNetConfig():
            told |= _resnet(config)
        case _:
            told |= {"image_size": list(config.image_size), "channels": config.channels, **_rival(config)}
            told |= {"feature_width": config.feature_width, "num_classes": config.num_classes}
    return told | _unusual(config, told)


def _kind(config: ModelConfig) -> str:
    return "hybrid" if isinstance(config, ViTConfig) and config.stem is not None else config.kind


def _vit(config: ViTConfig) -> dict[str, Json]:
    profiles = [name for name, numerics in PROFILES.items() if numerics == config.numerics]
    return {
        "image_size": list(config.image_size),
        "channels": config.channels,
        "patch_size": list(config.patch_size),
        "grid": list(config.grid),
        "tokens": config.tokens,
        "width": config.width,
        "depth": config.depth,
        "heads": config.heads,
        "mlp_width": config.mlp_width,
        "pool": config.pool,
        "position": to_json(config.position),
        "attention": config.attention,
        "num_classes": config.num_classes,
        "profile": profiles[0] if profiles else "custom",
        "numerics": to_json(config.numerics),
    }


def _resnet(config: ResNetConfig) -> dict[str, Json]:
    return {
        "image_size": list(config.image_size),
        "channels": config.channels,
        "blocks": list(config.blocks),
        "width_factor": config.width_factor,
        "feature_width": config.feature_width,
        "num_classes": config.num_classes,
    }


def _rival(config: SwinConfig | ConvNeXtConfig | EfficientNetConfig | RecurrentConfig) -> dict[str, Json]:
    match config:
        case SwinConfig():
            grids: Json = [list(grid) for grid in config.grids]
            windows: Json = [list(window) for window in config.windows]
            sizes: dict[str, Json] = {"patch_size": list(config.patch_size), "depths": list(config.depths)}
            return {**sizes, "width": config.width, "heads": list(config.heads), "grids": grids, "windows": windows}
        case ConvNeXtConfig():
            grids = [list(grid) for grid in config.grids]
            return {"depths": list(config.depths), "widths": list(config.widths), "grids": grids, "layer_scale": config.layer_scale}
        case EfficientNetConfig():
            stages: Json = [list(stage) for stage in config.stages]
            return {"stem_width": config.stem_width, "stages": stages, "dropout": config.dropout, "drop_path": config.drop_path}
        case RecurrentConfig():
            sizes = {"patch_size": list(config.patch_size), "grid": list(config.grid), "tokens": config.tokens}
            return {"cell": config.cell, **sizes, "width": config.width, "depth": config.depth, "pool": config.pool}


def _unusual(config: ModelConfig, told: dict[str, Json]) -> dict[str, Json]:
    """The settings not told yet whose value is not their default."""
    rest = [field for field in fields(config) if field.name not in told]
    return {
        field.name: to_json(value)
        for field in rest
        if (value := getattr(config, field.name)) != _default(field.default, field.default_factory)
    }


def _default(default: Any, factory: Any) -> Any:
    return factory() if factory is not MISSING else default
