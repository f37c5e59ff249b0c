"""Checkpoints of the training code of DINO, MAE, MoCo v3, BEiT and EVA, which name a ViT's tensors as timm does.

They differ from a timm file in what stands around the encoder, and EVA-02 in some names. `infer.unwrapped` takes that off, so that
they are read as `timm`; here they are written, for the authors' own code. What only pre-training uses (projectors, decoders, mask
tokens) is not written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats import timm
from vitlab.checkpoints.formats.contract import (
    Expressible,
    Hints,
    Reading,
    State,
    Written,
    heads_notes,
    native_shapes,
    numerics_notes,
    only_vit,
    refuse,
    to_theirs,
)
from vitlab.checkpoints.formats.header import metadata_of
from vitlab.checkpoints.formats.infer import EVAS
from vitlab.checkpoints.formats.timm_vit import vit_rows
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.vit import Numerics, ViTConfig

Rename = Callable[[str, ViTConfig], str]  # timm's key -> the authors'
NUMERICS = Numerics(gelu="exact", norm_eps=1e-6, resize="bicubic")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorsViT:
    """The layout of one training code: what it can express, what it lacks beyond that, and its keys."""

    can: Expressible
    lacks: Callable[[ViTConfig], list[str]]
    rename: Rename

    def read(self, raw: RawFile, hints: Hints) -> Reading:
        """The encoder of such a file: its names are timm's."""
        return timm.read(raw, hints)

    def write(self, state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
        """The model under the authors' names."""
        vit = only_vit(config, self.can.format)
        refuse(vit, self.can, also=self.lacks(vit))
        tensors = to_theirs(state, list(vit_rows(vit)), native_shapes(vit))
        return Written(
            container="safetensors",
            tensors={self.rename(key, vit): tensor for key, tensor in tensors.items()},
            metadata=metadata_of(vit, preprocess, labels),
            notes=(*numerics_notes(vit, NUMERICS, reader="the authors' code"), *heads_notes(vit, reader="the authors' code")),
        )


def _encoder_alone(config: ViTConfig) -> list[str]:
    """A projector stands where a head would be."""
    return [f"a head (num_classes={config.num_classes})"] if config.num_classes else []


def _pooled(config: ViTConfig) -> list[str]:
    """The class token, or a norm of the mean of the patches beside one."""
    return [
        *([] if config.class_token else ["a model without a class token"]),
        *(["mean pooling without a norm after it"] if config.pool == "mean" and not config.norm_after_pool else []),
    ]


def _beits(config: ViTConfig) -> list[str]:
    bias, reasons = config.position.bias, _pooled(config)
    if config.projections.key_bias or not config.qkv_bias:
        reasons.append("keys with a bias, or queries and values without one")
    if bias is None or bias.kind != "table":
        reasons.append("a model without a table of relative positions")
    return reasons


def _evas(config: ViTConfig) -> list[str]:
    rotary, reasons = config.position.rotary, _pooled(config)
    if config.projections.key_bias or not config.qkv_bias:
        reasons.append("keys with a bias, or queries and values without one")
    if rotary is not None and (rotary.kind != "axial" or rotary.offset or rotary.columns_first):
        reasons.append("rotary positions other than EVA-02's")
    if config.mlp.gated and rotary is None:
        reasons.append("a gated MLP without rotary positions")
    if config.mlp.norm and not config.mlp.gated:
        reasons.append("a norm inside an MLP without a gate")
    return reasons


def _as_evas(key: str, config: ViTConfig) -> str:
    """EVA-02 has other names for its SwiGLU and inner norms, and biases beside the layers of q and v; EVA has timm's names."""
    for theirs, timms in EVAS:
        if config.mlp.gated or theirs == ".attn.inner_attn_ln.":
            key = key.replace(timms, theirs)
    return key.replace(".q_proj.bias", ".q_bias").replace(".v_proj.bias", ".v_bias")


AUTHORS: dict[str, AuthorsViT] = {
    "dino": AuthorsViT(can=Expressible(format="dino"), lacks=_encoder_alone, rename=lambda key, _: f"backbone.{key}"),
    "mae": AuthorsViT(
        can=Expressible(format="mae", pools=("token", "mean"), class_token_unpooled=True, norm_after_mean=True),
        lacks=_pooled,
        rename=lambda key, _: key,
    ),
    "moco-v3": AuthorsViT(
        can=Expressible(format="moco-v3"), lacks=_encoder_alone, rename=lambda key, _: f"module.base_encoder.{key}"
    ),
    "beit": AuthorsViT(
        can=Expressible(
            format="beit",
            pools=("token", "mean"),
            positions=("learned-1d", "none"),
            class_token_unpooled=True,
            norm_after_mean=True,
            layer_scale=True,
            traits=("keys without a bias", "a relative position bias"),
        ),
        lacks=_beits,
        rename=lambda key, _: key,
    ),
    "eva": AuthorsViT(
        can=Expressible(
            format="eva",
            pools=("token", "mean"),
            class_token_unpooled=True,
            norm_after_mean=True,
            layer_scale=True,
            traits=(
                *("keys without a bias", "rotary positions", "a gated MLP", "a norm inside the MLP"),
                "a norm of attention's output",
            ),
        ),
        lacks=_evas,
        rename=_as_evas,
    ),
}
