"""What a training run tells while it goes on: the loop yields these, and whoever listens prints, plots or stops."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

Reason = Literal["finished", "terminated", "interrupted", "max-time", "patience"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The run begins, or goes on after `step` updates. `notes` says what was decided or guessed."""

    event: ClassVar[str] = "started"
    step: int
    steps: int
    parameters: int
    trainable: int
    images: int
    out: Path
    resumed: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """One update was made: after it, `step` of them have been. Loss and accuracy are means over the batch."""

    event: ClassVar[str] = "stepped"
    step: int
    epoch: float
    loss: float
    accuracy: float | None
    rate: float
    gradient_norm: float
    images: int
    seconds: float
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """No update was made: the loss or the gradient was not a finite number. `samples` names the images of the batch."""

    event: ClassVar[str] = "skipped"
    step: int
    reason: str
    in_a_row: int
    samples: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """Memory ran out: from now on the batch goes through the model in smaller parts, with the same update."""

    event: ClassVar[str] = "shrunk"
    step: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The held-out images were looked at: names and values, `best` where they beat all before."""

    event: ClassVar[str] = "evaluated"
    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    averaged: bool = False
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint is on the disk."""

    event: ClassVar[str] = "saved"
    step: int
    path: Path
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something went wrong that the run survives."""

    event: ClassVar[str] = "warned"
    step: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The run is over; `model` is the file to keep."""

    event: ClassVar[str] = "finished"
    step: int
    reason: Reason
    model: Path | None
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


Event = Started | Stepped | Skipped | Shrunk | Evaluated | Saved | Warned | Finished
