"""btgraham-300: photographs of the eye are normalised, whatever camera took them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.readers.vtab import EYE_RADIUS, encoded_fundus, estimated_radius, normalised_fundus

KEPT = int(0.9 * EYE_RADIUS)


def eye(
    radius: int, *, height: int = 0, width: int = 0, light: float = 120.0, slope: float = 0.0, spots: bool = False
) -> NDArray[np.uint8]:
    """A bright disc in the dark: `slope` brightens it towards the right, `spots` are small dark marks."""
    height, width = height or 2 * radius + 40, width or 2 * radius + 90
    y, x = np.mgrid[:height, :width]
    y, x = (y - height // 2) / radius, (x - width // 2) / radius
    level = light + slope * x
    if spots:
        level = level - 60.0 * ((np.sin(9 * x) > 0.8) & (np.sin(11 * y) > 0.8))
    inside = y**2 + x**2 <= 1
    lit: NDArray[np.float64] = np.where(inside, level, 0)[:, :, None] * np.array([1.0, 0.6, 0.3])
    return np.clip(lit, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("radius", [100, 300, 777])
def test_the_radius_is_found(radius: int) -> None:
    assert estimated_radius(eye(radius)) == pytest.approx(radius, abs=1)


def test_a_black_row_is_taken_for_an_eye_as_high_as_the_image() -> None:
    image = np.zeros((80, 120, 3), np.uint8)
    assert estimated_radius(image) == 40
    assert normalised_fundus(image).shape == (2 * KEPT, 2 * KEPT, 3)


@pytest.mark.parametrize("radius", [90, 300, 1100])
def test_every_eye_comes_out_as_large(radius: int) -> None:
    assert normalised_fundus(eye(radius)).shape == (2 * KEPT, 2 * KEPT, 3)


def test_a_photograph_that_cuts_the_eye_off_gives_a_lower_image() -> None:
    cut = eye(400, height=500)  # 500 of 800: 375 of 600 once scaled
    found = normalised_fundus(cut)
    assert found.shape == (375, 2 * KEPT, 3)


def test_outside_the_disc_is_grey_and_the_middle_of_an_even_eye_too() -> None:
    found = normalised_fundus(eye(350)).astype(int)
    y, x = np.mgrid[: 2 * KEPT, : 2 * KEPT] - KEPT
    assert np.all(found[y**2 + x**2 > KEPT**2] == 128)
    assert np.all(np.abs(found[y**2 + x**2 < (KEPT - 35) ** 2] - 128) <= 4)


def test_light_and_its_slope_are_evened_out_and_marks_are_not() -> None:
    plain, sloping = (normalised_fundus(eye(350, light=light, slope=slope)).astype(int) for light, slope in ((90, 0), (140, 60)))
    middle = slice(KEPT - 150, KEPT + 150)
    assert np.abs(plain[middle, middle] - sloping[middle, middle]).max() <= 8
    marked = normalised_fundus(eye(350, spots=True)).astype(int)
    assert marked[middle, middle].min() < 60


def test_the_same_eye_at_two_resolutions_is_nearly_the_same_image() -> None:
    large, small = (normalised_fundus(eye(radius, spots=True)).astype(float) for radius in (900, 450))
    middle = slice(KEPT - 150, KEPT + 150)
    assert np.corrcoef(large[middle, middle].ravel(), small[middle, middle].ravel())[0, 1] > 0.9
    assert np.corrcoef(large[middle, middle].ravel(), large[middle, middle][::-1].ravel())[0, 1] < 0.5


def test_only_the_middle_is_worked_on_and_the_rest_of_a_wide_photograph_changes_nothing() -> None:
    narrow, wide = eye(300, width=1000), eye(300, width=1800)
    assert np.array_equal(normalised_fundus(narrow), normalised_fundus(wide))


def test_each_pixel_is_four_times_its_difference_from_the_local_average_around_grey() -> None:
    """Against the sum of the definition, pixel by pixel, where nothing is scaled."""
    rng = np.random.default_rng(5)
    image = eye(EYE_RADIUS, height=600, width=600)
    image = np.where(image > 0, np.clip(image + rng.normal(0, 12, image.shape), 1, 255), 0).astype(np.uint8)
    image[300, :] = 200  # the middle row is bright from end to end: the radius is 300, nothing is scaled
    found = normalised_fundus(image)
    weights = np.exp(-0.5 * (np.arange(-30, 31) / 10) ** 2)
    kernel = np.outer(weights, weights) / weights.sum() ** 2
    for y, x in ((300, 300), (210, 402), (377, 123)):
        around = image[y - 30 : y + 31, x - 30 : x + 31].astype(float)
        average = np.rint((around * kernel[:, :, None]).sum(axis=(0, 1)))
        expected = np.clip(4 * (image[y, x] - average) + 128, 0, 255)
        assert np.abs(found[y - 30, x - 30] - expected).max() <= 4  # one level of the average


def test_it_is_kept_as_jpeg() -> None:
    with Image.open(io.BytesIO(encoded_fundus(eye(200)))) as image:
        assert (image.format, image.size) == ("JPEG", (2 * KEPT, 2 * KEPT))
