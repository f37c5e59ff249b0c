"""Random initial values from a seed: the distributions that the families' `init_...` functions draw from."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Draw:
    """Random values from one seed, drawn on the CPU so that every device gets the same."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator("cpu").manual_seed(seed)

    def normal(self, parameter: Tensor, std: float) -> None:
        """Independent N(0, std) values."""
        parameter.copy_(_empty_like(parameter).normal_(0, std, generator=self.generator))

    def uniform(self, parameter: Tensor, bound: float) -> None:
        """Uniform within +-bound."""
        parameter.copy_(_empty_like(parameter).uniform_(-bound, bound, generator=self.generator))

    def xavier_uniform(self, matrix: Tensor) -> None:
        """Uniform within sqrt(6 / (inputs + outputs))."""
        self.uniform(matrix, math.sqrt(6 / (matrix.shape[0] + matrix.shape[1])))

    def lecun_normal(self, kernel: Tensor) -> None:
        """Normal of variance 1 / inputs, cut at two standard deviations and rescaled for the cut, as Flax does."""
        std = math.sqrt(1 / kernel[0].numel()) / 0.87962566103423978
        values = _empty_like(kernel)
        nn.init.trunc_normal_(values, 0, std, -2 * std, 2 * std, generator=self.generator)
        kernel.copy_(values)

    def trunc_normal(self, parameter: Tensor, std: float) -> None:
        """N(0, std) values cut at -2 and 2, as timm and the authors of Swin and ConvNeXt draw them."""
        values = _empty_like(parameter)
        nn.init.trunc_normal_(values, 0, std, -2, 2, generator=self.generator)
        parameter.copy_(values)

    def torch_default(self, weight: Tensor, bias: Tensor) -> None:
        """Uniform within 1 / sqrt(inputs): torch's default for dense layers and convolutions."""
        bound = 1 / math.sqrt(weight[0].numel())
        self.uniform(weight, bound)
        self.uniform(bias, bound)


def zero(*parameters: Tensor | None) -> None:
    """Set the parameters that exist to 0."""
    for parameter in parameters:
        if parameter is not None:
            parameter.zero_()


def init_norm(norm: nn.LayerNorm | nn.GroupNorm | nn.RMSNorm) -> None:
    """Scale 1, and bias 0 if there is one."""
    norm.weight.fill_(1)
    if not isinstance(norm, nn.RMSNorm):
        norm.bias.zero_()


def init_head(head: nn.Linear | None, bias: float) -> None:
    """A head begins at zero, so that the first step is the same for all; its bias is the config's."""
    if head is not None:
        head.weight.zero_()
        head.bias.fill_(bias)


def _empty_like(parameter: Tensor) -> Tensor:
    return torch.empty(parameter.shape, device="cpu")
