"""The events of a training run: `train` yields them, and callbacks print, plot or stop on them.

`events.jsonl` in the run folder has one line for each, written by `event_to_json`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
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


# --- control of a running training process ------------------------------------------------------------------------------------

TERMINATED = 143  # exit code of a run that SIGTERM stopped with a checkpoint
INTERRUPTED = 130  # exit code of a run that Ctrl-C stopped with a checkpoint

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt, from malloc.h
_NEVER, _NONE = -1, 0


class StopRequested(BaseException):
    """A stop was requested while the run waited for images, so it waits no longer.

    Like KeyboardInterrupt it is no Exception: it may strike inside a transform, whose error handling must not swallow it.
    """


class Control:
    """Requests to a running trainer: `stop` is the reason to stop, or None; `save` asks for a checkpoint."""

    def __init__(self) -> None:
        self.stop: Reason | None = None
        self.save = False
        self.interruptible = False

    def request_stop(self, reason: Reason) -> None:
        """Stop after the current step, with a checkpoint."""
        self.stop = reason

    def request_checkpoint(self) -> None:
        """Write a checkpoint after the current step, and continue."""
        self.save = True

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside the block, a signal that requests a stop raises StopRequested at once; so does a request made before it."""
        if self.stop is not None:
            raise StopRequested
        self.interruptible = True
        try:
            yield
        finally:
            self.interruptible = False


@contextmanager
def signals(control: Control) -> Iterator[None]:
    """SIGTERM and Ctrl-C stop the run with a checkpoint, a second one ends it at once; SIGUSR1 writes a checkpoint.

    The current step is finished first, but the run does not wait for images. A Ctrl-C that is ignored, as under `nohup` and in
    a background job, stays ignored. Signals that the parent process has blocked are received all the same.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        reason: Reason = "terminated" if number == signal.SIGTERM else "interrupted"
        if control.stop is not None:
            os._exit(TERMINATED if number == signal.SIGTERM else INTERRUPTED)
        control.request_stop(reason)
        if control.interruptible:  # the images may never arrive
            raise StopRequested

    def save(number: int, frame: FrameType | None) -> None:
        control.request_checkpoint()

    handlers = {signal.SIGTERM: stop}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        handlers[signal.SIGINT] = stop
    if sys.platform != "win32":
        handlers[signal.SIGUSR1] = save
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    blocked = set[int]() if sys.platform == "win32" else signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers) & set(handlers)
    try:
        yield
    finally:
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)


def keep_memory() -> bool:
    """Let this process keep the memory it frees for its next allocation; returns whether the C library was asked to.

    A training step frees hundreds of megabytes, and the next step allocates them again. glibc returns large blocks to the
    system each time, which then clears every page: 11 to 15 % of a step of ViT-Ti/16 (64 images, 224 px, CPU). The setting
    lasts as long as the process and changes no result. Other C libraries are left alone.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(_TRIM_THRESHOLD, _NEVER) and library.mallopt(_MMAP_MAX, _NONE))
