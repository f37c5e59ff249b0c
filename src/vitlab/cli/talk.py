"""What the command line says on stderr: errors, hints and notes, each on one line. stdout is kept for data."""

from __future__ import annotations

import sys

from vitlab.errors import UsageError, VitlabError

__all__ = ["UsageError", "error", "note", "printable"]


def error(fault: VitlabError) -> None:
    """Print `error: ...` and, where there is one, `hint: ...`."""
    print(f"error: {printable(fault.message)}", file=sys.stderr)
    if fault.hint is not None:
        print(f"hint: {printable(fault.hint)}", file=sys.stderr)


def note(text: str) -> None:
    """Print one line that is not part of the result."""
    print(printable(text), file=sys.stderr)


def printable(text: str) -> str:
    """The text on one line, what a terminal would act on escaped: file names and labels can come from strangers."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
