"""Masks as run lengths and polygons. `tests/peer/test_coco_masks.py` compares them with COCO's own program."""

from __future__ import annotations

import numpy as np
import pytest

from vitlab.data.readers.coco import decoded_counts, from_run_lengths, polygon_inside, run_lengths
from vitlab.errors import DataError


def test_run_lengths_by_hand() -> None:
    """Column by column: 0 1 | 1 1 | 0 0 is one outside, three inside, two outside."""
    mask = np.array([[0, 1, 0], [1, 1, 0]], bool)
    assert run_lengths(mask) == {"size": [2, 3], "counts": [1, 3, 2]}
    assert run_lengths(~mask)["counts"] == [0, 1, 3, 2]


@pytest.mark.parametrize("seed", range(5))
def test_run_lengths_come_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((int(rng.integers(1, 9)), int(rng.integers(1, 9)))) < 0.5
    assert np.array_equal(from_run_lengths(run_lengths(mask)), mask)


def test_a_full_and_an_empty_mask_come_back() -> None:
    for value in (True, False):
        assert (from_run_lengths(run_lengths(np.full((3, 4), value))) == value).all()


def test_text_is_decoded_by_hand() -> None:
    """COCO's text of the counts 5, 70, 6, 100: 70 needs two letters, and from the fourth on the difference to two before counts."""
    assert decoded_counts("5") == [5]
    assert decoded_counts("V2") == [70]
    assert decoded_counts("5V26n0") == [5, 70, 6, 100]


@pytest.mark.parametrize(
    ("rle", "words"),
    [
        ({"size": [2, 2], "counts": [1, 2]}, "do not fill 2x2"),
        ({"size": [2, 2], "counts": [5, -1]}, "whole numbers"),
        ({"size": [2, 2], "counts": [1.5, 2.5]}, "whole numbers"),
        ({"size": [2], "counts": [4]}, "height and width"),
        ({"size": [2, -2], "counts": [4]}, "height and width"),
        ({"size": [100_000, 100_000], "counts": [4]}, "do not fill"),
        ({"size": [2, 2], "counts": "V"}, "inside of a number"),
        ({"size": [2, 2], "counts": "4 "}, "does not write"),
        ({"size": [2, 2], "counts": "o" * 40}, "does not write"),
        ({}, "height and width"),
    ],
)
def test_run_lengths_that_cannot_be_are_refused(rle: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_run_lengths(rle)


def test_a_rectangle_is_its_pixels_and_the_direction_of_its_corners_does_not_matter() -> None:
    corners = np.array([[2.0, 1.0], [7.0, 1.0], [7.0, 4.0], [2.0, 4.0]])
    wanted = np.zeros((6, 9), bool)
    wanted[1:4, 2:7] = True
    for points in (corners, corners[::-1], np.roll(corners, 1, axis=0)):
        assert np.array_equal(polygon_inside(points, (6, 9)), wanted)


def test_a_polygon_is_cut_off_at_the_edge_of_the_image() -> None:
    points = np.array([[-3.0, -2.0], [20.0, 1.0], [15.0, 30.0], [-4.0, 12.0]])
    shifted = points + 8
    assert np.array_equal(polygon_inside(points, (6, 9)), polygon_inside(shifted, (40, 40))[8:14, 8:17])


def test_a_polygon_without_end_is_refused() -> None:
    points = np.tile(np.array([[0.0, 0.0], [1e6, 0.0]]), (20, 1))
    with pytest.raises(DataError, match="too long"):
        polygon_inside(points, (10, 10))
