"""`vitlab evaluate CHECKPOINT --vtab FOLDER`: the 19 tasks beside the paper's Table 9."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitlab.cli.progress import bar
from vitlab.cli.table import print_json, print_rows
from vitlab.cli.talk import UsageError, note
from vitlab.cli.transfer import Judging, TransferOptions, percent, probe_json
from vitlab.config.evaluation import VtabConfig
from vitlab.config.serialize import Json, to_json

if TYPE_CHECKING:
    from vitlab.checkpoints import Checkpoint
    from vitlab.evaluation.vtab import Mean, Vtab

PROTOCOL = (
    "a linear probe on frozen features from 800 + 200 images of each task; the paper's Table 9 is of models fine-tuned on them"
)


def run_vtab(arguments: TransferOptions, judging: Judging) -> None:
    """Do the tasks whose data is there, and print what was reached, what is missing and what the paper has."""
    if judging.data is not None:
        raise UsageError("--vtab FOLDER is in place of DATA", hint="vitlab evaluate CHECKPOINT --vtab FOLDER")
    for option, given in (
        ("--fewshot", arguments.fewshot),
        ("--knn", arguments.knn),
        ("--probe", arguments.probe),
        ("--split", judging.split is not None),
        ("--label-column", judging.label_column is not None),
    ):
        if given:
            raise UsageError(f"{option} is for DATA, and --vtab has a protocol of its own")
    from pathlib import Path

    from vitlab.evaluation.vtab import as_vtab_sees, vtab

    assert arguments.vtab is not None
    config = VtabConfig(test=arguments.vtab_test)
    checkpoint = arguments.open()
    if arguments.resize is None:
        checkpoint = as_vtab_sees(checkpoint)
    with bar() as tell:
        found = vtab(
            checkpoint,
            Path(arguments.vtab),
            config,
            splits=None if arguments.vtab_splits is None else Path(arguments.vtab_splits),
            reading=judging.config,
            cache=not arguments.no_cache,
            tell=tell,
        )
    if judging.json:
        print_json(_json(arguments, checkpoint, found))
        return
    _say(found, config)
    print_rows([*_task_rows(found), *_mean_rows(found)], json=False)


def _say(found: Vtab, config: VtabConfig) -> None:
    """What has to be known to read the table."""
    from vitlab.evaluation.vtab import TASKS

    note(f"note: {PROTOCOL}")
    if any(result.how.startswith("by") for result in found.results):
        note("note: 'by the hash of content' is one choice everywhere, but not the published one: give lists or vtab-splits.json")
    if config.test is not None:
        note(f"note: judged by at most {config.test:,} test images of each task, not by all")
    for result in found.results:
        for line in result.notes:
            note(f"note: {result.task.name}: {line}")
        for failure in result.failures:
            note(f"unreadable: {result.task.name}: {failure}")
        if not result.probe.rule.converged:
            note(f"note: {result.task.name}: the probe has not converged (gradient {result.probe.rule.slope:.1e})")
    for task, why in found.failed:
        note(f"failed: {task.name}: {why}")
    if found.missing:
        note(f"missing: {', '.join(task.name for task, _ in found.missing)} ({len(found.missing)} of {len(TASKS)} tasks)")


def _task_rows(found: Vtab) -> list[dict[str, Json]]:
    """A row for each of the 19, done or not."""
    from vitlab.evaluation.vtab import PAPER_COLUMNS, TASKS

    done = {result.task.name: result for result in found.results}
    failed = {task.name for task, _ in found.failed}
    rows: list[dict[str, Json]] = []
    for task in TASKS:
        result = done.get(task.name)
        paper: dict[str, Json] = {name: f"{value:.1f}" for name, value in zip(PAPER_COLUMNS, task.paper, strict=True)}
        how = "failed" if task.name in failed else "missing" if result is None else result.how
        rows.append(
            {
                "task": task.name,
                "group": task.group,
                "accuracy": "-" if result is None else percent(result.accuracy),
                **paper,
                "test": "-" if result is None else f"{result.counts[2]:,}",
                "images_chosen": how,
            }
        )
    return rows


def _mean_rows(found: Vtab) -> list[dict[str, Json]]:
    from vitlab.evaluation.vtab import PAPER_COLUMNS

    rows: list[dict[str, Json]] = []
    for mean in found.means():
        paper = mean.paper or (None,) * len(PAPER_COLUMNS)
        rows.append(
            {
                "task": "mean",
                "group": mean.name,
                "accuracy": "-" if mean.accuracy is None else percent(mean.accuracy),
                **{name: "-" if value is None else f"{value:.1f}" for name, value in zip(PAPER_COLUMNS, paper, strict=True)},
                "test": "",
                "images_chosen": f"all {mean.of} tasks" if mean.complete else f"PARTIAL: {mean.found} of {mean.of} tasks",
            }
        )
    return rows


def _json(arguments: TransferOptions, checkpoint: Checkpoint, found: Vtab) -> dict[str, Json]:
    from vitlab.evaluation.vtab import PAPER_COLUMNS

    tasks: list[Json] = [
        {
            "task": result.task.name,
            "group": result.task.group,
            "place": str(result.place),
            "images_chosen": result.how,
            "train": result.counts[0],
            "val": result.counts[1],
            "test": result.counts[2],
            "paper": dict(zip(PAPER_COLUMNS, result.task.paper, strict=True)),
            "unreadable": [{"name": failure.name, "reason": failure.reason} for failure in result.failures],
            "notes": list(result.notes),
            **probe_json(result.probe),
        }
        for result in found.results
    ]
    return {
        "checkpoint": arguments.checkpoint,
        "vtab": arguments.vtab,
        "protocol": PROTOCOL,
        "tasks": tasks,
        "missing": [{"task": task.name, "group": task.group, "why": why} for task, why in found.missing],
        "failed": [{"task": task.name, "group": task.group, "why": why} for task, why in found.failed],
        "means": [_mean_json(mean) for mean in found.means()],
        "preprocess": to_json(checkpoint.preprocess),
        "notes": list(checkpoint.notes),
    }


def _mean_json(mean: Mean) -> dict[str, Json]:
    """`complete` says whether this is the benchmark's mean; `paper` is over the same tasks."""
    from vitlab.evaluation.vtab import PAPER_COLUMNS

    return {
        "group": mean.name,
        "complete": mean.complete,
        "tasks": mean.found,
        "of": mean.of,
        "accuracy": mean.accuracy,
        "paper": None if mean.paper is None else dict(zip(PAPER_COLUMNS, mean.paper, strict=True)),
    }
