"""What the reports of segmentation and detection have in common: the evaluated split, the images to show, facts about the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import Split
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError
from vitlab.evaluation.evaluation import open_split
from vitlab.models.cost import cost
from vitlab.reports.charts import short
from vitlab.reports.content import Classes, EmbeddedImage, Summary, start_name
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
