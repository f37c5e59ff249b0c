"""One training step, and the state that it changes: read `update`, then `TrainState`.

From a batch to `optimizer.step()` lead tasks.py (the loss), optim.py, objective/losses.py and models/vit.py. Every random choice
depends on the seed and the step only, so a resumed run repeats an uninterrupted one bit by bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional as F

from vitlab.checkpoints.native import HeaderFacts
from vitlab.config.run import RunConfig
from vitlab.config.train import Average, scale_at, scaled
from vitlab.data.batch import Batch
from vitlab.data.sampler import Share
from vitlab.errors import TrainingError
from vitlab.io.machine import is_out_of_memory
from vitlab.models.batch_norm import BatchNorm
from vitlab.models.model import Model
from vitlab.training.distributed import World, gradient_sync, is_sharded, rows_to_write
from vitlab.training.events import Skipped, Stepped
from vitlab.training.lora import lora_state, merged_state
from vitlab.training.optim import averaging_decay, learning_rate, optimizer_state, set_learning_rates
from vitlab.training.pulse import Pulse
from vitlab.training.tasks import Inputs, Task, training_only_state

LESS_MEMORY = "use a smaller model or image size, recompute=True, or bfloat16"
_MIX_STREAM, _NOISE_STREAM, _PATCH_STREAM = 201, 202, 204  # independent random streams of one seed


def update(state: TrainState, batch: Batch, *, epoch_length: int, heart: Pulse | None = None) -> Stepped | Skipped:
    """One step: gradients of the whole batch, clipped and applied. A loss or gradient that is not finite is never applied.

    The update does not depend on the micro-batch size, except with BatchNorm, which normalises each micro-batch by itself. `heart`
    tells other ranks how far this one is.
    """
    began = time.monotonic()
    config, progress, images = state.run.train, state.progress, state.run.data.loader.batch_size
    lr = learning_rate(progress.scheduled, peak=config.optimizer.lr, steps=config.steps, schedule=config.schedule)
    set_learning_rates(state.optimizers, lr, config.optimizer)
    inputs = prepare_inputs(state, batch)
    loss, accuracy, micro_batch = accumulate_gradients(state, inputs, heart)
    gradient_norm = clip_gradients(state.model, config.optimizer.clip)
    problem = _not_finite(loss, gradient_norm)
    state.updating = True
    if problem is None:
        for optimizer in state.optimizers:
            optimizer.step()
        state.statistics.synchronise(state.world)
        if state.average is not None:
            state.average.update(state.core, state.step)
    else:
        state.statistics.restore()
    state.zero_grad()
    seconds = time.monotonic() - began
    progress.step += 1
    progress.ahead += progress.pace - 1
    progress.position = progress.step * images
    progress.seconds += seconds
    progress.skipped += problem is not None
    progress.skipped_in_a_row = 0 if problem is None else progress.skipped_in_a_row + 1
    state.updating = False
    if problem is not None:
        samples = tuple(int(index) for index in batch.index_B)
        return Skipped(step=state.step, reason=problem, in_a_row=progress.skipped_in_a_row, samples=samples)
    return Stepped(
        step=state.step,
        steps=progress.expected(config.steps),
        epoch=progress.position / epoch_length,
        loss=loss,
        accuracy=None if math.isnan(accuracy) else accuracy,
        lr=lr,
        gradient_norm=gradient_norm,
        images=images,
        seconds=seconds,
        micro_batch=micro_batch,
    )


def prepare_inputs(state: TrainState, batch: Batch) -> Inputs:
    """The batch on the device, with every random choice made: resized (progressive resizing), mixed or masked; patch size."""
    config = state.run.train
    rng = np.random.default_rng([config.seed, _MIX_STREAM, state.step])
    images_BHWC = torch.from_numpy(np.asarray(batch.images_BHWC))
    scale = scale_at(state.progress.scheduled, steps=config.steps, resizing=config.progressive_resizing)
    if scale != 1:
        images_BHWC = _resized(images_BHWC, scale)
    inputs = state.task.prepare(images_BHWC, torch.from_numpy(np.asarray(batch.targets)), rng)
    if config.patch_sizes:
        drawn = np.random.default_rng([config.seed, _PATCH_STREAM, state.step]).integers(len(config.patch_sizes))
        inputs = replace(inputs, patch_size=config.patch_sizes[drawn])  # the same on all ranks
    return inputs.to(state.world.device)


def accumulate_gradients(state: TrainState, inputs: Inputs, heart: Pulse | None = None) -> tuple[float, float, int]:
    """Forward and backward in micro-batches, halved when memory runs out: mean loss and accuracy, and the micro-batch size."""
    size = min(state.micro_batch or len(inputs), len(inputs))
    state.statistics.keep()
    while True:
        try:
            loss, accuracy = _gradients(state, inputs, size, heart)
            return loss, accuracy, size
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            state.zero_grad()
            state.statistics.restore()
            if size == 1:
                raise TrainingError(
                    f"out of memory with a single image at a time: {str(error) or 'no more can be allocated'}", hint=LESS_MEMORY
                ) from error
            state.progress.micro_batch = size = -(-size // 2)


def _gradients(state: TrainState, inputs: Inputs, size: int, heart: Pulse | None) -> tuple[float, float]:
    """Add up the gradients of all micro-batches; the mean loss and accuracy over the global batch."""
    here, batch_size = state.world, state.run.data.loader.batch_size
    bfloat16 = state.run.train.precision == "bfloat16"
    loss, correct = torch.zeros((), device=here.device), torch.zeros((), device=here.device)
    state.computed = 0.0
    for start, part in inputs.split(size, parts=_equal_parts(state, size)):
        last = start + len(part) == len(inputs)
        if heart is not None:
            heart.at(state.step, "computes")
        began = time.monotonic()
        with gradient_sync(state.model, enabled=last), _noise(state, start):
            with torch.autocast(here.device.type, torch.bfloat16, enabled=bfloat16):
                loss_B, correct_B = state.task.loss(state.model, part)
            part_loss = loss_B.sum() / batch_size
            state.computed += time.monotonic() - began
            if heart is not None and last:
                heart.at(state.step, "exchanges gradients")
            # DDP and FSDP average gradients over ranks, each of which has only its part of the batch.
            torch.autograd.backward(part_loss * here.ranks)
        loss += part_loss.detach()
        correct += correct_B.detach().sum() / batch_size
    mean_loss, accuracy = here.sum(torch.stack([loss, correct])).tolist()
    return mean_loss, accuracy


def _equal_parts(state: TrainState, size: int) -> int | None:
    """The number of micro-batches of every rank under FSDP, whose ranks gather each layer together; None if each is free.

    Ranks may have a row or a pair more than others. Then a micro-batch may be so much larger than `size`.
    """
    if not is_sharded(state.model):
        return None
    ranks, images = state.world.ranks, state.run.data.loader.batch_size
    shares = [training_share(state.run, replace(state.world, rank=rank)).rows(images) for rank in range(ranks)]
    rows = [last - first for first, last in shares]
    return min(-(-max(rows) // size), min(rows))


def clip_gradients(model: nn.Module, limit: float) -> float:
    """Clip the global gradient norm to `limit`, 0 for no limit; returns the norm before."""
    with_gradient = [parameter for parameter in model.parameters() if parameter.grad is not None]
    norm = nn.utils.clip_grad_norm_(with_gradient, limit or float("inf"), foreach=True)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


@contextmanager
def _noise(state: TrainState, row: int) -> Iterator[None]:
    """Seed dropout and stochastic depth by (seed, step, rank, row) inside the block; torch's generators are unchanged after it."""
    here = state.world
    key = [state.run.train.seed, _NOISE_STREAM, state.step, here.rank, row]
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]) >> 1
    devices = [here.device.index or 0] if here.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # Not torch.manual_seed: it would seed devices that are not restored, and notes the stack for those that are not in use.
        torch.default_generator.manual_seed(seed)
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(seed)
        yield


def _resized(images_BHWC: Tensor, scale: float) -> Tensor:
    """uint8 images at a scale below 1, antialiased."""
    _, height, width, _ = images_BHWC.shape
    size = scaled((height, width), scale)
    small_BCHW = F.interpolate(images_BHWC.permute(0, 3, 1, 2), size=size, mode="bilinear", antialias=True)
    return small_BCHW.permute(0, 2, 3, 1)


def _not_finite(loss: float, gradient_norm: float) -> str | None:
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    return None if math.isfinite(gradient_norm) else f"the gradient norm is {gradient_norm}"


def training_share(run: RunConfig, world: World) -> Share:
    """This rank's rows of a training batch. Rows that are mixed with each other stay together, unless there are too few of them.

    So a run does not depend on the number of ranks, also if the batch cannot be shared equally.
    """
    mixes = bool(run.data.augment.mixup or run.data.augment.cutmix)
    pairs = mixes and run.data.loader.batch_size >= 2 * world.ranks
    return Share(rank=world.rank, ranks=world.ranks, together=2 if pairs else 1)


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a run is: after `step` steps and `position` images. With `seed`, this is the state of every random choice.

    `best` is the best value of the watched metric, `stale` the number of evaluations since. `skipped` counts steps without an
    update, `skipped_in_a_row` the latest of them. `micro_batch` is what fits into memory, 0 as long as nothing was too large.
    `seconds` is the training time so far. `evaluation_due`: the run stopped before an evaluation that was due. In a run that
    must finish in time, each step stands for `pace` steps of the schedule; `ahead` is the number of steps that it was shortened by
    so far, below 0 if it was lengthened.
    """

    step: int = 0
    position: int = 0
    seed: int = 0
    best: float | None = None
    stale: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    micro_batch: int = 0
    seconds: float = 0.0
    evaluation_due: bool = False
    pace: float = 1.0
    ahead: float = 0.0

    @property
    def scheduled(self) -> float:
        """Where the run is in its schedule, in steps."""
        return self.step + self.ahead

    def expected(self, steps: int) -> int:
        """The steps of the whole run at this pace, if its schedule has `steps`."""
        return self.step + math.ceil((steps - self.scheduled) / self.pace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything needed to resume a run, as copies: training continues while this is written.

    Under FSDP `model`, `optimizer`, `average` and `extra` are this rank's rows when written, and whole when read. `extra` holds
    the weights that only training needs. With LoRA, `model` and `average` are merged, and `extra` holds the factors.
    """

    progress: Progress
    model: Mapping[str, Tensor]
    facts: HeaderFacts
    optimizer: Mapping[str, Tensor]
    average: Mapping[str, Tensor] | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        parts = (self.model, self.optimizer, self.extra, self.average or {})
        return sum(tensor.nbytes for part in parts for tensor in part.values())


@dataclass(slots=True, kw_only=True)
class TrainState:
    """The state of a run, changed by every step.

    `model` is what training calls: wrapped by DDP or sharded by FSDP if there are several ranks. `unwrapped` is the same without
    DDP, with the weights that only training needs. `core` inside it is the model that is saved and evaluated. `updating` is True
    while the weights belong to no step; `computed` are the seconds of the last step's forward passes.
    """

    run: RunConfig
    world: World
    model: nn.Module
    unwrapped: nn.Module
    core: Model
    task: Task
    optimizers: list[torch.optim.Optimizer]
    average: AveragedWeights | None
    statistics: RunningStatistics
    facts: HeaderFacts
    progress: Progress
    updating: bool = False
    computed: float = 0.0

    @property
    def step(self) -> int:
        """Steps done so far."""
        return self.progress.step

    @property
    def micro_batch(self) -> int:
        """Images per forward pass: as configured, or fewer if memory ran out; 0 for a rank's whole batch."""
        return min((size for size in (self.run.train.micro_batch, self.progress.micro_batch) if size), default=0)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def snapshot(self, metrics: dict[str, float]) -> Snapshot:
        """A copy of the state in CPU memory; under FSDP, of this rank's rows."""
        return Snapshot(
            progress=replace(self.progress),
            model=self._copied(merged_state(self.core)),
            facts=replace(self.facts, metrics=metrics or None),
            optimizer=self._copied(optimizer_state(self.unwrapped, self.optimizers)),
            average=self._averaged(),
            extra=self._copied(self._extra()),
        )

    def _averaged(self) -> dict[str, Tensor] | None:
        if self.average is None:
            return None
        if self.run.train.lora is None:
            return self._copied(self.average.state)
        with self.averaged_weights():
            return self._copied(merged_state(self.core))

    def _extra(self) -> dict[str, Tensor]:
        return training_only_state(self.unwrapped) | lora_state(self.core, None if self.average is None else self.average.state)

    def _copied(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        rows = rows_to_write(state, self.world)
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in rows.items()}

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Inside the block the model has the averaged weights, if the run averages."""
        if self.average is None:
            yield
            return
        state = self.core.state_dict()
        own = {name: state[name].detach().clone() for name in self.average.state}
        try:
            self._load(self.average.state)
            yield
        finally:
            self._load(own)

    @torch.no_grad()
    def _load(self, state: Mapping[str, Tensor]) -> None:
        own = self.core.state_dict()
        for name, tensor in state.items():  # in place, running statistics too
            own[name].copy_(tensor)


class AveragedWeights:
    """Polyak averaging: a moving average, in float32, of everything in a model's state dict, or with LoRA of what trains.

    BatchNorm's running statistics are averaged too, as in the authors' EfficientNet: they belong to the averaged weights.
    """

    def __init__(self, model: nn.Module, config: Average, *, trained_only: bool = False) -> None:
        self.config = config
        frozen = {name for name, parameter in model.named_parameters() if trained_only and not parameter.requires_grad}
        self.state: dict[str, Tensor] = {
            name: tensor.detach().to(torch.float32, copy=True) for name, tensor in model.state_dict().items() if name not in frozen
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved average."""
        for name, average in self.state.items():
            saved = state[name].to(average.device)
            if isinstance(average, DTensor):  # each rank takes its rows of the whole tensor
                saved = distribute_tensor(saved, average.device_mesh, average.placements, src_data_rank=None)
            average.copy_(saved)

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move the average towards the weights after step number `step`, counted from 0."""
        weight = 1 - averaging_decay(step, self.config)
        now = model.state_dict()
        for sharded in (True, False):  # a foreach operation takes tensors of one class
            names = [name for name, average in self.state.items() if isinstance(average, DTensor) == sharded]
            if names:
                current: list[Tensor] = [now[name].detach().to(torch.float32) for name in names]
                torch._foreach_lerp_([self.state[name] for name in names], current, weight)


class RunningStatistics:
    """BatchNorm's running means and variances, none for most models: only applied updates change them, on all ranks alike.

    A forward pass in training changes them as a side effect. A pass that ran out of memory, or a step that was skipped, must leave
    no trace: `keep` before a step, then `restore`, or `synchronise`, which gives every rank the mean over ranks.
    """

    def __init__(self, model: nn.Module) -> None:
        self.norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
        self.kept: Sequence[Tensor] = []

    @property
    def buffers(self) -> list[Tensor]:
        """The means and variances."""
        return [buffer for norm in self.norms for buffer in (norm.running_mean, norm.running_var)]

    @torch.no_grad()
    def keep(self) -> None:
        """Remember the present values."""
        self.kept = [buffer.clone() for buffer in self.buffers]

    @torch.no_grad()
    def restore(self) -> None:
        """Return to the values that `keep` remembered."""
        for buffer, kept in zip(self.buffers, self.kept, strict=True):
            buffer.copy_(kept)

    @torch.no_grad()
    def synchronise(self, world: World) -> None:
        """Replace each rank's values by the mean over ranks, in one exchange."""
        if not self.norms or world.ranks == 1:
            return
        buffers = self.buffers
        mean = world.sum(torch.cat(buffers)) / world.ranks
        for buffer, part in zip(buffers, torch.split(mean, [len(buffer) for buffer in buffers]), strict=True):
            buffer.copy_(part)
