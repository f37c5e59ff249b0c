"""`vitlab embed CHECKPOINT DATA OUT`: the features of images, for search and clustering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from vitlab.cli.opening import Opening
from vitlab.cli.parse import count, one, parse, positional
from vitlab.cli.progress import bar
from vitlab.cli.table import print_facts
from vitlab.cli.talk import UsageError, note
from vitlab.config.data import Split
from vitlab.config.evaluation import EvaluateConfig
from vitlab.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(Opening):
    """Write the features of images, what the model's head sees, with their names and labels."""

    data: Annotated[tyro.conf.Positional[str], positional("DATA")]
    """a folder of class folders, images:FOLDER without labels, a zip, a CSV list, shards, digits, kind:path, ..."""

    out: Annotated[tyro.conf.Positional[str], positional("OUT")]
    """file to write, .npz or .parquet"""

    split: Split = "all"
    """the part of the data"""

    overwrite: bool = False
    """replace OUT where it exists"""

    strict: bool = False
    """end with exit code 1 if an image could not be read"""

    batch_size: Annotated[int, one("N", count)] = 32
    """images at once"""

    workers: Annotated[int, one("N", count)] = 2
    """threads that read images ahead"""

    json: bool = False
    """print one JSON object"""


def run(words: Sequence[str]) -> None:
    """Write the features, and say how many."""
    arguments = parse(Arguments, words, verb="embed")
    from pathlib import Path

    from vitlab.inference.search_index import ENDINGS

    out = Path(arguments.out)
    if out.suffix not in ENDINGS:
        raise UsageError(f"OUT: {arguments.out} ends in neither {' nor '.join(ENDINGS)}")
    if out.exists() and not arguments.overwrite:
        raise DataError(f"{arguments.out} is there already", hint="--overwrite replaces it")
    from vitlab.data.opening import open_dataset
    from vitlab.inference import Predictor
    from vitlab.inference.search_index import embed

    dataset = open_dataset(arguments.data, split=arguments.split)
    predictor = Predictor(arguments.open(), batch_size=arguments.batch_size, workers=arguments.workers, device=arguments.device)
    with bar() as tell:
        unreadable = embed(
            predictor.engine,
            dataset,
            out,
            made_by=arguments.checkpoint,
            config=EvaluateConfig(batch_size=arguments.batch_size, workers=arguments.workers, corrupt="skip"),
            progress=tell,
        )
    for failure in unreadable:
        note(f"unreadable: {failure}")
    written = len(dataset) - len(unreadable)
    print_facts(
        {
            "file": arguments.out,
            "images": written,
            "unreadable": len(unreadable),
            "width": predictor.checkpoint.config.feature_width,
            "checkpoint": predictor.features_digest,
        },
        json=arguments.json,
    )
    if unreadable and arguments.strict:
        raise DataError(f"{len(unreadable):,} of {len(dataset):,} images could not be read")
