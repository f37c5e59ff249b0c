"""A progress bar on stderr, where stderr is a terminal; elsewhere no bar is drawn, so that logs stay readable."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from vitlab.cli.talk import note, printable
from vitlab.io.progress import ProgressCallback, silent

_LINE_EVERY = 10.0  # seconds


@contextmanager
def bar(*, of_bytes: bool = False, lines: bool = False) -> Iterator[ProgressCallback]:
    """What long work calls to show how far it is; the bar goes away when the block ends.

    `of_bytes`: what is counted are bytes. `lines`: where there is no terminal, say in a line now and then how far it is.
    """
    if not sys.stderr.isatty():
        yield _Lines() if lines else silent
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn() if of_bytes else MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                for finished in tasks.values():
                    progress.remove_task(finished)
                tasks.clear()
                tasks[what] = progress.add_task(printable(what), total=total, rate="")
            speed = progress.tasks[-1].speed
            rate = f"{speed / 1e6:.1f} MB/s" if speed and of_bytes else f"{speed:.1f}/s" if speed else ""
            progress.update(tasks[what], completed=done, total=total, rate=rate)

        yield tell


class _Lines:
    """A line for each thing that is begun, and one every ten seconds while it goes on."""

    def __init__(self) -> None:
        self._what = ""
        self._last = 0.0

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if what != self._what:
            note(what)
        elif now - self._last < _LINE_EVERY:
            return
        else:
            note(f"{what}: {done:,}" + (f" of {total:,} ({100 * done // total} %)" if total else ""))
        self._what, self._last = what, now
