"""Runs that go on side by side, as bars on a terminal and as lines elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from vitlab.cli.talk import note
from vitlab.config.serialize import Json
from vitlab.studies.runner import Done, Went

Hear = Callable[[Went | Done], None]

_LINE_EVERY = 10.0  # seconds


@contextmanager
def bars(stream: TextIO) -> Iterator[Hear]:
    """What each event is given to: a bar for each run that goes on, and a line for each that is done."""
    if not stream.isatty() or os.environ.get("TERM") in (None, "dumb"):
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}", markup=False),
    )
    with Progress(*columns, console=Console(file=stream)) as progress:
        tasks: dict[str, TaskID] = {}

        def hear(event: Went | Done) -> None:
            if event.job not in tasks:
                tasks[event.job] = progress.add_task(event.title, total=event.steps, said="")
            if isinstance(event, Went):
                progress.update(tasks[event.job], completed=event.step, said=event.said)
            else:
                progress.update(tasks[event.job], completed=event.steps, said=result_said(event))

        yield hear


def _lines() -> Hear:
    """A line where a run begins and ends, and one every ten seconds for each that goes on."""
    last: dict[str, float] = {}

    def hear(event: Went | Done) -> None:
        now = time.monotonic()
        if isinstance(event, Done):
            note(f"{event.title}: {'done before' if event.before else 'done'}, {result_said(event)}")
        elif event.job not in last:
            note(f"{event.title}: {event.steps:,} updates")
            last[event.job] = now
        elif now - last[event.job] >= _LINE_EVERY:
            note(f"{event.title}: {event.step:,} of {event.steps:,} updates, {event.said}")
            last[event.job] = now

    return hear


def result_said(event: Done) -> str:
    """`97.6 % of 450 test images right`."""
    counts: Json = event.result.get("test")
    if not isinstance(counts, dict):
        return ""
    right, of = counts["right"], counts["of"]
    assert isinstance(right, int)
    assert isinstance(of, int)
    return f"{100 * right / of:.1f} % of {of:,} test images right"
