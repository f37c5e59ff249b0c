"""Runs the studies of `vitlab study ...` and `vitlab quickstart` to their end and returns their results as tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from vitlab.config.model import ModelConfig, variant
from vitlab.config.serialize import to_json
from vitlab.errors import ConfigError, DataError
from vitlab.io.display import Facts, Table
from vitlab.io.progress import ProgressCallback
from vitlab.studies.compare import (
    ComparedModel,
    SpeedRatio,
    compared_models,
    draw_compared,
    measure_memory,
    measure_speed,
    speed_ratios,
)
from vitlab.studies.config import NoisyStudent
from vitlab.studies.noisy_student import Chosen, Labelling, Score, Scored, StageStarted, Stopped, noisy_student, scores
from vitlab.studies.quickstart import (
    BUDGETS,
    SHOTS,
    Outcome,
    QuickstartRow,
    few_cell,
    quickstart,
    write_quickstart_explorer,
    write_quickstart_report,
)
from vitlab.studies.runner import Done, JobProgress
from vitlab.studies.study import Notify, accuracy_text, stop, stoppable
from vitlab.training.control import Control

T = TypeVar("T")

# "Transformers or CNNs?": the two families at both sizes.
_COMPARED = ("Swin-T", "ConvNeXt-T", "Swin-S", "ConvNeXt-S", "Swin-B", "ConvNeXt-B", "Swin-L", "ConvNeXt-L", "ConvNeXt-XL")
_SIZES = ((224, 224), (384, 384))


def run_quickstart(out: Path, budget: str, progress: ProgressCallback, notify: Notify) -> Facts:
    """All runs of the quickstart, its table, and its report."""
    outcome = _finished(lambda control: quickstart(out, budget=BUDGETS[budget], control=control), Outcome, progress, notify)
    explorer = write_quickstart_explorer(outcome, out / "explorer.html", progress=progress)
    written = write_quickstart_report(outcome, out / "report.html", explorer=explorer.path, progress=progress)
    rows = [{"": row.name, f"accuracy with {SHOTS} labels a digit": few_cell(row)} for row in outcome.rows]
    model = str(outcome.pretrained / "model.safetensors")
    notify("note: report and explorer open in any browser; docs/guides/first-steps.md continues from here with your own images")
    return Facts(
        {
            "rows": [_quickstart_row(row) for row in outcome.rows],
            "gain_few": outcome.gain_few,
            "gain_all": outcome.gain_all,
            "letters": outcome.letters,
            "report": str(written.path),
            "explorer": str(explorer.path),
            "model": model,
            "pretrained": str(outcome.pretraining / "model.safetensors"),
        },
        shown=[rows, {"report": str(written.path), "explorer": str(explorer.path), "model": model}],
    )


def _quickstart_row(row: QuickstartRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "few": list(row.few),
        "few_mean": row.few_mean,
        "few_deviation": row.few_deviation,
        "all": row.all,
        "fitted": row.fitted,
    }


def run_noisy_student(
    study: NoisyStudent, out: Path, *, workers: int | None, quiet: bool, notify: Notify, progress: ProgressCallback
) -> Table:
    """Teacher and students one after another, and what each reached."""
    from vitlab.training.callbacks import console_callback
    from vitlab.training.distributed import is_main_process

    control = Control()
    display = None if quiet or not is_main_process() else console_callback(sys.stderr)
    try:
        with stoppable(control):
            for event in noisy_student(study, out=out, workers=workers, control=control):
                match event:
                    case StageStarted():
                        where = f"round {event.round} of {event.of}" if event.round else "before round 1"
                        notify(f"{where}: {event.what}")
                    case Labelling():
                        progress("labelling", event.done, event.of)
                    case Chosen():
                        notify(_chosen(event))
                    case Scored():
                        who = f"student {event.score.round}" if event.score.round else "teacher"
                        notify(f"{who}: accuracy {100 * event.score.top1:.2f} % on {event.score.images:,} images")
                    case Stopped():
                        notify(f"{event.reason}: run the same command to resume")
                        stop(control)
                    case _ if display is not None:
                        display.on_event(event)
    finally:
        if display is not None:
            display.close()
    found = scores(out)[: study.noisy.rounds + 1]
    data = {"study": to_json(study), "out": str(out), "results": [to_json(score) for score in found]}
    return Table([_score_row(score) for score in found], data=data)


def _chosen(event: Chosen) -> str:
    broken = f", {event.unreadable:,} could not be read" if event.unreadable else ""
    correct = "" if event.accuracy is None else f"; {100 * event.accuracy:.1f} % of their labels are correct"
    return (
        f"round {event.round}: {event.taken:,} of {event.asked:,} images used, in {event.classes:,} of {event.of_classes:,}"
        f" classes{broken}{correct}; each labelled image is repeated {event.times} times"
    )


def _score_row(score: Score) -> dict[str, Any]:
    low, high = score.interval or (float("nan"), float("nan"))
    return {
        "model": "teacher" if score.round == 0 else f"student {score.round}",
        "size": score.model,
        "labelled": score.labelled,
        "pseudo-labelled": score.pseudo,
        "of them correct": None if score.pseudo_accuracy is None else f"{100 * score.pseudo_accuracy:.1f} %",
        f"top-1 ({score.split})": f"{100 * score.top1:.2f} %",
        "95 %": f"{100 * low:.1f} to {100 * high:.1f}",
        "loss": round(score.loss, 4),
        "calibration error": f"{100 * score.calibration_error:.1f} %",
    }


def _finished(events: Callable[[Control], Iterator[Any]], wanted: type[T], progress: ProgressCallback, notify: Notify) -> T:
    """The last event of a study of runs side by side; their progress is reported on the way."""
    control, result = Control(), None
    with stoppable(control):
        for event in events(control):
            if isinstance(event, JobProgress):
                progress(event.title, event.step, event.steps)
            elif isinstance(event, Done):
                progress(event.title, event.steps, event.steps)
                notify(f"{event.title}: {'done before' if event.before else 'done'}{accuracy_text(event)}")
            else:
                result = event
    if result is None:
        notify("stopped: finished runs and checkpoints are kept; run the same command to resume")
        stop(control)
    assert isinstance(result, wanted)
    return result


def _draw(path: Path, image: bytes, notify: Notify) -> None:
    path.write_bytes(image)
    notify(f"plot: {path}")


def compare_models(
    models: tuple[str, ...],
    *,
    sizes: tuple[tuple[int, int], ...] | None,
    speed: bool,
    batch_size: int,
    rounds: int,
    checkpoints: tuple[str, ...] | None,
    data: str | None,
    plot: Path | None,
    notify: Notify,
    progress: ProgressCallback,
) -> Table:
    """One row a model and image size; checkpoints are evaluated on the data."""
    configs = [] if not models and checkpoints is not None else _configs(models, sizes, notify)
    rows = compared_models(configs) if configs else []
    if checkpoints is not None and data is not None:
        rows += _evaluated(checkpoints, data, notify, progress)
    if speed:
        found = measure_speed([row.config for row in rows], batch=batch_size, rounds=rounds, progress=progress)
        taken = measure_memory([row.config for row in rows], progress=progress)
        rows = [replace(row, speed=measured, peak=peak) for row, measured, peak in zip(rows, found, taken, strict=True)]
    pairs = speed_ratios(rows)
    _explain(rows, pairs, notify)
    if plot is not None:
        _draw(plot, draw_compared(rows, plot), notify)
    numbers = {"models": [_compared_json(row) for row in rows], "against": [_against_json(pair) for pair in pairs]}
    return Table([_compared_row(row, measured=checkpoints is not None) for row in rows], data=numbers)


def _configs(models: tuple[str, ...], sizes: tuple[tuple[int, int], ...] | None, notify: Notify) -> list[ModelConfig]:
    found = list[ModelConfig]()
    for size in sizes or ((None,) if models else _SIZES):
        for name in models or _COMPARED:
            try:
                found.append(variant(name, image_size=size))
            except ConfigError as error:
                if size is None or "multiple of the patch" not in error.message:
                    raise
                notify(f"left out: {name} at {size[0]}x{size[1]}: {error.message}")
    return found


def _evaluated(paths: Sequence[str], data: str, notify: Notify, progress: ProgressCallback) -> list[ComparedModel]:
    """Checkpoints as rows, their accuracy measured on every image of the data."""
    from vitlab.checkpoints import load
    from vitlab.evaluation.classification import Classification
    from vitlab.evaluation.evaluation import evaluate, open_split
    from vitlab.evaluation.label_mapping import match_by_name

    rows = []
    for path in paths:
        checkpoint = load(path)
        dataset, notes = open_split(data, None, checkpoint)
        for line in notes:
            notify(f"note: {line}")
        targets = match_by_name(dataset.labels, checkpoint.labels, classes=checkpoint.config.num_classes, subset=True)
        result = evaluate(checkpoint, dataset, targets, progress=progress).result
        if not isinstance(result, Classification):
            raise DataError(f"{data}: models are compared on images of one class each")
        row = compared_models([checkpoint.config])[0]
        rows.append(replace(row, name=f"{path} ({row.name})", published=(), measured=100 * result.top1.value))
    return rows


def _compared_row(row: ComparedModel, *, measured: bool) -> dict[str, Any]:
    height, width = row.image_size
    shown: dict[str, Any] = {
        "model": row.name,
        "pixels": f"{height}" if height == width else f"{height}x{width}",
        "parameters": f"{row.cost.parameters / 1e6:.2f} M",
        "GMACs": f"{row.gmacs:.1f}" if row.gmacs >= 1 else f"{row.gmacs:.2f}",
        "activations": f"{row.cost.activations / 1e6:.1f} M",
        "memory": f"{row.memory / 1e6:,.0f} MB",
    }
    if row.peak is not None:
        shown["measured"] = "-" if row.peak.bytes is None else f"{row.peak.bytes / 1e6:,.0f} MB"
    if row.speed is not None:
        shown["images/s"] = f"{row.speed.median:.1f} ({row.speed.low:.1f} to {row.speed.high:.1f})"
    if measured:
        shown["measured top-1"] = "-" if row.measured is None else f"{row.measured:.2f} %"
    shown["published top-1, trained on"] = "; ".join(f"{quoted.top1:g} % {quoted.trained_on}" for quoted in row.published) or "-"
    return shown


def _compared_json(row: ComparedModel) -> dict[str, Any]:
    measured = row.speed
    return {
        "model": row.name,
        "variant": row.config.name,
        "image_size": list(row.image_size),
        "parameters": row.cost.parameters,
        "macs": row.cost.macs,
        "activations": row.cost.activations,
        "memory_bytes": row.memory,
        "measured_memory_bytes": None if row.peak is None else row.peak.bytes,
        "measured_top1": row.measured,
        "published": [
            {
                "top1": quoted.top1,
                "trained_on": quoted.trained_on,
                "source": quoted.source,
                "gmacs": quoted.gmacs,
                "images_per_sec_v100": quoted.images_per_sec,
                "images_per_sec_a100": quoted.images_per_sec_a100,
            }
            for quoted in row.published
        ],
        "images_per_sec": None
        if measured is None
        else {"median": measured.median, "low": measured.low, "high": measured.high, "batch_size": measured.batch},
    }


def _against_json(pair: SpeedRatio) -> dict[str, Any]:
    return {"first": pair.first, "second": pair.second, "here": pair.here, "published": pair.there, "sentence": pair.sentence}


def _explain(rows: Sequence[ComparedModel], pairs: Sequence[SpeedRatio], notify: Notify) -> None:
    """Sources, and how speeds relate here and where they were published."""
    for source in dict.fromkeys(quoted.source for row in rows for quoted in row.published):
        notify(f"source: {source}")
    for why in dict.fromkeys(row.peak.why for row in rows if row.peak is not None and row.peak.bytes is None):
        notify(f"note: memory is not measured: {why}")
    for pair in pairs:
        notify(f"speed: {pair.sentence}")
    if pairs:
        notify("note: speeds on a V100 GPU are those of the ConvNeXt paper, Table 1, which measured both families alike")
