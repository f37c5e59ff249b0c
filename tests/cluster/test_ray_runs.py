"""Runs of studies and sweeps as tasks of a Ray cluster: the models of one machine, bit for bit, also if a worker is killed."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.conftest import RayCluster, ray_processes
from tests.reports.small import run_of, write_pack
from tests.training.test_sweep import LRS, swept, tiny_run
from vitlab.checkpoints import load
from vitlab.checkpoints.native import tensors_digest
from vitlab.config.hardware import RayConfig
from vitlab.config.serialize import Json
from vitlab.studies.study import Done, Job, JobProgress, run_jobs
from vitlab.training.events import Control
from vitlab.training.sweep import SweepFinished, TrialFinished, sweep

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]  # a loaded machine imports torch slowly, in many processes


def weights_of(job: Job) -> dict[str, Json]:
    """An evaluation: the digest of the weights."""
    return {"digest": tensors_digest(load(job.out / "model.safetensors").model.state_dict())}


def jobs(root: Path) -> list[Job]:
    """Two runs, of which the first needs the second."""
    run = run_of(write_pack(root / "squares.npz"), steps=40)
    run = replace(run, train=replace(run.train, evaluate_every=0, save_every=5))
    return [
        Job(
            name=name,
            title=f"run {name}",
            run=replace(run, train=replace(run.train, seed=seed)),
            out=root / name,
            evaluate=weights_of,
            after=after,
        )
        for name, seed, after in (("a", 0, ("b",)), ("b", 1, ()))
    ]


def test_the_runs_of_a_study_are_tasks_that_survive_a_kill_and_are_not_repeated(ray_cluster: RayCluster, tmp_path: Path) -> None:
    local = {
        event.job: event.result
        for event in run_jobs(jobs(tmp_path / "local"), processes=1, control=Control())
        if isinstance(event, Done)
    }
    ray, killed, order, results = RayConfig(address=ray_cluster.address), list[int](), list[str](), dict[str, dict[str, Json]]()
    for event in run_jobs(jobs(tmp_path / "ray"), processes=1, control=Control(), ray=ray):
        if isinstance(event, Done):
            order.append(event.job)
            results[event.job] = event.result
        if isinstance(event, JobProgress) and not killed:
            killed = ray_processes("_run")
            os.kill(killed[0], signal.SIGKILL)
    assert killed
    assert order == ["b", "a"]
    assert results == local
    again = list(run_jobs(jobs(tmp_path / "ray"), processes=1, control=Control(), ray=RayConfig(address="127.0.0.1:1")))
    assert [isinstance(event, Done) and event.before for event in again] == [True, True]  # without asking any cluster


def test_a_sweep_chooses_and_trains_what_one_process_does(ray_cluster: RayCluster, tmp_path: Path) -> None:
    one = swept(tmp_path / "one")[-1]
    ray = RayConfig(address=ray_cluster.address)
    events = list(sweep(tiny_run(), LRS, out=tmp_path / "ray", evaluate_split="test", ray=ray))
    many = events[-1]
    assert isinstance(one, SweepFinished)
    assert isinstance(many, SweepFinished)
    assert (many.trials, many.lr, many.finished.metrics) == (one.trials, one.lr, one.finished.metrics)
    assert (tmp_path / "ray" / "sweep.json").read_bytes() == (tmp_path / "one" / "sweep.json").read_bytes()
    again = list(sweep(tiny_run(), LRS, out=tmp_path / "ray", evaluate_split="test", ray=ray))
    assert [event.cached for event in again if isinstance(event, TrialFinished)] == [True, True]
    assert again[-1] == many
