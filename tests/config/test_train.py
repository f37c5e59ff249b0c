"""The rules by which a recipe fits data of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitlab.config.train import (
    BATCHES_PER_EPOCH,
    LEAST_BATCH,
    every,
    finetuning_batch,
    lr_for,
    power_of_two,
    pretraining_batch,
    steps_like,
    steps_of,
    warmup_of,
)

sizes = st.integers(1, 10**9)


@given(images=sizes, most=st.sampled_from([64, 512, 4096]))
def test_a_pre_training_batch_leaves_32_batches_an_epoch_unless_it_is_at_its_least(images: int, most: int) -> None:
    batch = pretraining_batch(images, most=most)
    assert LEAST_BATCH <= batch <= most
    assert batch == power_of_two(batch)
    assert batch == LEAST_BATCH or batch * BATCHES_PER_EPOCH <= images
    assert batch == most or batch * 2 * BATCHES_PER_EPOCH > images


@given(images=sizes, most=st.sampled_from([64, 512]))
def test_a_fine_tuning_batch_holds_no_image_twice(images: int, most: int) -> None:
    batch = finetuning_batch(images, most=most)
    assert batch == power_of_two(batch)
    assert 1 <= batch <= min(images, most)
    assert batch == most or batch * 2 > images


@given(number=st.integers(-3, 10**12))
def test_a_power_of_two_is_the_largest_that_is_no_larger(number: int) -> None:
    power = power_of_two(number)
    assert power == 1 or power <= number < 2 * power


@given(epochs=st.floats(0.1, 500), images=sizes, batch=st.integers(1, 4096))
def test_steps_show_each_image_as_often_as_the_epochs_say(epochs: float, images: int, batch: int) -> None:
    steps = steps_of(epochs, images, batch)
    assert steps >= 1
    assert steps == 1 or abs(steps * batch - epochs * images) <= batch / 2 + 1e-6 * epochs * images


@pytest.mark.parametrize(
    ("images", "steps"),
    [(3_680, 500), (3_312, 500), (2_700, 500), (5_100, 500), (7_360, 1000), (368, 62), (36_800, 4000), (1, 1)],
)
def test_table_4s_steps_stand_for_sets_of_like_size_and_double_with_the_set(images: int, steps: int) -> None:
    assert steps_like(500, images=images, reference=3_680) == steps


def test_the_rate_goes_with_the_batch_for_sgd_and_with_its_root_for_adam() -> None:
    assert lr_for(0.01, batch=128, reference=512, kind="sgd") == pytest.approx(0.0025)
    assert lr_for(0.01, batch=128, reference=512, kind="adamw") == pytest.approx(0.005)
    assert lr_for(0.01, batch=128, reference=512, kind="muon") == pytest.approx(0.005)
    for kind in ("sgd", "adamw", "muon"):
        assert lr_for(3e-4, batch=512, reference=512, kind=kind) == 3e-4  # to the last bit


@given(steps=st.integers(1, 10**6), fraction=st.floats(0, 1), most=st.integers(0, 10**4))
def test_a_warm_up_is_a_fraction_with_a_limit_and_ends_before_the_run(steps: int, fraction: float, most: int) -> None:
    warmup = warmup_of(steps, fraction=fraction, most=most)
    assert 0 <= warmup < steps
    assert warmup <= most
    assert warmup <= steps * fraction + 0.5


@given(steps=st.integers(1, 10**6), times=st.integers(1, 100))
def test_what_happens_so_many_times_happens_at_least_that_often_where_there_are_steps_for_it(steps: int, times: int) -> None:
    assert steps // every(steps, times=times) >= min(times, steps)
