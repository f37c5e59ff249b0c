"""The search for a learning rate: a sweep, and the range test of `finetune --find-lr`.

A sweep (app. B.1.1) tries each learning rate on the validation split, then trains once more on train and val together:

trials/lr-0.01/    a run for each learning rate; an interrupted sweep resumes there
final/             the run with the best learning rate, on train+val
sweep.json         the metrics of each learning rate, and the chosen one

In a range test (Smith 2017), the learning rate grows by the same factor at every step, from far too low to too high; training stops
when the loss explodes. The suggestion is the rate at which the smoothed loss falls fastest. Nothing is saved of the weights.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch

from vitlab.checkpoints.remote_copy import copied_run
from vitlab.config.data import Split
from vitlab.config.hardware import RayConfig
from vitlab.config.overrides import differences
from vitlab.config.run import RunConfig
from vitlab.data.dataset import Dataset
from vitlab.errors import ConfigError, DivergedError, TrainingError, UsageError
from vitlab.io.address import Address, Place, place_of
from vitlab.io.atomic import replacing
from vitlab.io.display import Block, Displayed, json_text
from vitlab.io.optional import optional_import
from vitlab.io.ray_cluster import connected, resources
from vitlab.io.remote import is_file, write
from vitlab.training.distributed import is_main_process, world
from vitlab.training.events import Control, Event, Finished, Stepped, finished_from_json
from vitlab.training.optim import set_learning_rates
from vitlab.training.run_data import open_splits, same_data
from vitlab.training.run_folder import RunDirectory
from vitlab.training.setup import create_state, training_loader
from vitlab.training.step import accumulate_gradients, clip_gradients, prepare_inputs
from vitlab.training.trainer import score, train

_REPORT_EVERY = 0.1  # seconds between two steps that a task reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The metrics of one learning rate on the validation split; `error` says why it has none."""

    lr: float
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def score(self) -> float:
        """The number by which trials are compared; minus infinity for one that failed."""
        return score(self.metrics) if self.metrics else -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """Run `number` of `runs` starts or resumes; the last one is the final run."""

    event: ClassVar[str] = "trial-started"
    number: int
    runs: int
    lr: float
    final: bool
    out: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A learning rate was tried to the end; `cached` if by an earlier call of the sweep."""

    event: ClassVar[str] = "trial-finished"
    trial: Trial
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFinished:
    """The sweep is over: all trials, the chosen learning rate, and how the final run ended."""

    event: ClassVar[str] = "sweep-finished"
    trials: tuple[Trial, ...]
    lr: float
    finished: Finished


SweepEvent = Event | TrialStarted | TrialFinished | SweepFinished


def trial_config(run: RunConfig, lr: float) -> RunConfig:
    """The run that tries a learning rate: it trains on `train` and is evaluated on `val`."""
    optimizer = replace(run.train.optimizer, lr=lr, adam_lr=run.train.optimizer.adam_lr * lr / run.train.optimizer.lr)
    return replace(
        run,
        name=f"{run.name}-lr-{lr:g}",
        data=replace(run.data, train_split="train", evaluate_split="val"),
        train=replace(run.train, optimizer=optimizer, max_minutes=0.0),  # the time limit is that of the whole sweep
    )


def final_config(run: RunConfig, lr: float, evaluate_split: Split | None) -> RunConfig:
    """The run with the chosen learning rate: it trains on `train+val`, and is evaluated once, at its end."""
    trial = trial_config(run, lr)
    return replace(
        trial,
        name=run.name,
        data=replace(trial.data, train_split="train+val", evaluate_split=evaluate_split),
        train=replace(trial.train, evaluate_every=0, patience=0),
    )


def sweep(
    run: RunConfig,
    lrs: Sequence[float],
    *,
    out: str | Path | Address,
    evaluate_split: Split | None = None,
    dataset: Dataset | None = None,
    device: str | torch.device = "auto",
    control: Control | None = None,
    override: bool = False,
    ray: RayConfig | None = None,
) -> Iterator[SweepEvent]:
    """Try every learning rate, choose the best on `val`, and train on `train+val`; an interrupted sweep resumes.

    With equal accuracy the lower loss wins, then the lower learning rate. A learning rate at which training diverges loses. If
    `control` or `run.train.max_minutes` stops a run, the sweep stops too, and its last event is that run's `Finished`.
    `evaluate_split` is for the final run. `dataset` is the whole dataset (split `all`), if it is open already. With `ray` each run
    is a task of a cluster: the trials run side by side, then the final run.
    """
    _check(run, lrs)
    if ray is not None:
        place = place_of(out)
        if isinstance(place, Address):
            raise UsageError(f"a sweep on Ray writes to a folder that all nodes share, and not to {place}")
        yield from _sweep_on_ray(run, lrs, place, evaluate_split, ray, dataset, str(device), control or Control(), override)
        return
    options = _Options(dataset=dataset, device=device, control=control or Control(), override=override)
    with world(device):  # one process group for all runs: torchrun's cannot be joined twice
        yield from _sweep(run, lrs, place_of(out), evaluate_split, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """The arguments of `train` that all runs of a sweep share."""

    dataset: Dataset | None
    device: str | torch.device
    control: Control
    override: bool

    def train(self, run: RunConfig, out: Place) -> Iterator[Event]:
        return train(run, out=out, dataset=self.dataset, device=self.device, control=self.control, override=self.override)


def _sweep(
    run: RunConfig, lrs: Sequence[float], root: Place, evaluate_split: Split | None, options: _Options
) -> Iterator[SweepEvent]:
    deadline = time.monotonic() + run.train.max_minutes * 60 if run.train.max_minutes else math.inf
    trials = list[Trial]()
    for number, lr in enumerate(lrs, 1):
        place = root / "trials" / f"lr-{lr:g}"
        config = trial_config(run, lr)
        if (done := _complete(config, place, options.dataset)) is not None:
            trials.append(Trial(lr=lr, metrics=done.metrics))
            yield TrialFinished(trial=trials[-1], cached=True)
            continue
        yield TrialStarted(number=number, runs=len(lrs) + 1, lr=lr, final=False, out=place)
        try:
            ended = yield from _until(options.train(config, place), options.control, deadline)
        except DivergedError as error:
            trials.append(Trial(lr=lr, error=error.message))
        else:
            if not ended.complete:
                return
            trials.append(Trial(lr=lr, metrics=ended.metrics))
        yield TrialFinished(trial=trials[-1], cached=False)
        _write(root, trials, None)
    best = _best(trials)
    place, config = root / "final", final_config(run, best.lr, evaluate_split)
    _write(root, trials, best.lr)
    final = _complete(config, place, options.dataset)
    if final is None:
        yield TrialStarted(number=len(lrs) + 1, runs=len(lrs) + 1, lr=best.lr, final=True, out=place)
        final = yield from _until(options.train(config, place), options.control, deadline)
        if not final.complete:
            return
    yield SweepFinished(trials=tuple(trials), lr=best.lr, finished=final)


def _best(trials: Sequence[Trial]) -> Trial:
    best = max(trials, key=lambda trial: (trial.score, -trial.metrics.get("loss", math.inf), -trial.lr))
    if not best.metrics:
        raise TrainingError(f"training diverged at every learning rate: {best.error}", hint="use lower ones, or a longer warm-up")
    return best


def _sweep_on_ray(
    run: RunConfig,
    lrs: Sequence[float],
    root: Path,
    evaluate_split: Split | None,
    ray: RayConfig,
    dataset: Dataset | None,
    device: str,
    control: Control,
    override: bool,
) -> Iterator[SweepEvent]:
    from vitlab.training.on_ray import Returned, Share, run_tasks

    deadline = time.monotonic() + run.train.max_minutes * 60 if run.train.max_minutes else math.inf

    def stop() -> bool:
        if time.monotonic() >= deadline and control.stop is None:
            control.request_stop("max-time")
        return control.stop is not None

    root = root.absolute()
    trials: dict[float, Trial] = {}
    tasks = {}
    for number, lr in enumerate(lrs, 1):
        place, config = root / "trials" / f"lr-{lr:g}", trial_config(run, lr)
        if (done := _complete(config, place, dataset)) is not None:
            trials[lr] = Trial(lr=lr, metrics=done.metrics)
            yield TrialFinished(trial=trials[lr], cached=True)
            continue
        yield TrialStarted(number=number, runs=len(lrs) + 1, lr=lr, final=False, out=place)
        tasks[f"{lr!r}"] = partial(_as_task, config, place, device, override, False)
    with connected(ray.address, purpose="clusters") as module:
        have = resources(module)
        for name, event in run_tasks(module, tasks, share=Share.of(have, len(tasks), device), stop=stop):
            if not isinstance(event, Returned):
                continue
            ended, lr = event.value, float(name)
            if isinstance(ended, Finished) and not ended.complete:
                yield ended
                return
            trials[lr] = Trial(lr=lr, metrics=ended.metrics) if isinstance(ended, Finished) else Trial(lr=lr, error=ended)
            yield TrialFinished(trial=trials[lr], cached=False)
            _write(root, [trials[lr] for lr in lrs if lr in trials], None)
        ordered = [trials[lr] for lr in lrs]
        best = _best(ordered)
        place, config = root / "final", final_config(run, best.lr, evaluate_split)
        _write(root, ordered, best.lr)
        final = _complete(config, place, dataset)
        if final is None:
            yield TrialStarted(number=len(lrs) + 1, runs=len(lrs) + 1, lr=best.lr, final=True, out=place)
            task = {"final": partial(_as_task, config, place, device, override, True)}
            for _, event in run_tasks(module, task, share=Share.of(have, 1, device), stop=stop):
                if isinstance(event, Returned):
                    if not isinstance(event.value, Finished):
                        raise DivergedError(event.value)
                    final = event.value
                else:
                    yield cast(Event, event)
            assert final is not None, "a task returns how its run ended"
            yield final
            if not final.complete:
                return
        yield SweepFinished(trials=tuple(ordered), lr=best.lr, finished=final)


def _as_task(
    config: RunConfig, place: Path, device: str, override: bool, shown: bool, send: Callable[[object], bool]
) -> Finished | str:
    """A run as a task: how it ended, or why it diverged. It resumes from its last checkpoint if Ray starts it again."""
    control, last = Control(), 0.0
    try:
        for event in train(config, out=place, device=device, control=control, override=override):
            if isinstance(event, Finished):
                return event
            if not isinstance(event, Stepped) or time.monotonic() - last >= _REPORT_EVERY or event.step == config.train.steps:
                last = time.monotonic()
                if send(event if shown else None) and control.stop is None:
                    control.request_stop("terminated")
    except DivergedError as error:
        return error.message
    raise AssertionError("a run ends with Finished")


def _check(run: RunConfig, lrs: Sequence[float]) -> None:
    if not lrs:
        raise ConfigError("a sweep needs learning rates to try")
    for lr in lrs:
        if not 0 < lr < math.inf:
            raise ConfigError(f"learning rates {tuple(lrs)} must be positive numbers")
    names = [f"{lr:g}" for lr in lrs]
    if len(set(names)) < len(names):
        raise ConfigError(f"learning rates {tuple(lrs)} contain one twice")
    if run.train.masked is not None:
        raise ConfigError("a sweep compares accuracies, and masked patch prediction has none")


def _until(events: Iterator[Event], control: Control, deadline: float) -> Generator[Event, None, Finished]:
    """The events of one run, stopped with a checkpoint when the time of the whole sweep is up; returns the last one."""
    for event in events:
        if time.monotonic() >= deadline and control.stop is None:
            control.request_stop("max-time")
        yield event
        if isinstance(event, Finished):
            return event
    raise AssertionError("a run ends with Finished")


def _complete(run: RunConfig, place: Place, dataset: Dataset | None) -> Finished | None:
    """How the run in a folder ended, if it is this run on this data and is complete."""
    if isinstance(place, Address):
        if not is_file(place / "run.json"):
            return None
        place = copied_run(place, model=False)
    directory = RunDirectory(place)
    before = directory.config()
    if before is None or differences(before, run, course=True):
        return None
    lines = [line for line in directory.events() if line.get("event") == Finished.event]
    ended = finished_from_json(lines[-1]) if lines else None  # with a damaged line the run resumes, and logs the same again
    return ended if ended is not None and ended.complete and same_data(run, directory.data_path, dataset) else None


def _write(root: Place, trials: Sequence[Trial], chosen: float | None) -> None:
    if not is_main_process():
        return
    rows = [{"lr": trial.lr, "metrics": trial.metrics, "error": trial.error} for trial in trials]
    text = (json_text({"version": 2, "trials": rows, "chosen": chosen}, indent=2) + "\n").encode()
    if isinstance(root, Address):
        write(root / "sweep.json", text)
        return
    root.mkdir(parents=True, exist_ok=True)
    with replacing(root / "sweep.json", needed=len(text)) as file:
        file.write(text)


# --- the learning-rate range test ---------------------------------------------------------------------------------------------

_STEPS = 100
_SPAN = 1e5  # highest over lowest learning rate
_EXPLODED = 3.0  # times the lowest smoothed loss
_SMOOTHING = 0.9


@dataclass(frozen=True, kw_only=True, repr=False)
class FoundLr(Displayed):
    """The losses at growing learning rates, and the suggested one; `recipe` is the rate that the recipe has."""

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    suggested: float
    recipe: float
    files: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        points = [{"lr": lr, "loss": loss} for lr, loss in zip(self.lrs, self.losses, strict=True)]
        return {"suggested": self.suggested, "recipe": self.recipe, "points": points, "files": [str(path) for path in self.files]}

    def tables(self) -> list[Block]:
        """The suggestion, and the loss at some of the rates."""
        smooth = smoothed(self.losses)
        some = sorted({round(place) for place in np.linspace(0, len(self.lrs) - 1, 12)})
        facts = {"suggested lr": f"{self.suggested:.2e}", "lr of the recipe": f"{self.recipe:.2e}"}
        facts |= {"curve": ", ".join(map(str, self.files))} if self.files else {}
        return [facts, [{"lr": f"{self.lrs[place]:.2e}", "loss": round(smooth[place], 4)} for place in some]]


def smoothed(losses: Sequence[float]) -> list[float]:
    """A moving average without its bias towards the start."""
    mean, found = 0.0, []
    for step, loss in enumerate(losses, 1):
        mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
        found.append(mean / (1 - _SMOOTHING**step))
    return found


def suggestion(lrs: Sequence[float], losses: Sequence[float]) -> float:
    """The rate where the smoothed loss falls fastest per decade, before its lowest point."""
    smooth = np.array(smoothed(losses))
    lowest = int(smooth.argmin())
    if lowest < 2:
        return lrs[0]
    slope = np.gradient(smooth[: lowest + 1], np.log10(np.array(lrs[: lowest + 1])))
    return float(lrs[int(slope.argmin())])


def find_lr(
    run: RunConfig,
    *,
    out: Path,
    dataset: Dataset | None = None,
    device: str = "auto",
    steps: int = _STEPS,
    notify: Callable[[str], None] = lambda text: None,
) -> FoundLr:
    """Train for at most `steps` steps at growing learning rates and write the curve into `out`."""
    if run.train.masked is not None or run.train.strategy == "fsdp":
        raise ConfigError("the learning rate is searched for classifiers on one device")
    peak = run.train.optimizer.lr
    low = peak / math.sqrt(_SPAN)
    factor = _SPAN ** (1 / (steps - 1))
    lrs, losses = list[float](), list[float]()
    best = math.inf
    figure = optional_import("matplotlib.figure", purpose="the curve of the loss")  # now rather than after the search
    with world(device) as here:
        train_set, _ = open_splits(run, dataset)
        state = create_state(run, train_set, here)
        with training_loader(run, train_set, here) as loader, loader.batches() as batches:
            for step, batch in enumerate(batches):
                lr = low * factor**step
                set_learning_rates(state.optimizers, lr, run.train.optimizer)
                loss, _, _ = accumulate_gradients(state, prepare_inputs(state, batch))
                if not math.isfinite(loss):
                    break
                lrs.append(lr)
                losses.append(loss)
                now = smoothed(losses)[-1]
                best = min(best, now)
                if step > 10 and now > _EXPLODED * best:
                    break
                clip_gradients(state.model, run.train.optimizer.clip)
                for optimizer in state.optimizers:
                    optimizer.step()
                state.zero_grad()
                state.progress.step += 1
                if (step + 1) % 10 == 0:
                    notify(f"step {step + 1} of at most {steps}: lr {lr:.2e}, loss {now:.4g}")
                if step + 1 >= steps:
                    break
    if len(lrs) < 5:
        raise ConfigError("the loss is not finite even at the lowest learning rates", hint="check the data and the checkpoint")
    found = FoundLr(lrs=tuple(lrs), losses=tuple(losses), suggested=suggestion(lrs, losses), recipe=peak, files=())
    return _written(found, out, figure)


def _written(found: FoundLr, out: Path, figure: Any) -> FoundLr:
    """The curve as find_lr.png and its points as find_lr.json."""
    image, points = out / "find_lr.png", out / "find_lr.json"
    found = replace(found, files=(image, points))
    drawn = figure.Figure(figsize=(7, 4), layout="constrained")
    axes = drawn.subplots()
    axes.plot(found.lrs, found.losses, color="0.8", label="loss")
    axes.plot(found.lrs, smoothed(found.losses), color="tab:blue", label="smoothed")
    axes.axvline(found.suggested, color="tab:orange", label=f"suggested {found.suggested:.1e}")
    axes.axvline(found.recipe, color="tab:green", linestyle=":", label=f"the recipe's {found.recipe:.1e}")
    axes.set_xscale("log")
    axes.set_ylim(top=1.2 * max(found.losses[: max(1, len(found.losses) // 2)]))
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss, nats per image")
    axes.legend()
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=120)
    out.mkdir(parents=True, exist_ok=True)
    for path, content in ((image, buffer.getvalue()), (points, (json_text(found.to_json(), indent=2) + "\n").encode())):
        with replacing(path, needed=len(content)) as file:
            file.write(content)
    return found
