"""What a report is made from: a run folder (config, history, cost, versions), the run's model evaluated, and its dataset in short.

Axes: N evaluated images, B images shown, H height, W width, C channels.
"""

from __future__ import annotations

import math
import os
import platform
import sys
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
from vitlab.checkpoints.checkpoint import Checkpoint, of_one_size
from vitlab.checkpoints.reading import AVERAGED, model_in
from vitlab.config.data import DecodeLimits, Split
from vitlab.config.evaluation import EvaluateConfig
from vitlab.config.run import RunConfig
from vitlab.data.dataset import Dataset
from vitlab.data.opening import open_dataset
from vitlab.data.synthetic import SyntheticDataset
from vitlab.data.transforms import EvaluationTransform, normalise
from vitlab.errors import DataError, TrainingError, VitlabError
from vitlab.evaluation.evaluation import Evaluation, evaluate, name_in, open_split
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.io.display import ProgressCallback, silent
from vitlab.models.cost import cost
from vitlab.training.run_folder import RunDirectory

WATTS_PER_CORE = 10.0
"""Assumed for the energy estimate: the power of a busy server core, with its part of memory and cooling."""

_BACKWARD = 3  # forward and backward together cost about three forward passes
_PACKAGES = ("torch", "numpy", "pillow", "safetensors")
_SPLITS: tuple[Split, ...] = ("train", "val", "test")
_MOST_HASHED = 50_000  # images; a fingerprint of more takes too long

Floats = NDArray[np.float64]
Pixels = NDArray[np.uint8]


_MOST_STEPS = 10**12  # a larger number of a step is damage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """The updates of a run, one value each, and its evaluations: (step, metrics by name)."""

    step: Floats
    loss: Floats
    accuracy: Floats
    lr: Floats
    evaluations: tuple[tuple[int, dict[str, float]], ...]
    images: int
    seconds: float
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRecord:
    """A run as its folder holds it. `model` is the checkpoint to evaluate; `notes` say what is unusual."""

    folder: Path
    run: RunConfig
    model: Path
    history: History
    made: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """`macs` of one forward pass, `training_macs` of all updates, core-hours, and an estimate of the energy in Wh."""

    images: int
    epochs: float | None
    macs: int
    training_macs: float
    seconds: float
    cores: int
    core_hours: float
    watt_hours: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunEvaluation:
    """The evaluation of a run's model. `split` says on which images; `notes` what was decided on the way."""

    result: Evaluation
    dataset: Dataset
    split: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvaluatedImage:
    """One image as the model sees it, with its label and the model's prediction."""

    index: int
    name: str
    pixels_HWC: Pixels
    label: str
    predicted: str
    confidence: float

    @property
    def correct(self) -> bool:
        """Whether the prediction is the label."""
        return self.label == self.predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCard:
    """A dataset in short. `counts` are the training images of each class; `fingerprint` is None for very large datasets."""

    dataset: str
    splits: dict[str, int]
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    fingerprint: str | None


def read_run(folder: Path) -> RunRecord:
    """Read the folder of a run, or of a sweep, whose last run is meant; an error where it is none, or has no checkpoint yet."""
    if (folder / "sweep.json").is_file():
        folder = folder / "final"
    directory = RunDirectory(folder)
    run = directory.config() if folder.is_dir() else None
    if run is None:
        raise TrainingError(
            f"{folder} is not a run folder: it has no run.json",
            hint="give the folder that pretrain, finetune, train or quickstart wrote; vitlab evaluate takes a checkpoint",
        )
    notes: list[str] = []
    model = model_in(folder)
    if model != folder / "model.safetensors":
        weights = "averaged weights" if model.name == AVERAGED else "weights"
        notes.append(f"The run is not finished: these are the {weights} of its last checkpoint.")
    made = datetime.fromtimestamp(model.stat().st_mtime, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    return RunRecord(folder=folder, run=run, model=model, history=_history(directory), made=made, notes=tuple(notes))


def _history(directory: RunDirectory) -> History:
    """The events of a run; damaged ones are left out, and damaged numbers in them are NaN."""
    events = [event for event in directory.events() if type(step := event.get("step")) is int and 0 <= step < _MOST_STEPS]
    stepped = [event for event in events if event.get("event") == "stepped"]

    def column(name: str) -> Floats:
        return np.array([_number(event.get(name)) for event in stepped], np.float64)

    evaluations = [
        (event["step"], {name: _number(value) for name, value in metrics.items()})
        for event in events
        if event.get("event") == "evaluated" and isinstance(metrics := event.get("metrics"), dict)
    ]
    return History(
        step=column("step"),
        loss=column("loss"),
        accuracy=column("accuracy"),
        lr=column("lr"),
        evaluations=tuple(evaluations),
        images=int(np.nansum(column("images"))),
        seconds=float(np.nansum(column("seconds"))),
        skipped=sum(event.get("event") == "skipped" for event in events),
    )


def _number(value: object) -> float:
    """A finite number, else NaN."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return float(cast("float", value)) if known else math.nan


def run_cost(record: RunRecord, *, epoch_images: int | None, cores: int) -> RunCost:
    """The cost of a run on that many cores; `epoch_images` is the number of images of an epoch, None where unknown."""
    macs = cost(record.run.model).macs
    core_hours = record.history.seconds * cores / 3600
    return RunCost(
        images=record.history.images,
        epochs=None if not epoch_images else record.history.images / epoch_images,
        macs=macs,
        training_macs=float(macs) * _BACKWARD * record.history.images,
        seconds=record.history.seconds,
        cores=cores,
        core_hours=core_hours,
        watt_hours=core_hours * WATTS_PER_CORE,
    )


def versions() -> dict[str, str]:
    """The versions of vitlab, Python and the main packages, and the machine, that made this report."""
    found = {"vitlab": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a package"
    return {**found, "system": f"{platform.system()} {platform.machine()}", "cores": str(os.cpu_count() or "unknown")}


def evaluate_run(
    record: RunRecord, checkpoint: Checkpoint, *, split: Split | None = None, progress: ProgressCallback = silent
) -> RunEvaluation:
    """Evaluate on the test split of the run's data where there is one, else on its val split."""
    data = record.run.data
    if split is None:
        dataset, notes = open_split(data.dataset, None, checkpoint)
    else:
        dataset, notes = open_dataset(data.dataset, split=split, rule=data.rule), (f"evaluated on the {split} split",)
    targets = match_by_name(dataset.labels, checkpoint.labels, classes=checkpoint.config.num_classes)
    config = EvaluateConfig(corrupt="skip", workers=0 if len(dataset) < 2000 else 2)
    result = evaluate(checkpoint, dataset, targets, config=config, progress=progress)
    named = [word for word in ("test", "val") if any(f"the {word} split" in note for note in notes)]
    return RunEvaluation(
        result=result, dataset=dataset, split=split or (named[0] if named else "all"), notes=(*notes, *targets.notes)
    )


def confident_mistakes(evaluation: RunEvaluation, checkpoint: Checkpoint, *, count: int) -> list[EvaluatedImage]:
    """The wrong predictions with the highest confidence."""
    return _images(evaluation, checkpoint, count, correct=False)


def confident_correct(evaluation: RunEvaluation, checkpoint: Checkpoint, *, count: int) -> list[EvaluatedImage]:
    """Correct predictions, one of each class in turn, the most confident of each class first."""
    return _images(evaluation, checkpoint, count, correct=True)


def _images(evaluation: RunEvaluation, checkpoint: Checkpoint, count: int, *, correct: bool) -> list[EvaluatedImage]:
    per_image, logits, targets = evaluation.result.per_image, evaluation.result.logits, evaluation.result.targets
    assert per_image is not None
    rows = np.flatnonzero((per_image.rank_N == 0) == correct)
    rows = rows[np.argsort(-per_image.confidence_N[rows], kind="stable")]
    if correct:  # the classes in turn
        turn = Counter[int]()
        places = []
        for row in rows:
            label = int(logits.labels[row])
            places.append((turn[label], label))
            turn[label] += 1
        rows = rows[sorted(range(len(rows)), key=lambda place: places[place])]
    transform = EvaluationTransform(preprocess=of_one_size(checkpoint)[0].preprocess, limits=DecodeLimits())
    found = []
    for row in rows[:count].tolist():
        index = int(logits.indices_N[row])
        sample = evaluation.dataset.read(index)
        found.append(
            EvaluatedImage(
                index=index,
                name=name_in(evaluation.dataset, index),
                pixels_HWC=transform.apply(sample.content, name=sample.name),
                label=targets.labels[int(logits.labels[row])],
                predicted=targets.names[int(per_image.predicted_N[row])],
                confidence=float(per_image.confidence_N[row]),
            )
        )
    return found


def as_batch(images: list[EvaluatedImage], checkpoint: Checkpoint) -> torch.Tensor:
    """The images as the model takes them, (B, C, H, W)."""
    images_BHWC = torch.from_numpy(np.stack([image.pixels_HWC for image in images]))
    weights = next(checkpoint.model.parameters())
    return normalise(images_BHWC, checkpoint.preprocess, weights.dtype).to(weights.device)


def data_card(record: RunRecord) -> DataCard | None:
    """The run's dataset in short, or None where it cannot be opened any more."""
    data = record.run.data
    splits: dict[str, int] = {}
    for split in _SPLITS:
        try:
            splits[split] = len(open_dataset(data.dataset, split=split, rule=data.rule))
        except DataError:
            continue  # a split that is neither declared nor made
    try:
        training = open_dataset(data.dataset, split=data.train_split, rule=data.rule)
    except VitlabError:
        return None
    if data.train_split not in _SPLITS:
        splits = {f"{data.train_split} (trained on)": len(training), "test": splits.get("test", 0)}
    counts = Counter[int]()
    for index in range(len(training)):
        label = training.label(index)
        counts.update(label if isinstance(label, tuple) else () if label is None else (label,))
    return DataCard(
        dataset=data.dataset,
        splits={name: count for name, count in splits.items() if count},
        classes=training.labels,
        counts=tuple(counts[place] for place in range(len(training.labels))),
        fingerprint=training.fingerprint() if len(training) <= _MOST_HASHED or isinstance(training, SyntheticDataset) else None,
    )
