"""Callbacks of a run: a live display for a terminal, and plain lines for everything else. trackers.py has others.

    run_callbacks(train(run, out="runs/a"), [console_callback(sys.stderr)])

A callback receives every event in turn. The trainer itself writes `events.jsonl`.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TextIO

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vitlab.io.display import printable
from vitlab.training.events import (
    Evaluated,
    Finished,
    FittingHead,
    HeadFitted,
    MicroBatchReduced,
    Saved,
    Skipped,
    Started,
    Stepped,
    Warned,
)
from vitlab.training.sweep import SweepEvent, SweepFinished, TrialFinished, TrialStarted

_SMOOTHING = 20  # steps over which the displayed means are smoothed
_REFRESH = 0.2  # seconds between two refreshes of the display
_MIB = 2**20
_RATIOS = ("top1", "top5", "mean_average_precision", "mean_iou", "pixel_accuracy", "ap", "ap50")  # metrics shown in percent

Clock = Callable[[], float]


class Callback(Protocol):
    """Receives the events of a run."""

    def on_event(self, event: SweepEvent) -> None:
        """Handle one event."""
        ...

    def close(self) -> None:
        """The run is over, or failed."""
        ...


def run_callbacks(events: Iterable[SweepEvent], callbacks: Sequence[Callback]) -> SweepEvent:
    """Consume all events, giving each to every callback; returns the last event."""
    last: SweepEvent | None = None
    try:
        for event in events:
            for callback in callbacks:
                callback.on_event(event)
            last = event
    finally:
        for callback in callbacks:
            callback.close()
    assert last is not None
    return last


def console_callback(stream: TextIO) -> Callback:
    """A live display if the stream is a terminal, plain lines otherwise."""
    terminal = stream.isatty() and os.environ.get("TERM") not in (None, "dumb")
    return Display(stream) if terminal else Lines(stream)


class Pace:
    """Smoothed loss, accuracy and speed of the last steps, and the time left.

    The time of a step runs from one step to the next, with data loading, checkpoints and evaluation.
    """

    def __init__(self, started: Started, *, later_runs: int = 0, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.started = started
        self.later_runs = later_runs  # of a sweep, each as long as this one
        self.last: Stepped | None = None
        self.loss = math.nan
        self.accuracy = math.nan
        self.seconds = math.nan  # per step
        self.saved = started.step if started.resumed else None
        self._steps = 0
        self._before = clock()

    def on_event(self, event: object) -> None:
        """Take an event into account."""
        if isinstance(event, Stepped):
            self._on_step(event)
        elif isinstance(event, Saved):
            self.saved = event.step

    def _on_step(self, event: Stepped) -> None:
        now = self.clock()
        # Before the first step workers start and files are opened, which happens only once.
        took, self._before = (event.seconds if self.last is None else now - self._before), now
        weight = max(1 / (self._steps + 1), 1 / _SMOOTHING)  # a plain mean at first, then a moving average
        self.loss = _moved(self.loss, event.loss, weight)
        self.seconds = _moved(self.seconds, took, weight)
        if event.accuracy is not None:
            self.accuracy = _moved(self.accuracy, event.accuracy, weight)
        self._steps += 1
        self.last = event

    @property
    def done(self) -> float:
        """The fraction of the run that is done, 0 to 1."""
        return (self.last or self.started).step / (self.last or self.started).steps

    @property
    def left(self) -> float:
        """Seconds to the end at this pace; nan before the first step."""
        return math.nan if self.last is None else (self.last.steps - self.last.step) * self.seconds

    def left_text(self) -> str:
        """`3 min 05 s left`, in a sweep also the time of the later runs; empty before the first step."""
        if math.isnan(self.left):
            return ""
        rest = self.left + self.later_runs * self.started.steps * self.seconds
        return f"{duration(self.left)} left" + (f", {duration(rest)} of the sweep" if self.later_runs else "")

    def step_text(self) -> str:
        """`step 120 of 1,035`"""
        return f"step {(self.last or self.started).step:,} of {(self.last or self.started).steps:,}"

    def facts(self) -> list[str]:
        """Epoch, loss, accuracy, learning rate, speed, memory, and the last checkpoint."""
        if self.last is None:
            return []
        facts = [f"epoch {self.last.epoch:.2f}", f"loss {self.loss:.4g}"]
        if not math.isnan(self.accuracy):
            facts.append(f"accuracy {self.accuracy:.1%}")
        facts.append(f"lr {self.last.lr:.2e}")
        if self.seconds > 0:
            facts.append(f"{self.last.images / self.seconds:,.4g} images/s")
        facts.append(f"{peak_memory() / _MIB:,.0f} MiB")
        facts.append("no checkpoint yet" if self.saved is None else f"checkpoint {self.saved:,}")
        return facts

    def line(self) -> str:
        """Everything on one line."""
        return "  ".join([self.step_text(), *self.facts(), *filter(None, [self.left_text()])])


def _moved(mean: float, value: float, weight: float) -> float:
    return value if math.isnan(mean) else mean + (value - mean) * weight


def duration(seconds: float) -> str:
    """`8.2 s`, `3 min 05 s`, `2 h 10 min`, `3 d 04 h`: the two largest units."""
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


def format_metrics(metrics: Mapping[str, float]) -> str:
    """`loss 0.412, top1 88.1%`: ratios in percent, other metrics as numbers."""
    return ", ".join(f"{name} {value:.2%}" if name in _RATIOS else f"{name} {value:.4g}" for name, value in metrics.items())


def peak_memory() -> int:
    """Peak memory in bytes: of the CUDA device if there is one, else of this process without its workers."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


def event_lines(event: SweepEvent) -> Iterable[str]:
    """An event as lines of text; none for a step or a checkpoint, which the progress line covers."""
    match event:
        case Started():
            verb = f"resumes after step {event.step:,}" if event.resumed else "starts"
            trainable = "" if event.trainable == event.parameters else f" ({event.trainable:,} trainable)"
            yield f"{verb}: {event.steps:,} steps, {event.images:,} images, {event.parameters:,} parameters{trainable}, {event.out}"
            yield from (f"note: {note}" for note in event.notes)
        case Evaluated():
            weights, best = " (averaged weights)" if event.averaged else "", ", best so far" if event.best else ""
            yield f"step {event.step:,}, evaluation{weights}: {format_metrics(event.metrics)}{best}"
        case Skipped():
            yield f"step {event.step:,} skipped, {event.in_a_row} in a row: {event.reason}"
        case MicroBatchReduced():
            yield f"step {event.step:,}: out of memory; now {event.micro_batch} images at a time, with the same updates"
        case Warned():
            yield f"warning: {event.message}"
        case Finished():
            yield _ending(event)
        case TrialStarted():
            what = ", on all training images" if event.final else ""
            yield f"run {event.number} of {event.runs}: lr {event.lr:g}{what}"
        case TrialFinished():
            trial, cached = event.trial, ", from an earlier call" if event.cached else ""
            yield f"lr {trial.lr:g}: {trial.error or format_metrics(trial.metrics)}{cached}"
        case SweepFinished():
            yield f"the best lr is {event.lr:g}"
        case FittingHead():
            yield f"fits a head: {event.done:,} of {event.images:,} images"
        case HeadFitted():
            held_out = "" if event.accuracy is None else f", {100 * event.accuracy:.1f} % of a held-out tenth correct"
            yield f"head fitted to the features of {event.images:,} images in {duration(event.seconds)}{held_out}"
        case Stepped() | Saved():
            pass


def _ending(event: Finished) -> str:
    took = duration(event.seconds)
    match event.reason:
        case "finished":
            return f"finished at step {event.step:,} after {took}"
        case "patience":
            return f"stopped early at step {event.step:,} after {took}: no improvement for a while"
        case "terminated" | "interrupted" | "max-time":
            why = " (time limit)" if event.reason == "max-time" else ""
            return f"stopped at step {event.step:,} after {took}{why}; checkpoint saved; run the same command to resume"


def _unsaid(event: SweepEvent, said: set[str]) -> Iterable[str]:
    """The lines of an event without notes that were said before: the runs of a sweep start from the same checkpoint."""
    for line in event_lines(event):
        if not line.startswith("note: ") or line not in said:
            said.add(line)
            yield line


class Lines:
    """A line for each event worth knowing, and every `seconds` a line on the progress."""

    def __init__(self, stream: TextIO, *, seconds: float = 10.0, clock: Clock = time.monotonic) -> None:
        self.stream = stream
        self.seconds = seconds
        self.clock = clock
        self.pace: Pace | None = None
        self.later_runs = 0
        self.last = clock()
        self.said = set[str]()

    def on_event(self, event: SweepEvent) -> None:
        """Print the event, or for a step the progress, if it is time."""
        for line in _unsaid(event, self.said):
            self._print(line)
        if isinstance(event, TrialStarted):
            self.later_runs = event.runs - event.number
        if isinstance(event, Started):
            self.pace = Pace(event, later_runs=self.later_runs, clock=self.clock)
        elif self.pace is not None:
            self.pace.on_event(event)
            if isinstance(event, Stepped) and (self.clock() - self.last >= self.seconds or event.step == 1):
                self._print(self.pace.line())
                self.last = self.clock()

    def close(self) -> None:
        """Nothing is open."""

    def _print(self, line: str) -> None:
        print(printable(line), file=self.stream, flush=True)


class Display:
    """A live progress bar. It refreshes in the caller's thread, so never while a worker process is being forked."""

    def __init__(self, stream: TextIO, *, clock: Clock = time.monotonic, console: Console | None = None) -> None:
        self.console = console or Console(file=stream, highlight=False)
        self.clock = clock
        self.pace: Pace | None = None
        self.later_runs = 0
        self.refreshed = -math.inf
        self.live: Live | None = None
        self.said = set[str]()

    def on_event(self, event: SweepEvent) -> None:
        """Refresh at most five times a second, and print above the bar what is more than a step."""
        if self.pace is not None:
            self.pace.on_event(event)
        if isinstance(event, Finished):
            self.close()
        for line in _unsaid(event, self.said):
            self.console.print(Text(printable(line)))  # never as markup: file and class names may hold anything
        if isinstance(event, TrialStarted):
            self.later_runs = event.runs - event.number
        if isinstance(event, Started):
            self._open(Pace(event, later_runs=self.later_runs, clock=self.clock))
        elif self.live is not None and (not isinstance(event, Stepped | Saved) or self.clock() - self.refreshed >= _REFRESH):
            self._refresh()

    def close(self) -> None:
        """Leave the last state of the bar on the screen."""
        if self.live is not None:
            self._refresh()
            self.live.stop()
            self.live = None

    def _open(self, pace: Pace) -> None:
        self.close()
        self.pace = pace
        self.live = Live(_bar(pace), console=self.console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self.live.start()

    def _refresh(self) -> None:
        assert self.live is not None
        assert self.pace is not None
        self.live.update(_bar(self.pace), refresh=True)
        self.refreshed = self.clock()


def _bar(pace: Pace) -> Group:
    head = Table.grid(padding=(0, 2), expand=True)
    head.add_column(no_wrap=True)
    head.add_column(ratio=1)
    head.add_column(no_wrap=True)
    head.add_row(Text(pace.step_text()), ProgressBar(total=1.0, completed=pace.done), Text(pace.left_text()))
    return Group(head, Text("  ".join(pace.facts()), style="dim"))
