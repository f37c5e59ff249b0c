"""Runs as tasks of a Ray cluster: several at once, each resumed from its last checkpoint when its worker or node dies.

    for name, event in run_tasks(ray, {"a": work, ...}, share=share, stop=...):    # with Returned(value=...) at the end of each

A task is a function of one argument, `send`, which reports an event and answers whether the run should stop with a checkpoint. The
folders of runs and data must be at the same path on every node.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitlab.errors import ClusterError, VitlabError
from vitlab.io.display import printable
from vitlab.io.ray_cluster import Mailbox, Resources, error_text, explained, raise_error

Send = Callable[[object], bool]
"""Reports an event; True if the run should save a checkpoint and stop."""
Task = Callable[[Send], Any]

RETRIES = 4
_POLL = 0.2  # seconds between two looks for events
_STOP_SECONDS = 60.0  # for all tasks to write their last checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The value of a task that has ended."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What each task has: cores, as many threads, and a GPU or none."""

    threads: int
    gpu: bool

    @classmethod
    def of(cls, have: Resources, tasks: int, device: str) -> Share:
        """A GPU each where there are GPUs; else the cores are divided, and no task has more threads than one process here has."""
        if have.gpus and device != "cpu":
            return cls(threads=1, gpu=True)
        return cls(threads=max(1, min(have.cores // max(1, tasks), have.node_cores, torch.get_num_threads())), gpu=False)


class Tasks:
    """Tasks on a cluster; more may be added while others run."""

    def __init__(self, ray: Any, share: Share) -> None:
        self._ray = ray
        self._mailbox = ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1, max_task_retries=-1).remote()
        self._remote = ray.remote(_run).options(
            num_cpus=share.threads, num_gpus=1 if share.gpu else 0, max_retries=RETRIES, retry_exceptions=False
        )
        self._share = share
        self._running: dict[Any, str] = {}

    def __len__(self) -> int:
        return len(self._running)

    def add(self, name: str, work: Task) -> None:
        """Start a task as soon as the cluster has room for it."""
        self._running[self._remote.remote(self._mailbox, name, str(Path.cwd()), self._share.threads, work)] = name

    def events(self) -> Iterator[tuple[str, object]]:
        """The events of the next moment: those that tasks sent, and `Returned` of each that has ended; or raises its error."""
        ray = self._ray
        try:
            ended, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=_POLL) if self._running else ([], [])
            yield from ray.get(self._mailbox.take.remote())
            for ref in ended:
                name = self._running.pop(ref)
                value, error = ray.get(ref)
                raise_error(error)
                yield name, Returned(value=value)
        except ray.exceptions.RayError as error:
            raise explained(error, doing="a run on Ray failed") from error

    def stop(self) -> None:
        """Ask every task to save a checkpoint and stop, and wait for it; one that does not is ended."""
        if not self._running:
            return
        ray = self._ray
        try:
            ray.get(self._mailbox.stop.remote())
            _, late = ray.wait(list(self._running), num_returns=len(self._running), timeout=_STOP_SECONDS)
        except ray.exceptions.RayError:  # the cluster is gone, and its tasks with it
            return
        for ref in late:
            ray.cancel(ref, force=True)


def run_tasks(ray: Any, tasks: Mapping[str, Task], *, share: Share, stop: Callable[[], bool]) -> Iterator[tuple[str, object]]:
    """Run all tasks; their events by name, and `Returned` at the end of each. When `stop` says so, all end with a checkpoint."""
    running = Tasks(ray, share)
    try:
        for name, work in tasks.items():
            running.add(name, work)
        asked = False
        while len(running):
            yield from running.events()
            if stop() and not asked:
                asked = True
                running.stop()
    finally:
        running.stop()


def _run(mailbox: Any, name: str, base: str, threads: int, work: Task) -> tuple[Any, str]:
    """A task: its value, and the error that ended it as text."""
    import ray

    try:
        os.chdir(base)
    except OSError:
        missing = ClusterError(
            f"{socket.gethostname()} has no folder {printable(base)}",
            hint="runs need a disk that all nodes share, at the same path",
        )
        return None, error_text(missing)
    torch.set_num_threads(threads)
    try:
        return work(lambda event: bool(ray.get(mailbox.put.remote(name, event)))), ""
    except VitlabError as error:
        return None, error_text(error)
    except OSError as error:  # the disk's fault or the system's
        return None, error_text(ClusterError(f"{name}: cannot use {error.filename or base}: {error.strerror}"))
