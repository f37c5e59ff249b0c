"""`vitlab study positions`: Table 8 of the paper in small, the paper's numbers beside."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from vitlab.cli.parse import count, one, parse
from vitlab.cli.table import print_json, print_rows
from vitlab.cli.talk import note
from vitlab.config.serialize import Json

if TYPE_CHECKING:
    from vitlab.studies.positions import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Train a small ViT with every kind of position at every place. An interrupted study goes on with the same command."""

    out: Annotated[str, one("FOLDER", str)] = "runs/positions"
    """where everything is kept, and the drawing positions.png; what is unfinished there goes on"""

    images: Annotated[int, one("N", count)] = 30_000
    """invented letters that each ViT learns from"""

    seeds: Annotated[int, one("N", count)] = 2
    """how often each is trained"""

    json: bool = False
    """print one JSON object"""


def run(words: Sequence[str]) -> int:
    """Make the runs, print the table and draw it."""
    arguments = parse(Arguments, words, verb="study positions")
    from pathlib import Path

    from vitlab.cli.side_by_side import bars
    from vitlab.studies.plot import draw_positions
    from vitlab.studies.positions import positions
    from vitlab.training.control import INTERRUPTED, TERMINATED, Control, signals

    out, control = Path(arguments.out), Control()
    cells: tuple[Cell, ...] | None = None
    with signals(control), bars(sys.stderr) as hear:
        for event in positions(out, images=arguments.images, seeds=arguments.seeds, control=control):
            if isinstance(event, tuple):
                cells = event
            else:
                hear(event)
    if cells is None:
        note("stopped: what was learned is kept, and the same command goes on")
        return TERMINATED if control.stop == "terminated" else INTERRUPTED
    drawing = out / "positions.png"
    drawing.write_bytes(draw_positions(cells, drawing))
    if arguments.json:
        print_json([_facts(cell) for cell in cells])
    else:
        print_rows(_table(cells), json=False)
        note("note: share of test letters told right, ± between seeds; in brackets the paper's: ViT-B/16, ImageNet, 5-shot linear")
    note(f"drawn: {drawing}")
    return 0


def _facts(cell: Cell) -> dict[str, Json]:
    return {
        "kind": cell.kind,
        "place": cell.place,
        "shares": list(cell.shares),
        "mean": cell.mean,
        "deviation": cell.deviation,
        "published": cell.published,
    }


def _table(cells: Sequence[Cell]) -> list[dict[str, Json]]:
    from vitlab.studies.positions import KIND_WORDS, PLACE_WORDS

    by_place = {(cell.kind, cell.place): cell for cell in cells}
    return [
        {"positions": words, **{head: _shown(by_place.get((kind, place))) for place, head in PLACE_WORDS.items()}}
        for kind, words in KIND_WORDS.items()
    ]


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    said = f"{100 * cell.mean:.1f} ± {100 * cell.deviation:.1f} %"
    return said if cell.published is None else f"{said} [{cell.published:.1f}]"
