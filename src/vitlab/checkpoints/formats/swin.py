"""Swin Transformers: the layouts of the authors, of timm (which merges patches elsewhere) and of transformers; and the files of
the authors (microsoft/Swin-Transformer), torch files with the weights under "model".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.contract import Found, Hints, Reading, Row, State, Written, layer, not_of, same, stacked
from vitlab.checkpoints.formats.header import adopted_family, header_of, reading_of, written_of
from vitlab.checkpoints.formats.infer import count, making, numerics_of, outputs, shape_of, unwrapped
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import PROFILES
from vitlab.errors import CheckpointError

COMPUTED = ("relative_position_index", "attn_mask")  # what the authors' code saves although it can be computed
LARGEST = 64  # no one has had larger windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What each part is called; `{s}` and `{b}` stand for the numbers of stage and block.

    `early` is how many stages before ours the patches of a stage are merged. `qkv` is one layer or three.
    """

    early: int
    head: str
    patches: tuple[str, str] = ("patch_embed.proj", "patch_embed.norm")
    stage: str = "layers.{s}"
    norms: tuple[str, str] = ("norm1", "norm2")
    table: str = "attn.relative_position_bias_table"
    qkv: tuple[str, ...] = ("attn.qkv",)
    out: str = "attn.proj"
    mlp: tuple[str, str] = ("mlp.fc1", "mlp.fc2")
    norm: str = "norm"

    def block(self, stage: int, block: int | str) -> str:
        """The prefix of a block."""
        return f"{self.stage.format(s=stage)}.blocks.{block}"


AUTHORS = Names(early=1, head="head")
TIMM = Names(early=0, head="head.fc")
HUGGINGFACE = Names(
    early=1,
    head="classifier",
    patches=("swin.embeddings.patch_embeddings.projection", "swin.embeddings.norm"),
    stage="swin.encoder.layers.{s}",
    norms=("layernorm_before", "layernorm_after"),
    table="attention.self.relative_position_bias_table",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    out="attention.output.dense",
    mlp=("intermediate.dense", "output.dense"),
    norm="swin.layernorm",
)


def names_of(tensors: dict[str, Tensor]) -> Names | None:
    """Whose names these are; None if they are not those of the authors' or timm's Swin."""
    if f"{AUTHORS.patches[0]}.weight" not in tensors or f"{AUTHORS.block(0, 0)}.{AUTHORS.table}" not in tensors:
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
    width, channels, *patch = shape_of(tensors, f"{names.patches[0]}.weight", 4, where=where)
    stages = count(tensors, names.stage.format(s="{}") + ".", where=where)
    depths = tuple(count(tensors, names.block(s, "{}") + ".", where=where) for s in range(stages))
    tables = [shape_of(tensors, f"{names.block(s, 0)}.{names.table}", 2, where=where) for s in range(stages)]
    hidden, _ = shape_of(tensors, f"{names.block(0, 0)}.{names.mlp[0]}.weight", 2, where=where)
    with making(where):
        config = SwinConfig(
            width=width,
            depths=depths,
            heads=tuple(heads for _, heads in tables),
            patch_size=(patch[0], patch[1]),
            mlp_ratio=max(hidden // width, 1),
            channels=channels,
            num_classes=outputs(tensors, (f"{names.head}.weight", f"{names.head}.bias"), 0),
            qkv_bias=any(key.endswith(f".{names.qkv[0]}.bias") for key in tensors),
            pad_first=names is not TIMM,
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
    yield from layer("patches", names.patches[0])
    yield from layer("patch_norm", names.patches[1])
    for s, blocks in enumerate(config.depths):
        if s:
            ours, theirs = f"stages.{s}.merge", f"{names.stage.format(s=s - names.early)}.downsample"
            yield from layer(f"{ours}.norm", f"{theirs}.norm")
            yield same(f"{ours}.reduction.weight", f"{theirs}.reduction.weight")
        for b in range(blocks):
            ours, theirs = f"stages.{s}.blocks.{b}", names.block(s, b)
            yield from layer(f"{ours}.norm1", f"{theirs}.{names.norms[0]}")
            yield same(f"{ours}.attention.offset_bias", f"{theirs}.{names.table}")
            for part in ("weight", "bias") if config.qkv_bias else ("weight",):
                yield stacked(f"{ours}.attention.qkv.{part}", [f"{theirs}.{name}.{part}" for name in names.qkv])
            yield from layer(f"{ours}.attention.out", f"{theirs}.{names.out}")
            yield from layer(f"{ours}.norm2", f"{theirs}.{names.norms[1]}")
            yield from layer(f"{ours}.mlp.up", f"{theirs}.{names.mlp[0]}")
            yield from layer(f"{ours}.mlp.down", f"{theirs}.{names.mlp[1]}")
    yield from layer("norm", names.norm)
    if config.num_classes:
        yield from layer("head", names.head)


# --- the authors' files -------------------------------------------------------------------------------------------------------

FORMAT = "swin"


def matches(raw: RawFile) -> bool:
    """Whether the tensors carry the names of the authors' SwinTransformer."""
    return names_of(unwrapped(raw)[0]) is AUTHORS


def read(raw: RawFile, hints: Hints) -> Reading:
    """The model of an authors' file; its indices and masks are not read, since they are computed."""
    tensors, notes = unwrapped(raw)
    numerics_of(hints, PROFILES["official"])  # refuses a profile nobody knows
    where, header, kept = raw.path.name, header_of(raw), without_computed(tensors)
    stated = None if header is None else header.config
    said = Said(image_size=stated.image_size, window=stated.window) if isinstance(stated, SwinConfig) else Said()
    config, guessed = swin_config(kept, AUTHORS, hints, said, where=where)
    config = replace(config, pad_first=hints.profile in (None, "official"))
    if header is not None:
        config = adopted_family(config, header, where=where)
    return reading_of(raw, Found(config=config, tensors=kept, notes=tuple(guessed)), swin_rows(config, AUTHORS), FORMAT, notes)


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The model under the authors' names."""
    if not isinstance(config, SwinConfig):
        raise not_of(FORMAT, "Swin Transformers", config)
    return written_of(state, config, swin_rows(config, AUTHORS), preprocess, labels)
