"""Hugging Face ViT and DeiT: a folder of model.safetensors, config.json and preprocessor_config.json, or the file alone.

Read under the Hub's names and under those of transformers 5; written as the Hub has it.
"""

from __future__ import annotations

from torch import Tensor

from vitlab.checkpoint.files.raw import RawFile
from vitlab.checkpoint.formats.contract import Reading, State, Told, Written
from vitlab.checkpoint.formats.express import Expressible, numerics_notes, only_vit, refuse
from vitlab.checkpoint.formats.huggingface_config import Stated, config_json, labels_of, stated_of
from vitlab.checkpoint.formats.huggingface_feeding import guessed, preprocess_of, preprocessor_json
from vitlab.checkpoint.formats.huggingface_rows import HUB, PATCHES, Layout, layout_of, rows_of
from vitlab.checkpoint.formats.infer import (
    count,
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
from vitlab.checkpoint.formats.timm_sidecar import is_timm
from vitlab.checkpoint.table import native_shapes, to_ours, to_theirs
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig, Position, ViTConfig
from vitlab.errors import CheckpointError

FORMAT = "huggingface"
CAN = Expressible(format=FORMAT, distill_token=True, register_tokens=True, representation=True, without_qkv_bias=True)


def matches(raw: RawFile) -> bool:
    """Whether the tensors carry the names of transformers' ViT or DeiT."""
    return layout_of(unwrapped(raw)[0]) is not None


def read(raw: RawFile, told: Told) -> Reading:
    """The model of a Hugging Face folder or file."""
    tensors, notes = unwrapped(raw)
    layout = layout_of(tensors)
    assert layout is not None
    where = raw.path.name
    stated = stated_of({} if raw.sidecar is None or is_timm(raw.sidecar) else raw.sidecar)
    tensors, left = _left_out(tensors, layout)
    config, found = _config(tensors, layout, told, stated, where)
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
    """Without the tensors that transformers itself keeps but does not use in a classifier's forward pass."""
    mask = f"{layout.prefix}embeddings.mask_token"
    pooler = [f"{layout.prefix}pooler.dense.{part}" for part in ("weight", "bias")]
    classifier = layout.teacher or any(key.startswith("classifier.") for key in tensors)
    unused = {mask, *(pooler if classifier else ())}
    left = [key for key in tensors if key in unused]
    kept = {key: tensor for key, tensor in tensors.items() if key not in unused}
    return kept, [f"left out, since transformers' classifier does not use it: {', '.join(left)}"] if left else []


def _config(tensors: dict[str, Tensor], layout: Layout, told: Told, stated: Stated, where: str) -> tuple[ViTConfig, list[str]]:
    prefix, names = layout.prefix, layout.names
    first = f"{prefix}{names.layers}.0"
    width, channels, *patch = shape_of(tensors, f"{prefix}{PATCHES}.weight", 4, where=where)
    depth = count(tensors, f"{prefix}{names.layers}.{{}}.", where=where)
    mlp_width, _ = shape_of(tensors, f"{first}.{names.up}.weight", 2, where=where)
    patch_size = (patch[0], patch[1])
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "intermediate_size": mlp_width, "num_channels": channels}
    stated.check({**sizes, "patch_size": patch_size}, where=where)
    heads, notes = heads_of(width, depth, mlp_width, told=told.heads, said=stated.heads, where=where)
    extra = f"{prefix}embeddings.distillation_token" in tensors
    _, rows, _ = shape_of(tensors, f"{prefix}embeddings.position_embeddings", 3, where=where)
    said = None if stated.image_size is None else _grid(stated.image_size, patch_size)
    places = places_of(rows, 1 + extra, told=told.grid, said=said, without=False, where=where)
    head = "cls_classifier" if layout.teacher else "classifier"
    hidden = outputs(tensors, (f"{prefix}pooler.dense.weight", f"{prefix}pooler.dense.bias"), 0)
    if hidden and stated.pooler_act not in (None, "tanh"):
        raise CheckpointError(f"{where}: the pooler's activation {stated.pooler_act!r} is none that vitlab has", hint="tanh")
    biases = tuple(f"{name}.bias" for name in names.query_key_value)
    qkv_bias = any(key.endswith(biases) for key in tensors) if stated.qkv_bias is None else stated.qkv_bias
    with making(where):
        numerics = stated.numerics()
    numerics = numerics_of(told, numerics)
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
