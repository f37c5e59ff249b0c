"""The two layouts of Swin Transformers, the authors' and timm's: they differ in where patches are merged and in the head's name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from vitlab.checkpoints.formats.contract import Hints
from vitlab.checkpoints.formats.infer import count, making, outputs, shape_of
from vitlab.checkpoints.table import Row, layer, same
from vitlab.config.swin import SwinConfig
from vitlab.errors import CheckpointError

TABLE = "attn.relative_position_bias_table"
COMPUTED = ("attn.relative_position_index", "attn_mask")  # what the authors' code saves although it can be computed
LARGEST = 64  # no one has had larger windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """`early` is how many stages before ours the patches of a stage are merged; `head` the last layer's name."""

    early: int
    head: str


AUTHORS = Names(early=1, head="head")
TIMM = Names(early=0, head="head.fc")


def names_of(tensors: dict[str, Tensor]) -> Names | None:
    """Whose names these are; None if they are not a Swin's."""
    if "patch_embed.proj.weight" not in tensors or f"layers.0.blocks.0.{TABLE}" not in tensors:
        return None
    return AUTHORS if "head.weight" in tensors or "layers.0.downsample.norm.weight" in tensors else TIMM


def without_computed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without indices and masks."""
    return {key: tensor for key, tensor in tensors.items() if not key.endswith(COMPUTED)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a config says: the image size, and the window if it is not square."""

    image_size: tuple[int, int] | None = None
    window: tuple[int, int] | None = None


def swin_config(tensors: dict[str, Tensor], names: Names, hints: Hints, said: Said, *, where: str) -> tuple[SwinConfig, list[str]]:
    """The Swin of a file; `hints.grid` are the patches down and across."""
    if hints.heads is not None:
        raise CheckpointError(f"{where} holds a Swin Transformer, whose tables say how many heads there are")
    width, channels, *patch = shape_of(tensors, "patch_embed.proj.weight", 4, where=where)
    stages = count(tensors, "layers.{}.", where=where)
    depths = tuple(count(tensors, f"layers.{s}.blocks.{{}}.", where=where) for s in range(stages))
    tables = [shape_of(tensors, f"layers.{s}.blocks.0.{TABLE}", 2, where=where) for s in range(stages)]
    hidden, _ = shape_of(tensors, "layers.0.blocks.0.mlp.fc1.weight", 2, where=where)
    with making(where):
        config = SwinConfig(
            width=width,
            depths=depths,
            heads=tuple(heads for _, heads in tables),
            patch_size=(patch[0], patch[1]),
            mlp_ratio=max(hidden // width, 1),
            channels=channels,
            num_classes=outputs(tensors, (f"{names.head}.weight", f"{names.head}.bias"), 0),
            qkv_bias=any(key.endswith("attn.qkv.bias") for key in tensors),
            pad_first=names is AUTHORS,
        )
    return _placed(config, tuple(rows for rows, _ in tables), hints, said, where)


def _placed(config: SwinConfig, rows: tuple[int, ...], hints: Hints, said: Said, where: str) -> tuple[SwinConfig, list[str]]:
    """The config with the image size and window that give tables of so many rows, and a note if the size is a guess."""
    step = config.patch_size[0] << len(rows) - 1, config.patch_size[1] << len(rows) - 1
    if hints.grid is not None:
        size, notes = (hints.grid[0] * config.patch_size[0], hints.grid[1] * config.patch_size[1]), list[str]()
    elif said.image_size is not None:
        size, notes = said.image_size, []
    else:
        side = (math.isqrt(rows[-1]) + 1) // 2  # the last stage's map, or a window of it
        size = (side * step[0], side * step[1])
        notes = [f"image_size={size[0]}x{size[1]} is a guess, one window at the last stage: the file does not say"]
    square = [(side, side) for side in range(1, LARGEST + 1)]
    for window in square if said.window is None else [said.window, *square]:
        found = replace(config, image_size=size, window=window)
        if tuple((2 * down - 1) * (2 * across - 1) for down, across in found.windows) == rows:
            return found, notes
    raise CheckpointError(
        f"{where}: no window of any size makes tables of {', '.join(map(str, rows))} offsets for images of {size[0]}x{size[1]}",
        hint="tell it the patches down and across: grid=(..., ...)",
    )


def swin_rows(config: SwinConfig, names: Names) -> Iterator[Row]:
    """The rows of a Swin under these names."""
    yield from layer("patches", "patch_embed.proj")
    yield from layer("patch_norm", "patch_embed.norm")
    for s, blocks in enumerate(config.depths):
        if s:
            ours, theirs = f"stages.{s}.merge", f"layers.{s - names.early}.downsample"
            yield from layer(f"{ours}.norm", f"{theirs}.norm")
            yield same(f"{ours}.reduction.weight", f"{theirs}.reduction.weight")
        for b in range(blocks):
            ours, theirs = f"stages.{s}.blocks.{b}", f"layers.{s}.blocks.{b}"
            yield from layer(f"{ours}.norm1", f"{theirs}.norm1")
            yield same(f"{ours}.attention.offset_bias", f"{theirs}.{TABLE}")
            yield from layer(f"{ours}.attention.qkv", f"{theirs}.attn.qkv", bias=config.qkv_bias)
            yield from layer(f"{ours}.attention.out", f"{theirs}.attn.proj")
            yield from layer(f"{ours}.norm2", f"{theirs}.norm2")
            yield from layer(f"{ours}.mlp.up", f"{theirs}.mlp.fc1")
            yield from layer(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")
    yield from layer("norm", "norm")
    if config.num_classes:
        yield from layer("head", names.head)
