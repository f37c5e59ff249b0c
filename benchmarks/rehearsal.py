"""A rehearsal of training: two real steps on fake tensors, which have shapes and no memory, to count the memory of one rank.

    rehearse(run, ranks=8, rows=16).peak    # bytes of tensors on the busiest moment of rank 0

The model is built on the meta device, sharded by `fully_shard` itself in a process group that sends nothing, and run forward,
backward and through the optimizer as training does. `MemoryTracker` adds up the storages that are alive. The same tracker counts
real tensors (benchmarks/fsdp_memory.py), so a rehearsal can be compared with a run.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from vitlab.config.run import RunConfig
from vitlab.models.families import build_on_meta
from vitlab.models.vit import ViT
from vitlab.training.distributed import World, is_sharded, shard, simulated_ranks
from vitlab.training.optim import create_optimizers, freeze


class MemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that operations make inside the block: `now`, and the `peak` since `reset`.

    FSDP frees a gathered layer by resizing its storage to nothing, so resizes count too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}

    def add(self, tensor: Tensor) -> None:
        """Count a tensor that was made outside the block."""
        whole = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        storage = whole.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            weakref.finalize(storage, self._drop, key)
        self._resized(key, storage.nbytes())

    def reset(self) -> None:
        """Forget the peak so far."""
        self.peak = self.now

    def _resized(self, key: int, size: int) -> None:
        if key in self._sizes:
            self.now += size - self._sizes[key]
            self._sizes[key] = size
            self.peak = max(self.peak, self.now)

    def _drop(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, Tensor):
                self.add(tensor)
        return made

    def __enter__(self) -> MemoryTracker:
        resize = torch.UntypedStorage.resize_
        self._resize = resize

        def counted(storage: torch.UntypedStorage, size: int) -> Any:
            done = resize(storage, size)
            self._resized(storage._cdata, size)
            return done

        setattr(torch.UntypedStorage, "resize_", counted)  # noqa: B010 (until the block ends)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        setattr(torch.UntypedStorage, "resize_", self._resize)  # noqa: B010
        super().__exit__(*error)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """Bytes of tensors of one rank: `static` between two steps (weights, optimizer, average), and at the `peak` of a step."""

    static: int
    peak: int


def rehearse(run: RunConfig, *, ranks: int) -> Rehearsed:
    """What rank 0, which has the largest shard, holds while it classifies; nothing is allocated and nothing is sent."""
    model = build_on_meta(run.model)
    if isinstance(model, ViT):
        model.skip_unused_tokens = True
    model.recompute = run.train.recompute
    freeze(model, run.train)
    with simulated_ranks(ranks):
        shard(model, run.train.precision, World(ranks=ranks))
        with FakeTensorMode(allow_non_fake_inputs=True), MemoryTracker() as memory:
            model.to_empty(device="cpu")
            return count_steps(run, model, memory, ranks=ranks)


def count_steps(run: RunConfig, model: nn.Module, memory: MemoryTracker, *, ranks: int) -> Rehearsed:
    """The memory of two steps of a sharded model, of which the second begins with a complete optimizer; the tracker must be on.

    A step is that of `vitlab.training.step.update`, with random images and without what decides by numbers: a fake tensor has
    none.
    """
    assert is_sharded(model)
    own = -(-run.data.loader.batch_size // ranks)
    size = min(run.train.micro_batch or own, own)
    optimizers = create_optimizers(model, run.train.optimizer)
    average = [parameter.detach().clone() for parameter in model.parameters()] if run.train.average.decay else []
    for parameter in model.parameters():
        memory.add(parameter)
    static = 0
    for _ in range(2):
        static = memory.now
        memory.reset()
        for _ in range(min(2, -(-own // size))):  # a third micro-batch is like the second
            _gradients(run, model, size)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        for kept, parameter in zip(average, model.parameters(), strict=bool(average)):
            kept.lerp_(parameter.detach(), 0.1)
    return Rehearsed(static=static, peak=memory.peak)


def _gradients(run: RunConfig, model: nn.Module, rows: int) -> None:
    images_BCHW = torch.zeros(rows, run.model.channels, *run.model.image_size)
    targets_BC = torch.zeros(rows, run.model.num_classes)
    with torch.autocast("cpu", torch.bfloat16, enabled=run.train.precision == "bfloat16"):
        logits_BC = model(images_BCHW)
        loss = nn.functional.cross_entropy(logits_BC, targets_BC)
    torch.autograd.backward(loss)
