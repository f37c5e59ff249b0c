"""`Run`, the result of training, and `EventStream`, a run as it happens.

`vitlab.train` returns an `EventStream`; `vitlab.finetune` and `vitlab.pretrain` consume one with `run_to_end` and return the `Run`.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlab.checkpoints.reading import model_in
from vitlab.checkpoints.remote_copy import copied_run
from vitlab.config.data import Split
from vitlab.config.published import PublishedAccuracy, published_accuracies
from vitlab.config.run import RunConfig
from vitlab.config.serialize import to_json
from vitlab.errors import TrainingError
from vitlab.io.address import Address, Place, address_of, is_address, place_of
from vitlab.io.display import Block, Displayed
from vitlab.recipes.reasons import model_in_words
from vitlab.training.events import Finished, Reason, finished_from_json
from vitlab.training.remote_run import stage_of
from vitlab.training.run_folder import RunDirectory

if TYPE_CHECKING:
    from torch import nn

    from vitlab.checkpoints import Checkpoint
    from vitlab.config.hardware import RayConfig
    from vitlab.config.overrides import DataFacts
    from vitlab.data.dataset import Dataset
    from vitlab.training.callbacks import Callback
    from vitlab.training.plan import Plan
    from vitlab.training.sweep import FoundLr, SweepEvent, SweepFinished, Trial

RUN_JSON = "run.json"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Run(Displayed):
    """A training run. `path` is its folder; every function that takes a model takes a run.

    `metrics` are those of the last evaluation, on the split `evaluated_on`: loss, top1, ... `reason` says why the run ended after
    `step` steps: finished, terminated, interrupted, max-time or patience. `plan` is set, and nothing is trained, after `dry_run`.
    `found_lr` is set, and nothing is trained, after `find_lr`.
    `trials` are the learning rates that a sweep tried; `notes` say what was chosen and why. `address` is set if the run is on a
    server; `path` is then its local stage or copy.
    """

    path: Path
    config: RunConfig
    reason: Reason | None = None
    step: int = 0
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    evaluated_on: Split | None = None
    notes: tuple[str, ...] = ()
    plan: Plan | None = None
    trials: tuple[Trial, ...] = ()
    runs: int = 1
    address: str | None = None
    found_lr: FoundLr | None = None

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """The run in a folder or at an address, as far as it came."""
        if isinstance(path, str) and is_address(path):
            address = address_of(path)
            return replace(cls.load(copied_run(address)), address=str(address))
        directory = RunDirectory(Path(path))
        config = directory.config() if Path(path).is_dir() else None
        if config is None:
            raise TrainingError(
                f"{path} is not the folder of a run: it has no {RUN_JSON}", hint="pretrain, finetune and train make such folders"
            )
        ends = (finished_from_json(event) for event in reversed(directory.events()))
        last = next((ended for ended in ends if ended is not None), None)
        if last is None:
            return cls(path=Path(path), config=config, evaluated_on=config.data.evaluate_split)
        return cls(
            path=Path(path),
            config=config,
            reason=last.reason,
            step=last.step,
            seconds=last.seconds,
            metrics=last.metrics,
            evaluated_on=config.data.evaluate_split,
        )

    @property
    def file(self) -> Path:
        """The model to use: `model.safetensors` of a finished run, else the last checkpoint."""
        return model_in(self.path)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The trained checkpoint, loaded on first use."""
        from vitlab.checkpoints import load

        return load(self.file)

    @property
    def published(self) -> tuple[PublishedAccuracy, ...]:
        """Accuracies that were published for this model on this dataset: fine-tuned, or trained from scratch as this run was."""
        return published_accuracies(self.config.model, self.config.data.dataset, upstream=self.config.start is None)

    @property
    def model(self) -> nn.Module:
        """The trained model."""
        return self.checkpoint.model

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the classes."""
        return self.checkpoint.labels

    def __fspath__(self) -> str:
        return str(self.file)

    def tables(self) -> Iterable[Block]:
        """The plan, or the trials of a sweep and how the run ended; then what was published for this model and dataset."""
        beside: list[Block] = [[entry.row() for entry in self.published]] if self.published else []
        if self.found_lr is not None:
            return self.found_lr.tables()
        if self.plan is not None:
            planned: Block = self._planned(self.plan) | {"total_seconds": _said(self._total(self.plan))}
            return [planned, *beside, "\n".join(f"note: {note}" for note in self.plan.notes)]
        if not self.trials:
            return [self._unfinished_sweep()] if self.runs > 1 else [self._ended(self.metrics), *beside]
        return [self._trials(), self._ended(self.metrics) | {"sweep": self._sweep()}, *beside]

    def to_json(self) -> dict[str, Any]:
        """The same as plain values; of a plan also the config, which `train` takes."""
        if self.found_lr is not None:
            return {**self.found_lr.to_json(), "notes": list(self.notes)}
        if self.plan is not None:
            planned = self._planned(self.plan) | {"total_seconds": self._total(self.plan)}
            beside = {"published": to_json(self.published), "notes": list(self.plan.notes)}
            return {**planned, **beside, "run": to_json(self.config)}
        ended = self._ended({"metrics": dict(self.metrics)}) | {"published": to_json(self.published), "notes": list(self.notes)}
        if not self.trials:
            return self._unfinished_sweep() if self.runs > 1 else ended
        return {
            "trials": self._trials(),
            "lr": self.config.train.optimizer.lr,
            **ended,
            "sweep": self._sweep(),
        }

    def _sweep(self) -> str:
        """The file of a sweep's trials, beside the folder of its last run."""
        if self.address is None:
            return str(self.path.parent / "sweep.json")
        return f"{self.address.rstrip('/').rpartition('/')[0]}/sweep.json"

    def _unfinished_sweep(self) -> dict[str, Any]:
        return {"recipe": self.config.name, "ended": self.reason, "sweep": str(self.path)}

    def _ended(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        stopped = self.reason not in ("finished", "patience")
        return {
            "recipe": self.config.name,
            "ended": self.reason,
            "steps": self.step,
            **metrics,
            "evaluated_on": self.evaluated_on,
            "seconds": round(self.seconds, 1),
            "model": None if stopped and not _has_model(self.path) else self._shown(self.file),
            "config": self._shown(self.path / RUN_JSON),
            "events": self._shown(self.path / "events.jsonl"),
            "report": f"vitlab report {self._shown(self.path)}",
        }

    def _shown(self, path: Path) -> str:
        """A path of the run, as an address if the run is on a server."""
        if self.address is None:
            return str(path)
        inside = "" if path == self.path else f"/{path.relative_to(self.path).as_posix()}"
        return self.address.rstrip("/") + inside

    def _trials(self) -> list[dict[str, Any]]:
        names = list(next((trial.metrics for trial in self.trials if trial.metrics), {}))
        chosen = self.config.train.optimizer.lr
        return [
            {"lr": trial.lr, **{name: trial.metrics.get(name) for name in names}, "chosen": trial.lr == chosen}
            for trial in self.trials
        ]

    def _planned(self, plan: Plan) -> dict[str, Any]:
        counted = to_json(plan)
        assert isinstance(counted, dict)
        return {
            "recipe": self.config.name,
            "model": model_in_words(self.config.model),
            "start": self.config.start,
            "out": self._shown(self.path),
            "image_size": list(self.config.model.image_size),
            **{name: value for name, value in counted.items() if name != "notes"},
            "runs": self.runs,
        }

    def _total(self, plan: Plan) -> float | None:
        return None if plan.seconds is None else plan.seconds * self.runs


def _said(seconds: float | None) -> str | None:
    from vitlab.training.callbacks import duration

    return None if seconds is None else f"{seconds:,.0f} ({duration(seconds)})"


def _has_model(folder: Path) -> bool:
    return (folder / "model.safetensors").exists() or (folder / "last").exists()


class EventStream(Iterator["SweepEvent"]):
    """A run as it happens: iterate it to train. `run_to_end` iterates it for you and returns the `Run`.

    Nothing happens before the first event is asked for. A stream that nobody iterates warns when it is thrown away.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        out: str | Path | Address,
        lrs: Sequence[float] = (),
        data: DataFacts | None = None,
        dataset: Dataset | None = None,
        device: str = "auto",
        override: bool = False,
        dry_run: bool = False,
        track: Sequence[str] = (),
        notes: tuple[str, ...] = (),
        ray: RayConfig | None = None,
    ) -> None:
        from vitlab.training.events import Control

        self.config = config
        self._ray = ray
        self.place: Place = place_of(out)
        self.path = stage_of(self.place) if isinstance(self.place, Address) else self.place
        self.control = Control()
        self._lrs = tuple(lrs)
        self._data = data
        self._dataset = dataset
        self._device = device
        self._override = override
        self._dry_run = dry_run
        self._track = tuple(track)
        self._notes = notes
        self._events: Iterator[SweepEvent] | None = None

    def __next__(self) -> SweepEvent:
        if self._events is None:
            self._events = self._begin()
        return next(self._events)

    def __del__(self) -> None:
        if self._events is None:
            warnings.warn(
                f"the events of train(..., out={str(self.place)!r}) were never iterated, so nothing was trained:"
                " write `for event in vitlab.train(...)`, or call .run_to_end()",
                RuntimeWarning,
                stacklevel=2,
            )

    def run_to_end(self, *, quiet: bool = False) -> Run:
        """Train to the end, or to a signal, with a progress display on stderr unless `quiet`; the `Run`.

        Ctrl-C and SIGTERM end the run with a checkpoint: the same call resumes it.
        """
        from vitlab.training.callbacks import run_callbacks
        from vitlab.training.events import signals
        from vitlab.training.sweep import SweepFinished

        if self._dry_run:
            return self._planned()
        here: AbstractContextManager[None] = (
            signals(self.control) if threading.current_thread() is threading.main_thread() else nullcontext()
        )
        with here:
            last = run_callbacks(self, _display(quiet))
        if isinstance(last, SweepFinished):
            return self._swept(last)
        assert isinstance(last, Finished)
        return self._run(last, self.place, self.config)

    def _begin(self) -> Iterator[SweepEvent]:
        if self._dry_run:
            return iter(())
        from vitlab.training.events import keep_memory
        from vitlab.training.plan import this_machine
        from vitlab.training.sweep import sweep
        from vitlab.training.trainer import train

        if not this_machine().accelerator:
            keep_memory()
        if self._lrs:
            events: Iterator[SweepEvent] = sweep(
                self.config,
                self._lrs,
                out=self.place,
                evaluate_split=self._final_split,
                dataset=self._dataset,
                device=self._device,
                control=self.control,
                override=self._override,
                ray=self._ray,
            )
        else:
            events = train(
                self.config,
                out=self.place,
                dataset=self._dataset,
                device=self._device,
                control=self.control,
                override=self._override,
            )
        return _tracked(events, self._track) if self._track else events

    @property
    def _final_split(self) -> Split | None:
        """What the last run of a sweep is evaluated on: images that had no part in the choice."""
        return "test" if self._data is not None and "test" in self._data.splits else None

    def _run(self, ended: Finished, place: Place, config: RunConfig, trials: tuple[Trial, ...] = ()) -> Run:
        return Run(
            path=stage_of(place) if isinstance(place, Address) else place,
            address=str(place) if isinstance(place, Address) else None,
            config=config,
            reason=ended.reason,
            step=ended.step,
            seconds=ended.seconds,
            metrics=dict(ended.metrics),
            evaluated_on=self._final_split if trials else config.data.evaluate_split,
            notes=self._notes,
            trials=trials,
            runs=len(self._lrs) + 1,
        )

    def _swept(self, swept: SweepFinished) -> Run:
        from vitlab.training.sweep import final_config

        config = final_config(self.config, swept.lr, self._final_split)
        return self._run(swept.finished, self.place / "final", config, swept.trials)

    def _planned(self) -> Run:
        from vitlab.training.plan import plan

        self._events = iter(())
        made = plan(self.config, data=self._data, dataset=self._dataset, device=self._device)
        address = str(self.place) if isinstance(self.place, Address) else None
        return Run(
            path=self.path,
            address=address,
            config=self.config,
            plan=made,
            notes=(*self._notes, *made.notes),
            runs=len(self._lrs) + 1,
        )


def _display(quiet: bool) -> list[Callback]:
    """Who hears of the run; under torchrun the leading process displays it for all."""
    from vitlab.training.callbacks import console_callback
    from vitlab.training.distributed import is_main_process

    return [] if quiet or not is_main_process() else [console_callback(sys.stderr)]


def _tracked(events: Iterator[SweepEvent], names: Sequence[str]) -> Iterator[SweepEvent]:
    """The events, each also given to the trackers of these names."""
    from vitlab.training.callbacks import trackers
    from vitlab.training.distributed import is_main_process

    if not is_main_process():
        yield from events
        return
    listeners = trackers(names)
    try:
        for event in events:
            for listener in listeners:
                listener.on_event(event)
            yield event
    finally:
        for listener in listeners:
            listener.close()
