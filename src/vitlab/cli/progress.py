"""A progress bar on stderr, where stderr is a terminal; elsewhere nothing is drawn, so that logs stay readable."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from vitlab.cli.talk import printable
from vitlab.data.progress import Tell, silent


@contextmanager
def bar() -> Iterator[Tell]:
    """What long work calls to show how far it is; the bar goes away when the block ends."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
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
            progress.update(tasks[what], completed=done, total=total, rate=f"{speed:.1f}/s" if speed else "")

        yield tell
