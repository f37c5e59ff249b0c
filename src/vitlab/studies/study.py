"""The engine of the studies: a study yields lists of runs, receives their results, and returns a verdict.

    def my_study(out: Path) -> Study:
        results = yield (Job(...), Job(...))            # trained side by side; finished ones are not repeated
        return Verdict(rows=[[...]], data={...}, sentences=("...",), plots={"plot.png": draw(...)})

    run_study(my_study(out), out, notify=print, progress=silent)

A study that is stopped or killed resumes with the same call, and ends with the same verdict, bit for bit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from vitlab.config.cluster import RayConfig
from vitlab.config.serialize import Json
from vitlab.errors import TrainingError
from vitlab.io.atomic import locked, write_bytes, write_text
from vitlab.io.display import Block, Displayed, ProgressCallback, json_text
from vitlab.models.cost import cost
from vitlab.studies.runner import Done, Job, JobProgress, counts_of, run_jobs
from vitlab.training.control import INTERRUPTED, TERMINATED, Control, signals
from vitlab.training.plan import this_machine

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

    def __repr__(self) -> str:
        return str(self)


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
