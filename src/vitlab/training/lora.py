"""LoRA, low-rank adaptation (Hu et al. 2021): frozen weights W, each with a trained update of low rank, W + alpha / rank * B A.

The update is a parametrization of the layer's weight, so the model's own code runs unchanged and reads the merged weight. B begins
with zeros: before the first step the model is the checkpoint. A model that is saved is merged: an ordinary model. What a resumed
run needs besides, the frozen W and the factors, is in the checkpoint's extra weights.

Axes: O outputs of a layer, I inputs, R rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitlab.config.model import ModelConfig
from vitlab.config.train import Lora
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError

_LAYER = re.compile(r"(?:.*\.)?blocks\.\d+\.(?:branches\.\d+\.)?(attention\.qkv|attention\.out|mlp\.up|mlp\.down)")
_INSIDE = "parametrizations."  # in the names of frozen weights and factors
_ORIGINAL = "parametrizations.weight.original"
_PREFIX, _AVERAGE = "lora.", "lora-average."  # of the names in a checkpoint's extra weights


class LowRank(nn.Module):
    """The update of some rows of a weight: row `first` and the following ones get scale * B A."""

    def __init__(self, weight_OI: Tensor, *, first: int, rows: int, lora: Lora, generator: torch.Generator) -> None:
        super().__init__()
        self.first, self.scale = first, lora.alpha / lora.rank
        down_RI = torch.randn(lora.rank, weight_OI.shape[1], generator=generator) / math.sqrt(weight_OI.shape[1])
        self.down_RI = nn.Parameter(down_RI.to(weight_OI))
        self.up_OR = nn.Parameter(torch.zeros(rows, lora.rank).to(weight_OI))

    def forward(self, weight_OI: Tensor) -> Tensor:
        update_OI = self.scale * (self.up_OR @ self.down_RI)
        after = len(weight_OI) - self.first - len(update_OI)
        return weight_OI + F.pad(update_OI, (0, 0, self.first, after))


def add_lora(model: nn.Module, lora: Lora, *, seed: int) -> None:
    """Give each target layer its update. The factors A depend on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    for layer, parts in _targets(model, lora):
        weight_OI = layer.weight.detach()
        for first, rows in parts:
            update = LowRank(weight_OI, first=first, rows=rows, lora=lora, generator=generator)
            parametrize.register_parametrization(layer, "weight", update)


def _targets(model: nn.Module, lora: Lora) -> Iterator[tuple[nn.Linear, list[tuple[int, int]]]]:
    """The layers that are adapted, and of each the parts: the first row, and the number of rows."""
    for name, layer in list(model.named_modules()):
        found = _LAYER.fullmatch(name)
        if found is None or not isinstance(layer, nn.Linear):
            continue
        if found[1] == "attention.qkv":
            queries = layer.in_features
            keys = (layer.out_features - queries) // 2
            rows = {"q": (0, queries), "k": (queries, keys), "v": (queries + keys, keys)}
            parts = [part for target, part in rows.items() if target in lora.targets or "qkv" in lora.targets]
        else:
            target = "proj" if found[1] == "attention.out" else "mlp"
            parts = [(0, layer.out_features)] if target in lora.targets else []
        if parts:
            yield layer, parts


def is_factor(name: str) -> bool:
    """Whether a parameter of this name is a factor A or B."""
    return _INSIDE in name and not name.endswith(_ORIGINAL)


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the ordinary model: each update is added to its weight. A model without LoRA has just its own."""
    merged = dict[str, Tensor]()
    for name, tensor in model.state_dict().items():
        if name.endswith(_ORIGINAL):
            layer = model.get_submodule(name.removesuffix(f".{_ORIGINAL}"))
            assert isinstance(layer.weight, Tensor)
            merged[name.replace(_ORIGINAL, "weight")] = layer.weight.detach()
        elif _INSIDE not in name:
            merged[name] = tensor
    return merged


def lora_state(model: nn.Module, average: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """What a resumed run needs beside the merged model: frozen weights and factors, and the `average` of what trains."""
    own = {f"{_PREFIX}{name}": tensor for name, tensor in model.state_dict().items() if _INSIDE in name}
    return own | ({f"{_AVERAGE}{name}": tensor for name, tensor in (average or {}).items()} if own else {})


@torch.no_grad()
def restore_lora(model: nn.Module, extra: Mapping[str, Tensor]) -> None:
    """Restore the frozen weights and the factors that `lora_state` returned."""
    wanted = {name: tensor for name, tensor in model.state_dict().items() if _INSIDE in name}
    saved = {name.removeprefix(_PREFIX): tensor for name, tensor in extra.items() if name.startswith(_PREFIX)}
    if {name: tensor.shape for name, tensor in saved.items()} != {name: tensor.shape for name, tensor in wanted.items()}:
        raise ConfigError(
            "the run's last checkpoint has no updates of this rank and these targets",
            hint="resume with the same `lora` and `lora_targets`, or start a new run from this run's weights: `start`",
        )
    for name, tensor in wanted.items():
        tensor.copy_(saved[name])


def averaged_factors(extra: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The average that `lora_state` returned."""
    return {name.removeprefix(_AVERAGE): tensor for name, tensor in extra.items() if name.startswith(_AVERAGE)}


def adapted_weights(model: nn.Module) -> int:
    """Numbers in the weights that have an update: each forward pass makes a merged copy of them."""
    return sum(parameter.numel() for name, parameter in model.named_parameters() if name.endswith(_ORIGINAL))


def spared_activations(config: ModelConfig, lora: Lora) -> int:
    """Numbers for one image that training does not keep, since the layers that they enter are frozen. 0 for other families."""
    if not isinstance(config, ViTConfig):
        return 0
    tokens = round(config.tokens * (1 - config.patch_dropout))
    mlp = 0 if "mlp" in lora.targets else config.width + config.mlp_width  # the norm's output and the GELU's
    qkv = 0 if {"q", "k", "v", "qkv"} & set(lora.targets) else config.width
    patches = config.grid[0] * config.grid[1] * config.channels * config.patch_size[0] * config.patch_size[1]
    return config.layers * tokens * (mlp + qkv) + (0 if config.stem or config.conv_stem else patches)
