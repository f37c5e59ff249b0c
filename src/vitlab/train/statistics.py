"""BatchNorm's running statistics in training: they follow only updates that are applied, and are the same on every rank.

A training pass moves them as a side effect. A pass that memory cut short, or an update that was not finite and so not applied, must
leave no trace; and ranks, each of which normalises by its own part of the batch, share what they saw by taking the mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitlab.model.batchnorm import BatchNorm
from vitlab.train.distributed import World


class Statistics:
    """The running statistics of a model, none for most; `keep` before an update, then `restore` or `share`."""

    def __init__(self, model: nn.Module) -> None:
        self.norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
        self.kept: Sequence[Tensor] = []

    @property
    def buffers(self) -> list[Tensor]:
        """Means and variances as they are now."""
        return [buffer for norm in self.norms for buffer in (norm.running_mean, norm.running_var)]

    @torch.no_grad()
    def keep(self) -> None:
        """Remember them as they are."""
        self.kept = [buffer.clone() for buffer in self.buffers]

    @torch.no_grad()
    def restore(self) -> None:
        """Put back what `keep` remembered."""
        for buffer, kept in zip(self.buffers, self.kept, strict=True):
            buffer.copy_(kept)

    @torch.no_grad()
    def share(self, world: World) -> None:
        """Give every rank the mean of all ranks', in one exchange."""
        if not self.norms or world.ranks == 1:
            return
        buffers = self.buffers
        together = world.sum(torch.cat(buffers)) / world.ranks
        for buffer, part in zip(buffers, torch.split(together, [len(buffer) for buffer in buffers]), strict=True):
            buffer.copy_(part)
