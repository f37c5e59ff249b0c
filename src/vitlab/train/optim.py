"""From a model and its config to torch optimisers: who is decayed, who learns more slowly, who does not learn at all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from vitlab.config.train import Optimizer, TrainConfig
from vitlab.errors import ConfigError

_INSIDE = "vit."  # where a module for training alone holds the model
_BLOCK = re.compile(r"encoder\.blocks\.(\d+)\.")
_STAGE = re.compile(r"stages\.(\d+)\.(\d+)\.")
_HEADS = ("head.", "distill_head.", "representation.", "pool.", "pool_norm.", "encoder.norm.", "norm.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one parameter is treated: its share of the learning rate, whether it is decayed, and by which optimiser."""

    scale: float
    decay: bool
    muon: bool


def freeze(model: nn.Module, config: TrainConfig) -> tuple[str, ...]:
    """Let only the parts of `config.trainable` learn; the names of those that do."""
    layers = layer_count(model)
    for name, parameter in model.named_parameters():
        deep = layer_of(name, layers)
        if config.trainable == "head":
            learns = name.removeprefix(_INSIDE).startswith(("head.", "distill_head."))
        elif config.trainable == "last-blocks":
            learns = deep > layers - config.blocks
        else:
            learns = True
        parameter.requires_grad_(learns)
    names = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    if not names:
        raise ConfigError(f"trainable={config.trainable!r} leaves nothing to learn in this model")
    return names


def optimizers(model: nn.Module, config: Optimizer) -> list[torch.optim.Optimizer]:
    """The optimisers of the parameters that learn: one, or two for Muon. Each group carries its share of the rate as `scale`."""
    layers = layer_count(model)
    groups: dict[Rule, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rule = rule_of(name, parameter, layers, config)
            groups.setdefault(rule, []).append(parameter)
    plain = [_group(rule, tensors, config) for rule, tensors in groups.items() if not rule.muon]
    matrices = [_group(rule, tensors, config) for rule, tensors in groups.items() if rule.muon]
    made: list[torch.optim.Optimizer] = []
    fused = not any(isinstance(parameter, DTensor) for parameter in model.parameters())  # torch has no fused SGD of parts
    if plain and config.kind == "sgd":
        made.append(torch.optim.SGD(plain, lr=config.lr, momentum=config.momentum, fused=fused))
    elif plain:
        rate = config.adam_lr if config.kind == "muon" else config.lr
        made.append(torch.optim.AdamW(plain, lr=rate, betas=config.betas, eps=config.eps, fused=True))
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay))
    return made


def set_rates(made: Iterable[torch.optim.Optimizer], rate: float, config: Optimizer) -> None:
    """Give every group its share of this step's rate, `rate` being that of `config.lr`'s schedule."""
    for optimizer in made:
        peak = config.adam_lr if config.kind == "muon" and isinstance(optimizer, torch.optim.AdamW) else config.lr
        for group in optimizer.param_groups:
            group["lr"] = rate * (peak / config.lr) * group["scale"]


def rule_of(name: str, parameter: Tensor, layers: int, config: Optimizer) -> Rule:
    """What the optimiser does with a parameter: matrices and kernels are decayed, as in the authors' code; nothing else is."""
    decay = parameter.ndim >= 2 and name.endswith("weight")
    muon = config.kind == "muon" and parameter.ndim == 2 and _BLOCK.search(name) is not None
    return Rule(scale=config.layer_decay ** (layers + 1 - layer_of(name, layers)), decay=decay, muon=muon)


def layer_count(model: nn.Module) -> int:
    """Layers between the embedding and the head."""
    found = [_depth(name) for name, _ in model.named_parameters()]
    return 1 + max((depth for depth in found if depth is not None), default=-1)


def layer_of(name: str, layers: int) -> int:
    """0 for the embedding, 1 to `layers` for the blocks, `layers` + 1 for the head and what is after the blocks."""
    depth = _depth(name)
    if depth is not None:
        return depth + 1
    return layers + 1 if name.removeprefix(_INSIDE).startswith(_HEADS) else 0


def _depth(name: str) -> int | None:
    if block := _BLOCK.match(name.removeprefix(_INSIDE)):
        return int(block[1])
    stage = _STAGE.match(name)  # a ResNet's layers are its stages
    return None if stage is None else int(stage[1])


def _group(rule: Rule, tensors: list[Tensor], config: Optimizer) -> dict[str, object]:
    return {"params": tensors, "weight_decay": config.weight_decay if rule.decay else 0.0, "scale": rule.scale}


def optimizer_state(model: nn.Module, made: Iterable[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The optimisers' tensors as `parameter/slot`, whole where ranks hold parts of them."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    found = dict[str, Tensor]()
    for optimizer in made:
        for parameter, slots in optimizer.state.items():
            for slot, value in slots.items():
                if isinstance(value, Tensor):
                    found[f"{names[parameter]}/{slot}"] = value.full_tensor() if isinstance(value, DTensor) else value
    return found


def restore_optimizer(model: nn.Module, made: Iterable[torch.optim.Optimizer], state: dict[str, Tensor]) -> None:
    """Put back what `optimizer_state` gave; ConfigError names what does not belong to this model."""
    slots = dict[str, dict[str, Tensor]]()
    for key, value in state.items():
        name, _, slot = key.rpartition("/")
        slots.setdefault(name, {})[slot] = value
    parameters = dict(model.named_parameters())
    if strangers := sorted(slots.keys() - parameters.keys()):
        raise ConfigError(f"the saved optimiser knows parameters that the model does not have: {', '.join(strangers[:5])}")
    for optimizer in made:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = next(name for name, own in parameters.items() if own is parameter)
                for slot, value in slots.get(name, {}).items():
                    placed = value.to(parameter.device)
                    if isinstance(parameter, DTensor) and placed.shape == parameter.shape:
                        placed = distribute_tensor(placed, parameter.device_mesh, parameter.placements)
                    optimizer.state[parameter][slot] = placed
