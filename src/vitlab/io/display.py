"""Values that print as tables, become JSON, and show themselves in a notebook.

A result of vitlab derives from `Displayed` and says once, in `tables`, what a person wants to see, and in `to_json` what a
program wants. `str(result)`, the command line and a notebook are made from these two. `Facts` (one thing and its properties) and
`Table` (many things of one kind) are the results that need no class of their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, overload

from vitlab.io.table import Value, facts_html, facts_text, rows_html, rows_text
from vitlab.io.text import printable

Row = Mapping[str, Value]
Block = Row | Sequence[Row] | str
"""A piece of a display: properties of one thing, rows of a table, or lines of text."""


class Displayed:
    """A value with a display: `str()` gives text, `to_json()` plain values, a notebook shows HTML tables."""

    __slots__ = ()

    def tables(self) -> Iterable[Block]:
        """What a person sees, piece by piece."""
        raise NotImplementedError

    def to_json(self) -> Any:
        """Everything, as plain values that `json.dumps` takes."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(text for text in map(_text, self.tables()) if text)

    def _repr_html_(self) -> str:
        return "".join(map(_html, self.tables()))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Plain values as JSON; NaN and Inf, for which JSON has no word, become null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Facts(Displayed, Mapping[str, Any]):
    """One thing and its properties: a mapping that prints one property a line. `shown`, if given, is printed in its place."""

    __slots__ = ("_data", "_shown", "notes")

    def __init__(self, data: Mapping[str, Any], *, shown: Row | list[Block] | None = None, notes: Iterable[str] = ()) -> None:
        self._data = dict(data)
        self._shown: list[Block] = shown if isinstance(shown, list) else [self._data if shown is None else shown]
        self.notes = tuple(notes)

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"Facts({self._data!r})"

    def tables(self) -> Iterable[Block]:
        """The properties."""
        return self._shown

    def to_json(self) -> dict[str, Any]:
        """The properties, and `notes` if there are any."""
        return {**self._data, "notes": list(self.notes)} if self.notes else dict(self._data)


class Table(Displayed, Sequence[Mapping[str, Any]]):
    """Many things of one kind: a sequence of rows that prints in columns. `data` replaces what `to_json` gives."""

    __slots__ = ("_data", "_rows", "notes")

    def __init__(self, rows: Iterable[Mapping[str, Any]], *, data: Any = None, notes: Iterable[str] = ()) -> None:
        self._rows = tuple(rows)
        self._data = data
        self.notes = tuple(notes)

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, place: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        return self._rows[place]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Table({list(self._rows)!r})"

    def tables(self) -> Iterable[Block]:
        """The rows."""
        return [self._rows] if self._rows else []

    def to_json(self) -> Any:
        """A list of the rows, or the numbers behind them."""
        return [dict(row) for row in self._rows] if self._data is None else self._data


def _text(block: Block) -> str:
    if isinstance(block, str):
        return "\n".join(map(printable, block.split("\n")))
    return facts_text(block) if isinstance(block, Mapping) else rows_text(block)


def _html(block: Block) -> str:
    if isinstance(block, str):
        return f"<pre>{escape(_text(block))}</pre>"
    return facts_html(block) if isinstance(block, Mapping) else rows_html(block)
