"""Progress callback: long work reports what it does, how much is done, and how much there is."""

from __future__ import annotations

import sys
from collections.abc import Callable

ProgressCallback = Callable[[str, int, int | None], None]
"""(description, done, total or None): bytes or images."""


def silent(description: str, done: int, total: int | None) -> None:
    """A progress callback that does nothing."""


def line_on_terminal(description: str, done: int, total: int | None) -> None:
    """A line on a terminal that says how far a download is, in MB."""
    if sys.stderr.isatty():
        of = "" if total is None else f" of {total / 1e6:,.0f}"
        ends = "\n" if done == total else ""
        print(f"\r{description}: {done / 1e6:,.0f}{of} MB\x1b[K", end=ends, file=sys.stderr, flush=True)
