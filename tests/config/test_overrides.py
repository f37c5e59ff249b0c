"""A run with overrides stays consistent, and the differences of two runs are named."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from vitlab.config import DataFacts, Overrides, RunConfig
from vitlab.config.overrides import RunFacts, differences, with_overrides
from vitlab.config.serialize import from_text, to_text
from vitlab.errors import ConfigError
from vitlab.recipes import recipe
from vitlab.recipes.reasons import reasons

RUN = recipe("quickstart")


def test_no_override_is_the_same_run() -> None:
    assert with_overrides(RUN, Overrides()) is RUN or with_overrides(RUN, Overrides()) == RUN


def test_every_override_sets_what_it_names_and_nothing_else() -> None:
    overrides = Overrides(
        batch_size=16,
        lr=0.5,
        seed=9,
        workers=0,
        precision="bfloat16",
        micro_batch=4,
        strategy="single",
        max_minutes=2.5,
        evaluate_every=3,
        save_every=4,
    )
    other = with_overrides(RUN, overrides)
    names = {line.split(" ")[0] for line in differences(RUN, other)}
    assert names == {
        "data.loader.batch_size",
        "data.loader.seed",
        "data.loader.workers",
        "train.optimizer.lr",
        "train.seed",
        "train.precision",
        "train.micro_batch",
        "train.strategy",
        "train.max_minutes",
        "train.evaluate_every",
        "train.save_every",
    }


def test_other_steps_keep_the_warm_ups_share() -> None:
    other = with_overrides(RUN, Overrides(steps=RUN.train.steps * 10))
    assert other.train.schedule.warmup == pytest.approx(RUN.train.schedule.warmup * 10, abs=5)
    assert with_overrides(RUN, Overrides(steps=1)).train.schedule.warmup == 0
    with pytest.raises(ConfigError, match="steps=0"):
        with_overrides(RUN, Overrides(steps=0))


def test_another_image_size_is_that_of_model_views_and_preprocessing() -> None:
    other = with_overrides(RUN, Overrides(image_size=(64, 48)))
    assert other.model.image_size == other.data.augment.image_size == other.preprocess.image_size == (64, 48)
    with pytest.raises(ConfigError, match="image_size=33x33"):
        with_overrides(RUN, Overrides(image_size=(33, 33)))


def test_what_makes_no_other_model_is_not_of_the_course() -> None:
    other = with_overrides(RUN, Overrides(workers=7, save_every=1, max_minutes=1.0, strategy="ddp", evaluate_every=1))
    assert differences(RUN, other, course=True) == ()
    assert len(differences(RUN, other)) == 5
    patient = replace(RUN, train=replace(RUN.train, patience=2))
    looking = with_overrides(patient, Overrides(evaluate_every=1))
    assert len(differences(patient, looking, course=True)) == 1  # patience counts evaluations


def test_a_setting_that_only_one_run_has_is_named_too() -> None:
    masked = recipe("masked", Overrides(model="ViT-Mini/8"))
    plain = replace(masked, train=replace(masked.train, masked=None))
    assert 'train.masked.target "mean-colour" -> nothing' in differences(masked, plain)
    assert "train.masked nothing -> null" in differences(masked, plain)


def test_a_run_read_back_from_its_file_does_not_differ() -> None:
    run = recipe("small-data", data=DataFacts(dataset="photos", images=900, classes=3))
    assert differences(run, from_text(RunConfig, to_text(run))) == ()


def test_each_override_can_be_left_out() -> None:
    assert all(field.default is None for field in fields(Overrides))


@pytest.mark.parametrize("words", ["100 classes", "ViT-Mini/8 from scratch", "781 steps of 128 images, 1 epoch", "adamw"])
def test_a_run_is_explained_in_sentences(words: str) -> None:
    from vitlab.recipes.own import STROKES

    explained = reasons(recipe("quickstart", data=STROKES), RunFacts(data=STROKES), Overrides())
    assert any(words in sentence for sentence in explained)


def test_a_borrowed_row_of_table_3_is_said() -> None:
    overrides = Overrides(model="ViT-Ti/16")
    explained = reasons(recipe("jft", overrides), RunFacts(), overrides)
    assert any("the row of ViT-B/16" in sentence for sentence in explained)


def test_progressive_resizing_is_reported_with_its_sizes() -> None:
    data = DataFacts(dataset="small", images=2_000, classes=10, channels=3, side=32)
    facts, overrides = RunFacts(data=data), Overrides(image_size=(32, 32))
    run = recipe("small-data", overrides, data=data)
    assert run.train.progressive_resizing
    assert any(
        "progressive resizing: 24 x 24 at first, 32 x 32 after 50 % of the steps" in sentence
        for sentence in reasons(run, facts, overrides)
    )
    still = replace(run, train=replace(run.train, progressive_resizing=()))
    assert not any("growing" in sentence for sentence in reasons(still, facts, overrides))


@pytest.mark.parametrize("setting", [{"model": "ViT-S/16"}, {"epochs": 2.0}, {"preset": "light1"}])
def test_what_only_a_recipe_can_apply_is_refused_on_a_config(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        with_overrides(RUN, Overrides(**setting))


def test_a_recipe_applies_the_overrides_of_execution_too() -> None:
    run = recipe("quickstart", Overrides(workers=0, precision="bfloat16", save_every=7))
    assert (run.data.loader.workers, run.train.precision, run.train.save_every) == (0, "bfloat16", 7)
