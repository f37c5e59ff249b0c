"""`write_report(run folder)`: everything known about a run as one HTML file that opens from disk and asks nothing of the network.

Without JavaScript everything is there; with it, tables sort and the theme can be chosen. The page's Content-Security-Policy forbids
every request, and every script but its own. A run that segments or detects has sections of its own: IoU or AP, each class, and the
images found best and worst.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vitlab.checkpoints import load
from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import DecodeLimits, Split
from vitlab.config.model import task_of
from vitlab.config.serialize import to_text
from vitlab.data.dataset import ImageBoxes, ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError
from vitlab.evaluation.classification import Classification, MultiLabel
from vitlab.evaluation.detection import LEAST, BoxScore, DetectionEvaluation, evaluate_detection
from vitlab.evaluation.evaluation import open_split
from vitlab.evaluation.segmentation import MaskScore, SegmentationEvaluation, evaluate_segmentation
from vitlab.inference.detections import DetectedObject, Detector, draw_boxes
from vitlab.inference.segmentation import SegmentPredictor, backbone_of, draw_overlay
from vitlab.io.atomic import check_parent, write_text
from vitlab.io.display import Block, Displayed, ProgressCallback, printable, silent
from vitlab.models.cost import cost
from vitlab.reports.charts import short
from vitlab.reports.content import (
    Classes,
    ClassRow,
    Comparison,
    EmbeddedImage,
    Summary,
    calibration,
    classes,
    comparison_charts,
    cost_facts,
    curves,
    data_section,
    embedded_image,
    inside,
    mistakes,
    percent,
    reduced,
    start_name,
    summary,
)
from vitlab.reports.run import RunRecord, data_card, evaluate_run, read_run, run_cost, versions

_NAMES = {
    "summary": "Summary",
    "comparison": "Comparison",
    "curves": "Curves",
    "classes": "Classes",
    "masks": "Masks",
    "boxes": "Boxes",
    "mistakes": "Mistakes",
    "inside": "Inside",
    "calibration": "Calibration",
    "data": "Data",
    "cost": "Cost",
    "again": "Config",
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WrittenReport(Displayed):
    """A report: its path, its size in bytes, and the accuracy, mean IoU or AP50 it leads with, None where it has none.

    `address` is where it was written, if that is not on disk. `notes` say what is unusual about the run.
    """

    path: Path
    bytes: int
    accuracy: float | None
    interval: tuple[float, float] | None
    images: int
    address: str | None = None
    notes: tuple[str, ...] = ()

    def tables(self) -> Iterable[Block]:
        """Where the report is, and the accuracy it leads with."""
        return [self.to_json()]

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        interval = None if self.interval is None else list(self.interval)
        return {
            "report": self.address or str(self.path),
            "accuracy": self.accuracy,
            "interval": interval,
            "images": self.images,
            "bytes": self.bytes,
        }


def write_report(
    folder: Path,
    out: Path | None = None,
    *,
    split: Split | None = None,
    comparison: Comparison | None = None,
    title: str | None = None,
    cores: int | None = None,
    explorer: str | None = None,
    progress: ProgressCallback = silent,
) -> WrittenReport:
    """Evaluate the run in `folder` on images it was not trained on, and write the report to `out`, else `folder/report.html`.

    `split` is the split to evaluate on: test where the data has one, else val. `comparison` is a table of other runs. `cores` is
    the number of cores the run used, for its cost; by default as many as torch uses here. `explorer` is the
    address of the run's explorer, relative to the report.
    """
    path = out or folder / "report.html"
    record = read_run(folder)
    check_parent(path, DataError)
    checkpoint = load(record.model)
    evaluation, segmented, detected = None, None, None
    if task_of(checkpoint.config) == "segment":
        segmented = segmentation_report(record, checkpoint, split=split, progress=progress)
    elif task_of(checkpoint.config) == "detect":
        detected = detection_report(record, checkpoint, split=split, progress=progress)
    elif checkpoint.config.num_classes and record.run.train.masked is None:
        evaluation = evaluate_run(record, checkpoint, split=split, progress=progress)
    dense = segmented or detected
    card = data_card(record)
    endless = record.run.data.dataset.startswith("synthetic")
    cost = run_cost(
        record,
        epoch_images=None if card is None or endless else sum(card.counts) or card.splits.get("train"),
        cores=cores or torch.get_num_threads(),
    )
    with_images = evaluation is not None and evaluation.result.per_image is not None
    config = record.folder / "run.json"
    found: dict[str, object] = {
        "summary": summary(record, evaluation) if dense is None else dense.summary,
        "comparison": comparison,
        "comparison_charts": [] if comparison is None else comparison_charts(comparison),
        "curves": curves(record),
        "skipped": record.history.skipped,
        "classes": None if evaluation is None else classes(evaluation),
        "masks": None,
        "boxes": None,
        "mistakes": mistakes(evaluation, checkpoint) if evaluation is not None and with_images else None,
        "inside": inside(evaluation, backbone_of(checkpoint), progress),
        "explorer": explorer,
        "calibration": None if evaluation is None else calibration(evaluation),
        "data": None if card is None else data_section(card),
        "dataset": record.run.data.dataset,
        "cost": cost_facts(cost),
        "command": f"vitlab train {shlex.quote(str(config))} --out {shlex.quote(str(record.folder))}-again",
        "versions": versions(),
        "config_lines": json.dumps(json.loads(to_text(record.run)), indent=2).splitlines(),
    }
    if segmented is not None:
        found |= {"classes": segmented.classes, "masks": segmented.examples}
    if detected is not None:
        found |= {"classes": detected.classes, "boxes": detected.examples}
    always = ("summary", "curves", "inside", "data", "cost", "again")
    text = render(
        title=title or record.folder.name,
        subtitle=f"{record.run.model.name or 'a custom model'}, recipe {record.run.name}, {record.made}",
        sections=[(anchor, name) for anchor, name in _NAMES.items() if anchor in always or found[anchor] is not None],
        **found,
    )
    write_text(path, text)
    accuracy, interval, images = _headline(None if evaluation is None else evaluation.result.result)
    if dense is not None:
        accuracy, interval, images = dense.summary.value, dense.summary.interval, len(dense.evaluation.images)
    size = len(text.encode())
    return WrittenReport(path=path, bytes=size, accuracy=accuracy, interval=interval, images=images, notes=record.notes)


def render(**values: object) -> str:
    """The whole page. Every value is escaped, and what a browser or terminal would act on is made visible."""
    environment = Environment(
        loader=PackageLoader("vitlab.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
    )
    environment.filters["percent"] = percent
    script, style = _asset("script.js"), _asset("style.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    return environment.get_template("report.html").render(
        policy=policy,
        script=Markup(script),
        style=Markup(style),
        **values,
    )


def _asset(name: str) -> str:
    return resources.files("vitlab.reports").joinpath("templates", name).read_text(encoding="utf-8")


def _headline(result: Classification | MultiLabel | None) -> tuple[float | None, tuple[float, float] | None, int]:
    """The first number of a report, its interval, and the number of images it is over."""
    match result:
        case None:
            return None, None, 0
        case Classification():
            return result.top1.value, result.top1.interval, result.images
        case MultiLabel():
            return result.mean_average_precision, result.interval, result.images


# --- what segmentation and detection have -------------------------------------------------------------------------------------

_SHOWN = 6  # the best images, and the worst


class Scored(Protocol):
    """An image with the IoU of its pixels or objects."""

    @property
    def iou(self) -> float:
        """From 0 to 1, nan where there is nothing to compare."""
        ...


S = TypeVar("S", bound=Scored)
E = TypeVar("E")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One image with what is right drawn on it, and with what was found."""

    images: tuple[EmbeddedImage, ...]
    iou: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """The images with the lowest IoU, and with the highest."""

    worst: tuple[Card, ...]
    best: tuple[Card, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DenseReport(Generic[E]):
    """What a report shows of a run that segments or detects."""

    evaluation: E
    summary: Summary
    classes: Classes
    examples: Examples


def evaluated_split(
    record: RunRecord, checkpoint: Checkpoint, split: Split | None, *, needs: str
) -> tuple[ImageDataset, tuple[str, ...]]:
    """Images that the run was not trained on, with what it `needs` (masks, boxes), and notes."""
    data = record.run.data
    if split is None:
        dataset, notes = open_split(data.dataset, None, checkpoint)
    else:
        dataset, notes = open_dataset(data.dataset, split=split, rule=data.rule), (f"evaluated on the {split} split",)
    if not isinstance(dataset, ImageDataset):
        raise DataError(f"{data.dataset} has no {needs}")
    return dataset, notes


def worst_and_best(scores: Sequence[S]) -> tuple[list[S], list[S]]:
    """A few images with the lowest IoU, the lowest first, and others with the highest, the highest first."""
    scored = sorted((score for score in scores if not math.isnan(score.iou)), key=lambda score: score.iou)
    worst = scored[:_SHOWN]
    return worst, list(reversed(scored[len(worst) :]))[:_SHOWN]


def summary_of(
    record: RunRecord,
    *,
    value: float,
    interval: tuple[float, float] | None,
    sentence: str,
    failures: Sequence[str],
    metrics: dict[str, str],
    notes: tuple[str, ...],
) -> Summary:
    """The first section: the metric, a sentence about it, other metrics, and facts about the run."""
    run = record.run
    if failures:
        sentence += f"; {len(failures):,} images could not be read and count for nothing"
    facts = {
        **metrics,
        "model": run.model.name or "custom",
        "started from": start_name(run.start),
        "parameters": short(cost(run.model).parameters),
        "image size": " x ".join(map(str, run.model.image_size)),
        "updates": f"{int(record.history.step.max(initial=0)):,}",
    }
    return Summary(value=value, interval=interval, sentence=sentence, facts=facts, notes=(*record.notes, *notes))


# --- segmentation -------------------------------------------------------------------------------------------------------------


def segmentation_report(
    record: RunRecord, checkpoint: Checkpoint, *, split: Split | None = None, progress: ProgressCallback = silent
) -> DenseReport[SegmentationEvaluation]:
    """Evaluate the run's model on images that it was not trained on, and describe the result."""
    dataset, notes = evaluated_split(record, checkpoint, split, needs="masks")
    predictor = SegmentPredictor(checkpoint)
    found = evaluate_segmentation(
        checkpoint,
        dataset,
        predictor=predictor,
        model=str(record.model),
        data=record.run.data.dataset,
        corrupt="skip",
        notes=notes,
        progress=progress,
    )
    worst, best = worst_and_best(found.images)
    return DenseReport(
        evaluation=found,
        summary=_mask_summary(record, found),
        classes=Classes(measure="IoU", rows=_mask_rows(found), confused=False, more=None),
        examples=Examples(worst=_mask_cards(worst, dataset, predictor), best=_mask_cards(best, dataset, predictor)),
    )


def _mask_summary(record: RunRecord, found: SegmentationEvaluation) -> Summary:
    return summary_of(
        record,
        value=found.mean_iou,
        interval=found.interval,
        sentence=f"mean IoU over {len(found.labels)} classes and {len(found.images):,} images, at their own size",
        failures=found.failures,
        metrics={"pixel accuracy": percent(found.pixel_accuracy), "boundary F": percent(found.boundary_f)},
        notes=found.notes,
    )


def _mask_rows(found: SegmentationEvaluation) -> tuple[ClassRow, ...]:
    return tuple(
        ClassRow(label=row["class"], value=row["iou"], count=percent(row["pixels"]), images=round(1e6 * row["pixels"]))
        for row in found.class_rows()
    )


def _mask_cards(scores: Sequence[MaskScore], dataset: ImageDataset, predictor: SegmentPredictor) -> tuple[Card, ...]:
    cards = []
    for score in scores:
        (found,) = predictor(dataset.contents.read(int(dataset.rows[score.index])))
        assert dataset.masks is not None
        right_HW = dataset.masks.read(score.index).classes(found.classes_HW.shape, limits=DecodeLimits())
        right = draw_overlay(found.image_HWC, right_HW, dataset.labels)
        shown = (
            embedded_image(reduced(right), alt="the right mask over the image"),
            embedded_image(reduced(found.overlay_HWC()), alt="the predicted mask over the image"),
        )
        cards.append(Card(images=shown, iou=percent(score.iou), name=score.name))
    return tuple(cards)


# --- detection ----------------------------------------------------------------------------------------------------------------

_SURE = 0.3  # score above which a box is drawn


def detection_report(
    record: RunRecord, checkpoint: Checkpoint, *, split: Split | None = None, progress: ProgressCallback = silent
) -> DenseReport[DetectionEvaluation]:
    """Evaluate the run's model on images that it was not trained on, and describe the result."""
    dataset, notes = evaluated_split(record, checkpoint, split, needs="boxes")
    found = evaluate_detection(
        dataset,
        detector=Detector(checkpoint, threshold=LEAST),
        model=str(record.model),
        data=record.run.data.dataset,
        corrupt="skip",
        notes=notes,
        progress=progress,
    )
    worst, best = worst_and_best(found.images)
    drawing = Detector(checkpoint, threshold=_SURE, keep_images=True)
    return DenseReport(
        evaluation=found,
        summary=_box_summary(record, found),
        classes=Classes(measure="AP", rows=_box_rows(found), confused=False, more=None),
        examples=Examples(worst=_box_cards(worst, dataset, drawing), best=_box_cards(best, dataset, drawing)),
    )


def _box_summary(record: RunRecord, found: DetectionEvaluation) -> Summary:
    sizes = {f"AP, {size} objects": percent(found.by_size[size]) for size in ("small", "medium", "large")}
    return summary_of(
        record,
        value=found.ap50,
        interval=found.interval,
        sentence=f"AP50 over {len(found.labels)} classes, {len(found.images):,} images and {sum(found.objects):,} objects",
        failures=found.failures,
        metrics={"AP": percent(found.ap), "AP75": percent(found.ap75), **sizes},
        notes=found.notes,
    )


def _box_rows(found: DetectionEvaluation) -> tuple[ClassRow, ...]:
    return tuple(
        ClassRow(label=row["class"], value=row["ap"], count=f"{row['objects']:,}", images=row["objects"])
        for row in found.class_rows()
    )


def _box_cards(scores: Sequence[BoxScore], dataset: ImageDataset, detector: Detector) -> tuple[Card, ...]:
    cards = []
    for score in scores:
        (found,) = detector(dataset.contents.read(int(dataset.rows[score.index])))
        assert dataset.boxes is not None
        assert found.image_HWC is not None
        right = draw_boxes(found.image_HWC, _as_objects(dataset.boxes[score.index], dataset.labels), dataset.labels, scores=False)
        shown = (
            embedded_image(reduced(right), alt="the right boxes on the image"),
            embedded_image(reduced(draw_boxes(found.image_HWC, found.boxes, detector.labels)), alt="the found boxes on the image"),
        )
        cards.append(Card(images=shown, iou=percent(score.iou), name=score.name))
    return tuple(cards)


def _as_objects(boxes: ImageBoxes, labels: Sequence[str]) -> list[DetectedObject]:
    return [
        DetectedObject(label=labels[code], score=1.0, x=left, y=top, width=right - left, height=bottom - top)
        for (left, top, right, bottom), code in zip(boxes.corners_M4.tolist(), boxes.codes_M.tolist(), strict=True)
    ]
