"""Random values from a seed, for initial weights."""

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
        parameter.copy_(torch.empty(parameter.shape).normal_(0, std, generator=self.generator))

    def xavier_uniform(self, matrix: Tensor) -> None:
        """Uniform within sqrt(6 / (inputs + outputs))."""
        bound = math.sqrt(6 / (matrix.shape[0] + matrix.shape[1]))
        matrix.copy_(torch.empty(matrix.shape).uniform_(-bound, bound, generator=self.generator))

    def lecun_normal(self, kernel: Tensor) -> None:
        """Normal of variance 1 / inputs, cut at two standard deviations and rescaled for the cut, as Flax does."""
        std = math.sqrt(1 / kernel[0].numel()) / 0.87962566103423978
        values = torch.empty(kernel.shape)
        nn.init.trunc_normal_(values, 0, std, -2 * std, 2 * std, generator=self.generator)
        kernel.copy_(values)

    def trunc_normal(self, parameter: Tensor, std: float) -> None:
        """N(0, std) values cut at -2 and 2, as timm and the authors of Swin and ConvNeXt draw them."""
        values = torch.empty(parameter.shape)
        nn.init.trunc_normal_(values, 0, std, -2, 2, generator=self.generator)
        parameter.copy_(values)

    def uniform(self, parameter: Tensor, bound: float) -> None:
        """Uniform within +-bound."""
        parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=self.generator))
