"""Recipes are complete runs, and the published ones are as published."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest

from vitlab.config import (
    DataFacts,
    Machine,
    Overrides,
    Preprocess,
    RunConfig,
    SegmenterConfig,
    StartFacts,
    ViTConfig,
    variant,
)
from vitlab.config.data import AUGREG
from vitlab.config.overrides import RunFacts
from vitlab.config.serialize import from_text, to_text
from vitlab.config.train import Lora, Masked, OptimizerKind
from vitlab.errors import ConfigError
from vitlab.models.cost import cost
from vitlab.recipes import recipe
from vitlab.recipes.paper import CIFAR10, IMAGENET, IMAGENET21K, JFT, PETS, TABLE_3, TABLE_4, sweep_lrs
from vitlab.recipes.reasons import reasons
from vitlab.recipes.table import RECIPES
from vitlab.training.optim import averaging_decay

START = StartFacts(
    path="l16.npz",
    model=replace(variant("ViT-B/16", num_classes=21_843), representation_width=768, head_bias=-10.0),  # type: ignore[arg-type]
    preprocess=Preprocess(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)),
)
PHOTOS = DataFacts(dataset="photos", images=3_000, classes=12, side=300)
NAMES = tuple(RECIPES)


def photos(name: str) -> DataFacts:
    """Photos, with masks where the recipe needs them."""
    return replace(PHOTOS, masks=name == "segment-folder", boxes=name == "detect-folder")


def made(name: str, *, machine: Machine | None = None, **overrides: object) -> RunConfig:
    """The recipe for some photos, with a checkpoint where it needs one."""
    start = START if "finetune" in name else None
    return recipe(name, Overrides(**overrides), data=photos(name), start=start, machine=machine)  # type: ignore[arg-type]  # Overrides checks each


# model, epochs, base rate, decay, weight decay, dropout, as printed in Table 3
PRINTED_3: dict[str, list[tuple[str, tuple[int, ...], float, str, float, float]]] = {
    "jft": [
        ("ViT-B/32", (7,), 8e-4, "linear", 0.1, 0.0),
        ("ViT-B/16", (7,), 8e-4, "linear", 0.1, 0.0),
        ("ViT-L/32", (7,), 6e-4, "linear", 0.1, 0.0),
        ("ViT-L/16", (7, 14), 4e-4, "linear", 0.1, 0.0),
        ("ViT-H/14", (14,), 3e-4, "linear", 0.1, 0.0),
        ("BiT-R50x1", (7,), 1e-3, "linear", 0.1, 0.0),
        ("BiT-R50x2", (7,), 1e-3, "linear", 0.1, 0.0),
        ("BiT-R101x1", (7,), 8e-4, "linear", 0.1, 0.0),
        ("BiT-R152x1", (7,), 6e-4, "linear", 0.1, 0.0),
        ("BiT-R152x2", (7,), 6e-4, "linear", 0.1, 0.0),
        ("R50+ViT-B/32", (7,), 8e-4, "linear", 0.1, 0.0),
        ("R50+ViT-B/16", (7,), 8e-4, "linear", 0.1, 0.0),
        ("R50+ViT-L/32", (7,), 2e-4, "linear", 0.1, 0.0),
        ("R50+ViT-L/16", (7, 14), 4e-4, "linear", 0.1, 0.0),
    ],
    "imagenet21k": [
        ("ViT-B/32", (90,), 1e-3, "linear", 0.03, 0.1),
        ("ViT-B/16", (90,), 1e-3, "linear", 0.03, 0.1),
        ("ViT-L/32", (30, 90), 1e-3, "linear", 0.03, 0.1),
        ("ViT-L/16", (30, 90), 1e-3, "linear", 0.03, 0.1),
    ],
    "imagenet-scratch": [  # "ViT-*"
        ("ViT-B/32", (300,), 3e-3, "cosine", 0.3, 0.1),
        ("ViT-B/16", (300,), 3e-3, "cosine", 0.3, 0.1),
        ("ViT-L/32", (300,), 3e-3, "cosine", 0.3, 0.1),
        ("ViT-L/16", (300,), 3e-3, "cosine", 0.3, 0.1),
        ("ViT-H/14", (300,), 3e-3, "cosine", 0.3, 0.1),
        ("ViT-Ti/16", (300,), 3e-3, "cosine", 0.3, 0.1),
    ],
}
SETS = {"jft": JFT, "imagenet21k": IMAGENET21K, "imagenet-scratch": IMAGENET}


@pytest.mark.parametrize(
    ("name", "model", "epochs", "rate", "decay", "weight_decay", "dropout"),
    [(name, *row) for name, rows in PRINTED_3.items() for row in rows],
)
def test_pre_training_is_as_printed_in_table_3(
    name: str, model: str, epochs: tuple[int, ...], rate: float, decay: str, weight_decay: float, dropout: float
) -> None:
    for length in epochs:
        run = recipe(name, Overrides(model=model, epochs=length))
        assert run.train.steps == round(length * SETS[name].images / 4096)
        if length == max(epochs):
            assert run == recipe(name, Overrides(model=model))
        optimizer, schedule = run.train.optimizer, run.train.schedule
        assert (optimizer.kind, optimizer.lr, optimizer.betas, optimizer.weight_decay) == (
            "adamw",
            rate,
            (0.9, 0.999),
            weight_decay,
        )
        assert optimizer.clip == (1.0 if name == "imagenet-scratch" else 0.0)
        assert (schedule.kind, schedule.end) == (decay, 1e-5 if decay == "linear" else 0.0)
        assert schedule.warmup == 10_000 or length < max(epochs)
        assert run.data.loader.batch_size == 4096
        assert run.model.image_size == (224, 224)
        assert run.train.loss == "sigmoid"
        if isinstance(run.model, ViTConfig):
            assert run.model.dropout == dropout
            assert run.model.representation_width == run.model.width
        assert run.model.head_bias == -10.0


# recipe, steps, rates, share held out for the choice, as printed in Table 4 and B.1.1
PRINTED_4 = [
    ("finetune-imagenet", 20_000, (0.003, 0.01, 0.03, 0.06), 0.01),
    ("finetune-cifar100", 10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    ("finetune-cifar10", 10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    ("finetune-pets", 500, (0.001, 0.003, 0.01, 0.03), 0.1),
    ("finetune-flowers", 500, (0.001, 0.003, 0.01, 0.03), 0.1),
    ("finetune-vtab", 2_500, (0.01,), 0.2),
]


@pytest.mark.parametrize(("name", "steps", "rates", "held_out"), PRINTED_4)
def test_fine_tuning_is_as_printed_in_table_4(name: str, steps: int, rates: tuple[float, ...], held_out: float) -> None:
    run = recipe(name, start=START)
    optimizer = run.train.optimizer
    assert run.train.steps == steps
    assert run.data.loader.batch_size == 512
    assert (optimizer.kind, optimizer.momentum, optimizer.weight_decay, optimizer.clip) == ("sgd", 0.9, 0.0, 1.0)
    assert run.train.schedule.kind == "cosine"
    assert run.model.image_size == run.preprocess.image_size == (384, 384)
    assert run.data.rule.val == held_out
    assert optimizer.lr in rates
    assert sweep_lrs(name, variant("R50+ViT-B/16"), batch=512) == rates
    assert sweep_lrs(name, variant("BiT-R50x1"), batch=512) == rates


def test_the_largest_rate_on_imagenet_is_not_for_a_plain_vit() -> None:
    assert sweep_lrs("finetune-imagenet", variant("ViT-L/16"), batch=512) == (0.003, 0.01, 0.03)
    assert sweep_lrs("finetune-imagenet", variant("ViT-L/16"), batch=256) == pytest.approx((0.0015, 0.005, 0.015))


def test_the_tables_hold_no_row_that_was_not_checked() -> None:
    listed = {name: {model for row in rows for model in row.models} for name, rows in TABLE_3.items()}
    assert all(models <= {row[0] for row in PRINTED_3[name]} for name, models in listed.items())
    assert set(TABLE_4) == {row[0] for row in PRINTED_4}


def test_masked_prediction_is_as_in_b_1_2() -> None:
    run = recipe("masked")
    assert run.train.masked == Masked(fraction=0.5, masked=0.8, swapped=0.1, target="mean-colour")
    assert (run.train.steps, run.data.loader.batch_size) == (1_000_000, 4096)
    assert (run.train.optimizer.kind, run.train.optimizer.lr) == ("adamw", 2e-4)
    assert (run.train.schedule.kind, run.train.schedule.warmup) == ("cosine", 10_000)
    assert run.model.num_classes == 0


def test_masked_prediction_sees_grey_images_in_colour_and_needs_no_labels() -> None:
    grey = DataFacts(dataset="images:scans", images=900, classes=0, channels=1)
    assert recipe("masked", data=grey).model.channels == 3
    with pytest.raises(ConfigError, match="needs labels"):
        recipe("imagenet-scratch", data=grey)
    with pytest.raises(ConfigError, match="ViT"):
        recipe("masked", Overrides(model="BiT-R50x1"))


def test_the_averaged_run_of_table_2_sees_512_pixels_or_518() -> None:
    run = recipe("finetune-imagenet-table2", start=START)
    assert run.model.image_size == (512, 512)
    assert run.train.average.decay == 0.9999
    huge = replace(START, model=variant("ViT-H/14"))
    assert recipe("finetune-imagenet-table2", start=huge).model.image_size == (518, 518)
    assert recipe("finetune-imagenet", start=huge).model.image_size == (378, 378)  # 384 is no multiple of 14


@pytest.mark.parametrize(("name", "bias"), [("augreg-i1k", -6.9), ("augreg-i21k", -10.0)])
@pytest.mark.parametrize("preset", AUGREG)
def test_augreg_is_one_course_under_seven_augmentations(name: str, bias: float, preset: str) -> None:
    run = recipe(name, Overrides(model="ViT-S/16", preset=preset))
    assert (run.train.optimizer.lr, run.train.optimizer.weight_decay, run.train.loss) == (1e-3, 0.1, "sigmoid")
    assert run.train.steps == round(300 * (IMAGENET if name == "augreg-i1k" else IMAGENET21K).images / 4096)
    assert run.model.head_bias == bias
    published = AUGREG[preset]
    assert (run.data.augment.randaugment, run.data.augment.mixup) == (published.randaugment, published.mixup)


def test_the_small_baseline_is_as_published() -> None:
    run = recipe("s16-i1k")
    assert isinstance(run.model, ViTConfig)
    assert (run.model.width, run.model.pool, run.model.position.kind) == (384, "mean", "sincos-2d")
    assert (run.data.loader.batch_size, run.train.schedule.warmup, run.train.loss) == (1024, 10_000, "softmax")
    assert run.train.steps == round(90 * IMAGENET.images / 1024)
    assert (run.data.augment.randaugment, run.data.augment.mixup) == ((2, 10), 0.2)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_complete_and_survives_json(name: str) -> None:
    run = made(name)
    assert run.name == name
    assert from_text(RunConfig, to_text(run)) == run


@pytest.mark.parametrize("name", NAMES)
def test_every_docstring_gives_the_command_and_is_honest_about_time_and_score(name: str) -> None:
    text = RECIPES[name].__doc__ or ""
    commands = re.findall(r"Command: (vitlab .+)", text)
    assert len(commands) == 1
    assert name in commands[0] or name in ("finetune-folder", "small-data", "segment-folder", "detect-folder")
    assert re.search(r"Time\b", text)
    assert re.search(r"[Ss]core\b", text)


@pytest.mark.parametrize(
    "name",
    [name for name in NAMES if not name.startswith("finetune") and name not in ("small-data", "segment-folder", "detect-folder")],
)
def test_recipes_from_scratch_need_no_overrides(name: str) -> None:
    assert recipe(name) == recipe(name)


def test_quickstart_uses_nothing_that_is_not_built_in() -> None:
    assert recipe("quickstart").data.dataset.startswith("synthetic:kind=strokes")
    assert recipe("quickstart-finetune").data.dataset == "digits"
    assert recipe("quickstart").start is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("images", [5, 100, 1_000, 60_000, 10_000_000])
def test_every_recipe_fits_data_of_any_size(name: str, images: int) -> None:
    data = replace(photos(name), images=images)
    run = made(name)
    other = recipe(name, data=data, start=START if "finetune" in name else None)
    assert other.data.loader.batch_size <= max(8, images)
    assert other.train.schedule.warmup < other.train.steps
    assert other.train.optimizer.weight_decay == run.train.optimizer.weight_decay
    assert 0 < other.train.evaluate_every <= other.train.steps or other.train.evaluate_every == 0
    assert 0 < other.train.save_every <= other.train.steps


def test_pre_training_on_other_data_keeps_epochs_and_the_share_of_the_warm_up() -> None:
    small = recipe("imagenet-scratch", data=replace(PHOTOS, images=12_812))
    batch = small.data.loader.batch_size
    assert batch == 256
    assert small.train.steps == round(300 * 12_812 / 256)
    assert small.train.schedule.warmup == pytest.approx(small.train.steps * 10_000 / 93_835, abs=1)
    assert small.train.optimizer.lr == pytest.approx(3e-3 / 4)  # the root of 256 / 4096


def test_a_smaller_batch_scales_rate_and_steps_so_that_as_much_is_seen() -> None:
    usual = recipe("finetune-cifar10", start=START)
    small = recipe("finetune-cifar10", Overrides(batch_size=64), start=START)
    assert small.train.steps * 64 == usual.train.steps * 512
    assert small.train.optimizer.lr == pytest.approx(usual.train.optimizer.lr / 8)
    assert small.train.schedule.warmup == 8 * usual.train.schedule.warmup
    assert recipe("finetune-cifar10", Overrides(batch_size=64, lr=0.5), start=START).train.optimizer.lr == 0.5


@pytest.mark.parametrize("name", ["finetune-folder", "finetune-pets", "quickstart-finetune"])
def test_fine_tuning_fits_the_checkpoint_and_feeds_it_as_it_was_fed(name: str) -> None:
    run = made(name, image_size=(160, 192))
    assert isinstance(run.model, ViTConfig)
    assert run.start == START.path
    assert run.model.num_classes == PHOTOS.classes
    assert run.model.representation_width == 0  # the whole head goes, its hidden layer too
    assert run.model.head_bias == 0
    assert run.model.image_size == run.data.augment.image_size == run.preprocess.image_size == (160, 192)
    assert (run.preprocess.mean, run.preprocess.std) == (START.preprocess.mean, START.preprocess.std)


def test_the_final_fine_tuning_uses_all_training_images_if_there_is_a_test_split() -> None:
    tested = recipe("finetune-pets", start=START, data=PETS)
    assert (tested.data.train_split, tested.data.evaluate_split) == ("train+val", "test")
    untested = recipe("finetune-pets", start=START, data=replace(PETS, splits=("train", "val")))
    assert (untested.data.train_split, untested.data.evaluate_split) == ("train", "val")
    nothing = recipe("finetune-folder", start=START, data=replace(PETS, splits=("train",)))
    assert nothing.data.evaluate_split is None


def test_a_cpu_gets_smaller_images_and_a_shorter_run_than_an_accelerator() -> None:
    laptop, server = (made("finetune-folder", machine=Machine(cores=8, accelerator=fast)) for fast in (False, True))
    assert max(laptop.model.image_size) < max(server.model.image_size) == 224
    assert laptop.train.steps * laptop.data.loader.batch_size < server.train.steps * server.data.loader.batch_size
    assert (laptop.train.precision, server.train.precision) == ("float32", "bfloat16")


def test_a_cpu_with_bfloat16_instructions_trains_in_bfloat16_unless_the_model_is_tiny() -> None:
    modern = Machine(bfloat16=True)
    assert made("finetune-folder", machine=modern).train.precision == "bfloat16"
    assert recipe("small-data", data=PHOTOS, machine=modern).train.precision == "bfloat16"
    assert recipe("quickstart", machine=modern).train.precision == "float32"


@pytest.mark.parametrize(("images", "most"), [(50, 5), (150, 10), (1_000, 10), (100_000, 1_000)])
def test_a_few_broken_images_do_not_stop_a_run_on_a_small_folder(images: int, most: int) -> None:
    run = recipe("small-data", data=replace(PHOTOS, images=images))
    assert run.data.loader.corrupt == "skip"
    assert round(run.data.loader.corrupt_budget * images) == most


def test_grey_images_are_not_mirrored_and_rare_classes_are_shown_more_often() -> None:
    grey = replace(PHOTOS, channels=1, imbalance=20.0)
    run = recipe("small-data", data=grey)
    assert run.data.augment.flip == 0
    assert run.model.channels == 1
    assert run.data.loader.balance > 0
    even = recipe("small-data", data=PHOTOS)
    assert even.data.augment.flip > 0
    assert even.data.loader.balance == 0


def test_images_that_are_seen_more_often_are_made_to_look_more_different() -> None:
    few = replace(PHOTOS, images=2_000, side=32)
    short, middling, long = (recipe("small-data", Overrides(epochs=epochs), data=few).data.augment for epochs in (5, 40, 150))
    assert (short.crop, short.mixes, short.randaugment) == ("pad", False, None)
    assert (middling.crop, middling.mixes, middling.randaugment) == ("inception", False, None)
    assert long.mixes
    assert long.randaugment is not None
    counted = recipe("small-data", Overrides(steps=5 * 2_000 // 32, batch_size=32), data=few).data.augment
    assert counted == short


def test_a_checkpoint_is_fine_tuned_with_randaugment_on_photos_that_it_sees_often() -> None:
    few, often = (made("finetune-folder", epochs=epochs).data.augment for epochs in (2, 8))
    assert few.randaugment is None
    assert often.randaugment is not None
    assert often.area[0] > few.area[0]
    assert made("finetune-folder", epochs=8, resize="native").data.augment == replace(few, image_size=often.image_size)
    for channels in (1, 5):
        other = recipe("finetune-folder", Overrides(epochs=8), start=START, data=replace(PHOTOS, channels=channels))
        assert other.data.augment.randaugment is None


def test_photos_that_are_seen_often_from_a_fitted_head_are_learned_without_forgetting() -> None:
    overrides = Overrides(epochs=8, head="fitted")
    run = recipe("finetune-folder", overrides, data=PHOTOS, start=START)
    assert any("without forgetting" in sentence for sentence in reasons(run, RunFacts(data=PHOTOS, start=START), overrides))
    assert run.train.lwf > 0
    assert run.train.smoothing == 0
    seldom = made("finetune-folder", epochs=2, head="fitted")
    zero = made("finetune-folder", epochs=8, head="zero")
    lora = made("finetune-folder", epochs=8, head="fitted", lora=Lora(rank=8))
    assert all(run.train.lwf == 0 for run in (seldom, zero, lora))
    grey = recipe("finetune-folder", Overrides(epochs=8, head="fitted"), start=START, data=replace(PHOTOS, channels=1))
    without = recipe(
        "finetune-folder",
        Overrides(epochs=8, head="fitted"),
        start=replace(START, model=replace(START.model, num_classes=0)),
        data=PHOTOS,
    )
    assert (grey.train.lwf, without.train.lwf) == (0, 0)


def test_with_lora_all_layers_have_the_same_learning_rate() -> None:
    whole, lora = (made("finetune-folder", lora=lora).train.optimizer for lora in (None, Lora(rank=8)))
    assert whole.layer_decay < 1
    assert lora == replace(whole, layer_decay=1.0)


def test_a_fine_tuned_model_sees_the_whole_shorter_side() -> None:
    run = made("finetune-folder", image_size=(160, 160))
    assert START.preprocess.resize_to > max(START.preprocess.image_size)
    assert (run.preprocess.resize, run.preprocess.resize_to) == ("short-side", 160)


@pytest.mark.parametrize("side", [8, 32, 64, 128, 500])
@pytest.mark.parametrize("accelerator", [False, True])
def test_a_small_model_grows_with_its_images_from_few_patches(side: int, accelerator: bool) -> None:
    run = recipe("small-data", data=replace(PHOTOS, side=side), machine=Machine(accelerator=accelerator))
    assert isinstance(run.model, ViTConfig)
    assert run.model.conv_stem is not None
    assert run.model.conv_stem.norm == "batch"
    assert run.model.tokens == (64 if accelerator and side > 96 else 16)
    assert run.train.progressive_resizing[-1] == (0.5, 1.0)
    assert cost(run.model).parameters < 3e6


def test_a_model_whose_patches_do_not_fit_small_images_does_not_grow() -> None:
    own = ViTConfig(width=96, depth=3, heads=3, mlp_width=96, patch_size=(8, 8), image_size=(40, 40))
    assert recipe("small-data", Overrides(model=own), data=PHOTOS).train.progressive_resizing == ()
    assert recipe("small-data", Overrides(model=own, image_size=(64, 64)), data=PHOTOS).train.progressive_resizing != ()


def test_several_labels_an_image_are_learned_by_sigmoids() -> None:
    many = replace(PHOTOS, multi_label=True, imbalance=20.0)
    for name in ("finetune-folder", "finetune-pets", "small-data"):
        run = recipe(name, data=many, start=None if name == "small-data" else START)
        assert run.train.loss == "sigmoid"


@pytest.mark.parametrize("name", NAMES)
def test_overrides_are_what_the_run_has(name: str) -> None:
    run = made(name, steps=123, batch_size=16, lr=0.0123, image_size=(64, 64), seed=7)
    assert (run.train.steps, run.data.loader.batch_size, run.train.optimizer.lr) == (123, 16, 0.0123)
    assert run.model.image_size == (64, 64)
    assert (run.train.seed, run.data.loader.seed) == (7, 7)
    assert run.train.optimizer.kind in get_args(OptimizerKind)


def test_a_recipe_of_another_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="gives each pixel a class"):
        recipe("small-data", data=photos("segment-folder"))
    with pytest.raises(ConfigError, match="no masks"):
        recipe("segment-folder", data=PHOTOS)
    with pytest.raises(ConfigError, match="each object a box"):
        recipe("small-data", data=photos("detect-folder"))
    with pytest.raises(ConfigError, match="no boxes"):
        recipe("detect-folder", data=PHOTOS)
    for overrides in (Overrides(decoder="linear"), Overrides(layers=(0, 1)), Overrides(dice=1.0)):
        with pytest.raises(ConfigError, match="is for segmentation"):
            recipe("small-data", overrides, data=PHOTOS)


def test_a_segmenter_takes_its_decoder_layers_and_losses_from_the_overrides() -> None:
    last = START.model.block_count - 1
    overrides = Overrides(decoder="mask-transformer", layers=(3, 7, last), dice=0.5, trainable="head")
    run = recipe("segment-folder", overrides, data=photos("segment-folder"), start=START)
    assert isinstance(run.model, SegmenterConfig)
    assert (run.model.decoder, run.model.layers) == ("mask-transformer", (3, 7, last))
    assert (run.train.dice, run.train.trainable) == (0.5, "head")
    whole = recipe("segment-folder", data=photos("segment-folder"), start=START)
    assert run.train.optimizer.lr == pytest.approx(40 * whole.train.optimizer.lr)
    facts = RunFacts(data=photos("segment-folder"), start=START)
    assert "trainable: the decoder; all other weights are frozen" in reasons(run, facts, overrides)
    again = recipe(
        "segment-folder", Overrides(layers=(last,)), data=photos("segment-folder"), start=replace(START, model=run.model)
    )
    assert isinstance(again.model, SegmenterConfig)
    assert (again.model.decoder, again.model.layers) == ("mask-transformer", (last,))


def test_weights_are_frozen_in_any_recipe_that_starts_from_a_checkpoint() -> None:
    run = recipe("finetune-folder", Overrides(trainable="last-blocks", blocks=2), data=PHOTOS, start=START)
    assert (run.train.trainable, run.train.blocks) == ("last-blocks", 2)
    with pytest.raises(ConfigError, match="blocks of at least 1"):
        recipe("finetune-folder", Overrides(trainable="last-blocks"), data=PHOTOS, start=START)
    with pytest.raises(ConfigError, match="starts from scratch"):
        recipe("small-data", Overrides(trainable="head"), data=PHOTOS)


def test_a_whole_config_can_be_given_in_place_of_a_name() -> None:
    own = ViTConfig(
        width=96, depth=3, heads=3, mlp_width=96, patch_size=(8, 8), image_size=(64, 64), pool="mean", class_token=False
    )
    for name in ("small-data", "imagenet-scratch"):
        run = recipe(name, Overrides(model=own), data=PHOTOS)
        assert isinstance(run.model, ViTConfig)
        assert (run.model.width, run.model.depth, run.model.pool, run.model.num_classes) == (96, 3, "mean", 12)


@pytest.mark.parametrize(
    ("name", "overrides", "start", "message"),
    [
        ("finetune-petz", Overrides(), None, "no recipe called 'finetune-petz'"),
        ("finetune-pets", Overrides(), None, "finetune-pets fine-tunes a checkpoint"),
        ("finetune-folder", Overrides(), START, "needs a dataset"),
        ("finetune-pets", Overrides(model="ViT-S/16"), START, "uses the model of its checkpoint"),
        ("imagenet-scratch", Overrides(), START, "from scratch"),
        ("imagenet-scratch", Overrides(model="BiT-R50x1"), None, "no ResNet for imagenet-scratch"),
        ("imagenet-scratch", Overrides(preset="light1"), None, "no preset"),
        ("augreg-i1k", Overrides(preset="light9"), None, "no augmentation preset called 'light9'"),
        ("imagenet-scratch", Overrides(image_size=(225, 225)), None, "image_size=225x225"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, overrides: Overrides, start: StartFacts | None, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        recipe(name, overrides, start=start)


def test_data_without_labels_is_refused_by_a_recipe_that_learns_labels() -> None:
    with pytest.raises(ConfigError, match="no labels"):
        recipe("small-data", data=replace(PHOTOS, classes=0))


def test_a_near_miss_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        recipe("finetune-petz")
    assert caught.value.hint == "did you mean finetune-pets?"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"steps": 5, "epochs": 2.0}, "both set the length"),
        ({"steps": 0}, "steps=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"lr": -1.0}, "lr=-1"),
        ({"epochs": float("nan")}, "epochs=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"image_size": (0, 4)}, "image_size"),
    ],
)
def test_an_impossible_override_is_refused_at_birth(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Overrides(**overrides)  # type: ignore[arg-type]


def test_a_model_that_table_3_does_not_list_takes_the_row_of_the_nearest_in_size() -> None:
    tiny, huge = recipe("jft", Overrides(model="ViT-Ti/16")), recipe("jft", Overrides(model="ViT-g/14"))
    assert tiny.train.optimizer.lr == recipe("jft", Overrides(model="ViT-B/16")).train.optimizer.lr
    assert huge.train.optimizer.lr == recipe("jft", Overrides(model="ViT-H/14")).train.optimizer.lr
    assert recipe("jft", Overrides(model="BiT-R200x3")).train.optimizer.lr == 6e-4
    hybrid = recipe("imagenet21k", Overrides(model="R50+ViT-B/16"))
    assert hybrid.train == recipe("imagenet21k", Overrides(model="ViT-B/16")).train  # hybrids as their ViT (B.1)
    assert CIFAR10.classes == 10


def test_a_short_run_of_a_paper_recipe_does_not_evaluate_after_each_step() -> None:
    for name in ("masked", "jft", "imagenet-scratch"):
        short, long = (recipe(name, Overrides(model="ViT-Ti/16", steps=steps)).train for steps in (30, 20_000))
        assert (short.evaluate_every, short.save_every) == (30, 30)
        assert (long.evaluate_every, long.save_every) == (1000, 400)


def test_the_average_of_table_2_has_the_papers_factor_from_the_first_step() -> None:
    average = made("finetune-imagenet-table2").train.average
    assert [averaging_decay(step, average) for step in (0, 100, 19_999)] == [0.9999] * 3


def test_a_patch_size_is_the_models_in_every_recipe_that_takes_one() -> None:
    fine, coarse = (made("finetune-folder", patch_size=(size, size)) for size in (12, 32))
    assert [run.model.patch_size for run in (fine, coarse)] == [(12, 12), (32, 32)]  # type: ignore[union-attr]  # ViTs
    assert all(side % 12 == 0 for side in fine.model.image_size)
    scratch = made("imagenet-scratch", model="ViT-Ti/16", patch_size=(32, 16))
    assert scratch.model.patch_size == (32, 16)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="no patch_size"):
        made("imagenet-scratch", model="ConvNeXt-B", patch_size=(8, 8))


def test_an_image_size_with_whole_patches_of_every_size_is_chosen_or_refused() -> None:
    run = made("finetune-folder", patch_sizes=((8, 8), (12, 12), (24, 16)))
    assert run.train.patch_sizes == ((8, 8), (12, 12), (24, 16))
    assert run.model.image_size == (144, 144)
    assert from_text(RunConfig, to_text(run)) == run
    with pytest.raises(ConfigError, match="whole patches of all"):
        made("finetune-folder", patch_sizes=((7, 7), (11, 11), (13, 13)))
    with pytest.raises(ConfigError, match="12x12 do not divide"):
        made("finetune-folder", patch_sizes=((12, 12),), image_size=(160, 160))
    with pytest.raises(ConfigError, match="progressive_resizing"):
        made("finetune-folder", patch_sizes=((8, 8),), progressive_resizing=True)


def test_a_recipe_with_progressive_resizing_leaves_it_out_if_patch_sizes_are_drawn() -> None:
    sizes = ((1, 1), (2, 2))
    assert made("small-data").train.progressive_resizing != ()
    assert made("small-data", patch_sizes=sizes).train.progressive_resizing == ()
    with pytest.raises(ConfigError, match="progressive_resizing"):
        made("small-data", patch_sizes=sizes, progressive_resizing=True)
