"""The paper's way to a learning rate (app. B.1.1): try each on a held-out part, then train once more on all training images.

trials/lr-0.01/    a run of its own for each rate, gone on with where it was left
final/             the run with the best rate on train and val together
sweep.json         what each rate came to, and which was chosen
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from vitlab.config.data import Split
from vitlab.config.overrides import differences
from vitlab.config.run import RunConfig
from vitlab.errors import ConfigError, DivergedError, TrainingError
from vitlab.io.atomic import replacing
from vitlab.training.control import Control
from vitlab.training.distributed import leads, world
from vitlab.training.events import Event, Finished
from vitlab.training.run_folder import RunDirectory
from vitlab.training.trainer import score, train


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one rate came to on the held-out part; `trouble` says why it has no metrics."""

    rate: float
    metrics: dict[str, float] = field(default_factory=dict)
    trouble: str | None = None

    @property
    def score(self) -> float:
        """By which trials are compared; minus infinity for one that failed."""
        return score(self.metrics) if self.metrics else -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialBegan:
    """Run `number` of `runs` begins, or goes on; the last of them is the final one."""

    event: ClassVar[str] = "trial-began"
    number: int
    runs: int
    rate: float
    final: bool
    out: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """A rate was tried to its end; `before` where an earlier call of the sweep did it."""

    event: ClassVar[str] = "trial-ended"
    trial: Trial
    before: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The sweep is over: all trials, the rate that was chosen, and how the final run ended."""

    event: ClassVar[str] = "swept"
    trials: tuple[Trial, ...]
    rate: float
    finished: Finished


SweepEvent = Event | TrialBegan | TrialEnded | Swept


def trial_of(run: RunConfig, rate: float) -> RunConfig:
    """The run that tries a rate: it learns from `train` and is judged by `val`."""
    optimizer = replace(run.train.optimizer, lr=rate, adam_lr=run.train.optimizer.adam_lr * rate / run.train.optimizer.lr)
    return replace(
        run,
        name=f"{run.name}-lr-{rate:g}",
        data=replace(run.data, train_split="train", evaluate_split="val"),
        train=replace(run.train, optimizer=optimizer, max_minutes=0.0),  # the sweep as a whole keeps to the time
    )


def final_of(run: RunConfig, rate: float, judge: Split | None) -> RunConfig:
    """The run with the chosen rate: it learns from `train` and `val`, and is judged by `judge` once, at its end."""
    trial = trial_of(run, rate)
    return replace(
        trial,
        name=run.name,
        data=replace(trial.data, train_split="train+val", evaluate_split=judge),
        train=replace(trial.train, evaluate_every=0, patience=0),
    )


def sweep(
    run: RunConfig,
    rates: Sequence[float],
    *,
    out: str | Path,
    judge: Split | None = None,
    control: Control | None = None,
    override: bool = False,
) -> Iterator[SweepEvent]:
    """Try every rate, choose the best on `val`, train on `train+val`; tell everything, and go on where an earlier call stopped.

    Of equal accuracies the lower loss wins, then the lower rate. A rate at which training breaks down has lost. Where `control`
    or `run.train.max_minutes` stops a run, the sweep stops with it, its last event being that run's `Finished`.
    """
    _check(run, rates)
    with world():  # one for all runs: what torchrun gave cannot be joined a second time
        yield from _swept(run, rates, Path(out), judge=judge, control=control or Control(), override=override)


def _swept(
    run: RunConfig, rates: Sequence[float], root: Path, *, judge: Split | None, control: Control, override: bool
) -> Iterator[SweepEvent]:
    deadline = time.monotonic() + run.train.max_minutes * 60 if run.train.max_minutes else math.inf
    trials = list[Trial]()
    for number, rate in enumerate(rates, 1):
        place = root / "trials" / f"lr-{rate:g}"
        wanted = trial_of(run, rate)
        if (done := _done(wanted, place)) is not None:
            trials.append(Trial(rate=rate, metrics=done.metrics))
            yield TrialEnded(trial=trials[-1], before=True)
            continue
        yield TrialBegan(number=number, runs=len(rates) + 1, rate=rate, final=False, out=place)
        try:
            ended = yield from _watched(train(wanted, out=place, control=control, override=override), control, deadline)
        except DivergedError as error:
            trials.append(Trial(rate=rate, trouble=error.message))
        else:
            if ended.reason not in ("finished", "patience"):
                return
            trials.append(Trial(rate=rate, metrics=ended.metrics))
        yield TrialEnded(trial=trials[-1], before=False)
        _write(root, trials, None)
    best = max(trials, key=lambda trial: (trial.score, -trial.metrics.get("loss", math.inf), -trial.rate))
    if not best.metrics:
        raise TrainingError(f"training broke down at every rate: {best.trouble}", hint="lower rates, or a longer warm-up")
    place, wanted = root / "final", final_of(run, best.rate, judge)
    _write(root, trials, best.rate)
    final = _done(wanted, place)
    if final is None:
        yield TrialBegan(number=len(rates) + 1, runs=len(rates) + 1, rate=best.rate, final=True, out=place)
        final = yield from _watched(train(wanted, out=place, control=control, override=override), control, deadline)
        if final.reason not in ("finished", "patience"):
            return
    yield Swept(trials=tuple(trials), rate=best.rate, finished=final)


def _check(run: RunConfig, rates: Sequence[float]) -> None:
    if not rates:
        raise ConfigError("a sweep needs rates to try")
    for rate in rates:
        if not 0 < rate < math.inf:
            raise ConfigError(f"rates={tuple(rates)} must be positive numbers")
    names = [f"{rate:g}" for rate in rates]
    if len(set(names)) < len(names):
        raise ConfigError(f"rates={tuple(rates)} name one of them twice")
    if run.train.masked is not None:
        raise ConfigError("a sweep chooses by accuracy on labels, which masked patch prediction does not have")


def _watched(events: Iterator[Event], control: Control, deadline: float) -> Generator[Event, None, Finished]:
    """The events of one run, ended with a checkpoint when the time of the whole sweep is up; returns its last."""
    for event in events:
        if time.monotonic() >= deadline and control.stop is None:
            control.ask_stop("max-time")
        yield event
        if isinstance(event, Finished):
            return event
    raise AssertionError("a run ends with Finished")


def _done(run: RunConfig, place: Path) -> Finished | None:
    """How the run at a place ended, if it is this run and came to its end."""
    directory = RunDirectory(place)
    before = directory.config()
    if before is None or differences(before, run, course=True):
        return None
    for event in reversed(directory.events()):
        if event.get("event") == Finished.event and event.get("reason") in ("finished", "patience"):
            return _finished(event)
    return None


def _finished(line: dict[str, object]) -> Finished:
    step, model, metrics, seconds = line.get("step"), line.get("model"), line.get("metrics"), line.get("seconds")
    assert isinstance(step, int)
    assert isinstance(metrics, dict)
    return Finished(
        step=step,
        reason="finished" if line.get("reason") == "finished" else "patience",
        model=Path(model) if isinstance(model, str) else None,
        metrics={str(name): float(value) for name, value in metrics.items()},
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
    )


def _write(root: Path, trials: Sequence[Trial], chosen: float | None) -> None:
    if not leads():
        return
    rows = [{"rate": trial.rate, "metrics": trial.metrics, "trouble": trial.trouble} for trial in trials]
    text = (json.dumps({"version": 1, "trials": rows, "chosen": chosen}, indent=2) + "\n").encode()
    root.mkdir(parents=True, exist_ok=True)
    with replacing(root / "sweep.json", needed=len(text)) as file:
        file.write(text)
