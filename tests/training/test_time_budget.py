"""A time budget: which run fits into so many minutes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import vitlab
from tests.training.small import small_run
from vitlab.config import Preprocess, ViTConfig, variant
from vitlab.config.overrides import DataFacts, Overrides, StartFacts
from vitlab.config.run import RunConfig
from vitlab.config.train import TrainConfig, scaled, small_first
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import ConfigError, UsageError
from vitlab.recipes import recipe
from vitlab.training import time_budget
from vitlab.training.events import Finished, Stepped, Warned
from vitlab.training.plan import Speed
from vitlab.training.run_data import some_images
from vitlab.training.step import Progress
from vitlab.training.time_budget import Budgeted, choose, image_sizes
from vitlab.training.trainer import Deadline, Trainer

IMAGES = 3000
DATA = DataFacts(dataset="pets/", images=IMAGES, classes=37)
START = StartFacts(path="deit.npz", model=variant("ViT-Ti/16"), preprocess=Preprocess())
SPEED = Speed(image_size=(128, 128), read=0.001, forward=0.004, step=0.012)


def fitted_run() -> RunConfig:
    """A run that fits its head first."""
    return recipe("finetune-folder", Overrides(head="fitted", image_size=(128, 128)), data=DATA, start=START)


def chosen(minutes: float, run: RunConfig | None = None) -> tuple[tuple[int, int], float, float]:
    """Image size, epochs and minutes of the run that is chosen."""
    run = run or fitted_run()
    found = choose(run, SPEED, images=IMAGES, val_images=300, seconds=60 * minutes, sizes=image_sizes(START.model), side=100)
    return found.image_size, found.steps * run.data.loader.batch_size / IMAGES, found.seconds / 60


def test_little_time_is_for_the_head_on_the_largest_images_that_fit() -> None:
    sizes = [chosen(minutes) for minutes in (0.2, 0.3, 0.4, 0.6)]
    assert all(epochs == 0 for _, epochs, _ in sizes)
    assert [size for size, _, _ in sizes] == sorted(size for size, _, _ in sizes)
    assert sizes[0][0] < sizes[-1][0] == (224, 224)


def test_with_little_time_a_head_is_fitted_to_some_of_the_images_and_evaluated_on_some() -> None:
    few, all_of_them = (
        choose(fitted_run(), SPEED, images=count, val_images=count // 3, seconds=40, sizes=image_sizes(START.model), side=100)
        for count in (100_000, 600)
    )
    assert few.steps == 0
    assert few.image_size == (224, 224)
    assert 30 * 37 <= few.head_images < 100_000
    assert 100 <= few.evaluate_images < 100_000 // 3
    assert few.seconds <= 40
    assert (all_of_them.head_images, all_of_them.evaluate_images) == (0, 0)


def test_more_time_is_for_larger_images_and_then_for_more_epochs() -> None:
    found = [chosen(minutes) for minutes in (5, 10, 30, 90)]
    assert all(epochs > 0 for _, epochs, _ in found)
    assert [size for size, _, _ in found] == sorted(size for size, _, _ in found)
    assert found[-1][0] == (224, 224)
    assert [epochs for size, epochs, _ in found if size == (224, 224)] == sorted(
        epochs for size, epochs, _ in found if size == (224, 224)
    )
    assert found[-1][1] <= 30.1


def test_a_large_dataset_is_fine_tuned_on_a_part_of_it_from_a_head_of_a_part_of_it() -> None:
    run, sizes = fitted_run(), image_sizes(START.model)
    found = choose(run, SPEED, images=1_000_000, val_images=100_000, seconds=900, sizes=sizes, side=100)
    assert 15_000 <= found.steps * run.data.loader.batch_size < 1_000_000
    assert found.head_images == 100 * 37
    assert found.seconds <= 900


def test_many_images_far_smaller_than_the_checkpoints_start_from_a_zero_head() -> None:
    run, sizes = fitted_run(), image_sizes(START.model)

    def found(*, seconds: float, pretrained_at: tuple[int, int] | None = (224, 224)) -> Budgeted:
        return choose(run, SPEED, images=45_000, val_images=500, seconds=seconds, sizes=sizes, side=32, pretrained_at=pretrained_at)

    small, asked = found(seconds=300), found(seconds=300, pretrained_at=None)
    assert small.image_size == asked.image_size == (96, 96)
    assert small.zero_head
    assert small.head_images == 0
    assert not asked.zero_head
    assert asked.head_images > 0
    assert small.steps > asked.steps > 0  # the time of the head is for steps
    assert small.seconds <= 300
    large, little = found(seconds=5400), found(seconds=40)
    assert min(large.image_size) >= 112
    assert little.steps == 0  # a head alone is a fitted one
    assert not large.zero_head
    assert not little.zero_head


def test_larger_images_of_a_large_dataset_wait_until_there_is_time_for_an_epoch_or_50_000_images() -> None:
    run, sizes = fitted_run(), image_sizes(START.model)
    found = [
        choose(run, SPEED, images=45_000, val_images=0, seconds=60 * minutes, sizes=sizes, side=32) for minutes in (6, 12, 40, 90)
    ]
    assert [one.image_size for one in found] == sorted(one.image_size for one in found)
    assert found[0].image_size == sizes[0]
    assert found[-1].image_size == (224, 224)
    assert all(one.steps * run.data.loader.batch_size >= (15_000 if one.image_size == sizes[0] else 44_900) for one in found)


@pytest.mark.parametrize("minutes", [0.4, 1.0, 2.0, 4.0, 8.0, 15.0, 60.0])
def test_what_is_chosen_fits_into_the_time(minutes: float) -> None:
    _, _, taken = chosen(minutes)
    assert taken <= minutes


@pytest.mark.parametrize("minutes", [4.0, 8.0, 15.0])
def test_the_time_is_used(minutes: float) -> None:
    _, _, taken = chosen(minutes)
    assert taken >= 0.9 * minutes


def test_the_zero_head_of_the_paper_always_fine_tunes() -> None:
    run = fitted_run()
    zero = replace(run, train=replace(run.train, head="zero"))
    _, epochs, _ = chosen(1.0, zero)
    assert epochs > 0


def test_too_little_time_is_refused_with_what_is_needed() -> None:
    with pytest.raises(ConfigError, match="too few for 3,000 images") as caught:
        chosen(0.04)
    assert "minutes or more" in str(caught.value.hint)


def test_a_refusal_speaks_of_the_time_that_was_asked_for_not_of_what_is_left() -> None:
    run = fitted_run()
    with pytest.raises(ConfigError, match=r"^0\.01 minutes are too few") as caught:
        choose(run, SPEED, images=IMAGES, val_images=300, seconds=0.6 - 12, spent=12, sizes=image_sizes(START.model), side=100)
    assert caught.value.hint is not None
    needed = float(caught.value.hint.split()[2])
    choose(run, SPEED, images=IMAGES, val_images=300, seconds=60 * needed - 12, spent=12, sizes=image_sizes(START.model), side=100)


def test_sizes_have_whole_patches_and_end_with_the_checkpoints_own() -> None:
    assert image_sizes(variant("ViT-Ti/16")) == [(96, 96), (128, 128), (160, 160), (192, 192), (224, 224)]
    assert image_sizes(variant("ViT-H/14"))[-1] == (224, 224)
    assert all(side % 14 == 0 for side, _ in image_sizes(variant("ViT-H/14")))
    assert image_sizes(variant("ViT-Ti/16", image_size=(160, 224))) == [(160, 224)]


def test_finetune_plans_once_and_a_second_call_resumes_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = vitlab.pretrain("digits", model="ViT-Mini/8", image_size=16, steps=2, out=tmp_path / "start", workers=0, quiet=True)
    slow = Speed(image_size=(16, 16), read=0.001, forward=0.005, step=10.0)
    monkeypatch.setattr(time_budget, "measure_speed", lambda run, dataset, *, device, seconds: slow)
    run = vitlab.finetune("digits", start, minutes=1, out=tmp_path / "run", workers=0, quiet=True)
    assert run.reason == "finished"
    assert (run.step, run.config.train.head, run.config.train.minutes) == (0, "fitted", 1)
    assert run.metrics["top1"] > 0.2  # of ten classes, with features that are hardly trained
    assert any("no time for more" in note for note in run.notes)
    assert not any("as requested" in note for note in run.notes)
    assert not any(note.startswith("optimizer") for note in run.notes)
    monkeypatch.setattr(time_budget, "measure_speed", lambda run, dataset, *, device, seconds: pytest.fail("measured again"))
    again = vitlab.finetune("digits", start, minutes=1, out=tmp_path / "run", workers=0, quiet=True)
    assert again.config == run.config
    assert again.metrics == run.metrics


def test_a_head_is_fitted_to_as_many_images_as_there_is_time_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = vitlab.pretrain("digits", model="ViT-Mini/8", image_size=16, steps=2, out=tmp_path / "start", workers=0, quiet=True)
    slow = Speed(image_size=(16, 16), read=0.0, forward=0.15, step=10.0)
    monkeypatch.setattr(time_budget, "measure_speed", lambda run, dataset, *, device, seconds: slow)
    run = vitlab.finetune("digits", start, minutes=3, out=tmp_path / "run", workers=0, quiet=True)
    count = run.config.train.head_images
    assert 50 <= count < len(vitlab.open_dataset("digits", split="train"))
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["images"] for event in events if event["event"] == "head-fitted"] == [count]
    assert any(f"fitted to {count:,} of" in note for note in run.notes)


def test_some_images_are_drawn_by_the_seed_in_their_order() -> None:
    digits = open_dataset("digits", split="train", rule=None)
    one, again, other = (some_images(digits, 100, seed=seed) for seed in (0, 0, 1))
    assert len(one) == len(other) == 100
    assert one.fingerprint() == again.fingerprint() != other.fingerprint()
    assert some_images(digits, 0, seed=0) is some_images(digits, len(digits), seed=0) is digits
    assert isinstance(one, ImageDataset)
    assert one.rows.tolist() == sorted(one.rows.tolist())


def test_hardly_any_time_is_for_a_head_of_a_few_small_images_and_less_is_refused() -> None:
    sizes = image_sizes(START.model)
    found = choose(fitted_run(), SPEED, images=IMAGES, val_images=300, seconds=6, sizes=sizes, side=100)
    assert (found.image_size, found.steps) == (sizes[0], 0)
    assert 2 * 37 <= found.head_images < 30 * 37
    assert 100 <= found.evaluate_images <= 300
    with pytest.raises(ConfigError, match="too few for"):
        choose(fitted_run(), SPEED, images=IMAGES, val_images=300, seconds=2.5, sizes=sizes, side=100)


def test_many_held_out_images_are_evaluated_at_the_end_alone() -> None:
    run, sizes = fitted_run(), image_sizes(START.model)
    few, many = (choose(run, SPEED, images=IMAGES, val_images=count, seconds=600, sizes=sizes, side=100) for count in (300, 6000))
    assert (few.evaluated_once, many.evaluated_once) == (False, True)
    assert many.steps > 0
    assert many.seconds <= 600


def test_minutes_and_another_length_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="minutes"):
        vitlab.finetune("digits", minutes=1, epochs=3)
    with pytest.raises(UsageError, match="minutes"):
        vitlab.finetune("digits", minutes=1, sweep=True)


def resized(minutes: float, asked: bool | None = None, run: RunConfig | None = None) -> Budgeted:
    sizes = image_sizes(START.model)
    return choose(
        run or fitted_run(),
        SPEED,
        images=IMAGES,
        val_images=300,
        seconds=60 * minutes,
        sizes=sizes,
        side=100,
        small_images_first=asked,
    )


@pytest.mark.parametrize("minutes", [3.0, 9.0, 30.0])
def test_small_images_come_first_and_leave_time_for_larger_ones_or_for_more_of_them(minutes: float) -> None:
    chosen, plain = resized(minutes), resized(minutes, asked=False)
    assert chosen.resizing
    assert not plain.resizing
    assert chosen.image_size > plain.image_size or (chosen.image_size == plain.image_size and chosen.steps > plain.steps)
    assert chosen.seconds <= 60 * minutes


def test_a_zero_head_is_trained_at_one_size_as_in_the_paper() -> None:
    run = fitted_run()
    assert not resized(15.0, run=replace(run, train=replace(run.train, head="zero"))).resizing


def test_progressive_resizing_is_used_or_left_out_as_asked() -> None:
    on, off = resized(8.0, asked=True), resized(8.0, asked=False)
    assert (bool(on.resizing), bool(off.resizing)) == (True, False)
    assert on.image_size > off.image_size or on.steps > off.steps
    scratch = recipe("small-data", Overrides(), data=replace(DATA, side=32))
    own = choose(scratch, SPEED, images=IMAGES, val_images=300, seconds=600, sizes=[scratch.model.image_size], side=32)
    assert own.resizing == scratch.train.progressive_resizing != ()


def test_small_images_have_whole_patches() -> None:
    for name in ("ViT-Ti/16", "ViT-H/14", "ViT-B/32"):
        for size in image_sizes(variant(name)):
            model = variant(name, image_size=size)
            assert isinstance(model, ViTConfig)
            rows = small_first(model)
            assert rows[-1][1] == 1
            assert all(side % step == 0 for side, step in zip(scaled(size, rows[0][1]), model.step, strict=True))
            assert 0.6 <= rows[0][1] < 0.9
    assert small_first(variant("ViT-Ti/16", image_size=(16, 16))) == ()
    assert small_first(variant("Swin-T")) == ()


def test_progressive_resizing_is_an_override_of_every_recipe() -> None:
    on = recipe("finetune-folder", Overrides(progressive_resizing=True, image_size=(160, 160)), data=DATA, start=START)
    assert on.train.progressive_resizing == ((0.0, 0.8), (0.7, 1.0))
    assert recipe("finetune-folder", Overrides(), data=DATA, start=START).train.progressive_resizing == ()
    scratch = replace(DATA, side=32)
    assert recipe("small-data", Overrides(), data=scratch).train.progressive_resizing != ()
    assert recipe("small-data", Overrides(progressive_resizing=False), data=scratch).train.progressive_resizing == ()
    swin = replace(START, model=variant("Swin-T"))
    with pytest.raises(ConfigError, match="progressive_resizing needs a ViT"):
        recipe("finetune-folder", Overrides(progressive_resizing=True), data=DATA, start=swin)


def test_minutes_plan_with_the_mean_work_of_the_drawn_patch_sizes() -> None:
    """Fine patches alone leave fewer epochs, coarse ones more, and both together lie between."""
    epochs = []
    for sizes in (((8, 8),), ((8, 8), (32, 32)), ((32, 32),)):
        run = recipe("finetune-folder", Overrides(image_size=(128, 128), patch_sizes=sizes, head="zero"), data=DATA, start=START)
        found = choose(
            run, SPEED, images=IMAGES, val_images=300, seconds=600, sizes=[(128, 128)], side=100, small_images_first=False
        )
        epochs.append(found.steps)
    assert epochs[0] < epochs[1] < epochs[2]


def simulated(
    config: TrainConfig, seconds: list[float], monkeypatch: pytest.MonkeyPatch, *, progress: Progress | None = None
) -> Progress:
    """The progress of a run whose step number i takes seconds[i], the last for all later steps; `seconds` is what they took."""
    now = [1000.0]
    monkeypatch.setattr("vitlab.training.trainer.time.monotonic", lambda: now[0])
    progress = progress or Progress()
    deadline, took = Deadline(config, progress, began=now[0]), list[float]()
    while progress.scheduled < config.steps:
        took.append(seconds[min(progress.step, len(seconds) - 1)])
        now[0] += took[-1]
        progress.step += 1
        progress.ahead += progress.pace - 1
        progress.pace = deadline.pace()
    progress.seconds = sum(took)
    return progress


@pytest.mark.parametrize("slower", [1.2, 2.0, 4.0])
def test_a_run_that_is_slower_than_planned_ends_in_time(slower: float, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(steps=200, finish_within=200 / 60)
    found = simulated(config, [slower], monkeypatch)
    assert 0.9 * 200 <= found.seconds <= 1.1 * 200
    assert found.step < 200


@pytest.mark.parametrize(("slower", "reported"), [(1.3, []), (3.0, ["finish in time"]), (0.6, ["use the time"])])
def test_a_pace_that_changes_no_step_is_not_reported(slower: float, reported: list[str]) -> None:
    progress = Progress()
    progress.step = 4
    trainer: Any = SimpleNamespace(
        run=SimpleNamespace(train=TrainConfig(steps=6, finish_within=1)),
        state=SimpleNamespace(progress=progress),
        world=SimpleNamespace(gather=lambda pace: [pace]),
        deadline=SimpleNamespace(pace=lambda: slower),
    )
    said = [event.message for event in Trainer._keep_time(trainer) if isinstance(event, Warned)]
    assert [message.partition(" to ")[2].partition(", to ")[2] for message in said] == reported
    assert progress.pace == slower


@pytest.mark.parametrize("faster", [0.9, 0.8])
def test_a_run_that_is_faster_than_planned_makes_more_steps(faster: float, monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulated(TrainConfig(steps=200, finish_within=200 / 60), [faster], monkeypatch)
    assert 0.93 * 200 <= found.seconds <= 1.02 * 200
    assert found.step > 205
    assert found.scheduled >= 200


def test_a_run_that_is_much_faster_than_planned_is_not_made_much_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulated(TrainConfig(steps=200, finish_within=200 / 60), [0.1], monkeypatch)
    assert 200 < found.step <= 200 / 0.75 + 1


def test_a_run_that_slows_down_on_the_way_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulated(TrainConfig(steps=200, finish_within=200 / 60), [*[1.0] * 100, 2.0], monkeypatch)
    assert found.seconds <= 1.1 * 200


def test_a_run_that_is_in_time_keeps_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    steady = simulated(TrainConfig(steps=200, finish_within=200 / 60), [1.0], monkeypatch)
    uneven = simulated(TrainConfig(steps=200, finish_within=200 / 60), [2.0, *[0.98] * 20, 0.99], monkeypatch)
    assert (steady.step, steady.ahead, uneven.step, uneven.ahead) == (200, 0.0, 200, 0.0)


def test_small_images_at_first_are_no_reason_to_believe_that_the_run_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    resizing = ((0.0, 0.5), (0.5, 1.0))
    config = TrainConfig(steps=200, finish_within=125 / 60, progressive_resizing=resizing)
    planned = simulated(config, [*[0.25] * 100, 1.0], monkeypatch)
    assert (planned.step, planned.ahead) == (200, 0.0)
    slow = simulated(config, [0.5], monkeypatch)  # half as fast as planned, as long as the images are small
    assert slow.ahead > 10
    assert slow.step > 100


def test_a_resumed_run_has_the_time_of_the_rest_of_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(steps=200, finish_within=200 / 60)
    steady = simulated(config, [1.0], monkeypatch, progress=Progress(step=150))
    assert (steady.step, steady.seconds) == (200, 50)
    slow = simulated(config, [2.0], monkeypatch, progress=Progress(step=150))
    assert 0.9 * 50 <= slow.seconds <= 1.2 * 50


def test_a_late_run_anneals_its_learning_rate_all_the_same_and_says_so(tmp_path: Path) -> None:
    run = small_run(steps=400)
    late = replace(run, train=replace(run.train, finish_within=1e-6, evaluate_every=0, save_every=0))
    events = list(vitlab.train(late, out=tmp_path / "run"))
    steps = [event for event in events if isinstance(event, Stepped)]
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "finished"
    assert 50 <= events[-1].step <= 60  # 5 steps before it hurries, then an eighth of the others
    assert steps[-1].lr < 0.01 * max(step.lr for step in steps)
    assert steps[0].steps == 400
    assert [step.steps for step in steps[5:]] == [events[-1].step] * len(steps[5:])
    assert sum("slower than planned" in event.message for event in events if isinstance(event, Warned)) == 1
