"""Trackers: callbacks that give the curves of a run to TensorBoard, MLflow or Weights & Biases. Each is an extra.

Nothing leaves this machine unless its own settings say so: MLflow writes to `<run>/mlflow.db` unless MLFLOW_TRACKING_URI names a
server, and Weights & Biases writes offline files into `<run>/wandb` unless WANDB_MODE says otherwise (`wandb sync` uploads them).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from vitlab.errors import UsageError, did_you_mean
from vitlab.io.optional import optional_import
from vitlab.training.callbacks import Callback
from vitlab.training.events import Evaluated, Finished, Started, Stepped
from vitlab.training.sweep import SweepEvent

_BUFFER = 100  # metrics that MLflow gets at a time
_MOST_PARAMETERS = 100
_LONGEST = 250  # characters of a parameter that every store takes


class SummaryWriter(Protocol):
    """The part of TensorBoard's SummaryWriter that is used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Add one point to a curve."""
        ...

    def close(self) -> None:
        """Write everything to disk."""
        ...


def summary_writer(folder: Path, step: int) -> SummaryWriter:
    """TensorBoard's own writer, which drops what the folder holds of steps after `step`; needs the extra `track`."""
    from torch.utils.tensorboard.writer import SummaryWriter as TensorBoardWriter

    writer: SummaryWriter = TensorBoardWriter(folder, purge_step=step + 1)
    return writer


class TensorBoard:
    """Scalars of every step and evaluation in `<run>/tensorboard`: `train/loss`, `train/lr`, `val/top1`, ..."""

    def __init__(self, *, open_writer: Callable[[Path, int], SummaryWriter] = summary_writer) -> None:
        if open_writer is summary_writer:
            optional_import("tensorboard", purpose="TensorBoard logs")  # now rather than when the run has started
        self.open_writer = open_writer
        self.writer: SummaryWriter | None = None

    def on_event(self, event: SweepEvent) -> None:
        """Write the event's scalars."""
        if isinstance(event, Started):
            self.close()
            self.writer = self.open_writer(event.out / "tensorboard", event.step)
        if self.writer is not None:
            for name, value, step in scalars(event):
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write everything to disk."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


class MLflow:
    """The run in an MLflow store: parameters from run.json, and the scalars of TensorBoard.

    A resumed run continues its own. It repeats the steps after its last checkpoint, whose points the store has already and cannot
    remove: each step of a curve is logged once.
    """

    def __init__(self) -> None:
        self._tracking = optional_import("mlflow.tracking", purpose="MLflow runs")
        self._entities = optional_import("mlflow.entities", purpose="MLflow runs")
        self._client: Any = None
        self._run = ""
        self._metrics: list[Any] = []
        self._logged: dict[str, int] = {}  # the last step of each curve that the store had when the run was resumed
        self._status = "KILLED"

    def on_event(self, event: SweepEvent) -> None:
        """Give the event's scalars to the store, some steps at a time."""
        if isinstance(event, Started):
            self.close()
            self._open(event)
        if self._client is None:
            return
        now = int(time.time() * 1000)
        self._metrics += [
            self._entities.Metric(name, value, now, step)
            for name, value, step in scalars(event)
            if step > self._logged.get(name, -1)
        ]
        if len(self._metrics) >= _BUFFER or isinstance(event, Evaluated):
            self._flush()
        if isinstance(event, Finished):
            self._status = "FINISHED" if event.complete else "KILLED"

    def close(self) -> None:
        """Write the last metrics and say how the run ended."""
        if self._client is not None:
            self._flush()
            self._client.set_terminated(self._run, self._status)
            self._client = None

    def _open(self, started: Started) -> None:
        folder = started.out.absolute()
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}"
        self._client = client = self._tracking.MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "vitlab")
        known = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if known is None else known.experiment_id
        tag = str(folder).replace("'", "")
        found = client.search_runs([experiment], filter_string=f"tags.`run_folder` = '{tag}'", max_results=1)
        self._logged = {}
        if found and started.resumed:
            self._run = found[0].info.run_id
            for name in found[0].data.metrics:
                self._logged[name] = max(point.step for point in client.get_metric_history(self._run, name))
            client.update_run(self._run, status="RUNNING")
            return
        self._run = client.create_run(experiment, run_name=folder.name, tags={"run_folder": tag}).info.run_id
        values = [self._entities.Param(key, value) for key, value in parameters(folder)]
        client.log_batch(self._run, params=values[:_MOST_PARAMETERS])

    def _flush(self) -> None:
        metrics, self._metrics = self._metrics, []
        if metrics:
            self._client.log_batch(self._run, metrics=metrics)


class WandB:
    """The run in Weights & Biases: offline files in `<run>/wandb`, which `wandb sync` uploads; online if WANDB_MODE is online."""

    def __init__(self) -> None:
        self._wandb = optional_import("wandb", purpose="runs in Weights & Biases")
        self._run: Any = None

    def on_event(self, event: SweepEvent) -> None:
        """Log the event's scalars."""
        if isinstance(event, Started):
            self.close()
            folder = event.out.absolute()
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "vitlab"),
                name=folder.name,
                dir=str(folder),
                mode=os.environ.get("WANDB_MODE", "offline"),
                config=dict(parameters(folder)),
                settings=self._wandb.Settings(silent=True, console="off", disable_git=True),
            )
        points = list(scalars(event))
        if self._run is not None and points:
            self._run.log({name: value for name, value, _ in points}, step=points[0][2])

    def close(self) -> None:
        """Write everything to disk."""
        if self._run is not None:
            self._run.finish()
            self._wandb.teardown()  # ends its service process, which would otherwise live as long as this one
            self._run = None


TRACKERS: dict[str, Callable[[], Callback]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def trackers(names: Sequence[str]) -> list[Callback]:
    """The trackers of these names; UsageError for an unknown one, ConfigError with its extra for one that is not installed."""
    for name in names:
        if name not in TRACKERS:
            known = list(TRACKERS)
            raise UsageError(f"no tracker called {name!r}", hint=did_you_mean(name, known) or f"they are {', '.join(known)}")
    return [TRACKERS[name]() for name in names]


def scalars(event: SweepEvent) -> Iterable[tuple[str, float, int]]:
    """(name, value, step) of every curve that the event adds a point to."""
    if isinstance(event, Stepped):
        values = {
            "loss": event.loss,
            "accuracy": event.accuracy,
            "lr": event.lr,
            "gradient_norm": event.gradient_norm,
            "images_per_sec": event.images_per_sec,
            "epoch": event.epoch,
        }
        yield from ((f"train/{name}", value, event.step) for name, value in values.items() if value is not None)
    elif isinstance(event, Evaluated):
        yield from ((f"val/{name}", value, event.step) for name, value in event.metrics.items())


def parameters(folder: Path) -> Iterator[tuple[str, str]]:
    """The settings in a run's run.json as `train.optimizer.lr` and text."""
    path = folder / "run.json"
    if path.exists():
        yield from _flat("", json.loads(path.read_text(encoding="utf-8")))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), inner)
    elif value not in (None, [], ""):
        yield re.sub(r"[^\w.\- /]", "_", prefix), str(value)[:_LONGEST]
