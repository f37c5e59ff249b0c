"""One process or many: who we are under torchrun, and how the model's work is shared."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from vitlab.config.model import ModelConfig
from vitlab.config.train import Precision, Strategy
from vitlab.errors import ConfigError
from vitlab.models.convnext import Block as ConvNeXtBlock
from vitlab.models.efficientnet import Unit as EfficientNetUnit
from vitlab.models.families import skeleton
from vitlab.models.recurrent import Layer as RecurrentLayer
from vitlab.models.resnet import Unit as ResNetUnit
from vitlab.models.stems import Unit as StemUnit
from vitlab.models.swin import Block as SwinBlock
from vitlab.models.vit import Block

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


# How ranks share the work on one model: each a whole copy (DDP), or each a part of every layer (FSDP2).

_SHARDED = (Block, StemUnit, ResNetUnit, SwinBlock, ConvNeXtBlock, EfficientNetUnit, RecurrentLayer)


def shared_out(model: nn.Module, strategy: Strategy, precision: Precision, here: World) -> nn.Module:
    """The model as the step calls it, its work shared as `strategy` says; `auto` is DDP where there are several ranks.

    FSDP changes the model in place: its parameters become parts of themselves, gathered layer by layer, and its products are
    made in bfloat16 where `precision` says so, gradients being summed in float32.
    """
    chosen = ("ddp" if here.ranks > 1 else "single") if strategy == "auto" else strategy
    if chosen == "single":
        if here.ranks > 1:
            raise ConfigError(f"strategy='single' under torchrun with {here.ranks} processes", hint="strategy='ddp' or 'fsdp'")
        return model
    if here.ranks == 1 and not torch.distributed.is_initialized():
        raise ConfigError(f"strategy={chosen!r} needs torchrun", hint="torchrun --nproc-per-node 2 -m vitlab ...")
    if chosen == "ddp":
        devices = [here.device] if here.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    return shard(model, precision, here)


def shard(model: nn.Module, precision: Precision, here: World) -> nn.Module:
    """FSDP2: each layer by itself, and what is left with the whole."""
    mesh = init_device_mesh(here.device.type, (here.ranks,))
    half = torch.bfloat16 if precision == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers that are gathered one at a time."""
    return [module for module in model.modules() if isinstance(module, _SHARDED)]


def without_talk(model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Ranks exchange gradients once an update, with the last part of the batch."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    elif isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return nullcontext()


def is_sharded(model: nn.Module) -> bool:
    """Whether ranks hold parts of its tensors."""
    return isinstance(model, FSDPModule)


def own_rows(state: Mapping[str, Tensor], here: World) -> dict[str, Tensor]:
    """What this rank has to write of each tensor so that nothing is written twice: its rows, or on rank 0 what all ranks hold."""
    found = dict[str, Tensor]()
    for name, tensor in state.items():
        if isinstance(tensor, DTensor) and tensor.placements == (Shard(0),):
            rows = tensor.to_local()
            if rows.numel():
                found[name] = rows
        elif here.leads:
            assert not isinstance(tensor, DTensor) or all(isinstance(place, Replicate) for place in tensor.placements)
            found[name] = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return found


def resharded(model: nn.Module) -> None:
    """Let go of layers that a forward pass gathered and that no backward pass will release."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


# What each rank holds of a model that is shared out, found by sharing it out: on the meta device, among ranks that are not there.
#
# The model is wrapped with `fully_shard` as in training, by a process group that talks to nobody, so the count is torch's own, uneven
# rows included. Nothing is allocated: ViT-G/14 takes two seconds.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """In numbers, for the rank that has most: `parameters` it holds, and `gathered`, what it has whole at the busiest moment.

    That is what belongs to no layer, and two layers: the one at work and the next, which is fetched meanwhile.
    """

    parameters: int
    gathered: int


def shares(config: ModelConfig, precision: Precision, *, ranks: int) -> Shares:
    """What a rank of that many holds of the model under FSDP."""
    model = skeleton(config)
    layers = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers_of(model)]
    rest = sum(parameter.numel() for parameter in model.parameters()) - sum(layers)
    with _pretended(ranks):
        shard(model, precision, World(ranks=ranks))
        held = sum(parameter.to_local().numel() for parameter in model.parameters() if isinstance(parameter, DTensor))
    return Shares(parameters=held, gathered=rest + 2 * max(layers, default=0))


@contextmanager
def _pretended(ranks: int) -> Iterator[None]:
    """Rank 0 of a world in which every message is taken for delivered; the first rank has the most rows."""
    if dist.is_initialized():
        raise ConfigError("a plan is made by one process, before ranks are joined")
    dist.init_process_group("fake", rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
