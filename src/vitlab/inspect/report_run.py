"""What a run's folder tells: its config, its course, what it cost, and with what it was made."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from vitlab import __version__
from vitlab.config.run import RunConfig
from vitlab.errors import TrainingError
from vitlab.model.cost import cost
from vitlab.train.directory import RunDirectory

WATTS_A_CORE = 10.0
"""Assumed for the energy estimate: what a busy core of a server draws, its share of memory and cooling included."""

_BACKWARD = 3  # a backward pass takes about twice a forward pass
_PACKAGES = ("torch", "numpy", "pillow", "safetensors")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Course:
    """Every update that is on record, and every look at held-out pictures: (step, names and values)."""

    step: Floats
    loss: Floats
    accuracy: Floats
    rate: Floats
    looks: tuple[tuple[int, dict[str, float]], ...]
    pictures: int
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
    """What a run took: `macs` of one picture forward, `training_macs` of all updates, hours of one core, and an estimate in Wh."""

    pictures: int
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
        pictures=int(column("pictures").sum()),
        seconds=float(column("seconds").sum()),
        skipped=sum(event.get("event") == "skipped" for event in events),
    )


def spent(record: RunRecord, *, learned_from: int | None, cores: int) -> Spent:
    """The cost of a run on so many cores; `learned_from` is how many pictures an epoch has, None where unknown."""
    macs = cost(record.run.model).macs
    core_hours = record.course.seconds * cores / 3600
    return Spent(
        pictures=record.course.pictures,
        epochs=None if not learned_from else record.course.pictures / learned_from,
        macs=macs,
        training_macs=float(macs) * _BACKWARD * record.course.pictures,
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
