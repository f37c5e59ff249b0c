"""A time budget: which run fits into so many minutes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import vitlab
from vitlab.config import Preprocess, ViTConfig, variant
from vitlab.config.overrides import DataFacts, Overrides, StartFacts
from vitlab.config.run import RunConfig
from vitlab.config.scaling import small_first
from vitlab.config.train import scaled
from vitlab.errors import ConfigError, UsageError
from vitlab.recipes import recipe
from vitlab.training import time_budget
from vitlab.training.plan import Speed
from vitlab.training.time_budget import Budgeted, choose, image_sizes

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
    sizes = [chosen(minutes) for minutes in (0.4, 0.6, 1.2)]
    assert all(epochs == 0 for _, epochs, _ in sizes)
    assert sizes[0][0] < sizes[1][0] <= sizes[2][0] == (224, 224)


def test_more_time_is_for_more_epochs_and_then_for_larger_images() -> None:
    found = [chosen(minutes) for minutes in (3, 5, 10, 30, 90)]
    assert all(epochs >= 3 for _, epochs, _ in found)
    assert [size for size, _, _ in found] == sorted(size for size, _, _ in found)
    assert found[-1][0] == (224, 224)
    assert found[-1][1] <= 30.1


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


def test_too_little_time_for_one_look_at_the_images_is_refused_with_what_is_needed() -> None:
    with pytest.raises(ConfigError, match="too few for one look") as caught:
        chosen(0.05)
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


def test_without_time_for_a_look_at_every_image_a_part_of_them_is_learned_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = vitlab.pretrain("digits", model="ViT-Mini/8", image_size=16, steps=2, out=tmp_path / "start", workers=0, quiet=True)
    slow = Speed(image_size=(16, 16), read=0.0, forward=0.05, step=0.1)
    monkeypatch.setattr(time_budget, "measure_speed", lambda run, dataset, *, device, seconds: slow)
    run = vitlab.finetune("digits", start, minutes=1, out=tmp_path / "run", workers=0, quiet=True)
    assert run.config.train.head == "zero"
    assert 0 < run.step * run.config.data.loader.batch_size < 1000
    with pytest.raises(ConfigError, match="too few for one look"):
        vitlab.finetune("digits", start, minutes=1, head="fitted", out=tmp_path / "other", workers=0, quiet=True)


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


@pytest.mark.parametrize("minutes", [3.0, 6.0, 9.0, 12.0, 15.0, 20.0, 30.0])
def test_small_images_come_first_only_where_they_leave_time_for_larger_ones(minutes: float) -> None:
    chosen, plain = resized(minutes), resized(minutes, asked=False)
    assert not plain.small_first
    assert chosen.small_first == (chosen.image_size > plain.image_size)
    assert chosen.image_size >= plain.image_size
    assert chosen.seconds <= 60 * minutes


def test_small_images_come_first_at_some_budget_and_never_with_little_time() -> None:
    assert any(resized(minutes).small_first for minutes in (6.0, 9.0, 12.0, 15.0, 20.0, 30.0))
    assert not resized(1.0).small_first
    assert not resized(3.0).small_first


def test_progressive_resizing_is_used_or_left_out_as_asked() -> None:
    on, off = resized(8.0, asked=True), resized(8.0, asked=False)
    assert (on.small_first, off.small_first) == (True, False)
    assert on.image_size > off.image_size or on.steps > off.steps
    scratch = recipe("small-data", Overrides(), data=replace(DATA, side=32))
    own = choose(scratch, SPEED, images=IMAGES, val_images=300, seconds=600, sizes=[scratch.model.image_size], side=32)
    assert own.small_first  # the recipe's own


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
