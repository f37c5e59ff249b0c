"""Fine-tuning on few images: with and without pre-training, by the number of labels; and the tasks of VTAB (Figure 2)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from vitlab.checkpoints import load
from vitlab.config.evaluation import EvaluateConfig, VtabConfig
from vitlab.config.overrides import DataFacts, Overrides, StartFacts
from vitlab.config.run import RunConfig
from vitlab.config.serialize import Json
from vitlab.config.train import Optimizer
from vitlab.data.dataset import ImageDataset
from vitlab.data.split import TEST, TRAIN
from vitlab.errors import ConfigError, TrainingError, at_least
from vitlab.evaluation.classification import Classification
from vitlab.evaluation.evaluation import evaluate
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.evaluation.vtab import PAPER_COLUMNS, Entries, Vtab, VtabTaskResult, chosen_splits, open_task
from vitlab.interpretation.drawing import Axis, DotRow, Line, Panel, Style, draw_dots, draw_lines, form_of
from vitlab.io.atomic import write_text
from vitlab.io.display import ProgressCallback, silent
from vitlab.io.files import read_bytes
from vitlab.recipes.table import recipe
from vitlab.studies.fits import difference, percent
from vitlab.studies.protocol import (
    LEARNING_RATES,
    MODELS,
    SHOTS,
    StudyImages,
    StudyPlan,
    accuracy_of,
    few,
    few_shot_of,
    finetuned_job,
    finetuning,
    prepare,
    pretrained_job,
    pretraining,
)
from vitlab.studies.study import Counts, Job, Notify, Results, Study, Verdict, counts_of, stop, stoppable
from vitlab.training import train
from vitlab.training.events import Control, Finished, Stepped
from vitlab.training.run_folder import RunDirectory

# --- few labels ---------------------------------------------------------------------------------------------------------------
# What pre-training gains: model families with and without it, by the number of labels to fine-tune on.
#
# Each family is pre-trained once for each seed. Then it is fine-tuned from there, and trained from scratch, on a few images of each
# class. `scaling` varies the images of pre-training instead, as the paper's Figures 3 and 4 do.


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Test accuracy, 0 to 1, by the number of labels of each class: a number for each seed."""

    family: str
    pretrained: bool
    shots: tuple[int, ...]
    accuracy: tuple[tuple[float, ...], ...]


def transfer(out: Path, plan: StudyPlan, *, shots: tuple[int, ...], progress: ProgressCallback = silent) -> Study:
    """The study: pre-training of each family and seed, then fine-tuning and training from scratch for each number of labels."""
    if not shots:
        raise ConfigError("shots: at least one number of labels is needed")
    for count in shots:
        at_least("shots", count, 1)
    images = prepare(out, plan.images, progress=progress)
    results = yield tuple(
        job for seed in range(plan.seeds) for family in MODELS for job in _transfer_jobs(out, plan, images, family, shots, seed)
    )
    return _transfer_verdict(plan, images, shots, results)


def _transfer_jobs(out: Path, plan: StudyPlan, images: StudyImages, family: str, shots: tuple[int, ...], seed: int) -> list[Job]:
    model, lr = next(iter(MODELS[family].values())), LEARNING_RATES[family]
    run = pretraining(model, images.pretrain, seen=plan.seen, seed=seed, lr=lr)
    first = pretrained_job(f"{family}-{seed}", f"{family}: pre-train, seed {seed}", run, out, images.transfer)
    made = [first]
    for count in shots:
        data = few(images, shots=count, seed=seed)
        for pretrained in (True, False):
            title = f"{family}, {'pre-trained' if pretrained else 'from scratch'}, {count} labels a class, seed {seed}"
            tuned = finetuning(
                model, data, steps=plan.steps, seed=seed, start=first.out if pretrained else None, optimizer=Optimizer(lr=lr)
            )
            after = (first.name,) if pretrained else ()
            made.append(finetuned_job(_transfer_name(family, pretrained, count, seed), title, tuned, out, after=after))
    return made


def _transfer_name(family: str, pretrained: bool, shots: int, seed: int) -> str:
    """The name of a fine-tuning run, which is its folder."""
    return f"{family}-{'pretrained' if pretrained else 'scratch'}-{shots}-{seed}"


def _transfer_verdict(plan: StudyPlan, images: StudyImages, shots: tuple[int, ...], results: Results) -> Verdict:
    seeds = range(plan.seeds)
    curves = [
        Curve(
            family=family,
            pretrained=pretrained,
            shots=shots,
            accuracy=tuple(
                tuple(accuracy_of(results[_transfer_name(family, pretrained, count, seed)], "test") for seed in seeds)
                for count in shots
            ),
        )
        for family in MODELS
        for pretrained in (True, False)
    ]
    linear = {family: [few_shot_of(results[f"{family}-{seed}"]) for seed in seeds] for family in MODELS}
    rows = [
        {
            "family": curve.family,
            "starts from": "pre-training" if curve.pretrained else "scratch",
            **{f"{count} labels": percent(values) for count, values in zip(curve.shots, curve.accuracy, strict=True)},
            f"{SHOTS}-shot, frozen": percent(linear[curve.family]) if curve.pretrained else "-",
        }
        for curve in curves
    ]
    data: list[Json] = [
        {
            "family": curve.family,
            "pretrained": curve.pretrained,
            "shots": list(curve.shots),
            "accuracy": [list(values) for values in curve.accuracy],
            "few_shot": list(linear[curve.family]) if curve.pretrained else None,
        }
        for curve in curves
    ]
    total = counts_of(results[_transfer_name(next(iter(MODELS)), True, shots[0], 0)], "test").total
    gains = [
        f"{pair[0].family} {difference(pair[0].accuracy[0], pair[1].accuracy[0], total=total).text()}"
        for pair in zip(curves[::2], curves[1::2], strict=True)
    ]
    sentence = f"with {shots[0]} labels a class, pre-training gains, in points: {', '.join(gains)}"
    return Verdict(rows=[rows], data=data, sentences=(*images.notes, sentence), plots={"transfer.png": draw_curves(curves)})


def draw_curves(curves: Sequence[Curve]) -> bytes:
    """Accuracy by the number of labels of each class: one colour for each family, dashed from scratch."""
    families = list(dict.fromkeys(curve.family for curve in curves))
    lines = [
        Line(
            name=f"{curve.family}{', pre-trained' if curve.pretrained else ''}",
            x=curve.shots,
            y=[100 * fmean(values) for values in curve.accuracy],
            spread=[(100 * min(values), 100 * max(values)) for values in curve.accuracy] if len(curve.accuracy[0]) > 1 else None,
            dashed=not curve.pretrained,
            like=families.index(curve.family),
        )
        for curve in curves
    ]
    at = sorted({shots for curve in curves for shots in curve.shots})
    x = Axis(name="labels of each class", log=True, at=at)
    return draw_lines(lines, x, Axis(name="test accuracy, %"), Style(), title="Few labels, by family")


# --- VTAB ---------------------------------------------------------------------------------------------------------------------
# VTAB as the paper evaluates it (app. B.1.1): a model is fine-tuned on the 1,000 images of each task; and Figure 2.
#
# The linear probe of `vitlab.evaluation.vtab` leaves the model as it is. Here each task is a training run of its own, in a folder
# of its own: 2,500 steps with one setting for all tasks. A finished run is not repeated and an interrupted one resumes.

_VTAB_RECIPE = "finetune-vtab"


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
            counts = _finetuned_task(
                result, start, out, overrides, config, chosen.get(result.task.name), reading, control, progress
            )
            if counts is None:
                notify("stopped: finished runs and checkpoints are kept; run the same command to resume")
                stop(control)
            notify(f"{result.task.name}: fine-tuned {100 * counts.accuracy:.2f} % on {counts.total:,} test images")
            tuned.append(replace(result, finetuned=counts.accuracy))
    return replace(found, results=tuple(tuned))


def _finetuned_task(
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
    run = _vtab_run(result, start, overrides, len(trained))
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


def _vtab_run(result: VtabTaskResult, start: StartFacts, overrides: Overrides, images: int) -> RunConfig:
    """The paper's setting, on all training images and without a look at the test images."""
    data = DataFacts(dataset=f"vtab:{result.task.name}", images=images, classes=result.task.classes, splits=("train", "test"))
    run = recipe(_VTAB_RECIPE, overrides, data=data, start=start)
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
