"""Random models of any library, and the largest difference between two models' outputs for the same images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitlab.checkpoints import Checkpoint, save
from vitlab.config import ModelConfig, Preprocess
from vitlab.models import build

Answer = Callable[[Tensor], Tensor]
Module = TypeVar("Module", bound=nn.Module)

TOLERANCE = 1e-5
CONVOLUTIONAL = 2e-5  # hundreds of layers of sums in another order


def randomised(model: Module, *, seed: int = 0) -> Module:
    """The same model in evaluation mode with random parameters: none is left at 0 or 1, where a mistake could hide."""
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


def images(config: ModelConfig, *, batch: int = 2, image_size: tuple[int, int] | None = None, seed: int = 7) -> Tensor:
    """Random images for the model of a config."""
    shape = (batch, config.channels, *(image_size or config.image_size))
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def distance(one: Answer, other: Answer, images_BCHW: Tensor) -> float:
    """The largest difference between two models' outputs, which must depend on the image."""
    with torch.inference_mode():
        ours_BC, theirs_BC = one(images_BCHW), other(images_BCHW)
    assert ours_BC.shape == theirs_BC.shape
    assert float((theirs_BC[0] - theirs_BC[1]).abs().max()) > 0.01
    return float((ours_BC - theirs_BC).abs().max())


_DRAWS = frozenset(
    {
        *(Tensor.clamp_, Tensor.erfinv_, Tensor.normal_, Tensor.uniform_),
        *(nn.init.kaiming_normal_, nn.init.kaiming_uniform_, nn.init.normal_, nn.init.trunc_normal_, nn.init.uniform_),
    }
)


class _Undrawn(TorchFunctionMode):
    """Random initial values are not drawn: on the meta device they cost most of a model's construction and give nothing."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Models built inside have tensors without values."""
    with torch.device("meta"), _Undrawn():
        yield


def saved(path: Path, config: ModelConfig, *, seed: int = 0, labels: tuple[str, ...] | None = None) -> Checkpoint:
    """A random model of the config, saved as a native file."""
    model = randomised(build(config), seed=seed)
    mean = (0.5,) * config.channels
    preprocess = Preprocess(image_size=config.image_size, resize="squash", mean=mean, std=mean)
    checkpoint = Checkpoint(model=model, config=config, preprocess=preprocess, labels=labels)
    save(checkpoint, path)
    return checkpoint
