"""From a model and its config to torch optimisers: who is decayed, who learns more slowly, who does not learn at all."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from vitlab.config.train import Average, Optimizer, Schedule, TrainConfig
from vitlab.errors import ConfigError
from vitlab.models.families import layers_by_name

# Muon (Jordan et al. 2024): momentum whose matrix is made orthogonal before it is applied.
#
# torch has one that orthogonalises in bfloat16 and takes matrices alone. A processor without the instructions for bfloat16 slows down
# several times by it, and convolutions gain as much as dense layers do: so this one computes in float32 there, and takes kernels.
# O outputs, I all that one output sees.

_ROUNDS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315  # Jordan's quintic: steepest at 0, and within about 0.7 to 1.2 at its end
_TINY = 1e-7


class Muon(torch.optim.Optimizer):
    """Steps of one size in every direction of a matrix, after Nesterov momentum.

    A kernel (O, ...) counts as a matrix of O rows. `parts` in a group says how many matrices of equal height lie on one another
    in each of its tensors: 3 where queries, keys and values are one. A step of rate 1 has the root mean square 0.2, which is
    about AdamW's, so rates and weight decay can be compared with those (Liu et al. 2025, "Muon is scalable for LLM training").
    """

    def __init__(self, groups: Iterable[dict[str, object]], *, lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "parts": 1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                slots = self.state[parameter]
                if "momentum_buffer" not in slots:
                    slots["momentum_buffer"] = torch.zeros_like(parameter)
                mean = slots["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
                ahead_OI = parameter.grad.lerp(mean, momentum).flatten(1)
                turned = [_sized(orthogonal(part_OI)) for part_OI in ahead_OI.chunk(group["parts"])]
                update_OI = turned[0] if len(turned) == 1 else torch.cat(turned)
                parameter.mul_(1 - rate * group["weight_decay"])
                parameter.add_(update_OI.view_as(parameter), alpha=-rate)


def orthogonal(matrix_OI: Tensor) -> Tensor:
    """A matrix with the same singular vectors and singular values near 1, by five rounds of a Newton-Schulz iteration."""
    fast = torch.bfloat16 if matrix_OI.device.type == "cuda" else torch.float32
    tall = matrix_OI.shape[0] > matrix_OI.shape[1]
    x: Tensor = (matrix_OI.mT if tall else matrix_OI).to(fast)
    x = x / (torch.linalg.vector_norm(x) + _TINY)  # no singular value above 1
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * (gram @ gram)) @ x
    return (x.mT if tall else x).to(matrix_OI.dtype)


def _sized(matrix_OI: Tensor) -> Tensor:
    return matrix_OI * (0.2 * math.sqrt(max(matrix_OI.shape)))


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


# The learning rate at each step: a pure function, so that nothing needs to be saved to go on.


def learning_rate(step: int, *, peak: float, steps: int, schedule: Schedule) -> float:
    """The rate of update number `step`, counted from 0: a linear rise from 0 over the warm-up, then the fall to `schedule.end`.

    The first update of a warm-up of w steps has peak / w, its last peak; the update before the end has nearly `end`.
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
    """The factor of the moving average after update number `step`, counted from 0."""
    return min(average.decay, (2 + step) / (11 + step)) if average.warmup else average.decay
