"""The sections of a report that segmentation has: mean IoU, IoU of each class, and the images with the best and the worst masks."""

from __future__ import annotations

from collections.abc import Sequence

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import DecodeLimits, Split
from vitlab.data.dataset import ImageDataset
from vitlab.evaluation.segmentation import ImageScore, SegmentationEvaluation, evaluate_segmentation
from vitlab.inference.segmentation import SegmentPredictor, draw_overlay
from vitlab.io.progress import ProgressCallback, silent
from vitlab.reports.content import Classes, ClassRow, Summary, embedded_image, percent, reduced
from vitlab.reports.dense import Card, DenseReport, Examples, evaluated_split, summary_of, worst_and_best
from vitlab.reports.run import RunRecord


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
        summary=_summary(record, found),
        classes=Classes(measure="IoU", rows=_class_rows(found), confused=False, more=None),
        examples=Examples(worst=_cards(worst, dataset, predictor), best=_cards(best, dataset, predictor)),
    )


def _summary(record: RunRecord, found: SegmentationEvaluation) -> Summary:
    return summary_of(
        record,
        value=found.mean_iou,
        interval=found.interval,
        sentence=f"mean IoU over {len(found.labels)} classes and {len(found.images):,} images, at their own size",
        failures=found.failures,
        metrics={"pixel accuracy": percent(found.pixel_accuracy), "boundary F": percent(found.boundary_f)},
        notes=found.notes,
    )


def _class_rows(found: SegmentationEvaluation) -> tuple[ClassRow, ...]:
    return tuple(
        ClassRow(label=row["class"], value=row["iou"], count=percent(row["pixels"]), images=round(1e6 * row["pixels"]))
        for row in found.class_rows()
    )


def _cards(scores: Sequence[ImageScore], dataset: ImageDataset, predictor: SegmentPredictor) -> tuple[Card, ...]:
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
