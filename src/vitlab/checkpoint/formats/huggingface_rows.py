"""Hugging Face's key names of ViT and DeiT: those of the files on the Hub, and those of transformers 5's own modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from vitlab.checkpoint.table import Row, layer, same, stacked
from vitlab.config.model import ViTConfig

PATCHES = "embeddings.patch_embeddings.projection"
PREFIXES = ("vit.", "deit.", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names within one layer; `layers` is where the layers stand."""

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
    """Which names a file uses, and what is before them; `teacher` for DeiT's two heads."""

    names: Names
    prefix: str
    teacher: bool


def layout_of(tensors: dict[str, Tensor]) -> Layout | None:
    """The layout of a Hugging Face ViT or DeiT, or None where the tensors have another."""
    teacher = any(key.startswith(("cls_classifier.", "distillation_classifier.")) for key in tensors)
    for prefix in PREFIXES:
        for names in (HUB, MODULES):
            first = f"{prefix}{names.layers}.0.layernorm_before.weight"
            if f"{prefix}{PATCHES}.weight" in tensors and first in tensors:
                return Layout(names=names, prefix=prefix, teacher=teacher)
    return None


def rows_of(config: ViTConfig, layout: Layout) -> Iterator[Row]:
    """The rows of a ViT or DeiT in that layout; DeiT's distillation token without a head of its own is a register to us."""
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
