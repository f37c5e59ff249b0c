"""Training: `train` is a stream of events, `Trainer` the story of a run; one step of it is in step.py.

for event in train(run, out="runs/a"):
    ...
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.config.run import RunConfig
from vitlab.config.train import TrainConfig, mean_area
from vitlab.data.batch import Batch
from vitlab.data.dataset import Dataset
from vitlab.data.loader import Loader, Stream
from vitlab.errors import CheckpointError, DataError, DivergedError, TrainingError, VitlabError
from vitlab.inference.backends import evaluating
from vitlab.inference.engine import run_batches
from vitlab.inference.packed import plain_backend
from vitlab.io.address import Address
from vitlab.io.machine import is_out_of_memory
from vitlab.training.checkpointing import Checkpointer, agreed_snapshot
from vitlab.training.distributed import World, is_sharded, reshard, world
from vitlab.training.events import (
    Control,
    Evaluated,
    Event,
    Finished,
    FittingHead,
    HeadFitted,
    MicroBatchReduced,
    Reason,
    Skipped,
    Started,
    StopRequested,
    Warned,
    event_to_json,
)
from vitlab.training.pulse import LOST_CONTACT, Pulse, Stragglers, lost_contact, pulse
from vitlab.training.remote_run import run_directory
from vitlab.training.run_data import DataRecord, open_splits, refuse_other_labels, some_images
from vitlab.training.run_folder import RunDirectory
from vitlab.training.setup import FittedHead, create_model, create_state, evaluation_loader, fit_head, training_loader
from vitlab.training.step import LESS_MEMORY, Progress, TrainState, update

_MAX_SKIPPED_IN_A_ROW = 3
_LATE = 1.05  # times the time that is left: more shortens the schedule ...
_MOST_HASTE = 8.0  # ... by this factor at the most; ...
_EARLY = 0.03  # of the run's time: if more would be left at its end, the schedule is lengthened, ...
_LEAST_HASTE = 0.75  # ... by the reciprocal at the most
_BEFORE_HASTE = 5  # steps that are measured first
_SHOWN_EVERY = 5.0  # seconds between two events of the features of a fitted head
_REASONS: tuple[Reason, ...] = ("terminated", "interrupted", "max-time", "patience", "finished")


def train(
    run: RunConfig,
    *,
    out: str | Path | Address,
    dataset: Dataset | None = None,
    device: str | torch.device = "auto",
    control: Control | None = None,
    override: bool = False,
) -> Generator[Event, None, None]:
    """Train, and yield what happens. A run that was stopped resumes from its last checkpoint in the folder `out`, or at an address.

    `dataset` is the run's whole dataset (split `all`), if it is open already. `control` requests a stop or a checkpoint from
    outside. `override` resumes with a changed config or other samples. Under torchrun, the same call distributes the work over its
    processes.
    """
    directory, timeout = run_directory(out), run.train.hang_timeout
    with ExitStack() as stack:
        here = stack.enter_context(world(device, timeout=timeout))
        # After a restart, ranks of the attempt before may hold the lock for a while.
        wait = timeout / 2 if here.ranks > 1 else 0.0
        here.on_main(lambda: stack.enter_context(directory.locked(wait=wait)))
        if not directory.shared:
            here.on_others(directory.join)
        stack.enter_context(_memory_errors())
        heart = stack.enter_context(pulse(here, timeout=timeout))
        train_split, eval_split = open_splits(run, dataset)
        changed = here.on_main(lambda: directory.begin(run, DataRecord.of(run, train_split, eval_split), override=override))
        trainer = Trainer(run, directory, here, control or Control(), train_split, eval_split, heart)
        yield from trainer.events(changed or [])


class Trainer:
    """One run, from where it is to where it ends."""

    state: TrainState
    checkpointer: Checkpointer | None = None  # None until there is a state to save

    def __init__(
        self,
        run: RunConfig,
        directory: RunDirectory,
        world: World,
        control: Control,
        dataset: Dataset,
        eval_dataset: Dataset | None,
        heart: Pulse,
    ) -> None:
        self.run = run
        self.heart = heart
        self.directory = directory
        self.world = world
        self.control = control
        self.began = time.monotonic()
        self.metrics: dict[str, float] = {}
        self.evaluated_at = -1
        self.logged_evaluations = set[int]()
        self.unreadable = set[str]()  # images that were warned of
        self.dataset = dataset
        self.train_loader = training_loader(run, dataset, world)
        if eval_dataset is not None:
            eval_dataset = some_images(eval_dataset, run.data.evaluate_images, seed=run.train.seed)
        self.eval_loader = None if eval_dataset is None else evaluation_loader(run, eval_dataset, world)

    def events(self, changed: Sequence[str] = ()) -> Iterator[Event]:
        """Every event of the run; rank 0 also writes them to `events.jsonl`. `changed` says how the data differs from before.

        An `events.jsonl` that cannot be written is a warning: it describes the run, and nothing depends on it.
        """
        warned = False
        try:
            for event in self._events(changed):
                fault = self._append(event) if self.world.is_main else None
                yield event
                if fault is not None and not warned:
                    warned = True
                    yield Warned(step=event.step, message=f"{fault}; the run continues without its events")
        except RuntimeError as error:
            if self.world.ranks == 1 or not lost_contact(error):
                self.heart.end(f"{type(error).__name__}: {error}")
                raise
            lost = self._lost_contact()
            self.heart.end(lost.message)
            raise lost from error
        except VitlabError as error:
            self.heart.end(error.message)
            raise
        finally:
            if self.checkpointer is not None:
                self.checkpointer.close()

    def _lost_contact(self) -> TrainingError:
        """A rank did not answer: what this one can save without the others, and whom they wait for.

        With DDP every rank has the whole model, so the main rank saves it as it is after its last complete step. Under FSDP each
        has a part, and the last checkpoint is what remains.
        """
        kept = self.checkpointer.save_alone(self.metrics) if self.checkpointer is not None and self.world.is_main else None
        place = "from the last checkpoint" if kept is None else f"after step {self.state.step:,}, which is saved"
        return TrainingError(
            f"{LOST_CONTACT} after step {self.heart.own.step}: {self.heart.missing()}",
            hint=f"torchrun --max-restarts resumes {place}; so does the same command",
        )

    def _append(self, event: Event) -> str | None:
        """Write an event to the run folder; what went wrong, or None."""
        if isinstance(event, FittingHead):
            return None  # for displays only
        if isinstance(event, Evaluated) and event.step in self.logged_evaluations:
            return None  # a run that was killed at its end evaluates again, with the same result
        try:
            self.directory.append_event(event_to_json(event))
        except OSError as error:
            return f"cannot write {self.directory.events_path}: {error.strerror}"
        return None

    def _events(self, changed: Sequence[str]) -> Iterator[Event]:
        """The story of a run."""
        config = self.run.train
        snapshot, warnings = agreed_snapshot(self.directory, self.world)
        if snapshot is not None and snapshot.facts.labels is not None:
            refuse_other_labels(snapshot.facts.labels, self.dataset.labels, where=self.directory.root)
        if self.world.is_main:
            warnings += self._drop_events_after(0 if snapshot is None else snapshot.progress.step)
        with self.train_loader.batches(0 if snapshot is None else snapshot.progress.position) as batches:
            # The workers of the loader start before the model takes memory.
            head = (yield from self.fit_head()) if snapshot is None and config.head == "fitted" else None
            self.state = state = create_state(self.run, self.dataset, self.world, snapshot, head)
            self.checkpointer = checkpointer = Checkpointer(self.directory, state)
            self.stragglers = Stragglers(self.world, probe=is_sharded(state.model))
            if snapshot is not None:
                checkpointer.saved = state.step
                self.metrics = checkpointer.saved_metrics = snapshot.facts.metrics or {}
            yield self._started(resumed=snapshot is not None)
            warnings += self.directory.warnings
            if changed:
                warnings.append(f"from step {state.step} on the run uses other data: {'; '.join(changed)}")
            yield from (Warned(step=state.step, message=warning) for warning in warnings)
            try:
                if state.progress.evaluation_due or (head is not None and config.steps):  # stopped before it; or of the head alone
                    yield from self.evaluate()
                self.deadline = Deadline(config, state.progress, began=self.began)
                while (reason := self._end_reason()) is None:
                    yield from self.train_step(batches)
                    if _due(state.step, config.evaluate_every):
                        yield from self.evaluate()
                    if self._checkpoint_requested() or _due(state.step, config.save_every):
                        yield from checkpointer.save(self.metrics)
            except StopRequested:
                reason = self._agreed(self.control.stop)
            except DivergedError:
                raise
            except VitlabError as error:  # keep what was learned; other ranks do not know of the error, so they cannot help to save
                if self.world.ranks == 1 and not checkpointer.failed:
                    yield from checkpointer.save(self.metrics)
                    yield from checkpointer.wait()
                    kept = f"step {state.step:,} is saved in {self.directory.root}"
                    error.hint = kept if error.hint is None else f"{error.hint}; {kept}"
                raise
        yield from self._finish(reason or "finished", checkpointer)

    def _drop_events_after(self, step: int) -> list[str]:
        try:
            self.directory.drop_events_after(step)
            self.logged_evaluations = {event["step"] for event in self.directory.events() if event.get("event") == Evaluated.event}
        except CheckpointError as error:
            return [error.message]
        return []

    def fit_head(self) -> Generator[Event, None, FittedHead]:
        """Fit the head to the features of the training split; each rank extracts those of its part of the images."""
        began = shown = time.monotonic()
        model = create_model(self.run, self.dataset)[0].to(self.world.device)
        backend = plain_backend(model, self.run.preprocess, device=self.world.device)
        dataset = some_images(self.dataset, self.run.train.head_images, seed=self.run.train.seed)
        found, done, images = list[tuple[NDArray[np.float32], NDArray[np.int64]]](), 0, len(dataset)
        unreadable = list[str]()
        yield FittingHead(step=0, done=done, images=images)
        with evaluating(model), evaluation_loader(self.run, dataset, self.world).batches() as stream:
            for batch, outputs in run_batches(backend, _until_stopped(stream, self.world, self.control), features=True):
                done += batch.n_asked * self.world.ranks
                unreadable += map(str, batch.failed)
                if outputs is not None and outputs.features_BD is not None:
                    found.append((outputs.features_BD, batch.labels.astype(np.int64)))
                if time.monotonic() - shown >= _SHOWN_EVERY:
                    shown = time.monotonic()
                    yield FittingHead(step=0, done=min(done, images), images=images)
        self.world.disk_barrier()  # ranks may be minutes apart
        rows = [row for part in self.world.gather(found) for row in part]
        yield from self._warn_of((text for part in self.world.gather(unreadable) for text in part), step=0)
        if not rows:
            raise DataError("no training image could be read", hint="run `vitlab data check` to list what is wrong")
        features_ND, labels_N = (np.concatenate([row[side] for row in rows]) for side in (0, 1))
        head = fit_head(features_ND, labels_N, names=self.dataset.labels, seed=self.run.train.seed)
        seconds = time.monotonic() - began
        yield HeadFitted(step=0, images=head.images, l2=head.l2, accuracy=head.accuracy, seconds=seconds)
        return head

    def _warn_of(self, unreadable: Iterable[str], *, step: int) -> Iterator[Event]:
        """A warning for each image that could not be read, once."""
        for text in unreadable:
            if text not in self.unreadable:
                self.unreadable.add(text)
                yield Warned(step=step, message=text)

    def train_step(self, batches: Stream) -> Iterator[Event]:
        """Take the next batch and make one update."""
        state, checkpointer = self.state, self.checkpointer
        assert checkpointer is not None
        known = len(batches.failures)
        self.heart.at(state.step, "reads images")
        began = time.monotonic()
        with nullcontext() if self.world.ranks > 1 else self.control.waiting():  # ranks stop after the same step
            batch = next(batches)
        read = time.monotonic() - began
        yield from self._warn_of(map(str, batches.failures[known:]), step=state.step)
        micro_batch = state.micro_batch
        with _memory_errors():
            event = update(state, batch, epoch_length=self.train_loader.sampler.epoch_length, heart=self.heart)
        yield from checkpointer.wait()  # a checkpoint is written during one step; a crash loses one interval at most
        if state.micro_batch != micro_batch:
            yield MicroBatchReduced(step=state.step, micro_batch=state.micro_batch)
        yield event
        yield from self._keep_time()
        slow = self.stragglers.add(read=read, computed=state.computed, seconds=getattr(event, "seconds", 0.0))
        yield from (Warned(step=state.step, message=sentence) for sentence in slow)
        if isinstance(event, Skipped) and event.in_a_row >= _MAX_SKIPPED_IN_A_ROW:
            raise DivergedError(
                f"training diverged at step {event.step}: {event.reason}, {event.in_a_row} times in a row; none was applied",
                hint="use a lower learning rate, a longer warm-up, gradient clipping or float32",
            )

    def _keep_time(self) -> Iterator[Event]:
        """Set the pace of a run that must finish in time; rank 0 decides."""
        if not self.run.train.finish_within:
            return
        progress, steps = self.state.progress, self.run.train.steps
        progress.pace = self.world.gather(self.deadline.pace())[0]
        if progress.pace != 1 and not progress.ahead and progress.expected(steps) != steps:
            late = progress.pace > 1
            slower, shortened, why = ("slower", "shortened", "finish in time") if late else ("faster", "lengthened", "use the time")
            so = f"its schedule is {shortened} from {steps:,} to about {progress.expected(steps):,} steps, to {why}"
            yield Warned(step=progress.step, message=f"the run is {slower} than planned: {so}")

    def evaluate(self) -> Iterator[Event]:
        """Compute the metrics of the evaluation split, and save a checkpoint if they are the best so far."""
        progress, checkpointer = self.state.progress, self.checkpointer
        if self.eval_loader is None or self.evaluated_at == progress.step:
            return
        assert checkpointer is not None
        progress.evaluation_due = True  # as long as it is not complete
        self.heart.at(progress.step, "evaluates")
        self.metrics = evaluate(self.state, self.eval_loader, self.control)
        progress.evaluation_due = False
        self.evaluated_at = progress.step
        value = score(self.metrics)
        best = math.isfinite(value) and (progress.best is None or value > progress.best)
        progress.best, progress.stale = (value, 0) if best else (progress.best, progress.stale + 1)
        yield Evaluated(step=progress.step, metrics=self.metrics, averaged=self.state.average is not None, best=best)
        if best:
            yield from checkpointer.save(self.metrics, best=True)

    def _started(self, *, resumed: bool) -> Started:
        parameters = list(self.state.model.parameters())
        device = () if self.world.device.type == "cpu" else (f"trains on {self.world.device}",)
        return Started(
            step=self.state.step,
            steps=self.run.train.steps,
            parameters=sum(parameter.numel() for parameter in parameters),
            trainable=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
            images=len(self.dataset),
            out=self.directory.root,
            resumed=resumed,
            notes=(*device, *self.train_loader.notes, *(() if resumed else self.state.facts.notes)),
        )

    def _end_reason(self) -> Reason | None:
        """Why the run ends here, or None."""
        config, progress = self.run.train, self.state.progress
        if progress.scheduled >= config.steps:
            return "finished"
        if 0 < config.patience <= progress.stale:
            return "patience"
        step_seconds = progress.seconds / progress.step if progress.step else 0.0
        late = config.max_minutes > 0 and time.monotonic() - self.began + 2 * step_seconds >= config.max_minutes * 60
        return self._agreed(self.control.stop or ("max-time" if late else None))

    def _agreed(self, reason: Reason | None) -> Reason | None:
        """The same reason on every rank if one of them has one: a signal may reach only some of them."""
        if self.world.ranks == 1:
            return reason
        votes = self.world.sum(torch.tensor([float(reason == known) for known in _REASONS], device=self.world.device))
        return next((known for known, count in zip(_REASONS, votes.tolist(), strict=True) if count), None)

    def _checkpoint_requested(self) -> bool:
        requested = self.world.any(self.control.save) if self.world.ranks > 1 else self.control.save
        self.control.save = False
        return requested

    def _finish(self, reason: Reason, checkpointer: Checkpointer) -> Iterator[Event]:
        self.heart.at(self.state.step, "saves")
        if reason in ("finished", "patience", "max-time"):
            try:
                yield from self.evaluate()
            except StopRequested:
                reason = self._agreed(self.control.stop) or reason
        yield from checkpointer.save(self.metrics)
        yield from checkpointer.wait()
        kept = checkpointer.export_model() if reason in ("finished", "patience") and self.world.is_main else None
        if kept is not None and (step := kept.progress.step) != self.state.step:
            self.metrics = kept.facts.metrics or self.metrics
            if reason == "finished":
                yield Warned(step=self.state.step, message=f"the model is that of step {step:,}, the best on the held-out images")
        model = None if kept is None else self.directory.model_path
        self.world.disk_barrier()
        seconds = time.monotonic() - self.began
        yield Finished(step=self.state.step, reason=reason, model=model, metrics=self.metrics, seconds=seconds)


class Deadline:
    """The pace at which a run finishes in time (`TrainConfig.finish_within`).

    Work is counted in steps with images of full size; what a unit of it takes is measured after the first step of this
    process, which takes longer than others. A resumed run has that part of the time which was planned for the rest of its schedule.
    """

    def __init__(self, config: TrainConfig, progress: Progress, *, began: float) -> None:
        self.config = config
        self.progress = progress
        self.first = time.monotonic()
        self.left = self._work_left()
        self.done = 0.0
        self.steps = 0
        whole = config.steps * mean_area(config.progressive_resizing)
        fresh = progress.step == 0  # then what was done before the first step is a part of the time
        self.seconds = 60 * config.finish_within * (1 if fresh else self.left / max(whole, 1))
        self.end = (began if fresh else self.first) + self.seconds

    def pace(self) -> float:
        """After each step: the steps of the schedule that the next one stands for; more than 1 if the run is late, else less."""
        now, left = time.monotonic(), self._work_left()
        self.steps += 1
        if self.steps == 1:
            self.first = now
        else:
            self.done += (self.left - left) / self.progress.pace
        self.left = left
        if self.steps < _BEFORE_HASTE or left <= 0 or self.done <= 0:
            return self.progress.pace
        needed = (now - self.first) / self.done * left
        late = needed / max(self.end - now, 1e-9)
        if late > _LATE:
            return min(late, _MOST_HASTE)
        return max(late, _LEAST_HASTE) if self.end - now - needed > _EARLY * self.seconds else 1.0

    def _work_left(self) -> float:
        steps, scheduled = self.config.steps, self.progress.scheduled
        rest = max(steps - scheduled, 0.0)
        return rest * mean_area(self.config.progressive_resizing, after=scheduled / max(steps, 1))


def evaluate(state: TrainState, loader: Loader, control: Control) -> dict[str, float]:
    """Metrics (loss, top1, ...) over the images of all ranks, with the averaged weights if the run averages.

    StopRequested if a stop is requested meanwhile.
    """
    with state.averaged_weights():
        state.model.eval()
        try:
            with loader.batches() as stream:
                return state.task.evaluate(state.unwrapped, _until_stopped(stream, state.world, control), state.world)
        finally:
            reshard(state.model)
            state.model.train()


def score(metrics: dict[str, float]) -> float:
    """The number by which checkpoints are compared, higher is better: accuracy, mean IoU or AP, or minus the loss."""
    for name in ("top1", "mean_average_precision", "mean_iou", "ap"):
        if name in metrics:
            return metrics[name]
    return -metrics["loss"]


def _until_stopped(stream: Stream, world: World, control: Control) -> Iterator[Batch]:
    """The batches until a stop is requested; ranks, which need each other for every layer, stop before the same batch."""
    while True:
        if world.ranks > 1:
            if world.any(control.stop is not None):
                raise StopRequested
            batch = next(stream, None)
        else:
            with control.waiting():
                batch = next(stream, None)
        if batch is None:
            return
        yield batch


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Memory that runs out in the block is a TrainingError."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(f"out of memory: {str(error) or 'no more can be allocated'}", hint=LESS_MEMORY) from error


def _due(step: int, every: int) -> bool:
    """Whether step number `step` is one of every `every`; 0 for never."""
    return every > 0 and step % every == 0
