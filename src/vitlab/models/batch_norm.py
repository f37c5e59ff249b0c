"""BatchNorm whose running statistics are saved, averaged and restored with the weights.

Axes: B batch, C channels, H W cells of a map.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.model import zero

STATISTICS = (".running_mean", ".running_var")  # how state-dict keys end that are no parameters


class BatchNorm(nn.Module):
    """Normalise channels by the batch's mean and variance in training, by the running ones in evaluation or if it is frozen.

    A training pass moves `running_mean` and `running_var` by `momentum` towards the batch's (the unbiased estimate of the variance,
    as in torch). They are buffers: saved, averaged and restored with the weights.
    Not nn.BatchNorm2d: that adds a counter to the state dict, ignores `requires_grad=False`, and counts a recomputed batch twice.
    """

    def __init__(self, channels: int, *, eps: float, momentum: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.register_buffer("running_mean", torch.empty(channels))
        self.register_buffer("running_var", torch.empty(channels))
        self.eps = eps
        self.momentum = momentum
        self.tracks = True  # False: a training pass does not change the running statistics

    def forward(self, x_BCHW: Tensor) -> Tensor:
        learns = self.training and self.weight.requires_grad
        mean_C, variance_C = self.running_mean, self.running_var
        if learns and not self.tracks:
            mean_C, variance_C = mean_C.clone(), variance_C.clone()  # batch_norm updates the copies
        return F.batch_norm(x_BCHW, mean_C, variance_C, self.weight, self.bias, learns, self.momentum, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}, momentum={self.momentum}"


def once(module: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts for a pass and for its recomputation, which must not count as another batch."""
    return nullcontext(), _untracked(module)


@contextmanager
def _untracked(module: nn.Module) -> Iterator[None]:
    norms = [norm for norm in module.modules() if isinstance(norm, BatchNorm)]
    for norm in norms:
        norm.tracks = False
    try:
        yield
    finally:
        for norm in norms:
            norm.tracks = True


def init_batch_norm(norm: BatchNorm) -> None:
    """One as scale and variance, zero as bias and mean."""
    norm.weight.fill_(1)
    norm.running_var.fill_(1)
    zero(norm.bias, norm.running_mean)
