"""The cost of a model before it is built: parameters, multiply-adds and memory, by formula. No torch here.

How it is counted:

- **Multiply-adds** (MACs) are those of matrix products and convolutions in one forward pass of one image to logits. They include
  attention's two products and products with padding. They exclude norms, activations, softmax, additions and interpolation.
  torch's flop counter gives exactly twice this. Local attention counts all pairs, since it computes all and then masks.
- **Memory** is counted in numbers: parameters, and activations. The two memory figures are estimates; tests compare them with
  what torch really allocates, and operators may need a little working space of their own.

Each config counts itself: `ViTConfig.count`, `SwinConfig.count` and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vitlab.config.cost_counter import CostCounter
from vitlab.config.model import ModelConfig
from vitlab.config.vit import ViTConfig
from vitlab.errors import pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a model; all but `parameters` and the copies are for one image.

    `parameters`: trainable numbers. `macs`: multiply-adds of a forward pass; `padding_macs` of them multiply the zeros around a
    convolution's map. `activations`: numbers that dense layers and
    convolutions output (Radosavovic et al. 2020), which predicts speed better than `macs` if memory is the limit.
    `inference_peak`: the largest number of numbers alive at once in a forward pass, the image's included.
    `training_kept`: numbers that a forward pass keeps for the backward pass, without the patches that `patch_dropout` removes.
    `inference_copies` and `training_copies`: numbers alive or kept whatever the batch size, because each pass computes a
    standardised kernel, or the bias of a Swin's windows, from the weights; 0 for a plain ViT.
    """

    parameters: int
    macs: int
    padding_macs: int
    activations: int
    inference_peak: int
    inference_copies: int
    training_kept: int
    training_copies: int

    def training_exaflops(self, images: float) -> float:
        """Compute of training on so many images, 10^18 operations, by the rule of the paper's Table 6.

        A step takes three times a forward pass, and a multiply-add is two operations: 6 for each. Products with padding do not
        count, as in XLA's cost analysis: with them the table's ResNets are 3 to 4 % off, without them all are within 1 %.
        """
        return 6 * (self.macs - self.padding_macs) * images / 1e18

    def weight_bytes(self, *, number_bytes: int = 4) -> int:
        """Bytes of the weights, 4 a number for float32, 2 for bfloat16."""
        return self.parameters * number_bytes

    def inference_bytes(self, *, batch: int = 1, number_bytes: int = 4) -> int:
        """Bytes to run a batch: weights, and activations at their peak."""
        return (self.parameters + self.inference_copies + batch * self.inference_peak) * number_bytes

    def training_bytes(self, *, batch: int = 1, number_bytes: int = 4, optimizer_slots: int = 2) -> int:
        """Bytes to train on a batch: weights, gradients, the optimizer's slots (2 for Adam, 1 for momentum), kept activations.

        `number_bytes` is that of activations and copies; weights, gradients and slots are float32.
        """
        fixed = self.parameters * (2 + optimizer_slots) * 4
        return fixed + (self.training_copies + batch * self.training_kept) * number_bytes


def cost(config: ModelConfig, *, image_size: int | Sequence[int] | None = None) -> Cost:
    """The cost of a model at its own image size, or at another, (height, width) or one number for both.

    At another size it is the cost of the model built for that size, with its own positions; a `dynamic_size` ViT keeps its own.
    """
    if image_size is None:
        return _count(config)
    size = pair("image_size", image_size)
    there = _count(replace(config, image_size=size))
    if isinstance(config, ViTConfig) and config.dynamic_size:
        return replace(there, parameters=_count(config).parameters)
    return there


def _count(config: ModelConfig) -> Cost:
    counter = CostCounter()
    config.count(counter)
    return Cost(
        parameters=counter.parameters,
        macs=counter.macs,
        padding_macs=counter.padding,
        activations=counter.activations,
        inference_peak=counter.peak,
        inference_copies=counter.largest_copy,
        training_kept=counter.kept,
        training_copies=counter.copies,
    )
