"""A run that is stopped and resumed ends bit for bit like an uninterrupted one."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.small import last, run_to, same, small_run
from vitlab.checkpoints import load
from vitlab.data.opening import open_dataset
from vitlab.training import train
from vitlab.training.events import Evaluated, Started
from vitlab.training.run_folder import RunDirectory


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(small_run(), out)
    return out


def test_evaluation_uses_the_averaged_weights_and_leaves_the_others_alone(uninterrupted: Path) -> None:
    found = [event for event in RunDirectory(uninterrupted).events() if event["event"] == "evaluated"]
    assert [event["step"] for event in found] == [10, 20]
    assert all(event["averaged"] for event in found)
    assert Evaluated.event == "evaluated"


def test_a_checkpoint_of_version_0_1_0_resumes(tmp_path: Path) -> None:
    """Its progress.json has the old names."""
    run_to(small_run(), tmp_path / "run", stop=3)
    path = tmp_path / "run" / "last" / "progress.json"
    data = json.loads(path.read_text())
    progress = data["progress"]
    progress |= {"unseen": progress.pop("evaluation_due"), "in_a_row": progress.pop("skipped_in_a_row")}
    del data["sha256"]
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(data | {"sha256": digest}))
    started = run_to(small_run(), tmp_path / "run", stop=4)[0]
    assert isinstance(started, Started)
    assert (started.resumed, started.step) == (True, 3)


def test_a_dataset_that_is_open_is_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(small_run(steps=6), data=replace(small_run().data, dataset="digits"))
    model = replace(run.model, num_classes=10)
    run = replace(run, model=model, train=replace(run.train, evaluate_every=0))
    run_to(run, tmp_path / "alone")
    dataset = open_dataset("digits", split="all")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the dataset is opened again")

    monkeypatch.setattr("vitlab.training.run_data.open_dataset", refuse)
    list(train(run, out=tmp_path / "given", dataset=dataset))
    assert same(last(tmp_path / "given"), last(tmp_path / "alone"))


def test_a_run_killed_after_its_last_evaluation_logs_it_once(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(uninterrupted, out, symlinks=True)
    lines = (out / "events.jsonl").read_text().splitlines(keepends=True)
    last_evaluation = max(number for number, line in enumerate(lines) if '"evaluated"' in line)
    (out / "events.jsonl").write_text("".join(lines[: last_evaluation + 1]))
    (out / "model.safetensors").unlink()
    run_to(small_run(), out)
    found, expected = (
        [event for event in RunDirectory(place).events() if event["event"] == "evaluated"] for place in (out, uninterrupted)
    )
    assert found == expected


def test_the_model_has_the_metrics_of_the_last_evaluation_also_after_a_resume(tmp_path: Path) -> None:
    run = replace(small_run(), train=replace(small_run().train, evaluate_every=8))  # the last one, after step 20, is not the best
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    evaluated = [event for event in run_to(run, whole) if isinstance(event, Evaluated)][-1]
    assert (evaluated.step, evaluated.best) == (20, False)
    assert load(whole / "model.safetensors").metrics == evaluated.metrics
    run_to(run, resumed, stop=18)
    run_to(run, resumed)
    assert (resumed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
