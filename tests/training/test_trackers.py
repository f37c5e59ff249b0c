"""Trackers get the curves of a run: TensorBoard, MLflow and Weights & Biases, each without a network."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import vitlab
from tests.training.small import small_run
from tests.training.test_callbacks import EVENTS, started, stepped
from vitlab.config.serialize import to_text
from vitlab.errors import ConfigError, UsageError
from vitlab.training.callbacks import MLflow, TensorBoard, WandB, parameters, scalars, trackers
from vitlab.training.events import Started
from vitlab.training.sweep import SweepEvent, TrialStarted


def test_steps_and_evaluations_are_curves() -> None:
    stated = {name: (value, step) for event in EVENTS for name, value, step in scalars(event)}
    assert stated["train/loss"] == (1.0, 1)
    assert stated["train/images_per_sec"] == (128.0, 1)
    assert stated["val/top1"] == (0.8125, 2)
    assert not list(scalars(EVENTS[-1]))


class Board:
    """A writer that records."""

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.step, self.closed = folder, step, False
        self.points: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.points.append((tag, scalar_value, global_step))

    def close(self) -> None:
        self.closed = True


def test_each_run_has_its_own_curves_which_continue_at_the_resumed_step() -> None:
    made: list[Board] = []

    def opened(folder: Path, step: int) -> Board:
        made.append(Board(folder, step))
        return made[-1]

    board = TensorBoard(open_writer=opened)
    board.on_event(TrialStarted(number=1, runs=2, lr=0.1, final=False, out=Path("a")))
    for event in EVENTS:
        board.on_event(event)
    board.on_event(started(step=40))
    board.on_event(stepped(41))
    board.close()
    board.close()
    assert [(writer.folder, writer.step, writer.closed) for writer in made] == [
        (Path("runs/x/tensorboard"), 0, True),
        (Path("runs/x/tensorboard"), 40, True),
    ]
    assert ("val/top1", 0.8125, 2) in made[0].points
    assert {step for _, _, step in made[1].points} == {41}


def test_a_missing_tensorboard_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match="TensorBoard") as caught:
        TensorBoard()
    assert caught.value.hint == "pip install 'vitlab[track]'"


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_reads_back_the_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard()
    board.on_event(Started(step=0, steps=9, parameters=1, trainable=1, images=1, out=tmp_path, resumed=False))
    for event in EVENTS[1:]:
        board.on_event(event)
    board.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert found.Scalars("train/loss")[0].value == 1.0
    assert found.Scalars("val/top1")[0].step == 2


def _events(folder: Path) -> list[SweepEvent]:
    """The events of a run in a folder that has a run.json."""
    folder.mkdir()
    (folder / "run.json").write_text(to_text(small_run()))
    first = EVENTS[0]
    assert isinstance(first, Started)
    return [replace(first, out=folder), *EVENTS[1:]]


def test_the_settings_of_a_run_are_flat_names(tmp_path: Path) -> None:
    _events(tmp_path / "run")
    found = dict(parameters(tmp_path / "run"))
    assert (found["train.optimizer.lr"], found["data.loader.batch_size"], found["name"]) == ("0.003", "12", "small")
    assert dict(parameters(tmp_path)) == {}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_has_the_curves_in_a_local_store_and_a_resumed_run_continues_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracking = pytest.importorskip("mlflow.tracking")
    events = _events(tmp_path / "run")
    first: list[SweepEvent] = [replace(started(step=40), out=tmp_path / "run"), stepped(41), stepped(42), stepped(43)]
    # Killed after step 43; the last checkpoint is of step 41, so that 42 and 43 are repeated.
    second: list[SweepEvent] = [replace(started(step=41), out=tmp_path / "run"), *map(stepped, (42, 43, 44))]
    for part in (events, first, second):
        tracker = MLflow()
        for event in part:
            tracker.on_event(event)
        tracker.close()
        tracker.close()
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("vitlab").experiment_id])
    assert run.data.params["train.optimizer.lr"] == "0.003"
    assert run.data.metrics["val/top1"] == 0.8125
    assert [point.step for point in client.get_metric_history(run.info.run_id, "train/loss")] == [1, 41, 42, 43, 44]
    assert run.info.status == "KILLED"  # its last part has no end


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_weights_and_biases_writes_offline_files_into_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    tracker = WandB()
    for event in _events(tmp_path / "run"):
        tracker.on_event(event)
    tracker.close()
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    content = file.read_bytes()
    assert b"val/top1" in content
    assert b"train.optimizer.lr" in content


def test_an_unknown_tracker_and_a_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no tracker called 'tensorbord'") as caught:
        trackers(["tensorbord"])
    assert caught.value.hint == "did you mean tensorboard?"
    for verb in (vitlab.finetune, vitlab.pretrain):
        with pytest.raises(UsageError, match="no tracker called 'tensorbord'"):
            verb("nothing/here", track="tensorbord")  # said before the data is opened
    for package in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, f"{package}.tracking", raising=False)
        with pytest.raises(ConfigError, match=f"{package}, which is not installed") as refused:
            trackers([package])
        assert refused.value.hint == f"pip install 'vitlab[{package}]'"
