"""The training loop: an iterator of events. It tells; whoever listens acts."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from vitlab.config.run import RunConfig
from vitlab.data.batch import Batch
from vitlab.data.loader import Loader
from vitlab.errors import DivergedError, VitlabError
from vitlab.train.control import Control, Stopped
from vitlab.train.directory import RunDirectory, last_good
from vitlab.train.distributed import World, world
from vitlab.train.events import Evaluated, Event, Finished, Reason, Shrunk, Skipped, Started, Stepped, Warned
from vitlab.train.keeper import Keeper
from vitlab.train.schedule import learning_rate
from vitlab.train.setup import assemble, evaluation_loader, open_part, training_loader
from vitlab.train.snapshot import Progress
from vitlab.train.step import Stepper
from vitlab.train.validate import score, validate

_PATIENCE_WITH_NANS = 3
_REASONS: tuple[Reason, ...] = ("terminated", "interrupted", "max-time", "patience", "finished")


def train(
    run: RunConfig, *, out: str | Path, control: Control | None = None, override: bool = False
) -> Generator[Event, None, None]:
    """Train, telling what happens; the folder `out` is begun, or gone on with where it was left.

    The same command under torchrun shares the work among its processes. `control` asks for a stop or a checkpoint from outside.
    `override` goes on with a changed config.
    """
    control = control or Control()
    directory = RunDirectory(out)
    with world() as here, directory.locked() if here.leads else nullcontext():
        if here.leads:
            directory.begin(run, override=override)
        here.barrier()
        yield from Loop(run, directory, here, control).events()


class Loop:
    """One run from where it is to where it ends."""

    def __init__(self, run: RunConfig, directory: RunDirectory, here: World, control: Control) -> None:
        self.run = run
        self.directory = directory
        self.here = here
        self.control = control
        self.progress = Progress(seed=run.train.seed)
        self.metrics: dict[str, float] = {}
        self.keeper: Keeper | None = None  # once there is something to keep

    def events(self) -> Iterator[Event]:
        """Everything that happens, also written to the run's events where this process leads."""
        try:
            for event in self._events():
                if self.here.leads:
                    self.directory.append_event(_as_line(event))
                yield event
        finally:
            if self.keeper is not None:
                self.keeper.close()

    def _events(self) -> Iterator[Event]:
        began = time.monotonic()
        run, directory = self.run, self.directory
        restored, troubles = last_good(directory, lean=self.here.ranks > 1)
        if restored is not None:
            self.progress = restored.progress
        if self.here.leads:
            directory.forget_events_after(self.progress.step)
        source = open_part(run, run.data.train_split)
        held_out = None if run.data.evaluate_split is None else open_part(run, run.data.evaluate_split)
        loader = training_loader(run, source, self.here)
        judge = None if held_out is None else evaluation_loader(run, held_out, self.here)
        with loader.batches(self.progress.position) as stream:  # its workers start before the model takes memory
            self.players = assemble(run, source, self.here, restored)
            self.keeper = keeper = Keeper(run, directory, self.here, self.players)
            keeper.saved = self.progress.step if restored is not None else -1
            self.stepper = Stepper(self.players.model, self.players.optimizers, self.players.task, run.train, self.here)
            self.stepper.micro_batch = self.progress.micro_batch or run.train.micro_batch
            yield self._started(len(source), (*loader.notes, *self.players.notes), resumed=restored is not None)
            for trouble in troubles:
                yield Warned(step=self.progress.step, message=trouble)
            reason: Reason = "finished"
            unread = 0
            try:
                if self.progress.unseen:  # a stop came in between
                    yield from self._look(judge, last=True)
                while self.progress.step < run.train.steps:
                    stop = self._asked_to_stop(began)
                    if stop is not None:
                        reason = stop
                        break
                    with nullcontext() if self.here.ranks > 1 else self.control.waiting():  # ranks stop after the same update
                        batch = next(stream)
                    for failure in stream.failures[unread:]:  # each once, though every epoch meets it again
                        yield Warned(step=self.progress.step, message=str(failure))
                    unread = len(stream.failures)
                    yield from self._step(batch, loader)
                    yield from self._look(judge)
                    if self._patience_is_over():
                        reason = "patience"
                        break
                    if self._wants_save():
                        yield from self._save()
            except Stopped:
                reason = self._agreed(self.control.stop) or reason
            except DivergedError:
                raise
            except VitlabError:
                # With several ranks the others would have to know of it: what is on the disk already stands.
                if self.here.ranks == 1 and not keeper.broken:
                    yield from self._save()  # what was learned so far is not lost with a worker
                    yield from keeper.written()
                raise
        yield from self._end(keeper, judge, reason, began)

    def _started(self, pictures: int, notes: tuple[str, ...], *, resumed: bool) -> Started:
        parameters = list(self.players.model.parameters())
        return Started(
            step=self.progress.step,
            steps=self.run.train.steps,
            parameters=sum(parameter.numel() for parameter in parameters),
            trainable=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
            pictures=pictures,
            out=self.directory.root,
            resumed=resumed,
            notes=notes,
        )

    def _step(self, batch: Batch, loader: Loader) -> Iterator[Event]:
        config, progress = self.run.train, self.progress
        size = self.run.data.loader.batch_size
        rate = learning_rate(progress.step, peak=config.optimizer.lr, steps=config.steps, schedule=config.schedule)
        began = time.monotonic()
        outcome = self.stepper.update(batch, step=progress.step, batch_size=size, rate=rate)
        seconds = time.monotonic() - began
        assert self.keeper is not None
        yield from self.keeper.written()  # beside this one update: of those that were told, one interval is lost at most
        step = progress.step + 1
        self.progress = progress = replace(
            progress,
            step=step,
            position=step * size,
            seconds=progress.seconds + seconds,
            micro_batch=self.stepper.micro_batch,
            skipped=progress.skipped + (outcome.fault is not None),
            in_a_row=progress.in_a_row + 1 if outcome.fault is not None else 0,
        )
        if outcome.shrunk:
            yield Shrunk(step=step, micro_batch=outcome.micro_batch)
        if outcome.fault is not None:
            samples = tuple(int(index) for index in batch.index_B)
            yield Skipped(step=step, reason=outcome.fault, in_a_row=progress.in_a_row, samples=samples)
            if progress.in_a_row >= _PATIENCE_WITH_NANS:
                raise DivergedError(
                    f"{outcome.fault} for the {progress.in_a_row}rd time in a row, at step {step}: nothing of it was applied",
                    hint="a lower learning rate, a longer warm-up, clipping, or float32 usually helps",
                )
            return
        if self.players.average is not None:
            self.players.average.update(self.players.bare, progress.step - 1)
        yield Stepped(
            step=step,
            epoch=progress.position / loader.order.epoch_length,
            loss=outcome.loss,
            accuracy=outcome.accuracy,
            rate=rate,
            gradient_norm=outcome.gradient_norm,
            pictures=size,
            seconds=seconds,
            micro_batch=outcome.micro_batch,
        )

    def _look(self, judge: Loader | None, *, last: bool = False) -> Iterator[Event]:
        """Evaluate where it is due, and keep what is best."""
        every = self.run.train.evaluate_every
        due = last or (every > 0 and self.progress.step % every == 0)
        if judge is None or not due or self.metrics.get("step") == self.progress.step:
            return
        self.progress = replace(self.progress, unseen=True)
        metrics = validate(self.players, judge, self.run, self.here, self.control)
        self.progress = replace(self.progress, unseen=False)
        self.metrics = {**metrics, "step": self.progress.step}
        value = score(metrics)
        best = math.isfinite(value) and (self.progress.best is None or value > self.progress.best)
        self.progress = replace(
            self.progress, best=value if best else self.progress.best, stale=0 if best else self.progress.stale + 1
        )
        averaged = self.players.average is not None
        yield Evaluated(step=self.progress.step, metrics=metrics, averaged=averaged, best=best)
        if best:
            yield from self._save(best=True)

    def _patience_is_over(self) -> bool:
        patience = self.run.train.patience
        return patience > 0 and self.progress.stale >= patience

    def _wants_save(self) -> bool:
        every = self.run.train.save_every
        asked = self.here.any(self.control.save) if self.here.ranks > 1 else self.control.save
        self.control.save = False
        return asked or (every > 0 and self.progress.step % every == 0)

    def _asked_to_stop(self, began: float) -> Reason | None:
        limit = self.run.train.max_minutes * 60
        late = limit > 0 and time.monotonic() - began + 2 * _step_seconds(self.progress) >= limit
        return self._agreed(self.control.stop or ("max-time" if late else None))

    def _agreed(self, wish: Reason | None) -> Reason | None:
        """The same reason on every rank to stop now, if one of them has one: a signal may reach only some of them in time."""
        if self.here.ranks == 1:
            return wish
        votes = self.here.sum(torch.tensor([float(wish == reason) for reason in _REASONS], device=self.here.device))
        return next((reason for reason, count in zip(_REASONS, votes.tolist(), strict=True) if count), None)

    def _save(self, *, best: bool = False) -> Iterator[Event]:
        assert self.keeper is not None
        return self.keeper.save(self.progress, self._measured(), best=best)

    def _measured(self) -> dict[str, float]:
        return {name: value for name, value in self.metrics.items() if name != "step"}

    def _end(self, keeper: Keeper, judge: Loader | None, reason: Reason, began: float) -> Iterator[Event]:
        if reason in ("finished", "patience", "max-time"):
            try:
                yield from self._look(judge, last=True)
            except Stopped:
                reason = self._agreed(self.control.stop) or reason
        yield from self._save()
        yield from keeper.written()
        model = None
        if self.here.leads and reason in ("finished", "patience"):
            model = keeper.keep_model()
        self.here.meet()
        seconds = time.monotonic() - began
        yield Finished(step=self.progress.step, reason=reason, model=model, metrics=self._measured(), seconds=seconds)


def _step_seconds(progress: Progress) -> float:
    return progress.seconds / progress.step if progress.step else 0.0


def _as_line(event: Event) -> dict[str, object]:
    values = {name: getattr(event, name) for name in event.__dataclass_fields__ if name != "event"}
    return {"event": event.event} | {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
