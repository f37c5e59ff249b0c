"""The sections of a report that detection has: AP50, AP of each class, and the images whose objects were found best and worst."""

from __future__ import annotations

from collections.abc import Sequence

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import Split
from vitlab.data.dataset import ImageBoxes, ImageDataset
from vitlab.evaluation.detection import LEAST, DetectionEvaluation, ImageScore, evaluate_detection
from vitlab.inference.detections import DetectedObject, Detector, draw_boxes
from vitlab.io.progress import ProgressCallback, silent
from vitlab.reports.content import Classes, ClassRow, Summary, embedded_image, percent, reduced
from vitlab.reports.dense import Card, DenseReport, Examples, evaluated_split, summary_of, worst_and_best
from vitlab.reports.run import RunRecord

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
        summary=_summary(record, found),
        classes=Classes(measure="AP", rows=_class_rows(found), confused=False, more=None),
        examples=Examples(worst=_cards(worst, dataset, drawing), best=_cards(best, dataset, drawing)),
    )


def _summary(record: RunRecord, found: DetectionEvaluation) -> Summary:
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


def _class_rows(found: DetectionEvaluation) -> tuple[ClassRow, ...]:
    return tuple(
        ClassRow(label=row["class"], value=row["ap"], count=f"{row['objects']:,}", images=row["objects"])
        for row in found.class_rows()
    )


def _cards(scores: Sequence[ImageScore], dataset: ImageDataset, detector: Detector) -> tuple[Card, ...]:
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
