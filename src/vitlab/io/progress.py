"""Progress callback: long work reports what it does, how much is done, and how much there is."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[str, int, int | None], None]
"""(description, done, total or None): bytes or images."""


def silent(description: str, done: int, total: int | None) -> None:
    """A progress callback that does nothing."""
