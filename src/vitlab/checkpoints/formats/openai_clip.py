"""The vision half of OpenAI's CLIP as a state dict, alone or beside the text half; open_clip's ViTs have the same names."""

from __future__ import annotations

import re
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
    layer,
    native_shapes,
    only_vit,
    refuse,
    same,
    shaped,
    to_ours,
    to_theirs,
    turned,
)
from vitlab.checkpoints.formats.header import adopted, header_of, metadata_of
from vitlab.checkpoints.formats.infer import (
    count,
    heads_of,
    image_size_of,
    making,
    numerics_of,
    places_of,
    shape_of,
    unwrapped,
)
from vitlab.checkpoints.formats.sidecar import guessed
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.vit import Numerics, ViTConfig
from vitlab.config.vit_parts import Norm

FORMAT = "openai-clip"
CAN = Expressible(format=FORMAT, traits=("a norm before the encoder", "the quick GELU", "a projection of the pooled vector"))
PREFIX = "visual."
MARKS = ("conv1.weight", "class_embedding", "transformer.resblocks.0.attn.in_proj_weight")
_TEXT = re.compile(  # the text half, where the vision half has its prefix
    r"(transformer|token_embedding|ln_final|text)\.|(positional_embedding|text_projection|logit_scale|logit_bias|attn_mask)$"
    r"|(input_resolution|context_length|vocab_size)$"
)
NUMERICS = Numerics(gelu="quick", norm_eps=1e-5, resize="bicubic")


def matches(raw: RawFile) -> bool:
    """Whether the tensors carry the names of CLIP's VisionTransformer."""
    return _prefix(unwrapped(raw)[0]) is not None


def read(raw: RawFile, hints: Hints) -> Reading:
    """The vision model of the file; the text half is left out."""
    tensors, notes = unwrapped(raw)
    prefix, where, header = _prefix(tensors), raw.path.name, header_of(raw)
    assert prefix is not None
    kept = {key: tensor for key, tensor in tensors.items() if not (prefix and _TEXT.match(key))}
    left = len(tensors) - len(kept)
    said = header.config.heads if header is not None and isinstance(header.config, ViTConfig) else None
    config, found = _config(kept, prefix, hints, said, where=where)
    if header is not None:
        whole = adopted(config, header, hints, where=where)
        assert isinstance(whole, ViTConfig)
        config, found = whole, []
    elif hints.profile is None:
        found.append(
            "the quick GELU is a guess, as in OpenAI's own files: open_clip's other models have the exact one (profile='timm')"
        )
    state = to_ours(kept, list(clip_rows(config, prefix)), native_shapes(config), where=where)
    preprocess, fed = guessed(config, "clip") if header is None else (header.preprocess, [])
    return Reading(
        format=FORMAT,
        config=config,
        state=state,
        preprocess=preprocess,
        notes=(*notes, *([f"left out: the text half ({left} tensors)"] if left else []), *found, *fed),
    )


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The vision half under OpenAI's names, each after `visual.`."""
    vit = only_vit(config, FORMAT)
    lacks = [
        *([] if vit.norm.before else ["a model without a norm before the encoder"]),
        *([] if vit.projection_width else ["a model without a projection (projection_width=0)"]),
        *([f"a head (num_classes={vit.num_classes})"] if vit.num_classes else []),
        *(
            [f"heads that are not 64 wide, which OpenAI's code takes for granted (heads={vit.heads})"]
            if vit.width != 64 * vit.heads
            else []
        ),
    ]
    refuse(vit, CAN, also=lacks)
    tensors = to_theirs(state, list(clip_rows(vit, PREFIX)), native_shapes(vit))
    notes = (
        [] if vit.numerics.gelu == "quick" else ["open_clip reads this as a model without quick GELU; OpenAI's code has no other"]
    )
    return Written(
        container="safetensors",
        tensors=tensors,
        metadata=metadata_of(vit, preprocess, labels),
        notes=tuple(notes),
    )


def _prefix(tensors: dict[str, Tensor]) -> str | None:
    """What stands before the names of the vision half; None if there is none."""
    return next((prefix for prefix in (PREFIX, "") if all(f"{prefix}{mark}" in tensors for mark in MARKS)), None)


def _config(tensors: dict[str, Tensor], prefix: str, hints: Hints, said: int | None, *, where: str) -> tuple[ViTConfig, list[str]]:
    width, channels, *patch = shape_of(tensors, f"{prefix}conv1.weight", 4, where=where)
    depth = count(tensors, f"{prefix}transformer.resblocks.{{}}.", where=where)
    mlp_width, _ = shape_of(tensors, f"{prefix}transformer.resblocks.0.mlp.c_fc.weight", 2, where=where)
    heads, notes = heads_of(width, depth, mlp_width, given=hints.heads, said=said, where=where)
    rows, _ = shape_of(tensors, f"{prefix}positional_embedding", 2, where=where)
    places = places_of(rows, 1, given=hints.grid, said=None, without=False, where=where)
    patch_size, numerics = (patch[0], patch[1]), numerics_of(hints, NUMERICS)
    if hints.profile is not None:
        numerics = replace(numerics, norm_eps=NUMERICS.norm_eps)  # which every CLIP has
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
            projection_width=shape_of(tensors, f"{prefix}proj", 2, where=where)[1],
            norm=Norm(before=True),
            numerics=numerics,
        )
    return config, [*notes, *places.notes]


def clip_rows(config: ViTConfig, prefix: str) -> Iterator[Row]:
    """The rows of the vision half."""
    width = config.width
    yield same("patches.weight", f"{prefix}conv1.weight")
    yield shaped("class_token", f"{prefix}class_embedding", (1, 1, width), (width,))
    yield shaped("position.table", f"{prefix}positional_embedding", (1, -1, width), (-1, width))
    yield from layer("encoder.pre_norm", f"{prefix}ln_pre")
    for i in range(config.depth):
        ours, theirs = f"encoder.blocks.{i}", f"{prefix}transformer.resblocks.{i}"
        yield from layer(f"{ours}.norm1", f"{theirs}.ln_1")
        for part in ("weight", "bias"):
            yield same(f"{ours}.attention.qkv.{part}", f"{theirs}.attn.in_proj_{part}")
        yield from layer(f"{ours}.attention.out", f"{theirs}.attn.out_proj")
        yield from layer(f"{ours}.norm2", f"{theirs}.ln_2")
        yield from layer(f"{ours}.mlp.up", f"{theirs}.mlp.c_fc")
        yield from layer(f"{ours}.mlp.down", f"{theirs}.mlp.c_proj")
    yield from layer("encoder.norm", f"{prefix}ln_post")
    if config.projection_width:
        yield turned("projection.weight", f"{prefix}proj")
