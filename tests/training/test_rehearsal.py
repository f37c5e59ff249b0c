"""Memory of a rank: a rehearsal on fake tensors counts what a sharded step allocates, and the formula of a plan agrees with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch

from benchmarks.rehearsal import MemoryTracker, rehearse
from tests.training.small import small_run
from vitlab.config import ViTConfig
from vitlab.config.run import RunConfig
from vitlab.config.train import Average, Optimizer, Precision
from vitlab.models.cost import cost
from vitlab.training.plan import Memory


def wide_run(*, recompute: bool, micro_batch: int = 0) -> RunConfig:
    """A ViT whose layers, not its images, take the memory, as in large models."""
    run = small_run()
    assert isinstance(run.model, ViTConfig)
    model = replace(run.model, width=256, depth=6, heads=4, mlp_width=1024, dropout=0.0, drop_path=0.0)
    train = replace(
        run.train,
        strategy="fsdp",
        recompute=recompute,
        micro_batch=micro_batch,
        optimizer=Optimizer(lr=1e-3),
        average=Average(decay=0.0),
    )
    return replace(run, model=model, train=train)


def test_the_tracker_counts_living_storages_once_and_their_peak() -> None:
    with MemoryTracker() as memory:
        first = torch.zeros(1000)
        view = first[10:]
        assert memory.now == 4000
        second = first + 1
        assert memory.now == 8000
        del first, view
        assert memory.now == 4000
        second.untyped_storage().resize_(0)
        assert memory.now == 0
    assert memory.peak == 8000


@pytest.mark.parametrize(("recompute", "micro_batch"), [(False, 0), (True, 0), (True, 3)])
def test_the_formula_of_a_plan_is_what_a_rehearsal_counts(recompute: bool, micro_batch: int) -> None:
    run = wide_run(recompute=recompute, micro_batch=micro_batch)
    counted = rehearse(run, ranks=2)
    memory = Memory(run, cost(run.model), 2, device="cpu")
    assert counted.static == pytest.approx(memory.held * 4 * 3, rel=0.01)  # weights and Adam's two slots
    assert memory.needed(micro_batch or 6) - memory.sent == pytest.approx(counted.peak, rel=0.05)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("pool", "dropout"), [("token", 0.1), ("token", 0.0), ("mean", 0.0)])
def test_the_formula_holds_where_the_images_take_the_memory(
    precision: Precision, recompute: bool, pool: Literal["token", "mean"], dropout: float
) -> None:
    run = wide_run(recompute=recompute)
    assert isinstance(run.model, ViTConfig)
    model = replace(run.model, patch_size=(2, 2), depth=2, pool=pool, dropout=dropout)
    loader = replace(run.data.loader, batch_size=256)
    run = replace(run, model=model, data=replace(run.data, loader=loader), train=replace(run.train, precision=precision))
    memory = Memory(run, cost(run.model), 2, device="cpu")
    assert memory.needed(128) - memory.sent == pytest.approx(rehearse(run, ranks=2).peak, rel=0.05)


def test_the_buffers_of_gloo_come_on_top_on_a_cpu_alone() -> None:
    run = wide_run(recompute=False)
    here, there = (Memory(run, cost(run.model), 2, device=device) for device in ("cpu", "cuda"))
    assert here.sent >= 2 * 4 * here.layer > 0
    assert here.needed(6) - there.needed(6) == here.sent
    alone = Memory(run, cost(run.model), 1, device="cpu")
    assert alone.sent == 0


def test_recomputing_keeps_less_for_the_backward_pass() -> None:
    plain, again = (Memory(wide_run(recompute=way), cost(wide_run(recompute=way).model), 2).needed(600) for way in (False, True))
    assert again < plain / 2
