"""A ViT whose tokens are merged, as a model for what takes models: normalised pictures in, logits out.

Axes: B batch, C channels or classes, H height, W width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitlab.checkpoint.contents import Checkpoint
from vitlab.errors import ConfigError
from vitlab.model.vit import ViT
from vitlab.predict.fused.eager import FusedViT

_PICTURES = 4


class MergedViT(nn.Module):
    """`merge` pairs of patches a layer, on average, become one token each. For inference alone, with the weights of now."""

    def __init__(self, checkpoint: Checkpoint, merge: int) -> None:
        super().__init__()
        if not isinstance(checkpoint.model, ViT):
            raise ConfigError(f"tokens of a {type(checkpoint.model).__name__} cannot be merged", hint="leave merge out")
        self.model = checkpoint.model
        self._fused = FusedViT(checkpoint.model, checkpoint.preprocess, merge=merge)
        self._work = self._fused.workspace(_PICTURES)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        firsts = range(0, len(images_BCHW), _PICTURES)
        read = (self._fused.read(images_BCHW[first : first + _PICTURES], self._work) for first in firsts)
        return torch.cat([self.model.answered(z_BRD) for z_BRD in read])
