"""Distributed training under torchrun: this process among all, and how ranks share one model (DDP or FSDP2)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from vitlab.config.model import ModelConfig
from vitlab.config.train import Offload, Precision, Strategy
from vitlab.errors import ConfigError, TrainingError, VitlabError
from vitlab.models.device import resolve_device
from vitlab.models.families import FAMILIES, build_on_meta

T = TypeVar("T")

_TIMEOUT = 60.0  # seconds after which a rank that does not answer is missing, if a run does not say otherwise
_DISK_TIMEOUT = timedelta(minutes=20)  # a rank that writes or reads gigabytes may take this long
_SHARDED = tuple(layer for family in FAMILIES.values() for layer in family.sharded)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among all: number `rank` of `ranks`, and the device it computes on."""

    rank: int = 0
    ranks: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, on every rank."""
        if self.ranks > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return bool(self.sum(torch.tensor(float(flag), device=self.device)).item())

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in rank order, on every rank."""
        if self.ranks == 1:
            return [value]
        found: list[T | None] = [None] * self.ranks
        dist.all_gather_object(found, value)
        return [item for item in found if item is not None]

    def on_main(self, work: Callable[[], T]) -> T | None:
        """The result of `work`, which rank 0 alone does; None on other ranks, which wait as long as `disk_barrier` does.

        A VitlabError is raised on every rank.
        """
        if self.ranks == 1:
            return work()
        group = disk_group()  # before the work, since ranks that join a group wait a minute at most
        done: T | None = None
        refused: list[tuple[str, str | None] | None] = [None]
        if self.is_main:
            try:
                done = work()
            except VitlabError as error:
                refused = [(error.message, error.hint)]
        dist.broadcast_object_list(refused, src=0, group=group)
        dist.destroy_process_group(group)
        if refused[0] is not None:
            raise TrainingError(refused[0][0], hint=refused[0][1])
        return done

    def on_others(self, work: Callable[[], object]) -> None:
        """Let every rank but the first do `work`; all wait for all. A VitlabError is raised on every rank."""
        if self.ranks == 1:
            return
        group = disk_group()
        fault: tuple[str, str | None] | None = None
        if not self.is_main:
            try:
                work()
            except VitlabError as error:
                fault = (error.message, error.hint)
        faults: list[tuple[str, str | None] | None] = [None] * self.ranks
        dist.all_gather_object(faults, fault, group=group)
        dist.destroy_process_group(group)
        for message, hint in (one for one in faults if one is not None):
            raise TrainingError(message, hint=hint)

    def disk_barrier(self) -> None:
        """Wait for every rank, as long as a rank may need to write a large file."""
        if self.ranks > 1:
            group = disk_group()
            dist.barrier(group)
            dist.destroy_process_group(group)


def disk_group() -> dist.ProcessGroup:
    """A second process group, beside that of training, with a timeout for slow disks; every rank must call this."""
    group = dist.new_group(backend="gloo", timeout=_DISK_TIMEOUT)
    assert isinstance(group, dist.ProcessGroup)
    return group


def is_main_process() -> bool:
    """Whether this process is rank 0; also before and after the process group exists."""
    return os.environ.get("RANK", "0") == "0"


def world_size() -> int:
    """How many processes torchrun started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def world(device: str | torch.device = "auto", *, timeout: float = _TIMEOUT) -> Iterator[World]:
    """The world that torchrun set up, or a world of one process; the process group ends with the block.

    Under torchrun each rank takes the CUDA device of its local rank; without CUDA, ranks compute on the CPU. A rank that waits for
    another one longer than `timeout` seconds fails. With CUDA, tensors on the CPU travel over gloo: those of `offload="cpu"`, and
    objects. NCCL waits twice as long, because it ends a process without a word; before that `vitlab.training.pulse` does, and says
    who is missing.
    """
    ranks = world_size()
    place = resolve_device(device)
    if ranks > 1 and place.type != "cuda":
        place = torch.device("cpu")  # gloo exchanges tensors of the CPU only
    if place.type == "cuda":
        if ranks > 1:
            place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    if dist.is_initialized():
        yield World(rank=dist.get_rank(), ranks=dist.get_world_size(), device=place)
        return
    if ranks == 1:
        yield World(device=place)
        return
    if place.type == "cuda":
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timedelta(seconds=2 * timeout), device_id=place)
    else:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    try:
        yield World(rank=dist.get_rank(), ranks=dist.get_world_size(), device=place)
    finally:
        dist.destroy_process_group()


def parallelise(
    model: nn.Module, strategy: Strategy, precision: Precision, world: World, *, offload: Offload = "none"
) -> nn.Module:
    """The model as training calls it: itself, wrapped by DDP, or sharded by FSDP; `auto` is DDP if there are several ranks.

    FSDP changes the model in place: each rank keeps some rows of every parameter and gathers the others layer by layer. It
    computes in bfloat16 if `precision` says so, and sums gradients in float32. With `offload="cpu"` a rank's own rows of weights,
    gradients and the optimizer's state are in host memory, and the device holds what is gathered and the activations.
    """
    chosen = ("ddp" if world.ranks > 1 else "single") if strategy == "auto" else strategy
    if chosen == "single":
        if world.ranks > 1:
            raise ConfigError(
                f"strategy='single' needs one process, and torchrun started {world.ranks}", hint="use strategy='ddp' or 'fsdp'"
            )
        return model
    if world.ranks == 1 and not dist.is_initialized():
        raise ConfigError(
            f"strategy={chosen!r} needs more than one process", hint="launch with torchrun --nproc-per-node 2 -m vitlab ..."
        )
    if chosen == "ddp":
        devices = [world.device] if world.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    return shard(model, precision, world, offload=offload)


def shard(model: nn.Module, precision: Precision, world: World, *, offload: Offload = "none") -> nn.Module:
    """Apply FSDP2 to each layer, and to the rest of the model."""
    place = OffloadPolicy() if offload == "none" else CPUOffloadPolicy(pin_memory=world.device.type == "cuda")
    mesh = init_device_mesh(world.device.type, (world.ranks,))
    half = torch.bfloat16 if precision == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    for layer in sharded_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=place)
    fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=place)
    return model


def sharded_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that FSDP gathers one at a time."""
    return [module for module in model.modules() if isinstance(module, _SHARDED)]


def gradient_sync(model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
    """Whether backward passes in the block exchange gradients between ranks; with DDP once per step is enough.

    FSDP exchanges them each time: what a rank does not exchange it keeps whole, and the model is sharded because it is too large.
    """
    return model.no_sync() if isinstance(model, DistributedDataParallel) and not enabled else nullcontext()


def is_sharded(model: nn.Module) -> bool:
    """Whether each rank holds only some rows of its parameters."""
    return isinstance(model, FSDPModule)


def rows_to_write(state: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """This rank's part of a checkpoint: its rows of sharded tensors, and on rank 0 all other tensors. Nothing is written twice."""
    found = dict[str, Tensor]()
    for name, tensor in state.items():
        if isinstance(tensor, DTensor) and tensor.placements == (Shard(0),):
            rows = tensor.to_local()
            if rows.numel():
                found[name] = rows
        elif world.is_main:
            assert not isinstance(tensor, DTensor) or all(isinstance(place, Replicate) for place in tensor.placements)
            found[name] = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return found


def reshard(model: nn.Module) -> None:
    """Free the layers that a forward pass gathered and that no backward pass will free."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSize:
    """Numbers that the largest rank holds under FSDP: its own `parameters`, and at most so many `gathered` from other ranks.

    Gathered are the parameters outside all layers, and two layers: the current one, and the next one, fetched meanwhile. `layer`
    is the largest layer.
    """

    parameters: int
    gathered: int
    layer: int


def shard_size(config: ModelConfig, precision: Precision, *, ranks: int) -> ShardSize:
    """What one of `ranks` ranks holds of the model under FSDP.

    The model is sharded by `fully_shard` itself, on the meta device and in a process group that sends nothing, so the count is
    torch's own, and nothing is allocated.
    """
    model = build_on_meta(config)
    layers = [sum(parameter.numel() for parameter in layer.parameters()) for layer in sharded_layers(model)]
    rest = sum(parameter.numel() for parameter in model.parameters()) - sum(layers)
    with simulated_ranks(ranks):
        shard(model, precision, World(ranks=ranks))
        held = sum(parameter.to_local().numel() for parameter in model.parameters() if isinstance(parameter, DTensor))
    largest = max(layers, default=0)
    return ShardSize(parameters=held, gathered=rest + 2 * largest, layer=largest)


@contextmanager
def simulated_ranks(ranks: int) -> Iterator[None]:
    """Rank 0, which has the most rows, of a process group that sends nothing."""
    if dist.is_initialized():
        raise ConfigError("the size of a shard is computed by one process, before the process group exists")
    dist.init_process_group("fake", rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
