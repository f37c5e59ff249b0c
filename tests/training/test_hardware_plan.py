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
from vitlab.config.published import IMAGENET21K, JFT, TABLE_2
from vitlab.errors import ConfigError, UsageError
from vitlab.models.cost import cost
from vitlab.recipes import recipe
from vitlab.training import hardware_plan
from vitlab.training import plan as planning
from vitlab.training.hardware_plan import REACHED, TrainingPlan, Work, exchange_seconds, simulate_step
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
            read_seconds=None, head_seconds=None, seconds=None, measured_images=0, notes=("does not fit",),
        )
    )  # fmt: skip


def test_this_machine_is_measured_or_extrapolated_and_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Hardware(name="this", device="two cores", tflops=0.15, memory_gib=8, watts=None, price=None)
    monkeypatch.setattr(hardware_plan, "_this_hardware", lambda: mine)
    monkeypatch.setattr(planning, "_SECONDS", 0.01)
    measured = vitlab.plan("ViT-Mini/8", recipe="imagenet-scratch", hardware="this", image_size=16, batch_size=64)
    (row,) = measured.time
    assert row.hours is not None
    assert row.kwh is row.usd is None
    assert any("extrapolated to 64 images" in note for note in measured.notes)
    assert any("not opened" in note for note in measured.notes)
    monkeypatch.setattr(hardware_plan, "plan", stands_still)
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


# --- a step on many devices ---------------------------------------------------------------------------------------------------
# A simulated step follows its stated model, and published speeds of FSDP.

H100 = replace(hardware_called("H100"), network_gbs=50)
GPT = Work(operations=1e15, parameters=10**9, layers=24)


def test_one_device_exchanges_nothing_and_computes_at_the_stated_efficiency() -> None:
    alone = simulate_step(GPT, H100, devices=1, efficiency=0.4)
    assert alone.all_gather == alone.reduce_scatter == alone.exposed == 0
    assert alone.seconds == pytest.approx(1e15 / (989e12 * 0.4))
    assert alone.efficiency == pytest.approx(0.4)


def test_an_exchange_takes_its_bytes_over_the_slower_of_links_and_network() -> None:
    assert exchange_seconds(8e9, 0, H100, 8) == pytest.approx(8e9 * 7 / 8 / (450e9 * REACHED))
    assert exchange_seconds(8e9, 0, H100, 16) == pytest.approx(8e9 * 15 / 16 / (8 * 50e9 * REACHED))
    slow = replace(H100, network_gbs=5)
    assert exchange_seconds(8e9, 0, slow, 16) == pytest.approx(10 * exchange_seconds(8e9, 0, H100, 16))
    assert exchange_seconds(8e9, 9, H100, 16) > exchange_seconds(8e9, 0, H100, 16)


def test_what_is_longer_than_computing_shows_and_what_is_shorter_hides() -> None:
    few, many = (simulate_step(replace(GPT, operations=size), H100, devices=512, efficiency=0.4) for size in (1e12, 1e16))
    assert few.seconds > few.all_gather  # nothing to hide behind
    assert few.efficiency < 0.1
    assert many.seconds < 1.02 * many.compute
    read = simulate_step(GPT, H100, devices=512, efficiency=0.4, data=100.0)
    assert read.seconds == 100.0


def test_recomputing_takes_a_third_more_and_counts_as_no_progress() -> None:
    plain, again = (simulate_step(replace(GPT, recompute=way), H100, devices=1, efficiency=0.4) for way in (False, True))
    assert again.seconds == pytest.approx(4 / 3 * plain.seconds)
    assert again.efficiency == pytest.approx(0.75 * plain.efficiency)


# Tokens a second for each GPU: torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3: Llama 3.1 8B, FSDP on H100
# with 400 Gb/s for each, two sequences of 8,192 tokens for each GPU.
LLAMA, TOKENS = 8_030_261_248, 2 * 8192
OPERATIONS = (6 * (LLAMA - 128_256 * 4096) + 12 * 32 * 4096 * 8192) * TOKENS  # as torchtitan counts them


@pytest.mark.parametrize(("on_8", "on_128"), [(5762, 5605), (6667, 6514)])
def test_the_published_speed_of_a_llama_on_128_gpus_follows_from_that_on_8(on_8: int, on_128: int) -> None:
    work = Work(operations=OPERATIONS, parameters=LLAMA, layers=32)
    reached = OPERATIONS / TOKENS * on_8 / 989e12
    assert 0.33 < reached < 0.40  # the same source says 33 % to 39 %
    alone = simulate_step(work, H100, devices=8, efficiency=reached)
    efficiency = reached * reached / alone.efficiency  # so that the simulation gives the published speed on 8
    assert TOKENS / simulate_step(work, H100, devices=8, efficiency=efficiency).seconds == pytest.approx(on_8, rel=0.002)
    assert TOKENS / simulate_step(work, H100, devices=128, efficiency=efficiency).seconds == pytest.approx(on_128, rel=0.03)


def test_a_plan_simulates_the_steps_of_the_largest_vit_on_512_devices() -> None:
    (row,) = vitlab.plan("ViT-G/14", recipe="jft", hardware="H100", devices=512, batch_size=32_768).steps
    assert row.images_of_a_device == 64
    assert row.step_seconds == pytest.approx(row.compute + row.exposed)
    assert row.images_per_sec == pytest.approx(32_768 / row.step_seconds)
    assert row.efficiency > 0.95 * 0.38
    few = Work(operations=row.compute * 989e12 * 0.38 / 8, parameters=1_876_000_755, layers=48)  # a batch of 4,096
    assert simulate_step(few, H100, devices=512, efficiency=0.38).efficiency < 0.2  # 8 images of a device hide too little
    assert vitlab.plan("ViT-B/16", hardware="A100", devices=1).steps == ()


def test_offload_and_recompute_leave_less_on_the_device() -> None:
    plain = vitlab.plan("ViT-G/14", recipe="jft", hardware="A100", devices=8).memory[-1]
    again = vitlab.plan("ViT-G/14", recipe="jft", hardware="A100", devices=8, recompute="on").memory[-1]
    offloaded = vitlab.plan("ViT-G/14", recipe="jft", hardware="A100", devices=8, recompute="on", offload="cpu").memory[-1]
    assert again.largest_batch > plain.largest_batch
    assert offloaded.weights == offloaded.optimizer == plain.host == 0
    assert offloaded.host == pytest.approx(plain.weights * 4, rel=0.01)  # weights, gradients and Adam's two slots
    assert offloaded.largest_batch > again.largest_batch
