"""Recurrent networks over patches (LSTM, RNN): the config, the sizes by name, the cost. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vitlab.config.cost_counter import CostCounter, cells
from vitlab.config.serialize import Json
from vitlab.errors import LARGEST_WIDTH, MOST_LAYERS, ConfigError, at_least, choice, entry_named, fraction, pair

Cell = Literal["lstm", "rnn"]
Ending = Literal["last", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentConfig:
    """A ViT's patches, read one by one in reading order by `depth` stacked layers of LSTM or plain RNN (tanh).

    There are no positions: the order of the patches is the position. `pool` is what the head sees of the last layer's outputs: the
    `last`, after the whole image, or their `mean`. The model takes images of any size and fills the right and lower edge with
    zeros up to a whole patch. `dropout` acts between layers and before the head.
    """

    family: ClassVar[str] = "recurrent"
    title: ClassVar[str] = "a recurrent network"
    names: ClassVar[tuple[str, ...]] = ("LSTM-Mini/8", "LSTM-Ti/16", "LSTM-S/16", "RNN-Mini/8", "RNN-S/16")
    first_kernel: ClassVar[str] = "patches.weight"
    computed_numbers: ClassVar[int] = 0
    fit_options: ClassVar[dict[str, Any]] = {}

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
        at_least("depth", self.depth, 1, MOST_LAYERS)
        for name in ("width", "channels"):
            at_least(name, getattr(self, name), 1, LARGEST_WIDTH)
        at_least("num_classes", self.num_classes, 0, LARGEST_WIDTH)
        fraction("dropout", self.dropout)
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"norm_eps={self.norm_eps} must be between 0 and 1")

    @property
    def grid(self) -> tuple[int, int]:
        """Patches (down, across) at `image_size`, a fraction of a patch counts as one."""
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

    @property
    def block_count(self) -> int:
        """Recurrent layers."""
        return self.depth

    @classmethod
    def from_name(cls, name: str, image_size: tuple[int, int] | None) -> RecurrentConfig | None:
        """The network of that name, of any patch size, at its own image size; or None."""
        match = _NAME.fullmatch(name)
        size = None if match is None else entry_named(RECURRENT, match["size"])
        if match is None or size is None or int(match["p"]) < 1 or int(match["q"] or 1) < 1:
            return None
        width, depth, side = size
        cell: Cell = "lstm" if match["cell"].casefold() == "lstm" else "rnn"
        patch = (int(match["p"]), int(match["q"] or match["p"]))
        return RecurrentConfig(cell=cell, width=width, depth=depth, patch_size=patch, image_size=(side, side))

    @property
    def name(self) -> str | None:
        """The name that `from_name` takes, or None for a size without one."""
        down, across = self.patch_size
        patch = f"{down}" if down == across else f"{down}x{across}"
        sizes = (size for size, known in RECURRENT.items() if known[:2] == (self.width, self.depth))
        return next((f"{self.cell.upper()}-{size}/{patch}" for size in sizes), None)

    def facts(self) -> dict[str, Json]:
        """What `vitlab describe` shows first."""
        return {
            "image_size": list(self.image_size),
            "channels": self.channels,
            "cell": self.cell,
            "patch_size": list(self.patch_size),
            "grid": list(self.grid),
            "tokens": self.tokens,
            "width": self.width,
            "depth": self.depth,
            "pool": self.pool,
            "feature_width": self.feature_width,
            "num_classes": self.num_classes,
        }

    def count(self, counter: CostCounter) -> None:
        """Add a forward pass of one image."""
        image, width, tokens = self.channels * cells(self.image_size), self.width, self.tokens
        pixels = self.channels * cells(self.patch_size)
        counter.dense(tokens, pixels, width)
        counter.kept += tokens * (pixels + width)
        counter.alive(image + tokens * (2 * pixels + width))  # the padded image, and its patches
        for _ in range(self.depth):
            for _ in range(2):  # the input's matrix, and the state's
                counter.dense(tokens, width, self.gates * width)
            # What torch's kernels keep: an LSTM's gates and states in a workspace of their own.
            counter.kept += tokens * width * (65 if self.cell == "lstm" else 8) // 4
            counter.alive(image + 2 * tokens * width)
        counter.norms(width)
        counter.kept += width + 2
        counter.head(self.feature_width, self.num_classes)


# Widths are those of ViTs of the same letter; plain recurrent networks learn well with two layers at most.
RECURRENT: dict[str, tuple[int, int, int]] = {  # width, depth, image size
    "Mini": (64, 1, 32),
    "Ti": (192, 2, 224),
    "S": (384, 2, 224),
    "B": (768, 2, 224),
}
_NAME = re.compile(r"(?P<cell>lstm|rnn)[-_ ](?P<size>[a-z]+)[/_-](?P<p>\d+)(?:x(?P<q>\d+))?", re.IGNORECASE)
