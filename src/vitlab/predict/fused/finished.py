"""Models whose kernels are standardised at every call, with the finished kernels instead: BiT ResNets and the stems of hybrids.

B batch, C channels, H height, W width; in a kernel O outputs, I inputs.
"""

from __future__ import annotations

from copy import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from vitlab.model.standardised import StandardisedConv, convolved, standardise

M = TypeVar("M", bound=nn.Module)


class FinishedConv(nn.Module):
    """A standardised convolution with the kernel it has now, not computed again."""

    weight_OIHW: Tensor

    def __init__(self, conv: StandardisedConv) -> None:
        super().__init__()
        self.stride, self.padding = conv.stride, conv.padding
        with torch.no_grad():
            kernel_OIHW = standardise(conv.weight, form=conv.form, eps=conv.eps)
        self.register_buffer("weight_OIHW", kernel_OIHW, persistent=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return convolved(x_BCHW, self.weight_OIHW, stride=self.stride, padding=self.padding)


def finished(model: M) -> M:
    """The same model for inference with its kernels as they are now; bit for bit the same answers.

    All other parameters are the given model's own, which is not changed; what has nothing to standardise is given back itself.
    """
    twin = _twin(model)
    assert isinstance(twin, type(model))
    return twin


def _twin(module: nn.Module) -> nn.Module:
    if isinstance(module, StandardisedConv):
        return FinishedConv(module)
    children = {name: None if child is None else _twin(child) for name, child in module._modules.items()}
    if all(children[name] is child for name, child in module._modules.items()):
        return module
    twin = copy(module)
    twin._modules = children
    return twin
