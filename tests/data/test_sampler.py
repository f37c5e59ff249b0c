"""Samplers: a permutation every epoch, the same from any position, shared by ranks without loss."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitlab.data.sampler import (
    RandomSampler,
    Sampler,
    SequentialSampler,
    Share,
    WeightedSampler,
    permuted,
    running_weights,
    substitute,
)
from vitlab.errors import ConfigError, DataError

lengths = st.integers(1, 300)
seeds = st.integers(0, 2**64 - 1)


def epoch_of(order: Sampler, epoch: int) -> list[int]:
    length = order.epoch_length
    return [int(index) for index in order.picks(epoch * length, (epoch + 1) * length).index_B]


def weighted(weights: list[float], *, seed: int = 0, repeats: int = 1) -> WeightedSampler:
    return WeightedSampler(reach_N=np.cumsum(weights), seed=seed, repeats=repeats)


@given(length=lengths, seed=seeds, epoch=st.integers(0, 10**6))
def test_every_epoch_shows_every_image_once(length: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_of(RandomSampler(length=length, seed=seed), epoch)) == list(range(length))


@given(length=lengths, seed=seeds, start=st.integers(0, 2000), count=st.integers(0, 400), repeats=st.integers(1, 4))
def test_a_range_of_the_stream_is_its_positions_one_by_one(length: int, seed: int, start: int, count: int, repeats: int) -> None:
    for order in (
        RandomSampler(length=length, seed=seed, repeats=repeats),
        weighted([1.0 + index % 5 for index in range(length)], seed=seed, repeats=repeats),
    ):
        whole = order.picks(start, start + count)
        for row in range(0, count, 37):
            alone = order.picks(start + row, start + row + 1)
            assert whole.index_B[row] == alone.index_B[0]
            assert whole.epoch_B[row] == alone.epoch_B[0] == (start + row) // order.epoch_length
            assert whole.repeat_B[row] == alone.repeat_B[0]


@given(length=lengths, seed=seeds, repeats=st.integers(1, 5))
def test_repeats_stand_side_by_side_and_are_reported_apart(length: int, seed: int, repeats: int) -> None:
    order = RandomSampler(length=length, seed=seed, repeats=repeats)
    picks = order.picks(0, order.epoch_length)
    assert picks.index_B.reshape(length, repeats).tolist() == [
        [index] * repeats for index in epoch_of(RandomSampler(length=length, seed=seed), 0)
    ]
    assert picks.repeat_B.reshape(length, repeats).tolist() == [list(range(repeats))] * length


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [epoch_of(RandomSampler(length=100, seed=seed), epoch) for seed in range(5) for epoch in range(5)]
    assert len({tuple(order) for order in orders}) == 25


def test_each_order_of_five_images_is_equally_likely() -> None:
    count = 3600
    seen = Counter(tuple(permuted(np.arange(5), length=5, seed=seed, epoch=seed % 7).tolist()) for seed in range(count))
    expected = count / math.factorial(5)
    chi_squared = sum((seen[order] - expected) ** 2 / expected for order in seen) + (120 - len(seen)) * expected
    assert abs(chi_squared - 119) < 4 * math.sqrt(2 * 119)


def test_every_image_comes_equally_often_at_every_place_and_after_every_other() -> None:
    length, count = 24, 2400
    orders = np.array([permuted(np.arange(length), length=length, seed=seed, epoch=3) for seed in range(count)])
    places = np.stack([np.bincount(orders[:, place], minlength=length) for place in range(length)])
    follows = np.zeros((length, length))
    np.add.at(follows, (orders[:, :-1].ravel(), orders[:, 1:].ravel()), 1)
    follows = follows[~np.eye(length, dtype=bool)]
    for found, degrees in ((places.ravel(), (length - 1) ** 2), (follows, length * (length - 1) - 1)):
        expected = found.mean()
        chi_squared = float(((found - expected) ** 2 / expected).sum())
        assert abs(chi_squared - degrees) < 5 * math.sqrt(2 * degrees)


def test_the_order_of_a_huge_set_needs_no_memory_of_it() -> None:
    length = 10**15
    index_B = permuted(np.arange(length - 4096, length), length=length, seed=1, epoch=2)
    assert len(set(index_B.tolist())) == 4096
    assert 0 <= index_B.min() <= index_B.max() < length
    assert abs(index_B.mean() / length - 0.5) < 0.03


def test_the_order_is_the_same_in_every_version() -> None:
    # No relation holds this, and a run that is resumed with a newer version relies on it.
    assert permuted(np.arange(10), length=10, seed=0, epoch=0).tolist() == [5, 6, 2, 7, 4, 9, 0, 1, 3, 8]
    assert weighted([1, 2, 3, 4]).picks(0, 10).index_B.tolist() == [0, 2, 1, 3, 1, 3, 0, 2, 3, 2]
    assert [substitute(0, 1, 2, attempt, length=1000) for attempt in range(4)] == [709, 628, 643, 903]


@given(count=st.integers(0, 500), ranks=st.integers(1, 9))
def test_the_shares_of_all_ranks_end_to_end_are_the_batch(count: int, ranks: int) -> None:
    shares = [Share(rank=rank, ranks=ranks).rows(count) for rank in range(ranks)]
    assert [row for start, stop in shares for row in range(start, stop)] == list(range(count))
    sizes = [stop - start for start, stop in shares]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("rank", "ranks"), [(1, 1), (-1, 2), (0, 0)])
def test_a_rank_that_cannot_be_is_refused(rank: int, ranks: int) -> None:
    with pytest.raises(ConfigError, match=f"rank={rank}"):
        Share(rank=rank, ranks=ranks)


def test_evaluation_takes_the_images_in_turn_and_ends() -> None:
    order = SequentialSampler(length=7)
    assert order.total == 7
    assert order.picks(2, 7).index_B.tolist() == [2, 3, 4, 5, 6]


def test_images_are_drawn_in_proportion_to_their_weights() -> None:
    weights = [1.0, 0.0, 5.0, 2.0, 0.5, 1.5]
    count = 60_000
    found = np.bincount(weighted(weights).picks(0, count).index_B, minlength=6)
    expected = np.array(weights) / sum(weights) * count
    assert found[1] == 0
    assert np.all(np.abs(found - expected) < 5 * np.sqrt(expected) + 1e-9)


def test_a_draw_never_falls_past_the_last_image_even_when_weights_end_in_zero() -> None:
    assert set(weighted([3.0, 1.0, 0.0, 0.0]).picks(0, 5000).index_B.tolist()) == {0, 1}


def test_weighted_showings_of_one_image_are_reported_apart_within_an_epoch() -> None:
    picks = weighted([1.0, 100.0, 1.0], repeats=2).picks(0, 600)
    showings = list(zip(picks.epoch_B.tolist(), picks.index_B.tolist(), picks.repeat_B.tolist(), strict=True))
    assert len(set(showings)) == len(showings)


@pytest.mark.parametrize(("balance", "ratio"), [(0.0, 90.0), (0.5, math.sqrt(90)), (1.0, 1.0)])
def test_balance_moves_from_every_image_alike_to_every_class_alike(balance: float, ratio: float) -> None:
    labels = [0] * 900 + [1] * 10
    reach_N = running_weights(labels, 2, balance=balance, class_weights=(1.0, 1.0))
    common, rare = reach_N[899], reach_N[-1] - reach_N[899]
    assert common / rare == pytest.approx(ratio)


def test_class_weights_multiply_the_images_of_their_class() -> None:
    reach_N = running_weights([0, 1, 1, 2], 3, balance=0.0, class_weights=(3.0, 0.5, 0.0))
    assert np.diff(reach_N, prepend=0).tolist() == [3.0, 0.5, 0.5, 0.0]


def test_an_image_of_several_classes_weighs_as_much_as_its_rarest() -> None:
    labels: list[tuple[int, ...]] = [(0,), (0,), (0,), (0, 1), ()]
    weights = np.diff(running_weights(labels, 2, balance=1.0, class_weights=None), prepend=0)
    assert weights.tolist() == pytest.approx([0.25, 0.25, 0.25, 1.0, 1.0])


def test_weights_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 numbers, but the data has 3 classes"):
        running_weights([0, 1, 2], 3, balance=0.0, class_weights=(1.0, 1.0))
    with pytest.raises(ConfigError, match="none can be drawn"):
        running_weights([0, 0], 2, balance=0.0, class_weights=(0.0, 1.0))
    with pytest.raises(DataError, match="image 1 has no label"):
        running_weights([0, None], 2, balance=1.0, class_weights=None)


@given(seed=seeds, epoch=st.integers(0, 1000), index=st.integers(0, 10**9), length=lengths)
def test_a_substitute_is_some_image_and_always_the_same(seed: int, epoch: int, index: int, length: int) -> None:
    chosen = [substitute(seed, epoch, index, attempt, length=length) for attempt in range(8)]
    assert chosen == [substitute(seed, epoch, index, attempt, length=length) for attempt in range(8)]
    assert all(0 <= other < length for other in chosen)
