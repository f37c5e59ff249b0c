"""One process or many: who we are under torchrun, and how the model's work is shared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

_PATIENCE = timedelta(seconds=60)  # a rank that died is noticed within this time
_WRITING = timedelta(minutes=20)  # a rank that writes or reads gigabytes may take so long


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among all: `rank` of `ranks`, and the device it computes on."""

    rank: int = 0
    ranks: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, known to each."""
        if self.ranks > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether it is true on any rank."""
        return bool(self.sum(torch.tensor(float(flag), device=self.device)).item())

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in their order, known to each."""
        if self.ranks == 1:
            return [value]
        found: list[T | None] = [None] * self.ranks
        dist.all_gather_object(found, value)
        return [item for item in found if item is not None]

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.ranks > 1:
            dist.barrier()

    def meet(self) -> None:
        """Wait for every rank, also for one that writes a large file: not for 60 seconds only, as `barrier` does."""
        if self.ranks > 1:
            group = patient_group()
            dist.barrier(group)
            dist.destroy_process_group(group)


def patient_group() -> dist.ProcessGroup:
    """A second way for the ranks to speak, beside that of training and not as soon out of patience; all must ask for it."""
    group = dist.new_group(backend="gloo", timeout=_WRITING)
    assert isinstance(group, dist.ProcessGroup)
    return group


def leads() -> bool:
    """Whether this process is the one that writes and speaks, known before and after there is a world too."""
    return os.environ.get("RANK", "0") == "0"


def ranks_around() -> int:
    """How many processes torchrun started, 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def world() -> Iterator[World]:
    """The world that torchrun set up, or a world of one; process groups end with the block."""
    ranks = ranks_around()
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if ranks == 1 or dist.is_initialized():
        rank = dist.get_rank() if dist.is_initialized() else 0
        yield World(rank=rank, ranks=dist.get_world_size() if dist.is_initialized() else 1, device=device)
        return
    dist.init_process_group("nccl" if cuda else "gloo", timeout=_PATIENCE)
    try:
        yield World(rank=dist.get_rank(), ranks=dist.get_world_size(), device=device)
    finally:
        dist.destroy_process_group()
