"""How a model is asked for its inside: at rest, a few pictures at a time, and refused where it has no such inside.

Axes: B batch, C channels, H heads (of pictures: height), W width, N tokens, R some of the N queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.config.model import ViTConfig
from vitlab.errors import ConfigError
from vitlab.model.assemble import Model
from vitlab.model.convnext import ConvNeXt
from vitlab.model.efficientnet import EfficientNet
from vitlab.model.recurrent import Recurrent
from vitlab.model.resnet import ResNet
from vitlab.model.swin import Swin
from vitlab.model.vit import ViT

Floats = NDArray[np.float32]
AT_ONCE = 64  # queries of a block: 12 heads of 4,096 tokens are 13 MB then, and not 805
_KEPT = 256 << 20  # bytes of queries, keys and values that the pictures of one pass may leave behind


class Rows(Protocol):
    """One layer's attention, asked for by rows: `vitlab.model.attention.Gaze`, or anything that answers as it does."""

    def rows(self, first: int, last: int) -> Tensor:
        """The attention of the tokens `first` to `last` - 1 to all tokens, (B, H, R, N)."""
        ...


def blocks(layer: Rows, first: int, last: int) -> Iterator[tuple[slice, Tensor]]:
    """The rows of the tokens `first` to `last` - 1, a block at a time: which tokens they are, and (B, H, R, N)."""
    for start in range(first, last, AT_ONCE):
        stop = min(start + AT_ONCE, last)
        yield slice(start, stop), layer.rows(start, stop)


def needs_attention(model: nn.Module, what: str) -> ViT:
    """The model, if it is one whose patches attend to each other; else a refusal that says why and what can be seen."""
    match model:
        case ViT():
            return model
        case Swin():
            who, why = "a Swin Transformer", "its tokens attend within windows, and merge on the way"
        case ResNet() | ConvNeXt() | EfficientNet():
            who, why = f"a {type(model).__name__}", "it has convolutions and no attention"
        case Recurrent():
            who, why = "a recurrent network", "it reads patch after patch, and has no attention"
        case _:
            raise ConfigError(f"{what} is for vitlab's own models, not for a {type(model).__name__}")
    raise ConfigError(f"{what} is not defined for {who}: {why}", hint="its filters, features and occlusion are")


def what_is_read(config: ViTConfig) -> str:
    """In words, the tokens whose attention counts because the model's pool reads them."""
    match config.pool:
        case "token":
            return "the class and the distillation token" if config.distill_token else "the class token"
        case "mean":
            return "the mean of the patches"
        case "map":
            return "the probe of the attention pool"


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and afterwards every part of it in the mode it was in."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def batches(model: nn.Module, images_BCHW: Tensor, *, bytes_each: int) -> Iterator[Tensor]:
    """The pictures in the model's type and on its device, as many at a time as leave behind `bytes_each` and fit."""
    if images_BCHW.ndim != 4 or not len(images_BCHW):
        raise ConfigError(f"pictures are (batch, channels, height, width), at least one, not of shape {tuple(images_BCHW.shape)}")
    like = next(model.parameters())
    count = min(max(1, _KEPT // max(bytes_each, 1)), 32)
    for part_BCHW in torch.split(images_BCHW, count):
        yield part_BCHW.to(device=like.device, dtype=like.dtype)


def bytes_kept(model: ViT, images_BCHW: Tensor, layers: int) -> int:
    """Bytes that queries and keys take for one picture, of so many layers."""
    grid = model.config.grid_of((int(images_BCHW.shape[-2]), int(images_BCHW.shape[-1])))
    tokens = model.config.prefix_tokens + grid[0] * grid[1]
    return 2 * layers * tokens * model.config.width * next(model.parameters()).element_size()


def chosen_layers(count: int, layers: Sequence[int] | None) -> list[int]:
    """The numbers of the layers asked for, from 0, in the order asked; None for all; negative from the end."""
    asked = range(count) if layers is None else layers
    for layer in asked:
        if not -count <= layer < count:
            raise ConfigError(f"there is no layer {layer}: the model has {count}, numbered from 0")
    return [layer % count for layer in asked]


def a_class_each(classes: int | Sequence[int] | None, pictures: int) -> list[int] | None:
    """One class for all pictures, or one for each, as one for each; None where the model is to choose."""
    if classes is None:
        return None
    asked = [classes] * pictures if isinstance(classes, int) else list(classes)
    if len(asked) != pictures:
        raise ConfigError(f"{len(asked)} classes for {pictures} pictures", hint="give one class, or one for each picture")
    return asked


def chosen_classes(logits_BC: Tensor, asked: Sequence[int] | None) -> Tensor:
    """A class for each picture, (B,): the one asked for, or the one the model finds likeliest."""
    count = logits_BC.shape[1]
    if asked is None:
        return logits_BC.argmax(1)
    for label in asked:
        if not 0 <= label < count:
            raise ConfigError(f"there is no class {label}: the model has {count}, numbered from 0")
    return torch.tensor(asked, device=logits_BC.device)


def needs_head(model: nn.Module, what: str) -> None:
    """Refuse a model whose logits tell no classes apart."""
    if not isinstance(model, Model):
        raise ConfigError(f"{what} is for vitlab's own models, not for a {type(model).__name__}")
    if model.config.num_classes < 2:
        kind = "no head" if model.config.num_classes == 0 else "one class only"
        raise ConfigError(f"{what} asks what speaks for a class, and this {type(model).__name__} has {kind}")


def on_grid(x_BN: Tensor, grid: tuple[int, int]) -> Tensor:
    """The last axis, patches in reading order, as two: rows and columns."""
    return x_BN.reshape(*x_BN.shape[:-1], *grid)


def as_floats(tensor: Tensor) -> Floats:
    """A float32 array of the tensor's values."""
    array: Floats = tensor.detach().float().cpu().numpy()
    return array
