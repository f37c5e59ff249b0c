"""A Flax parameter tree in an .npz: where in the file it stands, what beside it is left out, and whose layout it is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitlab.checkpoint.files.raw import RawFile
from vitlab.checkpoint.formats.flax_rows import BY_CLASS, PUBLISHED, Numbering

# Where the tree can stand, and what may stand beside it that is no part of the model: (prefix, other keys, what they are).
PLACES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("opt/target/", ("opt/state/", "opt/step"), "optimizer state"),
    ("params/img/", ("params/txt/", "params/t", "params/b"), "text tower and its temperature and bias"),
    ("params/", ("opt/", "extra/", "chrono/"), "optimizer state"),
    ("", (), ""),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The model's tensors under their keys within the tree; a key from elsewhere in the file keeps its whole name."""

    prefix: str
    tensors: dict[str, Tensor]
    notes: tuple[str, ...]


def tree_of(raw: RawFile) -> Tree | None:
    """The parameter tree of a Flax ViT, or None where the file holds none."""
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
    """Whether the tree is laid out as by the paper's own code, not as by big_vision, its successor."""
    own = ("Transformer/posembed_input/pos_embedding", "conv_root/kernel")
    return any(key in tree.tensors for key in own) or numbering_of(tree.tensors) == PUBLISHED


def numbering_of(tensors: dict[str, Tensor]) -> Numbering:
    """How the parts of the blocks are numbered: as in the published files if any key says so."""
    return PUBLISHED if any(f"/{PUBLISHED.mlp}/" in key for key in tensors) else BY_CLASS


def _is_beside(key: str, beside: tuple[str, ...]) -> bool:
    return any(key == word or (word.endswith("/") and key.startswith(word)) for word in beside)
