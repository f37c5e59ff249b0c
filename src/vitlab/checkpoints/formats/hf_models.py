"""transformers' Vision Transformers: what each of its classes calls the parts of a ViT, config.json, and the rows.

A class of transformers is a row of names, with the numerics that it assumes where config.json is silent. What a model has beyond
the paper's ViT shows in its tensors and becomes a field of `ViTConfig`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitlab.checkpoints.formats import bit, convnext, sidecar, swin
from vitlab.checkpoints.formats.bit import bit_config, bit_rows
from vitlab.checkpoints.formats.contract import Hints, Row, layer, same, shaped, stacked
from vitlab.checkpoints.formats.convnext import convnext_config, convnext_rows
from vitlab.checkpoints.formats.efficientnet import without_counters
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
from vitlab.checkpoints.formats.sidecar import Read, Sidecar, Tensors, cannot_write, expect, one_or_two
from vitlab.checkpoints.formats.swin import swin_config, swin_rows, without_computed
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import HEAD, SCALES, STEM, EfficientNetConfig, scaled_width
from vitlab.config.resnet import ResNetConfig
from vitlab.config.serialize import Json
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import Gelu, Numerics, Pool, Position, PositionResize, ViTConfig
from vitlab.config.vit_parts import FeedForward, Norm, Projections, RelativeBias, Rotary
from vitlab.errors import CheckpointError

SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_channels")  # which the tensors show too
GELUS: dict[str, Gelu] = {
    "gelu": "exact",
    "gelu_python": "exact",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
    "quick_gelu": "quick",
    "silu": "exact",  # the gate of DINOv3's MLP: no GELU is left
}
WRITTEN: dict[Gelu, str] = {"exact": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a class calls the parts of a ViT, after its prefix; the defaults are those of ViT's files on the Hub.

    `flat`: the class token is a vector and the positions are a matrix. `gated` are the layers of a gated MLP: gate, value and
    output, or gate and value in one. `pool` is how the class without a head pools and `head_pool` how its classifier does.
    `gelu`, `norm_eps`, `heads`, `rotary` and `resize` are transformers' defaults.
    """

    prefix: str = "vit."
    patches: str = "embeddings.patch_embeddings.projection"
    class_token: str = "embeddings.cls_token"
    distill_token: str = "embeddings.distillation_token"
    register_tokens: str = "embeddings.register_tokens"
    positions: str = "embeddings.position_embeddings"
    flat: bool = False
    pre_norm: str = "pre_layrnorm"  # so spelled by transformers
    layers: str = "encoder.layer"
    norms: tuple[str, str] = ("layernorm_before", "layernorm_after")
    qkv: tuple[str, str, str] = ("attention.attention.query", "attention.attention.key", "attention.attention.value")
    out: str = "attention.output.dense"
    mlp: tuple[str, str] = ("intermediate.dense", "output.dense")
    gated: tuple[str, ...] = ()
    scales: tuple[str, str] = ("lambda_1", "lambda_2")
    bias: str = "attention.attention.relative_position_bias.relative_position_bias_table"
    shared_bias: str = "encoder.relative_position_bias.relative_position_bias_table"
    norm: str = "layernorm"
    pool_norm: str = "pooler.layernorm"
    pooler: str = "pooler.dense"
    attention_pool: str = "head"
    projection: str = "visual_projection"
    pool: Pool = "token"
    head_pool: Pool = "token"
    gelu: Gelu = "exact"
    norm_eps: float = 1e-12
    heads: int = 12
    rotary: float | None = None
    resize: PositionResize = "bicubic-plain"

    def of(self, part: str) -> str:
        """A part's name with the prefix."""
        return f"{self.prefix}{part}"


VIT = Names()
DEIT = Names(prefix="deit.")
YOLOS = Names(register_tokens="embeddings.detection_tokens")
MSN = Names(norm_eps=1e-6)
IJEPA = Names(prefix="ijepa.", pool="mean", head_pool="mean")
DINOV2 = Names(
    prefix="dinov2.",
    norms=("norm1", "norm2"),
    mlp=("mlp.fc1", "mlp.fc2"),
    gated=("mlp.weights_in", "mlp.weights_out"),
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    head_pool="token+mean",
    norm_eps=1e-6,
)
DINOV2_REGISTERS = replace(DINOV2, prefix="dinov2_with_registers.", resize="bicubic")
DINOV3 = Names(
    prefix="",
    patches="embeddings.patch_embeddings",
    layers="layer",
    norms=("norm1", "norm2"),
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    out="attention.o_proj",
    mlp=("mlp.up_proj", "mlp.down_proj"),
    gated=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    norm="norm",
    norm_eps=1e-5,
    heads=6,
    rotary=100.0,
)
BEIT = Names(prefix="beit.")
DATA2VEC = Names(prefix="data2vec_vision.")
CLIP = Names(
    prefix="vision_model.",
    patches="embeddings.patch_embedding",
    class_token="embeddings.class_embedding",
    positions="embeddings.position_embedding.weight",
    flat=True,
    layers="encoder.layers",
    norms=("layer_norm1", "layer_norm2"),
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    out="self_attn.out_proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    norm="post_layernorm",
    head_pool="mean",
    gelu="quick",
    norm_eps=1e-5,
)
SIGLIP = replace(CLIP, pool="map", gelu="tanh", norm_eps=1e-6)
SIGLIP2 = replace(SIGLIP, resize="bilinear")


def modules_of(names: Names) -> Names:
    """The same under the names of the modules of transformers 5, which its `state_dict` has and its files do not."""
    return replace(
        names,
        layers="layers",
        qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        out="attention.o_proj",
        mlp=("mlp.fc1", "mlp.fc2"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What a config.json says, None for what it does not say; `notes` if there is no config.json and values are guessed.

    `sizes` are by transformers' names, `patch_size` among them.
    """

    heads: int | None
    sizes: dict[str, int | tuple[int, int] | None]
    image_size: tuple[int, int] | None
    qkv_bias: bool | None
    numerics: Numerics
    dropout: float
    drop_path: float
    layer_scale: float
    pooler_act: str | None
    rotary: float | None
    notes: tuple[str, ...]

    def check(self, found: Mapping[str, int | tuple[int, int]], *, where: str) -> None:
        """Refuse tensors of other sizes than the config says: the file is incomplete or belongs to another config."""
        wrong = [
            f"{name} {self.sizes[name]} against {size}" for name, size in found.items() if self.sizes[name] not in (None, size)
        ]
        if wrong:
            raise CheckpointError(
                f"{where} is not the model of its config.json: {', '.join(wrong)}",
                hint="the file is incomplete, or the config.json beside it is another model's",
            )


def stated_of(data: Sidecar, names: Names, *, where: str) -> Stated:
    """What config.json says; an empty one is that of a file alone, for which transformers' defaults hold."""
    activation = sidecar.text(data, "hidden_act")
    if activation is not None and activation not in GELUS:
        raise CheckpointError(f"config.json says hidden_act={activation!r}, which vitlab does not have", hint=", ".join(GELUS))
    eps, heads = sidecar.number(data, "layer_norm_eps"), sidecar.whole(data, "num_attention_heads")
    gelu = names.gelu if activation is None else GELUS[activation]
    words = f"{'exact' if gelu == 'exact' else gelu} GELU and LayerNorm eps {names.norm_eps:g}"
    scale = sidecar.number(data, "layerscale_value" if "layerscale_value" in data else "layer_scale_init_value")
    with making(where):
        numerics = Numerics(gelu=gelu, norm_eps=names.norm_eps if eps is None else eps, resize=names.resize)
    return Stated(
        heads=names.heads if heads is None and data else heads,
        sizes={**{name: sidecar.whole(data, name) for name in SIZES}, "patch_size": sidecar.size(data, "patch_size")},
        image_size=sidecar.size(data, "image_size"),
        qkv_bias=sidecar.flag(data, "qkv_bias", True) if "qkv_bias" in data else None,
        numerics=numerics,
        dropout=sidecar.number(data, "hidden_dropout_prob") or 0.0,
        drop_path=sidecar.number(data, "drop_path_rate") or 0.0,
        layer_scale=scale or 1e-5,
        pooler_act=sidecar.text(data, "pooler_act"),
        rotary=None if names.rotary is None else sidecar.number(data, "rope_theta") or names.rotary,
        notes=() if data else (f"no config.json: {words} are transformers' defaults",),
    )


def read_vit(tensors: Tensors, data: Sidecar, hints: Hints, names: Names, *, where: str) -> Read:
    """A Vision Transformer of transformers."""
    if f"{names.of('layers')}.0.{names.norms[0]}.weight" in tensors:
        names = modules_of(names)
    stated = stated_of(data, names, where=where)
    config, notes = _config(tensors, names, hints, stated, where=where)
    return Read(config=config, tensors=tensors, rows=list(vit_rows(config, names)), notes=[*stated.notes, *notes])


def _config(tensors: Tensors, names: Names, hints: Hints, stated: Stated, *, where: str) -> tuple[ViTConfig, list[str]]:
    first, patches = f"{names.of(names.layers)}.0", f"{names.of(names.patches)}.weight"
    linear = patches in tensors and tensors[patches].ndim == 2  # SigLIP 2 embeds patches that are cut already
    width, channels, *patch = _linear_patches(tensors, patches, stated) if linear else shape_of(tensors, patches, 4, where=where)
    patch_size = (patch[0], patch[1])
    depth = count(tensors, f"{names.of(names.layers)}.{{}}.", where=where)
    gated = bool(names.gated) and f"{first}.{names.gated[0]}.weight" in tensors
    mlp_width, _ = shape_of(tensors, f"{first}.{names.gated[0] if gated else names.mlp[0]}.weight", 2, where=where)
    if gated and len(names.gated) == 2:
        mlp_width //= 2
    sizes: dict[str, int | tuple[int, int]] = {"hidden_size": width, "num_hidden_layers": depth, "num_channels": channels}
    stated.check(sizes | {"patch_size": patch_size} | ({} if gated else {"intermediate_size": mlp_width}), where=where)
    heads, notes = heads_of(width, depth, mlp_width, given=hints.heads, said=stated.heads, where=where)
    class_token, extra = names.of(names.class_token) in tensors, names.of(names.distill_token) in tensors
    teacher = any(key.startswith(("cls_classifier.", "distillation_classifier.")) for key in tensors)
    registers = outputs(tensors, (names.of(names.register_tokens),), 1)
    placed = class_token + extra + (registers if names is YOLOS else 0)
    position, places = _position(tensors, names, hints, stated, patch_size, prefix=placed, where=where)
    if names is YOLOS:
        position = replace(position, place="every" if names.of(_EVERY) in tensors else "stem")
    else:
        position = replace(position, registers=not (registers and position.kind == "learned-1d"))
    head = "cls_classifier" if teacher else "classifier"
    classes = outputs(tensors, (f"{head}.weight", f"{head}.bias"), 0)
    pool: Pool = names.head_pool if classes else names.pool
    pooled = f"{names.of(names.pool_norm)}.weight" in tensors
    unpooled = pool == "map" and f"{names.of(names.attention_pool)}.probe" not in tensors  # SigLIP's vision_use_head=False
    pool = "mean" if pooled or unpooled or (pool == "token" and not class_token) else pool
    hidden = outputs(tensors, tuple(f"{names.of(names.pooler)}.{part}" for part in ("weight", "bias")), 0)
    if hidden and stated.pooler_act not in (None, "tanh"):
        raise CheckpointError(f"{where}: the pooler's activation {stated.pooler_act!r} is not one that vitlab has", hint="tanh")
    q_bias, k_bias = (any(key.endswith(f".{name}.bias") for key in tensors) for name in names.qkv[:2])
    qkv_bias = q_bias if stated.qkv_bias is None else stated.qkv_bias
    image_size = image_size_of(places.grid, patch_size, None)
    over = stated.image_size is not None and places.grid == _grid(stated.image_size, patch_size) and stated.image_size != image_size
    last = pooled or not class_token or pool != "mean"  # CLIP's classifier reads tokens before its last norm
    numerics = numerics_of(hints, stated.numerics)
    if extra and not teacher:
        notes.append("DeiT's distillation token is kept as a register: no head reads it")
    with making(where):
        config = ViTConfig(
            width=width,
            depth=depth,
            heads=heads,
            mlp_width=mlp_width,
            patch_size=patch_size,
            image_size=stated.image_size if over and stated.image_size is not None else image_size,
            channels=channels,
            num_classes=classes,
            crop=over,
            dynamic_size=names in (DINOV2, DINOV2_REGISTERS, DINOV3, SIGLIP2, YOLOS),
            pool=pool,
            class_token=class_token,
            distill_token=teacher,
            register_tokens=registers or int(extra and not teacher),
            representation_width=hidden,
            projection_width=outputs(tensors, (f"{names.projection}.weight",), 0),
            detection_classes=outputs(tensors, tuple(f"{_CLASSES}.2.{part}" for part in ("weight", "bias")), 0),
            norm_after_pool=pooled,
            position=position,
            qkv_bias=qkv_bias,
            dropout=stated.dropout,
            drop_path=stated.drop_path,
            layer_scale=stated.layer_scale if f"{first}.{names.scales[0]}" in tensors else 0.0,
            norm=Norm(before=f"{names.of(names.pre_norm)}.weight" in tensors, last=last),
            mlp=FeedForward(gated=gated),
            projections=Projections(key_bias=k_bias or not q_bias),
            numerics=numerics,
        )
    return config, [*notes, *places.notes]


def _linear_patches(tensors: Tensors, key: str, stated: Stated) -> tuple[int, int, int, int]:
    """Width, channels and patch of SigLIP 2's dense layer over the pixels of a patch."""
    width, pixels = tensors[key].shape
    patch, channels = stated.sizes["patch_size"] or (16, 16), stated.sizes["num_channels"] or 3
    assert isinstance(patch, tuple)
    assert isinstance(channels, int)
    if patch[0] * patch[1] * channels != pixels:
        side = math.isqrt(pixels // channels)
        patch = (max(side, 1), max(side, 1))
    return width, channels, *patch


def _position(
    tensors: Tensors, names: Names, hints: Hints, stated: Stated, patch_size: tuple[int, int], *, prefix: int, where: str
) -> tuple[Position, Places]:
    """The positions, and the grid of patches that they or config.json say."""
    said = None if stated.image_size is None else _grid(stated.image_size, patch_size)
    key, first = names.of(names.positions), f"{names.of(names.layers)}.0"
    shared = names.of(names.shared_bias) in tensors
    table = names.of(names.shared_bias) if shared else f"{first}.{names.bias}"
    bias = RelativeBias(kind="table", shared=shared) if table in tensors else None
    rotary = None if stated.rotary is None else Rotary(kind="centred", temperature=stated.rotary)
    if key in tensors:
        rows = shape_of(tensors, key, 2 if names.flat else 3, where=where)[-2]
        places = places_of(rows, prefix, given=hints.grid, said=said, without=False, where=where)
        return Position(kind="learned-1d", bias=bias, rotary=rotary), places
    grid, notes = hints.grid or said, list[str]()
    if bias is not None:
        rows = shape_of(tensors, table, 2, where=where)[0] - 3
        side = (math.isqrt(max(rows, 0)) + 1) // 2
        if grid is None or (2 * grid[0] - 1) * (2 * grid[1] - 1) != rows:
            grid = (side, side)
            notes = [f"grid={side}x{side} is a guess from the table of the position bias: config.json does not say"]
    elif grid is None:
        grid = (max(1, 224 // patch_size[0]), max(1, 224 // patch_size[1]))
        notes = [f"grid={grid[0]}x{grid[1]} is a guess (224 pixels): the model takes others, and the file does not say"]
    return Position(kind="none", bias=bias, rotary=rotary), Places(grid=grid, prefix=True, notes=tuple(notes))


def _grid(image_size: tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    return max(1, image_size[0] // patch_size[0]), max(1, image_size[1] // patch_size[1])


def vit_rows(config: ViTConfig, names: Names) -> Iterator[Row]:
    """The rows under these names; DeiT's distillation token without a head is a register in vitlab."""
    width = config.width
    if names is SIGLIP2:
        yield _cut_patches("patches.weight", f"{names.of(names.patches)}.weight", config)
        yield same("patches.bias", f"{names.of(names.patches)}.bias")
    else:
        yield from layer("patches", names.of(names.patches), bias=not config.norm.before)
    if config.class_token:
        theirs = names.of(names.class_token)
        yield shaped("class_token", theirs, (1, 1, width), (width,)) if names.flat else same("class_token", theirs)
    if config.distill_token:
        yield same("distill_token", names.of(names.distill_token))
    if config.register_tokens:
        yield same("register_tokens", names.of(names.distill_token if names.prefix == DEIT.prefix else names.register_tokens))
    if names is YOLOS:
        yield _detection_positions(config, names)
    elif config.position.kind == "learned-1d":
        theirs = names.of(names.positions)
        yield shaped("position.table", theirs, (1, -1, width), (-1, width)) if names.flat else same("position.table", theirs)
    if config.norm.before:
        yield from layer("encoder.pre_norm", names.of(names.pre_norm))
    bias = config.position.bias
    if bias is not None and bias.shared:
        yield same("position.shared_bias", names.of(names.shared_bias))
    for i in range(config.depth):
        theirs = f"{names.of(names.layers)}.{i}"
        yield from _layer(config, names, f"encoder.blocks.{i}", theirs)
        if bias is not None and not bias.shared:
            yield same(f"position.bias.{i}", f"{theirs}.{names.bias}")
    if config.norm_after_pool:
        yield from layer("pool_norm", names.of(names.pool_norm))
    elif config.norm.last:
        yield from layer("encoder.norm", names.of(names.norm))
    if config.pool == "map":
        yield from _attention_pool(names.of(names.attention_pool), width)
    if config.representation_width:
        yield from layer("representation", names.of(names.pooler))
    if config.projection_width:
        yield same("projection.weight", f"{names.projection}.weight")
    if config.detection_classes:
        for i in range(3):
            yield from layer(f"detection.classes.{i}", f"{_CLASSES}.{i}")
            yield from layer(f"detection.boxes.{i}", f"{_BOXES}.{i}")
    if config.num_classes:
        yield from layer("head", "cls_classifier" if config.distill_token else "classifier")
    if config.num_classes and config.distill_token:
        yield from layer("distill_head", "distillation_classifier")


def _layer(config: ViTConfig, names: Names, ours: str, theirs: str) -> Iterator[Row]:
    yield from layer(f"{ours}.norm1", f"{theirs}.{names.norms[0]}")
    yield stacked(f"{ours}.attention.qkv.weight", [f"{theirs}.{name}.weight" for name in names.qkv])
    if config.qkv_bias and config.projections.key_bias:
        yield stacked(f"{ours}.attention.qkv.bias", [f"{theirs}.{name}.bias" for name in names.qkv])
    elif config.qkv_bias:
        yield same(f"{ours}.attention.query_bias", f"{theirs}.{names.qkv[0]}.bias")
        yield same(f"{ours}.attention.value_bias", f"{theirs}.{names.qkv[2]}.bias")
    yield from layer(f"{ours}.attention.out", f"{theirs}.{names.out}")
    yield from layer(f"{ours}.norm2", f"{theirs}.{names.norms[1]}")
    *up, down = names.gated if config.mlp.gated else names.mlp
    for part in ("weight", "bias"):
        yield stacked(f"{ours}.mlp.up.{part}", [f"{theirs}.{name}.{part}" for name in up])
    yield from layer(f"{ours}.mlp.down", f"{theirs}.{down}")
    if config.layer_scale:
        yield same(f"{ours}.scale1", f"{theirs}.{names.scales[0]}")
        yield same(f"{ours}.scale2", f"{theirs}.{names.scales[1]}")


def _attention_pool(theirs: str, width: int) -> Iterator[Row]:
    """SigLIP's pooling head, whose query, key and value are one tensor."""
    yield same("pool.probe", f"{theirs}.probe")
    for part, glue in (("weight", "_"), ("bias", "_")):
        yield Row(
            ours=(f"pool.query.{part}", f"pool.key_value.{part}"),
            theirs=(f"{theirs}.attention.in_proj{glue}{part}",),
            to_ours=lambda tensors: [tensors[0][:width], tensors[0][width:]],
            to_theirs=lambda tensors: [torch.cat(list(tensors))],
        )
    yield from layer("pool.out", f"{theirs}.attention.out_proj")
    yield from layer("pool.norm", f"{theirs}.layernorm")
    yield from layer("pool.mlp.up", f"{theirs}.mlp.fc1")
    yield from layer("pool.mlp.down", f"{theirs}.mlp.fc2")


_CLASSES, _BOXES = "class_labels_classifier.layers", "bbox_predictor.layers"
_EVERY = "encoder.mid_position_embeddings"


def _detection_positions(config: ViTConfig, names: Names) -> Row:
    """YOLOS's positions, of the first layer and of the others; theirs has detection tokens last, ours before the patches."""
    queries, every = config.register_tokens, config.position.place == "every"

    def to_ours(tensors: Sequence[Tensor]) -> list[Tensor]:
        table_LND = torch.cat([tensors[0], *(part.flatten(0, 1) for part in tensors[1:])])
        return [torch.cat([table_LND[:, :1], table_LND[:, -queries:], table_LND[:, 1:-queries]], dim=1)]

    def to_theirs(tensors: Sequence[Tensor]) -> list[Tensor]:
        table_LND = tensors[0]
        table_LND = torch.cat([table_LND[:, :1], table_LND[:, 1 + queries :], table_LND[:, 1 : 1 + queries]], dim=1)
        return [table_LND[:1], table_LND[1:].unsqueeze(1)] if every else [table_LND]

    theirs = (names.of(names.positions), names.of(_EVERY)) if every else (names.of(names.positions),)
    return Row(ours=("position.table",), theirs=theirs, to_ours=to_ours, to_theirs=to_theirs)


def _cut_patches(ours: str, theirs: str, config: ViTConfig) -> Row:
    """A kernel (width, channels, height, width) as the dense layer over a patch's pixels, channels last."""
    down, across = config.patch_size
    return Row(
        ours=(ours,),
        theirs=(theirs,),
        to_ours=lambda tensors: [tensors[0].reshape(-1, down, across, config.channels).permute(0, 3, 1, 2)],
        to_theirs=lambda tensors: [tensors[0].permute(0, 2, 3, 1).flatten(1)],
    )


# config.json.


def vit_json(config: ViTConfig) -> dict[str, Json]:
    """What the config.json of every ViT of transformers has."""
    grid, patch = config.grid, config.patch_size
    size = config.image_size if config.crop else (grid[0] * patch[0], grid[1] * patch[1])
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_width,
        "hidden_act": WRITTEN[config.numerics.gelu],
        "layer_norm_eps": config.numerics.norm_eps,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.02,
        "image_size": one_or_two(size),
        "patch_size": one_or_two(patch),
        "num_channels": config.channels,
    }


def plain_json(config: ViTConfig) -> dict[str, Json]:
    """The config.json of a ViT, DeiT or I-JEPA."""
    data = vit_json(config) | {"qkv_bias": config.qkv_bias, "encoder_stride": config.patch_size[0]}
    if config.representation_width:
        data |= {"pooler_output_size": config.representation_width, "pooler_act": "tanh"}
    return data


def yolos_json(config: ViTConfig) -> dict[str, Json]:
    """The config.json of a YOLOS; its classes are counted without "no object"."""
    return plain_json(config) | {
        "image_size": list(config.image_size),
        "num_detection_tokens": config.register_tokens,
        "use_mid_position_embeddings": config.position.place == "every",
    }


def dinov2_json(config: ViTConfig) -> dict[str, Json]:
    """The config.json of a DINOv2, which has the width of its MLP as a ratio."""
    gated = config.mlp.gated
    ratios = [
        ratio
        for ratio in range(1, 65)
        if (-(-int(config.width * ratio * 2 / 3) // 8) * 8 if gated else config.width * ratio) == config.mlp_width
    ]
    if not ratios:
        raise cannot_write(f"mlp_width={config.mlp_width}: DINOv2 has {'two thirds of ' if gated else ''}a multiple of the width")
    data = vit_json(config) | {"intermediate_size": config.width * ratios[0]}
    return data | {
        "mlp_ratio": ratios[0],
        "qkv_bias": config.qkv_bias,
        "layerscale_value": config.layer_scale,
        "drop_path_rate": config.drop_path,
        "use_swiglu_ffn": gated,
        "use_mask_token": False,
        **({"num_register_tokens": config.register_tokens} if config.register_tokens else {}),
    }


def dinov3_json(config: ViTConfig) -> dict[str, Json]:
    """The config.json of a DINOv3."""
    rotary = config.position.rotary
    assert rotary is not None
    return vit_json(config) | {
        "hidden_act": "silu" if config.mlp.gated else WRITTEN[config.numerics.gelu],
        "num_register_tokens": config.register_tokens,
        "rope_theta": rotary.temperature,
        "layerscale_value": config.layer_scale,
        "drop_path_rate": config.drop_path,
        "use_gated_mlp": config.mlp.gated,
        "query_bias": config.qkv_bias,
        "key_bias": config.qkv_bias and config.projections.key_bias,
        "value_bias": config.qkv_bias,
        "proj_bias": True,
        "mlp_bias": True,
    }


def beit_json(config: ViTConfig) -> dict[str, Json]:
    """The config.json of a BEiT."""
    bias = config.position.bias
    return vit_json(config) | {
        "use_absolute_position_embeddings": config.position.kind == "learned-1d",
        "use_relative_position_bias": bias is not None and not bias.shared,
        "use_shared_relative_position_bias": bias is not None and bias.shared,
        "use_mean_pooling": config.pool == "mean",
        "use_mask_token": False,
        "layer_scale_init_value": config.layer_scale,
        "drop_path_rate": config.drop_path,
    }


def clip_json(config: ViTConfig) -> dict[str, Json]:
    """The config.json of CLIP's vision model."""
    data = _tower_json(config)
    return data | ({"projection_dim": config.projection_width} if config.projection_width else {})


def siglip_json(config: ViTConfig) -> dict[str, Json]:
    """The config.json of SigLIP's vision model, which says whether there is a pooling head."""
    return _tower_json(config) | {"vision_use_head": config.pool == "map"}


def _tower_json(config: ViTConfig) -> dict[str, Json]:
    data = vit_json(config) | {"attention_dropout": 0.0}
    return {key: value for key, value in data.items() if not key.endswith("dropout_prob")}


# --- other families -----------------------------------------------------------------------------------------------------------

# Swin.


def read_swin(tensors: Tensors, data: Sidecar, hints: Hints, *, where: str) -> Read:
    """A Swin of transformers, which pads a map before it shifts it."""
    names, kept = swin.HUGGINGFACE, without_computed(tensors)
    expect(data, {"use_absolute_embeddings": False, "hidden_act": "gelu"}, where=where)
    window = sidecar.size(data, "window_size")
    config, notes = swin_config(
        kept, names, hints, swin.Said(image_size=sidecar.size(data, "image_size"), window=window), where=where
    )
    with making(where):
        config = replace(config, norm_eps=sidecar.number(data, "layer_norm_eps") or 1e-5)
    return Read(config=config, tensors=kept, rows=list(swin_rows(config, names)), notes=notes)


def swin_json(config: SwinConfig) -> dict[str, Json]:
    """The config.json of a Swin; transformers has one square window for all stages."""
    if any(window != (config.window[0],) * 2 for window in config.windows):
        raise cannot_write(
            f"windows of {', '.join(f'{down}x{across}' for down, across in config.windows)}: transformers has one square window"
        )
    if config.patch_size[0] != config.patch_size[1]:
        raise cannot_write(f"patches of {config.patch_size[0]}x{config.patch_size[1]}")
    return {
        "image_size": one_or_two(config.image_size),
        "patch_size": config.patch_size[0],
        "num_channels": config.channels,
        "embed_dim": config.width,
        "depths": list(config.depths),
        "num_heads": list(config.heads),
        "window_size": config.window[0],
        "mlp_ratio": float(config.mlp_ratio),
        "qkv_bias": config.qkv_bias,
        "layer_norm_eps": config.norm_eps,
        "drop_path_rate": config.drop_path,
        "hidden_act": "gelu",
        "use_absolute_embeddings": False,
        "hidden_size": config.feature_width,
    }


# ConvNeXt.


def read_convnext(tensors: Tensors, data: Sidecar, hints: Hints, *, where: str) -> Read:
    """A ConvNeXt of transformers, whose last norm has an eps of its own."""
    names = convnext.HUGGINGFACE
    expect(data, {"hidden_act": "gelu"}, where=where)
    config, notes = convnext_config(tensors, names, hints, sidecar.size(data, "image_size"), where=where)
    with making(where):
        last = sidecar.number(data, "layer_norm_eps")
        config = replace(config, last_norm_eps=1e-12 if last is None else last)
    return Read(config=config, tensors=tensors, rows=list(convnext_rows(config, names)), notes=notes)


def convnext_json(config: ConvNeXtConfig) -> dict[str, Json]:
    """The config.json of a ConvNeXt."""
    if config.norm_eps != 1e-6 or config.kernel != 7 or config.mlp_ratio != 4:
        raise cannot_write(
            f"norm_eps={config.norm_eps:g}, kernel={config.kernel}, mlp_ratio={config.mlp_ratio}: transformers has 1e-06, 7 and 4"
        )
    return {
        "image_size": one_or_two(config.image_size),
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "num_stages": len(config.depths),
        "depths": list(config.depths),
        "hidden_sizes": list(config.widths),
        "layer_scale_init_value": config.layer_scale,
        "layer_norm_eps": config.last_norm_eps or config.norm_eps,
        "drop_path_rate": config.drop_path,
        "hidden_act": "gelu",
    }


# BiT.


def read_bit(tensors: Tensors, data: Sidecar, hints: Hints, *, where: str) -> Read:
    """A BiT ResNet of transformers, which standardises weights as timm does."""
    expected: dict[str, Json] = {"layer_type": "preactivation", "hidden_act": "relu", "global_padding": None, "output_stride": 32}
    expect(data, expected | {"embedding_dynamic_padding": False}, where=where)
    config, notes = bit_config(tensors, hints, names=bit.HUGGINGFACE, where=where)
    size = sidecar.size(data, "image_size")
    with making(where):
        config = replace(config, groups=sidecar.whole(data, "num_groups") or config.groups, image_size=size or config.image_size)
    notes = notes if size is None else []
    return Read(config=config, tensors=tensors, rows=list(bit_rows(config, bit.HUGGINGFACE)), notes=notes)


def bit_json(config: ResNetConfig) -> dict[str, Json]:
    """The config.json of a BiT ResNet, with its true widths: transformers' width factor misses the last norm."""
    widths = [width * config.width_factor for width in config.stage_widths]
    if any(width % 32 for width in widths):
        raise cannot_write(
            f"stages of {', '.join(map(str, widths))} channels: transformers rounds a quarter of them to multiples of 8"
        )
    if config.norm_eps != 1e-5:
        raise cannot_write(f"norm_eps={config.norm_eps:g}: transformers has 1e-05")
    return {
        "num_channels": config.channels,
        "embedding_size": config.root_width * config.width_factor,
        "depths": list(config.blocks),
        "hidden_sizes": [*widths],
        "width_factor": 1,
        "num_groups": config.groups,
        "layer_type": "preactivation",
        "hidden_act": "relu",
        "global_padding": None,
        "output_stride": 32,
        "embedding_dynamic_padding": False,
        "drop_path_rate": 0.0,
    }


# EfficientNet.

STAGE_LISTS = ("kernel_sizes", "in_channels", "out_channels", "strides", "num_block_repeats", "expand_ratios")


def read_efficientnet(tensors: Tensors, data: Sidecar, hints: Hints, *, where: str) -> Read:
    """An EfficientNet of transformers; the tensors show neither its stages nor its strides, so config.json is needed."""
    if hints.heads is not None or hints.grid is not None:
        raise CheckpointError(f"{where} holds an EfficientNet: it has no heads and no grid to give")
    if not data:
        raise CheckpointError(
            f"{where} is an EfficientNet of transformers without the config.json that says its strides",
            hint="give the folder with both files",
        )
    expect(data, {"hidden_act": "swish", "pooling_type": "mean", "depth_divisor": 8}, where=where)
    width, depth = sidecar.number(data, "width_coefficient") or 2.0, sidecar.number(data, "depth_coefficient") or 3.1
    lists = [sidecar.wholes(data, name) for name in STAGE_LISTS]
    if any(one is None or len(one) != len(lists[0] or ()) for one in lists):
        raise CheckpointError(f"{where}: config.json does not give {', '.join(STAGE_LISTS)} for every stage")
    kernels, _, widths, strides, repeats, expansions = (one or () for one in lists)
    blocks = [math.ceil(depth * number) for number in repeats]
    scaled = [scaled_width(number, width) for number in widths]
    kept = without_counters(tensors)
    with making(where):
        config = EfficientNetConfig(
            stages=tuple(zip(blocks, kernels, strides, expansions, scaled, strict=True)),
            stem_width=scaled_width(STEM, width),
            head_width=scaled_width(HEAD, width),
            squeeze=sidecar.number(data, "squeeze_expansion_ratio") or 0.25,
            image_size=sidecar.size(data, "image_size") or (224, 224),
            channels=sidecar.whole(data, "num_channels") or 3,
            num_classes=outputs(tensors, ("classifier.weight", "classifier.bias"), 0),
            dropout=sidecar.number(data, "dropout_rate") or 0.0,
            drop_path=sidecar.number(data, "drop_connect_rate") or 0.0,
            padding="uneven",
            even_blocks=sidecar.wholes(data, "depthwise_padding") or (),
            norm_eps=sidecar.number(data, "batch_norm_eps") or 1e-3,
        )
    if _adds_first(config):
        raise CheckpointError(
            f"{where}: a stage begins at stride 1 with its input's width, where transformers adds no shortcut and vitlab does"
        )
    return Read(config=config, tensors=kept, rows=list(efficientnet_rows(config)), notes=[])


def efficientnet_json(config: EfficientNetConfig) -> dict[str, Json]:
    """The config.json of an EfficientNet, whose stem and head are 32 and 1280 channels times one factor in transformers."""
    factors = [config.head_width / HEAD, config.stem_width / STEM, *(scale[0] for scale in SCALES.values())]
    shape = (config.stem_width, config.head_width)
    factor = next((f for f in factors if (scaled_width(STEM, f), scaled_width(HEAD, f)) == shape), None)
    plan = config.plan
    widths = [] if factor is None else [_unscaled(stage.width, factor) for stage in plan]
    if factor is None or None in widths or _adds_first(config):
        raise cannot_write(
            "these widths: in transformers the stem, stages and head are 32, 1280 and whole numbers times one factor"
        )
    return {
        "image_size": one_or_two(config.image_size),
        "num_channels": config.channels,
        "width_coefficient": factor,
        "depth_coefficient": 1.0,
        "depth_divisor": 8,
        "kernel_sizes": [stage.kernel for stage in plan],
        "in_channels": [STEM, *widths[:-1]],
        "out_channels": [*widths],
        "depthwise_padding": list(config.even_blocks),
        "strides": [stage.stride for stage in plan],
        "num_block_repeats": [stage.blocks for stage in plan],
        "expand_ratios": [stage.expansion for stage in plan],
        "squeeze_expansion_ratio": config.squeeze,
        "hidden_act": "swish",
        "hidden_dim": config.head_width,
        "pooling_type": "mean",
        "batch_norm_eps": config.norm_eps,
        "batch_norm_momentum": 1 - config.momentum,
        "dropout_rate": config.dropout,
        "drop_connect_rate": config.drop_path,
    }


def efficientnet_notes(config: EfficientNetConfig) -> list[str]:
    """Where transformers computes something else than this model."""
    if config.padding == "uneven":
        return []
    return [f"this model's padding is {config.padding!r} and transformers' is uneven at every image size: its logits may differ"]


def efficientnet_rows(config: EfficientNetConfig) -> Iterator[Row]:
    """The rows of an EfficientNet, whose blocks transformers numbers through all stages."""
    prefix = "efficientnet."
    yield same("stem.weight", f"{prefix}embeddings.convolution.weight")
    yield from _batch_norm("stem_norm", f"{prefix}embeddings.batchnorm")
    inputs, number = config.stem_width, 0
    for s, stage in enumerate(config.plan):
        for u in range(stage.blocks):
            ours, theirs = f"stages.{s}.{u}", f"{prefix}encoder.blocks.{number}"
            if stage.expansion > 1:
                yield same(f"{ours}.expand.weight", f"{theirs}.expansion.expand_conv.weight")
                yield from _batch_norm(f"{ours}.expand_norm", f"{theirs}.expansion.expand_bn")
            yield same(f"{ours}.depthwise.weight", f"{theirs}.depthwise_conv.depthwise_conv.weight")
            yield from _batch_norm(f"{ours}.depthwise_norm", f"{theirs}.depthwise_conv.depthwise_norm")
            for part, width in (("reduce", config.squeezed(inputs)), ("expand", inputs * stage.expansion)):
                mine, foreign = f"{ours}.squeeze.{part}", f"{theirs}.squeeze_excite.{part}"
                yield shaped(f"{mine}.weight", f"{foreign}.weight", (width, -1), (width, -1, 1, 1))
                yield same(f"{mine}.bias", f"{foreign}.bias")
            yield same(f"{ours}.project.weight", f"{theirs}.projection.project_conv.weight")
            yield from _batch_norm(f"{ours}.project_norm", f"{theirs}.projection.project_bn")
            inputs, number = stage.width, number + 1
    yield same("last.weight", f"{prefix}encoder.top_conv.weight")
    yield from _batch_norm("last_norm", f"{prefix}encoder.top_bn")
    if config.num_classes:
        yield from layer("head", "classifier")


def _batch_norm(ours: str, theirs: str) -> Iterator[Row]:
    for part in ("weight", "bias", "running_mean", "running_var"):
        yield same(f"{ours}.{part}", f"{theirs}.{part}")


def _unscaled(width: int, factor: float) -> int | None:
    """A whole number that transformers scales to this width, the nearest one if there are several."""
    middle = round(width / factor)
    return next(
        (number for step in range(8) for number in (middle + step, middle - step) if scaled_width(number, factor) == width), None
    )


def _adds_first(config: EfficientNetConfig) -> bool:
    """Whether a stage's first block has a shortcut here, which transformers never gives it."""
    inputs = (config.stem_width, *(stage.width for stage in config.plan))
    return any(stage.stride == 1 and stage.width == before for stage, before in zip(config.plan, inputs, strict=False))
