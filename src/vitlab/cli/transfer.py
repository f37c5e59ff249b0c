"""`vitlab evaluate ... --fewshot --knn --probe`: what features are worth on other images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Union

from vitlab.cli.opening import File, Opening
from vitlab.cli.parse import Count, one, unset
from vitlab.cli.progress import bar
from vitlab.cli.table import print_json
from vitlab.cli.talk import UsageError, note
from vitlab.config.data import Split
from vitlab.config.evaluation import EvaluateConfig, FewShotConfig, KnnConfig, ProbeConfig
from vitlab.config.serialize import to_json

if TYPE_CHECKING:
    from vitlab.evaluation.frozen import FrozenEvaluation


def counts(word: str) -> tuple[int, ...]:
    """`1,5,10,25`: whole numbers of at least 1, each larger than the one before."""
    parts = word.split(",")
    numbers = tuple(int(part) for part in parts if part.isascii() and part.isdigit())
    if len(numbers) != len(parts) or numbers != tuple(sorted(set(numbers))) or numbers[0] < 1:
        raise ValueError(f"{word!r} is no list of growing whole numbers from 1 on, as 1,5,10,25")
    return numbers


def times(word: str) -> int:
    """A whole number of at least 1."""
    if not word.isascii() or not word.isdigit() or int(word) < 1:
        raise ValueError(f"{word!r} is no whole number of at least 1")
    return int(word)


Counts = Annotated[tuple[int, ...], one("N,...", counts)]
SomeCounts = Annotated[Union[None, tuple[int, ...]], one("N,...", counts)]  # noqa: UP007, RUF036 (None first, as in vitlab.cli.parse)
Times = Annotated[int, one("N", times)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferOptions(Opening):
    """What is to be learned from the checkpoint's features, in place of evaluating its own head."""

    fewshot: bool = False
    """learn from a few images a class by least squares, as in the paper's few-shot accuracies"""

    knn: bool = False
    """classify by the nearest training images"""

    probe: bool = False
    """fit a linear classifier to convergence, its regularisation chosen on held-out images"""

    vtab: Annotated[File, unset("not asked for")] = None
    """folder of VTAB's data sets: the 19 tasks from 1,000 images each (in place of DATA)"""

    shots: Annotated[Counts, unset("1,5,10,25")] = FewShotConfig().shots
    """few-shot: images of each class"""

    seeds: Times = 3
    """few-shot: how many times images are drawn"""

    neighbours: Annotated[SomeCounts, unset("1,5,10,20,100, as far as there are images")] = None
    """k-NN: how many of the nearest"""

    vtab_test: Annotated[Count, unset("all of them")] = None
    """VTAB: judge each task by so many test images only"""

    vtab_splits: Annotated[File, unset("FOLDER/vtab-splits.json, if it is there")] = None
    """VTAB: JSON file of the images of each part"""

    no_cache: bool = False
    """make all features anew and keep none"""

    @property
    def learns(self) -> bool:
        """Whether features are to be learned from, in place of evaluating the head."""
        return self.fewshot or self.knn or self.probe or self.vtab is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """What the evaluation itself takes: the images and how they are read."""

    data: str | None
    split: Split | None
    label_column: str | None
    config: EvaluateConfig
    json: bool


def run_transfer(arguments: TransferOptions, judging: Judging) -> None:
    """Learn what is asked for, and print what it reached."""
    if arguments.vtab is not None:
        from vitlab.cli.vtab import run_vtab

        run_vtab(arguments, judging)
        return
    if judging.data is None:
        raise UsageError("missing DATA", hint="vitlab evaluate CHECKPOINT DATA --fewshot")
    from vitlab.evaluation.frozen import FrozenConfig, evaluate_frozen, open_train_test

    checkpoint = arguments.open()
    splits = open_train_test(judging.data, judging.split, checkpoint, label_column=judging.label_column)
    several = arguments.neighbours or tuple(k for k in KnnConfig().k if k <= len(splits.train))
    methods = FrozenConfig(
        few_shot=FewShotConfig(shots=arguments.shots, seeds=tuple(range(arguments.seeds))) if arguments.fewshot else None,
        knn=KnnConfig(k=several) if arguments.knn else None,
        probe=ProbeConfig() if arguments.probe else None,
    )
    with bar() as tell:
        found = evaluate_frozen(checkpoint, splits, methods, config=judging.config, cache=not arguments.no_cache, progress=tell)
    for line in found.notes:
        note(f"note: {line}")
    for failure in found.failures:
        note(f"unreadable: {failure}")
    if judging.json:
        print_json(
            {
                "checkpoint": arguments.checkpoint,
                "data": judging.data,
                **found.to_json(),
                "preprocess": to_json(checkpoint.preprocess),
                "notes": [*checkpoint.notes, *found.notes],
            }
        )
        return
    _print(found)


def _print(found: FrozenEvaluation) -> None:
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found.seconds.items() if name == "features" or seconds > 1e-4)
    note(
        f"{found.classes:,} classes; {found.train_images:,} training images, {found.test_images:,} test images;"
        f" {found.cached:,} features cached, {found.read:,} extracted; {spent}"
    )
    print(found)
