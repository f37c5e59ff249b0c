"""What the command line prints on stdout: facts and tables, aligned for eyes or as JSON for programs."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping, Sequence

from vitlab.cli.talk import printable
from vitlab.config.serialize import Json


def print_json(value: Json | Mapping[str, Json] | Sequence[Mapping[str, Json]]) -> None:
    """A value as indented JSON text."""
    print(json_text.dumps(value, indent=2, allow_nan=False))


def print_facts(facts: Mapping[str, Json], *, json: bool) -> None:
    """One thing: a line for each of its properties, or one JSON object."""
    if json:
        print_json(facts)
        return
    lines = {key.replace("_", " "): cell(value) for key, value in facts.items()}
    width = max(map(len, lines))
    for name, text in lines.items():
        print(f"{name:{width}}  {text}")


def print_rows(rows: Sequence[Mapping[str, Json]], *, json: bool) -> None:
    """Many things of one kind: a line for each under their heads, numbers to the right, or a JSON list of objects."""
    if json:
        print_json(rows)
        return
    columns = list(rows[0]) if rows else []
    heads = [column.replace("_", " ") for column in columns]
    cells = [[cell(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, texts)) for texts in zip(heads, *cells, strict=True)]
    numeric = [all(isinstance(row[column], int | float) for row in rows) for column in columns]
    for texts in [heads, *cells]:
        padded = [
            text.rjust(width) if right else text.ljust(width) for text, width, right in zip(texts, widths, numeric, strict=True)
        ]
        print("  ".join(padded).rstrip())


def cell(value: Json) -> str:
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
        case dict():
            return ", ".join(f"{printable(key.replace('_', ' '))} {cell(item)}" for key, item in value.items())
        case [int(), int()]:
            return " x ".join(map(str, value))
        case list() if value and all(isinstance(item, int | float) for item in value):
            return f"[{', '.join(map(cell, value))}]"
        case list():
            return ", ".join(cell(item) for item in value) or "-"


def _short(number: int) -> str:
    for power, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(number) >= power:
            return f" ({number / power:.3g} {letter})"
    return ""
