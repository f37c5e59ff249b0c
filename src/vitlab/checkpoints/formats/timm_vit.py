"""timm's VisionTransformer layout: class, mean and attention pooling, registers, layer scale, DeiT's distillation, hybrids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from vitlab.checkpoints.formats.contract import Hints
from vitlab.checkpoints.formats.infer import (
    Places,
    count,
    heads_of,
    image_size_of,
    making,
    numerics_of,
    outputs,
    places_of,
    shape_of,
)
from vitlab.checkpoints.formats.resnet import has_stem, stem_config, stem_rows
from vitlab.checkpoints.table import Row, layer, same
from vitlab.config.stems import ResNetStem
from vitlab.config.vit import PROFILES, Gelu, Numerics, Pool, Position, ViTConfig
from vitlab.errors import CheckpointError

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a config.json or a header says about the model; None for what it does not say.

    `grid` is in patches (down, across), `image_size` in pixels (height, width); the grid goes before it.
    """

    heads: int | None = None
    grid: tuple[int, int] | None = None
    image_size: tuple[int, int] | None = None
    pool: Pool | None = None
    gelu: Gelu | None = None


def vit_config(tensors: Tensors, hints: Hints, said: Said, *, where: str) -> tuple[ViTConfig, list[str]]:
    """The ViT in a timm file, with notes of what was guessed."""
    width, channels, *patch = shape_of(tensors, "patch_embed.proj.weight", 4, where=where)
    depth = count(tensors, "blocks.{}.", where=where)
    mlp_width, _ = shape_of(tensors, "blocks.0.mlp.fc1.weight", 2, where=where)
    heads, notes = heads_of(width, depth, mlp_width, given=hints.heads, said=said.heads, where=where)
    patch_size = (patch[0], patch[1])
    stem = None
    if has_stem(tensors):
        stem, channels = stem_config(tensors, hints, where=where)
    registers = shape_of(tensors, "reg_token", 3, where=where)[1] if "reg_token" in tensors else 0
    prefix = ("cls_token" in tensors) + ("dist_token" in tensors) + registers
    position, places = _position(tensors, hints, said, prefix, _step(patch_size, stem), where=where)
    pool, norm_after_pool, pool_notes = _pool(tensors, said.pool, where=where)
    numerics = numerics_of(hints, _numerics(said.gelu))
    with making(where):
        config = ViTConfig(
            width=width,
            depth=depth,
            heads=heads,
            mlp_width=mlp_width,
            patch_size=patch_size,
            image_size=image_size_of(places.grid, patch_size, stem),
            channels=channels,
            num_classes=outputs(tensors, ("head.weight", "head.bias"), 0),
            stem=stem,
            pool=pool,
            class_token="cls_token" in tensors,
            distill_token="dist_token" in tensors,
            register_tokens=registers,
            representation_width=outputs(tensors, ("pre_logits.fc.weight", "pre_logits.fc.bias"), 0),
            norm_after_pool=norm_after_pool,
            position=position,
            qkv_bias=any(key.endswith(".attn.qkv.bias") for key in tensors),
            layer_scale=1e-5 if any(key.endswith(".gamma") for key in tensors) else 0.0,  # as it began, which matters no more
            numerics=numerics,
        )
    return config, [*notes, *places.notes, *pool_notes]


def vit_rows(config: ViTConfig) -> Iterator[Row]:
    """The rows of a timm ViT."""
    if config.stem is not None:
        yield from stem_rows(config.stem)
    yield from layer("patches", "patch_embed.proj")
    if config.class_token:
        yield same("class_token", "cls_token")
    if config.distill_token:
        yield same("distill_token", "dist_token")
    if config.register_tokens:
        yield same("register_tokens", "reg_token")
    if config.position.kind == "learned-1d":
        yield same("position.table", "pos_embed")
    for i in range(config.depth):
        yield from _block(config, f"encoder.blocks.{i}", f"blocks.{i}")
    if config.norm_after_pool:
        yield from layer("pool_norm", "fc_norm")
    else:
        yield from layer("encoder.norm", "norm")
    if config.pool == "map":
        yield same("pool.probe", "attn_pool.latent")
        for ours, theirs in MAP:
            yield from layer(f"pool.{ours}", f"attn_pool.{theirs}")
    if config.representation_width:
        yield from layer("representation", "pre_logits.fc")
    if config.num_classes:
        yield from layer("head", "head")
        if config.distill_token:
            yield from layer("distill_head", "head_dist")


MAP = (("query", "q"), ("key_value", "kv"), ("out", "proj"), ("norm", "norm"), ("mlp.up", "mlp.fc1"), ("mlp.down", "mlp.fc2"))


def _block(config: ViTConfig, ours: str, theirs: str) -> Iterator[Row]:
    yield from layer(f"{ours}.norm1", f"{theirs}.norm1")
    yield from layer(f"{ours}.attention.qkv", f"{theirs}.attn.qkv", bias=config.qkv_bias)
    yield from layer(f"{ours}.attention.out", f"{theirs}.attn.proj")
    yield from layer(f"{ours}.norm2", f"{theirs}.norm2")
    yield from layer(f"{ours}.mlp.up", f"{theirs}.mlp.fc1")
    yield from layer(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")
    if config.layer_scale:
        yield same(f"{ours}.scale1", f"{theirs}.ls1.gamma")
        yield same(f"{ours}.scale2", f"{theirs}.ls2.gamma")


def _position(
    tensors: Tensors, hints: Hints, said: Said, prefix: int, step: tuple[int, int], *, where: str
) -> tuple[Position, Places]:
    stated = said.grid
    if stated is None and said.image_size is not None:  # timm leaves what is over at the edge unseen
        stated = (max(1, said.image_size[0] // step[0]), max(1, said.image_size[1] // step[1]))
    if "pos_embed" in tensors:
        _, rows, _ = shape_of(tensors, "pos_embed", 3, where=where)
        places = places_of(rows, prefix, given=hints.grid, said=stated, without=True, where=where)
        return Position(kind="learned-1d", place="stem", prefix=places.prefix), places
    grid = hints.grid or stated or (max(1, 224 // step[0]), max(1, 224 // step[1]))
    notes = ["there is no pos_embed: a model without positions"]
    if hints.grid is None and stated is None:
        notes.append(f"grid={grid[0]}x{grid[1]} is a guess (224 pixels): without positions nothing in the file says")
    return Position(kind="none"), Places(grid=grid, prefix=True, notes=tuple(notes))


def _pool(tensors: Tensors, said: Pool | None, *, where: str) -> tuple[Pool, bool, list[str]]:
    """The pooling, whether the last LayerNorm follows it, and a note if that is a guess."""
    after = any(key.startswith("fc_norm.") for key in tensors)
    class_token = "cls_token" in tensors
    by_attention = any(key.startswith("attn_pool.") for key in tensors)
    if by_attention != (said == "map") and said is not None:
        raise CheckpointError(f"{where}: config.json says global_pool={said!r}, which the tensors of the attention pool contradict")
    if by_attention:
        return "map", False, []
    if said is not None:
        return said, after, []
    if after and class_token and "dist_token" not in tensors:
        return "mean", True, ["pool='mean' is a guess from fc_norm: the file does not say"]
    return ("token" if class_token else "mean"), after, []


def _step(patch_size: tuple[int, int], stem: ResNetStem | None) -> tuple[int, int]:
    return image_size_of((1, 1), patch_size, stem)


def _numerics(gelu: Gelu | None) -> Numerics:
    timm = PROFILES["timm"]
    return Numerics(gelu=gelu or timm.gelu, norm_eps=timm.norm_eps, resize=timm.resize)
