"""`vitlab evaluate CHECKPOINT DATA`: how good a model is, every image counted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Union

import tyro

from vitlab.cli.opening import File, among
from vitlab.cli.parse import count, one, parse, positional, unset
from vitlab.cli.progress import bar
from vitlab.cli.table import print_json
from vitlab.cli.talk import UsageError, note
from vitlab.cli.transfer import Judging, TransferOptions, run_transfer
from vitlab.config.data import CorruptPolicy, Split
from vitlab.config.evaluation import EvaluateConfig
from vitlab.config.serialize import Json, to_json

if TYPE_CHECKING:
    from vitlab.checkpoints import Checkpoint
    from vitlab.data.dataset import Dataset
    from vitlab.evaluation.label_mapping import Targets


def severities(word: str) -> tuple[int, ...]:
    """`3`, `1-5` or `1,3,5`."""
    if not re.fullmatch(r"[1-5](-[1-5])?(,[1-5](-[1-5])?)*", word):
        raise ValueError(f"{word!r} is neither a severity from 1 to 5, nor a range (1-5), nor a list (1,3,5)")
    found: set[int] = set()
    for part in word.split(","):
        low, _, high = part.partition("-")
        if int(high or low) < int(low):
            raise ValueError(f"{part!r} runs backwards")
        found.update(range(int(low), int(high or low) + 1))
    return tuple(sorted(found))


SplitWord = Annotated[Union[None, Split], among(Split)]  # noqa: UP007, RUF036
Data = Annotated[Union[None, str], one("DATA", str)]  # noqa: UP007, RUF036
Column = Annotated[Union[None, str], one("NAME", str)]  # noqa: UP007, RUF036
Names = Annotated[Union[None, tuple[str, ...]], one("all|NAME,...", lambda word: tuple(word.split(",")))]  # noqa: UP007, RUF036
Severities = Annotated[tuple[int, ...], one("1-5", severities)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(TransferOptions):
    """Judge a checkpoint by labelled images: accuracy, likelihood, calibration, classes; every image counts."""

    data: Annotated[tyro.conf.Positional[Data], positional("DATA"), unset("none, for --vtab")] = None
    """a folder of class folders, a zip, a CSV list, shards, digits, kind:path, ..."""

    split: Annotated[SplitWord, unset("test if the data declares it, else val, else everything")] = None
    """the part of the data to judge by"""

    label_column: Annotated[Column, unset("the first that is known")] = None
    """column of the labels, where a list has several"""

    subset: bool = False
    """let the data have some of the model's classes, or another order of them; they are matched by name"""

    mapping: Annotated[File, unset("classes are the same")] = None
    """JSON file: class of the data -> list of the model's classes that are right (as for ObjectNet)"""

    real: Annotated[File, unset("no ReaL accuracy")] = None
    """CSV or JSON file of the really right classes of each image, also inside a zip: data.zip/labels.csv"""

    corrupt: CorruptPolicy = "fail"
    """what an image that cannot be read does: fail stops, skip counts it as wrong and reports it"""

    corruptions: Annotated[Names, unset("none")] = None
    """evaluate also with images corrupted in these ways (fog,jpeg) or in all fifteen"""

    severities: Annotated[Severities, unset("1-5")] = (1, 2, 3, 4, 5)
    """how badly, from 1 to 5"""

    merge: Annotated[int, one("N", count)] = 0
    """pairs of alike patches joined a layer, on average, in a ViT: faster, and slightly other answers"""

    batch_size: Annotated[int, one("N", count)] = 64
    """images at once"""

    workers: Annotated[int, one("N", count)] = 2
    """threads that read images ahead"""

    per_image: Annotated[File, unset("not written")] = None
    """CSV file to write, a line for each image"""

    json: bool = False
    """print one JSON object, with confusions and all classes"""


def run(words: Sequence[str]) -> None:
    """Evaluate, and print what was found."""
    arguments = parse(Arguments, words, verb="evaluate")
    if arguments.subset and arguments.mapping is not None:
        raise UsageError("--subset and --mapping are two ways to match classes", hint="leave one out")
    config = EvaluateConfig(
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        corrupt=arguments.corrupt,
        device=arguments.device,
        merge=arguments.merge,
    )
    if arguments.learns:
        _refuse_with_learning(arguments)
        run_transfer(
            arguments,
            Judging(
                data=arguments.data,
                split=arguments.split,
                label_column=arguments.label_column,
                config=config,
                json=arguments.json,
            ),
        )
        return
    if arguments.data is None:
        raise UsageError("missing DATA", hint="vitlab evaluate --help lists what it takes")

    from pathlib import Path

    from vitlab.evaluation.corruptions import chosen_corruptions
    from vitlab.evaluation.evaluation import evaluate, open_split, robustness, write_per_image

    chosen = chosen_corruptions(arguments.corruptions or ())
    checkpoint = arguments.open()
    dataset, said = open_split(arguments.data, arguments.split, checkpoint, label_column=arguments.label_column)
    targets = _targets(arguments, checkpoint, dataset)
    for line in (*said, *targets.notes):
        note(f"note: {line}")
    with bar() as tell:
        found = evaluate(
            checkpoint, dataset, targets, real=_real(arguments, checkpoint, dataset, targets), config=config, progress=tell
        )
        if arguments.per_image is not None:
            write_per_image(Path(arguments.per_image), found, dataset)
        harder = (
            robustness(
                checkpoint, dataset, found, corruptions=chosen, severities=arguments.severities, config=config, progress=tell
            )
            if chosen
            else None
        )
    for failure in found.logits.failures:
        note(f"unreadable: {failure}")
    if arguments.json:
        told: dict[str, Json] = {"checkpoint": arguments.checkpoint, "data": arguments.data, **found.to_json()}
        if harder is not None:
            told["robustness"] = harder.to_json()
        notes = (*checkpoint.notes, *said, *targets.notes)
        print_json(told | {"preprocess": to_json(checkpoint.preprocess), "notes": list(notes)})
        return
    print(found)
    if harder is not None:
        print()
        print(harder)


def _refuse_with_learning(arguments: Arguments) -> None:
    """UsageError for an option that is about the checkpoint's own head, where another one is learned."""
    given: dict[str, object] = {
        "--subset": arguments.subset,
        "--mapping": arguments.mapping,
        "--real": arguments.real,
        "--corruptions": arguments.corruptions,
        "--per-image": arguments.per_image,
        "--merge": arguments.merge,
    }
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} is about the checkpoint's own classes, and others are learned here")


def _targets(arguments: Arguments, checkpoint: Checkpoint, dataset: Dataset) -> Targets:
    from pathlib import Path

    from vitlab.evaluation.label_mapping import match_by_file, match_by_name

    classes = checkpoint.config.num_classes
    if arguments.mapping is not None:
        return match_by_file(Path(arguments.mapping), dataset.labels, checkpoint.labels, classes=classes)
    return match_by_name(dataset.labels, checkpoint.labels, classes=classes, subset=arguments.subset)


def _real(arguments: Arguments, checkpoint: Checkpoint, dataset: Dataset, targets: Targets) -> Sequence[Sequence[int]] | None:
    if arguments.real is None:
        return None
    from vitlab.evaluation.evaluation import name_in
    from vitlab.evaluation.label_mapping import read_real

    names = [name_in(dataset, index) for index in range(len(dataset))]
    return read_real(arguments.real, names, targets.names, classes=checkpoint.config.num_classes)
