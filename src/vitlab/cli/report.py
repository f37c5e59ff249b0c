"""`vitlab report RUN`: all that is known of a run, as one HTML file that opens from disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Union

import tyro

from vitlab.cli.evaluate import SplitWord
from vitlab.cli.opening import File
from vitlab.cli.parse import Count, existing, one, parse, positional, unset
from vitlab.cli.progress import bar
from vitlab.cli.table import print_facts
from vitlab.config.serialize import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Judge a run by images it has not learned from, and write all that is known of it as one HTML file."""

    run: Annotated[tyro.conf.Positional[str], one("RUN", existing), positional("RUN")]
    """the folder of a run, as pretrain, finetune and train make them"""

    out: Annotated[File, unset("report.html in the run's folder")] = None
    """the file to write"""

    split: Annotated[SplitWord, unset("test if the data has it, else val")] = None
    """the part of the data to judge by"""

    title: Annotated[Union[None, str], one("WORDS", str), unset("the folder's name")] = None  # noqa: UP007, RUF036
    """what stands at the top"""

    cores: Annotated[Count, unset("as many as are used here")] = None
    """how many the run was made on, for its cost"""

    json: bool = False
    """print one JSON object"""


def run(words: Sequence[str]) -> None:
    """Write the report, and print where it is."""
    arguments = parse(Arguments, words, verb="report")

    from pathlib import Path

    from vitlab.reports.report import write_report

    with bar(lines=True) as tell:
        written = write_report(
            Path(arguments.run),
            None if arguments.out is None else Path(arguments.out),
            split=arguments.split,
            title=arguments.title,
            cores=arguments.cores or None,
            tell=tell,
        )
    facts: dict[str, Json] = {
        "report": str(written.path),
        "accuracy": written.accuracy,
        "interval": None if written.interval is None else list(written.interval),
        "images": written.images,
        "bytes": written.bytes,
    }
    print_facts(facts, json=arguments.json)
