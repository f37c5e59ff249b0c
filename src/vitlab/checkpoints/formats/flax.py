"""A Flax parameter tree in an .npz: where it is in the file, what else is ignored, and whose layout it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.contract import Row, same, turned
from vitlab.config.vit import ViTConfig

# Flax stores the weight of a dense layer as (in, out), and attention's with an axis for the heads: query (D, H, K), out (H, K, D).


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """How the parts of an encoder block are numbered: Flax's old API numbers all parts together, the new one by class."""

    attention: str
    norm2: str
    mlp: str


PUBLISHED = Numbering(attention="MultiHeadDotProductAttention_1", norm2="LayerNorm_2", mlp="MlpBlock_3")
BY_CLASS = Numbering(attention="MultiHeadDotProductAttention_0", norm2="LayerNorm_1", mlp="MlpBlock_0")


def dense(ours: str, theirs: str) -> Iterator[Row]:
    """A linear layer."""
    yield turned(f"{ours}.weight", f"{theirs}/kernel")
    yield same(f"{ours}.bias", f"{theirs}/bias")


def norm(ours: str, theirs: str) -> Iterator[Row]:
    """A LayerNorm."""
    yield same(f"{ours}.weight", f"{theirs}/scale")
    yield same(f"{ours}.bias", f"{theirs}/bias")


def projections(ours: str, theirs: Sequence[str], heads: int) -> Iterator[Row]:
    """Query, key or value projections: one linear layer of vitlab's is the concatenation of `theirs`."""

    def weight_to_ours(kernels_DHK: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([kernel_DHK.flatten(1).T for kernel_DHK in kernels_DHK])]

    def weight_to_theirs(weights: Sequence[Tensor]) -> list[Tensor]:
        return [weight.T.reshape(weight.shape[1], heads, -1) for weight in weights[0].chunk(len(theirs))]

    def bias_to_ours(biases_HK: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([bias_HK.flatten() for bias_HK in biases_HK])]

    def bias_to_theirs(biases: Sequence[Tensor]) -> list[Tensor]:
        return [bias.reshape(heads, -1) for bias in biases[0].chunk(len(theirs))]

    yield Row(
        ours=(f"{ours}.weight",),
        theirs=tuple(f"{key}/kernel" for key in theirs),
        to_ours=weight_to_ours,
        to_theirs=weight_to_theirs,
    )
    yield Row(
        ours=(f"{ours}.bias",),
        theirs=tuple(f"{key}/bias" for key in theirs),
        to_ours=bias_to_ours,
        to_theirs=bias_to_theirs,
    )


def output(ours: str, theirs: str, heads: int) -> Iterator[Row]:
    """Attention's output projection."""
    yield Row(
        ours=(f"{ours}.weight",),
        theirs=(f"{theirs}/kernel",),
        to_ours=lambda kernels_HKD: [kernels_HKD[0].flatten(0, 1).T],
        to_theirs=lambda weights: [weights[0].T.reshape(heads, -1, weights[0].shape[0])],
    )
    yield same(f"{ours}.bias", f"{theirs}/bias")


def encoder(config: ViTConfig, numbering: Numbering) -> Iterator[Row]:
    """All encoder blocks and the LayerNorm after them."""
    for i in range(config.depth):
        ours, theirs = f"encoder.blocks.{i}", f"Transformer/encoderblock_{i}"
        attention = f"{theirs}/{numbering.attention}"
        yield from norm(f"{ours}.norm1", f"{theirs}/LayerNorm_0")
        parts = [f"{attention}/{part}" for part in ("query", "key", "value")]
        yield from projections(f"{ours}.attention.qkv", parts, config.heads)
        yield from output(f"{ours}.attention.out", f"{attention}/out", config.heads)
        yield from norm(f"{ours}.norm2", f"{theirs}/{numbering.norm2}")
        yield from mlp(f"{ours}.mlp", f"{theirs}/{numbering.mlp}")
    yield from norm("encoder.norm", "Transformer/encoder_norm")


def mlp(ours: str, theirs: str) -> Iterator[Row]:
    """The two dense layers of an MLP."""
    yield from dense(f"{ours}.up", f"{theirs}/Dense_0")
    yield from dense(f"{ours}.down", f"{theirs}/Dense_1")


def map_pool(config: ViTConfig) -> Iterator[Row]:
    """big_vision's attention pooling."""
    attention = "MAPHead_0/MultiHeadDotProductAttention_0"
    yield same("pool.probe", "MAPHead_0/probe")
    yield from projections("pool.query", [f"{attention}/query"], config.heads)
    yield from projections("pool.key_value", [f"{attention}/key", f"{attention}/value"], config.heads)
    yield from output("pool.out", f"{attention}/out", config.heads)
    yield from norm("pool.norm", "MAPHead_0/LayerNorm_0")
    yield from mlp("pool.mlp", "MAPHead_0/MlpBlock_0")


# Where the tree may be, and what may be beside it that is no part of the model: (prefix, other keys, what they are).
PLACES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("opt/target/", ("opt/state/", "opt/step"), "optimizer state"),
    ("params/img/", ("params/txt/", "params/t", "params/b"), "text tower and its temperature and bias"),
    ("params/", ("opt/", "extra/", "chrono/"), "optimizer state"),
    ("", (), ""),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The tensors by their keys within the tree; a key outside it keeps its whole name."""

    prefix: str
    tensors: dict[str, Tensor]
    notes: tuple[str, ...]


def tree_of(raw: RawFile) -> Tree | None:
    """The parameter tree of a Flax ViT, or None if the file has none."""
    for prefix, beside, what in PLACES:
        if f"{prefix}embedding/kernel" not in raw.tensors:
            continue
        inside = {key: tensor for key, tensor in raw.tensors.items() if key.startswith(prefix)}
        outside = [key for key in raw.tensors if key not in inside]
        left = [key for key in outside if _is_beside(key, beside)]
        strange = {key: raw.tensors[key] for key in outside if key not in left}
        tensors = {key.removeprefix(prefix): tensor for key, tensor in inside.items()} | strange
        notes = (f"left out: {what} ({len(left)} arrays)",) if left else ()
        return Tree(prefix=prefix, tensors=tensors, notes=notes)
    return None


def is_official(tree: Tree) -> bool:
    """Whether the tree has the layout of the paper's own code, not that of its successor big_vision."""
    own = ("Transformer/posembed_input/pos_embedding", "conv_root/kernel")
    return any(key in tree.tensors for key in own) or numbering_of(tree.tensors) == PUBLISHED


def numbering_of(tensors: dict[str, Tensor]) -> Numbering:
    """How the parts of the blocks are numbered: as in the published files if any key says so."""
    return PUBLISHED if any(f"/{PUBLISHED.mlp}/" in key for key in tensors) else BY_CLASS


def _is_beside(key: str, beside: tuple[str, ...]) -> bool:
    return any(key == word or (word.endswith("/") and key.startswith(word)) for word in beside)
