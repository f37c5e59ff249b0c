"""Hugging Face ViT and DeiT: a folder of model.safetensors, config.json and preprocessor_config.json, or the file alone.

Read under the Hub's names and under those of transformers 5; written as the Hub has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats import sidecar
from vitlab.checkpoints.formats.contract import Expressible, Hints, Reading, State, Written, numerics_notes, only_vit, refuse
from vitlab.checkpoints.formats.infer import (
    HALF,
    UNUSED,
    count,
    cropped,
    described,
    heads_of,
    image_size_of,
    making,
    numerics_of,
    outputs,
    per_channel,
    places_of,
    shape_of,
    squashed,
    unwrapped,
    zero_head,
)
from vitlab.checkpoints.formats.sidecar import Sidecar
from vitlab.checkpoints.formats.timm_sidecar import is_timm
from vitlab.checkpoints.table import Row, layer, native_shapes, same, stacked, to_ours, to_theirs
from vitlab.config.data import IMAGENET_MEAN, IMAGENET_STD, Interpolation, Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.serialize import Json
from vitlab.config.vit import PROFILES, Gelu, Numerics, Position, ViTConfig
from vitlab.errors import CheckpointError

# config.json of a ViT or DeiT.

KINDS = ("vit", "deit")
SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_channels")  # which the tensors show too
GELUS: dict[str, Gelu] = {
    "gelu": "exact",
    "gelu_python": "exact",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
}
WRITTEN: dict[Gelu, str] = {"exact": "gelu", "tanh": "gelu_pytorch_tanh"}

_PLACEHOLDER = re.compile(r"LABEL_\d+")


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
    kind = sidecar.text(data, "model_type")
    if kind is not None and kind not in KINDS:
        raise CheckpointError(f"config.json says model_type={kind!r}, and of Hugging Face's models vitlab reads vit and deit")
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


def labels_of(data: Sidecar, classes: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """The names of the classes from `id2label`; LABEL_0, LABEL_1, ... are placeholders and count as none."""
    value = data.get("id2label")
    if value is None or not classes:
        return None, []
    labels = sidecar.names(value, classes, key="id2label")
    if labels is None:
        return None, [f"config.json's id2label does not name the {classes} classes: left out"]
    return (None, []) if all(_PLACEHOLDER.fullmatch(label) for label in labels) else (labels, [])


def config_json(config: ViTConfig, labels: tuple[str, ...] | None, *, deit: bool, dtype: str) -> Json:
    """A config.json from which transformers builds this model."""
    grid, patch = config.grid, config.patch_size
    data: dict[str, Json] = {
        "architectures": [_architecture(config, deit)],
        "model_type": "deit" if deit else "vit",
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_width,
        "hidden_act": WRITTEN[config.numerics.gelu],
        "layer_norm_eps": config.numerics.norm_eps,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.02,
        "image_size": _one_or_two((grid[0] * patch[0], grid[1] * patch[1])),
        "patch_size": _one_or_two(patch),
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
        "encoder_stride": patch[0],
        "torch_dtype": dtype,
    }
    if config.representation_width:
        data |= {"pooler_output_size": config.representation_width, "pooler_act": "tanh"}
    if config.num_classes:
        names = labels or tuple(f"LABEL_{i}" for i in range(config.num_classes))
        data["id2label"] = {str(i): name for i, name in enumerate(names)}
        data["label2id"] = {name: i for i, name in enumerate(names)}
    return data


def _architecture(config: ViTConfig, deit: bool) -> str:
    kind = "DeiT" if deit else "ViT"
    if not config.num_classes:
        return f"{kind}Model"
    return f"{kind}ForImageClassification{'WithTeacher' if config.distill_token else ''}"


def _one_or_two(size: tuple[int, int]) -> Json:
    return size[0] if size[0] == size[1] else list(size)


# preprocessor_config.json.

RESAMPLE: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers


def guessed(config: ViTConfig) -> tuple[Preprocess, list[str]]:
    """The preprocessing of transformers without a preprocessor_config.json."""
    if config.distill_token or config.register_tokens:
        size, channels = config.image_size, config.channels
        preprocess = cropped(size, channels, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD)
    else:
        preprocess = squashed(config.image_size, config.channels, interpolation="bilinear")
    return preprocess, [f"preprocessing is a guess ({described(preprocess)}): there is no preprocessor_config.json"]


def preprocess_of(data: Sidecar, config: ViTConfig) -> tuple[Preprocess, list[str]]:
    """The preprocessing in a preprocessor_config.json, with notes of what vitlab does differently."""
    notes: list[str] = []
    resample = sidecar.whole(data, "resample")
    if resample is not None and resample not in RESAMPLE:
        notes.append(f"preprocessor_config.json says resample={resample}: bicubic is used")
    factor = sidecar.number(data, "rescale_factor")
    if not sidecar.flag(data, "do_rescale", True) or (factor is not None and abs(factor * 255 - 1) > 1e-3):
        notes.append("preprocessor_config.json does not scale pixels by 1/255: mean and std are used as if it did")
    mean, std = _normalisation(data, config.channels)
    short_side = _short_side(data, config.image_size, notes)
    return (
        Preprocess(
            image_size=config.image_size,
            resize="squash" if short_side is None else "short-side",
            resize_to=UNUSED if short_side is None else max(short_side, max(config.image_size)),
            interpolation=RESAMPLE.get(2 if resample is None else resample, "bicubic"),
            mean=mean,
            std=std,
        ),
        notes,
    )


def preprocessor_json(preprocess: Preprocess) -> tuple[Json, list[str]]:
    """A preprocessor_config.json for transformers, or None if it has no such preprocessing; with notes."""
    if preprocess.resize == "pad":
        return None, ["no preprocessor_config.json: transformers has none that fits the image inside and pads"]
    notes = []
    if preprocess.interpolation == "tf-bilinear":
        notes.append("transformers scales with antialiasing, TensorFlow's bilinear of this model without: pixels will differ")
    size: dict[str, Json] = {"height": preprocess.image_size[0], "width": preprocess.image_size[1]}
    crop = preprocess.resize == "short-side"
    data: dict[str, Json] = {
        "image_processor_type": "BitImageProcessor" if crop else "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": preprocess.resize_to} if crop else size,
        "resample": 3 if preprocess.interpolation == "bicubic" else 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }
    if crop:
        data |= {"do_center_crop": True, "crop_size": size}
    return data, notes


def _normalisation(data: Sidecar, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not sidecar.flag(data, "do_normalize", True):
        return (0.0,) * channels, (1.0,) * channels
    mean, std = sidecar.numbers(data, "image_mean") or HALF, sidecar.numbers(data, "image_std") or HALF
    if len(mean) != channels or len(std) != channels:
        return per_channel((), channels), per_channel((), channels)
    return mean, std


def _short_side(data: Sidecar, image_size: tuple[int, int], notes: list[str]) -> int | None:
    """The pixels that the short side is scaled to, None if the image is squashed; adds differences to `notes`."""
    crops = sidecar.flag(data, "do_center_crop", "crop_size" in data)
    given = data.get("size")
    edge = sidecar.whole(given, "shortest_edge") if isinstance(given, dict) else None
    if edge is not None:
        seen = sidecar.size(data, "crop_size") if crops else None
        if seen not in (None, image_size):
            notes.append(f"preprocessor_config.json crops {seen}, and the model sees {image_size}: fed with that")
        return edge
    stated = sidecar.size(data, "size")
    if crops and stated is not None:
        notes.append(
            f"preprocessor_config.json squashes to {stated[0]}x{stated[1]} before the crop; here the short side is scaled"
            f" to {min(stated)}, as DeiT's own code does"
        )
        return min(stated)
    if stated not in (None, image_size):
        notes.append(f"preprocessor_config.json says {stated}, and the model sees {image_size}: fed with that")
    return None


# Keys of ViT and DeiT: those of the files on the Hub, and those of the modules of transformers 5.

PATCHES = "embeddings.patch_embeddings.projection"
PREFIXES = ("vit.", "deit.", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names within one layer; `layers` is the prefix of the layers."""

    layers: str
    query_key_value: tuple[str, str, str]
    out: str
    up: str
    down: str


HUB = Names(
    layers="encoder.layer",
    query_key_value=("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    out="attention.output.dense",
    up="intermediate.dense",
    down="output.dense",
)
MODULES = Names(
    layers="layers",
    query_key_value=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    out="attention.o_proj",
    up="mlp.fc1",
    down="mlp.fc2",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which names a file uses, and their prefix; `teacher` for DeiT's two heads."""

    names: Names
    prefix: str
    teacher: bool


def layout_of(tensors: dict[str, Tensor]) -> Layout | None:
    """The layout of a Hugging Face ViT or DeiT, or None if the tensors have another."""
    teacher = any(key.startswith(("cls_classifier.", "distillation_classifier.")) for key in tensors)
    for prefix in PREFIXES:
        for names in (HUB, MODULES):
            first = f"{prefix}{names.layers}.0.layernorm_before.weight"
            if f"{prefix}{PATCHES}.weight" in tensors and first in tensors:
                return Layout(names=names, prefix=prefix, teacher=teacher)
    return None


def rows_of(config: ViTConfig, layout: Layout) -> Iterator[Row]:
    """The rows of a ViT or DeiT in that layout; DeiT's distillation token without a head is a register in vitlab."""
    prefix, names = layout.prefix, layout.names
    yield from layer("patches", f"{prefix}{PATCHES}")
    yield same("class_token", f"{prefix}embeddings.cls_token")
    if config.distill_token or config.register_tokens:
        ours = "distill_token" if config.distill_token else "register_tokens"
        yield same(ours, f"{prefix}embeddings.distillation_token")
    yield same("position.table", f"{prefix}embeddings.position_embeddings")
    for i in range(config.depth):
        yield from _layer(config, names, f"encoder.blocks.{i}", f"{prefix}{names.layers}.{i}")
    yield from layer("encoder.norm", f"{prefix}layernorm")
    if config.representation_width:
        yield from layer("representation", f"{prefix}pooler.dense")
    if config.num_classes:
        yield from layer("head", "cls_classifier" if layout.teacher else "classifier")
    if config.num_classes and config.distill_token:
        yield from layer("distill_head", "distillation_classifier")


def _layer(config: ViTConfig, names: Names, ours: str, theirs: str) -> Iterator[Row]:
    yield from layer(f"{ours}.norm1", f"{theirs}.layernorm_before")
    for part in ("weight", "bias") if config.qkv_bias else ("weight",):
        yield stacked(f"{ours}.attention.qkv.{part}", [f"{theirs}.{name}.{part}" for name in names.query_key_value])
    yield from layer(f"{ours}.attention.out", f"{theirs}.{names.out}")
    yield from layer(f"{ours}.norm2", f"{theirs}.layernorm_after")
    yield from layer(f"{ours}.mlp.up", f"{theirs}.{names.up}")
    yield from layer(f"{ours}.mlp.down", f"{theirs}.{names.down}")


FORMAT = "huggingface"
CAN = Expressible(format=FORMAT, distill_token=True, register_tokens=True, representation=True, without_qkv_bias=True)


def matches(raw: RawFile) -> bool:
    """Whether the tensors carry the names of transformers' ViT or DeiT."""
    return layout_of(unwrapped(raw)[0]) is not None


def read(raw: RawFile, hints: Hints) -> Reading:
    """The model of a Hugging Face folder or file."""
    tensors, notes = unwrapped(raw)
    layout = layout_of(tensors)
    assert layout is not None
    where = raw.path.name
    stated = stated_of({} if raw.sidecar is None or is_timm(raw.sidecar) else raw.sidecar)
    tensors, left = _left_out(tensors, layout)
    config, found = _config(tensors, layout, hints, stated, where)
    state = to_ours(tensors, list(rows_of(config, layout)), native_shapes(config), where=where)
    if raw.preprocessor is None:
        preprocess, fed = guessed(config)
    else:
        with making(where):
            preprocess, fed = preprocess_of(raw.preprocessor, config)
    labels, named = labels_of(raw.sidecar or {}, config.num_classes)
    return Reading(
        format=FORMAT,
        config=config,
        state=state,
        preprocess=preprocess,
        labels=labels,
        notes=(*notes, *left, *found, *zero_head(state), *named, *fed),
    )


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The folder that transformers reads: weights under the Hub's names, config.json, preprocessor_config.json."""
    vit = only_vit(config, FORMAT)
    refuse(vit, CAN, also=_unreadable(vit))
    deit = vit.distill_token or vit.register_tokens == 1
    notes = numerics_notes(vit, vit.numerics, reader="transformers")
    if vit.register_tokens:
        notes.append("the register is written as DeiT's distillation token, which transformers' DeiT leaves out of the head too")
    prefix = "" if not vit.num_classes else "deit." if deit else "vit."
    layout = Layout(names=HUB, prefix=prefix, teacher=vit.distill_token)
    tensors = to_theirs(state, list(rows_of(vit, layout)), native_shapes(vit))
    sidecars = {"config.json": config_json(vit, labels, deit=deit, dtype=_dtype(tensors))}
    fed, fed_notes = preprocessor_json(preprocess)
    if fed is not None:
        sidecars["preprocessor_config.json"] = fed
    return Written(
        container="safetensors",
        tensors=tensors,
        metadata={"format": "pt"},
        sidecars=sidecars,
        notes=(*notes, *fed_notes),
    )


def _unreadable(config: ViTConfig) -> list[str]:
    reasons = []
    if config.representation_width and config.num_classes:
        reasons.append("a hidden layer and a head after it (transformers' classifiers have no pooler)")
    if config.register_tokens > 1 or (config.register_tokens and config.distill_token):
        reasons.append(f"more tokens beside the class token than one (register_tokens={config.register_tokens})")
    if config.distill_token and not config.num_classes:
        reasons.append("a distillation token without its two heads")
    return reasons


def _left_out(tensors: dict[str, Tensor], layout: Layout) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors without those that transformers stores but does not use in the forward pass of a classifier."""
    mask = f"{layout.prefix}embeddings.mask_token"
    pooler = [f"{layout.prefix}pooler.dense.{part}" for part in ("weight", "bias")]
    classifier = layout.teacher or any(key.startswith("classifier.") for key in tensors)
    unused = {mask, *(pooler if classifier else ())}
    left = [key for key in tensors if key in unused]
    kept = {key: tensor for key, tensor in tensors.items() if key not in unused}
    return kept, [f"left out, since transformers' classifier does not use it: {', '.join(left)}"] if left else []


def _config(tensors: dict[str, Tensor], layout: Layout, hints: Hints, stated: Stated, where: str) -> tuple[ViTConfig, list[str]]:
    prefix, names = layout.prefix, layout.names
    first = f"{prefix}{names.layers}.0"
    width, channels, *patch = shape_of(tensors, f"{prefix}{PATCHES}.weight", 4, where=where)
    depth = count(tensors, f"{prefix}{names.layers}.{{}}.", where=where)
    mlp_width, _ = shape_of(tensors, f"{first}.{names.up}.weight", 2, where=where)
    patch_size = (patch[0], patch[1])
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "intermediate_size": mlp_width, "num_channels": channels}
    stated.check({**sizes, "patch_size": patch_size}, where=where)
    heads, notes = heads_of(width, depth, mlp_width, given=hints.heads, said=stated.heads, where=where)
    extra = f"{prefix}embeddings.distillation_token" in tensors
    _, rows, _ = shape_of(tensors, f"{prefix}embeddings.position_embeddings", 3, where=where)
    said = None if stated.image_size is None else _grid(stated.image_size, patch_size)
    places = places_of(rows, 1 + extra, given=hints.grid, said=said, without=False, where=where)
    head = "cls_classifier" if layout.teacher else "classifier"
    hidden = outputs(tensors, (f"{prefix}pooler.dense.weight", f"{prefix}pooler.dense.bias"), 0)
    if hidden and stated.pooler_act not in (None, "tanh"):
        raise CheckpointError(f"{where}: the pooler's activation {stated.pooler_act!r} is not one that vitlab has", hint="tanh")
    biases = tuple(f"{name}.bias" for name in names.query_key_value)
    qkv_bias = any(key.endswith(biases) for key in tensors) if stated.qkv_bias is None else stated.qkv_bias
    with making(where):
        numerics = stated.numerics()
    numerics = numerics_of(hints, numerics)
    if extra and not layout.teacher:
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
            distill_token=layout.teacher,
            register_tokens=int(extra and not layout.teacher),
            representation_width=hidden,
            position=Position(kind="learned-1d", place="stem", prefix=True),
            qkv_bias=qkv_bias,
            dropout=stated.dropout,
            numerics=numerics,
        )
    return config, [*stated.notes, *notes, *places.notes]


def _grid(image_size: tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    return max(1, image_size[0] // patch_size[0]), max(1, image_size[1] // patch_size[1])


def _dtype(tensors: dict[str, Tensor]) -> str:
    return str(next(iter(tensors.values())).dtype).removeprefix("torch.")
