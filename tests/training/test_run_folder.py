"""The files of a run: the order in which they reach the disk, their permissions, and that every changed byte is noticed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.faults.runs import three
from tests.training.small import last, run_to, same
from vitlab.config import ViTConfig
from vitlab.config.train import Optimizer
from vitlab.errors import CheckpointError, ConfigError
from vitlab.training.checkpointing import read_snapshot
from vitlab.training.events import Started, Warned
from vitlab.training.run_folder import RunDirectory


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped after step 5, with its last three checkpoints."""
    out = tmp_path_factory.mktemp("kept") / "run"
    run_to(three(), out, stop=5)
    return out


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


def test_progress_json_says_how_far_the_run_is(kept: Path) -> None:
    found = json.loads((kept / "last" / "progress.json").read_text())
    assert (found["progress"]["step"], found["progress"]["position"], found["progress"]["seed"]) == (5, 60, 0)
    assert set(found["files"]) == {"model.safetensors", "average.safetensors", "optimizer.safetensors"}
