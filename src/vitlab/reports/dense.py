"""The sections of a report that segmentation and detection have: IoU or AP, each class, and the images found best and worst."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import DecodeLimits, Split
from vitlab.data.dataset import ImageBoxes, ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError
from vitlab.evaluation.detection import LEAST, BoxScore, DetectionEvaluation, evaluate_detection
from vitlab.evaluation.evaluation import open_split
from vitlab.evaluation.segmentation import MaskScore, SegmentationEvaluation, evaluate_segmentation
from vitlab.inference.detections import DetectedObject, Detector, draw_boxes
from vitlab.inference.segmentation import SegmentPredictor, draw_overlay
from vitlab.io.display import ProgressCallback, silent
from vitlab.models.cost import cost
from vitlab.reports.charts import short
from vitlab.reports.content import Classes, ClassRow, EmbeddedImage, Summary, embedded_image, percent, reduced, start_name
from vitlab.reports.run import RunRecord

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
