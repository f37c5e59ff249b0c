"""Runs side by side equal runs one after another, wait for the runs they need, and resume after any end."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest

from tests import processes
from tests.reports.small import run_of, write_pack
from vitlab.config.serialize import Json
from vitlab.errors import TrainingError
from vitlab.studies.study import Counts, Done, Job, JobProgress, _child, counts_of, run_jobs
from vitlab.training import train
from vitlab.training.events import Control


def parameters_of(job: Job) -> dict[str, Json]:
    """An evaluation: the digest of the model's file."""
    import hashlib

    return {"digest": hashlib.sha256((job.out / "model.safetensors").read_bytes()).hexdigest()}


def broken(job: Job) -> dict[str, Json]:
    """An evaluation that ends its process."""
    os._exit(7)


def jobs(root: Path, *, steps: int = 4) -> list[Job]:
    pack = write_pack(root / "squares.npz")
    made = []
    for seed, after in ((0, ("b",)), (1, ())):
        run = run_of(pack, steps=steps)
        run = replace(run, train=replace(run.train, seed=seed, evaluate_every=0))
        name = "ab"[seed]
        made.append(Job(name=name, title=f"run {name}", run=run, out=root / name, evaluate=parameters_of, after=after))
    return made


def test_a_job_waits_for_what_it_needs_and_the_number_of_processes_changes_nothing(tmp_path: Path) -> None:
    results = {}
    for processes_at_once in (1, 2):
        root = tmp_path / str(processes_at_once)
        events = list(run_jobs(jobs(root), processes=processes_at_once, control=Control()))
        order = [event.job for event in events if isinstance(event, Done)]
        assert order == ["b", "a"]
        first_of_a = next(place for place, event in enumerate(events) if event.job == "a")
        assert isinstance(events[first_of_a - 1], Done)
        assert all(0 <= event.step <= event.steps == 4 for event in events if isinstance(event, JobProgress))
        # The file contains the path of its data, which differs between the two roots: compare within one root only.
        results[processes_at_once] = {event.job: event.result for event in events if isinstance(event, Done)}
    again = list(run_jobs(jobs(tmp_path / "2"), processes=2, control=Control()))
    assert all(isinstance(event, Done) and event.before for event in again)
    assert {event.job: event.result for event in again if isinstance(event, Done)} == results[2]


def test_the_result_of_version_0_1_still_reads() -> None:
    assert counts_of({"test": {"right": 3, "of": 4}}, "test") == Counts(correct=3, total=4)
    assert counts_of({"test": {"correct": 3, "total": 4}}, "test").accuracy == 0.75


def test_a_job_whose_config_changed_is_not_done(tmp_path: Path) -> None:
    made = [replace(job, after=()) for job in jobs(tmp_path)][:1]
    list(run_jobs(made, processes=1, control=Control()))
    assert made[0].result() is not None
    changed = replace(made[0], run=replace(made[0].run, train=replace(made[0].run.train, steps=5)))
    assert changed.result() is None


def test_a_job_on_other_data_or_with_a_damaged_result_is_not_done(tmp_path: Path) -> None:
    job = replace(jobs(tmp_path)[0], after=())
    for _ in train(job.run, out=job.out):
        pass
    (job.out / "result.json").write_text("{}")
    assert job.result() == {}
    for damage in (b"", b"\xff", b"3"):
        (job.out / "result.json").write_bytes(damage)
        assert job.result() is None
    (job.out / "result.json").write_text("{}")
    with np.load(tmp_path / "squares.npz") as file:
        arrays = {name: file[name] for name in file.files}
    arrays["train_images"] = 255 - arrays["train_images"]
    np.savez(tmp_path / "squares.npz", **arrays)
    assert job.result() is None


def test_a_job_that_cannot_write_its_folder_is_an_error_with_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    job = replace(jobs(tmp_path)[0], out=tmp_path / "file" / "a")
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its Ctrl-C
    ours, theirs = Pipe()
    ours.send(job)
    ours.send(None)
    _child(theirs)
    assert isinstance(ours.recv(), JobProgress)
    assert ours.recv().message == f"run a: cannot use {tmp_path}/file/a: Not a directory"


def test_a_folder_with_a_run_of_other_settings_is_refused_with_the_setting(tmp_path: Path) -> None:
    job = replace(jobs(tmp_path)[0], after=())
    for _ in train(job.run, out=job.out):
        pass
    other = replace(job, run=replace(job.run, train=replace(job.run.train, smoothing=0.2)))
    with pytest.raises(TrainingError, match=r"run a: .*a holds a run with other settings: train.smoothing 0.0 -> 0.2") as refused:
        list(run_jobs([other], processes=1, control=Control()))
    assert refused.value.hint is not None
    assert "`out`" in refused.value.hint


def test_a_stop_request_saves_a_checkpoint(tmp_path: Path) -> None:
    made = [replace(job, after=()) for job in jobs(tmp_path, steps=100_000)][:1]
    control = Control()
    for event in run_jobs(made, processes=1, control=control):
        if event.step if isinstance(event, JobProgress) else True:
            control.request_stop("interrupted")
    assert (tmp_path / "a" / "last").exists()
    assert made[0].result() is None


def test_an_error_of_a_run_is_reported_with_its_name(tmp_path: Path) -> None:
    made = [replace(job, after=(), run=replace(job.run, start=str(tmp_path / "none.safetensors"))) for job in jobs(tmp_path)][:1]
    with pytest.raises(TrainingError, match="run a: "):
        list(run_jobs(made, processes=1, control=Control()))


def test_a_process_that_dies_is_reported_with_its_code(tmp_path: Path) -> None:
    made = [replace(job, after=(), evaluate=broken) for job in jobs(tmp_path)][:1]
    with pytest.raises(TrainingError, match="during 'run a' with code 7"):
        list(run_jobs(made, processes=1, control=Control()))


PARENT = """
import sys
from pathlib import Path
from tests.studies.test_study import jobs
from vitlab.studies.study import JobProgress, run_jobs
from vitlab.training import train
from vitlab.training.events import Control

if __name__ == "__main__":
    for event in run_jobs(jobs(Path(sys.argv[1]), steps=1_000_000)[1:], processes=1, control=Control()):
        if isinstance(event, JobProgress) and event.step:
            print(event.step, flush=True)
"""


def test_a_child_whose_parent_is_killed_ends_by_itself(tmp_path: Path, checkout: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), str(tmp_path / "runs")]
    with processes.started(command, env={"PYTHONPATH": str(checkout)}) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline(), parent.communicate(timeout=processes.LIMIT)[1]
        holder = (tmp_path / "runs" / "b" / "lock").read_text()
        child = int(holder.split()[1])
        parent.kill()
        parent.wait(processes.LIMIT)
        processes.eventually(lambda: not processes.is_running(child))
    assert json.loads((tmp_path / "runs" / "b" / "run.json").read_text())["train"]["steps"] == 1_000_000
