"""A model's config as the properties one asks for first, in the order one asks. No torch."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from vitlab.config.model import PROFILES, ModelConfig, ResNetConfig, ViTConfig
from vitlab.config.text import Json, to_json
from vitlab.model.cost import cost


def model_facts(config: ModelConfig) -> dict[str, Json]:
    """Parameters, multiply-adds and float32 memory for one picture, sizes, choices; then each unusual setting."""
    spent = cost(config)
    told: dict[str, Json] = {
        "kind": _kind(config),
        "parameters": spent.parameters,
        "macs": spent.macs,
        "activations": spent.activations,
        "weight_bytes": spent.weight_bytes(),
        "inference_bytes": spent.inference_bytes(),
    }
    told |= _vit(config) if isinstance(config, ViTConfig) else _resnet(config)
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
