"""Colours and overlays of masks."""

from __future__ import annotations

import numpy as np

from vitlab.inference.colours import colours
from vitlab.inference.segmentation import MaskPrediction, areas_line, draw_overlay


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
