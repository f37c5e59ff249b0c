"""Who listens to a run: a display for a terminal, plain lines for everything else, TensorBoard. All talk goes to one stream.

A listener hears each event in turn. The events file is written by the loop itself, whoever listens.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TextIO

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vitlab.errors import ConfigError
from vitlab.io.names import printable
from vitlab.training.events import Evaluated, Finished, Saved, Shrunk, Skipped, Started, Stepped, Warned
from vitlab.training.sweep import SweepEvent, Swept, TrialBegan, TrialEnded

# How fast a run goes and where it is: what a person watches between two events.

_MEMORY = 20  # updates after which one counts for a third of what it did
_MIB = 2**20


class Pace:
    """Running means of the last updates, and the time that is left.

    The time of an update is from one to the next, loading, saving and looking included: that is what a person waits for.
    """

    def __init__(self, started: Started, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.started = started
        self.last: Stepped | None = None
        self.loss = math.nan
        self.accuracy = math.nan
        self.seconds = math.nan  # an update
        self.saved = started.step if started.resumed else None
        self._heard = 0
        self._before = clock()

    def hear(self, event: object) -> None:
        """Take an event into account."""
        if isinstance(event, Stepped):
            self._step(event)
        elif isinstance(event, Saved):
            self.saved = event.step

    def _step(self, event: Stepped) -> None:
        now = self.clock()
        # Before the first update workers start and files are opened, which does not come again.
        took, self._before = (event.seconds if self.last is None else now - self._before), now
        # Of the first updates a plain mean, then one that forgets.
        weight = max(1 / (self._heard + 1), 1 / _MEMORY)
        self.loss = _moved(self.loss, event.loss, weight)
        self.seconds = _moved(self.seconds, took, weight)
        if event.accuracy is not None:
            self.accuracy = _moved(self.accuracy, event.accuracy, weight)
        self._heard += 1
        self.last = event

    @property
    def share(self) -> float:
        """How much of the run is done, 0 to 1."""
        return (self.last or self.started).step / self.started.steps

    @property
    def left(self) -> float:
        """Seconds to the end at this pace; not a number before the first update."""
        return math.nan if self.last is None else (self.started.steps - self.last.step) * self.seconds

    def steps_said(self) -> str:
        """`step 120 of 1,035`"""
        return f"step {(self.last or self.started).step:,} of {self.started.steps:,}"

    def facts(self) -> list[str]:
        """What is known of the last updates, in words."""
        if self.last is None:
            return []
        told = [f"epoch {self.last.epoch:.2f}", f"loss {self.loss:.4g}"]
        if not math.isnan(self.accuracy):
            told.append(f"accuracy {self.accuracy:.1%}")
        told.append(f"rate {self.last.rate:.2e}")
        if self.seconds > 0:
            told.append(f"{self.last.images / self.seconds:,.4g} images/s")
        told.append(memory_said())
        told.append("no checkpoint yet" if self.saved is None else f"checkpoint {self.saved:,}")
        return told

    def line(self) -> str:
        """Everything on one line."""
        left = [] if math.isnan(self.left) else [f"{duration(self.left)} left"]
        return "  ".join([self.steps_said(), *self.facts(), *left])


def _moved(mean: float, value: float, weight: float) -> float:
    return value if math.isnan(mean) else mean + (value - mean) * weight


def duration(seconds: float) -> str:
    """`8.2 s`, `3 min 05 s`, `2 h 10 min`, `3 d 04 h`, in the two largest units."""
    if math.isnan(seconds):
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24:,} d {hours % 24:02d} h"


def spoken(metrics: Mapping[str, float]) -> str:
    """`loss 0.412, top1 88.1 %`: shares as percentages, the rest as numbers."""
    shares = ("top1", "top5", "mean_average_precision")
    return ", ".join(f"{name} {value:.2%}" if name in shares else f"{name} {value:.4g}" for name, value in metrics.items())


def memory_said() -> str:
    """The most memory this process has had, on the accelerator where there is one."""
    return f"{peak_memory() / _MIB:,.0f} MiB"


def peak_memory() -> int:
    """Bytes at the peak: of the accelerator's memory where there is one, else of this process without its workers."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


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
        print(printable(line), file=self.stream, flush=True)


def sentences(event: SweepEvent) -> Iterable[str]:
    """What an event is in words; an update is none by itself, and a checkpoint only where nothing else tells of it."""
    match event:
        case Started():
            going = f"goes on after step {event.step:,}" if event.resumed else "begins"
            learn = "" if event.trainable == event.parameters else f" ({event.trainable:,} of them learn)"
            size = f"{event.steps:,} steps, {event.images:,} images, {event.parameters:,} parameters{learn}"
            yield f"{going}: {size}, {event.out}"
            yield from (f"note: {note}" for note in event.notes)
        case Evaluated():
            whose = "averaged weights" if event.averaged else "held-out images"
            yield f"step {event.step:,}, {whose}: {spoken(event.metrics)}{', the best so far' if event.best else ''}"
        case Skipped():
            yield f"step {event.step:,} skipped, {event.in_a_row} in a row: {event.reason}"
        case Shrunk():
            yield f"step {event.step:,}: memory ran out; from now on {event.micro_batch} images at a time, with the same updates"
        case Warned():
            yield f"warning: {event.message}"
        case Finished():
            yield f"{_ENDINGS[event.reason]} after step {event.step:,} and {duration(event.seconds)}"
        case TrialBegan():
            what = ", on all training images" if event.final else ""
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
            "images_a_second": event.images / event.seconds if event.seconds > 0 else None,
            "epoch": event.epoch,
        }
        yield from ((f"train/{name}", value, event.step) for name, value in values.items() if value is not None)
    elif isinstance(event, Evaluated):
        yield from ((f"held_out/{name}", value, event.step) for name, value in event.metrics.items())


# A run on a terminal: a bar, and under it what the last updates were like; what happens meanwhile stands above.

_REFRESH = 0.2  # seconds between two drawings


class Display:
    """The live display; it draws when it hears, in the caller's own thread, and so never while a worker is being started."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic, console: Console | None = None) -> None:
        self.console = console or Console(file=stream, highlight=False)
        self.clock = clock
        self.pace: Pace | None = None
        self.drawn = -math.inf
        self.live: Live | None = None

    def hear(self, event: SweepEvent) -> None:
        """Draw anew, at most five times a second, and say above the bar what is more than an update."""
        if self.pace is not None:
            self.pace.hear(event)
        if isinstance(event, Finished):
            self.close()
        for line in sentences(event):
            self.console.print(Text(printable(line)))  # never as markup: names of files and classes are strangers'
        if isinstance(event, Started):
            self._open(Pace(event, clock=self.clock))
        elif self.live is not None and (not isinstance(event, Stepped | Saved) or self.clock() - self.drawn >= _REFRESH):
            self._draw()

    def close(self) -> None:
        """Leave the last drawing on the screen."""
        if self.live is not None:
            self._draw()
            self.live.stop()
            self.live = None

    def _open(self, pace: Pace) -> None:
        self.close()
        self.pace = pace
        self.live = Live(_image(pace), console=self.console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self.live.start()

    def _draw(self) -> None:
        assert self.live is not None
        assert self.pace is not None
        self.live.update(_image(self.pace), refresh=True)
        self.drawn = self.clock()


def _image(pace: Pace) -> Group:
    left = "" if math.isnan(pace.left) else f"{duration(pace.left)} left"
    head = Table.grid(padding=(0, 2), expand=True)
    head.add_column(no_wrap=True)
    head.add_column(ratio=1)
    head.add_column(no_wrap=True)
    head.add_row(Text(pace.steps_said()), ProgressBar(total=1.0, completed=pace.share), Text(left))
    return Group(head, Text("  ".join(pace.facts()), style="dim"))
