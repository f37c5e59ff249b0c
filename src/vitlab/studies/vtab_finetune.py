"""VTAB as the paper evaluates it (app. B.1.1): a model is fine-tuned on the 1,000 images of each task; and Figure 2.

The linear probe of `vitlab.evaluation.vtab` leaves the model as it is. Here each task is a training run of its own, in a folder of
its own: 2,500 steps with one setting for all tasks. A finished run is not repeated and an interrupted one resumes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitlab.checkpoints import load
from vitlab.config.evaluation import EvaluateConfig, VtabConfig
from vitlab.config.overrides import DataFacts, Overrides, StartFacts
from vitlab.config.run import RunConfig
from vitlab.config.serialize import Json
from vitlab.data.dataset import ImageDataset
from vitlab.data.split import TEST, TRAIN
from vitlab.errors import TrainingError
from vitlab.evaluation.classification import Classification
from vitlab.evaluation.evaluation import evaluate
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.evaluation.vtab import PAPER_COLUMNS, Entries, Vtab, VtabTaskResult, chosen_splits, open_task
from vitlab.interpretation.drawing import DotRow, Panel, Style, draw_dots, form_of
from vitlab.io.atomic import write_text
from vitlab.io.files import read_bytes
from vitlab.io.progress import ProgressCallback
from vitlab.recipes.table import recipe
from vitlab.studies.runner import Counts, counts_of
from vitlab.studies.study import Notify, stop, stoppable
from vitlab.training import train
from vitlab.training.control import Control
from vitlab.training.events import Finished, Stepped
from vitlab.training.run_folder import RunDirectory

_RECIPE = "finetune-vtab"


def finetune_vtab(
    found: Vtab,
    start: StartFacts,
    root: Path,
    out: Path,
    overrides: Overrides,
    config: VtabConfig,
    *,
    splits: Path | None,
    reading: EvaluateConfig,
    notify: Notify,
    progress: ProgressCallback,
) -> Vtab:
    """The tasks that were evaluated by the probe, with the accuracy of `start` fine-tuned on each; runs are in `out/TASK`."""
    chosen, control, tuned = chosen_splits(root, splits), Control(), list[VtabTaskResult]()
    with stoppable(control):
        for result in found.results:
            counts = _finetuned(result, start, out, overrides, config, chosen.get(result.task.name), reading, control, progress)
            if counts is None:
                notify("stopped: finished runs and checkpoints are kept; run the same command to resume")
                stop(control)
            notify(f"{result.task.name}: fine-tuned {100 * counts.accuracy:.2f} % on {counts.total:,} test images")
            tuned.append(replace(result, finetuned=counts.accuracy))
    return replace(found, results=tuple(tuned))


def _finetuned(
    result: VtabTaskResult,
    start: StartFacts,
    out: Path,
    overrides: Overrides,
    config: VtabConfig,
    chosen: Mapping[str, Entries] | None,
    reading: EvaluateConfig,
    control: Control,
    progress: ProgressCallback,
) -> Counts | None:
    """Correct test images of one task after fine-tuning; None if the run was stopped."""
    task, folder = result.task, out / result.task.name.lower()
    whole, divided = open_task(task, result.place, chosen, config)
    trained = np.concatenate([divided.train, divided.val])
    run = _run(result, start, overrides, len(trained))
    known = _known(run, folder, len(divided.test))
    if known is not None:
        return known
    indices = np.concatenate([trained, divided.test])
    codes = np.repeat(np.array([TRAIN, TEST], np.int8), [len(trained), len(divided.test)])
    for event in train(run, out=folder, dataset=replace(whole.take(indices), splits=codes), control=control):
        if isinstance(event, Stepped):
            progress(f"{task.name}, fine-tuning", event.step, run.train.steps)
        if isinstance(event, Finished) and event.model is None:
            return None
    counts = _tested(folder, whole.take(divided.test), reading)
    write_text(folder / "result.json", json.dumps({"test": {"correct": counts.correct, "total": counts.total}}))
    return counts


def _run(result: VtabTaskResult, start: StartFacts, overrides: Overrides, images: int) -> RunConfig:
    """The paper's setting, on all training images and without a look at the test images."""
    data = DataFacts(dataset=f"vtab:{result.task.name}", images=images, classes=result.task.classes, splits=("train", "test"))
    run = recipe(_RECIPE, overrides, data=data, start=start)
    return replace(run, data=replace(run.data, train_split="train", evaluate_split=None, rule=replace(run.data.rule, val=0.0)))


def _known(run: RunConfig, folder: Path, total: int) -> Counts | None:
    """The result of a finished run of the same settings on as many test images."""
    path = folder / "result.json"
    if not path.exists() or RunDirectory(folder).config() != run:
        return None
    try:
        found: dict[str, Json] = json.loads(read_bytes(path, error=TrainingError))
        counts = counts_of(found, "test")
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # damaged: evaluated again
    return counts if counts.total == total else None


def _tested(folder: Path, dataset: ImageDataset, reading: EvaluateConfig) -> Counts:
    checkpoint = load(folder / "model.safetensors")
    targets = match_by_name(dataset.labels, checkpoint.labels, classes=checkpoint.config.num_classes)
    result = evaluate(checkpoint, dataset, targets, config=replace(reading, resamples=0)).result
    assert isinstance(result, Classification)
    return Counts(correct=result.top1.correct, total=result.top1.total)


def draw_vtab(found: Vtab, path: Path) -> bytes:
    """Figure 2: the means of the groups of tasks, of this model and of the paper's over the same tasks."""
    rows, values = list[DotRow](), list[float | None]()
    for mean in found.means():
        if mean.accuracy is None or mean.paper is None:
            continue
        part = "" if mean.complete else f" ({mean.found} of {mean.total} tasks)"
        shown = {"here, linear probe": 100 * mean.accuracy}
        if mean.finetuned is not None:
            shown["here, fine-tuned"] = 100 * mean.finetuned
        shown |= dict(zip(PAPER_COLUMNS, mean.paper, strict=True))
        for place, (name, value) in enumerate(shown.items()):
            rows.append(DotRow(name=f"{mean.name}{part}: {name}" if place == 0 else name, group=place))
            values.append(value)
    return draw_dots(rows, [Panel(axis="mean accuracy, %", title="VTAB-1k by group", values=values)], Style(form=form_of(path)))
