"""The files of DINOv2's authors (facebookresearch/dinov2): timm's names but for registers, SwiGLU and the class token's position.

DINO's own files have timm's names throughout and are read as such.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.contract import (
    Expressible,
    Hints,
    Reading,
    Row,
    State,
    Written,
    heads_notes,
    layer,
    native_shapes,
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
)
from vitlab.config.data import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.vit import Numerics, Position, ViTConfig
from vitlab.config.vit_parts import FeedForward
from vitlab.errors import CheckpointError

FORMAT = "dinov2"
CAN = Expressible(format=FORMAT, register_tokens=True, layer_scale=True, traits=("a gated MLP", "registers without a position"))
NUMERICS = Numerics(gelu="exact", norm_eps=1e-6, resize="bicubic-plain")
GATED, PLAIN = ("mlp.w12", "mlp.w3"), ("mlp.fc1", "mlp.fc2")


def is_dinov2(tensors: dict[str, Tensor]) -> bool:
    """Whether these are the names of DINOv2's authors: layer scale, and something that timm calls otherwise or does not have.

    Their mask token is (1, width); MAE's and BEiT's have three axes.
    """
    common = all(key in tensors for key in ("patch_embed.proj.weight", "cls_token", "blocks.0.norm1.weight", "blocks.0.ls1.gamma"))
    masked = "mask_token" in tensors and tensors["mask_token"].ndim == 2
    return common and (masked or "register_tokens" in tensors or f"blocks.0.{GATED[0]}.weight" in tensors)


def matches(raw: RawFile) -> bool:
    """Whether the tensors carry these names."""
    return is_dinov2(unwrapped(raw)[0])


def read(raw: RawFile, hints: Hints) -> Reading:
    """The model of an authors' file, which takes images of any size; its mask token is left out."""
    tensors, notes = unwrapped(raw)
    where, header = raw.path.name, header_of(raw)
    kept = {key: tensor for key, tensor in tensors.items() if key != "mask_token"}
    mask = tuple(tensors["mask_token"].shape) if "mask_token" in tensors else None
    said = header.config.heads if header is not None and isinstance(header.config, ViTConfig) else None
    config, found = _config(kept, hints, said, where=where)
    if mask not in (None, (1, config.width)):
        raise CheckpointError(f"{where}: mask_token is {mask} and should be {(1, config.width)}")
    if header is not None:
        whole = adopted(config, header, hints, where=where)
        assert isinstance(whole, ViTConfig)
        config = whole
    state = to_ours(kept, list(dinov2_rows(config)), native_shapes(config), where=where)
    fed: list[str] = []
    if header is None:
        preprocess = _usual(config)
        fed = [f"preprocessing is that of the authors' evaluation ({described(preprocess)}): the file does not say"]
    else:
        preprocess = header.preprocess
    left = ["left out: mask_token"] if mask is not None and header is None else []
    return Reading(format=FORMAT, config=config, state=state, preprocess=preprocess, notes=(*notes, *left, *found, *fed))


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The model under the authors' names, with the mask token that their code expects, all zeros."""
    vit = only_vit(config, FORMAT)
    lacks = [
        *([] if vit.layer_scale else ["a model without layer scale (layer_scale=0)"]),
        *([f"a head (num_classes={vit.num_classes})"] if vit.num_classes else []),
        *(["registers with a position"] if vit.register_tokens and vit.position.registers else []),
    ]
    refuse(vit, CAN, also=lacks)
    tensors = to_theirs(state, list(dinov2_rows(vit)), native_shapes(vit))
    tensors["mask_token"] = tensors["cls_token"].new_zeros(1, vit.width)
    return Written(
        container="safetensors",
        tensors=tensors,
        metadata=metadata_of(vit, preprocess, labels),
        notes=tuple(heads_notes(vit, reader="the authors' code")),
    )


def _config(tensors: dict[str, Tensor], hints: Hints, said: int | None, *, where: str) -> tuple[ViTConfig, list[str]]:
    width, channels, *patch = shape_of(tensors, "patch_embed.proj.weight", 4, where=where)
    depth = count(tensors, "blocks.{}.", where=where)
    gated = f"blocks.0.{GATED[0]}.weight" in tensors
    _, mlp_width = shape_of(tensors, f"blocks.0.{(GATED if gated else PLAIN)[1]}.weight", 2, where=where)
    heads, notes = heads_of(width, depth, mlp_width, given=hints.heads, said=said, where=where)
    _, rows, _ = shape_of(tensors, "pos_embed", 3, where=where)
    places = places_of(rows, 1, given=hints.grid, said=None, without=False, where=where)
    patch_size, registers = (patch[0], patch[1]), outputs(tensors, ("register_tokens",), 1)
    numerics = numerics_of(hints, replace(NUMERICS, resize="bicubic") if registers else NUMERICS)
    with making(where):
        config = ViTConfig(
            width=width,
            depth=depth,
            heads=heads,
            mlp_width=mlp_width,
            patch_size=patch_size,
            image_size=image_size_of(places.grid, patch_size, None),
            channels=channels,
            num_classes=0,
            dynamic_size=True,
            register_tokens=registers,
            position=Position(registers=not registers),
            qkv_bias=any(key.endswith(".attn.qkv.bias") for key in tensors),
            layer_scale=1e-5,
            mlp=FeedForward(gated=gated),
            numerics=numerics,
        )
    return config, [*notes, *places.notes]


def dinov2_rows(config: ViTConfig) -> Iterator[Row]:
    """The rows of a DINOv2."""
    up, down = GATED if config.mlp.gated else PLAIN
    yield from layer("patches", "patch_embed.proj")
    yield same("class_token", "cls_token")
    if config.register_tokens:
        yield same("register_tokens", "register_tokens")
    yield same("position.table", "pos_embed")
    for i in range(config.depth):
        ours, theirs = f"encoder.blocks.{i}", f"blocks.{i}"
        yield from layer(f"{ours}.norm1", f"{theirs}.norm1")
        yield from layer(f"{ours}.attention.qkv", f"{theirs}.attn.qkv", bias=config.qkv_bias)
        yield from layer(f"{ours}.attention.out", f"{theirs}.attn.proj")
        yield same(f"{ours}.scale1", f"{theirs}.ls1.gamma")
        yield from layer(f"{ours}.norm2", f"{theirs}.norm2")
        yield from layer(f"{ours}.mlp.up", f"{theirs}.{up}")
        yield from layer(f"{ours}.mlp.down", f"{theirs}.{down}")
        yield same(f"{ours}.scale2", f"{theirs}.ls2.gamma")
    yield from layer("encoder.norm", "norm")


def _usual(config: ViTConfig) -> Preprocess:
    """A crop of 224 pixels from a short side of 256, or the model's own size where its patches do not divide 224."""
    fits = all(224 % side == 0 for side in config.patch_size)
    size = (224, 224) if fits else config.image_size
    return cropped(size, config.channels, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD)
