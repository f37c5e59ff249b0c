"""`vitlab study transfer`: families of models with and without pre-training, by how many labels there are."""

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
    from vitlab.studies.transfer import Curve


def counts(word: str) -> tuple[int, ...]:
    """`3,10,30`."""
    return tuple(count(part) for part in word.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Figures 3 and 4 of the paper in small. An interrupted study goes on with the same command."""

    out: Annotated[str, one("FOLDER", str)] = "runs/transfer"
    """where everything is kept, and the drawing transfer.png; what is unfinished there goes on"""

    shots: Annotated[tuple[int, ...], one("N,N,...", counts)] = (3, 10, 30, 100)
    """labels of each digit"""

    letters: Annotated[int, one("N", count)] = 40_000
    """invented letters that each family learns from first"""

    steps: Annotated[int, one("N", count)] = 200
    """updates of each fine-tuning"""

    json: bool = False
    """print one JSON object"""


def run(words: Sequence[str]) -> int:
    """Make the runs, print the table and draw it."""
    arguments = parse(Arguments, words, verb="study transfer")
    from pathlib import Path

    from vitlab.cli.side_by_side import bars
    from vitlab.studies.plot import draw_curves
    from vitlab.studies.transfer import Plan, transfer
    from vitlab.training.control import INTERRUPTED, TERMINATED, Control, signals

    out, control = Path(arguments.out), Control()
    plan = Plan(shots=arguments.shots, letters=arguments.letters, steps=arguments.steps)
    curves: tuple[Curve, ...] | None = None
    with signals(control), bars(sys.stderr) as hear:
        for event in transfer(out, plan, control=control):
            if isinstance(event, tuple):
                curves = event
            else:
                hear(event)
    if curves is None:
        note("stopped: what was learned is kept, and the same command goes on")
        return TERMINATED if control.stop == "terminated" else INTERRUPTED
    drawing = out / "transfer.png"
    drawing.write_bytes(draw_curves(curves, drawing))
    if arguments.json:
        print_json([_facts(curve) for curve in curves])
    else:
        print_rows([_row(curve) for curve in curves], json=False)
    note(f"drawn: {drawing}")
    return 0


def _facts(curve: Curve) -> dict[str, Json]:
    return {
        "family": curve.family,
        "pretrained": curve.pretrained,
        "shots": list(curve.shots),
        "shares": list(curve.shares),
    }


def _row(curve: Curve) -> dict[str, Json]:
    row: dict[str, Json] = {"family": curve.family, "begins with": "letters" if curve.pretrained else "random values"}
    for shots, share in zip(curve.shots, curve.shares, strict=True):
        row[f"{shots} labels"] = f"{100 * share:.1f} %"
    return row
