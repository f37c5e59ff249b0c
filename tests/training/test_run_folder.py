"""The files of a run: the order in which they reach the disk, their permissions, and that every changed byte is noticed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import stat
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.training.small import last, run_to, same, small_run
from vitlab.config import ViTConfig
from vitlab.config.run import RunConfig
from vitlab.config.train import Optimizer
from vitlab.errors import CheckpointError, ConfigError, TrainingError
from vitlab.training import checkpointing, run_folder, train
from vitlab.training.checkpointing import read_snapshot
from vitlab.training.events import Finished, Saved, Started, Warned
from vitlab.training.run_folder import RunDirectory
from vitlab.training.state import Snapshot


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped after step 5, with its last three checkpoints."""
    out = tmp_path_factory.mktemp("kept") / "run"
    run_to(three(), out, stop=5)
    return out


def three(*, steps: int = 8) -> RunConfig:
    run = small_run(steps=steps)
    return replace(run, train=replace(run.train, keep=3, evaluate_every=0))


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


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_every_file_has_the_permissions_of_the_umask(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        run_to(three(), tmp_path / "run", stop=1)
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and not path.is_symlink()]
    assert {path.name for path in files} >= {"model.safetensors", "optimizer.safetensors", "progress.json", "run.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {mode}


@pytest.fixture
def folder(kept: Path, tmp_path: Path) -> Path:
    """A copy of a checkpoint, to damage."""
    copy = tmp_path / "step-5"
    shutil.copytree(RunDirectory(kept).step_path(5), copy)
    return copy


def test_thirty_truncations_and_two_hundred_flipped_bytes_are_all_noticed(folder: Path) -> None:
    rng = np.random.default_rng(7)
    files = sorted(folder.iterdir())
    whole = {path: path.read_bytes() for path in files}
    for number in range(230):
        path = files[number % len(files)]
        content = whole[path]
        place = int(rng.integers(len(content)))
        flipped = content[:place] + bytes([content[place] ^ (1 << int(rng.integers(8)))]) + content[place + 1 :]
        path.write_bytes(content[:place] if number < 30 else flipped)
        with pytest.raises(CheckpointError):
            read_snapshot(folder)
        path.write_bytes(content)
    read_snapshot(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("progress.json", b"[" * 200_000),
        ("progress.json", b"{}"),
        ("progress.json", b"\xff\xfe"),
        ("progress.json", b'{"sha256": 1, "files": {}, "progress": {"step": 1e999}}'),
        ("model.safetensors", (2**62).to_bytes(8, "little") + b"{}"),
        ("model.safetensors", b"PK\x03\x04"),
        ("stranger.safetensors", b"more than was written"),
    ],
)
def test_a_hostile_file_is_a_checkpoint_error(name: str, content: bytes, folder: Path) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError):
        read_snapshot(folder)


class Payload:
    """What a pickle would run."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def test_a_pickle_in_a_run_folder_is_never_opened(kept: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(kept, out, symlinks=True)
    for path in RunDirectory(out).step_path(5).iterdir():
        path.write_bytes(pickle.dumps(Payload(tmp_path / "marker")))
    events = run_to(three(), out)
    assert isinstance(events[0], Started)
    assert events[0].step == 4
    assert not (tmp_path / "marker").exists()


def test_the_run_resumes_from_the_newest_undamaged_checkpoint_and_names_the_damaged(kept: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(kept, out, symlinks=True)
    for step in (4, 5):
        path = RunDirectory(out).step_path(step) / "optimizer.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
    events = run_to(three(), out)
    assert [event.message.split(":")[0] for event in events if isinstance(event, Warned)] == [
        "ignored the checkpoint of step 5",
        "ignored the checkpoint of step 4",
    ]
    run_to(three(), tmp_path / "whole")
    assert same(last(out), last(tmp_path / "whole"))


def test_a_checkpoint_of_another_model_is_refused_with_the_difference(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "run", symlinks=True)
    run = three()
    assert isinstance(run.model, ViTConfig)
    wider = replace(run, model=replace(run.model, mlp_width=48))
    with pytest.raises(CheckpointError, match=r"encoder\.blocks\.0\.mlp\.up\.weight is 32x32 and should be 48x32"):
        run_to(wider, tmp_path / "run", override=True)
    deeper = replace(run, model=replace(run.model, depth=3))
    with pytest.raises(CheckpointError, match=r"encoder\.blocks\.2\.\S+ is missing"):
        run_to(deeper, tmp_path / "run", override=True)
    assert same(last(tmp_path / "run"), last(kept))


def test_the_state_of_another_optimizer_is_refused(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "run", symlinks=True)
    run = three()
    other = replace(run, train=replace(run.train, optimizer=Optimizer(kind="sgd")))
    with pytest.raises(ConfigError, match="SGD has no exp_avg"):
        run_to(other, tmp_path / "run", override=True)


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


def test_an_old_checkpoint_that_cannot_be_deleted_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run_folder, "_remove", refuse)
    run = replace(three(), train=replace(three().train, keep=1))
    events = run_to(run, tmp_path / "run", stop=3)
    (warned, *_) = [event for event in events if isinstance(event, Warned)]
    assert warned.message.startswith("cannot delete")
    assert RunDirectory(tmp_path / "run").steps() == [1, 2, 3]


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
    ) as told:
        list(seen)
    assert told.value.hint is not None
    assert "unchanged" in told.value.hint
    monkeypatch.undo()
    assert len(tried) == 1
    assert {path: path.read_bytes() for path in RunDirectory(tmp_path / "run").step_path(2).iterdir()} == before
    assert not [path for path in (tmp_path / "run").rglob("*") if path.name.endswith(".vitlab-tmp")]


def test_progress_json_says_how_far_the_run_is(kept: Path) -> None:
    told = json.loads((kept / "last" / "progress.json").read_text())
    assert (told["progress"]["step"], told["progress"]["position"], told["progress"]["seed"]) == (5, 60, 0)
    assert set(told["files"]) == {"model.safetensors", "average.safetensors", "optimizer.safetensors"}
