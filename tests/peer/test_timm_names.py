"""Every architecture that timm has under a name: vitlab reads it as timm builds it or refuses it, and reads none as another."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.peer.compare import shapes_only
from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats import FORMATS, Hints
from vitlab.config import ConvNeXtConfig, EfficientNetConfig, ModelConfig, ResNetConfig, SwinConfig, ViTConfig
from vitlab.config.timm_names import architecture_config, need_of
from vitlab.errors import CheckpointError

pytestmark = pytest.mark.slow

# timm's module -> how many of its names are read, at least
MODULES = {
    "vision_transformer": 154,
    "deit": 16,
    "vision_transformer_hybrid": 9,
    "vision_transformer_relpos": 13,
    "beit": 7,
    "eva": 65,
    "naflexvit": 6,
    "resnetv2": 5,
    "swin_transformer": 6,
    "convnext": 9,
    "efficientnet": 20,
}
VITS = ("vision_transformer", "deit", "vision_transformer_hybrid", "vision_transformer_relpos", "beit", "eva", "naflexvit")
POOLS = {"token": "token", "avg": "mean", "map": "map"}
Compared = dict[str, tuple[object, object]]  # what timm's model has, and what the config says


def folder_of(model: Any, name: str) -> RawFile:
    """What a folder of that model on the Hub holds: its tensors, here without values, and timm's config.json."""
    fed = {
        key: list(value) if isinstance(value, tuple) else value for key, value in model.pretrained_cfg.items() if value is not None
    }
    pool = {"global_pool": model.global_pool} if isinstance(getattr(model, "global_pool", None), str) else {}
    beside = {"architecture": name, "num_classes": model.num_classes, **pool, "pretrained_cfg": fed}
    return RawFile(path=Path(name), tensors=model.state_dict(), metadata={}, sidecar=beside, preprocessor=None)


def compared(model: Any, config: ModelConfig) -> Compared:
    """What the tensors' shapes do not show, family by family."""
    match config:
        case ViTConfig():
            return _vit(model, config)
        case ResNetConfig():
            return {
                "norm": (type(model.norm).__name__, "GroupNormAct"),
                "standardise_eps": (model.stem.conv.eps, config.standardise_eps),
            }
        case SwinConfig():
            first = [stage.blocks[0] for stage in model.layers]
            return {
                "heads": (tuple(block.attn.num_heads for block in first), config.heads),
                "windows": (tuple(tuple(block.attn.window_size) for block in first), config.windows),
                "activation": (type(first[0].mlp.act).__name__, "GELU"),
                "eps": (model.norm.eps, config.norm_eps),
                "grid": (tuple(model.patch_embed.grid_size), config.grids[0]),
            }
        case ConvNeXtConfig():
            block = model.stages[0].blocks[0]
            return {"activation": (type(block.mlp.act).__name__, "GELU"), "eps": (block.norm.eps, config.norm_eps)}
        case EfficientNetConfig():
            strides = tuple(stage[0].conv_dw.stride[0] for stage in model.blocks)
            return {
                "activation": (type(model.bn1.act).__name__, "SiLU"),
                "eps": (model.bn1.eps, config.norm_eps),
                "padding": ("same" if type(model.conv_stem).__name__ == "Conv2dSame" else "half", config.padding),
                "strides": (strides, tuple(stage.stride for stage in config.plan)),
            }
        case _:
            return {"family": ("one of timm's", config.family)}


ACTIVATIONS = {"exact": "GELU", "tanh": "GELUTanh", "quick": "QuickGELU"}


def _vit(model: Any, config: ViTConfig) -> Compared:
    block = model.blocks[0]
    kind = type(block).__name__
    if config.parallel == "mlp":
        heads, activation, norm = block.num_heads, block.mlp_act, block.in_norm
    elif config.parallel == "branches":
        heads, activation, norm = block.attns[0].attn.num_heads, block.ffns[0].mlp.act, block.attns[0].norm
    else:
        heads, activation, norm = block.attn.num_heads, block.mlp.act, block.norm1
    found: Compared = {
        "heads": (heads, config.heads),
        "activation": (type(activation).__name__, "SiLU" if config.mlp.gated else ACTIVATIONS[config.numerics.gelu]),
        "eps": (norm.eps, config.numerics.norm_eps),
        "norm": ("RmsNorm" in type(norm).__name__, config.norm.kind == "rms"),
        "norms after the branches": (
            kind in ("ResPostBlock", "ResPostRelPosBlock", "EvaBlockPostNorm"),
            config.norm.place == "res-post",
        ),
        "pool": (POOLS[model.global_pool], config.pool),
        "prefix tokens": (model.num_prefix_tokens, config.prefix_tokens),
    }
    if type(model).__name__ == "VisionTransformer":
        found["prefix in the pool"] = (model.pool_include_prefix and model.global_pool != "token", config.pooling.prefix)
    if config.position.grid is None:
        found["grid"] = (tuple(model.patch_embed.grid_size), config.grid)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_every_named_architecture_is_read_as_timm_builds_it_or_refused(timm: ModuleType, module: str) -> None:
    outcomes: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {}
    reasons: dict[str, str | None] = {}
    for name in timm.list_models(module=module):
        with shapes_only():
            model = timm.create_model(name)
        raw = folder_of(model, name)
        try:
            readings = [layout.read(raw, Hints()) for layout in FORMATS.values() if layout.matches(raw)]
        except CheckpointError:
            readings = []
            reasons[name] = need_of(name)
        outcomes["read" if readings else "refused"] += 1
        for reading in readings:
            seen = compared(model, reading.config) | {"classes": (model.num_classes, reading.config.num_classes)}
            named = architecture_config(name)
            if isinstance(named, ViTConfig):
                seen["config"] = (replace(named, num_classes=model.num_classes), reading.config)
            if found := [f"{what}: {theirs} and {ours}" for what, (theirs, ours) in seen.items() if theirs != ours]:
                wrong[name] = found
    assert not wrong
    assert [name for name, reason in reasons.items() if reason is None and module in VITS] == []
    assert outcomes["read"] >= MODULES[module], outcomes
