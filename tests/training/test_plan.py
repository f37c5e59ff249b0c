"""A plan counts what can be counted, measures what must be measured, and stays within its time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.training.small import small_run
from vitlab.config import RunConfig
from vitlab.config.train import Masked, Optimizer
from vitlab.data.batch import Batch
from vitlab.models.cost import cost
from vitlab.recipes import recipe
from vitlab.training import plan as planning
from vitlab.training.plan import plan
from vitlab.training.step import TrainState


def test_a_plan_is_the_run_in_numbers() -> None:
    run = small_run()
    made = plan(run)
    counted = cost(run.model)
    assert (made.steps, made.batch_size, made.micro_batch, made.images) == (20, 12, 5, 64)
    assert made.epochs == pytest.approx(20 * 12 / 64)
    assert (made.parameters, made.macs) == (counted.parameters, counted.macs)
    assert made.exaflops == pytest.approx(6 * counted.macs * 20 * 12 / 1e18)  # Table 6's rule
    assert made.memory_bytes == counted.training_bytes(batch=5) + counted.weight_bytes()  # Adam's two slots, and the average
    assert made.checkpoint_bytes == 4 * counted.weight_bytes()  # weights, two slots, average
    assert made.notes == ()


def test_the_time_to_finish_is_every_update_with_its_reading() -> None:
    made = plan(small_run())
    assert made.step_seconds is not None
    assert made.read_seconds is not None
    assert made.seconds == pytest.approx(20 * (made.step_seconds + made.read_seconds))  # no workers: one after the other


def updates_take(seconds: float, *, each: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still but for updates, which take `seconds` and `each` for every image."""
    now = [0.0]

    def update(state: TrainState, batch: Batch, *, epoch_length: int) -> None:
        now[0] += seconds + each * len(batch)

    monkeypatch.setattr(planning, "update", update)
    monkeypatch.setattr(planning, "time", SimpleNamespace(perf_counter=lambda: now[0]))


def test_the_time_of_an_update_is_what_a_whole_batch_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    updates_take(0.0625, each=0.03125, monkeypatch=monkeypatch)
    made = plan(replace(small_run(), train=replace(small_run().train, micro_batch=0)))
    assert made.measured_images == 12
    assert made.step_seconds == pytest.approx(0.0625 + 12 * 0.03125)


def test_a_batch_that_would_take_too_long_is_measured_by_fewer_images_and_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(small_run(), train=replace(small_run().train, micro_batch=0))
    large = replace(run, data=replace(run.data, loader=replace(run.data.loader, batch_size=4096)))
    updates_take(0.25, each=0.03125, monkeypatch=monkeypatch)
    made = plan(large)
    assert 1 <= made.measured_images < 4096
    assert made.step_seconds == pytest.approx(0.25 + 4096 * 0.03125)


def test_a_very_slow_model_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_SECONDS", 1e-9)
    made = plan(small_run())
    assert made.measured_images == 1
    assert made.step_seconds is not None
    assert "a single image" in made.notes[0]


def test_too_little_memory_is_noted_with_the_micro_batch_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run()
    four = cost(run.model).training_bytes(batch=4) + cost(run.model).weight_bytes()
    monkeypatch.setattr(planning, "free_memory", lambda device: four)
    made = plan(run)
    assert "a micro-batch of 3 fits" in made.notes[0]
    assert made.step_seconds is not None
    monkeypatch.setattr(planning, "free_memory", lambda device: 1000)
    hopeless = plan(run)
    assert "even one image" in hopeless.notes[0]
    assert hopeless.step_seconds is None
    assert hopeless.seconds is None


def sgd(run: RunConfig) -> RunConfig:
    return replace(run, train=replace(run.train, optimizer=Optimizer(kind="sgd"), average=replace(run.train.average, decay=0.0)))


def test_momentum_needs_one_tensor_per_parameter() -> None:
    run = small_run()
    assert plan(sgd(run)).checkpoint_bytes == 2 * cost(run.model).weight_bytes()
    assert plan(sgd(run)).memory_bytes < plan(run).memory_bytes


def test_masked_prediction_can_be_planned() -> None:
    run = small_run()
    augment = replace(run.data.augment, mixup=0.0)
    masked = replace(run, data=replace(run.data, augment=augment), train=replace(run.train, masked=Masked(target="pixels")))
    assert (plan(masked).step_seconds or 0) > 0


def test_a_plan_needs_no_start_checkpoint() -> None:
    run = replace(small_run(), start="not/there.safetensors")
    assert plan(run).steps == 20


def test_the_quickstart_can_be_planned() -> None:
    assert plan(recipe("quickstart")).images == 100_000


def test_ranks_divide_the_batch_and_under_fsdp_the_model() -> None:
    run = replace(small_run(), train=replace(small_run().train, micro_batch=0))
    alone, two = plan(run), plan(run, ranks=2)
    assert (alone.ranks, alone.micro_batch, two.ranks, two.micro_batch) == (1, 12, 2, 6)
    assert two.rank_parameters == two.parameters == alone.parameters
    assert two.memory_bytes < alone.memory_bytes  # of activations
    parts = plan(replace(run, train=replace(run.train, strategy="fsdp")), ranks=2)
    assert two.parameters / 2 <= parts.rank_parameters < 0.6 * two.parameters
    assert parts.checkpoint_bytes == two.checkpoint_bytes


def test_a_plan_with_fsdp_for_one_process_notes_that_it_needs_torchrun() -> None:
    run = small_run()
    made = plan(replace(run, train=replace(run.train, strategy="fsdp")))
    assert any("torchrun" in note for note in made.notes)
    assert made.rank_parameters == made.parameters


def test_the_time_of_a_fitted_head_is_planned() -> None:
    run = replace(small_run(), start="model.safetensors")
    made = plan(replace(run, train=replace(run.train, head="fitted")))
    assert made.head_seconds is not None
    assert made.head_seconds > 0
    assert made.step_seconds is not None
    assert made.read_seconds is not None
    assert made.seconds == pytest.approx(made.head_seconds + 20 * (made.step_seconds + made.read_seconds))
    assert plan(run).head_seconds == 0


def test_a_head_fitted_to_some_of_the_images_takes_their_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_measure_reading", lambda *_, batch, **__: 0.5 * batch)
    monkeypatch.setattr(planning, "_measure_forward", lambda *_, **__: 0.25)
    run = replace(small_run(), start="model.safetensors")
    some, all_of_them = (plan(replace(run, train=replace(run.train, head="fitted", head_images=n))) for n in (16, 0))
    assert some.head_seconds == pytest.approx(16 * 0.75 + planning.fit_seconds(run.model, 16))
    assert all_of_them.head_seconds == pytest.approx(64 * 0.75 + planning.fit_seconds(run.model, 64))
