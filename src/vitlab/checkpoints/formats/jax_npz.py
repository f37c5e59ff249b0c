"""The paper's own files (google-research/vision_transformer, Flax): ViTs and hybrids in an .npz.

Read in both numberings, with or without `opt/target/`; written as the published files are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.contract import (
    Expressible,
    Hints,
    Reading,
    Row,
    State,
    Written,
    kernel,
    native_shapes,
    numerics_notes,
    only_vit,
    refuse,
    same,
    shaped,
    stem_notes,
    to_ours,
    to_theirs,
)
from vitlab.checkpoints.formats.flax import PUBLISHED, Numbering, dense, encoder, is_official, numbering_of, tree_of
from vitlab.checkpoints.formats.infer import (
    count,
    described,
    image_size_of,
    lost,
    making,
    numerics_of,
    outputs,
    places_of,
    shape_of,
    squashed,
    stem_of,
    zero_head,
)
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.vit import PROFILES, Position, ViTConfig
from vitlab.config.vit_parts import ResNetStem
from vitlab.errors import CheckpointError

FORMAT = "jax-npz"
CAN = Expressible(format=FORMAT, pools=("token", "mean"), stem=True, representation=True)
READER = "the authors' Flax code"
TABLE = "Transformer/posembed_input/pos_embedding"

_GROUP_NORM = re.compile(r"(.*/)?gn(\d|_root|_proj)/(scale|bias)")


def matches(raw: RawFile) -> bool:
    """Whether the file has the layout of the paper's own code."""
    tree = tree_of(raw)
    return tree is not None and is_official(tree)


def read(raw: RawFile, hints: Hints) -> Reading:
    """The model of an official file; its shapes show the heads; a grid that is not square must be given."""
    tree = tree_of(raw)
    assert tree is not None
    where, tensors = raw.path.name, _tidied(tree.tensors)
    numbering = numbering_of(tensors)
    config, notes = _config(tensors, numbering, hints, where)
    state = to_ours(tensors, list(_rows(config, numbering)), native_shapes(config), where=where)
    preprocess = _feeding(config)
    guess = f"preprocessing is that of the authors' fine-tuning code ({described(preprocess)}): the file does not say"
    return Reading(
        format=FORMAT,
        config=config,
        state=state,
        preprocess=preprocess,
        notes=(*tree.notes, *notes, *zero_head(state), guess),
    )


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The model as an official file; what the authors' code cannot express is refused."""
    vit = only_vit(config, FORMAT)
    refuse(vit, CAN)
    notes = numerics_notes(vit, PROFILES["official"], reader=READER)
    if vit.stem is not None:
        official = stem_of(Hints(), vit.stem.blocks, vit.stem.width, official=True)
        notes += stem_notes(vit.stem, official, reader=READER)
    if vit.grid[0] != vit.grid[1]:
        notes.append(f"the file does not say that the grid is {vit.grid[0]}x{vit.grid[1]}: give it when you read the file")
    notes += lost(preprocess, labels, assumed=_feeding(vit), name=FORMAT)
    tensors = to_theirs(state, list(_rows(vit, PUBLISHED)), native_shapes(vit))
    return Written(container="npz", tensors=tensors, weights_name="model.npz", notes=tuple(notes))


def _feeding(config: ViTConfig) -> Preprocess:
    return squashed(config.image_size, config.channels, interpolation="tf-bilinear")


def _config(tensors: dict[str, Tensor], numbering: Numbering, hints: Hints, where: str) -> tuple[ViTConfig, list[str]]:
    *patch, channels, width = shape_of(tensors, "embedding/kernel", 4, where=where)
    depth = count(tensors, "Transformer/encoderblock_{}/", where=where)
    block = "Transformer/encoderblock_0"
    _, heads, _ = shape_of(tensors, f"{block}/{numbering.attention}/query/kernel", 3, where=where)
    if hints.heads not in (None, heads):
        raise CheckpointError(f"{where} has {heads} heads in the shapes of its attention, not heads={hints.heads}")
    _, mlp_width = shape_of(tensors, f"{block}/{numbering.mlp}/Dense_0/kernel", 2, where=where)
    stem = None
    if "conv_root/kernel" in tensors:
        stem, channels = _stem(tensors, hints, where)
    class_token = "cls" in tensors
    _, rows, _ = shape_of(tensors, TABLE, 3, where=where)
    places = places_of(rows, int(class_token), given=hints.grid, said=None, without=False, where=where)
    patch_size = (patch[0], patch[1])
    numerics = numerics_of(hints, PROFILES["official"])
    with making(where):
        config = ViTConfig(
            width=width,
            depth=depth,
            heads=heads,
            mlp_width=mlp_width,
            patch_size=patch_size,
            image_size=image_size_of(places.grid, patch_size, stem),
            channels=channels,
            num_classes=outputs(tensors, ("head/kernel", "head/bias"), -1),
            stem=stem,
            pool="token" if class_token else "mean",
            class_token=class_token,
            representation_width=outputs(tensors, ("pre_logits/kernel", "pre_logits/bias"), -1),
            position=Position(kind="learned-1d", place="stem", prefix=True),
            numerics=numerics,
        )
    return config, list(places.notes)


def _stem(tensors: dict[str, Tensor], hints: Hints, where: str) -> tuple[ResNetStem, int]:
    """The hybrid's ResNet and the channels of the images it takes."""
    _, _, channels, width = shape_of(tensors, "conv_root/kernel", 4, where=where)
    stages = count(tensors, "block{}/", where=where, first=1)
    units = tuple(count(tensors, f"block{s + 1}/unit{{}}/", where=where, first=1) for s in range(stages))
    with making(where):
        return stem_of(hints, units, width, official=True), channels


def _rows(config: ViTConfig, numbering: Numbering) -> Iterator[Row]:
    if config.stem is not None:
        yield from _stem_rows(config.stem)
    yield kernel("patches.weight", "embedding/kernel")
    yield same("patches.bias", "embedding/bias")
    if config.class_token:
        yield same("class_token", "cls")
    yield same("position.table", TABLE)
    yield from encoder(config, numbering)
    if config.representation_width:
        yield from dense("representation", "pre_logits")
    if config.num_classes:
        yield from dense("head", "head")


def _stem_rows(stem: ResNetStem) -> Iterator[Row]:
    yield kernel("stem.root.weight", "conv_root/kernel")
    yield from _group_norm("stem.root_norm", "gn_root")
    for s, units in enumerate(stem.blocks):
        for u in range(units):
            ours, theirs = f"stem.stages.{s}.{u}", f"block{s + 1}/unit{u + 1}"
            for n in (1, 2, 3):
                yield kernel(f"{ours}.conv{n}.weight", f"{theirs}/conv{n}/kernel")
                yield from _group_norm(f"{ours}.norm{n}", f"{theirs}/gn{n}")
            if u == 0:
                yield kernel(f"{ours}.shortcut.weight", f"{theirs}/conv_proj/kernel")
                yield from _group_norm(f"{ours}.shortcut_norm", f"{theirs}/gn_proj")


def _group_norm(ours: str, theirs: str) -> Iterator[Row]:
    for mine, other in (("weight", "scale"), ("bias", "bias")):
        yield shaped(f"{ours}.{mine}", f"{theirs}/{other}", (-1,), (1, 1, 1, -1))


def _tidied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Group norms in the published shape (1, 1, 1, C): newer Flax code stores them as (C,)."""
    return {
        key: tensor[None, None, None] if tensor.ndim == 1 and _GROUP_NORM.fullmatch(key) else tensor
        for key, tensor in tensors.items()
    }
