"""Masks as run lengths, colours and overlays."""

from __future__ import annotations

import numpy as np
import pytest

from vitlab.inference.segmentation import MaskPrediction, areas_line, colours, draw_overlay, from_run_lengths, run_lengths


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


def test_every_class_has_a_colour_of_its_own() -> None:
    assert len(set(colours(60))) == 60
    assert colours(60)[:5] == colours(5)


def test_an_overlay_leaves_the_background_and_ignored_pixels_as_they_are() -> None:
    image = np.full((6, 6, 3), 100, np.uint8)
    classes = np.zeros((6, 6), np.uint8)
    classes[:, 3:] = 1
    classes[0, :3] = 255
    drawn = draw_overlay(image, classes, ("background", "cat"))
    assert (drawn[2:, :2] == 100).all()
    assert (drawn[0, :2] == drawn[0, 0]).all()
    assert (drawn[3, 4] != 100).any()
    grey = draw_overlay(image[:, :, :1], classes, ("background", "cat"))
    assert np.array_equal(grey, drawn)


def test_areas_are_sorted_and_sum_to_one() -> None:
    classes = np.array([[0, 2, 2, 2]], np.uint8)
    found = MaskPrediction(name="a.png", classes_HW=classes, image_HWC=np.zeros((1, 4, 3), np.uint8), labels=("a", "b", "c"))
    assert found.areas() == {"c": 0.75, "a": 0.25}
    assert areas_line(found) == "a.png: c 75.0 %, a 25.0 %"
