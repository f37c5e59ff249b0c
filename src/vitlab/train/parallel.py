"""How ranks share the work on one model: each a whole copy (DDP), or each a part of every layer (FSDP2)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from vitlab.config.train import Precision, Strategy
from vitlab.errors import ConfigError
from vitlab.model.convnext import Block as ConvNeXtBlock
from vitlab.model.efficientnet import Unit as EfficientNetUnit
from vitlab.model.hybrid import Unit as StemUnit
from vitlab.model.recurrent import Layer as RecurrentLayer
from vitlab.model.resnet import Unit as ResNetUnit
from vitlab.model.swin import Block as SwinBlock
from vitlab.model.vit import Block
from vitlab.train.distributed import World

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
