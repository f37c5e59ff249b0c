"""Training goes on while a checkpoint is written: the file has the weights of its step, an error of the writer ends the run,
and the end waits for the writer."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.runs import three
from tests.training.small import last, run_to, same, small_run
from vitlab.errors import TrainingError
from vitlab.training import checkpointing, train
from vitlab.training.checkpointing import BackgroundWriter, read_snapshot
from vitlab.training.events import Finished, Saved
from vitlab.training.run_folder import RunDirectory
from vitlab.training.step import Snapshot


def test_weights_that_change_during_a_save_do_not_leak_into_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = BackgroundWriter.start

    def start(self: BackgroundWriter, *arguments: object) -> None:
        slow(self, *arguments)  # type: ignore[arg-type]
        time.sleep(0.02)

    run = small_run(steps=5)
    kept = replace(run, train=replace(run.train, keep=5))
    run_to(kept, tmp_path / "one")
    monkeypatch.setattr(BackgroundWriter, "start", start)
    run_to(kept, tmp_path / "other")
    for step in range(1, 6):
        one, other = (tmp_path / name / "checkpoints" / f"step-{step}" for name in ("one", "other"))
        assert same(read_snapshot(one), read_snapshot(other))


def test_an_error_of_the_writer_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def write(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitlab.training.checkpointing.write_snapshot", write)
    with pytest.raises(TrainingError, match=r"cannot write .*step-1: No space"):
        run_to(small_run(), tmp_path / "run")


def test_a_checkpoint_is_reported_once_it_is_on_disk_and_the_end_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = checkpointing.write_snapshot

    def slow(folder: Path, taken: Snapshot) -> None:
        time.sleep(0.1)
        real(folder, taken)

    monkeypatch.setattr(checkpointing, "write_snapshot", slow)
    out = tmp_path / "run"
    saved = list[int]()
    for event in train(three(), out=out):
        if isinstance(event, Saved):
            saved.append(event.step)
            assert (event.path / "progress.json").exists()
            assert RunDirectory(out).linked_step("last") == event.step
            assert event.seconds >= 0.1
        if isinstance(event, Finished):
            assert RunDirectory(out).linked_step("last") == event.step == 8
    assert saved == [*range(1, 9), 8]  # and once more as the best


def test_without_memory_for_a_thread_training_waits_for_the_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_to(three(), tmp_path / "whole")

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    run_to(three(), tmp_path / "run")
    monkeypatch.undo()
    assert same(last(tmp_path / "run"), last(tmp_path / "whole"))
