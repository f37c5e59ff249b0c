"""Callbacks of a run: a live display for a terminal, plain lines for everything else, and trackers; and `vitlab watch`.

    run_callbacks(train(run, out="runs/a"), [console_callback(sys.stderr)])

A callback receives every event in turn. The trainer itself writes `events.jsonl`, and `vitlab watch` reads it.

Trackers give the curves of a run to TensorBoard, MLflow or Weights & Biases. Each is an extra. Nothing leaves this machine unless
its own settings say so: MLflow writes to `<run>/mlflow.db` unless MLFLOW_TRACKING_URI names a server, and Weights & Biases writes
offline files into `<run>/wandb` unless WANDB_MODE says otherwise (`wandb sync` uploads them).
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vitlab.errors import TrainingError, UsageError, did_you_mean
from vitlab.io.address import Place
from vitlab.io.atomic import try_lock
from vitlab.io.display import Block, Displayed, printable
from vitlab.io.optional import optional_import
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
from vitlab.training.run_folder import RunDirectory
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
            steps = "1 step" if event.steps == 1 else f"{event.steps:,} steps"
            yield f"{verb}: {steps}, {event.images:,} images, {event.parameters:,} parameters{trainable}, {event.out}"
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


# --- trackers -----------------------------------------------------------------------------------------------------------------

_BUFFER = 100  # metrics that MLflow gets at a time
_MOST_PARAMETERS = 100
_LONGEST = 250  # characters of a parameter that every store takes


class SummaryWriter(Protocol):
    """The part of TensorBoard's SummaryWriter that is used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Add one point to a curve."""
        ...

    def close(self) -> None:
        """Write everything to disk."""
        ...


def summary_writer(folder: Path, step: int) -> SummaryWriter:
    """TensorBoard's own writer, which drops what the folder holds of steps after `step`; needs the extra `track`."""
    from torch.utils.tensorboard.writer import SummaryWriter as TensorBoardWriter

    writer: SummaryWriter = TensorBoardWriter(folder, purge_step=step + 1)
    return writer


class TensorBoard:
    """Scalars of every step and evaluation in `<run>/tensorboard`: `train/loss`, `train/lr`, `val/top1`, ..."""

    def __init__(self, *, open_writer: Callable[[Path, int], SummaryWriter] = summary_writer) -> None:
        if open_writer is summary_writer:
            optional_import("tensorboard", purpose="TensorBoard logs")  # now rather than when the run has started
        self.open_writer = open_writer
        self.writer: SummaryWriter | None = None

    def on_event(self, event: SweepEvent) -> None:
        """Write the event's scalars."""
        if isinstance(event, Started):
            self.close()
            self.writer = self.open_writer(event.out / "tensorboard", event.step)
        if self.writer is not None:
            for name, value, step in scalars(event):
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write everything to disk."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


class MLflow:
    """The run in an MLflow store: parameters from run.json, and the scalars of TensorBoard.

    A resumed run continues its own. It repeats the steps after its last checkpoint, whose points the store has already and cannot
    remove: each step of a curve is logged once.
    """

    def __init__(self) -> None:
        self._tracking = optional_import("mlflow.tracking", purpose="MLflow runs")
        self._entities = optional_import("mlflow.entities", purpose="MLflow runs")
        self._client: Any = None
        self._run = ""
        self._metrics: list[Any] = []
        self._logged: dict[str, int] = {}  # the last step of each curve that the store had when the run was resumed
        self._status = "KILLED"

    def on_event(self, event: SweepEvent) -> None:
        """Give the event's scalars to the store, some steps at a time."""
        if isinstance(event, Started):
            self.close()
            self._open(event)
        if self._client is None:
            return
        now = int(time.time() * 1000)
        self._metrics += [
            self._entities.Metric(name, value, now, step)
            for name, value, step in scalars(event)
            if step > self._logged.get(name, -1)
        ]
        if len(self._metrics) >= _BUFFER or isinstance(event, Evaluated):
            self._flush()
        if isinstance(event, Finished):
            self._status = "FINISHED" if event.complete else "KILLED"

    def close(self) -> None:
        """Write the last metrics and say how the run ended."""
        if self._client is not None:
            self._flush()
            self._client.set_terminated(self._run, self._status)
            self._client = None

    def _open(self, started: Started) -> None:
        folder = started.out.absolute()
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}"
        self._client = client = self._tracking.MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "vitlab")
        known = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if known is None else known.experiment_id
        tag = str(folder).replace("'", "")
        found = client.search_runs([experiment], filter_string=f"tags.`run_folder` = '{tag}'", max_results=1)
        self._logged = {}
        if found and started.resumed:
            self._run = found[0].info.run_id
            for name in found[0].data.metrics:
                self._logged[name] = max(point.step for point in client.get_metric_history(self._run, name))
            client.update_run(self._run, status="RUNNING")
            return
        self._run = client.create_run(experiment, run_name=folder.name, tags={"run_folder": tag}).info.run_id
        values = [self._entities.Param(key, value) for key, value in parameters(folder)]
        client.log_batch(self._run, params=values[:_MOST_PARAMETERS])

    def _flush(self) -> None:
        metrics, self._metrics = self._metrics, []
        if metrics:
            self._client.log_batch(self._run, metrics=metrics)


class WandB:
    """The run in Weights & Biases: offline files in `<run>/wandb`, which `wandb sync` uploads; online if WANDB_MODE is online."""

    def __init__(self) -> None:
        self._wandb = optional_import("wandb", purpose="runs in Weights & Biases")
        self._run: Any = None

    def on_event(self, event: SweepEvent) -> None:
        """Log the event's scalars."""
        if isinstance(event, Started):
            self.close()
            folder = event.out.absolute()
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "vitlab"),
                name=folder.name,
                dir=str(folder),
                mode=os.environ.get("WANDB_MODE", "offline"),
                config=dict(parameters(folder)),
                settings=self._wandb.Settings(silent=True, console="off", disable_git=True),
            )
        points = list(scalars(event))
        if self._run is not None and points:
            self._run.log({name: value for name, value, _ in points}, step=points[0][2])

    def close(self) -> None:
        """Write everything to disk."""
        if self._run is not None:
            self._run.finish()
            self._wandb.teardown()  # ends its service process, which would otherwise live as long as this one
            self._run = None


TRACKERS: dict[str, Callable[[], Callback]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def check_trackers(names: Sequence[str]) -> None:
    """UsageError for a name that is no tracker's."""
    for name in names:
        if name not in TRACKERS:
            known = list(TRACKERS)
            raise UsageError(f"no tracker called {name!r}", hint=did_you_mean(name, known) or f"they are {', '.join(known)}")


def trackers(names: Sequence[str]) -> list[Callback]:
    """The trackers of these names, which are checked; ConfigError with its extra for one that is not installed."""
    check_trackers(names)
    return [TRACKERS[name]() for name in names]


def scalars(event: SweepEvent) -> Iterable[tuple[str, float, int]]:
    """(name, value, step) of every curve that the event adds a point to."""
    if isinstance(event, Stepped):
        values = {
            "loss": event.loss,
            "accuracy": event.accuracy,
            "lr": event.lr,
            "gradient_norm": event.gradient_norm,
            "images_per_sec": event.images_per_sec,
            "epoch": event.epoch,
        }
        yield from ((f"train/{name}", value, event.step) for name, value in values.items() if value is not None)
    elif isinstance(event, Evaluated):
        yield from ((f"val/{name}", value, event.step) for name, value in event.metrics.items())


def parameters(folder: Path) -> Iterator[tuple[str, str]]:
    """The settings in a run's run.json as `train.optimizer.lr` and text."""
    path = folder / "run.json"
    if path.exists():
        yield from _flat("", json.loads(path.read_text(encoding="utf-8")))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), inner)
    elif value not in (None, [], ""):
        yield re.sub(r"[^\w.\- /]", "_", prefix), str(value)[:_LONGEST]


# --- `vitlab watch`: how far a run is, from its folder alone: any process that sees the folder may look -----------------------

_CURVE = 40  # columns of the curve of the loss
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True, repr=False)
class Progress(Displayed):
    """How far a run is. `running` says that a process writes to its folder; times in seconds, None if they are not known.

    `losses` are those of every step so far, `evaluation` the metrics of the last evaluation, at step `evaluated_at`.
    """

    path: Place
    running: bool
    reason: str | None
    step: int
    steps: int
    epoch: float | None
    loss: float | None
    accuracy: float | None
    lr: float | None
    images_per_sec: float | None
    seconds_left: float | None
    evaluated_at: int | None
    evaluation: dict[str, float]
    losses: tuple[float, ...] = ()

    @property
    def state(self) -> str:
        """`running`, `finished`, `stopped (interrupted)`, or `not running` after a kill."""
        if self.running:
            return "running"
        if self.reason in ("finished", "patience"):
            return "finished"
        return f"stopped ({self.reason})" if self.reason else "not running; the same command resumes it"

    def to_json(self) -> dict[str, Any]:
        """Everything but the single losses as plain values."""
        names = [name for name in self.__dataclass_fields__ if name not in ("path", "losses")]
        return {"run": str(self.path), "state": self.state, **{name: getattr(self, name) for name in names}}

    def tables(self) -> Iterator[Block]:
        """The state of the run, one fact a line, with the curve of its loss."""
        percent = f" ({100 * self.step / self.steps:.0f} %)" if self.steps else ""
        rows: dict[str, Any] = {"run": str(self.path), "state": self.state, "step": f"{self.step:,} of {self.steps:,}{percent}"}
        if self.seconds_left is not None and self.running:
            rows["time left"] = duration(self.seconds_left)
        numbers = (("epoch", self.epoch, "{:.2f}"), ("loss", self.loss, "{:.4g}"), ("accuracy", self.accuracy, "{:.1%}"))
        rows |= {name: form.format(value) for name, value, form in numbers if value is not None}
        rows |= {} if self.lr is None else {"lr": f"{self.lr:.2e}"}
        rows |= {} if self.images_per_sec is None else {"images/s": f"{self.images_per_sec:,.4g}"}
        if self.losses:
            rows["loss so far"] = curve(self.losses)
        if self.evaluated_at is not None:
            rows[f"evaluation at step {self.evaluated_at:,}"] = format_metrics(self.evaluation)
        yield rows


def curve(losses: tuple[float, ...], *, columns: int = _CURVE) -> str:
    """A curve of block characters from the first step to the last, each the mean of its steps; and the first and the last mean."""
    count = min(columns, len(losses))
    edges = [round(place * len(losses) / count) for place in range(count + 1)]
    means = [sum(part) / len(part) for part in (losses[a:b] for a, b in pairwise(edges)) if part]
    finite = [value for value in means if math.isfinite(value)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    top = len(_BARS) - 1
    bars = [_BARS[round((value - low) / (high - low) * top)] if high > low else _BARS[0] for value in finite]
    return f"{''.join(bars)}  {finite[0]:.4g} to {finite[-1]:.4g}"


def _latest(folder: Path) -> Path:
    """The folder of a run as it is; of a sweep, that of the run which wrote last."""
    runs = [] if (folder / "run.json").exists() else [*folder.glob("trials/*/run.json"), *folder.glob("final/run.json")]
    written = [file for run in runs if (file := run.with_name("events.jsonl")).exists()]
    return max(written, key=lambda file: file.stat().st_mtime_ns).parent if written else folder


def progress_of(folder: Path) -> Progress:
    """How far the run in a folder is, of a sweep its latest run; TrainingError if there is none."""
    folder = _latest(folder)
    directory = RunDirectory(folder)
    config = directory.config() if folder.is_dir() else None
    if config is None:
        raise TrainingError(f"{folder} is not the folder of a run: it has no run.json", hint="give the `out` of a training command")
    events = directory.events()
    stepped = [event for event in events if event.get("event") == "stepped"]
    evaluated = [event for event in events if event.get("event") == "evaluated"]
    ended = [event for event in events if event.get("event") in ("finished", "started")]
    last = stepped[-1] if stepped else {}
    recent = stepped[-_SMOOTHING:]
    seconds = _mean([event.get("seconds") for event in recent])
    images = last.get("images")
    step, steps = int(last.get("step") or 0), int(last.get("steps") or config.train.steps)
    return Progress(
        path=folder,
        running=_is_held(folder / "lock"),
        reason=ended[-1].get("reason") if ended and ended[-1].get("event") == "finished" else None,
        step=step,
        steps=steps,
        epoch=last.get("epoch"),
        loss=_mean([event.get("loss") for event in recent]),
        accuracy=_mean([event.get("accuracy") for event in recent]),
        lr=last.get("lr"),
        images_per_sec=images / seconds if seconds and isinstance(images, int) else None,
        seconds_left=None if seconds is None else (steps - step) * seconds,
        evaluated_at=evaluated[-1].get("step") if evaluated else None,
        evaluation=dict(evaluated[-1].get("metrics") or {}) if evaluated else {},
        losses=tuple(loss for event in stepped if isinstance(loss := event.get("loss"), float)),
    )


def _mean(values: list[Any]) -> float | None:
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return sum(numbers) / len(numbers) if numbers else None


def _is_held(lock: Path) -> bool:
    """Whether another process holds the lock of a run."""
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except OSError:
        return False
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def watch(folder: Path, *, every: float, once: bool, sleep: Callable[[float], None] = time.sleep) -> Progress:
    """Show a run until nobody works on it any more: a live table on a terminal, else a line whenever it has moved."""
    found = progress_of(folder)
    if once or not found.running:
        return found
    if not sys.stderr.isatty():
        return _followed(folder, found, _print_line, every, sleep)
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        return _followed(folder, found, lambda now: live.update(Text(str(now)), refresh=True), every, sleep)


def _followed(
    folder: Path, found: Progress, show: Callable[[Progress], None], every: float, sleep: Callable[[float], None]
) -> Progress:
    """Show the run whenever it has moved, until it no longer runs."""
    shown = -1
    while found.running:
        if found.step != shown:
            show(found)
            shown = found.step
        sleep(every)
        found = progress_of(folder)
    return found


def _print_line(found: Progress) -> None:
    loss = "" if found.loss is None else f"  loss {found.loss:.4g}"
    left = "" if found.seconds_left is None else f"  {duration(found.seconds_left)} left"
    print(f"step {found.step:,} of {found.steps:,}{loss}{left}", file=sys.stderr, flush=True)
