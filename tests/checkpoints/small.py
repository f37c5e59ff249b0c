"""The small models that the checkpoint tests save, load and damage."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitlab.checkpoints import Checkpoint, convert, save
from vitlab.checkpoints.containers.safetensors_file import open_safetensors, write_safetensors
from vitlab.config import Preprocess, ViTConfig, variant
from vitlab.config.model import ModelConfig
from vitlab.models import build

LABELS = ("cat", "caf\u00e9", "\u6a21\u578b", "\U0001f600", 'quote " and \\', "new\nline", "", "\ud800 alone", "nul \0", "last")
HEADS = 4  # of ViT-Mini, which formats without them would guess as 1
FILES = {
    "native": "model.safetensors",
    "jax-npz": "jax.npz",
    "big-vision": "big_vision.npz",
    "timm": "timm.safetensors",
    "huggingface": "folder",
    "torchvision": "torchvision.safetensors",
}


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


def write_every_format(folder: Path) -> Path:
    """The folder, with the same small model in every format of FILES."""
    save(small_checkpoint(), folder / FILES["native"])
    for to, name in FILES.items():
        if to != "native":
            convert(folder / FILES["native"], folder / name, to=to)
    return folder


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


def resealed(path: Path, target: Path, change: dict[str, str | None]) -> None:
    """The file with other metadata and right digests, as only somebody who means it would make."""
    with open_safetensors(path) as opened:
        tensors, metadata = opened.tensors(), dict(opened.header.metadata)
    for key, value in change.items():
        metadata.pop(f"vitlab.{key}", None)
        if value is not None:
            metadata[f"vitlab.{key}"] = value
    metadata["vitlab.header_sha256"] = "0" * 64
    write_safetensors(target, tensors, metadata)
    whole = target.read_bytes()
    head = whole[: 8 + int.from_bytes(whole[:8], "little")]
    metadata["vitlab.header_sha256"] = hashlib.sha256(head).hexdigest()
    write_safetensors(target, tensors, metadata)


def config_text(path: Path, **changes: Any) -> str:
    """The config in the header of a native file, with changes, as JSON."""
    with open_safetensors(path) as opened:
        return json.dumps(json.loads(opened.header.metadata["vitlab.config"]) | changes)
