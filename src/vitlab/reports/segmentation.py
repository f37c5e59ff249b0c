"""The sections of a report that segmentation has: mean IoU, IoU of each class, and the images with the best and the worst masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import DecodeLimits, Split
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError
from vitlab.evaluation.evaluation import open_split
from vitlab.evaluation.segmentation import ImageScore, SegmentationEvaluation, evaluate_segmentation
from vitlab.inference.segmentation import SegmentPredictor, draw_overlay
from vitlab.io.progress import ProgressCallback, silent
from vitlab.models.cost import cost
from vitlab.reports.charts import short
from vitlab.reports.content import Classes, ClassRow, EmbeddedImage, Summary, embedded_image, percent, reduced, start_name
from vitlab.reports.run import RunRecord

_SHOWN = 6  # images with the best masks, and with the worst


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskCard:
    """One image with the right mask over it, and with the predicted one."""

    images: tuple[EmbeddedImage, ...]
    iou: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskSection:
    """The images with the lowest mean IoU, and with the highest."""

    worst: tuple[MaskCard, ...]
    best: tuple[MaskCard, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentationReport:
    """What a report shows of a segmentation run."""

    evaluation: SegmentationEvaluation
    summary: Summary
    classes: Classes
    masks: MaskSection


def segmentation_report(
    record: RunRecord, checkpoint: Checkpoint, *, split: Split | None = None, progress: ProgressCallback = silent
) -> SegmentationReport:
    """Evaluate the run's model on images that it was not trained on, and describe the result."""
    data = record.run.data
    if split is None:
        dataset, notes = open_split(data.dataset, None, checkpoint)
    else:
        dataset, notes = open_dataset(data.dataset, split=split, rule=data.rule), (f"evaluated on the {split} split",)
    if not isinstance(dataset, ImageDataset):
        raise DataError(f"{data.dataset} has no masks")
    predictor = SegmentPredictor(checkpoint)
    found = evaluate_segmentation(
        checkpoint,
        dataset,
        predictor=predictor,
        model=str(record.model),
        data=data.dataset,
        corrupt="skip",
        notes=notes,
        progress=progress,
    )
    scored = sorted((score for score in found.images if np.isfinite(score.iou)), key=lambda score: score.iou)
    worst, best = scored[:_SHOWN], [score for score in reversed(scored) if score not in scored[:_SHOWN]][:_SHOWN]
    return SegmentationReport(
        evaluation=found,
        summary=_summary(record, found),
        classes=Classes(measure="IoU", rows=_class_rows(found), confused=False, more=None),
        masks=MaskSection(worst=_cards(worst, dataset, predictor), best=_cards(best, dataset, predictor)),
    )


def _summary(record: RunRecord, found: SegmentationEvaluation) -> Summary:
    run = record.run
    sentence = f"mean IoU over {len(found.labels)} classes and {len(found.images):,} images, at their own size"
    if found.failures:
        sentence += f"; {len(found.failures):,} images could not be read and count for nothing"
    facts = {
        "pixel accuracy": percent(found.pixel_accuracy),
        "boundary F": percent(found.boundary_f),
        "model": run.model.name or "custom",
        "started from": start_name(run.start),
        "parameters": short(cost(run.model).parameters),
        "image size": " x ".join(map(str, run.model.image_size)),
        "updates": f"{int(record.history.step.max(initial=0)):,}",
    }
    notes = (*record.notes, *found.notes)
    return Summary(value=found.mean_iou, interval=found.interval, sentence=sentence, facts=facts, notes=notes)


def _class_rows(found: SegmentationEvaluation) -> tuple[ClassRow, ...]:
    return tuple(
        ClassRow(label=row["class"], value=row["iou"], count=percent(row["pixels"]), images=round(1e6 * row["pixels"]))
        for row in found.class_rows()
    )


def _cards(scores: Sequence[ImageScore], dataset: ImageDataset, predictor: SegmentPredictor) -> tuple[MaskCard, ...]:
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
        cards.append(MaskCard(images=shown, iou=percent(score.iou), name=score.name))
    return tuple(cards)
