"""What the verbs that train do alike: make a run or its plan, tell of it, and give its end to the shell."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitlab.cli.changes import Changes
from vitlab.cli.table import print_facts, print_json, print_rows
from vitlab.cli.talk import note
from vitlab.config.data import Split
from vitlab.config.overrides import DataFacts
from vitlab.config.run import RunConfig
from vitlab.config.serialize import Json, to_json
from vitlab.recipes.reasons import model_said

if TYPE_CHECKING:
    from vitlab.training.callbacks import Callback
    from vitlab.training.control import Control
    from vitlab.training.events import Finished
    from vitlab.training.sweep import SweepEvent, SweepFinished


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to be made: where, how it is told of, and what is known of its images. `rates` make it a sweep."""

    run: RunConfig
    out: str
    changes: Changes
    json: bool
    data: DataFacts | None = None
    rates: tuple[float, ...] = ()

    @property
    def judge(self) -> Split | None:
        """What a sweep's final run is judged by: images that had no part in the choice."""
        return "test" if self.data is not None and "test" in self.data.splits else None


def perform(job: Job) -> int:
    """Make the run, or with --dry-run its plan; the exit code."""
    from vitlab.training.control import keep_memory
    from vitlab.training.plan import this_machine

    if not this_machine().accelerator:
        keep_memory()
    if job.changes.dry_run:
        _print_plan(job)
        return 0
    from vitlab.training.callbacks import run_callbacks
    from vitlab.training.control import INTERRUPTED, TERMINATED, Control, signals
    from vitlab.training.distributed import is_main_process
    from vitlab.training.sweep import SweepFinished

    control = Control()
    listeners = _listeners(job)
    with signals(control):
        last = run_callbacks(_events(job, control), listeners)
    if isinstance(last, SweepFinished):
        _print_sweep(job, last)
        return 0
    ended = _finished(last)
    if ended.reason in ("terminated", "interrupted"):
        return TERMINATED if ended.reason == "terminated" else INTERRUPTED
    if not is_main_process():
        return 0
    if job.rates:
        print_facts({"recipe": job.run.name, "ended": ended.reason, "sweep": job.out}, json=job.json)
    else:
        print_facts(_ending(job, ended, Path(job.out)), json=job.json)
    return 0


def _events(job: Job, control: Control) -> Iterator[SweepEvent]:
    if job.rates:
        from vitlab.training.sweep import sweep

        return sweep(job.run, job.rates, out=job.out, evaluate_split=job.judge, control=control, override=job.changes.override)
    from vitlab.training import train

    return train(job.run, out=job.out, control=control, override=job.changes.override)


def _listeners(job: Job) -> list[Callback]:
    """Who hears of the run: under torchrun the process that leads speaks for all."""
    from vitlab.training.callbacks import TensorBoard, console_callback
    from vitlab.training.distributed import is_main_process

    if not is_main_process():
        return []
    told: list[Callback] = [console_callback(sys.stderr)]
    if job.changes.tensorboard:
        told.append(TensorBoard())
    return told


def _finished(last: SweepEvent) -> Finished:
    from vitlab.training.events import Finished

    assert isinstance(last, Finished)
    return last


def _ending(job: Job, ended: Finished, folder: Path) -> dict[str, Json]:
    """What is left when a run is over."""
    return {
        "recipe": job.run.name,
        "ended": ended.reason,
        "steps": ended.step,
        **({"metrics": dict(ended.metrics)} if job.json else dict(ended.metrics)),
        "judged_by": job.judge if job.rates else job.run.data.evaluate_split,
        "seconds": round(ended.seconds, 1),
        "model": str(ended.model or _last(folder)),
        "config": str(folder / "run.json"),
        "events": str(folder / "events.jsonl"),
        "report": f"vitlab report {folder}",
    }


def _last(folder: Path) -> Path:
    """What the other verbs take of a run's last checkpoint: its file, or the folder of its parts."""
    whole = folder / "last" / "model.safetensors"
    return whole if whole.exists() else folder / "last"


def _print_sweep(job: Job, swept: SweepFinished) -> None:
    from vitlab.training.distributed import is_main_process

    if not is_main_process():
        return
    names = list(next(trial.metrics for trial in swept.trials if trial.metrics))
    rows: list[dict[str, Json]] = [
        {"lr": trial.lr, **{name: trial.metrics.get(name) for name in names}, "chosen": trial.lr == swept.lr}
        for trial in swept.trials
    ]
    ending = _ending(job, swept.finished, Path(job.out) / "final")
    if job.json:
        print_json({"trials": list(rows), "lr": swept.lr, **ending, "sweep": str(Path(job.out) / "sweep.json")})
        return
    print_rows(rows, json=False)
    print()
    print_facts({**ending, "sweep": str(Path(job.out) / "sweep.json")}, json=False)


def _print_plan(job: Job) -> None:
    from vitlab.training.callbacks import duration
    from vitlab.training.distributed import is_main_process
    from vitlab.training.plan import plan

    if not is_main_process():
        return
    made = plan(job.run, data=job.data)
    for line in made.notes:
        note(f"note: {line}")
    runs = len(job.rates) + 1
    facts: dict[str, Json] = {
        "recipe": job.run.name,
        "model": model_said(job.run.model),
        "start": job.run.start,
        "out": job.out,
        "image_size": list(job.run.model.image_size),
    }
    counted = to_json(made)
    assert isinstance(counted, dict)
    facts |= {name: value for name, value in counted.items() if name != "notes"}
    total = None if made.seconds is None else made.seconds * runs
    facts |= {"runs": runs, "total_seconds": total}
    if job.json:
        print_json({**facts, "notes": list(made.notes), "run": to_json(job.run)})
        return
    facts |= {"total_seconds": None if total is None else f"{total:,.0f} ({duration(total)})"}
    print_facts(facts, json=False)


def default_out(dataset: str, *, after: str = "") -> str:
    """`runs/pets` for `data/pets/`, `pets.zip` or `folder:data/pets`."""
    place = dataset.partition(":")[0] if dataset.startswith("generated") else dataset.rpartition(":")[2]
    stem = Path(place).name.partition(".")[0] or "run"
    return f"runs/{re.sub(r'[^A-Za-z0-9_-]+', '-', stem)}{after}"
