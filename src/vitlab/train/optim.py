"""From a model and its config to torch optimisers: who is decayed, who learns more slowly, who does not learn at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from vitlab.config.train import Optimizer, TrainConfig
from vitlab.errors import ConfigError
from vitlab.model.depth import layers_by_name
from vitlab.train.muon import Muon

_SLOTS: dict[type[torch.optim.Optimizer], frozenset[str]] = {  # what each remembers of a parameter
    torch.optim.AdamW: frozenset({"step", "exp_avg", "exp_avg_sq"}),
    torch.optim.SGD: frozenset({"momentum_buffer"}),
    Muon: frozenset({"momentum_buffer"}),
}
_INSIDE = "vit."  # where a module for training alone holds the model
_HIDDEN = re.compile(
    r"encoder\.blocks\.\d+\.|early\.stages\.(?!0\.0\.)|^stages\.\d+\.blocks\.\d+\.(?:attention|mlp)\."
)  # Muon is for what is neither input nor output


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one parameter is treated: its share of the learning rate, whether it is decayed, and by which optimiser.

    `muon` counts the matrices that lie on one another in it, 0 where AdamW or SGD has it.
    """

    scale: float
    decay: bool
    muon: int


def freeze(model: nn.Module, config: TrainConfig) -> tuple[str, ...]:
    """Let only the parts of `config.trainable` learn; the names of those that do."""
    found, layers = layers_of(model)
    for name, parameter in model.named_parameters():
        deep = found[name]
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
    found, layers = layers_of(model)
    groups: dict[Rule, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rule = _rule(name, parameter, layers + 1 - found[name], config)
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
        made.append(Muon(matrices, lr=config.lr, momentum=config.momentum))
    return made


def set_rates(made: Iterable[torch.optim.Optimizer], rate: float, config: Optimizer) -> None:
    """Give every group its share of this step's rate, `rate` being that of `config.lr`'s schedule."""
    for optimizer in made:
        peak = config.adam_lr if config.kind == "muon" and isinstance(optimizer, torch.optim.AdamW) else config.lr
        for group in optimizer.param_groups:
            group["lr"] = rate * (peak / config.lr) * group["scale"]


def _rule(name: str, parameter: Tensor, below: int, config: Optimizer) -> Rule:
    """What the optimiser does with a parameter so many layers below the head: matrices and kernels are decayed, as in the
    authors' code; nothing else is."""
    decay = parameter.ndim >= 2 and name.endswith("weight")
    hidden = decay and config.kind == "muon" and _HIDDEN.search(name) is not None
    muon = (3 if name.endswith("attention.qkv.weight") else 1) if hidden else 0
    return Rule(scale=config.layer_decay**below, decay=decay, muon=muon)


def layers_of(model: nn.Module) -> tuple[dict[str, int], int]:
    """The layer of each parameter, as `layers_by_name` counts them, and how many there are between the embedding and the head."""
    names = {name: name.removeprefix(_INSIDE) for name, _ in model.named_parameters()}
    layers, count = layers_by_name(names.values())
    return {name: layers[inner] for name, inner in names.items()}, count


def _group(rule: Rule, tensors: list[Tensor], config: Optimizer) -> dict[str, object]:
    parts = {"parts": rule.muon} if rule.muon else {}
    return {"params": tensors, "weight_decay": config.weight_decay if rule.decay else 0.0, "scale": rule.scale} | parts


def optimizer_state(model: nn.Module, made: Iterable[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The optimisers' tensors as `parameter/slot`, a rank's own part where ranks hold parts of them."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    found = dict[str, Tensor]()
    for optimizer in made:
        for parameter, slots in optimizer.state.items():
            for slot, value in slots.items():
                if isinstance(value, Tensor):
                    found[f"{names[parameter]}/{slot}"] = value
    return found


def restore_optimizer(model: nn.Module, made: Iterable[torch.optim.Optimizer], state: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_state` gave, whole; ConfigError names what does not belong to this model."""
    slots = dict[str, dict[str, str]]()
    for key in state:
        name, _, slot = key.rpartition("/")
        slots.setdefault(name, {})[slot] = key
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    if strangers := sorted(slots.keys() - set(names.values())):
        raise ConfigError(f"the saved optimiser knows parameters that the model does not have: {', '.join(strangers[:5])}")
    for optimizer in made:
        known = _SLOTS[type(optimizer)]
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if odd := sorted(slots.get(names[parameter], {}).keys() - known):
                    raise ConfigError(
                        f"the saved optimiser is another one: {type(optimizer).__name__} has no use for {', '.join(odd)}",
                        hint="begin a new run with the weights of this one: --from",
                    )
                for slot, key in slots.get(names[parameter], {}).items():
                    placed = state[key].to(parameter.device)  # one at a time: `state` may read it only now
                    if isinstance(parameter, DTensor) and placed.shape == parameter.shape:
                        placed = distribute_tensor(placed, parameter.device_mesh, parameter.placements, src_data_rank=None)
                    optimizer.state[parameter][slot] = placed
