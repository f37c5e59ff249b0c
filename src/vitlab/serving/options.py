"""The options of a request, as text (query, form) or JSON values, read by name. Refusal names the option that is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vitlab.errors import did_you_mean
from vitlab.io.text import printable
from vitlab.serving.refusals import Refusal


def whole(options: Mapping[str, Any], name: str, default: int | None, *, least: int, most: int) -> int | None:
    """A whole number from `least` to `most`."""
    if (value := options.get(name)) is None:
        return default
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise Refusal("invalid_option", f"{name}={_shown(value)} is not a whole number from {least} to {most}")
    return int(text)


def flag(options: Mapping[str, Any], name: str) -> bool:
    """true or false; false if it is absent."""
    value = options.get(name, False)
    if isinstance(value, bool):
        return value
    if value not in ("true", "false", "1", "0"):
        raise Refusal("invalid_option", f"{name}={_shown(value)} is neither true nor false")
    return value in ("true", "1")


def word(options: Mapping[str, Any], name: str, words: Sequence[str], default: str) -> str:
    """One of the words."""
    value = options.get(name, default)
    if value not in words:
        hint = did_you_mean(str(value)[:100], words)
        raise Refusal("invalid_option", f"{name}={_shown(value)} is not one of {', '.join(words)}", hint=hint)
    return str(value)


def patch(options: Mapping[str, Any], name: str) -> str | tuple[int, int] | None:
    """`class`, `distill`, or a patch: `3,5` as text, [3, 5] in JSON; None if it is absent."""
    value = options.get(name)
    if value is None or value in ("class", "distill"):
        return value
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    if not (match := re.fullmatch(r"([0-9]{1,6}),([0-9]{1,6})", text)):
        raise Refusal("invalid_option", f"{name}={_shown(value)} is neither row,column of a patch nor class nor distill")
    return int(match[1]), int(match[2])


def _shown(value: Any) -> str:
    return printable(repr(value)[:100])
