"""Every architecture that timm has under a name: read as timm builds it, or refused; never read as something else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from vitlab.checkpoint.files.raw import RawFile
from vitlab.checkpoint.formats import FORMATS, Told
from vitlab.config import ResNetConfig, ViTConfig
from vitlab.errors import CheckpointError

pytestmark = pytest.mark.slow

MODULES = ("vision_transformer", "deit", "vision_transformer_hybrid", "resnetv2")
POOLS = {"token": "token", "avg": "mean", "map": "map"}


def folder_of(model: Any, name: str) -> RawFile:
    """What a folder of that model on the Hub holds: its tensors, here without values, and timm's config.json."""
    fed = {
        key: list(value) if isinstance(value, tuple) else value for key, value in model.pretrained_cfg.items() if value is not None
    }
    pool = {"global_pool": model.global_pool} if isinstance(getattr(model, "global_pool", None), str) else {}
    beside = {"architecture": name, "num_classes": model.num_classes, **pool, "pretrained_cfg": fed}
    tensors = {key: tensor.to("meta") for key, tensor in model.state_dict().items()}
    return RawFile(path=Path(name), tensors=tensors, metadata={}, sidecar=beside, preprocessor=None)


def differences(model: Any, config: ViTConfig | ResNetConfig) -> list[str]:
    """In what the config read describes another model than timm built."""
    if isinstance(config, ResNetConfig):
        seen: dict[str, tuple[object, object]] = {
            "norm": (type(model.norm).__name__, "GroupNormAct"),
            "standardise_eps": (model.stem.conv.eps, config.standardise_eps),
            "classes": (model.num_classes, config.num_classes),
        }
        return [f"{what}: {theirs} and {ours}" for what, (theirs, ours) in seen.items() if theirs != ours]
    block = model.blocks[0]
    activation = type(block.mlp.act).__name__
    seen = {
        "heads": (block.attn.num_heads, config.heads),
        "gelu": (activation, "GELU" if config.numerics.gelu == "exact" else "GELUTanh"),
        "eps": (block.norm1.eps, config.numerics.norm_eps),
        "pool": (POOLS[model.global_pool], config.pool),
        "prefix in the mean": (model.pool_include_prefix, False),
        "grid": (tuple(model.patch_embed.grid_size), config.grid),
        "prefix tokens": (model.num_prefix_tokens, config.prefix_tokens),
        "classes": (model.num_classes, config.num_classes),
    }
    return [f"{what}: {theirs} and {ours}" for what, (theirs, ours) in seen.items() if theirs != ours]


@pytest.mark.parametrize("module", MODULES)
def test_every_named_architecture_is_read_as_timm_builds_it_or_refused(timm: ModuleType, module: str) -> None:
    outcomes: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {}
    for name in timm.list_models(module=module):
        with torch.device("meta"):
            model = timm.create_model(name)
        raw = folder_of(model, name)
        layouts = [layout for layout in FORMATS.values() if layout.matches(raw)]
        try:
            readings = [layout.read(raw, Told()) for layout in layouts]
        except CheckpointError:
            readings = []
        outcomes["read" if readings else "refused"] += 1
        config = readings[0].config if readings else None
        if isinstance(config, ViTConfig | ResNetConfig):
            if found := differences(model, config):
                wrong[name] = found
        elif config is not None:
            wrong[name] = [f"read as {config.kind}"]
    assert not wrong
    assert outcomes["read"] > {"vision_transformer": 70, "deit": 10, "vision_transformer_hybrid": 5, "resnetv2": 5}[module]
