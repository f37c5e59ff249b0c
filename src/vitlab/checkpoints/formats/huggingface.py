"""Hugging Face folders (`save_pretrained`): model.safetensors, config.json and preprocessor_config.json, or the weights alone.

`KINDS` lists the models of transformers that vitlab has, by the `model_type` of config.json. Where there is no config.json, the
names of the tensors tell them apart. Weights are written under the names that files on the Hub have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats import convnext_layout, resnet, swin_layout
from vitlab.checkpoints.formats.contract import Expressible, Hints, Reading, State, Written, not_of, numerics_notes, refuse
from vitlab.checkpoints.formats.convnext_layout import convnext_rows
from vitlab.checkpoints.formats.hf_families import (
    bit_json,
    convnext_json,
    efficientnet_json,
    efficientnet_notes,
    efficientnet_rows,
    read_bit,
    read_convnext,
    read_efficientnet,
    read_swin,
    swin_json,
)
from vitlab.checkpoints.formats.hf_json import (
    Read,
    Tensors,
    guessed,
    image_size_in,
    labels_json,
    labels_of,
    preprocess_of,
    preprocessor_json,
)
from vitlab.checkpoints.formats.hf_vit import DEIT, IJEPA, VIT, read_vit, vit_json, vit_rows
from vitlab.checkpoints.formats.infer import making, unwrapped, zero_head
from vitlab.checkpoints.formats.resnet import bit_rows, resnet_notes
from vitlab.checkpoints.formats.sidecar import Sidecar, text
from vitlab.checkpoints.formats.swin_layout import swin_rows
from vitlab.checkpoints.formats.timm_sidecar import is_timm
from vitlab.checkpoints.table import Row, native_shapes, to_ours, to_theirs
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.data import Preprocess, takes_one_size
from vitlab.config.efficientnet import EfficientNetConfig
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.serialize import Json
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import ViTConfig
from vitlab.errors import CheckpointError
from vitlab.io.names import printable

FORMAT = "huggingface"
CAN = Expressible(
    format=FORMAT,
    pools=("token", "mean"),
    distill_token=True,
    register_tokens=True,
    representation=True,
    without_qkv_bias=True,
)


class Reader(Protocol):
    """Reads the tensors of a model with what its config.json says, which is empty for a file alone."""

    def __call__(self, tensors: Tensors, data: Sidecar, hints: Hints, *, where: str) -> Read: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A model of transformers: its `title`, how it is read, and how its tensors are called.

    `prefix` is that of all tensors but the `heads`; a model without a head is saved without it. `marks` are patterns of tensors,
    after the prefix, that each such model has and none above it in the table. `unused` is a pattern of tensors that are left out:
    what only pre-training uses. `crops` says whether the usual preprocessing crops the centre.
    """

    title: str
    prefix: str
    read: Reader
    marks: tuple[str, ...]
    heads: tuple[str, ...] = ("classifier.",)
    unused: str = r"embeddings\.mask_token$|decoder\."
    crops: bool = True


_LAYER = r"(?:encoder\.layer|layers)\.0\.layernorm_before\.weight"
_VIT = (r"embeddings\.cls_token", r"embeddings\.position_embeddings", _LAYER)
KINDS: dict[str, Kind] = {
    "deit": Kind(
        title="DeiT",
        prefix="deit.",
        read=partial(read_vit, names=DEIT),
        marks=(r"embeddings\.distillation_token", *_VIT),
        heads=("classifier.", "cls_classifier.", "distillation_classifier."),
    ),
    "vit": Kind(title="ViT", prefix="vit.", read=partial(read_vit, names=VIT), marks=_VIT, crops=False),
    "vit_mae": Kind(title="ViT-MAE", prefix="vit.", read=partial(read_vit, names=VIT), marks=_VIT),
    "vit_msn": Kind(title="MSN", prefix="vit.", read=partial(read_vit, names=VIT), marks=_VIT),
    "ijepa": Kind(title="I-JEPA", prefix="ijepa.", read=partial(read_vit, names=IJEPA), marks=(_VIT[1], _LAYER), crops=False),
    "swin": Kind(
        title="Swin",
        prefix="swin.",
        read=read_swin,
        marks=(r"embeddings\.norm\.weight", r"encoder\.layers\.0\.blocks\.0\.attention\.self\.relative_position_bias_table"),
    ),
    "convnext": Kind(
        title="ConvNeXt",
        prefix="convnext.",
        read=read_convnext,
        marks=(r"embeddings\.layernorm\.weight", r"encoder\.stages\.0\.layers\.0\.dwconv\.weight"),
    ),
    "bit": Kind(
        title="BiT",
        prefix="bit.",
        read=read_bit,
        marks=(r"embedder\.convolution\.weight", r"encoder\.stages\.0\.layers\.0\.norm1\.weight"),
    ),
    "efficientnet": Kind(
        title="EfficientNet",
        prefix="efficientnet.",
        read=read_efficientnet,
        marks=(r"embeddings\.batchnorm\.weight", r"encoder\.blocks\.0\.squeeze_excite\.reduce\.weight"),
    ),
}


def named_by(data: Sidecar | None) -> str | None:
    """The `model_type` of a config.json of transformers, or None if it is none of transformers'."""
    return None if data is None or is_timm(data) else text(data, "model_type")


def unknown_kind(raw: RawFile) -> CheckpointError | None:
    """The refusal of a folder whose config.json names a model of transformers that vitlab does not have."""
    name = named_by(raw.sidecar)
    if name is None or name in KINDS:
        return None
    return CheckpointError(
        f"{raw.path} is a Hugging Face {printable(name[:60])} model, which vitlab does not have",
        hint=f"of Hugging Face's models vitlab reads {', '.join(kind.title for kind in KINDS.values())}",
    )


def kind_of(tensors: Tensors, data: Sidecar | None) -> Kind | None:
    """The kind that config.json names, if the tensors have its names; without config.json the first kind whose names they have."""
    name = named_by(data)
    asked = KINDS.values() if name is None else [KINDS[name]] if name in KINDS else []
    return next((kind for kind in asked if _has_names_of(tensors, kind)), None)


def _has_names_of(tensors: Tensors, kind: Kind) -> bool:
    patterns = [re.compile(rf"(?:{re.escape(kind.prefix)})?{mark}") for mark in kind.marks]
    return all(any(pattern.fullmatch(key) for key in tensors) for pattern in patterns)


def matches(raw: RawFile) -> bool:
    """Whether the tensors carry the names of a model of transformers that vitlab has."""
    return kind_of(unwrapped(raw)[0], raw.sidecar) is not None


def read(raw: RawFile, hints: Hints) -> Reading:
    """The model of a Hugging Face folder or file."""
    tensors, notes = unwrapped(raw)
    kind = kind_of(tensors, raw.sidecar)
    assert kind is not None
    where = raw.path.name
    data = raw.sidecar if raw.sidecar is not None and not is_timm(raw.sidecar) else {}
    if raw.preprocessor is not None and "image_size" not in data:  # BiT takes any
        data = {**data, "image_size": image_size_in(raw.preprocessor)}
    tensors, left = _used(tensors, kind)
    found = kind.read(tensors, data, hints, where=where)
    config = found.config
    state = to_ours(found.tensors, found.rows, native_shapes(config), where=where)
    if raw.preprocessor is None:
        preprocess, fed = guessed(config, crop=kind.crops)
    else:
        with making(where):
            preprocess, fed = preprocess_of(raw.preprocessor, config, any_size=not takes_one_size(config))
    labels, named = labels_of(data, config.num_classes)
    return Reading(
        format=FORMAT,
        config=config,
        state=state,
        preprocess=preprocess,
        labels=labels,
        notes=(*notes, *left, *found.notes, *zero_head(state), *named, *fed),
    )


# The modules of a model without its prefix; no prefix begins like one.
_PARTS = ("embeddings.", "embedder.", "encoder.", "layer.", "layers.", "layernorm.", "norm.", "pooler.")


def _used(tensors: Tensors, kind: Kind) -> tuple[Tensors, list[str]]:
    """The tensors that the model uses, all but the heads with the prefix; and a note of the others.

    The poolers of transformers' classifiers are of no use to them.
    """
    pooler = r"pooler\.dense\.|" if any(key.startswith(kind.heads) for key in tensors) else ""
    unused = re.compile(rf"(?:{re.escape(kind.prefix)})?(?:{pooler}{kind.unused})")
    kept = {
        f"{kind.prefix}{key}" if key.startswith(_PARTS) else key: tensor for key, tensor in tensors.items() if not unused.match(key)
    }
    left = [key for key in tensors if unused.match(key)]
    return kept, [f"left out, since the model does not use it: {listed(left)}"] if left else []


def listed(keys: list[str]) -> str:
    """Some keys for a note; many of one module are counted."""
    if len(keys) <= 6:
        return ", ".join(keys)
    modules: dict[str, int] = {}
    for key in keys:
        module = key.partition(".")[0]
        modules[module] = modules.get(module, 0) + 1
    return ", ".join(f"{module} ({number} tensors)" for module, number in modules.items())


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The folder that transformers reads: weights under the Hub's names, config.json, preprocessor_config.json."""
    target = _target(config)
    tensors = to_theirs(state, list(target.rows), native_shapes(config))
    if not config.num_classes:
        tensors = {key.removeprefix(KINDS[target.model_type].prefix): tensor for key, tensor in tensors.items()}
    about: dict[str, Json] = {
        "architectures": [target.architecture],
        "model_type": target.model_type,
        **target.settings,
        "torch_dtype": _dtype(tensors),
        **labels_json(labels, config.num_classes),
    }
    sidecars: dict[str, Json] = {"config.json": about}
    fed, fed_notes = preprocessor_json(preprocess)
    if fed is not None:
        sidecars["preprocessor_config.json"] = fed
    return Written(
        container="safetensors",
        tensors=tensors,
        metadata={"format": "pt"},
        sidecars=sidecars,
        notes=(*target.notes, *fed_notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The model of transformers that a config becomes: its class, the settings of config.json, the rows, and notes."""

    model_type: str
    architecture: str
    settings: dict[str, Json]
    rows: Iterable[Row]
    notes: list[str]


def _target(config: ModelConfig) -> Target:
    match config:
        case ViTConfig():
            return _vit_target(config)
        case SwinConfig():
            settings, rows = swin_json(config), swin_rows(config, swin_layout.HUGGINGFACE)
            return _other_target("swin", "Swin", config, settings, rows, [])
        case ConvNeXtConfig():
            settings, rows = convnext_json(config), convnext_rows(config, convnext_layout.HUGGINGFACE)
            return _other_target("convnext", "ConvNext", config, settings, rows, [])
        case ResNetConfig():
            notes = resnet_notes(config, official=False, reader="transformers")
            return _other_target("bit", "Bit", config, bit_json(config), bit_rows(config, resnet.HUGGINGFACE), notes)
        case EfficientNetConfig():
            rows, notes = efficientnet_rows(config), efficientnet_notes(config)
            return _other_target("efficientnet", "EfficientNet", config, efficientnet_json(config), rows, notes)
        case _:
            raise not_of(FORMAT, "ViTs, Swins, ConvNeXts, BiT ResNets and EfficientNets", config)


def _other_target(
    model_type: str, name: str, config: ModelConfig, settings: dict[str, Json], rows: Iterable[Row], notes: list[str]
) -> Target:
    architecture = f"{name}ForImageClassification" if config.num_classes else f"{name}Model"
    return Target(model_type=model_type, architecture=architecture, settings=settings, rows=rows, notes=notes)


def _vit_target(config: ViTConfig) -> Target:
    refuse(config, CAN, also=_unreadable(config))
    deit = config.distill_token or config.register_tokens == 1
    notes = numerics_notes(config, config.numerics, reader="transformers")
    if config.register_tokens:
        notes.append("the register is written as DeiT's distillation token, which transformers' DeiT leaves out of the head too")
    model_type, name, names = ("deit", "DeiT", DEIT) if deit else ("vit", "ViT", VIT)
    if not config.class_token:
        model_type, name, names = "ijepa", "IJepa", IJEPA
    architecture = (
        f"{name}ForImageClassification{'WithTeacher' if config.distill_token else ''}" if config.num_classes else f"{name}Model"
    )
    return Target(
        model_type=model_type, architecture=architecture, settings=vit_json(config), rows=vit_rows(config, names), notes=notes
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


def _dtype(tensors: Tensors) -> str:
    return str(next(iter(tensors.values())).dtype).removeprefix("torch.")
