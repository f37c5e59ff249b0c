"""What every architecture has: the methods of its model, its row, and the distributions of its initial values.

A family is a config (`config/x.py`) and a model (`models/x.py`, a `Model` and its row, `FAMILY`); `families.py` puts them together.
`tests/models/test_contract.py` checks what is written here for every family.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitlab.config.model import ModelConfig
from vitlab.errors import at_least
from vitlab.models.record import Record


class Model(nn.Module):
    """The base of every model, with the methods that users of timm expect under timm's names.

    `config` is what it was built from, `head` is None without classes, and with `recompute` (activation checkpointing) the
    backward pass computes activations again. `model(images_BCHW)` is `model.forward_head(model.forward_features(images_BCHW))` in
    eval mode, as in timm.
    """

    config: ModelConfig
    head: nn.Module | None
    recompute: bool

    @abstractmethod
    def forward(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """Logits (B, classes), or features if `num_classes` is 0; a segmenter's are (B, classes, H, W), and a grid detector
        gives boxes and logits (B, cells, 4 + classes)."""

    @abstractmethod
    def features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """What the head sees, (B, feature_width)."""

    @property
    def num_features(self) -> int:
        """Width of what the head sees."""
        return self.config.feature_width

    @property
    def num_classes(self) -> int:
        """Number of logits, 0 without a head."""
        return self.config.num_classes

    def forward_features(self, images_BCHW: Tensor) -> Tensor:
        """What `forward_head` takes: all tokens (B, N, D) of a ViT, the pooled vector (B, num_features) of another model."""
        return self.features(images_BCHW)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits (B, classes) from what `forward_features` gives; with `pre_logits` or without a head, what the head sees."""
        head = self.get_classifier()
        if head is None or pre_logits:
            return features
        logits_BC: Tensor = head(features)
        return logits_BC

    def get_classifier(self) -> nn.Module | None:
        """The head; None without classes."""
        return self._modules.get("head")

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the head by one of zeros for that many classes, 0 for none; `config` changes with it."""
        at_least("num_classes", num_classes, 0)
        model, like = cast(Any, self), next(self.parameters())
        model.head = _zeros(self.num_features, num_classes, like)
        if self._modules.get("distill_head") is not None:
            model.distill_head = _zeros(self.num_features, num_classes, like)
        model.config = replace(model.config, num_classes=num_classes)


def _zeros(width: int, classes: int, like: Tensor) -> nn.Linear | None:
    if not classes:
        return None
    head = nn.Linear(width, classes, device=like.device, dtype=like.dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
    return head


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The row of an architecture: its model class, and what building and training need to know of it.

    `initialise` gives every parameter its initial value. `refit` fits a state dict in place from one config to another, if weights
    depend on the image size, and returns notes. `layers` are patterns of the names of parameters inside a layer: the
    groups are the layer's numbers, which count up from the images to the head; a parameter that matches a shorter pattern, such as
    a stage's downsampling, belongs to the first layer of its stage. `hidden` are patterns of the names of weights between input and
    output, which Muon updates; AdamW updates all others. `sharded` are the modules that FSDP gathers one at a time.
    """

    model: Callable[[Any], Model]
    initialise: Callable[[Any, Draw], None]
    layers: tuple[str, ...]
    hidden: tuple[str, ...]
    sharded: tuple[type[nn.Module], ...]
    refit: Callable[[dict[str, Tensor], Any, Any], list[str]] | None = None


# --- initial values -------------------------------------------------------------------------------------------------------------


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
