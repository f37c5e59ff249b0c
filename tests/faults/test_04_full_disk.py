"""The disk is full: the last checkpoint stays as it was, nothing half written stays, and the error names the path, the bytes
needed and the bytes free."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests import processes
from tests.faults.runs import child, three
from tests.training.small import last, run_to, same, small_run
from vitlab.errors import TrainingError
from vitlab.training import train
from vitlab.training.checkpointing import read_snapshot
from vitlab.training.events import Started
from vitlab.training.run_folder import RunDirectory


def test_a_full_disk_leaves_the_last_checkpoint_and_says_how_much_is_needed(warm: Path, tmp_path: Path) -> None:
    run = small_run(steps=30)
    run_to(run, tmp_path / "run", stop=3)
    before = last(tmp_path / "run")

    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    with child(run, tmp_path, warm, before=limit) as process:
        _, said = process.communicate(timeout=processes.LIMIT)
    assert process.returncode != 0
    assert "bytes are needed" in said
    assert same(read_snapshot(tmp_path / "run" / "last"), before)
    assert not list((tmp_path / "run").rglob("*.vitlab-tmp"))


def test_a_full_disk_is_reported_with_path_and_bytes_and_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_to(three(), tmp_path / "run", stop=2)
    before = {path: path.read_bytes() for path in RunDirectory(tmp_path / "run").step_path(2).iterdir()}
    tried = list[int]()

    def full(descriptor: int) -> None:
        tried.append(descriptor)
        raise OSError(28, "No space left on device")

    run = three()
    rare = replace(run, train=replace(run.train, save_every=2))
    monkeypatch.setattr(os, "fsync", full)
    seen = train(rare, out=tmp_path / "run")
    monkeypatch.undo()
    assert isinstance(next(seen), Started)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        TrainingError, match=r"cannot write .*step-4.*: No space left on device; [\d,]+ bytes are needed and"
    ) as raised:
        list(seen)
    assert raised.value.hint is not None
    assert "unchanged" in raised.value.hint
    monkeypatch.undo()
    assert len(tried) == 3  # into the run folder, beside it, and among the temporary files
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert {path: path.read_bytes() for path in RunDirectory(tmp_path / "run").step_path(2).iterdir()} == before
    assert not [path for path in (tmp_path / "run").rglob("*") if path.name.endswith(".vitlab-tmp")]
