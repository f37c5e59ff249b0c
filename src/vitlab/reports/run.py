"""What a run's folder tells: its config, its course, what it cost, and with what it was made."""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab import __version__
from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import DecodeLimits, Split
from vitlab.config.evaluation import EvaluateConfig
from vitlab.config.run import RunConfig
from vitlab.data.dataset import Dataset
from vitlab.data.opening import open_dataset
from vitlab.data.synthetic.dataset import SyntheticDataset
from vitlab.data.transforms import EvaluationTransform, normalise
from vitlab.errors import DataError, TrainingError, VitlabError
from vitlab.evaluation.evaluation import Evaluation, evaluate, name_in, open_part
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.io.progress import ProgressCallback, silent
from vitlab.models.cost import cost
from vitlab.training.run_folder import RunDirectory

WATTS_A_CORE = 10.0
"""Assumed for the energy estimate: what a busy core of a server draws, its share of memory and cooling included."""

_BACKWARD = 3  # a backward pass takes about twice a forward pass
_PACKAGES = ("torch", "numpy", "pillow", "safetensors")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Course:
    """Every update that is on record, and every look at held-out images: (step, names and values)."""

    step: Floats
    loss: Floats
    accuracy: Floats
    rate: Floats
    looks: tuple[tuple[int, dict[str, float]], ...]
    images: int
    seconds: float
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRecord:
    """A run as its folder holds it. `model` is the checkpoint to look at; `notes` say what is unusual."""

    folder: Path
    run: RunConfig
    model: Path
    course: Course
    made: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a run took: `macs` of one image forward, `training_macs` of all updates, hours of one core, and an estimate in Wh."""

    images: int
    epochs: float | None
    macs: int
    training_macs: float
    seconds: float
    cores: int
    core_hours: float
    watt_hours: float


def read_run(folder: Path) -> RunRecord:
    """Read a run's folder; TrainingError where it is none, or has no checkpoint yet."""
    directory = RunDirectory(folder)
    run = directory.config() if folder.is_dir() else None
    if run is None:
        raise TrainingError(
            f"{folder} is not the folder of a run: it has no run.json",
            hint="a report is of a run that pretrain, finetune, train or quickstart made; vitlab evaluate judges a checkpoint",
        )
    notes: list[str] = []
    model = folder / "model.safetensors"
    if not model.exists():
        model = folder / "last" / "model.safetensors"
        if not model.exists():
            raise TrainingError(f"the run in {folder} has no checkpoint yet", hint="the command that began it goes on with it")
        notes.append("The run is not finished: this is its last checkpoint.")
    made = datetime.fromtimestamp(model.stat().st_mtime, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    return RunRecord(folder=folder, run=run, model=model, course=_course(directory), made=made, notes=tuple(notes))


def _course(directory: RunDirectory) -> Course:
    events = directory.events()
    stepped = [event for event in events if event.get("event") == "stepped"]

    def column(name: str) -> Floats:
        values = [cast("float | None", event.get(name)) for event in stepped]
        return np.array([np.nan if value is None else value for value in values], np.float64)

    looks = [
        (int(cast("int", event["step"])), cast("dict[str, float]", event["metrics"]))
        for event in events
        if event.get("event") == "evaluated"
    ]
    return Course(
        step=column("step"),
        loss=column("loss"),
        accuracy=column("accuracy"),
        rate=column("rate"),
        looks=tuple(looks),
        images=int(column("images").sum()),
        seconds=float(column("seconds").sum()),
        skipped=sum(event.get("event") == "skipped" for event in events),
    )


def spent(record: RunRecord, *, learned_from: int | None, cores: int) -> Spent:
    """The cost of a run on so many cores; `learned_from` is how many images an epoch has, None where unknown."""
    macs = cost(record.run.model).macs
    core_hours = record.course.seconds * cores / 3600
    return Spent(
        images=record.course.images,
        epochs=None if not learned_from else record.course.images / learned_from,
        macs=macs,
        training_macs=float(macs) * _BACKWARD * record.course.images,
        seconds=record.course.seconds,
        cores=cores,
        core_hours=core_hours,
        watt_hours=core_hours * WATTS_A_CORE,
    )


def versions() -> dict[str, str]:
    """What this report was made with."""
    found = {"vitlab": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a package"
    return {**found, "system": f"{platform.system()} {platform.machine()}", "cores": str(os.cpu_count() or "unknown")}


# A run's model judged by images it has not learned from: the numbers, the worst mistakes, and the data itself in short.
#
# Axes: N images with an answer, B images shown, H height, W width, C channels.

Pixels = NDArray[np.uint8]

_PARTS: tuple[Split, ...] = ("train", "val", "test")
_MOST_READ = 50_000  # images that are read for a fingerprint


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shot:
    """An image as the model saw it, what it is and what it was taken for, with what confidence."""

    index: int
    name: str
    pixels_HWC: Pixels
    label: str
    said: str
    confidence: float

    @property
    def right(self) -> bool:
        """Whether it was taken for what it is."""
        return self.label == self.said


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judgement:
    """What came of judging: `part` says by which images, `notes` what was decided on the way."""

    found: Evaluation
    dataset: Dataset
    part: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCard:
    """A data set in short. `counts` are images of each class in the part that was learned from; `fingerprint` is None where that
    would mean to read too many of them."""

    dataset: str
    parts: dict[str, int]
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    fingerprint: str | None


def judged_run(
    record: RunRecord, checkpoint: Checkpoint, *, split: Split | None = None, tell: ProgressCallback = silent
) -> Judgement:
    """Judge by the test part of the run's data where there is one, else by its val part."""
    data = record.run.data
    if split is None:
        dataset, notes = open_part(data.dataset, None, checkpoint)
    else:
        dataset, notes = open_dataset(data.dataset, split=split, rule=data.rule), (f"evaluated by the {split} part",)
    targets = match_by_name(dataset.labels, checkpoint.labels, classes=checkpoint.config.num_classes)
    config = EvaluateConfig(corrupt="skip", workers=0 if len(dataset) < 2000 else 2)
    found = evaluate(checkpoint, dataset, targets, config=config, tell=tell)
    said = [word for word in ("test", "val") if any(f"the {word} part" in note for note in notes)]
    part: str = split or (said[0] if said else "all")
    return Judgement(found=found, dataset=dataset, part=part, notes=(*notes, *targets.notes))


def worst(judgement: Judgement, checkpoint: Checkpoint, *, count: int) -> list[Shot]:
    """The mistakes that were made with the most confidence."""
    return _shots(judgement, checkpoint, count, right=False)


def surest(judgement: Judgement, checkpoint: Checkpoint, *, count: int) -> list[Shot]:
    """Images told right, one of each class in turn, the surest of each first."""
    return _shots(judgement, checkpoint, count, right=True)


def _shots(judgement: Judgement, checkpoint: Checkpoint, count: int, *, right: bool) -> list[Shot]:
    judged, answers, targets = judgement.found.judged, judgement.found.answers, judgement.found.targets
    assert judged is not None
    rows = np.flatnonzero((judged.rank_N == 0) == right)
    rows = rows[np.argsort(-judged.confidence_N[rows], kind="stable")]
    if right:  # the classes in turn
        turn = Counter[int]()
        places = []
        for row in rows:
            label = int(answers.labels[row])
            places.append((turn[label], label))
            turn[label] += 1
        rows = rows[sorted(range(len(rows)), key=lambda place: places[place])]
    view = EvaluationTransform(preprocess=checkpoint.preprocess, limits=DecodeLimits())
    made = []
    for row in rows[:count].tolist():
        index = int(answers.indices_N[row])
        sample = judgement.dataset[index]
        made.append(
            Shot(
                index=index,
                name=name_in(judgement.dataset, index),
                pixels_HWC=view.see(sample.content, name=sample.name),
                label=targets.labels[int(answers.labels[row])],
                said=targets.names[int(judged.chosen_N[row])],
                confidence=float(judged.confidence_N[row]),
            )
        )
    return made


def as_batch(shots: list[Shot], checkpoint: Checkpoint) -> torch.Tensor:
    """The images as the model takes them, (B, C, H, W)."""
    images_BHWC = torch.from_numpy(np.stack([shot.pixels_HWC for shot in shots]))
    weights = next(checkpoint.model.parameters())
    return normalise(images_BHWC, checkpoint.preprocess, weights.dtype).to(weights.device)


def data_card(record: RunRecord) -> DataCard | None:
    """The run's data in short, or None where it is not there any more."""
    data = record.run.data
    parts: dict[str, int] = {}
    learned: Dataset | None = None
    for split in _PARTS:
        try:
            dataset = open_dataset(data.dataset, split=split, rule=data.rule)
        except DataError:
            continue  # a part that is neither declared nor made
        parts[split] = len(dataset)
    try:
        learned = open_dataset(data.dataset, split=data.train_split, rule=data.rule)
    except VitlabError:
        return None
    if data.train_split not in _PARTS:
        parts = {f"{data.train_split} (learned from)": len(learned), "test": parts.get("test", 0)}
    counts = Counter[int]()
    for index in range(len(learned)):
        label = learned.label(index)
        counts.update(label if isinstance(label, tuple) else () if label is None else (label,))
    return DataCard(
        dataset=data.dataset,
        parts={name: count for name, count in parts.items() if count},
        classes=learned.labels,
        counts=tuple(counts[place] for place in range(len(learned.labels))),
        fingerprint=learned.fingerprint() if len(learned) <= _MOST_READ or isinstance(learned, SyntheticDataset) else None,
    )
