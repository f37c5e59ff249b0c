"""How deep in a model a parameter stands, by its name: for rates that fall layer by layer, and for training the last blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Where a parameter of a block has its numbers, family by family; they count up from the pictures to the head.
_BLOCKS = (
    re.compile(r"encoder\.blocks\.(\d+)\."),  # ViT
    re.compile(r"layers\.(\d+)\."),  # recurrent
    re.compile(r"stages\.(\d+)\.blocks\.(\d+)\."),  # Swin, ConvNeXt
    re.compile(r"stages\.(\d+)\.(?:merge|halved)\."),  # which come before a stage's first block, and learn with it
    re.compile(r"stages\.(\d+)\.\d+\."),  # BiT ResNet, EfficientNet: their layers are their stages
)
_AFTER = ("head.", "distill_head.", "representation.", "pool.", "pool_norm.", "encoder.norm.", "norm.", "last.", "last_norm.")


def layers_by_name(names: Iterable[str]) -> tuple[dict[str, int], int]:
    """The layer of each parameter, and how many layers there are between the embedding and the head.

    0 is the embedding, 1 to that many are the blocks, one more is the head and what comes after the blocks.
    """
    places = {name: _place(name) for name in names}
    order = {place: number for number, place in enumerate(sorted({place for place in places.values() if place}), start=1)}
    last = len(order) + 1
    layers = {name: order[place] if place else last if name.startswith(_AFTER) else 0 for name, place in places.items()}
    return layers, len(order)


def _place(name: str) -> tuple[int, ...]:
    """The numbers of a parameter's stage and block; empty outside of blocks."""
    for pattern in _BLOCKS:
        if found := pattern.match(name):
            numbers = tuple(int(number) for number in found.groups())
            return (*numbers, 0) if "merge" in pattern.pattern else numbers
    return ()
