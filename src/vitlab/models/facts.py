"""A model's config as the facts that a reader asks for first, in that order. No torch here."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from vitlab.config.model import ModelConfig
from vitlab.config.serialize import Json, to_json
from vitlab.config.vit import ViTConfig
from vitlab.models.cost import cost


def model_facts(config: ModelConfig) -> dict[str, Json]:
    """Parameters, multiply-adds and float32 memory for one image, sizes, choices; then each setting that is not the default."""
    spent = cost(config)
    facts: dict[str, Json] = {
        "family": "hybrid" if isinstance(config, ViTConfig) and config.stem is not None else config.family,
        "parameters": spent.parameters,
        "macs": spent.macs,
        "activations": spent.activations,
        "weight_bytes": spent.weight_bytes(),
        "inference_bytes": spent.inference_bytes(),
        **config.facts(),
    }
    return facts | _not_default(config, facts)


def _not_default(config: ModelConfig, facts: dict[str, Json]) -> dict[str, Json]:
    """The other settings whose value is not their default."""
    rest = [field for field in fields(config) if field.name not in facts]
    return {
        field.name: to_json(value)
        for field in rest
        if (value := getattr(config, field.name)) != _default(field.default, field.default_factory)
    }


def _default(default: Any, factory: Any) -> Any:
    return factory() if factory is not MISSING else default
