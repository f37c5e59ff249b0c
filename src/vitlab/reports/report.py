"""`write_report(run)`: all that is known of a run as one HTML file, which opens from disk and asks nothing of the outside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from vitlab.checkpoints import load
from vitlab.config.data import Split
from vitlab.config.variants import name_of
from vitlab.errors import DataError
from vitlab.evaluation.classify import Classification, MultiLabel
from vitlab.io.atomic import write_text
from vitlab.io.progress import ProgressCallback, silent
from vitlab.reports.page import page
from vitlab.reports.run import data_card, judged_run, read_run, spent
from vitlab.reports.sections import (
    Comparison,
    again,
    calibration,
    classes,
    compared,
    costs,
    curves,
    data,
    inside,
    mistakes,
    summary,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A report on the disk: where, how many bytes, and the accuracy it leads with, None where it has none."""

    path: Path
    bytes: int
    accuracy: float | None
    interval: tuple[float, float] | None
    images: int


def write_report(
    folder: Path,
    out: Path | None = None,
    *,
    split: Split | None = None,
    comparison: Comparison | None = None,
    title: str | None = None,
    cores: int | None = None,
    tell: ProgressCallback = silent,
) -> Written:
    """Judge the run in `folder` by images it has not learned from, and write the report as `out`, else `folder/report.html`.

    `split` is the part judged by: test where the data has one, else val. `comparison` is a table of other runs to stand beside.
    `cores` is on how many the run was made, for its cost; as many as torch uses here unless given.
    """
    record = read_run(folder)
    checkpoint = load(record.model)
    judgement = None
    if checkpoint.config.num_classes and record.run.train.masked is None:
        judgement = judged_run(record, checkpoint, split=split, tell=tell)
    card = data_card(record)
    told = judgement is not None and judgement.found.judged is not None
    learned_from = None if card is None or record.run.data.dataset.startswith("generated") else sum(card.counts) or None
    price = spent(record, learned_from=learned_from, cores=cores or torch.get_num_threads())
    sections = [
        summary(record, judgement),
        None if comparison is None else compared(comparison),
        curves(record),
        None if judgement is None else classes(judgement),
        mistakes(judgement, checkpoint) if judgement is not None and told else None,
        inside(judgement, checkpoint, tell),
        None if judgement is None else calibration(judgement),
        data(card, record),
        costs(price),
        again(record),
    ]
    name = name_of(record.run.model) or "a model"
    subtitle = f"{name}, recipe {record.run.name}, {record.made}"
    text = page(title or record.folder.name, subtitle, [section for section in sections if section is not None])
    path = out or folder / "report.html"
    if not path.parent.is_dir():
        raise DataError(f"{path.parent} is no folder to write {path.name} into")
    write_text(path, text)
    accuracy, interval, images = _led_with(None if judgement is None else judgement.found.result)
    return Written(path=path, bytes=len(text.encode()), accuracy=accuracy, interval=interval, images=images)


def _led_with(result: Classification | MultiLabel | None) -> tuple[float | None, tuple[float, float] | None, int]:
    """The first number of a report, its interval, and of how many images it is."""
    match result:
        case None:
            return None, None, 0
        case Classification():
            return result.top1.value, result.top1.interval, result.images
        case MultiLabel():
            return result.mean_average_precision, result.interval, result.images
