"""A run on a terminal: a bar, and under it what the last updates were like; what happens meanwhile stands above."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vitlab.data.files.names import shown
from vitlab.train.events import Finished, Saved, Started, Stepped
from vitlab.train.log import sentences
from vitlab.train.pace import Pace, duration
from vitlab.train.sweep import SweepEvent

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
            self.console.print(Text(shown(line)))  # never as markup: names of files and classes are strangers'
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
        self.live = Live(_picture(pace), console=self.console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self.live.start()

    def _draw(self) -> None:
        assert self.live is not None
        assert self.pace is not None
        self.live.update(_picture(self.pace), refresh=True)
        self.drawn = self.clock()


def _picture(pace: Pace) -> Group:
    left = "" if math.isnan(pace.left) else f"{duration(pace.left)} left"
    head = Table.grid(padding=(0, 2), expand=True)
    head.add_column(no_wrap=True)
    head.add_column(ratio=1)
    head.add_column(no_wrap=True)
    head.add_row(Text(pace.steps_said()), ProgressBar(total=1.0, completed=pace.share), Text(left))
    return Group(head, Text("  ".join(pace.facts()), style="dim"))
