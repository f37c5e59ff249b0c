"""One update: a batch in parts that fit into memory, gradients added up, clipped, checked, applied.

The update does not depend on the size of the parts, but with BatchNorm, which normalises each by itself; and what is not finite
is never applied.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from vitlab.config.growth import scale_at, scaled
from vitlab.config.train import TrainConfig
from vitlab.data.batch import Batch
from vitlab.errors import TrainingError
from vitlab.train.distributed import World
from vitlab.train.optim import set_rates
from vitlab.train.parallel import without_talk
from vitlab.train.statistics import Statistics
from vitlab.train.task import Task, Work

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
                        "memory ran out with a single picture at a time",
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
    """Pictures of uint8 at a scale below 1, antialiased."""
    _, height, width, _ = images_BHWC.shape
    size = scaled((height, width), scale)
    small_BCHW = F.interpolate(images_BHWC.permute(0, 3, 1, 2), size=size, mode="bilinear", antialias=True)
    return small_BCHW.permute(0, 2, 3, 1)


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY)
