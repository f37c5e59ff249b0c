"""Random models of any library, and the distance between what two of them say to the same pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from vitlab.checkpoint import Checkpoint, save
from vitlab.config import ModelConfig, Preprocess
from vitlab.model import build

Answer = Callable[[Tensor], Tensor]
Module = TypeVar("Module", bound=nn.Module)

TOLERANCE = 1e-5
CONVOLUTIONAL = 2e-5  # hundreds of layers of sums in another order


def randomised(model: Module, *, seed: int = 0) -> Module:
    """The same model in evaluation, every parameter a number of its own: nothing is left at 0 or 1, where a slip could hide."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2:  # biases, norms, layer scales
                parameter.add_(noise, alpha=0.2)
            elif parameter.ndim == 3:  # tokens and positions
                parameter.copy_(noise)
            else:
                parameter.copy_(noise / parameter[0].numel() ** 0.5)
    return model.eval()


def pictures(config: ModelConfig, *, batch: int = 2, image_size: tuple[int, int] | None = None, seed: int = 7) -> Tensor:
    """Random input for the model of a config."""
    shape = (batch, config.channels, *(image_size or config.image_size))
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def distance(one: Answer, other: Answer, images_BCHW: Tensor) -> float:
    """The largest difference between two models' answers; both must answer something that depends on the picture."""
    with torch.inference_mode():
        ours_BC, theirs_BC = one(images_BCHW), other(images_BCHW)
    assert ours_BC.shape == theirs_BC.shape
    assert float((theirs_BC[0] - theirs_BC[1]).abs().max()) > 0.01
    return float((ours_BC - theirs_BC).abs().max())


def saved(path: Path, config: ModelConfig, *, seed: int = 0, labels: tuple[str, ...] | None = None) -> Checkpoint:
    """A random model of that config, saved as a native file."""
    model = randomised(build(config), seed=seed)
    mean = (0.5,) * config.channels
    preprocess = Preprocess(image_size=config.image_size, resize="squash", mean=mean, std=mean)
    checkpoint = Checkpoint(model=model, config=config, preprocess=preprocess, labels=labels)
    save(path, checkpoint)
    return checkpoint
