"""What each rank holds of a model that is shared out, found by sharing it out: on the meta device, among ranks that are not there.

The model is wrapped with `fully_shard` as in training, by a process group that talks to nobody, so the count is torch's own, uneven
rows included. Nothing is allocated: ViT-G/14 takes two seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from vitlab.config.model import ModelConfig
from vitlab.config.train import Precision
from vitlab.errors import ConfigError
from vitlab.model.assemble import skeleton
from vitlab.train.distributed import World
from vitlab.train.parallel import layers_of, shard


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
