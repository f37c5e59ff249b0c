"""`vitlab export CHECKPOINT OUT`: a model as a file for another runtime, run and compared before it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Union

import tyro

from vitlab.cli.opening import Opening
from vitlab.cli.parse import count, one, parse, positional, unset
from vitlab.cli.progress import bar
from vitlab.cli.table import print_facts
from vitlab.cli.talk import note
from vitlab.config.data import Split
from vitlab.config.serialize import Json
from vitlab.errors import DataError
from vitlab.exporters.config import ExportConfig

if TYPE_CHECKING:
    from vitlab.exporters import Exported

Data = Annotated[Union[None, str], one("DATA", str)]  # noqa: UP007, RUF036  (None first, as in vitlab.cli.parse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(Opening):
    """Write a model for ONNX Runtime, OpenVINO or torch.export. The file is run, and kept only if it agrees with torch."""

    out: Annotated[tyro.conf.Positional[str], positional("OUT")]
    """file to write: .onnx, .xml (OpenVINO, with a .bin beside it) or .pt2 (torch.export)"""

    inside: bool = False
    """put normalisation and softmax into the file: uint8 images (batch, height, width, channels) in, probabilities out"""

    dynamic_size: bool = False
    """leave height and width of the images free"""

    int8: bool = False
    """compute products in 8 bits; needs --data"""

    data: Annotated[Data, unset("generated images")] = None
    """images to compare with torch by, and to calibrate 8 bits on: a folder, zip, list, shards, kind:path, ..."""

    split: Split = "all"
    """the part of the data"""

    max_drop: float = ExportConfig().max_drop
    """points of accuracy (of agreement with the original, where images have no labels) that 8 bits may lose"""

    calibration: Annotated[int, one("N", count)] = ExportConfig().calibration
    """at most so many images to calibrate and judge 8 bits with"""

    overwrite: bool = False
    """replace OUT where it exists"""

    json: bool = False
    """print one JSON object"""


def run(words: Sequence[str]) -> None:
    """Export one checkpoint and say how near the file is."""
    arguments = parse(Arguments, words, verb="export")
    from pathlib import Path

    out = Path(arguments.out)
    if out.exists() and not arguments.overwrite:
        raise DataError(f"{arguments.out} is there already", hint="--overwrite replaces it")
    config = ExportConfig(
        inside=arguments.inside,
        dynamic_size=arguments.dynamic_size,
        int8=arguments.int8,
        max_drop=arguments.max_drop,
        calibration=arguments.calibration,
    )
    from vitlab.data.opening import open_dataset
    from vitlab.exporters import export

    dataset = None if arguments.data is None else open_dataset(arguments.data, split=arguments.split)
    checkpoint = arguments.open()
    with bar() as tell:
        made = export(checkpoint, out, config, dataset=dataset, tell=tell)
    for line in made.notes:
        note(f"note: {line}")
    print_facts(_facts(made), json=arguments.json)


def _facts(made: Exported) -> dict[str, Json]:
    facts: dict[str, Json] = {
        "file": str(made.paths[0]),
        "kind": made.kind,
        "bytes": made.bytes,
        "largest difference": float(f"{made.difference:.3g}"),
        "compared on": made.tried_with,
    }
    if made.quantised is not None:
        facts[f"{made.quantised.measure} in float, %"] = round(made.quantised.before, 2)
        facts[f"{made.quantised.measure} in 8 bits, %"] = round(made.quantised.after, 2)
        facts["layers in float"] = list(made.quantised.kept)
        if made.quantised.fragile:
            facts["fragile layers"] = {fragile.layer: float(f"{fragile.error:.3g}") for fragile in made.quantised.fragile[:10]}
    return facts
