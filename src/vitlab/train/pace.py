"""How fast a run goes and where it is: what a person watches between two events."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping

import torch

from vitlab.train.events import Saved, Started, Stepped

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
            told.append(f"{self.last.pictures / self.seconds:,.4g} pictures/s")
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
