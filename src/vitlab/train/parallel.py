"""How ranks share the work on one model: each a whole copy (DDP), or each a part of every layer (FSDP2)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from vitlab.config.train import Precision, Strategy
from vitlab.errors import ConfigError
from vitlab.model.hybrid import Unit as StemUnit
from vitlab.model.resnet import Unit as ResNetUnit
from vitlab.model.vit import Block
from vitlab.train.distributed import World

_SHARDED = (Block, StemUnit, ResNetUnit)  # the layers that are gathered one at a time


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
    for module in model.modules():
        if isinstance(module, _SHARDED):
            fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def without_talk(model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Ranks exchange gradients once an update, with the last part of the batch."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    elif isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return nullcontext()


def whole(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors put together from the ranks' parts; every rank must ask, and every rank gets them."""
    return {name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in state.items()}


def resharded(model: nn.Module) -> None:
    """Let go of layers that a forward pass gathered and that no backward pass will release."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
