"""A recurrent network over patches as a value: what sequences were read with before Transformers. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitlab.errors import ConfigError, at_least, choice, fraction, pair

Cell = Literal["lstm", "rnn"]
Ending = Literal["last", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentConfig:
    """A ViT's patches read one by one, in reading order, by `depth` layers of LSTM or plain RNN (tanh), each upon the last.

    No positions are added: the order of reading is the position. `pool` is what the head sees of the last layer's outputs: the
    `last`, after the whole image was read, or their `mean`. Images of any size are taken, the right and lower edge filled with
    zeros up to a whole patch. `dropout` acts between layers and before the head.
    """

    kind: ClassVar[str] = "recurrent"

    cell: Cell
    width: int
    depth: int
    patch_size: tuple[int, int] = (16, 16)
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    num_classes: int = 1000
    head_bias: float = 0.0
    pool: Ending = "last"
    dropout: float = 0.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        object.__setattr__(self, "patch_size", pair("patch_size", self.patch_size))
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        choice("cell", self.cell, Cell)
        choice("pool", self.pool, Ending)
        for name in ("width", "depth", "channels"):
            at_least(name, getattr(self, name), 1)
        at_least("num_classes", self.num_classes, 0)
        fraction("dropout", self.dropout)
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"norm_eps={self.norm_eps} must be between 0 and 1")

    @property
    def grid(self) -> tuple[int, int]:
        """Patches (down, across) at `image_size`, a part of a patch counting as one."""
        (height, width), (down, across) = self.image_size, self.patch_size
        return -(-height // down), -(-width // across)

    @property
    def tokens(self) -> int:
        """Length of the sequence at `image_size`."""
        return self.grid[0] * self.grid[1]

    @property
    def gates(self) -> int:
        """Matrices of a layer's input, and as many of its state: four for an LSTM (input, forget, cell, output), one for an RNN."""
        return 4 if self.cell == "lstm" else 1

    @property
    def feature_width(self) -> int:
        """Length of the vector the head sees."""
        return self.width
