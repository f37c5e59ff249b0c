"""`vitlab evaluate ... --fewshot --knn --probe`: what features are worth on other images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Union

from vitlab.cli.opening import File, Opening
from vitlab.cli.parse import Count, one, unset
from vitlab.cli.progress import bar
from vitlab.cli.table import print_json, print_rows
from vitlab.cli.talk import UsageError, note
from vitlab.config.data import Split
from vitlab.config.evaluation import EvaluateConfig, FewShotConfig, NeighboursConfig, ProbeConfig
from vitlab.config.serialize import Json, to_json

if TYPE_CHECKING:
    from vitlab.checkpoints import Checkpoint
    from vitlab.evaluation.frozen import Transfer
    from vitlab.evaluation.probe import Probe


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
    from vitlab.evaluation.frozen import Asked, open_pair, transfer

    checkpoint = arguments.open()
    pair = open_pair(judging.data, judging.split, checkpoint, label_column=judging.label_column)
    several = arguments.neighbours or tuple(k for k in NeighboursConfig().k if k <= len(pair.learn))
    asked = Asked(
        fewshot=FewShotConfig(shots=arguments.shots, seeds=tuple(range(arguments.seeds))) if arguments.fewshot else None,
        knn=NeighboursConfig(k=several) if arguments.knn else None,
        probe=ProbeConfig() if arguments.probe else None,
    )
    with bar() as tell:
        found = transfer(checkpoint, pair, asked, config=judging.config, cache=not arguments.no_cache, tell=tell)
    for line in found.notes:
        note(f"note: {line}")
    for failure in found.failures:
        note(f"unreadable: {failure}")
    if judging.json:
        print_json(_json(arguments, judging.data, checkpoint, found))
        return
    _print(found)


def _print(found: Transfer) -> None:
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found.seconds.items() if name == "features" or seconds > 1e-4)
    note(
        f"{found.classes:,} classes; {found.learned:,} images to learn from, {found.judged:,} to judge by;"
        f" {found.recalled:,} features known, {found.read:,} made; {spent}"
    )
    print_rows(list(_rows(found)), json=False)


def _rows(found: Transfer) -> Sequence[dict[str, Json]]:
    rows: list[dict[str, Json]] = [
        {
            "method": f"{shot.shots}-shot",
            "accuracy": percent(shot.mean),
            "deviation": f"{100 * shot.deviation:.2f}",
            "each": " ".join(f"{100 * value:.2f}" for value in shot.accuracies),
        }
        for shot in found.fewshot
    ]
    rows += [
        {"method": f"{near.k}-NN", "accuracy": percent(near.accuracy), "deviation": None, "each": f"{near.right:,} of {near.of:,}"}
        for near in found.knn
    ]
    if found.probe is not None:
        rule = found.probe.rule
        how = "converged" if rule.converged else "NOT converged"
        told = f"{found.probe.right:,} of {found.probe.of:,}; l2 {rule.l2:.3g}, {how} (gradient {rule.slope:.1e})"
        rows.append({"method": "linear probe", "accuracy": percent(found.probe.accuracy), "deviation": None, "each": told})
    return rows


def percent(value: float) -> str:
    """A share as it is printed."""
    return f"{100 * value:.2f} %"


def _json(arguments: TransferOptions, data: str, checkpoint: Checkpoint, found: Transfer) -> dict[str, Json]:
    return {
        "checkpoint": arguments.checkpoint,
        "data": data,
        "classes": found.classes,
        "learned_from": found.learned,
        "judged_by": found.judged,
        "unreadable": [{"name": failure.name, "reason": failure.reason} for failure in found.failures],
        "features_made": found.read,
        "features_known": found.recalled,
        "fewshot": [
            {
                "shots": shot.shots,
                "accuracy": shot.mean,
                "deviation": shot.deviation,
                "accuracies": list(shot.accuracies),
                "classes_with_fewer": list(shot.short),
            }
            for shot in found.fewshot
        ],
        "knn": [{"k": near.k, "accuracy": near.accuracy, "right": near.right, "of": near.of} for near in found.knn],
        "probe": None if found.probe is None else probe_json(found.probe),
        "seconds": dict(found.seconds),
        "preprocess": to_json(checkpoint.preprocess),
        "notes": [*checkpoint.notes, *found.notes],
    }


def probe_json(fitted: Probe) -> dict[str, Json]:
    """All of a probe but its weights."""
    rule = fitted.rule
    return {
        "accuracy": fitted.accuracy,
        "right": fitted.right,
        "of": fitted.of,
        "l2": rule.l2,
        "converged": rule.converged,
        "gradient": rule.slope,
        "steps": rule.steps,
        "tried": [{"l2": l2, "held_out_accuracy": accuracy} for l2, accuracy in fitted.tried],
    }
