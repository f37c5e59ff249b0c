"""Who listens to a run: a display for a terminal, plain lines for everything else, TensorBoard. All talk goes to one stream.

A listener hears each event in turn. The events file is written by the loop itself, whoever listens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TextIO

from vitlab.data.files.names import shown
from vitlab.errors import ConfigError
from vitlab.train.events import Evaluated, Finished, Saved, Shrunk, Skipped, Started, Stepped, Warned
from vitlab.train.pace import Pace, duration, spoken
from vitlab.train.sweep import SweepEvent, Swept, TrialBegan, TrialEnded

Clock = Callable[[], float]


class Listener(Protocol):
    """Somebody who is told what happens."""

    def hear(self, event: SweepEvent) -> None:
        """Act on one event."""
        ...

    def close(self) -> None:
        """The run is over, for better or worse."""
        ...


def tell(events: Iterable[SweepEvent], listeners: Sequence[Listener]) -> SweepEvent:
    """Run the events to their end, every listener hearing each; the last event."""
    last: SweepEvent | None = None
    try:
        for event in events:
            for listener in listeners:
                listener.hear(event)
            last = event
    finally:
        for listener in listeners:
            listener.close()
    assert last is not None
    return last


def listener_for(stream: TextIO) -> Listener:
    """A display where the stream is a terminal, lines where it is not."""
    lively = stream.isatty() and os.environ.get("TERM") not in (None, "dumb")
    if not lively:
        return Lines(stream)
    from vitlab.train.display import Display

    return Display(stream)


class Lines:
    """One line for each thing worth knowing, and one every `seconds` on how far the run is."""

    def __init__(self, stream: TextIO, *, seconds: float = 10.0, clock: Clock = time.monotonic) -> None:
        self.stream = stream
        self.seconds = seconds
        self.clock = clock
        self.pace: Pace | None = None
        self.last = clock()

    def hear(self, event: SweepEvent) -> None:
        """Say it, or for an update, say from time to time where the run is."""
        for line in sentences(event):
            self._say(line)
        if isinstance(event, Started):
            self.pace = Pace(event, clock=self.clock)
        elif self.pace is not None:
            self.pace.hear(event)
            if isinstance(event, Stepped) and (self.clock() - self.last >= self.seconds or event.step == 1):
                self._say(self.pace.line())
                self.last = self.clock()

    def close(self) -> None:
        """Nothing is held open."""

    def _say(self, line: str) -> None:
        print(shown(line), file=self.stream, flush=True)


def sentences(event: SweepEvent) -> Iterable[str]:
    """What an event is in words; an update is none by itself, and a checkpoint only where nothing else tells of it."""
    match event:
        case Started():
            going = f"goes on after step {event.step:,}" if event.resumed else "begins"
            learn = "" if event.trainable == event.parameters else f" ({event.trainable:,} of them learn)"
            size = f"{event.steps:,} steps, {event.pictures:,} pictures, {event.parameters:,} parameters{learn}"
            yield f"{going}: {size}, {event.out}"
            yield from (f"note: {note}" for note in event.notes)
        case Evaluated():
            whose = "averaged weights" if event.averaged else "held-out pictures"
            yield f"step {event.step:,}, {whose}: {spoken(event.metrics)}{', the best so far' if event.best else ''}"
        case Skipped():
            yield f"step {event.step:,} skipped, {event.in_a_row} in a row: {event.reason}"
        case Shrunk():
            yield f"step {event.step:,}: memory ran out; from now on {event.micro_batch} pictures at a time, with the same updates"
        case Warned():
            yield f"warning: {event.message}"
        case Finished():
            yield f"{_ENDINGS[event.reason]} after step {event.step:,} and {duration(event.seconds)}"
        case TrialBegan():
            what = ", on all training pictures" if event.final else ""
            yield f"run {event.number} of {event.runs}: rate {event.rate:g}{what}"
        case TrialEnded():
            trial, before = event.trial, ", done before" if event.before else ""
            yield f"rate {trial.rate:g}: {trial.trouble or spoken(trial.metrics)}{before}"
        case Swept():
            yield f"the best rate is {event.rate:g}"
        case Stepped() | Saved():
            pass


_ENDINGS = {
    "finished": "finished",
    "terminated": "asked to end: a checkpoint is kept, the same command goes on,",
    "interrupted": "interrupted: a checkpoint is kept, the same command goes on,",
    "max-time": "time is up: a checkpoint is kept, the same command goes on,",
    "patience": "no better for a while: ended early",
}


class Writer(Protocol):
    """What is used of TensorBoard's SummaryWriter."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """One point of a curve."""
        ...

    def close(self) -> None:
        """Everything is on the disk."""
        ...


def summary_writer(folder: Path, step: int) -> Writer:
    """TensorBoard's own writer, which forgets what the folder holds of steps after `step`; needs the extra `track`."""
    from torch.utils.tensorboard.writer import SummaryWriter

    writer: Writer = SummaryWriter(folder, purge_step=step + 1)
    return writer


class TensorBoard:
    """Scalars of every update and evaluation in `<run>/tensorboard`. A run that goes on forgets there what it will do again."""

    def __init__(self, *, open_writer: Callable[[Path, int], Writer] = summary_writer) -> None:
        if open_writer is summary_writer:
            try:  # now, rather than when the run has begun
                import torch.utils.tensorboard.writer  # noqa: F401
            except ImportError as error:
                raise ConfigError(f"TensorBoard cannot be imported: {error}", hint="pip install 'vitlab[track]'") from error
        self.open_writer = open_writer
        self.writer: Writer | None = None

    def hear(self, event: SweepEvent) -> None:
        """Write what can be drawn."""
        if isinstance(event, Started):
            self.close()
            self.writer = self.open_writer(event.out / "tensorboard", event.step)
        if self.writer is not None:
            for name, value, step in scalars(event):
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Everything heard is on the disk."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


def scalars(event: SweepEvent) -> Iterable[tuple[str, float, int]]:
    """(name, value, step) of everything in an event that can be drawn as a curve."""
    if isinstance(event, Stepped):
        values = {
            "loss": event.loss,
            "accuracy": event.accuracy,
            "rate": event.rate,
            "gradient_norm": event.gradient_norm,
            "pictures_a_second": event.pictures / event.seconds if event.seconds > 0 else None,
            "epoch": event.epoch,
        }
        yield from ((f"train/{name}", value, event.step) for name, value in values.items() if value is not None)
    elif isinstance(event, Evaluated):
        yield from ((f"held_out/{name}", value, event.step) for name, value in event.metrics.items())
