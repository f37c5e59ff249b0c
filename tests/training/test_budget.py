"""`vitlab plan`: compute, memory, time, energy and price follow from each other and from the stated assumptions, without data."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

import vitlab
from vitlab.cli.main import main
from vitlab.config import Overrides, RunConfig
from vitlab.config.hardware import EFFICIENCY, HARDWARE, Hardware, core_days, hardware_called
from vitlab.config.model import variant
from vitlab.config.overrides import DataFacts
from vitlab.config.paper_tables import IMAGENET21K, JFT, TABLE_2
from vitlab.errors import ConfigError, UsageError
from vitlab.models.cost import cost
from vitlab.recipes import recipe
from vitlab.training import budget
from vitlab.training import plan as planning
from vitlab.training.budget import TrainingPlan
from vitlab.training.plan import Memory, Plan


@pytest.fixture(scope="module")
def huge() -> TrainingPlan:
    return vitlab.plan("ViT-H/14", recipe="jft")


def test_a_plan_of_the_papers_largest_run_has_its_compute_and_length(huge: TrainingPlan) -> None:
    assert huge.exaflops == pytest.approx(4262, rel=0.001)  # Table 6
    assert huge.run.train.steps * 4096 == pytest.approx(14 * 303e6, rel=1e-5)
    assert [row.hardware for row in huge.time] == [entry.name for entry in HARDWARE]


def test_the_stated_efficiency_is_the_mean_of_what_the_vits_of_table_2_reached() -> None:
    core, reached = hardware_called("tpuv3"), []
    for row in TABLE_2:
        if row.model.startswith("ViT"):
            run = recipe({JFT: "jft", IMAGENET21K: "imagenet21k"}[row.trained_on], Overrides(model=row.model))
            spent = cost(variant(row.model)).training_exaflops(run.train.steps * 4096)
            assert row.core_days is not None
            reached.append(core_days(spent, core, efficiency=1.0) / row.core_days)
    assert [round(value, 2) for value in reached] == [0.32, 0.43, 0.39]
    assert math.prod(reached) ** (1 / 3) == pytest.approx(EFFICIENCY, abs=0.005)


def test_memory_is_the_sum_of_its_parts_and_the_largest_batch_just_fits(huge: TrainingPlan) -> None:
    for row in huge.memory:
        parts = (row.weights, row.gradients, row.optimizer, row.average, row.gathered, row.activations)
        assert row.total == pytest.approx(sum(parts))
        assert row.total <= row.memory
        memory = Memory(replace(huge.run, train=replace(huge.run.train, strategy=row.strategy)), huge.cost, row.devices)
        room = int(row.memory * 2**30)
        assert memory.needed(row.largest_batch) <= room < memory.needed(row.largest_batch + 1)


def test_fsdp_divides_what_the_model_needs_and_ddp_repeats_it(huge: TrainingPlan) -> None:
    one, ddp, fsdp = (row for row in huge.memory if row.hardware == "A100")
    assert (one.strategy, ddp.strategy, fsdp.strategy) == ("single", "ddp", "fsdp")
    assert ddp.weights == one.weights
    assert fsdp.weights == pytest.approx(one.weights / 8, rel=0.02)
    assert fsdp.largest_batch > ddp.largest_batch == one.largest_batch


def test_a_model_that_does_not_fit_says_so() -> None:
    made = vitlab.plan("ViT-H/14", recipe="jft", hardware="V100", memory_gib=4, devices=8)
    assert {row.strategy: row.largest_batch > 0 for row in made.memory} == {"single": False, "ddp": False, "fsdp": True}
    assert "does not fit" in str(made)


def test_time_energy_and_price_scale_as_they_must(huge: TrainingPlan) -> None:
    plain = vitlab.plan("ViT-B/16", hardware="A100").time[0]
    assert plain.hours is not None
    assert plain.kwh is not None
    assert plain.device_days == pytest.approx(plain.hours * 8 / 24)
    assert plain.kwh == pytest.approx(plain.hours * 8 * 0.4 * 1.1)
    assert plain.co2_kg == pytest.approx(plain.kwh * 0.43)
    assert plain.usd == pytest.approx(plain.hours * 8 * 4.0)
    half = vitlab.plan("ViT-B/16", hardware="A100", efficiency=EFFICIENCY / 2, devices=16).time[0]
    assert half.hours == pytest.approx(plain.hours)
    assert half.usd == pytest.approx(2 * (plain.usd or 0))
    other = vitlab.plan("ViT-B/16", hardware="A100", tflops=624, watts=200, price=1, overhead=2.2, carbon=0.043).time[0]
    assert other.hours == pytest.approx(plain.hours / 2)
    assert other.kwh == pytest.approx(plain.kwh / 2)
    assert other.co2_kg == pytest.approx((plain.co2_kg or 0) / 20)
    assert other.usd == pytest.approx((plain.usd or 0) / 8)


def test_every_assumption_names_the_option_that_changes_it(huge: TrainingPlan, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    text = capsys.readouterr().out
    options = {row["option"] for row in huge.assumptions} - {None}
    of_a_device = {"--tflops", "--memory-gib", "--watts", "--price", "--network-gbs"}
    assert options == of_a_device | {"--devices", "--efficiency", "--overhead", "--carbon", "--read-rate"}
    assert all(option in text for option in options)


def test_a_plan_for_your_own_number_of_images_and_for_fine_tuning() -> None:
    made = vitlab.plan("ViT-S/16", recipe="finetune-folder", hardware="V100", devices=1, images=3000, classes=12)
    assert (made.run.model.num_classes, made.data.images) == (12, 3000)
    table_4 = vitlab.plan("ViT-L/16", recipe="finetune-cifar10", hardware="V100", devices=1)
    assert (table_4.run.train.steps, table_4.run.model.image_size) == (10_000, (384, 384))


def stands_still(run: RunConfig, *, data: DataFacts, ranks: int) -> Plan:
    return replace(
        planning.Plan(
            steps=run.train.steps, epochs=1, images=1, batch_size=1, micro_batch=1, parameters=1, trainable=1, ranks=1,
            rank_parameters=1, macs=1, exaflops=1, memory_bytes=1, memory_free=1, checkpoint_bytes=1, step_seconds=None,
            read_seconds=None, seconds=None, measured_images=0, notes=("does not fit",),
        )
    )  # fmt: skip


def test_this_machine_is_measured_or_extrapolated_and_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Hardware(name="this", device="two cores", tflops=0.15, memory_gib=8, watts=None, price=None)
    monkeypatch.setattr(budget, "_this_hardware", lambda: mine)
    monkeypatch.setattr(planning, "_SECONDS", 0.01)
    measured = vitlab.plan("ViT-Mini/8", recipe="imagenet-scratch", hardware="this", image_size=16, batch_size=64)
    (row,) = measured.time
    assert row.hours is not None
    assert row.kwh is row.usd is None
    assert any("extrapolated to 64 images" in note for note in measured.notes)
    assert any("not opened" in note for note in measured.notes)
    monkeypatch.setattr(budget, "plan", stands_still)
    guessed = vitlab.plan("ViT-Mini/8", hardware="this", image_size=16)
    assert guessed.time[0].device_days == pytest.approx(core_days(guessed.exaflops, mine))
    assert any("extrapolated from one matrix product" in note for note in guessed.notes)


def test_json_has_what_the_tables_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "BiT-R50x1", "--recipe", "jft", "--hardware", "TPUv3,h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exaflops"] == pytest.approx(50, rel=0.015)  # with the head of 18,291 classes
    assert [row["hardware"] for row in found["time"]] == ["TPUv3", "H100"]
    assert {"memory", "assumptions", "notes", "steps", "parameters"} <= set(found)


def test_nonsense_is_refused_with_a_hint() -> None:
    for refused, options, words in (
        (UsageError, {"hardware": "A1000"}, "no hardware called"),
        (UsageError, {"watts": 3.0}, "one device"),
        (UsageError, {"recipe": "small-data"}, "how many images"),
        (UsageError, {"classes": 3}, "images"),
        (ConfigError, {"efficiency": 1.5}, "efficiency"),
        (ConfigError, {"devices": 0}, "devices"),
        (ConfigError, {"overhead": 0.5}, "overhead"),
    ):
        with pytest.raises(refused, match=words):
            vitlab.plan("ViT-B/16", **options)


def test_a_dry_run_of_the_papers_pretraining_does_not_ask_for_its_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planning, "free_memory", lambda device: 1)  # nothing fits, so nothing is measured
    assert main(["pretrain", "--recipe", "jft", "--model", "ViT-H/14", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "303,000,000" in text
    assert "note: the time of reading images is not included" in text
