"""The events of a training run: `train` yields them, and callbacks print, plot or stop on them.

`events.jsonl` in the run folder has one line for each, written by `event_to_json`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

Reason = Literal["finished", "terminated", "interrupted", "max-time", "patience"]
"""Why a run ended: all steps done, SIGTERM, Ctrl-C, `max_minutes`, or `patience` (early stopping)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The run starts, or resumes after `step` steps. `images` is the size of the training split; `notes` lists what was decided."""

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
class FittingHead:
    """The features of `done` of `images` training images are extracted, for the head that is fitted before the first step."""

    event: ClassVar[str] = "fitting-head"
    step: int
    done: int
    images: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFitted:
    """The head is fitted to the features of `images`. `accuracy` is that on a held-out tenth of them, None if they are too few."""

    event: ClassVar[str] = "head-fitted"
    step: int
    images: int
    l2: float
    accuracy: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """Step number `step`, counted from 1, updated the weights. `loss` and `accuracy` are means over the batch of `images`.

    `steps` is the length of the run as planned now: it is shorter than at the start if the run is late (`finish_within`).
    """

    event: ClassVar[str] = "stepped"
    step: int
    steps: int
    epoch: float
    loss: float
    accuracy: float | None
    lr: float
    gradient_norm: float
    images: int
    seconds: float
    micro_batch: int

    @property
    def images_per_sec(self) -> float | None:
        """Speed of this step without data loading; None if the clock did not move."""
        return self.images / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """The step left the weights as they were: its loss or gradient was not finite. `samples` are the batch's dataset indices."""

    event: ClassVar[str] = "skipped"
    step: int
    reason: str
    in_a_row: int
    samples: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchReduced:
    """Memory ran out: from now on each device processes `micro_batch` images at a time. The updates stay the same."""

    event: ClassVar[str] = "micro-batch-reduced"
    step: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Metrics on the evaluation split. `averaged`: with the averaged weights. `best`: better than every evaluation before."""

    event: ClassVar[str] = "evaluated"
    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    averaged: bool = False
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint is on disk."""

    event: ClassVar[str] = "saved"
    step: int
    path: Path
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """A problem that does not end the run."""

    event: ClassVar[str] = "warned"
    step: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The run ended. `model` is the file to keep, None if the run can be resumed."""

    event: ClassVar[str] = "finished"
    step: int
    reason: Reason
    model: Path | None
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether the run is over; otherwise the same command resumes it."""
        return self.reason in ("finished", "patience")


Event = FittingHead | HeadFitted | Started | Stepped | Skipped | MicroBatchReduced | Evaluated | Saved | Warned | Finished


def event_to_json(event: Event) -> dict[str, Any]:
    """One line of `events.jsonl`."""
    values = {name: getattr(event, name) for name in event.__dataclass_fields__ if name != "event"}
    return {"event": event.event} | {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def finished_from_json(line: dict[str, Any]) -> Finished | None:
    """The `Finished` of a line of `events.jsonl`; None if it is another event, or damaged."""
    if line.get("event") != Finished.event or line.get("reason") not in get_args(Reason):
        return None
    try:
        return Finished(
            step=int(line["step"]),
            reason=line["reason"],
            model=None if line["model"] is None else Path(line["model"]),
            metrics={name: float(value) for name, value in line["metrics"].items()},
            seconds=float(line["seconds"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
