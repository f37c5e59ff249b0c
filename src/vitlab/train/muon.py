"""Muon (Jordan et al. 2024): momentum whose matrix is made orthogonal before it is applied.

torch has one that orthogonalises in bfloat16 and takes matrices alone. A processor without the instructions for bfloat16 slows down
several times by it, and convolutions gain as much as dense layers do: so this one computes in float32 there, and takes kernels.
O outputs, I all that one output sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

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
