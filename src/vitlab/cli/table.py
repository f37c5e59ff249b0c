"""Facts and tables on stdout: aligned text, or JSON for programs."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping, Sequence

from vitlab.config.serialize import Json
from vitlab.io.table import cell, facts_text, rows_text

__all__ = ["cell", "print_facts", "print_json", "print_rows"]


def print_json(value: Json | Mapping[str, Json] | Sequence[Mapping[str, Json]]) -> None:
    """A value as indented JSON text."""
    print(json_text.dumps(value, indent=2, allow_nan=False))


def print_facts(facts: Mapping[str, Json], *, json: bool) -> None:
    """One thing: a line for each of its properties, or one JSON object."""
    if json:
        print_json(facts)
    else:
        print(facts_text(facts))


def print_rows(rows: Sequence[Mapping[str, Json]], *, json: bool) -> None:
    """Many things: a line for each, or a JSON list of objects."""
    if json:
        print_json(rows)
    elif rows:
        print(rows_text(rows))
