"""The training loop: an iterator of events. It tells; whoever listens acts."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from vitlab.config.run import RunConfig
from vitlab.config.train import TrainConfig, scale_at, scaled
from vitlab.data.batch import Batch
from vitlab.data.loader import Loader, Stream
from vitlab.errors import DivergedError, TrainingError, VitlabError
from vitlab.evaluation.classify import Answers, answer, headline
from vitlab.training.checkpointing import Checkpointer
from vitlab.training.control import Control, Stopped
from vitlab.training.distributed import World, resharded, without_talk, world
from vitlab.training.events import Evaluated, Event, Finished, Reason, Shrunk, Skipped, Started, Stepped, Warned
from vitlab.training.optim import learning_rate, set_rates
from vitlab.training.run_folder import Progress, RunDirectory, last_good
from vitlab.training.state import Statistics, TrainState, assemble, evaluation_loader, open_part, training_loader
from vitlab.training.tasks import PredictMasked, Task, Work

# One update: a batch in parts that fit into memory, gradients added up, clipped, checked, applied.
#
# The update does not depend on the size of the parts, but with BatchNorm, which normalises each by itself; and what is not finite
# is never applied.

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
_MIX_STREAM, _NOISE_STREAM = 201, 202


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an update came to: means over the whole batch. `fault` says why nothing was applied, or is None."""

    loss: float
    accuracy: float | None
    gradient_norm: float
    fault: str | None
    micro_batch: int
    shrunk: bool


class Stepper:
    """Makes updates of one model; `micro_batch` shrinks when memory runs out and stays so."""

    def __init__(
        self, model: nn.Module, optimizers: list[torch.optim.Optimizer], task: Task, config: TrainConfig, world: World
    ) -> None:
        self.model = model
        self.optimizers = optimizers
        self.task = task
        self.config = config
        self.world = world
        self.micro_batch = config.micro_batch
        self.statistics = Statistics(model)

    def update(self, batch: Batch, *, step: int, batch_size: int, rate: float) -> Outcome:
        """Update number `step`, counted from 0, with that learning rate; `batch_size` is the global one."""
        set_rates(self.optimizers, rate, self.config.optimizer)
        work = self._prepare(batch, step)
        rows = len(work.images_BHWC)
        size = min(self.micro_batch or rows, rows)
        shrunk = False
        self.statistics.keep()
        while True:
            try:
                loss, right = self._gradients(work, size, step=step, batch_size=batch_size)
                break
            except (RuntimeError, MemoryError) as error:
                if not _out_of_memory(error):
                    raise
                self._forget()
                self.statistics.restore()
                if size == 1:
                    raise TrainingError(
                        "memory ran out with a single image at a time",
                        hint="a smaller model or image size, recompute=True, or bfloat16",
                    ) from error
                size, shrunk = -(-size // 2), True
        self.micro_batch = size if shrunk or self.micro_batch else 0
        return self._apply(loss, right, size=size, shrunk=shrunk)

    def _prepare(self, batch: Batch, step: int) -> Work:
        rng = np.random.default_rng([self.config.seed, _MIX_STREAM, step])
        images_BHWC = torch.from_numpy(np.asarray(batch.images_BHWC))
        scale = scale_at(step, steps=self.config.steps, growth=self.config.growth)
        if scale != 1:
            images_BHWC = _shrunk(images_BHWC, scale)
        work = self.task.prepare(images_BHWC, torch.from_numpy(np.asarray(batch.labels)), rng)
        device = self.world.device
        return Work(images_BHWC=work.images_BHWC.to(device), wanted=tuple(tensor.to(device) for tensor in work.wanted))

    def _gradients(self, work: Work, size: int, *, step: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Add up the gradients of all parts; the sums over our rows of loss / batch and of right / batch."""
        rows = len(work.images_BHWC)
        loss = torch.zeros((), device=self.world.device)
        right = torch.zeros((), device=self.world.device)
        for start in range(0, rows, size):
            stop = min(start + size, rows)
            part = Work(images_BHWC=work.images_BHWC[start:stop], wanted=tuple(tensor[start:stop] for tensor in work.wanted))
            with without_talk(self.model, last=stop == rows), self._noise(step, start):
                with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
                    loss_B, right_B = self.task.loss(self.model, part)
                share = loss_B.sum() / batch_size
                # Gradients are averaged over ranks, each of which has only its part of the batch.
                torch.autograd.backward(share * self.world.ranks)
            loss += share.detach()
            right += right_B.detach().sum() / batch_size
        return loss, right

    def _apply(self, loss: Tensor, right: Tensor, *, size: int, shrunk: bool) -> Outcome:
        totals = self.world.sum(torch.stack([loss, right]))
        mean_loss, accuracy = totals.tolist()
        norm = self._clip()
        fault = None
        if not np.isfinite(mean_loss):
            fault = f"the loss is {mean_loss}"
        elif not np.isfinite(norm):
            fault = f"the gradient's norm is {norm}"
        if fault is None:
            for optimizer in self.optimizers:
                optimizer.step()
            self.statistics.share(self.world)
        else:
            self.statistics.restore()
        self._forget()
        return Outcome(
            loss=mean_loss,
            accuracy=None if np.isnan(accuracy) else accuracy,
            gradient_norm=norm,
            fault=fault,
            micro_batch=size,
            shrunk=shrunk,
        )

    def _clip(self) -> float:
        learning = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        limit = self.config.optimizer.clip or float("inf")
        norm = nn.utils.clip_grad_norm_(learning, limit, foreach=True)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def _forget(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _noise(self, step: int, row: int) -> AbstractContextManager[None]:
        """Dropout and stochastic depth drawn from (seed, step, rank, row), whatever happened before; the caller's state stays."""
        seed = np.random.SeedSequence([self.config.seed, _NOISE_STREAM, step, self.world.rank, row]).generate_state(1, np.uint64)
        return _seeded(int(seed[0]) >> 1, self.world.device)


class _seeded(AbstractContextManager[None]):  # noqa: N801 (used like a function)
    """Torch's global generators seeded within the block, and as they were after it."""

    def __init__(self, seed: int, device: torch.device) -> None:
        devices = [device.index or 0] if device.type == "cuda" else []
        self.fork = torch.random.fork_rng(devices=devices)
        self.seed = seed

    def __enter__(self) -> None:
        self.fork.__enter__()
        torch.manual_seed(self.seed)

    def __exit__(self, *reason: object) -> None:
        self.fork.__exit__(None, None, None)


def _shrunk(images_BHWC: Tensor, scale: float) -> Tensor:
    """Images of uint8 at a scale below 1, antialiased."""
    _, height, width, _ = images_BHWC.shape
    size = scaled((height, width), scale)
    small_BCHW = F.interpolate(images_BHWC.permute(0, 3, 1, 2), size=size, mode="bilinear", antialias=True)
    return small_BCHW.permute(0, 2, 3, 1)


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY)


# A look at the held-out images during training, with the averaged weights where the run averages.

_VALIDATION_STREAM = 203


def validate(players: TrainState, judge: Loader, run: RunConfig, here: World, control: Control) -> dict[str, float]:
    """Names and values: loss, top1, ... over every held-out image of all ranks. `Stopped` where a stop is asked for meanwhile."""
    with swapped(players):
        players.model.eval()
        try:
            with judge.batches() as stream:
                batches = _until_stopped(stream, here, control)
                if isinstance(players.task, PredictMasked):
                    return {"loss": _masked_loss(players, batches, run, here)}
                own = answer(players.whole, batches, run.preprocess, device=here.device)
            return {name: float(value) for name, value in headline(_merged(here.gather(own))).items()}
        finally:
            resharded(players.model)
            players.model.train()


def _until_stopped(stream: Stream, here: World, control: Control) -> Iterator[Batch]:
    """The batches, as long as nobody asks for a stop; ranks, which need each other for every layer, stop before the same batch."""
    while True:
        if here.ranks > 1:
            if here.any(control.stop is not None):
                raise Stopped
            batch = next(stream, None)
        else:
            with control.waiting():
                batch = next(stream, None)
        if batch is None:
            return
        yield batch


def _merged(parts: list[Answers]) -> Answers:
    return Answers(
        logits_NC=np.concatenate([part.logits_NC for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        indices_N=np.concatenate([part.indices_N for part in parts]),
        failures=tuple(failure for part in parts for failure in part.failures),
    )


def score(metrics: dict[str, float]) -> float:
    """The one number by which a checkpoint is better than another: accuracy where there is one, else minus the loss."""
    for name in ("top1", "mean_average_precision"):
        if name in metrics:
            return metrics[name]
    return -metrics["loss"]


@contextmanager
def swapped(players: TrainState) -> Iterator[None]:
    """The averaged weights in the model's place within the block."""
    if players.average is None:
        yield
        return
    own = {name: tensor.detach().clone() for name, tensor in players.bare.state_dict().items()}
    try:
        _put(players, players.average.state)
        yield
    finally:
        _put(players, own)


@torch.no_grad()
def _put(players: TrainState, state: dict[str, torch.Tensor]) -> None:
    for name, tensor in players.bare.state_dict().items():  # the model's own memory, running statistics in it too
        tensor.copy_(state[name])


@torch.inference_mode()
def _masked_loss(players: TrainState, batches: Iterable[Batch], run: RunConfig, here: World) -> float:
    totals = torch.zeros(2, dtype=torch.float64, device=here.device)
    for number, batch in enumerate(batches):
        rng = np.random.default_rng([run.train.seed, _VALIDATION_STREAM, number])
        work = players.task.prepare(torch.from_numpy(batch.images_BHWC), torch.from_numpy(batch.labels), rng)
        placed = Work(images_BHWC=work.images_BHWC.to(here.device), wanted=tuple(part.to(here.device) for part in work.wanted))
        loss_B, _ = players.task.loss(players.model, placed)
        totals += torch.tensor([float(loss_B.sum()), float(len(loss_B))], dtype=torch.float64, device=here.device)
    summed = here.sum(totals)
    return float(summed[0] / summed[1])


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
        self.checkpointer: Checkpointer | None = None  # once there is something to keep

    def events(self) -> Iterator[Event]:
        """Everything that happens, also written to the run's events where this process leads."""
        try:
            for event in self._events():
                if self.here.leads:
                    self.directory.append_event(_as_line(event))
                yield event
        finally:
            if self.checkpointer is not None:
                self.checkpointer.close()

    def _events(self) -> Iterator[Event]:
        began = time.monotonic()
        run, directory = self.run, self.directory
        restored, troubles = last_good(directory, lean=self.here.ranks > 1)
        if restored is not None:
            self.progress = restored.progress
        if self.here.leads:
            directory.forget_events_after(self.progress.step)
        dataset = open_part(run, run.data.train_split)
        held_out = None if run.data.evaluate_split is None else open_part(run, run.data.evaluate_split)
        loader = training_loader(run, dataset, self.here)
        judge = None if held_out is None else evaluation_loader(run, held_out, self.here)
        with loader.batches(self.progress.position) as stream:  # its workers start before the model takes memory
            self.players = assemble(run, dataset, self.here, restored)
            self.checkpointer = checkpointer = Checkpointer(run, directory, self.here, self.players)
            checkpointer.saved = self.progress.step if restored is not None else -1
            self.stepper = Stepper(self.players.model, self.players.optimizers, self.players.task, run.train, self.here)
            self.stepper.micro_batch = self.progress.micro_batch or run.train.micro_batch
            yield self._started(len(dataset), (*loader.notes, *self.players.notes), resumed=restored is not None)
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
                if self.here.ranks == 1 and not checkpointer.broken:
                    yield from self._save()  # what was learned so far is not lost with a worker
                    yield from checkpointer.written()
                raise
        yield from self._end(checkpointer, judge, reason, began)

    def _started(self, images: int, notes: tuple[str, ...], *, resumed: bool) -> Started:
        parameters = list(self.players.model.parameters())
        return Started(
            step=self.progress.step,
            steps=self.run.train.steps,
            parameters=sum(parameter.numel() for parameter in parameters),
            trainable=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
            images=images,
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
        assert self.checkpointer is not None
        yield from self.checkpointer.written()  # beside this one update: of those that were told, one interval is lost at most
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
            images=size,
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
        assert self.checkpointer is not None
        return self.checkpointer.save(self.progress, self._measured(), best=best)

    def _measured(self) -> dict[str, float]:
        return {name: value for name, value in self.metrics.items() if name != "step"}

    def _end(self, checkpointer: Checkpointer, judge: Loader | None, reason: Reason, began: float) -> Iterator[Event]:
        if reason in ("finished", "patience", "max-time"):
            try:
                yield from self._look(judge, last=True)
            except Stopped:
                reason = self._agreed(self.control.stop) or reason
        yield from self._save()
        yield from checkpointer.written()
        model = None
        if self.here.leads and reason in ("finished", "patience"):
            model = checkpointer.keep_model()
        self.here.meet()
        seconds = time.monotonic() - began
        yield Finished(step=self.progress.step, reason=reason, model=model, metrics=self._measured(), seconds=seconds)


def _step_seconds(progress: Progress) -> float:
    return progress.seconds / progress.step if progress.step else 0.0


def _as_line(event: Event) -> dict[str, object]:
    values = {name: getattr(event, name) for name in event.__dataclass_fields__ if name != "event"}
    return {"event": event.event} | {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
