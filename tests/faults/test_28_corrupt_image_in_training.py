"""An image cannot be read in training: by policy the run stops and names it, or replaces it, counts it and keeps to a budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.data.stamps import Stamps, numbers
from tests.data.test_loader import CONFIG, loader, skipping, taken
from vitlab.data.batch import Batch
from vitlab.errors import DataError


def test_a_corrupt_image_is_replaced_named_and_counted_and_the_rest_is_as_without_it() -> None:
    sound, hurt = Stamps(count=40), Stamps(count=40, broken=frozenset({7}))
    for before, after in zip(taken(loader(sound, skipping()), 5), taken(loader(hurt, skipping()), 5), strict=True):
        changed = before.index_B == 7
        np.testing.assert_array_equal(after.images_BHWC[~changed], before.images_BHWC[~changed])
        assert after.n_replaced == changed.sum() == len(after.failed)
        assert after.n_failed == 0
        assert len(after) == after.n_asked == 8
        for failure, row in zip(after.failed, np.flatnonzero(changed), strict=True):
            assert (failure.index, failure.name) == (7, "stamp-7.png")
            assert "truncated" in failure.reason
            assert failure.replaced_by == after.index_B[row] != 7
            assert numbers(after.images_BHWC[row : row + 1]) == [failure.replaced_by]
            assert after.labels[row] == after.index_B[row] % 3


def test_a_replacement_is_another_image_in_another_epoch() -> None:
    made = loader(Stamps(count=40, missing=frozenset({7})), skipping())
    others = {failure.replaced_by for batch in taken(made, 50) for failure in batch.failed}
    assert len(others) > 3


def test_the_summary_names_each_corrupt_image_once_however_often_it_is_met() -> None:
    with loader(Stamps(count=40, broken=frozenset({7, 9})), skipping()).batches() as stream:
        for _ in range(20):
            next(stream)
        assert sorted(failure.name for failure in stream.failures) == ["stamp-7.png", "stamp-9.png"]


@pytest.mark.parametrize("workers", [0, 2])
def test_above_the_budget_training_stops_at_the_same_batch_and_lists_the_offenders(workers: int) -> None:
    dataset = Stamps(count=200, broken=frozenset({3, 50, 120}))  # 1.5 %
    config = skipping(0.01, workers=workers)
    given_out: list[Batch] = []
    with loader(dataset, config).batches() as stream, pytest.raises(DataError, match=r"3 of 200 images cannot be read") as caught:
        given_out.extend(stream)
    assert all(f"stamp-{index}.png is truncated" in caught.value.message for index in (3, 50, 120))
    order = np.concatenate([batch.index_B for batch in taken(loader(Stamps(count=200)), 25)])
    last = max(np.flatnonzero(np.isin(order, [3, 50, 120])))
    assert len(given_out) == last // CONFIG.batch_size


def test_exactly_the_budget_is_allowed() -> None:
    taken(loader(Stamps(count=200, broken=frozenset({3, 50})), skipping(0.01)), 25)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("train", [True, False])
def test_the_policy_fail_stops_at_the_first_corrupt_image_and_names_it(train: bool, workers: int) -> None:
    made = loader(Stamps(count=40, broken=frozenset({13, 21})), replace(CONFIG, workers=workers), train=train)
    first = next(index for index in made.sampler.picks(0, 40).index_B.tolist() if index in (13, 21))
    with pytest.raises(DataError, match=f"^stamp-{first}.png is truncated") as caught:
        list(made)
    assert "corrupt=skip" in (caught.value.hint or "")


def test_an_unreadable_file_is_a_corrupt_image_too() -> None:
    with pytest.raises(DataError, match=r"stamp-3.png"):
        list(loader(Stamps(count=8, missing=frozenset({3})), train=False))


@pytest.mark.parametrize("workers", [0, 2])
def test_when_nothing_can_be_read_training_ends_rather_than_searching_for_ever(workers: int) -> None:
    dataset = Stamps(count=30, missing=frozenset(range(30)))
    with pytest.raises(DataError, match="none of 8 replacements"):
        next(loader(dataset, skipping(0.9, workers=workers)).batches())
