"""The engine of the studies: a study yields lists of runs, receives their results, and returns a verdict.

    def my_study(out: Path) -> Study:
        results = yield (Job(...), Job(...))            # trained side by side; finished ones are not repeated
        return Verdict(rows=[[...]], data={...}, sentences=("...",), plots={"plot.png": draw(...)})

    run_study(my_study(out), out, notify=print, progress=silent)

A study that is stopped or killed resumes with the same call, and ends with the same verdict, bit for bit.

Its runs are trained side by side, one process and one core each, and reported as one stream of events:

    for event in run_jobs(jobs, processes=2, control=Control()):   # JobProgress and Done

Each run has a folder. A finished run is not repeated and an interrupted one resumes. When the consumer stops, every run saves a
checkpoint. A child process whose parent is gone ends by itself.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn, Protocol

from vitlab.checkpoints import load
from vitlab.config.data import Split
from vitlab.config.evaluation import EvaluateConfig
from vitlab.config.hardware import RayConfig
from vitlab.config.overrides import differences
from vitlab.config.run import RunConfig
from vitlab.config.serialize import Json, from_json, to_json
from vitlab.data.opening import open_dataset
from vitlab.errors import TrainingError, VitlabError
from vitlab.evaluation.classification import Classification
from vitlab.evaluation.evaluation import evaluate
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.io.atomic import locked, write_bytes, write_text
from vitlab.io.display import Block, Displayed, ProgressCallback, json_text
from vitlab.io.files import read_bytes
from vitlab.io.ray_cluster import connected, resources
from vitlab.models.cost import cost
from vitlab.training.events import INTERRUPTED, TERMINATED, Control, signals
from vitlab.training.plan import this_machine
from vitlab.training.run_data import DataRecord, data_record, same_data
from vitlab.training.run_folder import RunDirectory

# --- the runs: a process each, or Ray -----------------------------------------------------------------------------------------

Evaluate = Callable[["Job"], dict[str, Json]]
"""Evaluates a finished job. It is a function of a module, so that a child process can import it."""

_REPORT_EVERY = 0.1  # seconds between two progress events of a run
_POLL = 0.2  # seconds between two checks for a stop request
_STOP_TIMEOUT = 30.0  # seconds for a process to write its last checkpoint
_RESULT = "result.json"
_SYNTHETIC = "synthetic"
_EVALUATION = EvaluateConfig(workers=0, resamples=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run called `name` in the folder `out`; `after` names the jobs whose models it needs.

    `evaluate` is called when the run is finished; its result is saved as `out/result.json`.
    """

    name: str
    title: str
    run: RunConfig
    out: Path
    evaluate: Evaluate
    after: tuple[str, ...] = ()

    def result(self, records: dict[object, DataRecord] | None = None) -> dict[str, Json] | None:
        """The saved result, or None if this run is not finished or the folder holds another run, or one on other data.

        `records` are those of the data of other jobs, so that data that many of them share is read once.
        """
        path, directory = self.out / _RESULT, RunDirectory(self.out)
        if not path.exists() or directory.config() != self.run:
            return None
        data, known = self.run.data, {} if records is None else records
        shared = (data.dataset, data.train_split, data.evaluate_split, data.rule, self.run.train.masked is None)
        if shared not in known:
            known[shared] = data_record(self.run)
        if not same_data(self.run, directory.data_path, now=known[shared]):
            return None
        try:
            found = json.loads(read_bytes(path, error=TrainingError))
        except (ValueError, RecursionError):
            return None  # damaged: the finished run is evaluated again
        return found if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """A job is at `step` of `steps`; `note` says how it does."""

    job: str
    title: str
    step: int
    steps: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A job is finished and evaluated; `before` if an earlier call did it."""

    job: str
    title: str
    steps: int
    result: dict[str, Json]
    before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """`correct` of `total` images of a split are classified correctly."""

    correct: int
    total: int

    @property
    def accuracy(self) -> float:
        """0 to 1."""
        return self.correct / self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """The error of a child process."""

    message: str
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stopped:
    """A child process saved a checkpoint and stopped, as requested."""


@dataclass(slots=True, kw_only=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: Job | None = None


def on_one_core(run: RunConfig) -> RunConfig:
    """The run without loader workers: it has one core, on which it reads its images between its steps."""
    return replace(run, data=replace(run.data, loader=replace(run.data.loader, workers=0)))


def run_jobs(
    jobs: Sequence[Job], *, processes: int, control: Control, ray: RayConfig | None = None
) -> Iterator[JobProgress | Done]:
    """Run all jobs, `processes` at a time, in the given order as far as `after` allows; end early if `control` requests a stop.

    With `ray` each job is a task of a cluster, which runs as many at a time as it has cores.
    """
    records = dict[object, DataRecord]()
    results = {job.name: found for job in jobs if (found := job.result(records)) is not None}
    for job in jobs:
        if job.name in results:
            yield Done(job=job.name, title=job.title, steps=job.run.train.steps, result=results[job.name], before=True)
    waiting = [job for job in jobs if job.name not in results]
    if not waiting:
        return
    if ray is not None:
        yield from _run_on_ray(waiting, results, control, ray)
        return
    workers = [_start() for _ in range(min(processes, len(waiting)))]
    try:
        while waiting or any(worker.job for worker in workers):
            if control.stop is not None:
                return
            _assign(waiting, results, workers)
            ready = wait([worker.pipe for worker in workers], timeout=_POLL)
            for worker in workers:
                if worker.pipe not in ready or (event := _received(worker)) is None:
                    continue
                if isinstance(event, Done):
                    results[event.job] = event.result
                    worker.job = None
                yield event
    finally:
        _stop(workers)


def _run_on_ray(
    waiting: list[Job], results: dict[str, dict[str, Json]], control: Control, config: RayConfig
) -> Iterator[JobProgress | Done]:
    from vitlab.training.on_ray import Returned, Share, Tasks

    with connected(config.address, purpose="clusters") as ray:
        resources(ray)
        tasks = Tasks(ray, Share(threads=1, gpu=False))
        try:
            while waiting or len(tasks):
                if control.stop is not None:
                    return
                for job in [job for job in waiting if all(name in results for name in job.after)]:
                    waiting.remove(job)
                    tasks.add(job.title, partial(_on_ray, job))
                for _, event in tasks.events():
                    found = event.value if isinstance(event, Returned) else event
                    if isinstance(found, Done):
                        results[found.job] = found.result
                    if isinstance(found, JobProgress | Done):
                        yield found
        finally:
            tasks.stop()


def _on_ray(job: Job, send: Callable[[object], bool]) -> Done | None:
    """A job as a task: it resumes from its last checkpoint if Ray starts it again. None if it was asked to stop."""
    stop, done = False, list[Done]()

    class Pipe:
        def send(self, event: object) -> None:
            nonlocal stop
            if isinstance(event, Done):
                done.append(event)
            else:
                stop = send(event) or stop

        def poll(self) -> bool:
            return stop

    try:
        _run(job, Pipe())
    except VitlabError as error:
        raise type(error)(f"{job.title}: {error.message}", hint=error.hint) from error
    return done[0] if done else None


def evaluate_run(job: Job) -> dict[str, Json]:
    """Accuracy on the test split and, for a dataset of a fixed size, on the training split: {split: `Counts` as JSON}."""
    data = job.run.data
    checkpoint = load(job.out / "model.safetensors")
    splits: dict[str, Split] = {"test": "test"}
    if not data.dataset.startswith(_SYNTHETIC):  # an endless dataset cannot be learned by heart
        splits["train"] = data.train_split
    found: dict[str, Json] = {}
    for name, split in splits.items():
        dataset = open_dataset(data.dataset, split=split, rule=data.rule)
        targets = match_by_name(dataset.labels, checkpoint.labels, classes=checkpoint.config.num_classes)
        result = evaluate(checkpoint, dataset, targets, config=_EVALUATION).result
        assert isinstance(result, Classification)
        found[name] = to_json(Counts(correct=result.top1.correct, total=result.top1.total))
    return found


def counts_of(result: dict[str, Json], split: str) -> Counts:
    """What `evaluate_run` counted on one split."""
    counts = from_json(Counts, result[split], where=_RESULT)
    assert isinstance(counts, Counts)
    return counts


def _start() -> _Worker:
    """Start a child process. It is not a fork of this one, which would copy torch's threads in an undefined state.

    Where the system can fork, it is a fork of a helper process that imports torch once for all of them and starts no thread.
    """
    if sys.platform == "win32":
        context: BaseContext = multiprocessing.get_context("spawn")
    else:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["vitlab.training", "torch._dynamo"])  # torch.optim imports the second
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process=process, pipe=ours)


def _assign(waiting: list[Job], results: dict[str, dict[str, Json]], workers: list[_Worker]) -> None:
    """Give each idle worker the next job whose needed models exist."""
    for worker in workers:
        ready = next((job for job in waiting if all(name in results for name in job.after)), None)
        if worker.job is None and ready is not None:
            waiting.remove(ready)
            worker.job = ready
            worker.pipe.send(ready)


def _received(worker: _Worker) -> JobProgress | Done | None:
    """The next event of a worker. Raises TrainingError if its run failed or its process died."""
    try:
        event = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        during = "" if worker.job is None else f" during '{worker.job.title}'"
        raise TrainingError(
            f"a process ended{during} with code {worker.process.exitcode}",
            hint="run the same command to resume from the last checkpoint; code -9 often means that memory ran out",
        ) from None
    if isinstance(event, _Failed):
        raise TrainingError(event.message, hint=event.hint)
    return event if isinstance(event, JobProgress | Done) else None


def _stop(workers: list[_Worker]) -> None:
    """Request every process to save a checkpoint and stop, and wait for it."""
    for worker in workers:
        try:
            worker.pipe.send(None)
        except OSError:
            continue  # it has ended already
    until = time.monotonic() + _STOP_TIMEOUT
    for worker in workers:
        while worker.process.is_alive() and time.monotonic() < until:
            try:
                if worker.pipe.poll(_POLL):
                    worker.pipe.recv()  # a full pipe would block the process
            except (EOFError, OSError):
                break
        worker.process.join(timeout=max(0.0, until - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


def _child(pipe: Connection) -> None:
    """The child process: one job after the other, on one core, until the parent sends None."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    torch.set_num_threads(1)
    try:
        while (job := pipe.recv()) is not None:
            try:
                _run(job, pipe)
            except VitlabError as error:
                pipe.send(_Failed(message=f"{job.title}: {error.message}", hint=error.hint))
            except ConnectionError:
                raise
            except OSError as error:  # the disk's fault or the system's
                pipe.send(_Failed(message=f"{job.title}: cannot use {error.filename or job.out}: {error.strerror}", hint=None))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone; the checkpoints are on disk


class _Pipe(Protocol):
    """Where a job reports, and learns that it should stop."""

    def send(self, event: object, /) -> None:
        """Report."""
        ...

    def poll(self) -> bool:
        """Whether there is a request to stop."""
        ...


def _run(job: Job, pipe: _Pipe) -> None:
    from vitlab.training import train
    from vitlab.training.events import Finished, Stepped

    control = Control()
    last, steps = 0.0, job.run.train.steps
    pipe.send(JobProgress(job=job.name, title=job.title, step=0, steps=steps))
    _refuse_other_settings(job)
    job.out.mkdir(parents=True, exist_ok=True)
    with locked(job.out / "lock"):  # the child process of a killed study saves its last checkpoint before it ends
        (job.out / _RESULT).unlink(missing_ok=True)
    for event in train(job.run, out=job.out, control=control):
        if control.stop is None and pipe.poll():
            control.request_stop("terminated")
        if isinstance(event, Stepped) and (time.monotonic() - last >= _REPORT_EVERY or event.step == steps):
            last = time.monotonic()
            note = "" if event.accuracy is None else f"batch accuracy {event.accuracy:.0%}"
            pipe.send(JobProgress(job=job.name, title=job.title, step=event.step, steps=steps, note=note))
        if isinstance(event, Finished) and event.model is None:
            pipe.send(_Stopped())
            return
    result = job.evaluate(job)
    write_text(job.out / _RESULT, json.dumps(result))
    pipe.send(Done(job=job.name, title=job.title, steps=steps, result=result))


def _refuse_other_settings(job: Job) -> None:
    before = RunDirectory(job.out).config()
    if before is not None and (changed := differences(before, job.run, course=True)):
        raise TrainingError(
            f"{job.out} holds a run with other settings: {changed[0]}", hint="choose another folder with `out`, or delete this one"
        )


# --- a study, from its runs to its verdict ------------------------------------------------------------------------------------

Notify = Callable[[str], None]
Results = Mapping[str, dict[str, Json]]
"""What each run's evaluation found, by the run's name."""

_MOST_PROCESSES = 8


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verdict(Displayed):
    """What a study found: its tables, the numbers behind them, its conclusions, a sentence each, and its plots by file name."""

    rows: Sequence[Sequence[Mapping[str, Any]]]
    data: Any
    sentences: Sequence[str] = ()
    plots: Mapping[str, bytes] = field(default_factory=dict)

    def tables(self) -> Iterator[Block]:
        """The tables, then the sentences."""
        yield from self.rows
        yield "\n".join(self.sentences)

    def to_json(self) -> dict[str, Any]:
        """The numbers and the sentences."""
        return {"results": self.data, "verdict": list(self.sentences)}


Study = Generator[Sequence[Job], Results, Verdict]


def run_study(study: Study, out: Path, *, notify: Notify, progress: ProgressCallback, ray: RayConfig | None = None) -> Verdict:
    """Run a study to its end in the folder `out`; its plots and its numbers, `verdict.json`, are written there.

    With `ray` its runs are tasks of a cluster.
    """
    out.mkdir(parents=True, exist_ok=True)
    control = Control()
    with locked(out / "lock", refuse=lambda holder: _in_use(out, holder)), stoppable(control):
        jobs, results = next(study), dict[str, dict[str, Json]]()
        try:
            while True:
                results |= _finished(jobs, control, notify, progress, ray)
                jobs = study.send(results)
        except StopIteration as ended:
            verdict: Verdict = ended.value
        for name, image in verdict.plots.items():
            write_bytes(out / name, image)
            notify(f"plot: {out / name}")
        write_text(out / "verdict.json", json_text(verdict.to_json(), indent=2) + "\n")
    return verdict


def cores() -> int:
    """The number of runs at once: the cores that this process may use, at most 8."""
    return min(_MOST_PROCESSES, this_machine().cores)


def _in_use(out: Path, holder: str) -> TrainingError:
    return TrainingError(f"{out} is in use by {holder}", hint="wait for it, stop it, or choose another folder")


def _finished(
    jobs: Sequence[Job], control: Control, notify: Notify, progress: ProgressCallback, ray: RayConfig | None
) -> dict[str, dict[str, Json]]:
    """The results of all jobs; their progress is reported on the way. Ends the program if it is asked to stop."""
    found, clock = dict[str, dict[str, Json]](), _TimeLeft(jobs)
    for event in run_jobs(jobs, processes=cores(), control=control, ray=ray):
        clock.see(event)
        if isinstance(event, JobProgress):
            progress(event.title, event.step, event.steps)
        else:
            found[event.job] = event.result
            progress(event.title, event.steps, event.steps)
            if not event.before:
                notify(f"{event.title}: done{accuracy_text(event)}; {len(found)} of {len(jobs)} runs{clock.text()}")
        progress("all runs, %", round(100 * clock.fraction), 100)
    if len(found) < len(jobs):
        notify("stopped: finished runs and checkpoints are kept; run the same command to resume")
        stop(control)
    return found


class _TimeLeft:
    """How much of the jobs is done, in multiply-adds, and how long the rest will take at the speed so far."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._total = {job.name: cost(job.run.model).macs * job.run.train.steps * job.run.data.loader.batch_size for job in jobs}
        self._done = dict.fromkeys(self._total, 0.0)
        self._before = 0.0
        self._began = time.monotonic()

    def see(self, event: JobProgress | Done) -> None:
        part = 1.0 if isinstance(event, Done) else event.step / event.steps
        self._done[event.job] = max(self._done[event.job], part * self._total[event.job])
        if isinstance(event, Done) and event.before:
            self._before += self._total[event.job]

    @property
    def fraction(self) -> float:
        """0 to 1."""
        return sum(self._done.values()) / max(1, sum(self._total.values()))

    def text(self) -> str:
        done, total = sum(self._done.values()), sum(self._total.values())
        if done <= self._before or done >= total:
            return ""
        seconds = (time.monotonic() - self._began) * (total - done) / (done - self._before)
        return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"


def accuracy_text(event: Done) -> str:
    """The accuracy on test images, if the evaluation has one."""
    if "test" not in event.result:
        return ""
    counts = counts_of(event.result, "test")
    return f", accuracy {100 * counts.accuracy:.1f} % on {counts.total:,} test images"


def stoppable(control: Control) -> AbstractContextManager[None]:
    """Ctrl-C and SIGTERM stop the study with checkpoints, in a program's main thread."""
    return signals(control) if threading.current_thread() is threading.main_thread() else nullcontext()


def stop(control: Control) -> NoReturn:
    """A study that was asked to stop ends as the program would have."""
    if control.stop == "terminated":
        raise SystemExit(TERMINATED)
    raise KeyboardInterrupt if control.stop == "interrupted" else SystemExit(INTERRUPTED)
