"""Several training runs side by side, a process and a core each, told of as one stream of events.

A run is a folder: one that is finished is not made again, one that was interrupted goes on. Whoever reads the events may stop;
then every run keeps a checkpoint. A process whose parent is gone ends by itself.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

from vitlab.config.run import RunConfig
from vitlab.config.serialize import Json
from vitlab.errors import TrainingError, VitlabError
from vitlab.io.atomic import write_text
from vitlab.training.control import Control
from vitlab.training.run_folder import RunDirectory

Verdict = Callable[["Job"], dict[str, Json]]

_TOLD_EVERY = 0.1  # seconds
_LISTEN = 0.2  # seconds until a wish to stop is looked at again
_PATIENCE = 30.0  # seconds for a process to write its last checkpoint
_RESULT = "result.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run by name, for the folder `out`; `after` names the jobs whose models it needs. `verdict` judges it when it is done.

    A verdict is a function of a module, so that another process finds it, and what it returns is kept in `out/result.json`.
    """

    name: str
    title: str
    run: RunConfig
    out: Path
    verdict: Verdict
    after: tuple[str, ...] = ()

    def result(self) -> dict[str, Json] | None:
        """What the verdict was, or None where the run is not done, or was another run."""
        path = self.out / _RESULT
        if not path.exists() or RunDirectory(self.out).config() != self.run:
            return None
        found: dict[str, Json] = json.loads(path.read_text())
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Went:
    """A job is at `step` of `steps`; `said` is how it does, in a few words."""

    job: str
    title: str
    step: int
    steps: int
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A job is finished, now or `before`, and was judged."""

    job: str
    title: str
    steps: int
    result: dict[str, Json]
    before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broke:
    """What a child process met."""

    message: str
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stopped:
    """A child process kept a checkpoint and stopped, as it was asked to."""


@dataclass(slots=True, kw_only=True)
class _Lane:
    process: BaseProcess
    pipe: Connection
    job: Job | None = None


Reason = Literal["finished", "stopped"]


def on_one_core(run: RunConfig) -> RunConfig:
    """Each run has a core to itself, so its images are drawn between its updates."""
    return replace(run, data=replace(run.data, loader=replace(run.data.loader, workers=0)))


def side_by_side(jobs: Sequence[Job], *, lanes: int, control: Control) -> Iterator[Went | Done]:
    """Make all runs, `lanes` at a time, in the given order as far as `after` allows; ends early where `control` asks to stop."""
    results = {job.name: found for job in jobs if (found := job.result()) is not None}
    for job in jobs:
        if job.name in results:
            yield Done(job=job.name, title=job.title, steps=job.run.train.steps, result=results[job.name], before=True)
    waiting = [job for job in jobs if job.name not in results]
    if not waiting:
        return
    started = [_start() for _ in range(min(lanes, len(waiting)))]
    try:
        while waiting or any(lane.job for lane in started):
            if control.stop is not None:
                return
            _hand_out(waiting, results, started)
            for lane in _speaking(started):
                for event in _heard(lane):
                    if isinstance(event, Done):
                        results[event.job] = event.result
                        lane.job = None
                    yield event
    finally:
        _stop(started)


def _start() -> _Lane:
    """A process that is no fork of this one, which would copy torch's threads half.

    Where there are forks it is one of a helper process that imports torch once for all of them and starts no thread.
    """
    if sys.platform == "win32":
        context: BaseContext = multiprocessing.get_context("spawn")
    else:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["vitlab.training", "torch._dynamo"])  # torch.optim imports the second
    ours, theirs = context.Pipe()
    process = context.Process(target=_lane, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return _Lane(process=process, pipe=ours)


def _hand_out(waiting: list[Job], results: dict[str, dict[str, Json]], lanes: list[_Lane]) -> None:
    for lane in lanes:
        ready = next((job for job in waiting if all(name in results for name in job.after)), None)
        if lane.job is None and ready is not None:
            waiting.remove(ready)
            lane.job = ready
            lane.pipe.send(ready)


def _speaking(lanes: list[_Lane]) -> list[_Lane]:
    heard = wait([lane.pipe for lane in lanes], timeout=_LISTEN)
    return [lane for lane in lanes if lane.pipe in heard]


def _heard(lane: _Lane) -> Iterator[Went | Done]:
    """The next thing a lane says; its end without a word is an error too."""
    try:
        event = lane.pipe.recv()
    except EOFError:
        lane.process.join()
        doing = "" if lane.job is None else f" during '{lane.job.title}'"
        raise TrainingError(
            f"a process ended{doing} with code {lane.process.exitcode}",
            hint="the same command goes on from the last checkpoint; a code of -9 often means that memory ran out",
        ) from None
    if isinstance(event, _Broke):
        raise TrainingError(event.message, hint=event.hint)
    if isinstance(event, Went | Done):
        yield event


def _stop(lanes: list[_Lane]) -> None:
    """Ask every process to stop with a checkpoint, and wait for it."""
    for lane in lanes:
        try:
            lane.pipe.send(None)
        except OSError:
            continue  # it is gone already
    until = time.monotonic() + _PATIENCE
    for lane in lanes:
        while lane.process.is_alive() and time.monotonic() < until:
            try:
                if lane.pipe.poll(_LISTEN):
                    lane.pipe.recv()  # a full pipe would keep it from ending
            except (EOFError, OSError):
                break
        lane.process.join(timeout=max(0.0, until - time.monotonic()))
        if lane.process.is_alive():
            lane.process.kill()
            lane.process.join()
        lane.pipe.close()


def _lane(pipe: Connection) -> None:
    """The child process: one run after the other, on one core, until it is told that there are no more."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal's processes; the parent tells us
    torch.set_num_threads(1)
    try:
        while (job := pipe.recv()) is not None:
            try:
                _make(job, pipe)
            except VitlabError as error:
                pipe.send(_Broke(message=f"{job.title}: {error.message}", hint=error.hint))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone: what was learned is on the disk


def _make(job: Job, pipe: Connection) -> None:
    from vitlab.training import train
    from vitlab.training.events import Finished, Stepped

    control = Control()
    last, steps = 0.0, job.run.train.steps
    pipe.send(Went(job=job.name, title=job.title, step=0, steps=steps))
    (job.out / _RESULT).unlink(missing_ok=True)
    for event in train(job.run, out=job.out, control=control):
        if control.stop is None and pipe.poll():
            control.request_stop("terminated")
        if isinstance(event, Stepped) and (time.monotonic() - last >= _TOLD_EVERY or event.step == steps):
            last = time.monotonic()
            told = "" if event.accuracy is None else f"{event.accuracy:.0%} of the batch right"
            pipe.send(Went(job=job.name, title=job.title, step=event.step, steps=steps, said=told))
        if isinstance(event, Finished) and event.model is None:
            pipe.send(_Stopped())
            return
    result = job.verdict(job)
    write_text(job.out / _RESULT, json.dumps(result))
    pipe.send(Done(job=job.name, title=job.title, steps=steps, result=result))
