"""Old checkpoints are deleted, the best and the last never; one that cannot be deleted is a warning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.runs import three
from tests.training.small import run_to, small_run
from vitlab.training import run_folder
from vitlab.training.events import Warned
from vitlab.training.run_folder import RunDirectory


def test_the_best_and_the_last_checkpoint_are_kept_and_a_failed_deletion_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path / "run")
    run = small_run()
    run_to(replace(run, train=replace(run.train, keep=5)), tmp_path / "run")
    steps = directory.steps()
    assert {16, 17, 18, 19, 20} <= set(steps)
    directory.set_link("best", 17)
    monkeypatch.setattr("shutil.rmtree", _refuse)
    troubles = directory.delete_old(1)
    assert len(troubles) == len(steps) - 2
    assert directory.delete_old(1) == []  # told once
    monkeypatch.undo()
    RunDirectory(tmp_path / "run").delete_old(1)
    assert directory.steps() == [17, 20]


def _refuse(path: Path, **_: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_an_old_checkpoint_that_cannot_be_deleted_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run_folder, "_remove", refuse)
    run = replace(three(), train=replace(three().train, keep=1))
    events = run_to(run, tmp_path / "run", stop=3)
    (warned, *_) = [event for event in events if isinstance(event, Warned)]
    assert warned.message.startswith("cannot delete")
    assert RunDirectory(tmp_path / "run").steps() == [1, 2, 3]
