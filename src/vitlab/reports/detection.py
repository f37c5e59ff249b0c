"""The sections of a report that detection has: AP50, AP of each class, and the images whose objects were found best and worst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import Split
from vitlab.data.dataset import ImageBoxes, ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError
from vitlab.evaluation.detection import LEAST, DetectionEvaluation, ImageScore, evaluate_detection
from vitlab.evaluation.evaluation import open_split
from vitlab.inference.detections import DetectedObject, Detector, draw_boxes
from vitlab.io.progress import ProgressCallback, silent
from vitlab.models.cost import cost
from vitlab.reports.charts import short
from vitlab.reports.content import Classes, ClassRow, EmbeddedImage, Summary, embedded_image, percent, reduced
from vitlab.reports.run import RunRecord

_SHOWN = 6  # images whose objects were found best, and worst
_SURE = 0.3  # score above which a box is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxCard:
    """One image with the right boxes, and with those that were found."""

    images: tuple[EmbeddedImage, ...]
    iou: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSection:
    """The images with the lowest IoU of their objects, and with the highest."""

    worst: tuple[BoxCard, ...]
    best: tuple[BoxCard, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DetectionReport:
    """What a report shows of a detection run."""

    evaluation: DetectionEvaluation
    summary: Summary
    classes: Classes
    boxes: BoxSection


def detection_report(
    record: RunRecord, checkpoint: Checkpoint, *, split: Split | None = None, progress: ProgressCallback = silent
) -> DetectionReport:
    """Evaluate the run's model on images that it was not trained on, and describe the result."""
    data = record.run.data
    if split is None:
        dataset, notes = open_split(data.dataset, None, checkpoint)
    else:
        dataset, notes = open_dataset(data.dataset, split=split, rule=data.rule), (f"evaluated on the {split} split",)
    if not isinstance(dataset, ImageDataset):
        raise DataError(f"{data.dataset} has no boxes")
    detector = Detector(checkpoint, threshold=LEAST)
    found = evaluate_detection(
        dataset, detector=detector, model=str(record.model), data=data.dataset, corrupt="skip", notes=notes, progress=progress
    )
    scored = sorted(found.images, key=lambda score: score.iou)
    worst, best = scored[:_SHOWN], [score for score in reversed(scored) if score not in scored[:_SHOWN]][:_SHOWN]
    drawing = Detector(checkpoint, threshold=_SURE, keep_images=True)
    return DetectionReport(
        evaluation=found,
        summary=_summary(record, found),
        classes=Classes(measure="AP", rows=_class_rows(found), confused=False, more=None),
        boxes=BoxSection(worst=_cards(worst, dataset, drawing), best=_cards(best, dataset, drawing)),
    )


def _summary(record: RunRecord, found: DetectionEvaluation) -> Summary:
    run = record.run
    sentence = f"AP50 over {len(found.labels)} classes, {len(found.images):,} images and {sum(found.objects):,} objects"
    if found.failures:
        sentence += f"; {len(found.failures):,} images could not be read and count for nothing"
    facts = {
        "AP": percent(found.ap),
        "AP75": percent(found.ap75),
        "AP, small objects": percent(found.by_size["small"]),
        "AP, medium objects": percent(found.by_size["medium"]),
        "AP, large objects": percent(found.by_size["large"]),
        "model": run.model.name or "custom",
        "started from": "scratch" if run.start is None else run.start,
        "parameters": short(cost(run.model).parameters),
        "image size": " x ".join(map(str, run.model.image_size)),
        "updates": f"{int(record.history.step.max(initial=0)):,}",
    }
    return Summary(value=found.ap50, interval=found.interval, sentence=sentence, facts=facts, notes=(*record.notes, *found.notes))


def _class_rows(found: DetectionEvaluation) -> tuple[ClassRow, ...]:
    return tuple(
        ClassRow(label=row["class"], value=row["ap"], count=f"{row['objects']:,}", images=row["objects"])
        for row in found.class_rows()
    )


def _cards(scores: Sequence[ImageScore], dataset: ImageDataset, detector: Detector) -> tuple[BoxCard, ...]:
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
        cards.append(BoxCard(images=shown, iou=percent(score.iou), name=score.name))
    return tuple(cards)


def _as_objects(boxes: ImageBoxes, labels: Sequence[str]) -> list[DetectedObject]:
    return [
        DetectedObject(label=labels[code], score=1.0, x=left, y=top, width=right - left, height=bottom - top)
        for (left, top, right, bottom), code in zip(boxes.corners_M4.tolist(), boxes.codes_M.tolist(), strict=True)
    ]
