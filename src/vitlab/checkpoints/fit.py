"""Fit weights to another grid, patch size, number of channels or head; notes say what was done.

Axes: L tables, N patches, D width, O outputs, C channels in, P x Q cells of a patch or kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitlab.config.backbone import BackboneConfig
from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.model import ModelConfig
from vitlab.config.segmenter import SegmenterConfig
from vitlab.config.vit import PositionResize, ViTConfig
from vitlab.errors import CheckpointError, at_least
from vitlab.models.families import family_of
from vitlab.models.flexible import resize_patch
from vitlab.models.position import resize_bias, resize_grid

State = dict[str, Tensor]


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the caller wants to change; None keeps what the file has.

    `num_classes` other than the file's replaces the whole head, the pre-training head's hidden layer included, by a linear one of
    zeros (app. B.1.1), and 0 removes the last linear layer; `new_head` replaces it even where the number is the same.
    `interpolation` is how positions are resized, now and at run time: `official` or `bicubic`.
    `window` is a Swin's, in patches (down, across); where it or the image size changes its windows, their biases are resized.
    """

    num_classes: int | None = None
    new_head: bool = False
    image_size: tuple[int, int] | None = None
    patch_size: tuple[int, int] | None = None
    channels: int | None = None
    interpolation: PositionResize | None = None
    dynamic_size: bool | None = None
    window: tuple[int, int] | None = None


def fit(state: State, config: ModelConfig, wanted: Wanted) -> tuple[State, ModelConfig, tuple[str, ...]]:
    """The fitted weights and config, and a note for each change. The given tensors are not modified."""
    state, notes = dict(state), list[str]()
    for name in ("patch_size", "interpolation", "dynamic_size", "window"):
        if getattr(wanted, name) is not None and name not in config.fit_options:
            raise CheckpointError(f"{config.title} has no {name} to change")
    if isinstance(config, ViTConfig):
        return state, _fit_vit(state, config, wanted, notes), tuple(notes)
    if isinstance(config, SegmenterConfig | GridDetectorConfig):
        return _fit_on_backbone(state, config, wanted)
    return state, _fit_other(state, config, wanted, notes), tuple(notes)


def _fit_vit(state: State, config: ViTConfig, wanted: Wanted, notes: list[str]) -> ViTConfig:
    if wanted.interpolation is not None:
        config = replace(config, numerics=replace(config.numerics, resize=wanted.interpolation))
    if wanted.dynamic_size is not None:
        config = replace(config, dynamic_size=wanted.dynamic_size)
    if wanted.channels is not None and wanted.channels != config.channels:
        _fit_channels(state, config.first_kernel, wanted.channels, notes)
    target = replace(
        config,
        channels=wanted.channels or config.channels,
        patch_size=wanted.patch_size or config.patch_size,
        image_size=wanted.image_size or config.image_size,
    )
    if target.patch_size != config.patch_size:
        state["patches.weight"] = resize_patch(state["patches.weight"], target.patch_size)
        notes.append(f"patch embedding resized from {_by(config.patch_size)} to {_by(target.patch_size)} by pseudo-inverse")
    if target.grid != config.grid:
        _fit_positions(state, config, target.grid, notes)
    elif target.image_size != config.image_size:
        notes.append(f"image size {_by(target.image_size)} instead of {_by(config.image_size)}: the same grid, positions kept")
    return _fit_vit_head(state, target, wanted, notes)


def _fit_on_backbone(
    state: State, config: SegmenterConfig | GridDetectorConfig, wanted: Wanted
) -> tuple[State, ModelConfig, tuple[str, ...]]:
    """Fit the backbone; the decoder stays, since it works on a grid of any size."""
    if wanted.new_head or wanted.num_classes not in (None, config.num_classes):
        task = "segment" if isinstance(config, SegmenterConfig) else "detect"
        raise CheckpointError(
            f"the decoder of {config.title} of {config.num_classes} classes cannot be replaced in its file",
            hint=f"`finetune` with task='{task}' starts from its backbone and makes a new decoder",
        )
    inner = {name.removeprefix("backbone."): tensor for name, tensor in state.items() if name.startswith("backbone.")}
    fitted, backbone, notes = fit(inner, config.backbone, replace(wanted, num_classes=None))
    assert isinstance(backbone, BackboneConfig)
    rest = {name: tensor for name, tensor in state.items() if not name.startswith("backbone.")}
    target = replace(config, backbone=backbone, image_size=backbone.image_size, channels=backbone.channels)
    return {**{f"backbone.{name}": tensor for name, tensor in fitted.items()}, **rest}, target, notes


def _fit_other(state: State, config: ModelConfig, wanted: Wanted, notes: list[str]) -> ModelConfig:
    """Fit a model that is not a ViT; `refit` of its family adapts what depends on the image size."""
    if wanted.channels is not None and wanted.channels != config.channels:
        _fit_channels(state, config.first_kernel, wanted.channels, notes)
        config = replace(config, channels=wanted.channels)
    options: dict[str, Any] = {} if wanted.window is None else {"window": wanted.window}
    target = replace(config, image_size=wanted.image_size or config.image_size, **options)
    if (refit := family_of(config).refit) is not None:
        notes += refit(state, config, target)
    config = target
    if _keeps_head(config, wanted):
        return config
    assert wanted.num_classes is not None or wanted.new_head
    classes = config.num_classes if wanted.num_classes is None else wanted.num_classes
    _replace_heads(state, ("head",), config.feature_width, classes, notes)
    return replace(config, num_classes=classes)


def _fit_channels(state: State, key: str, channels: int, notes: list[str]) -> None:
    at_least("channels", channels, 1)
    weight_OCPQ = state[key]
    state[key] = resize_channels(weight_OCPQ, channels)
    old = weight_OCPQ.shape[1]
    fourth = (old, channels) == (3, 4)
    how = "RGB kept and their mean for the fourth, times 3/4" if fourth else f"the mean kernel times {old}/{channels}"
    notes.append(f"{key} takes {channels} channels instead of {old}: {how}, so that the response to grey stays")


def _fit_positions(state: State, config: ViTConfig, grid: tuple[int, int], notes: list[str]) -> None:
    how, (g, j) = config.numerics.resize, config.grid
    _fit_bias(state, config, grid, notes)
    if config.position.grid is not None:
        notes.append(f"grid {_by(grid)} instead of {_by(config.grid)}: the model interpolates its positions as it runs")
        return
    match config.position.kind:
        case "learned-1d":
            table_LND = state["position.table"]
            placed = table_LND.shape[1] - g * j
            patches_LND = resize_grid(table_LND[:, placed:], config.grid, grid, how)
            state["position.table"] = torch.cat([table_LND[:, :placed], patches_LND], dim=1)
        case "learned-2d":
            state["position.rows"] = resize_grid(state["position.rows"], (g, 1), (grid[0], 1), how)
            state["position.columns"] = resize_grid(state["position.columns"], (1, j), (1, grid[1]), how)
        case "relative":
            raise CheckpointError(
                f"relative positions learned on a {_by(config.grid)} grid cannot be fitted to {_by(grid)}",
                hint="an offset in reading order means another direction there; train at the size you need",
            )
        case "none" | "sincos-1d" | "sincos-2d":
            if config.position.bias is None:
                notes.append(f"grid {_by(grid)} instead of {_by(config.grid)}: these positions need no fitting")
            return
    notes.append(f"positions interpolated from {_by(config.grid)} to {_by(grid)} ({how})")


def _fit_bias(state: State, config: ViTConfig, grid: tuple[int, int], notes: list[str]) -> None:
    """Fit the tables of a relative position bias; an MLP of the offsets needs none."""
    bias = config.position.bias
    if bias is None:
        return
    if bias.kind == "mlp":
        notes.append(f"grid {_by(grid)} instead of {_by(config.grid)}: the position bias is computed from offsets")
        return
    for key in [key for key in state if re.fullmatch(r"position\.(bias\.\d+|shared_bias)", key)]:
        state[key] = resize_bias(state[key], config.grid, grid)
    notes.append(f"tables of the position bias interpolated from {_by(config.grid)} to {_by(grid)}, as BEiT's authors do")


def _fit_vit_head(state: State, config: ViTConfig, wanted: Wanted, notes: list[str]) -> ViTConfig:
    if _keeps_head(config, wanted):
        return config
    if config.detection_classes:
        raise CheckpointError(
            "this model is an object detector (YOLOS): it gives boxes, and has no head for the class of an image",
            hint="`vitlab predict` prints its boxes; to classify, start from a ViT or DeiT",
        )
    classes = config.num_classes if wanted.num_classes is None else wanted.num_classes
    if classes == 0:
        _remove(state, ("head", "distill_head"))
        notes.append("head removed: the model gives features")
        return replace(config, num_classes=0)
    if config.representation_width:
        _remove(state, ("representation",))
        notes.append(f"the pre-training head's hidden layer of width {config.representation_width} removed (app. B.1.1)")
    heads = ("head", "distill_head") if config.distill_token else ("head",)
    _replace_heads(state, heads, replace(config, representation_width=0).feature_width, classes, notes)
    return replace(config, num_classes=classes, representation_width=0)


def _keeps_head(config: ModelConfig, wanted: Wanted) -> bool:
    if wanted.num_classes is not None:
        at_least("num_classes", wanted.num_classes, 0)
    return not wanted.new_head and wanted.num_classes in (None, config.num_classes)


def _replace_heads(state: State, heads: tuple[str, ...], width: int, classes: int, notes: list[str]) -> None:
    dtype = next(iter(state.values())).dtype
    _remove(state, heads)
    for head in heads:
        if classes:
            state |= {f"{head}.weight": torch.zeros(classes, width, dtype=dtype), f"{head}.bias": torch.zeros(classes, dtype=dtype)}
    notes.append(f"new head of {classes} classes, all zeros" if classes else "head removed: the model gives features")


def _remove(state: State, layers: tuple[str, ...]) -> None:
    for layer in layers:
        state.pop(f"{layer}.weight", None)
        state.pop(f"{layer}.bias", None)


def resize_channels(weight_OCPQ: Tensor, channels: int) -> Tensor:
    """Kernels for another number of channels: each new channel c gets W'_c = (1 / new) sum_k W_k over the old channels k.

    This is the mean of the old kernels times old / new, so that the same grey in every channel gives the same response as before.
    RGB with a fourth channel keeps its colours: W'_c = 3/4 W_c for red, green and blue, and 3/4 of their mean for the fourth.
    """
    old = weight_OCPQ.shape[1]
    mean_O1PQ = weight_OCPQ.mean(1, keepdim=True)
    if (old, channels) == (3, 4):
        return torch.cat([weight_OCPQ, mean_O1PQ], dim=1) * (3 / 4)
    return (mean_O1PQ * (old / channels)).expand(-1, channels, -1, -1).contiguous()
