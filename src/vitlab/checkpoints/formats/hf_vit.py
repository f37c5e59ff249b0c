"""transformers' Vision Transformers: which names each of its classes gives the parts of a ViT, config.json, and the rows.

A class of transformers is a row of names; what it does beyond the paper's ViT is a field of `ViTConfig`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from vitlab.checkpoints.formats import sidecar
from vitlab.checkpoints.formats.contract import Hints
from vitlab.checkpoints.formats.hf_json import Read, Tensors, one_or_two
from vitlab.checkpoints.formats.infer import count, heads_of, image_size_of, making, numerics_of, outputs, places_of, shape_of
from vitlab.checkpoints.formats.sidecar import Sidecar
from vitlab.checkpoints.table import Row, layer, same, stacked
from vitlab.config.serialize import Json
from vitlab.config.vit import PROFILES, Gelu, Numerics, Position, ViTConfig
from vitlab.errors import CheckpointError

SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_channels")  # which the tensors show too
GELUS: dict[str, Gelu] = {
    "gelu": "exact",
    "gelu_python": "exact",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
}
WRITTEN: dict[Gelu, str] = {"exact": "gelu", "tanh": "gelu_pytorch_tanh"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a class calls the parts of a ViT, after its prefix; the defaults are those of ViT's and DeiT's files on the Hub."""

    prefix: str = "vit."
    patches: str = "embeddings.patch_embeddings.projection"
    class_token: str = "embeddings.cls_token"
    distill_token: str = "embeddings.distillation_token"
    positions: str = "embeddings.position_embeddings"
    layers: str = "encoder.layer"
    norms: tuple[str, str] = ("layernorm_before", "layernorm_after")
    qkv: tuple[str, str, str] = ("attention.attention.query", "attention.attention.key", "attention.attention.value")
    out: str = "attention.output.dense"
    mlp: tuple[str, str] = ("intermediate.dense", "output.dense")
    norm: str = "layernorm"
    pooler: str = "pooler.dense"

    def of(self, part: str) -> str:
        """A part's name with the prefix."""
        return f"{self.prefix}{part}"


VIT = Names()
DEIT = Names(prefix="deit.")
IJEPA = Names(prefix="ijepa.")


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
    gelu: Gelu
    norm_eps: float
    dropout: float
    pooler_act: str | None
    notes: tuple[str, ...]

    def numerics(self) -> Numerics:
        """The numerics of transformers, with bicubic positions."""
        return Numerics(gelu=self.gelu, norm_eps=self.norm_eps, resize=PROFILES["huggingface"].resize)

    def check(self, found: Mapping[str, int | tuple[int, int]], *, where: str) -> None:
        """Refuse tensors of other sizes than the config says: the file is incomplete or belongs to another config."""
        wrong = [
            f"{name} {stated} against {found[name]}" for name, stated in self.sizes.items() if stated not in (None, found[name])
        ]
        if wrong:
            raise CheckpointError(
                f"{where} is not the model of its config.json: {', '.join(wrong)}",
                hint="the file is incomplete, or the config.json beside it is another model's",
            )


def stated_of(data: Sidecar) -> Stated:
    """What config.json says; an empty one is that of a file alone, for which transformers' defaults hold."""
    activation = sidecar.text(data, "hidden_act")
    if activation is not None and activation not in GELUS:
        raise CheckpointError(f"config.json says hidden_act={activation!r}, which vitlab does not have", hint=", ".join(GELUS))
    eps = sidecar.number(data, "layer_norm_eps")
    default = PROFILES["huggingface"]
    alone = "no config.json: exact GELU and LayerNorm eps 1e-12 are transformers' defaults"
    return Stated(
        heads=sidecar.whole(data, "num_attention_heads"),
        sizes={**{name: sidecar.whole(data, name) for name in SIZES}, "patch_size": sidecar.size(data, "patch_size")},
        image_size=sidecar.size(data, "image_size"),
        qkv_bias=sidecar.flag(data, "qkv_bias", True) if "qkv_bias" in data else None,
        gelu=default.gelu if activation is None else GELUS[activation],
        norm_eps=default.norm_eps if eps is None else eps,
        dropout=sidecar.number(data, "hidden_dropout_prob") or 0.0,
        pooler_act=sidecar.text(data, "pooler_act"),
        notes=() if data else (alone,),
    )


def read_vit(tensors: Tensors, data: Sidecar, hints: Hints, names: Names, *, where: str) -> Read:
    """A ViT, DeiT, ViT-MAE, MSN or I-JEPA of transformers."""
    if f"{names.of(modules_of(names).layers)}.0.{names.norms[0]}.weight" in tensors:
        names = modules_of(names)
    stated = stated_of(data)
    teacher = any(key.startswith(("cls_classifier.", "distillation_classifier.")) for key in tensors)
    config, notes = _config(tensors, names, hints, stated, teacher=teacher, where=where)
    rows = list(vit_rows(config, names))
    return Read(config=config, tensors=tensors, rows=rows, notes=[*stated.notes, *notes])


def vit_rows(config: ViTConfig, names: Names) -> Iterator[Row]:
    """The rows under these names; DeiT's distillation token without a head is a register in vitlab."""
    yield from layer("patches", names.of(names.patches))
    if config.class_token:
        yield same("class_token", names.of(names.class_token))
    if config.distill_token or config.register_tokens:
        ours = "distill_token" if config.distill_token else "register_tokens"
        yield same(ours, names.of(names.distill_token))
    yield same("position.table", names.of(names.positions))
    for i in range(config.depth):
        yield from _layer(config, names, f"encoder.blocks.{i}", f"{names.of(names.layers)}.{i}")
    yield from layer("encoder.norm", names.of(names.norm))
    if config.representation_width:
        yield from layer("representation", names.of(names.pooler))
    if config.num_classes:
        yield from layer("head", "cls_classifier" if config.distill_token else "classifier")
    if config.num_classes and config.distill_token:
        yield from layer("distill_head", "distillation_classifier")


def _layer(config: ViTConfig, names: Names, ours: str, theirs: str) -> Iterator[Row]:
    yield from layer(f"{ours}.norm1", f"{theirs}.{names.norms[0]}")
    for part in ("weight", "bias") if config.qkv_bias else ("weight",):
        yield stacked(f"{ours}.attention.qkv.{part}", [f"{theirs}.{name}.{part}" for name in names.qkv])
    yield from layer(f"{ours}.attention.out", f"{theirs}.{names.out}")
    yield from layer(f"{ours}.norm2", f"{theirs}.{names.norms[1]}")
    yield from layer(f"{ours}.mlp.up", f"{theirs}.{names.mlp[0]}")
    yield from layer(f"{ours}.mlp.down", f"{theirs}.{names.mlp[1]}")


def _config(
    tensors: Tensors, names: Names, hints: Hints, stated: Stated, *, teacher: bool, where: str
) -> tuple[ViTConfig, list[str]]:
    first = f"{names.of(names.layers)}.0"
    width, channels, *patch = shape_of(tensors, f"{names.of(names.patches)}.weight", 4, where=where)
    depth = count(tensors, f"{names.of(names.layers)}.{{}}.", where=where)
    mlp_width, _ = shape_of(tensors, f"{first}.{names.mlp[0]}.weight", 2, where=where)
    patch_size = (patch[0], patch[1])
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "intermediate_size": mlp_width, "num_channels": channels}
    stated.check({**sizes, "patch_size": patch_size}, where=where)
    heads, notes = heads_of(width, depth, mlp_width, given=hints.heads, said=stated.heads, where=where)
    class_token, extra = names.of(names.class_token) in tensors, names.of(names.distill_token) in tensors
    _, rows, _ = shape_of(tensors, names.of(names.positions), 3, where=where)
    said = None if stated.image_size is None else _grid(stated.image_size, patch_size)
    places = places_of(rows, class_token + extra, given=hints.grid, said=said, without=False, where=where)
    head = "cls_classifier" if teacher else "classifier"
    pooler = names.of(names.pooler)
    hidden = outputs(tensors, (f"{pooler}.weight", f"{pooler}.bias"), 0)
    if hidden and stated.pooler_act not in (None, "tanh"):
        raise CheckpointError(f"{where}: the pooler's activation {stated.pooler_act!r} is not one that vitlab has", hint="tanh")
    biases = tuple(f"{name}.bias" for name in names.qkv)
    qkv_bias = any(key.endswith(biases) for key in tensors) if stated.qkv_bias is None else stated.qkv_bias
    with making(where):
        numerics = stated.numerics()
    numerics = numerics_of(hints, numerics)
    if extra and not teacher:
        notes.append("DeiT's distillation token is kept as a register: no head reads it")
    with making(where):
        config = ViTConfig(
            width=width,
            depth=depth,
            heads=heads,
            mlp_width=mlp_width,
            patch_size=patch_size,
            image_size=image_size_of(places.grid, patch_size, None),
            channels=channels,
            num_classes=outputs(tensors, (f"{head}.weight", f"{head}.bias"), 0),
            pool="token" if class_token else "mean",
            class_token=class_token,
            distill_token=teacher,
            register_tokens=int(extra and not teacher),
            representation_width=hidden,
            position=Position(kind="learned-1d", place="stem", prefix=True),
            qkv_bias=qkv_bias,
            dropout=stated.dropout,
            numerics=numerics,
        )
    return config, [*notes, *places.notes]


def _grid(image_size: tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    return max(1, image_size[0] // patch_size[0]), max(1, image_size[1] // patch_size[1])


def vit_json(config: ViTConfig) -> dict[str, Json]:
    """What the config.json of every ViT of transformers has."""
    grid, patch = config.grid, config.patch_size
    data: dict[str, Json] = {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_width,
        "hidden_act": WRITTEN[config.numerics.gelu],
        "layer_norm_eps": config.numerics.norm_eps,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.02,
        "image_size": one_or_two((grid[0] * patch[0], grid[1] * patch[1])),
        "patch_size": one_or_two(patch),
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
        "encoder_stride": patch[0],
    }
    if config.representation_width:
        data |= {"pooler_output_size": config.representation_width, "pooler_act": "tanh"}
    return data
