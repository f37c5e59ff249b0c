"""`vitlab quickstart`: the paper's protocol in small, offline, on two cores, in minutes; a table and a report at the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from vitlab.cli.changes import Folder
from vitlab.cli.parse import one, parse, unset
from vitlab.cli.progress import bar
from vitlab.cli.table import print_facts, print_json, print_rows
from vitlab.cli.talk import note
from vitlab.config.serialize import Json

if TYPE_CHECKING:
    from pathlib import Path

    from vitlab.studies.quickstart import Outcome

_BUDGETS = ("full", "tiny")


def budget(word: str) -> str:
    """The name of a budget."""
    if word not in _BUDGETS:
        raise ValueError(f"{word!r} is not one of {', '.join(_BUDGETS)}")
    return word


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Pre-train a small ViT on invented letters, fine-tune it on digits, and compare it with one that begins at random values."""

    out: Annotated[Folder, unset("runs/quickstart, or runs/quickstart-tiny")] = None
    """where everything is kept; what is unfinished there goes on"""

    budget: Annotated[str, one("{full,tiny}", budget)] = "full"
    """full takes minutes; tiny is over at once and learns nothing, to see that all of it works"""

    json: bool = False
    """print one JSON object"""


def run(words: Sequence[str]) -> int:
    """Make the runs, and print what came of them and where the report is."""
    arguments = parse(Arguments, words, verb="quickstart")

    from pathlib import Path

    from vitlab.cli.side_by_side import bars
    from vitlab.studies.quickstart import BUDGETS, Outcome, quickstart, write_quickstart_report
    from vitlab.training.control import INTERRUPTED, TERMINATED, Control, signals

    out = Path(arguments.out or ("runs/quickstart" if arguments.budget == "full" else f"runs/quickstart-{arguments.budget}"))
    control = Control()
    outcome: Outcome | None = None
    with signals(control), bars(sys.stderr) as hear:
        for event in quickstart(out, budget=BUDGETS[arguments.budget], control=control):
            if isinstance(event, Outcome):
                outcome = event
            else:
                hear(event)
    if outcome is None:
        note("stopped: what was learned is kept, and the same command goes on")
        return TERMINATED if control.stop == "terminated" else INTERRUPTED
    with bar(lines=True) as tell:
        written = write_quickstart_report(outcome, out / "report.html", tell=tell)
    if arguments.json:
        print_json(_told(outcome, written.path))
        return 0
    print_rows([_row(row) for row in _rows(outcome)], json=False)
    print()
    print_facts({"report": str(written.path), "model": str(outcome.pretrained / "model.safetensors")}, json=False)
    note("note: the report opens in any browser. docs/guides/first-steps.md goes on from here to your own images.")
    return 0


def _rows(outcome: Outcome) -> list[dict[str, Json]]:
    return [
        {"name": row.name, "few": list(row.few), "few_mean": row.few_mean, "few_deviation": row.few_deviation, "all": row.all}
        for row in outcome.rows
    ]


def _row(row: dict[str, Json]) -> dict[str, Json]:
    from vitlab.studies.quickstart import SHOTS

    return {
        "": row["name"],
        f"{SHOTS} labels a digit": f"{_percent(row['few_mean'])} ± {_percent(row['few_deviation'])} %",
        "all labels": f"{_percent(row['all'])} %",
    }


def _percent(share: Json) -> str:
    assert isinstance(share, float)
    return f"{100 * share:.1f}"


def _told(outcome: Outcome, report: Path) -> dict[str, Json]:
    return {
        "rows": [{**told, "fitted": row.fitted} for told, row in zip(_rows(outcome), outcome.rows, strict=True)],
        "gain_few": outcome.gain_few,
        "gain_all": outcome.gain_all,
        "letters": outcome.letters,
        "report": str(report),
        "model": str(outcome.pretrained / "model.safetensors"),
        "pretrained": str(outcome.pretraining / "model.safetensors"),
    }
