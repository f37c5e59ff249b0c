"""Tables: facts about one thing and rows of many, as aligned text for the terminal and as HTML for notebooks.

Results (`Predictions`, `Evaluation`, ...) print themselves with these functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from vitlab.io.text import printable

Value = None | bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"]


def facts_text(facts: Mapping[str, Value]) -> str:
    """One thing: a line for each of its properties."""
    lines = {key.replace("_", " "): cell(value) for key, value in facts.items()}
    width = max(map(len, lines), default=0)
    return "\n".join(f"{name:{width}}  {text}".rstrip() for name, text in lines.items())


def rows_text(rows: Sequence[Mapping[str, Value]]) -> str:
    """Many things: a header, then a line for each; numbers are aligned to the right."""
    columns = list(rows[0]) if rows else []
    heads = [column.replace("_", " ") for column in columns]
    cells = [[cell(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, texts)) for texts in zip(heads, *cells, strict=True)]
    numeric = [all(isinstance(row[column], int | float) for row in rows) for column in columns]
    lines = []
    for texts in [heads, *cells]:
        padded = [
            text.rjust(width) if right else text.ljust(width) for text, width, right in zip(texts, widths, numeric, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


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
