"""A linear head fitted to frozen features before the first step (linear probing, then fine-tuning: Kumar et al. 2022).

The head is multinomial logistic regression on the features of the training split, as evaluation preprocesses its images; its
regularisation is chosen on a tenth of them. With 0 steps this is the whole training; with more, fine-tuning starts from it, and the
features are not distorted by a head that knows nothing yet.

Axes: N images, D width of the features, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.config.evaluation import ProbeConfig
from vitlab.evaluation.features import Features
from vitlab.evaluation.frozen import Linear, choose_strength, fit, select
from vitlab.models.model import Model
from vitlab.models.vit import ViT

_SEARCH = ProbeConfig(l2_low=1e-2, l2_high=1e4, per_decade=2, tolerance=1e-4, most_steps=500)
_LEAST = 20  # images: below, there are too few to hold some out, and the strength is fixed
_FIXED_L2 = 1.0
_HELD_OUT = 10  # one image of so many chooses the strength
_STREAM = 204  # a random stream of the run's seed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedHead:
    """The weights of a head: logits are features @ weight.T + bias.

    `accuracy` is that on the held-out tenth before the last fit, which uses all `images`; None if they were too few.
    """

    weight_CD: Tensor
    bias_C: Tensor
    l2: float
    accuracy: float | None
    images: int

    def put_into(self, model: Model) -> None:
        """Set the model's head. A distilled ViT averages two heads, and both get it: it was fitted to the mean of their inputs."""
        heads = [model.head, model.distill_head if isinstance(model, ViT) else None]
        with torch.no_grad():
            for head in heads:
                if head is not None:
                    assert isinstance(head, nn.Linear)
                    head.weight.copy_(self.weight_CD)
                    head.bias.copy_(self.bias_C)


def fit_head(features_ND: NDArray[np.float32], labels_N: NDArray[np.int64], *, names: tuple[str, ...], seed: int) -> FittedHead:
    """Choose the strength on a tenth of the images, then fit all of them with it."""
    order_N = np.arange(len(labels_N))
    whole = Features(features_ND=features_ND, labels_N=labels_N, indices_N=order_N, names=names)
    accuracy, l2, near = None, _FIXED_L2, None
    if len(whole) >= _LEAST:
        held_N = np.zeros(len(whole), np.bool_)
        held_N[np.random.default_rng([seed, _STREAM]).permutation(len(whole))[: len(whole) // _HELD_OUT]] = True
        near, tried = choose_strength(select(whole, ~held_N), select(whole, held_N), _SEARCH)
        l2, accuracy = near.l2, dict(tried)[near.l2]
    linear = fit(whole, classes=len(names), l2=l2, config=_SEARCH, start=near)
    weight_CD, bias_C = as_head(linear)
    return FittedHead(weight_CD=weight_CD, bias_C=bias_C, l2=l2, accuracy=accuracy, images=len(whole))


def as_head(linear: Linear) -> tuple[Tensor, Tensor]:
    """The weight (C, D) and bias (C,) of the linear layer that gives the same logits from features that are not whitened."""
    weights_DC = linear.weights_DK / linear.deviation_D[:, None]
    bias_C = linear.bias_K - linear.mean_D @ weights_DC
    return torch.from_numpy(weights_DC.T.astype(np.float32)), torch.from_numpy(bias_C.astype(np.float32))
