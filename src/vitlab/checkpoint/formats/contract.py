"""What every format takes and gives: `matches(raw)`, `read(raw, told)`, `write(state, config, preprocess, labels)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from vitlab.checkpoint.files.raw import RawFile
from vitlab.config.check import at_least, pair
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.text import Json

State = Mapping[str, Tensor]
Container = Literal["npz", "safetensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the caller says because the file does not.

    `heads` of attention; `grid` of patches (down, across) that the positions stand for; `profile` whose numerics the weights
    are run with, instead of those the format implies.
    """

    heads: int | None = None
    grid: tuple[int, int] | None = None
    profile: str | None = None

    def __post_init__(self) -> None:
        if self.heads is not None:
            at_least("heads", self.heads, 1)
        if self.grid is not None:
            object.__setattr__(self, "grid", pair("grid", self.grid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A foreign file understood: the model it holds under our names, how to feed it, and what had to be guessed or left out.

    `labels` are the classes' names in the order of the logits, where the file has them.
    """

    format: str
    config: ModelConfig
    state: dict[str, Tensor]
    preprocess: Preprocess
    labels: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A model in a foreign format, ready for the disk.

    `tensors` belong into one file of kind `container`, a safetensors file with `metadata` in its header. `sidecars` are JSON
    files by name, for the folder of that file where the destination is a folder. `weights_name` is what the tensors' file is
    called in such a folder; `no_folder` says why there can be none, where that depends on the model.
    `notes` say in what the format's own readers will treat the model otherwise than vitlab does, `alone` the same where they
    are given the tensors without the sidecars.
    """

    container: Container
    tensors: dict[str, Tensor]
    metadata: dict[str, str] = field(default_factory=dict)
    sidecars: dict[str, Json] = field(default_factory=dict)
    weights_name: str = "model.safetensors"
    no_folder: str | None = None
    notes: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


class Format(Protocol):
    """What a module of this folder is: one foreign layout, both ways."""

    def matches(self, raw: RawFile) -> bool:
        """Whether a file has this layout, by its keys alone."""
        ...

    def read(self, raw: RawFile, told: Told) -> Reading:
        """The model of a file that `matches`; CheckpointError lists what does not fit."""
        ...

    def write(self, state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
        """The model in this layout; CheckpointError names what the layout cannot express."""
        ...
