"""What detectors find, as one tensor: objects (B, N, 4 + K), the edges of each box as fractions of the image, then class logits.

A grid detector gives them itself: K classes, each with a probability of its own (sigmoid). The tokens of a YOLOS have one class
more, the last, for "no object" (softmax).

Axes: B batch, N objects, C classes; 4 left, top, right, bottom.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitlab.config.model import ModelConfig
from vitlab.config.vit import ViTConfig
from vitlab.models.grid_detector import GridDetector
from vitlab.models.vit import ViT


class TokenObjects(nn.Module):
    """A YOLOS that gives what its tokens detect as objects. Under DDP and FSDP it is this module that is called."""

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, images_BCHW: Tensor) -> Tensor:
        logits_BNC, boxes_BN4 = self.vit.detect(images_BCHW)
        centre_BN2, half_BN2 = boxes_BN4[..., :2], boxes_BN4[..., 2:] / 2
        return torch.cat([centre_BN2 - half_BN2, centre_BN2 + half_BN2, logits_BNC], dim=-1)


def as_objects(model: nn.Module) -> nn.Module:
    """A module from normalised images to objects, with the detector's own weights."""
    if isinstance(model, ViT):
        return TokenObjects(model)
    assert isinstance(model, GridDetector | TokenObjects), "no other model detects"
    return model


def of_tokens(config: ModelConfig) -> bool:
    """Whether the objects are those of detection tokens."""
    return isinstance(config, ViTConfig)


def class_scores(objects_BNX: Tensor, *, tokens: bool) -> Tensor:
    """The probability of each class, (B, N, C), from objects."""
    logits_BNC = objects_BNX[..., 4:].float()
    return logits_BNC.softmax(-1)[..., :-1] if tokens else logits_BNC.sigmoid()
