"""Hugging Face folders (`save_pretrained`): model.safetensors, config.json and preprocessor_config.json, or the weights alone.

`KINDS` lists the models of transformers that vitlab has, by the `model_type` of config.json. Where there is no config.json, the
names of the tensors tell them apart. Weights are written under the names that files on the Hub have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats import bit, convnext, swin
from vitlab.checkpoints.formats.bit import bit_rows, resnet_notes
from vitlab.checkpoints.formats.contract import (
    Expressible,
    Hints,
    Reading,
    Row,
    State,
    Written,
    native_shapes,
    not_of,
    numerics_notes,
    refuse,
    to_ours,
    to_theirs,
)
from vitlab.checkpoints.formats.convnext import convnext_rows
from vitlab.checkpoints.formats.hf_models import (
    BEIT,
    CLIP,
    DATA2VEC,
    DEIT,
    DINOV2,
    DINOV2_REGISTERS,
    DINOV3,
    IJEPA,
    MSN,
    SIGLIP,
    SIGLIP2,
    VIT,
    YOLOS,
    Names,
    beit_json,
    bit_json,
    clip_json,
    convnext_json,
    dinov2_json,
    dinov3_json,
    efficientnet_json,
    efficientnet_notes,
    efficientnet_rows,
    plain_json,
    read_bit,
    read_convnext,
    read_efficientnet,
    read_swin,
    read_vit,
    siglip_json,
    swin_json,
    vit_rows,
    yolos_json,
)
from vitlab.checkpoints.formats.infer import making, naflex_note, unwrapped, zero_head
from vitlab.checkpoints.formats.sidecar import (
    Read,
    Sidecar,
    Tensors,
    Usual,
    detector_preprocess_of,
    guessed,
    image_size_in,
    labels_json,
    labels_of,
    preprocess_of,
    preprocessor_json,
    text,
    within,
)
from vitlab.checkpoints.formats.swin import swin_rows
from vitlab.checkpoints.formats.timm import is_timm
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.data import Preprocess, named_classes, takes_one_size
from vitlab.config.efficientnet import EfficientNetConfig
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.serialize import Json
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import Pool, ViTConfig
from vitlab.errors import CheckpointError
from vitlab.io.display import printable

FORMAT = "huggingface"


class Reader(Protocol):
    """Reads the tensors of a model with what its config.json says, which is empty for a file alone."""

    def __call__(self, tensors: Tensors, data: Sidecar, hints: Hints, *, where: str) -> Read: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A model of transformers: its `title`, how it is read, and how its tensors are called.

    `prefix` is that of all tensors but the `heads`; a model without a head is saved without it. `marks` are patterns of tensors,
    after the prefix, that each such model has and none above it in the table. `unused` is a pattern of tensors that are left out:
    what only pre-training uses; `idle` of those that a model with a classifier does not use. `tower` says that config.json holds
    the vision model beside another. `usual` is the preprocessing without a preprocessor_config.json. `naflex`: its own
    processor keeps the aspect ratio of each image.
    """

    title: str
    prefix: str
    read: Reader
    marks: tuple[str, ...]
    heads: tuple[str, ...] = ("classifier.",)
    unused: str = r"embeddings\.mask_token$|decoder\."
    idle: str = r"pooler\.dense\."
    tower: bool = False
    usual: Usual = "crop"
    naflex: bool = False


_PATCHES = r"embeddings\.patch_embeddings\.projection\.weight"
_LAYER = r"(?:encoder\.layer|layers)\.0\.layernorm_before\.weight"
_VIT = (r"embeddings\.cls_token", r"embeddings\.position_embeddings", _LAYER)
_DINO = (_PATCHES, r"encoder\.layer\.0\.layer_scale1\.lambda1")
_BEIT = (
    _PATCHES,
    r"encoder\.(?:layer\.0\.(?:lambda_1|attention\.attention\.)?|)relative_position_bias.*|encoder\.layer\.0\.lambda_1",
)
_BEITS = r"embeddings\.mask_token$|lm_head\.|decode_head\.|auxiliary_head\.|fpn\d|.*relative_position_index$"
_TOWER = (r"embeddings\.patch_embedding\.weight", r"encoder\.layers\.0\.self_attn\.q_proj\.weight")
_TEXT = r"embeddings\.position_ids$"
_BESIDE = r"text_model\.|text_projection\.|logit_scale$|logit_bias$"  # the text half, which has no prefix of ours
KINDS: dict[str, Kind] = {
    "deit": Kind(
        title="DeiT",
        prefix="deit.",
        read=partial(read_vit, names=DEIT),
        marks=(r"embeddings\.distillation_token", *_VIT),
        heads=("classifier.", "cls_classifier.", "distillation_classifier."),
    ),
    "beit": Kind(title="BEiT", prefix="beit.", read=partial(read_vit, names=BEIT), marks=_BEIT, unused=_BEITS, usual="squash"),
    "data2vec-vision": Kind(
        title="Data2Vec-vision",
        prefix="data2vec_vision.",
        read=partial(read_vit, names=DATA2VEC),
        marks=_BEIT,
        unused=_BEITS,
        usual="squash",
    ),
    "yolos": Kind(
        title="YOLOS",
        prefix="vit.",
        read=partial(read_vit, names=YOLOS),
        marks=(r"embeddings\.detection_tokens", *_VIT),
        heads=("class_labels_classifier.", "bbox_predictor."),
        usual="fit",
    ),
    "vit": Kind(title="ViT", prefix="vit.", read=partial(read_vit, names=VIT), marks=_VIT, usual="squash"),
    "vit_mae": Kind(title="ViT-MAE", prefix="vit.", read=partial(read_vit, names=VIT), marks=_VIT),
    "vit_msn": Kind(title="MSN", prefix="vit.", read=partial(read_vit, names=MSN), marks=_VIT),
    "ijepa": Kind(title="I-JEPA", prefix="ijepa.", read=partial(read_vit, names=IJEPA), marks=(_VIT[1], _LAYER), usual="squash"),
    "dinov2_with_registers": Kind(
        title="DINOv2 with registers",
        prefix="dinov2_with_registers.",
        read=partial(read_vit, names=DINOV2_REGISTERS),
        marks=(*_DINO, r"embeddings\.register_tokens"),
    ),
    "dinov2": Kind(title="DINOv2", prefix="dinov2.", read=partial(read_vit, names=DINOV2), marks=_DINO),
    "dinov3_vit": Kind(
        title="DINOv3",
        prefix="",
        read=partial(read_vit, names=DINOV3),
        marks=(r"embeddings\.patch_embeddings\.weight", r"layer\.0\.attention\.q_proj\.weight"),
        usual="squash",
    ),
    "clip_vision_model": Kind(
        title="CLIP vision",
        prefix="vision_model.",
        read=partial(read_vit, names=CLIP),
        marks=(*_TOWER, r"pre_layrnorm\.weight"),
        unused=_TEXT,
        idle=r"post_layernorm\.",
        usual="clip",
    ),
    "clip": Kind(
        title="CLIP",
        prefix="vision_model.",
        read=partial(read_vit, names=CLIP),
        marks=(*_TOWER, r"pre_layrnorm\.weight"),
        unused=rf"{_TEXT}|{_BESIDE}",
        idle=r"post_layernorm\.",
        usual="clip",
        tower=True,
    ),
    "siglip_vision_model": Kind(
        title="SigLIP vision",
        prefix="vision_model.",
        read=partial(read_vit, names=SIGLIP),
        marks=_TOWER,
        unused=_TEXT,
        idle=r"head\.",
        usual="squash",
    ),
    "siglip": Kind(
        title="SigLIP",
        prefix="vision_model.",
        read=partial(read_vit, names=SIGLIP),
        marks=_TOWER,
        unused=rf"{_TEXT}|{_BESIDE}",
        idle=r"head\.",
        tower=True,
        usual="squash",
    ),
    "siglip2_vision_model": Kind(
        title="SigLIP 2 vision",
        prefix="vision_model.",
        read=partial(read_vit, names=SIGLIP2),
        marks=_TOWER,
        idle=r"head\.",
        usual="squash",
        naflex=True,
    ),
    "siglip2": Kind(
        title="SigLIP 2",
        prefix="vision_model.",
        read=partial(read_vit, names=SIGLIP2),
        marks=_TOWER,
        unused=_BESIDE,
        idle=r"head\.",
        tower=True,
        usual="squash",
        naflex=True,
    ),
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
    data: Sidecar = raw.sidecar if raw.sidecar is not None and not is_timm(raw.sidecar) else {}
    if kind.tower:
        data = {**within(data, "vision_config"), "id2label": data.get("id2label")}
    if raw.preprocessor is not None and "image_size" not in data:  # BiT takes any
        data = {**data, "image_size": image_size_in(raw.preprocessor)}
    tensors, left = _used(tensors, kind)
    found = kind.read(tensors, data, hints, where=where)
    config = found.config
    state = to_ours(found.tensors, found.rows, native_shapes(config), where=where)
    if raw.preprocessor is None:
        preprocess, fed = guessed(config, kind.usual)
    else:
        with making(where):
            if kind.usual == "fit":
                preprocess, fed = detector_preprocess_of(raw.preprocessor, config)
            else:
                preprocess, fed = preprocess_of(raw.preprocessor, config, any_size=not takes_one_size(config))
    if kind.naflex:
        fed.append(naflex_note(preprocess))
    labels, named = labels_of(data, named_classes(config))
    return Reading(
        format=FORMAT,
        config=config,
        state=state,
        preprocess=preprocess,
        labels=labels,
        notes=(*notes, *left, *found.notes, *zero_head(state), *named, *fed),
    )


# The modules of a model without its prefix; no prefix begins like one.
_PARTS = (
    *("embeddings.", "embedder.", "encoder.", "layer.", "layers.", "layernorm.", "norm.", "pooler."),
    *("pre_layrnorm.", "post_layernorm.", "head."),
)


def _used(tensors: Tensors, kind: Kind) -> tuple[Tensors, list[str]]:
    """The tensors that the model uses, all but the heads with the prefix; and a note of the others."""
    idle = rf"{kind.idle}|" if any(key.startswith(kind.heads) for key in tensors) else ""
    unused = re.compile(rf"(?:{re.escape(kind.prefix)})?(?:{idle}{kind.unused})")
    kept = {
        f"{kind.prefix}{key}" if key.startswith(_PARTS) else key: tensor
        for key, tensor in tensors.items()
        if not unused.match(key)
        and (tensor.numel() or not key.endswith("register_tokens"))  # DINOv3 saves no registers as an empty tensor
    }
    left = [key.removeprefix(kind.prefix) for key in tensors if unused.match(key)]
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
    if not any(key.startswith(target.heads) for key in tensors):
        tensors = {key.removeprefix(KINDS[target.model_type].prefix): tensor for key, tensor in tensors.items()}
    about: dict[str, Json] = {
        "architectures": [target.architecture],
        "model_type": target.model_type,
        **target.settings,
        "torch_dtype": _dtype(tensors),
        **labels_json(labels, named_classes(config)),
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

    @property
    def heads(self) -> tuple[str, ...]:
        """The tensors beside which a model keeps its prefix."""
        return (*KINDS[self.model_type].heads, "visual_projection.")


def _target(config: ModelConfig) -> Target:
    match config:
        case ViTConfig():
            return _vit_target(config)
        case SwinConfig():
            settings, rows = swin_json(config), swin_rows(config, swin.HUGGINGFACE)
            return _other_target("swin", "Swin", config, settings, rows, [])
        case ConvNeXtConfig():
            settings, rows = convnext_json(config), convnext_rows(config, convnext.HUGGINGFACE)
            return _other_target("convnext", "ConvNext", config, settings, rows, [])
        case ResNetConfig():
            notes = resnet_notes(config, official=False, reader="transformers")
            return _other_target("bit", "Bit", config, bit_json(config), bit_rows(config, bit.HUGGINGFACE), notes)
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


# The ViTs of transformers that vitlab writes. The first form that fits a config is taken.

Need = tuple[str, Callable[[ViTConfig], bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A ViT of transformers to write: its classes with and without a head, its names, its config.json.

    `fits` says whether a config is of this kind; whether it can be written, `can` (the choices that the kind has), `needs` (what
    each of them has, under the words for its absence) and `pools` (how the classes with and without a head pool) decide.
    `tower` is the `model_type` of the classifier where that one holds the vision model as a part.
    """

    model_type: str
    classes: tuple[str, str]
    names: Names
    settings: Callable[[ViTConfig], dict[str, Json]]
    fits: Callable[[ViTConfig], bool]
    can: Expressible
    needs: tuple[Need, ...] = ()
    pools: tuple[tuple[Pool, ...], tuple[Pool, ...]] = (("token",), ("token",))
    tower: str | None = None


_PLAIN = Expressible(format=FORMAT, representation=True, without_qkv_bias=True)
_DINOV2 = Expressible(
    format=FORMAT,
    pools=("token", "token+mean"),
    register_tokens=True,
    layer_scale=True,
    without_qkv_bias=True,
    traits=("a gated MLP", "pooling of class token and mean", "registers without a position"),
)
_HIDDEN: Need = (
    "a hidden layer and a head after it (transformers' classifiers have no pooler)",
    lambda config: not (config.representation_width and config.num_classes),
)
_SCALED: Need = ("a model without layer scale (layer_scale=0)", lambda config: config.layer_scale > 0)
_CLASS_TOKEN: Need = ("a model without a class token", lambda config: config.class_token)
FORMS = (
    Form(
        model_type="dinov3_vit",
        classes=("", "DINOv3ViTModel"),
        names=DINOV3,
        settings=dinov3_json,
        fits=lambda config: config.position.rotary is not None,
        can=Expressible(
            format=FORMAT,
            positions=("none",),
            register_tokens=True,
            layer_scale=True,
            without_qkv_bias=True,
            traits=("rotary positions", "keys without a bias", "a gated MLP"),
        ),
        needs=(
            _SCALED,
            _CLASS_TOKEN,
            ("a classifier (transformers has none for DINOv3)", lambda config: not config.num_classes),
            (
                "these rotary positions",
                lambda config: config.position.rotary is not None and config.position.rotary.kind == "centred",
            ),
        ),
    ),
    Form(
        model_type="beit",
        classes=("BeitForImageClassification", "BeitModel"),
        names=BEIT,
        settings=beit_json,
        fits=lambda config: config.position.bias is not None or (not config.projections.key_bias and config.class_token),
        can=Expressible(
            format=FORMAT,
            pools=("token", "mean"),
            positions=("learned-1d", "none"),
            class_token_unpooled=True,
            norm_after_mean=True,
            layer_scale=True,
            traits=("a relative position bias", "keys without a bias"),
        ),
        needs=(
            _CLASS_TOKEN,
            ("keys with a bias beside a relative position bias", lambda config: not config.projections.key_bias),
            ("a mean without a norm after it", lambda config: config.pool == "token" or config.norm_after_pool),
            ("this relative position bias", lambda config: config.position.bias is None or config.position.bias.kind == "table"),
        ),
        pools=(("token", "mean"), ("token", "mean")),
    ),
    Form(
        model_type="clip_vision_model",
        classes=("CLIPForImageClassification", "CLIPVisionModel"),
        names=CLIP,
        settings=clip_json,
        fits=lambda config: config.norm.before,
        can=Expressible(
            format=FORMAT,
            pools=("token", "mean"),
            class_token_unpooled=True,
            traits=(
                *("a norm before the encoder", "the quick GELU", "a projection of the pooled vector"),
                "an encoder without a last norm",
            ),
        ),
        needs=(
            _CLASS_TOKEN,
            ("a head after a projection", lambda config: not (config.num_classes and config.projection_width)),
            ("a last norm before a mean", lambda config: config.norm.last == (config.pool == "token")),
        ),
        pools=(("mean",), ("token",)),
        tower="clip",
    ),
    Form(
        model_type="siglip_vision_model",
        classes=("SiglipForImageClassification", "SiglipVisionModel"),
        names=SIGLIP,
        settings=siglip_json,
        fits=lambda config: config.pool == "map" or (not config.class_token and config.numerics.gelu == "tanh"),
        can=Expressible(format=FORMAT, pools=("mean", "map"), traits=("images cropped to whole patches",)),
        needs=(("a class token beside attention pooling", lambda config: not config.class_token),),
        pools=(("mean",), ("map", "mean")),
        tower="siglip",
    ),
    Form(
        model_type="yolos",
        classes=("", "YolosForObjectDetection"),
        names=YOLOS,
        settings=yolos_json,
        fits=lambda config: config.detection_classes > 0,
        can=Expressible(format=FORMAT, register_tokens=True, every_layer=True, without_qkv_bias=True, traits=("detection heads",)),
        needs=(
            ("a classifier beside detection heads", lambda config: not config.num_classes),
            ("detection tokens without positions", lambda config: config.position.prefix and config.position.registers),
            ("patches that are not square", lambda config: config.patch_size[0] == config.patch_size[1]),
        ),
    ),
    Form(
        model_type="dinov2_with_registers",
        classes=("Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersModel"),
        names=DINOV2_REGISTERS,
        settings=dinov2_json,
        fits=lambda config: config.register_tokens > 0 and not config.position.registers,
        can=_DINOV2,
        needs=(_SCALED,),
        pools=(("token+mean",), ("token",)),
    ),
    Form(
        model_type="dinov2",
        classes=("Dinov2ForImageClassification", "Dinov2Model"),
        names=DINOV2,
        settings=dinov2_json,
        fits=lambda config: config.layer_scale > 0 or config.pool == "token+mean" or config.mlp.gated,
        can=replace(_DINOV2, register_tokens=False),
        needs=(_SCALED,),
        pools=(("token+mean",), ("token",)),
    ),
    Form(
        model_type="ijepa",
        classes=("IJepaForImageClassification", "IJepaModel"),
        names=IJEPA,
        settings=plain_json,
        fits=lambda config: not config.class_token,
        can=Expressible(format=FORMAT, pools=("mean",), without_qkv_bias=True),
        pools=(("mean",), ("mean",)),
    ),
    Form(
        model_type="deit",
        classes=("DeiTForImageClassification", "DeiTModel"),
        names=DEIT,
        settings=plain_json,
        fits=lambda config: config.distill_token or config.register_tokens > 0,
        can=replace(_PLAIN, distill_token=True, register_tokens=True),
        needs=(
            _HIDDEN,
            (
                "more tokens beside the class token than one",
                lambda config: config.register_tokens + config.distill_token == 1,
            ),
            ("a distillation token without its two heads", lambda config: not config.distill_token or config.num_classes > 0),
        ),
    ),
    Form(
        model_type="vit",
        classes=("ViTForImageClassification", "ViTModel"),
        names=VIT,
        settings=plain_json,
        fits=lambda config: True,
        can=_PLAIN,
        needs=(_HIDDEN,),
    ),
)


def _vit_target(config: ViTConfig) -> Target:
    form = next(form for form in FORMS if form.fits(config))
    headed = config.num_classes > 0
    also = [words for words, has in form.needs if not has(config)]
    if config.pool in form.can.pools and config.pool not in form.pools[not headed]:
        also.append(f"pool={config.pool!r} {'with' if headed else 'without'} a head, as {form.classes[not headed]}")
    refuse(config, form.can, also=also)
    notes = numerics_notes(config, config.numerics, reader="transformers")
    if form.model_type == "deit" and config.register_tokens:
        notes.append("the register is written as DeiT's distillation token, which transformers' DeiT leaves out of the head too")
    if form.tower == "clip" and headed:
        notes.append(
            "vision_model.post_layernorm is not written: transformers makes one anew, which CLIP's classifier does not use"
        )
    settings, model_type = form.settings(config), form.model_type
    architecture = form.classes[0 if headed else 1]
    if config.distill_token:
        architecture += "WithTeacher"
    if config.projection_width:
        architecture += "WithProjection"
    if headed and form.tower is not None:
        settings, model_type = {"vision_config": {"model_type": form.model_type, **settings}}, form.tower
    return Target(
        model_type=model_type, architecture=architecture, settings=settings, rows=vit_rows(config, form.names), notes=notes
    )


def _dtype(tensors: Tensors) -> str:
    return str(next(iter(tensors.values())).dtype).removeprefix("torch.")
