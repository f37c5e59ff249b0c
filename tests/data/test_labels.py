"""Labels of data and model are compared; differences are refused and named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitlab.data.dataset import align_labels
from vitlab.errors import DataError

NAMES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")


def test_the_same_names_in_the_same_order_are_themselves() -> None:
    assert align_labels(NAMES, NAMES) == tuple(range(7))
    assert align_labels(("crane", "crane"), ("crane", "crane")) == (0, 1)  # ImageNet has two


def test_a_split_of_the_classes_is_taken_only_where_that_is_meant() -> None:
    with pytest.raises(DataError, match=r"2 of the model's 7 classes; it does not have ant"):
        align_labels(("cat", "bee"), NAMES)
    assert align_labels(("cat", "bee"), NAMES, reorder=True) == (2, 1)


@given(st.permutations(NAMES), st.integers(1, 7))
def test_matching_by_name_gives_each_class_its_own_name(order: list[str], count: int) -> None:
    chosen = order[:count]
    assert [NAMES[index] for index in align_labels(chosen, NAMES, reorder=True)] == chosen


def test_names_of_two_classes_cannot_be_matched() -> None:
    with pytest.raises(DataError, match=r"crane is the name of more than one class"):
        align_labels(("bee", "crane"), ("crane", "crane", "bee"), reorder=True)
    with pytest.raises(DataError, match=r"ant is the name of more than one class"):
        align_labels(("ant", "ant"), NAMES, reorder=True)
    with pytest.raises(DataError, match=r"8 classes and the model 7: ant occurs twice"):
        align_labels((*NAMES, "ant"), NAMES)


def test_names_in_a_message_are_on_one_line() -> None:
    with pytest.raises(DataError) as caught:
        align_labels(("a\nb",), NAMES)
    assert caught.value.message.isprintable()
