"""torchvision's VisionTransformer: square images, class token, linear head or the two-layer one."""

from __future__ import annotations

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
    layer,
    native_shapes,
    numerics_notes,
    only_vit,
    refuse,
    same,
    to_ours,
    to_theirs,
)
from vitlab.checkpoints.formats.header import adopted, header_of, metadata_of
from vitlab.checkpoints.formats.infer import (
    count,
    cropped,
    described,
    heads_of,
    image_size_of,
    making,
    numerics_of,
    outputs,
    places_of,
    shape_of,
    unwrapped,
    zero_head,
)
from vitlab.config.data import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.vit import PROFILES, Position, ViTConfig

FORMAT = "torchvision"
CAN = Expressible(format=FORMAT, representation=True)
READER = "torchvision"
LAYERS = "encoder.layers.encoder_layer_"
MLP = ("mlp.0", "mlp.3")
OLD_MLP = ("mlp.linear_1", "mlp.linear_2")  # before torchvision 0.14


def matches(raw: RawFile) -> bool:
    """Whether the tensors carry the names of torchvision's VisionTransformer."""
    tensors, _ = unwrapped(raw)
    return "conv_proj.weight" in tensors and "encoder.pos_embedding" in tensors


def read(raw: RawFile, hints: Hints) -> Reading:
    """The model of a torchvision file; heads are given or guessed, with a note."""
    tensors, notes = unwrapped(raw)
    where, header = raw.path.name, header_of(raw)
    said = header.config if header is not None and isinstance(header.config, ViTConfig) else None
    mlp = OLD_MLP if f"{LAYERS}0.{OLD_MLP[0]}.weight" in tensors else MLP
    config, found = _config(tensors, mlp, hints, said, where)
    if header is not None:
        adopted_config = adopted(config, header, hints, where=where)
        assert isinstance(adopted_config, ViTConfig)
        config = adopted_config
    state = to_ours(tensors, list(_rows(config, mlp)), native_shapes(config), where=where)
    preprocess, labels, fed = _feeding(config), None, []
    if header is not None:
        preprocess = header.preprocess
        labels = header.labels_for(config.num_classes)
    else:
        fed = [f"preprocessing is that of torchvision's weights V1 ({described(preprocess)}): the file does not say"]
    return Reading(
        format=FORMAT,
        config=config,
        state=state,
        preprocess=preprocess,
        labels=labels,
        notes=(*notes, *found, *zero_head(state), *fed),
    )


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The model under torchvision's names; what its class cannot express is refused."""
    vit = only_vit(config, FORMAT)
    refuse(vit, CAN, also=_unreadable(vit))
    notes = numerics_notes(vit, PROFILES["torchvision"], reader=READER)
    if vit.channels != 3:
        notes.append(f"torchvision builds conv_proj for 3 channels: replace it with one for {vit.channels} before loading")
    if not vit.num_classes:
        notes.append("torchvision builds a head: load with strict=False, or replace model.heads before")
    tensors = to_theirs(state, list(_rows(vit, MLP)), native_shapes(vit))
    return Written(container="safetensors", tensors=tensors, metadata=metadata_of(vit, preprocess, labels), notes=tuple(notes))


def _unreadable(config: ViTConfig) -> list[str]:
    reasons = []
    if config.grid[0] != config.grid[1]:
        reasons.append(f"a grid that is not square ({config.grid[0]}x{config.grid[1]})")
    if config.patch_size[0] != config.patch_size[1]:
        reasons.append(f"a patch that is not square ({config.patch_size[0]}x{config.patch_size[1]})")
    return reasons


def _feeding(config: ViTConfig) -> Preprocess:
    return cropped(config.image_size, config.channels, interpolation="bilinear", mean=IMAGENET_MEAN, std=IMAGENET_STD)


def _config(
    tensors: dict[str, Tensor], mlp: tuple[str, str], hints: Hints, said: ViTConfig | None, where: str
) -> tuple[ViTConfig, list[str]]:
    width, channels, *patch = shape_of(tensors, "conv_proj.weight", 4, where=where)
    depth = count(tensors, f"{LAYERS}{{}}.", where=where)
    mlp_width, _ = shape_of(tensors, f"{LAYERS}0.{mlp[0]}.weight", 2, where=where)
    heads, notes = heads_of(width, depth, mlp_width, given=hints.heads, said=None if said is None else said.heads, where=where)
    _, rows, _ = shape_of(tensors, "encoder.pos_embedding", 3, where=where)
    places = places_of(rows, 1, given=hints.grid, said=None if said is None else said.grid, without=False, where=where)
    patch_size = (patch[0], patch[1])
    numerics = numerics_of(hints, PROFILES["torchvision"])
    with making(where):
        config = ViTConfig(
            width=width,
            depth=depth,
            heads=heads,
            mlp_width=mlp_width,
            patch_size=patch_size,
            image_size=image_size_of(places.grid, patch_size, None),
            channels=channels,
            num_classes=outputs(tensors, ("heads.head.weight", "heads.head.bias"), 0),
            representation_width=outputs(tensors, ("heads.pre_logits.weight", "heads.pre_logits.bias"), 0),
            position=Position(kind="learned-1d", place="stem", prefix=True),
            numerics=numerics,
        )
    return config, [*notes, *places.notes]


def _rows(config: ViTConfig, mlp: tuple[str, str]) -> Iterator[Row]:
    yield from layer("patches", "conv_proj")
    yield same("class_token", "class_token")
    yield same("position.table", "encoder.pos_embedding")
    for i in range(config.depth):
        ours, theirs = f"encoder.blocks.{i}", f"{LAYERS}{i}"
        yield from layer(f"{ours}.norm1", f"{theirs}.ln_1")
        for part in ("weight", "bias"):
            yield same(f"{ours}.attention.qkv.{part}", f"{theirs}.self_attention.in_proj_{part}")
        yield from layer(f"{ours}.attention.out", f"{theirs}.self_attention.out_proj")
        yield from layer(f"{ours}.norm2", f"{theirs}.ln_2")
        yield from layer(f"{ours}.mlp.up", f"{theirs}.{mlp[0]}")
        yield from layer(f"{ours}.mlp.down", f"{theirs}.{mlp[1]}")
    yield from layer("encoder.norm", "encoder.ln")
    if config.representation_width:
        yield from layer("representation", "heads.pre_logits")
    if config.num_classes:
        yield from layer("head", "heads.head")
