"""Hugging Face's config.json of a ViT or DeiT, read and written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vitlab.checkpoint.formats import sidecar
from vitlab.checkpoint.formats.sidecar import Sidecar
from vitlab.config.model import PROFILES, Gelu, Numerics, ViTConfig
from vitlab.config.text import Json
from vitlab.errors import CheckpointError

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
    """What a config.json says, None where it does not; `notes` where there is none and the rest is a guess.

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
        """As transformers computes, positions interpolated bicubically."""
        return Numerics(gelu=self.gelu, norm_eps=self.norm_eps, resize=PROFILES["huggingface"].resize)

    def check(self, found: Mapping[str, int | tuple[int, int]], *, where: str) -> None:
        """Refuse tensors whose sizes are not the stated ones: the file is incomplete or not this config's."""
        wrong = [
            f"{name} {stated} against {found[name]}" for name, stated in self.sizes.items() if stated not in (None, found[name])
        ]
        if wrong:
            raise CheckpointError(
                f"{where} is not the model of its config.json: {', '.join(wrong)}",
                hint="the file is incomplete, or the config.json beside it is another model's",
            )


def stated_of(data: Sidecar) -> Stated:
    """What config.json says; an empty one is a file that stands alone, run as transformers' defaults have it."""
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
    """The classes' names from `id2label`; LABEL_0, LABEL_1, ... are placeholders and none."""
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
