"""What a person or a program sees: text that is safe to print, tables, JSON, HTML in a notebook, and the progress of long work.

A result of vitlab derives from `Displayed` and says once, in `tables`, what a person wants to see, and in `to_json` what a
program wants. `str(result)`, the command line and a notebook are made from these two. `Facts` (one thing and its properties) and
`Table` (many things of one kind) are the results that need no class of their own.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, overload
from unicodedata import combining, east_asian_width


def printable(text: str) -> str:
    """The text on one line: control characters, line ends and undecodable bytes as escapes, every other letter as it is."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # also in full width, as a Japanese keyboard writes them


def csv_cell(text: str) -> str:
    """The text as a cell of a CSV file: `printable`, and with an apostrophe before what a spreadsheet would take for a formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


Value = None | bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"]
Row = Mapping[str, Value]
Block = Row | Sequence[Row] | str
"""A piece of a display: properties of one thing, rows of a table, or lines of text."""


class Displayed:
    """A value with a display: `str()` and `repr()` give text, `to_json()` plain values, a notebook shows HTML tables."""

    __slots__ = ()

    def tables(self) -> Iterable[Block]:
        """What a person sees, piece by piece."""
        raise NotImplementedError

    def to_json(self) -> Any:
        """Everything, as plain values that `json.dumps` takes."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(text for text in map(_text, self.tables()) if text)

    def __repr__(self) -> str:
        return str(self) or f"<{type(self).__name__}: empty>"

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

    def renamed(self, names: Mapping[str, str]) -> Facts:
        """The same with other names of files: where a value begins with one of the names, it begins with the other."""

        def renamed(value: Any) -> Any:
            if isinstance(value, str):
                return next((new + value[len(old) :] for old, new in names.items() if value.startswith(old)), value)
            if isinstance(value, Mapping):
                return {key: renamed(one) for key, one in value.items()}
            return [renamed(one) for one in value] if isinstance(value, list) else value

        return Facts(renamed(self._data), shown=renamed(self._shown), notes=self.notes)

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


def facts_text(facts: Mapping[str, Value]) -> str:
    """One thing: a line for each of its properties."""
    lines = {key.replace("_", " "): cell(value) for key, value in facts.items()}
    width = max(map(columns_of, lines), default=0)
    return "\n".join(f"{_filled(name, width)}  {text}".rstrip() for name, text in lines.items())


def rows_text(rows: Sequence[Mapping[str, Value]]) -> str:
    """Many things: a header, then a line for each; numbers are aligned to the right."""
    columns = list(rows[0]) if rows else []
    heads = [column.replace("_", " ") for column in columns]
    cells = [[cell(row[column]) for column in columns] for row in rows]
    widths = [max(map(columns_of, texts)) for texts in zip(heads, *cells, strict=True)]
    numeric = [all(isinstance(row[column], int | float) for row in rows) for column in columns]
    lines = []
    for texts in [heads, *cells]:
        padded = [_filled(text, width, right=right) for text, width, right in zip(texts, widths, numeric, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def columns_of(text: str) -> int:
    """Columns of a terminal that a text takes: two for each Chinese, Japanese or Korean character, none for a combining mark."""
    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _filled(text: str, width: int, *, right: bool = False) -> str:
    space = " " * (width - columns_of(text))
    return space + text if right else text + space


def facts_html(facts: Mapping[str, Value]) -> str:
    """The same as an HTML table."""
    rows = (f"<tr><th>{escape(key.replace('_', ' '))}</th><td>{escape(cell(value))}</td></tr>" for key, value in facts.items())
    return f"<table>{''.join(rows)}</table>"


def rows_html(rows: Sequence[Mapping[str, Value]]) -> str:
    """The same as an HTML table."""
    columns = list(rows[0]) if rows else []
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell(row[column]))}</td>" for column in columns) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def cell(value: Value) -> str:
    """A value as a person reads it: 86567656 is `86,567,656 (86.6 M)`, [224, 224] is `224 x 224`."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}{_short(value)}"
        case float():
            return f"{value:.4g}"
        case str():
            return printable(value)
        case Mapping():
            return ", ".join(f"{printable(key.replace('_', ' '))} {cell(item)}" for key, item in value.items())
        case [int(), int()]:
            return " x ".join(map(str, value))
        case _ if value and all(isinstance(item, int | float) for item in value):
            return f"[{', '.join(map(cell, value))}]"
        case _:
            return ", ".join(cell(item) for item in value) or "-"


def _short(number: int) -> str:
    for power, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(number) >= power:
            return f" ({number / power:.3g} {letter})"
    return ""


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
