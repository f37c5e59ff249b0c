"""The part of a checkpoint that goes into a file: the model, and on request what comes before and after it.

Axes: B batch, H height, W width, C channels, K classes; G rows and J columns of a grid of patches, D width.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitlab.checkpoint import Checkpoint
from vitlab.config.export import ExportConfig
from vitlab.config.model import ModelConfig, PositionResize, ResNetConfig, ViTConfig
from vitlab.config.variants import called
from vitlab.data.normalise import normalise
from vitlab.errors import ConfigError, ExportError
from vitlab.model.assemble import Model
from vitlab.model.position import Grid, Positions
from vitlab.model.vit import ViT
from vitlab.predict.converted import quiet
from vitlab.predict.fused.graph import Answer, Input, Output, PlainGraph, exportable
from vitlab.predict.predictor import chance_of

M = TypeVar("M", bound=nn.Module)

_MOST_PICTURES = 65_536
_MOST_PATCHES = 512  # a side, where the size is left free


class Graph(nn.Module):
    """What a file computes: pictures as `config` says they go in, to logits or probabilities."""

    def __init__(self, checkpoint: Checkpoint, config: ExportConfig) -> None:
        super().__init__()
        self.config, self.preprocess, self.inside = checkpoint.config, checkpoint.preprocess, config.inside
        chance, _ = chance_of(checkpoint)
        gives: Output = "probabilities" if config.inside else "logits"
        if config.dynamic_size:
            inner = PlainGraph(_fittable(checkpoint.model), checkpoint.preprocess, pixels=config.inside)
            self.answer: nn.Module = Answer(inner, gives=gives, chance=chance).eval()
        else:
            takes: Input = "pixels" if config.inside else "normalised"
            self.answer = exportable(checkpoint, takes=takes, gives=gives, chance=chance)

    def forward(self, images: Tensor) -> Tensor:
        scores_BK: Tensor = self.answer(images)
        return scores_BK

    def taken(self, images_BHWC: Tensor) -> Tensor:
        """uint8 pictures as this graph takes them."""
        return images_BHWC if self.inside else normalise(images_BHWC, self.preprocess)


def scored(logits_BK: Tensor, checkpoint: Checkpoint) -> Tensor:
    """Logits as probabilities, the way the checkpoint was trained."""
    chance, _ = chance_of(checkpoint)
    return logits_BK.sigmoid() if chance == "sigmoid" else logits_BK.softmax(-1)


def traced(graph: Graph, config: ExportConfig) -> ExportedProgram:
    """The graph as torch.export sees it: any number of pictures, and any size where asked for."""
    height, width = graph.preprocess.image_size
    shape: dict[int, Any] = {0: Dim("batch", min=1, max=_MOST_PICTURES)}
    if config.dynamic_size:
        (down, across), sides = _free_sides(graph.config)
        height, width = height + down, width + 2 * across  # another size than the model's own, so that nothing is tied to that
        shape |= {axis if config.inside else axis + 1: side for axis, side in sides.items()}
    example_BHWC = torch.zeros(2, height, width, graph.preprocess.channels, dtype=torch.uint8)
    with quiet(), torch.no_grad():
        try:
            return torch.export.export(graph, (graph.taken(example_BHWC),), dynamic_shapes=(shape,))
        except (RuntimeError, ValueError) as error:  # torch's UserError and ConstraintViolationError among them
            raise ExportError(f"torch.export cannot trace this model: {str(error).splitlines()[0]}") from error


def of_any_size(checkpoint: Checkpoint) -> Checkpoint:
    """The same weights in a model that takes pictures of any size, where it is of a kind that can."""
    if not isinstance(checkpoint.model, ViT):
        return checkpoint
    model = _same_weights(checkpoint.model)
    model.any_size = True
    return replace(checkpoint, model=model)


def _same_weights(model: M) -> M:
    """A copy whose attributes can be changed, with the very same parameters."""
    copied = copy.copy(model)
    copied._modules = dict(model._modules)
    return copied.eval()


def _fittable(model: nn.Module) -> Model:
    """Less work, the same answers: nothing in the last layer that no one reads; and positions that any runtime can fit."""
    assert isinstance(model, Model)
    if not isinstance(model, ViT):
        return model
    copied = _same_weights(model)
    copied.lean = True
    copied.position = _any_grid(copied.position)
    return copied


def _any_grid(position: Positions) -> Positions:
    if position.kind not in ("learned-1d", "none"):
        raise ConfigError(f"{position.kind} positions are exported for one grid", hint="export without dynamic_size")
    made = copy.copy(position)
    made.__class__ = _AnyGrid
    return made


class _AnyGrid(Positions):
    """Positions interpolated by products with matrices that are computed from the grid, which every runtime can do."""

    def _fitted(self, table_LND: Tensor, grid: Grid) -> Tensor:
        placed = table_LND.shape[1] - self.grid[0] * self.grid[1]
        table_LGJD = table_LND[:, placed:].reshape(-1, *self.grid, table_LND.shape[-1])
        down_GG = stretch(self.grid[0], grid[0], self.resize).to(table_LND)
        across_JJ = stretch(self.grid[1], grid[1], self.resize).to(table_LND)
        fitted_LGJD = torch.einsum("gh,lhjd->lgjd", down_GG, table_LGJD)
        fitted_LGJD = torch.einsum("jk,lgkd->lgjd", across_JJ, fitted_LGJD)
        return torch.cat([table_LND[:, :placed], fitted_LGJD.flatten(1, 2)], dim=1)


def stretch(size: int, to: int, how: PositionResize) -> Tensor:
    """The (to, size) matrix that interpolates a line of `size` points to `to` points, as vitlab.model.position does."""
    new_T1 = torch.arange(to, dtype=torch.float32)[:, None]
    old_S = torch.arange(size, dtype=torch.float32)
    if how == "official":  # bilinear, corners kept in place
        at_T1 = new_T1 * (size - 1) / (new_T1.amax(0).clamp(min=1))
        return (1 - (at_T1 - old_S).abs()).clamp(min=0)
    scale = size / (new_T1.amax(0) + 1)
    support = scale.clamp(min=1)
    distance_TS = ((new_T1 + 0.5) * scale - (old_S + 0.5)).abs() / support
    weight_TS = _cubic(distance_TS)
    return weight_TS / weight_TS.sum(1, keepdim=True)


def _cubic(x: Tensor, a: float = -0.5) -> Tensor:
    """Keys' kernel of |x| with the slope that antialiased resizing uses."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _free_sides(config: ModelConfig) -> tuple[tuple[int, int], dict[int, Any]]:
    """In which steps height and width may vary, and as what torch.export sees them: axes 1 and 2 of a uint8 batch."""
    if isinstance(config, ResNetConfig):
        return (32, 32), {1: Dim("height", min=32, max=_MOST_PATCHES * 32), 2: Dim("width", min=32, max=_MOST_PATCHES * 32)}
    if not isinstance(config, ViTConfig):
        raise ConfigError(f"{called(config)} is exported for one size", hint="export without dynamic_size")
    if config.pad:
        raise ConfigError("a model that pads its pictures is exported for one size", hint="export without dynamic_size")
    down, across = config.step
    return (down, across), {1: down * Dim("rows", min=2, max=_MOST_PATCHES), 2: across * Dim("columns", min=2, max=_MOST_PATCHES)}
