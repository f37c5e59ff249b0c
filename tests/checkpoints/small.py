"""The small models that the checkpoint tests save, load and damage."""

from __future__ import annotations

from dataclasses import replace

import torch

from vitlab.checkpoints import Checkpoint
from vitlab.config import Preprocess, ViTConfig, variant
from vitlab.config.model import ModelConfig
from vitlab.models import build

LABELS = ("cat", "caf\u00e9", "\u6a21\u578b", "\U0001f600", 'quote " and \\', "new\nline", "", "\ud800 alone", "nul \0", "last")


def small_config(**changes: object) -> ViTConfig:
    """ViT-Mini/8 at 32 pixels with ten classes, with changes."""
    config = variant("ViT-Mini/8", num_classes=10)
    assert isinstance(config, ViTConfig)
    return replace(config, **changes)  # type: ignore[arg-type]


def small_checkpoint(config: ModelConfig | None = None, *, seed: int = 0) -> Checkpoint:
    """A checkpoint of a small model whose head is not zeros, with everything that a checkpoint can hold."""
    config = config or small_config()
    model = build(config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return Checkpoint(
        model=model.eval(),
        config=config,
        preprocess=feed_for(config),
        labels=LABELS if config.num_classes == len(LABELS) else None,
        notes=("made for a test",),
        recipe={"steps": 3, "data": {"name": "generated", "sizes": [1, 2.5, None, True]}},
        metrics={"top1": 0.75, "diverged": float("inf"), "undefined": float("nan"), "epochs": 3.0},
    )


def feed_for(config: ModelConfig) -> Preprocess:
    """Preprocessing that the model of a config takes."""
    grey = tuple(0.4 + channel / 100 for channel in range(config.channels))
    return Preprocess(image_size=config.image_size, resize_to=max(config.image_size) + 5, mean=grey, std=grey)


def images(config: ModelConfig, *, batch: int = 2, seed: int = 1) -> torch.Tensor:
    """Random input for the model of a config."""
    return torch.randn(batch, config.channels, *config.image_size, generator=torch.Generator().manual_seed(seed))


def logits_of(checkpoint: Checkpoint, images_BCHW: torch.Tensor) -> torch.Tensor:
    """What the checkpoint's model says to the images."""
    with torch.inference_mode():
        logits_BC: torch.Tensor = checkpoint.model(images_BCHW)
    return logits_BC
