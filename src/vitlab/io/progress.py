"""How long work tells how far it is: to whoever listens, in a word, a count and, where it is known, a total."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is done (bytes or images), and how much there is, or None where unknown."""


def silent(what: str, done: int, total: int | None) -> None:
    """Listens and says nothing."""
