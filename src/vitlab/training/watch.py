"""`vitlab watch`: how far a run is, from its folder alone: any process, on any machine that sees the folder, may look."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from vitlab.errors import TrainingError
from vitlab.io.address import Place
from vitlab.io.atomic import try_lock
from vitlab.io.display import Block, Displayed
from vitlab.training.callbacks import duration, format_metrics
from vitlab.training.run_folder import RunDirectory

_SMOOTHING = 20  # steps over which means are taken
_CURVE = 40  # columns of the curve of the loss
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True)
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
    """A curve of block characters from the first step to the last, each the mean of its steps."""
    count = min(columns, len(losses))
    edges = [round(place * len(losses) / count) for place in range(count + 1)]
    means = [sum(part) / len(part) for part in (losses[a:b] for a, b in pairwise(edges)) if part]
    finite = [value for value in means if math.isfinite(value)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    top = len(_BARS) - 1
    bars = [_BARS[round((value - low) / (high - low) * top)] if high > low else _BARS[0] for value in finite]
    return f"{''.join(bars)}  {high:.3g} to {low:.3g}"


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
