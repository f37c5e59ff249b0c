"""`write_report(run folder)`: everything known about a run as one HTML file that opens from disk and asks nothing of the network.

Without JavaScript everything is there; with it, tables sort and the theme can be chosen. The page's Content-Security-Policy forbids
every request, and every script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vitlab.checkpoints import load
from vitlab.config.data import Split
from vitlab.config.model import task_of
from vitlab.config.serialize import to_text
from vitlab.errors import DataError
from vitlab.evaluation.classification import Classification, MultiLabel
from vitlab.inference.segmentation import backbone_of
from vitlab.io.atomic import write_text
from vitlab.io.display import Block, Displayed, ProgressCallback, printable, silent
from vitlab.reports.content import (
    Comparison,
    calibration,
    classes,
    comparison_charts,
    cost_facts,
    curves,
    data_section,
    inside,
    mistakes,
    percent,
    summary,
)
from vitlab.reports.dense import detection_report, segmentation_report
from vitlab.reports.run import data_card, evaluate_run, read_run, run_cost, versions

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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    if not path.parent.is_dir():
        raise DataError(f"{path.parent} is not a folder, so {path.name} cannot be written into it")
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
