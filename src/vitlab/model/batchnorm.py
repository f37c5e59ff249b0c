"""BatchNorm whose running statistics are part of the state dict, and nothing else is: no counter of batches, which nobody reads.

Axes: B batch, C channels, H W cells of a map.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STATISTICS = (".running_mean", ".running_var")  # how the names end of what is in a state dict and no parameter


class BatchNorm(nn.Module):
    """Channels normalised by the batch's mean and variance in training, by the running ones in evaluation and where it is frozen.

    A training pass moves `running_mean` and `running_var` by `momentum` towards the batch's (the variance's unbiased estimate, as
    torch does it). They are buffers: saved, averaged and restored with the weights.
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
        self.tracks = True  # False: a training pass leaves the running statistics alone

    def forward(self, x_BCHW: Tensor) -> Tensor:
        learns = self.training and self.weight.requires_grad
        mean_C, variance_C = self.running_mean, self.running_var
        if learns and not self.tracks:
            mean_C, variance_C = mean_C.clone(), variance_C.clone()  # these are moved, and forgotten
        return F.batch_norm(x_BCHW, mean_C, variance_C, self.weight, self.bias, learns, self.momentum, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}, momentum={self.momentum}"


def once(module: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts for a pass and for the same pass computed again: the second must not count as another batch."""
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
