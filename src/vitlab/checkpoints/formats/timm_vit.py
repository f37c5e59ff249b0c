"""timm's Vision Transformers: VisionTransformer, distilled and hybrid ones, relpos, BEiT, EVA and NaFlex, in one table of rows.

What a file does not show (whether norms stand before or after the branches, which GELU, which rotary positions) is said by its
architecture: the one that its config.json names, or the only style of `vitlab.config.timm_names` that has its keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from vitlab.checkpoints.formats.bit import has_stem, stem_config, stem_rows
from vitlab.checkpoints.formats.contract import Hints, Row, layer, same, shaped, stacked
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
from vitlab.config.timm_names import STYLES, style_of, timm_vit
from vitlab.config.vit import PROFILES, Gelu, Pool, Position, ViTConfig
from vitlab.config.vit_parts import RelativeBias, ResNetStem
from vitlab.errors import CheckpointError

Tensors = dict[str, Tensor]

LEFT_OUT = re.compile(
    r"mask_token|decoder_.*|lm_head\..*|.*relative_position_index|(?:blocks\.\d+\.attn\.)?rope\.freqs_(?:cos|sin)"
)
"""Keys of pre-training and of buffers that no image model needs: the decoder of MAE, the mask token, what is computed anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a config.json or a header says about the model; None for what it does not say.

    `grid` is in patches (down, across), `image_size` in pixels (height, width); the grid goes before it. `style` is a model
    with all that the tensors cannot show.
    """

    heads: int | None = None
    grid: tuple[int, int] | None = None
    image_size: tuple[int, int] | None = None
    pool: Pool | None = None
    gelu: Gelu | None = None
    style: ViTConfig | None = None


def without_leftovers(tensors: Tensors) -> tuple[Tensors, list[str]]:
    """The tensors without those of pre-training, and a note that names them."""
    left = [key for key in tensors if LEFT_OUT.fullmatch(key)]
    if not left:
        return tensors, []
    kinds = sorted({re.sub(r"\.\d+", "", key).partition(".")[0] if "decoder" in key else re.sub(r"\d+", "*", key) for key in left})
    return {key: tensor for key, tensor in tensors.items() if key not in left}, [f"left out: {', '.join(kinds)}"]


def is_vit(tensors: Tensors) -> bool:
    """Whether the tensors carry the names of one of timm's Vision Transformers."""
    embeds = "patch_embed.proj.weight" in tensors or "embeds.proj.weight" in tensors
    return embeds and any(f"blocks.0.{name}.weight" in tensors for name in ("norm1", "in_norm", "attns.0.norm"))


def vit_config(tensors: Tensors, hints: Hints, said: Said, *, where: str) -> tuple[ViTConfig, list[str]]:
    """The ViT in a timm file, with notes of what was guessed."""
    style, notes = said.style, list[str]()
    if style is None:
        style, notes = _guessed_style(tensors, where=where)
    width, channels, patch_size = _patches(tensors, hints, style, where=where)
    depth = count(tensors, "blocks.{}.", where=where)
    mlp_width = shape_of(tensors, next((key for key in _LAST_DENSE if key in tensors), _LAST_DENSE[0]), 2, where=where)[1]
    own = (style.width, style.depth) == (width, depth) or style.width != 64 * style.heads  # the size, or unusual heads, of a name
    named = style.heads if said.style is not None and own and width % style.heads == 0 else None
    heads, guessed = heads_of(width, depth, mlp_width, given=hints.heads, said=said.heads or named, where=where)
    stem = None
    if has_stem(tensors):
        stem, channels = stem_config(tensors, hints, where=where)
    registers = next((shape_of(tensors, key, 3, where=where)[1] for key in ("reg_token", "embeds.reg_token") if key in tensors), 0)
    class_token = "cls_token" in tensors or "embeds.cls_token" in tensors
    prefix = class_token + ("dist_token" in tensors) + registers
    position, places = _position(tensors, hints, said, style, prefix, _step(patch_size, stem), where=where)
    pool, norm_after_pool, pool_notes = _pool(tensors, said.pool or (None if style is PLAIN else style.pool), where=where)
    key_bias, qkv_bias = _biases(tensors)
    scaled = any(key.endswith((".gamma", ".gamma_1")) for key in tensors)
    normed = any(key.startswith(("norm.", "fc_norm.")) for key in tensors)
    pooling = replace(style.pooling, prefix=style.pooling.prefix and pool in ("mean", "map"), heads=0, mlp_width=0)
    if pool == "map" and style.pooling.heads:
        pooling = replace(pooling, heads=style.pooling.heads, mlp_width=outputs(tensors, ("attn_pool.mlp.fc1.weight",), 0))
    numerics = numerics_of(hints, replace(style.numerics, gelu=said.gelu or style.numerics.gelu))
    with making(where):
        config = replace(
            style,
            width=width,
            depth=depth,
            heads=heads,
            mlp_width=mlp_width,
            patch_size=patch_size,
            image_size=_image_size(places.grid, patch_size, stem, style, said),
            channels=channels,
            num_classes=outputs(tensors, ("head.weight", "head.bias"), 0),
            stem=stem,
            conv_stem=None,
            pool=pool,
            class_token=class_token,
            distill_token="dist_token" in tensors,
            register_tokens=registers,
            representation_width=outputs(tensors, ("pre_logits.fc.weight", "pre_logits.fc.bias"), 0),
            norm_after_pool=norm_after_pool,
            position=position,
            qkv_bias=qkv_bias,
            layer_scale=(style.layer_scale or 1e-5) if scaled else 0.0,  # as it began, which matters no more
            norm=replace(style.norm, last=normed),
            projections=replace(style.projections, key_bias=key_bias, kv_heads=_shared_heads(tensors, depth, width // heads)),
            pooling=pooling,
            numerics=numerics,
        )
    return config, [*notes, *guessed, *places.notes, *pool_notes]


_LAST_DENSE = ("blocks.0.mlp.fc2.weight", "blocks.0.mlp_out_proj.weight", "blocks.0.ffns.0.mlp.fc2.weight")


def vit_rows(config: ViTConfig) -> Iterator[Row]:
    """The rows of a timm ViT; which of timm's modules has it follows from the config."""
    yield from _embedding(config)
    rotary = config.position.rotary
    if rotary is not None and rotary.kind == "mixed":
        yield same("position.frequencies", "rope.freqs")
    if config.position.bias is not None:
        yield from _bias(config.position.bias, config.depth)
    if config.norm.before:
        yield from _norm(config, "encoder.pre_norm", "norm_pre")
    for i in range(config.depth):
        ours, theirs = f"encoder.blocks.{i}", f"blocks.{i}"
        if config.parallel == "mlp":
            yield from _parallel_block(config, ours, theirs)
        elif config.parallel == "branches":
            for j in range(2):
                yield from _branch(config, f"{ours}.branches.{j}", theirs, j)
        else:
            yield from _block(config, ours, theirs)
    if config.norm_after_pool:
        yield from _norm(config, "pool_norm", "fc_norm")
    elif config.norm.last:
        yield from _norm(config, "encoder.norm", "norm")
    if config.pool == "map":
        yield same("pool.probe", "attn_pool.latent")
        for ours, theirs in MAP:
            yield from layer(f"pool.{ours}", f"attn_pool.{theirs}", bias=ours != "norm" or config.norm.kind == "layer")
    if config.representation_width:
        yield from layer("representation", "pre_logits.fc")
    if config.num_classes:
        yield from layer("head", "head")
        if config.distill_token:
            yield from layer("distill_head", "head_dist")


MAP = (("query", "q"), ("key_value", "kv"), ("out", "proj"), ("norm", "norm"), ("mlp.up", "mlp.fc1"), ("mlp.down", "mlp.fc2"))


def is_evas(config: ViTConfig) -> bool:
    """Whether timm's BEiT or EVA class holds this model: they have other names for layer scale."""
    bias = config.position.bias
    return config.position.rotary is not None or not config.projections.key_bias or (bias is not None and bias.kind == "table")


def _packed(config: ViTConfig) -> bool:
    """Whether timm keeps gate and value of a gated MLP in one layer; not where a norm follows or where widths are aligned."""
    rotary = config.position.rotary
    aligned = rotary is not None and rotary.kind == "centred" and not config.projections.qk_norm  # DINOv3
    return config.mlp.bias and not config.mlp.norm and not aligned


def _separate_qkv(config: ViTConfig) -> bool:
    """Whether timm keeps q, k and v in layers of their own: EVA-02 from B on, and Sapiens 2."""
    return config.position.rotary is not None and ((config.mlp.gated and config.mlp.norm) or config.projections.qk_norm)


def _embedding(config: ViTConfig) -> Iterator[Row]:
    where = "embeds." if config.position.grid is not None else ""  # NaFlex
    if config.stem is not None:
        yield from stem_rows(config.stem)
    if where:
        yield _channels_last("patches.weight", "embeds.proj.weight", config.patch_size)
        yield same("patches.bias", "embeds.proj.bias")
    else:
        yield from layer("patches", "patch_embed.proj", bias=not config.norm.before)
    if config.norm.patches:
        yield from _norm(config, "patch_norm", "patch_embed.norm")
    if config.class_token:
        yield same("class_token", f"{where}cls_token")
    if config.distill_token:
        yield same("distill_token", "dist_token")
    if config.register_tokens:
        yield same("register_tokens", f"{where}reg_token")
    if config.position.kind == "learned-1d":
        grid = config.position.grid
        if grid is None:
            yield same("position.table", "pos_embed")
        else:
            yield shaped("position.table", "embeds.pos_embed", (1, -1, config.width), (1, *grid, config.width))


def _channels_last(ours: str, theirs: str, patch_size: tuple[int, int]) -> Row:
    """The patch embedding as a dense layer of pixels in memory order: (D, P Q C) with them."""
    return Row(
        ours=(ours,),
        theirs=(theirs,),
        to_ours=lambda tensors: [tensors[0].reshape(len(tensors[0]), *patch_size, -1).permute(0, 3, 1, 2)],
        to_theirs=lambda tensors: [tensors[0].permute(0, 2, 3, 1).flatten(1)],
    )


def _bias(bias: RelativeBias, depth: int) -> Iterator[Row]:
    for i in range(1 if bias.shared else depth):
        if bias.kind == "table":
            ours = "position.shared_bias" if bias.shared else f"position.bias.{i}"
            theirs = "rel_pos_bias" if bias.shared else f"blocks.{i}.attn"
            yield same(ours, f"{theirs}.relative_position_bias_table")
        else:
            theirs = "shared_rel_pos" if bias.shared else f"blocks.{i}.attn.rel_pos"
            yield from layer(f"position.bias_mlps.{i}.up", f"{theirs}.mlp.fc1")
            yield from layer(f"position.bias_mlps.{i}.down", f"{theirs}.mlp.fc2")


def _norm(config: ViTConfig, ours: str, theirs: str) -> Iterator[Row]:
    yield from layer(ours, theirs, bias=config.norm.kind == "layer")


def _block(config: ViTConfig, ours: str, theirs: str) -> Iterator[Row]:
    yield from _norm(config, f"{ours}.norm1", f"{theirs}.norm1")
    yield from _attention(config, f"{ours}.attention", f"{theirs}.attn")
    yield from _norm(config, f"{ours}.norm2", f"{theirs}.norm2")
    yield from _mlp(config, f"{ours}.mlp", f"{theirs}.mlp")
    if config.layer_scale:
        names = ("gamma_1", "gamma_2") if is_evas(config) else ("ls1.gamma", "ls2.gamma")
        yield same(f"{ours}.scale1", f"{theirs}.{names[0]}")
        if config.layer_scale_on == "both":
            yield same(f"{ours}.scale2", f"{theirs}.{names[1]}")


def _attention(config: ViTConfig, ours: str, theirs: str) -> Iterator[Row]:
    form = config.projections
    if _separate_qkv(config):
        yield _split_qkv(config, f"{ours}.qkv.weight", [f"{theirs}.{part}_proj.weight" for part in "qkv"])
        if config.qkv_bias and form.key_bias:
            yield _split_qkv(config, f"{ours}.qkv.bias", [f"{theirs}.{part}_proj.bias" for part in "qkv"])
    else:
        yield from layer(f"{ours}.qkv", f"{theirs}.qkv", bias=config.qkv_bias and form.key_bias)
    if config.qkv_bias and not form.key_bias:
        names = ("q_proj.bias", "v_proj.bias") if _separate_qkv(config) else ("q_bias", "v_bias")
        yield same(f"{ours}.query_bias", f"{theirs}.{names[0]}")
        yield same(f"{ours}.value_bias", f"{theirs}.{names[1]}")
    if form.qk_norm:
        yield from _norm(config, f"{ours}.query_norm", f"{theirs}.q_norm")
        yield from _norm(config, f"{ours}.key_norm", f"{theirs}.k_norm")
    if form.out_norm:
        yield from _norm(config, f"{ours}.norm", f"{theirs}.norm")
    yield from layer(f"{ours}.out", f"{theirs}.proj", bias=form.out_bias)


def _split_qkv(config: ViTConfig, ours: str, theirs: list[str]) -> Row:
    """q, k and v in tensors of their own; with shared heads, k and v are smaller."""
    if not config.projections.kv_heads:
        return stacked(ours, theirs)
    width = config.width
    return Row(
        ours=(ours,),
        theirs=tuple(theirs),
        to_ours=lambda tensors: [torch.cat(list(tensors))],
        to_theirs=lambda tensors: [tensors[0][:width], *tensors[0][width:].chunk(2)],
    )


def _mlp(config: ViTConfig, ours: str, theirs: str) -> Iterator[Row]:
    if config.mlp.gated and not _packed(config):
        for part in ("weight", "bias") if config.mlp.bias else ("weight",):
            yield stacked(f"{ours}.up.{part}", [f"{theirs}.fc1_g.{part}", f"{theirs}.fc1_x.{part}"])
    else:
        yield from layer(f"{ours}.up", f"{theirs}.fc1", bias=config.mlp.bias)
    if config.mlp.norm:
        yield from _norm(config, f"{ours}.norm", f"{theirs}.norm")
    yield from layer(f"{ours}.down", f"{theirs}.fc2", bias=config.mlp.bias)


def _parallel_block(config: ViTConfig, ours: str, theirs: str) -> Iterator[Row]:
    """One dense layer gives the MLP's hidden values and q, k and v."""
    yield from _norm(config, f"{ours}.norm1", f"{theirs}.in_norm")
    hidden = config.mlp_width
    for part in ("weight", "bias") if config.qkv_bias else ("weight",):
        yield Row(
            ours=(f"{ours}.mlp.up.{part}", f"{ours}.attention.qkv.{part}"),
            theirs=(f"{theirs}.in_proj.{part}",),
            to_ours=lambda tensors: [tensors[0][:hidden], tensors[0][hidden:]],
            to_theirs=lambda tensors: [torch.cat(list(tensors))],
        )
    if not config.qkv_bias:
        yield same(f"{ours}.mlp.up.bias", f"{theirs}.mlp_bias")
    if config.projections.qk_norm:
        yield from _norm(config, f"{ours}.attention.query_norm", f"{theirs}.q_norm")
        yield from _norm(config, f"{ours}.attention.key_norm", f"{theirs}.k_norm")
    yield from layer(f"{ours}.attention.out", f"{theirs}.attn_out_proj")
    yield from layer(f"{ours}.mlp.down", f"{theirs}.mlp_out_proj")
    if config.layer_scale:
        yield same(f"{ours}.scale1", f"{theirs}.ls.gamma")


def _branch(config: ViTConfig, ours: str, theirs: str, number: int) -> Iterator[Row]:
    attention, mlp = f"{theirs}.attns.{number}", f"{theirs}.ffns.{number}"
    yield from _norm(config, f"{ours}.norm1", f"{attention}.norm")
    yield from _attention(config, f"{ours}.attention", f"{attention}.attn")
    yield from _norm(config, f"{ours}.norm2", f"{mlp}.norm")
    yield from _mlp(config, f"{ours}.mlp", f"{mlp}.mlp")
    if config.layer_scale:
        yield same(f"{ours}.scale1", f"{attention}.ls.gamma")
        yield same(f"{ours}.scale2", f"{mlp}.ls.gamma")


def _patches(tensors: Tensors, hints: Hints, style: ViTConfig, *, where: str) -> tuple[int, int, tuple[int, int]]:
    """Width, channels and patch size."""
    if "embeds.proj.weight" not in tensors:
        width, channels, *patch = shape_of(tensors, "patch_embed.proj.weight", 4, where=where)
        return width, channels, (patch[0], patch[1])
    width, pixels = shape_of(tensors, "embeds.proj.weight", 2, where=where)
    channels, over = divmod(pixels, style.patch_size[0] * style.patch_size[1])
    if over or not channels:
        raise CheckpointError(f"{where}: embeds.proj.weight takes {pixels} values, which are not patches of {style.patch_size}")
    return width, channels, style.patch_size


def _biases(tensors: Tensors) -> tuple[bool, bool]:
    """Whether keys have a bias where queries and values do, and whether these do."""
    whole = any(key.endswith((".attn.qkv.bias", ".in_proj.bias", ".attn.k_proj.bias")) for key in tensors)
    apart = any(key.endswith((".attn.q_bias", ".attn.q_proj.bias")) for key in tensors) and not whole
    return not apart, whole or apart


def _shared_heads(tensors: Tensors, depth: int, head_width: int) -> tuple[int, ...]:
    """The heads of keys and values of each layer; empty where each has as many as queries have."""
    pairs = [(f"blocks.{i}.attn.q_proj.weight", f"blocks.{i}.attn.k_proj.weight") for i in range(depth)]
    if not all(q in tensors and k in tensors and tensors[q].ndim == tensors[k].ndim == 2 for q, k in pairs):
        return ()
    rows = [(tensors[q].shape[0], tensors[k].shape[0]) for q, k in pairs]
    return () if all(q == k for q, k in rows) else tuple(max(1, k // max(head_width, 1)) for _, k in rows)


def _position(
    tensors: Tensors, hints: Hints, said: Said, style: ViTConfig, prefix: int, step: tuple[int, int], *, where: str
) -> tuple[Position, Places]:
    stated = said.grid
    if stated is None and said.image_size is not None:  # timm leaves what is over at the edge unseen
        stated = (max(1, said.image_size[0] // step[0]), max(1, said.image_size[1] // step[1]))
    form = style.position
    if "embeds.pos_embed" in tensors:
        _, *table, _ = shape_of(tensors, "embeds.pos_embed", 4, where=where)
        grid = hints.grid or stated or (table[0], table[1])
        return replace(form, grid=(table[0], table[1])), Places(grid=grid, prefix=False)
    if "pos_embed" in tensors:
        _, rows, _ = shape_of(tensors, "pos_embed", 3, where=where)
        places = places_of(rows, prefix, given=hints.grid, said=stated, without=True, where=where)
        return replace(form, kind="learned-1d", place="stem", prefix=places.prefix, registers=True, grid=None), places
    bias, notes = form.bias, list[str]()
    if bias is not None and bias.kind == "mlp":
        hidden = outputs(tensors, ("shared_rel_pos.mlp.fc1.weight", "blocks.0.attn.rel_pos.mlp.fc1.weight"), 0)
        form = replace(form, bias=replace(bias, hidden=hidden or bias.hidden))
    grid = hints.grid or stated or _grid_of_bias(tensors) or (max(1, 224 // step[0]), max(1, 224 // step[1]))
    if form.rotary is None and bias is None:
        notes.append("there is no pos_embed: a model without positions")
    if hints.grid is None and stated is None and _grid_of_bias(tensors) is None:
        notes.append(f"grid={grid[0]}x{grid[1]} is a guess (224 pixels): without positions nothing in the file says")
    return replace(form, kind="none", prefix=True, grid=None), Places(grid=grid, prefix=True, notes=tuple(notes))


def _grid_of_bias(tensors: Tensors) -> tuple[int, int] | None:
    """The square grid of BEiT's tables."""
    rows = outputs(tensors, ("blocks.0.attn.relative_position_bias_table", "rel_pos_bias.relative_position_bias_table"), 0) - 3
    side = math.isqrt(rows) if rows > 0 else 0
    return ((side + 1) // 2, (side + 1) // 2) if side * side == rows and side % 2 else None


def _pool(tensors: Tensors, said: Pool | None, *, where: str) -> tuple[Pool, bool, list[str]]:
    """The pooling, whether the last LayerNorm follows it, and a note if that is a guess."""
    after = any(key.startswith("fc_norm.") for key in tensors)
    class_token = "cls_token" in tensors or "embeds.cls_token" in tensors
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


def _image_size(
    grid: tuple[int, int], patch_size: tuple[int, int], stem: ResNetStem | None, style: ViTConfig, said: Said
) -> tuple[int, int]:
    """The image size of that grid; where images are cropped to whole patches, what is said of them."""
    whole = image_size_of(grid, patch_size, stem)
    if not style.crop or said.image_size is None:
        return whole
    over = [side - covered for side, covered in zip(said.image_size, whole, strict=True)]
    return said.image_size if all(0 <= pixels < side for pixels, side in zip(over, patch_size, strict=True)) else whole


def _step(patch_size: tuple[int, int], stem: ResNetStem | None) -> tuple[int, int]:
    return image_size_of((1, 1), patch_size, stem)


PLAIN = ViTConfig(width=64, depth=1, heads=1, mlp_width=64, numerics=PROFILES["timm"])
_HEADS = re.compile(r"(?:head|head_dist|pre_logits\.fc)\.(?:weight|bias)")
_PLAINS_KEYS = re.compile(
    r"patch_embed\.(?!norm\.).*|(?:norm|fc_norm)\.(?:weight|bias)|attn_pool\..*|(?:cls|dist|reg)_token|pos_embed"
    r"|blocks\.0\.(?:norm[12]|attn\.(?:qkv|proj)|mlp\.fc[12])\.(?:weight|bias)|blocks\.0\.ls[12]\.gamma"
)


def _guessed_style(tensors: Tensors, *, where: str) -> tuple[ViTConfig, list[str]]:
    """The style of a file that names no architecture: the plain ViT's, or that of the only published models with such keys."""
    gated = _is_gated(tensors)
    fitting = [
        number
        for number, keys in enumerate(_keys_of_styles())
        if keys == _first_keys(tensors) and (gated is None or gated == STYLES[number][0].mlp.gated)
    ]
    if _is_plain(tensors):
        posts = [STYLES[number][1].split()[0] for number in fitting if STYLES[number][0].norm.place == "res-post"]
        if posts and len(posts) == len(fitting):
            raise _undecided(where, [posts[0], "a ViT whose norms stand before the branches"])
        return PLAIN, []
    if len({_function(STYLES[number][0]) for number in fitting}) > 1:  # the size may tell
        fitting = [number for number in fitting if _has_this_size(tensors, STYLES[number][1].split())] or fitting
    names = [STYLES[number][1].split()[0] for number in fitting]
    odd = [key for key in _first_keys(tensors) if not _PLAINS_KEYS.fullmatch(key)]
    if not fitting and not gated and (not odd or "blocks.0.attn.qkv.weight" in tensors):
        return PLAIN, []  # the table names the keys that are missing or do not belong to it
    if not fitting:
        raise CheckpointError(
            f"{where} is one of timm's Vision Transformers, but with these keys of none that vitlab knows: {', '.join(odd[:6])}",
            hint="put timm's config.json beside the file: it names the architecture",
        )
    if len({_function(STYLES[number][0]) for number in fitting}) > 1:
        raise _undecided(where, names)
    style = STYLES[fitting[0]][0]
    return style, [
        f"{', '.join(style.traits) or 'the function'} as in timm's {names[0]}, a guess from the keys: the file does not say"
    ]


def _undecided(where: str, names: list[str]) -> CheckpointError:
    return CheckpointError(
        f"{where} could be {' or '.join(dict.fromkeys(names))}, which have the same tensors and compute different things",
        hint="put timm's config.json beside the file: it names the architecture",
    )


def _is_plain(tensors: Tensors) -> bool:
    """Whether all keys are those of the paper's encoder: LayerNorms, a GELU between two dense layers, one layer for q, k and v."""
    norms = any(key in tensors for key in ("norm.bias", "fc_norm.bias")) and "blocks.0.norm1.bias" in tensors
    return norms and not _is_gated(tensors) and all(_PLAINS_KEYS.fullmatch(key) for key in _first_keys(tensors))


def _is_gated(tensors: Tensors) -> bool | None:
    """Whether the MLP's first layer holds gate and value; None where other keys show it."""
    up, down = tensors.get("blocks.0.mlp.fc1.weight"), tensors.get("blocks.0.mlp.fc2.weight")
    if up is None or down is None or up.ndim != 2 or down.ndim != 2:
        return None
    return up.shape[0] == 2 * down.shape[1]


def _first_keys(tensors: Tensors) -> frozenset[str]:
    """The keys of the first layer and of what is outside of layers, without the heads."""
    return frozenset(key for key in tensors if not re.match(r"blocks\.(?!0\.)", key) and not _HEADS.fullmatch(key))


@cache
def _keys_of_styles() -> tuple[frozenset[str], ...]:
    return tuple(frozenset(key for row in vit_rows(replace(style, num_classes=0)) for key in row.theirs) for style, _ in STYLES)


def _function(style: ViTConfig) -> ViTConfig:
    """What two styles share that compute the same thing from the same tensors: what these show is left out."""
    bias = style.position.bias
    shown = None if bias is None else replace(bias, hidden=1)
    position = replace(style.position, bias=shown)
    return style_of(replace(style, image_size=(16, 16), crop=False, pool=style.pool, register_tokens=0, position=position))


def _has_this_size(tensors: Tensors, names: list[str]) -> bool:
    """Whether one of these architectures has the width, the depth and the MLP of the file."""
    down = next((tensors[key] for key in _LAST_DENSE if key in tensors), None)
    depth = len({key.split(".")[1] for key in tensors if key.startswith("blocks.")})
    sizes = {(config.width, config.mlp_width, config.depth) for config in map(timm_vit, names)}
    return down is not None and (*down.shape, depth) in sizes
