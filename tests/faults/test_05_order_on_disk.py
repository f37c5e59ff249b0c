"""The power fails while a checkpoint is written: each file is on disk before it has its name, and `last` moves after all of
them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.runs import three
from tests.training.small import run_to


def test_files_reach_the_disk_before_their_names_and_the_link_moves_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each file is synced, then named; their folder is synced, then named; its parent is synced; only then `last` moves."""
    calls = list[tuple[str, str]]()
    fsync, rename = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        calls.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    def renamed(dataset: Path, target: Path) -> None:
        calls.append(("name", Path(target).name))
        rename(dataset, target)

    out = tmp_path / "run"
    run_to(three(), out, stop=2)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    run_to(three(), out, stop=3)
    monkeypatch.undo()
    about = calls[calls.index(("name", "run.json")) + 1 if ("name", "run.json") in calls else 0 :]
    named = [name for kind, name in about if kind == "name"]
    assert named.index("model.safetensors") < named.index("progress.json") < named.index("step-3") < named.index("last")
    for name in ("model.safetensors", "average.safetensors", "optimizer.safetensors", "progress.json"):
        place = about.index(("name", name))
        assert about[place - 1][0] == "sync"
        assert about[place - 1][1].startswith(f".{name}")
    place = about.index(("name", "step-3"))
    assert about[place - 1][0] == "sync"
    assert about[place - 1][1].startswith(".step-3")
    assert about[place + 1] == ("sync", "checkpoints")
    assert about[about.index(("name", "last")) + 1] == ("sync", "run")
