"""Optimizers and learning rates: which parameters train, by which optimizer, with which learning rate and weight decay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from vitlab.config.train import Average, Optimizer, Schedule, TrainConfig
from vitlab.errors import ConfigError
from vitlab.models.device import has_fast_bfloat16
from vitlab.models.families import is_hidden, layer_ids
from vitlab.models.model import Model
from vitlab.training.lora import is_factor

_INSIDE = ("vit", "segmenter")  # where the model itself is inside a module that only training needs

_ROUNDS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315  # Jordan's quintic: steepest at 0, and within about 0.7 to 1.2 at its end
_TINY = 1e-7
_LARGE = 96  # rows and columns from which a CPU orthogonalises faster in bfloat16, if it has instructions for it


def learning_rate(step: float, *, peak: float, steps: int, schedule: Schedule) -> float:
    """The learning rate of step number `step`, counted from 0: a linear warm-up to `peak`, then the fall to `schedule.end`.

    A pure function, so resuming needs no scheduler state. Of a warm-up of w steps, the first has peak / w and the last peak.
    """
    if step < schedule.warmup:
        return peak * (step + 1) / schedule.warmup
    progress = (step - schedule.warmup) / max(steps - schedule.warmup, 1)
    match schedule.kind:
        case "constant":
            return peak
        case "linear":
            return schedule.end + (peak - schedule.end) * (1 - progress)
        case "cosine":
            return schedule.end + (peak - schedule.end) * (1 + math.cos(math.pi * progress)) / 2


def averaging_decay(step: int, average: Average) -> float:
    """The decay of the moving average of the weights after step number `step`, counted from 0."""
    return min(average.decay, (2 + step) / (11 + step)) if average.warmup else average.decay


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one parameter is updated: its factor of the learning rate, whether weight decay applies, and by which optimizer.

    `muon` is the number of matrices stacked in the parameter, 0 if AdamW or SGD updates it.
    """

    scale: float
    decay: bool
    muon: int


def freeze(model: nn.Module, config: TrainConfig) -> tuple[str, ...]:
    """Leave only the parameters of `config.trainable` trainable, or with LoRA its factors and the head; returns their names."""
    layer_of, layers = parameter_layers(model)
    for name, parameter in model.named_parameters():
        of_head = _own_name(name).startswith(("head.", "distill_head."))
        if config.lora is not None:
            trains = of_head or is_factor(name)
        elif config.trainable == "head":
            trains = of_head
        elif config.trainable == "last-blocks":
            trains = layer_of[name] > layers - config.blocks
        else:
            trains = True
        parameter.requires_grad_(trains)
    names = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    if not names:
        raise ConfigError(f"trainable={config.trainable!r} leaves no trainable parameter in this model")
    return names


def create_optimizers(model: nn.Module, config: Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers of the trainable parameters: one, or two for Muon. Each group has its learning-rate factor as `scale`."""
    layer_of, layers = parameter_layers(model)
    family = _core(model).config
    groups: dict[Rule, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            hidden = config.kind == "muon" and is_hidden(family, _own_name(name))
            rule = _rule(name, parameter, layers + 1 - layer_of[name], config, hidden=hidden)
            groups.setdefault(rule, []).append(parameter)
    plain = [_group(rule, tensors, config) for rule, tensors in groups.items() if not rule.muon]
    matrices = [_group(rule, tensors, config) for rule, tensors in groups.items() if rule.muon]
    optimizers: list[torch.optim.Optimizer] = []
    fused = not any(isinstance(parameter, DTensor) for parameter in model.parameters())  # torch's fused SGD takes no DTensor
    if plain and config.kind == "sgd":
        optimizers.append(torch.optim.SGD(plain, lr=config.lr, momentum=config.momentum, fused=fused))
    elif plain:
        lr = config.adam_lr if config.kind == "muon" else config.lr
        optimizers.append(torch.optim.AdamW(plain, lr=lr, betas=config.betas, eps=config.eps, fused=True))
    if matrices:
        optimizers.append(Muon(matrices, lr=config.lr, momentum=config.momentum))
    return optimizers


def _rule(name: str, parameter: Tensor, below_head: int, config: Optimizer, *, hidden: bool) -> Rule:
    """The rule of a parameter `below_head` layers below the head. Weight decay applies to matrices and kernels, as in the
    authors' code, and to nothing else. Muon updates the matrices and kernels of `hidden` layers."""
    decay = parameter.ndim >= 2 and name.endswith("weight")
    muon = (3 if name.endswith("attention.qkv.weight") else 1) if hidden and decay else 0
    return Rule(scale=config.layer_decay**below_head, decay=decay, muon=muon)


def _group(rule: Rule, tensors: list[Tensor], config: Optimizer) -> dict[str, object]:
    parts = {"parts": rule.muon} if rule.muon else {}
    return {"params": tensors, "weight_decay": config.weight_decay if rule.decay else 0.0, "scale": rule.scale} | parts


def parameter_layers(model: nn.Module) -> tuple[dict[str, int], int]:
    """The layer of each parameter, as `layer_ids` counts, and the number of layers between the embedding and the head."""
    names = {name: _own_name(name) for name, _ in model.named_parameters()}
    layers, count = layer_ids(_core(model).config, names.values())
    return {name: layers[inner] for name, inner in names.items()}, count


def _core(model: nn.Module) -> Model:
    """The model itself, or the one inside a module that only training needs."""
    core = model if isinstance(model, Model) else next(part for name, part in model.named_children() if name in _INSIDE)
    assert isinstance(core, Model)
    return core


def _own_name(name: str) -> str:
    """The name of a parameter in the model itself."""
    first, _, rest = name.partition(".")
    return rest if first in _INSIDE else name


def set_learning_rates(optimizers: Iterable[torch.optim.Optimizer], lr: float, config: Optimizer) -> None:
    """Set this step's learning rate of every group; `lr` belongs to the schedule of `config.lr`."""
    for optimizer in optimizers:
        peak = config.adam_lr if config.kind == "muon" and isinstance(optimizer, torch.optim.AdamW) else config.lr
        for group in optimizer.param_groups:
            group["lr"] = lr * (peak / config.lr) * group["scale"]


def optimizer_state(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The optimizers' tensors, named `parameter/slot`; under FSDP this rank's rows."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    found = dict[str, Tensor]()
    for optimizer in optimizers:
        for parameter, slots in optimizer.state.items():
            for slot, value in slots.items():
                if isinstance(value, Tensor):
                    found[f"{names[parameter]}/{slot}"] = value
    return found


def restore_optimizers(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer], state: Mapping[str, Tensor]) -> None:
    """Restore what `optimizer_state` returned, whole tensors; ConfigError names what does not belong to this model."""
    slots = dict[str, dict[str, str]]()
    for key in state:
        name, _, slot = key.rpartition("/")
        slots.setdefault(name, {})[slot] = key
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    if unknown := sorted(slots.keys() - set(names.values())):
        raise ConfigError(f"the saved optimizer has parameters that the model does not have: {', '.join(unknown[:5])}")
    for optimizer in optimizers:
        known = _SLOTS[type(optimizer)]
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                saved = slots.get(names[parameter], {})
                if odd := sorted(saved.keys() - known):
                    raise ConfigError(
                        f"the checkpoint is of another optimizer: {type(optimizer).__name__} has no {', '.join(odd)}",
                        hint="start a new run from this run's weights: `start`",
                    )
                for slot, key in saved.items():
                    value = state[key].to(parameter.device)  # one at a time: `state` may read it from disk only now
                    if isinstance(parameter, DTensor) and value.shape == parameter.shape:
                        value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
                    optimizer.state[parameter][slot] = value


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024): Nesterov momentum whose matrix is orthogonalised before it is applied.

    A kernel (O, ...) counts as a matrix of O rows. `parts` of a group is the number of matrices of equal height stacked in each
    of its tensors: 3 if queries, keys and values are one tensor. An update with learning rate 1 has a root mean square of 0.2,
    about AdamW's, so learning rate and weight decay compare with AdamW's (Liu et al. 2025, "Muon is scalable for LLM training").

    torch's own Muon takes matrices only and orthogonalises in bfloat16, which a CPU without bfloat16 instructions computes
    several times slower. Convolutions gain as much as dense layers. So this one takes kernels, and uses float32 on such a CPU, and
    on any for small matrices, which bfloat16 makes no faster.
    Axes: O outputs, I all inputs of one output.
    """

    def __init__(self, groups: Iterable[dict[str, object]], *, lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "parts": 1})
        self.half_on_cpu = has_fast_bfloat16()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                slots = self.state[parameter]
                if "momentum_buffer" not in slots:
                    slots["momentum_buffer"] = torch.zeros_like(parameter)
                mean = slots["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
                nesterov_OI = parameter.grad.lerp(mean, momentum).flatten(1)
                updates = [_scaled(orthogonal(part_OI, self._dtype(part_OI))) for part_OI in nesterov_OI.chunk(group["parts"])]
                update_OI = updates[0] if len(updates) == 1 else torch.cat(updates)
                parameter.mul_(1 - lr * group["weight_decay"])
                parameter.add_(update_OI.view_as(parameter), alpha=-lr)

    def _dtype(self, matrix_OI: Tensor) -> torch.dtype:
        on_cpu = self.half_on_cpu and min(matrix_OI.shape) >= _LARGE
        return torch.bfloat16 if matrix_OI.device.type == "cuda" or on_cpu else torch.float32


def orthogonal(matrix_OI: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A matrix with the same singular vectors and singular values near 1, by five Newton-Schulz iterations in `dtype`."""
    tall = matrix_OI.shape[0] > matrix_OI.shape[1]
    x: Tensor = matrix_OI.mT if tall else matrix_OI
    x = (x / (torch.linalg.vector_norm(x) + _TINY)).to(dtype)  # no singular value above 1
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * (gram @ gram)) @ x
    return (x.mT if tall else x).to(matrix_OI.dtype)


def _scaled(matrix_OI: Tensor) -> Tensor:
    return matrix_OI * (0.2 * math.sqrt(max(matrix_OI.shape)))


_SLOTS: dict[type[torch.optim.Optimizer], frozenset[str]] = {  # the tensors each optimizer keeps per parameter
    torch.optim.AdamW: frozenset({"step", "exp_avg", "exp_avg_sq"}),
    torch.optim.SGD: frozenset({"momentum_buffer"}),
    Muon: frozenset({"momentum_buffer"}),
}
