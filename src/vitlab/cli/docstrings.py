"""Help texts from the docstrings of `vitlab.api`. Imports no argument parser, so that `vitlab --help` is fast."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any


def description(function: Callable[..., Any]) -> str:
    """What a verb does: the docstring without its arguments and what is returned."""
    text = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:")[0]
    return "\n\n".join(part for part in text.strip().split("\n\n") if not part.startswith("Returns"))


def summary(function: Callable[..., Any]) -> str:
    """The first sentence, up to a colon, for a list of verbs."""
    first = description(function).split("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[a-z)])[.:] ", first, maxsplit=1)[0].rstrip(".")


def arguments(function: Callable[..., Any]) -> dict[str, tuple[str, str | None]]:
    """Parameter -> its text, and its default if the text ends in `(default: ...)`."""
    section = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")[2]
    found: dict[str, tuple[str, str | None]] = {}
    for entry in re.split(r"\n(?= {4}\w)", section):
        name, colon, text = entry.strip().partition(":")
        if colon:
            text = " ".join(text.split())
            match = re.fullmatch(r"(.*?) ?\(default: (.*)\)", text)
            found[name] = (match[1], match[2]) if match else (text, None)
    return found
