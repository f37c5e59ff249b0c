"""`vitlab similar QUERY INDEX`: the images of an index that are most like one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from vitlab.cli.opening import Feeding, File
from vitlab.cli.parse import Existing, count, is_checkpoint, one, parse, positional, unset
from vitlab.cli.table import print_rows
from vitlab.cli.talk import UsageError
from vitlab.config.serialize import Json
from vitlab.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(Feeding):
    """Find the images of an index (vitlab embed writes one) that are most like an image, by the cosine of their features."""

    query: Annotated[tyro.conf.Positional[str], positional("QUERY")]
    """an image, also inside a zip: photos.zip/cat.jpg"""

    index: Annotated[tyro.conf.Positional[Existing], positional("INDEX")]
    """an .npz or .parquet file of features"""

    checkpoint: Annotated[File, unset("the one the index names")] = None
    """the checkpoint that made the index; another one is refused"""

    top: Annotated[int, one("N", count)] = 5
    """images to show"""

    json: bool = False
    """print a JSON list"""


def run(words: Sequence[str]) -> None:
    """Print the nearest images, nearest first."""
    arguments = parse(Arguments, words, verb="similar")
    if not arguments.top:
        raise UsageError("--top: at least 1 image")
    from pathlib import Path

    from vitlab.inference.search_index import Index

    index = Index(Path(arguments.index))
    made_by = arguments.checkpoint or index.made_by
    if not is_checkpoint(made_by):
        raise UsageError(
            f"no file or folder called {made_by!r}" + ("" if arguments.checkpoint else f", which {arguments.index} names"),
            hint="say --checkpoint FILE",
        )
    from vitlab.inference import Predictor, Unreadable

    predictor = Predictor(arguments.load(made_by), batch_size=1, workers=0, device=arguments.device)
    if predictor.features_digest != index.digest:
        raise DataError(
            f"{made_by} did not make {arguments.index}: its features cannot be compared",
            hint=f"the index is of {index.digest[:16]}, the checkpoint, as it is fed, {predictor.features_digest[:16]}",
        )
    query = next(predictor.stream([arguments.query], features=True))
    if isinstance(query, Unreadable):
        raise DataError(str(query))
    assert query.features is not None, "features were asked for"
    rows: list[dict[str, Json]] = [
        {"similarity": found.similarity, "label": found.label, "name": found.name}
        for found in index.nearest(query.features, arguments.top)
    ]
    print_rows(rows, json=arguments.json)
