"""The methods that users of timm expect of a model, under timm's names: `forward_features`, `reset_classifier`, ...

`model(images_BCHW)` is `model.forward_head(model.forward_features(images_BCHW))` in eval mode, as in timm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitlab.errors import at_least


class TimmMethods(nn.Module):
    """The base of every model; it needs `config`, `head` and `features`, which every model has (see families.py)."""

    @property
    def num_features(self) -> int:
        """Width of what the head sees."""
        return int(cast(Any, self).config.feature_width)

    @property
    def num_classes(self) -> int:
        """Number of logits, 0 without a head."""
        return int(cast(Any, self).config.num_classes)

    def forward_features(self, images_BCHW: Tensor) -> Tensor:
        """What `forward_head` takes: all tokens (B, N, D) of a ViT, the pooled vector (B, num_features) of another model."""
        features_BD: Tensor = cast(Any, self).features(images_BCHW)
        return features_BD

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
