"""Polyak averaging: a moving average of the weights, kept in float32 beside the model.

BatchNorm's running statistics are averaged too, as the authors of EfficientNet do: they belong to the averaged weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from vitlab.config.train import Average
from vitlab.train.schedule import averaging_decay


class Averaged:
    """The running average of all that a model's state dict holds, by name; `update` after each step, `state` to read or save it."""

    def __init__(self, model: nn.Module, config: Average) -> None:
        self.config = config
        self.state: dict[str, Tensor] = {
            name: tensor.detach().to(torch.float32, copy=True) for name, tensor in model.state_dict().items()
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved average."""
        for name, average in self.state.items():
            saved = state[name].to(average.device)
            if isinstance(average, DTensor):  # each rank takes its rows of what all have read
                saved = distribute_tensor(saved, average.device_mesh, average.placements, src_data_rank=None)
            average.copy_(saved)

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move the average towards the weights after update number `step`, counted from 0."""
        weight = 1 - averaging_decay(step, self.config)
        now = model.state_dict()
        for in_parts in (True, False):  # torch moves tensors of one kind together
            names = [name for name, average in self.state.items() if isinstance(average, DTensor) == in_parts]
            if names:
                current: list[Tensor] = [now[name].detach().to(torch.float32) for name in names]
                torch._foreach_lerp_([self.state[name] for name in names], current, weight)
