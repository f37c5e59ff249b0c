"""Augmentation: what each operation keeps, and that magnitudes mean what the table says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.images import Pixels, scene
from vitlab.config.data import Augment, EraseFill
from vitlab.data.augment import (
    OPERATIONS,
    Operation,
    apply,
    argument_of,
    as_pillow,
    as_pixels,
    brighten,
    contrast,
    cutout,
    distort,
    erase,
    jitter,
    randaugment,
    saturate,
    turn_hue,
)
from vitlab.data.sampler import rng_of
from vitlab.errors import DataError

PIXELS = scene(40, 56)
IMAGE = Image.fromarray(PIXELS)
SIZE = IMAGE.size


def done(operation: Operation, argument: float, fill: int = 128) -> Pixels:
    return as_pixels(apply(IMAGE, operation, argument, fill))


# ---- RandAugment, operation by operation


def test_there_are_sixteen_operations() -> None:
    assert len(OPERATIONS) == len(set(OPERATIONS)) == 16


@pytest.mark.parametrize(
    ("operation", "argument"),
    [
        ("rotate", 0), ("posterize", 8), ("solarize", 256), ("color", 1), ("contrast", 1), ("brightness", 1), ("sharpness", 1),
        ("shear-x", 0), ("shear-y", 0), ("translate-x", 0), ("translate-y", 0), ("solarize-add", 0),
    ],
)  # fmt: skip
def test_the_neutral_argument_leaves_the_image_as_it_is(operation: Operation, argument: float) -> None:
    np.testing.assert_array_equal(done(operation, argument), PIXELS)


def test_the_level_operations_are_their_formulas() -> None:
    np.testing.assert_array_equal(done("invert", 0), 255 - PIXELS)
    np.testing.assert_array_equal(done("posterize", 3), PIXELS & 0b11100000)
    np.testing.assert_array_equal(done("solarize", 100), np.where(PIXELS < 100, PIXELS, 255 - PIXELS))
    np.testing.assert_array_equal(done("solarize", 0), 255 - PIXELS)
    added = np.minimum(PIXELS.astype(int) + 110, 255)
    np.testing.assert_array_equal(done("solarize-add", 110), np.where(PIXELS < 128, added, PIXELS))


def test_the_blends_are_their_formulas() -> None:
    black = np.zeros_like(PIXELS)
    grey = np.asarray(IMAGE.convert("L").convert("RGB"))
    flat = np.full_like(PIXELS, int(np.asarray(IMAGE.convert("L")).mean() + 0.5))
    blends: list[tuple[Operation, Pixels]] = [("brightness", black), ("color", grey), ("contrast", flat)]
    for operation, towards in blends:
        for factor in (0.1, 0.7, 1.6, 2.8):
            exact = np.clip(towards + factor * (PIXELS.astype(float) - towards), 0, 255)
            assert np.abs(done(operation, factor) - exact).max() <= 1


def test_translation_moves_whole_pixels_and_fills_the_rest() -> None:
    moved = done("translate-x", 5, fill=3)
    np.testing.assert_array_equal(moved[:, :-5], PIXELS[:, 5:])
    assert (moved[:, -5:] == 3).all()
    moved = done("translate-y", -7, fill=3)
    np.testing.assert_array_equal(moved[7:], PIXELS[:-7])
    assert (moved[:7] == 3).all()


def test_shear_moves_each_line_by_its_distance() -> None:
    sheared = done("shear-x", 0.5, fill=3)
    for row in range(40):
        moved = int(0.5 * (row + 0.5) + 0.5)  # the pixel whose centre is nearest
        np.testing.assert_array_equal(sheared[row, : 56 - moved], PIXELS[row, moved:])
        assert (sheared[row, 56 - moved :] == 3).all()
    np.testing.assert_array_equal(
        done("shear-y", 0.3), as_pixels(apply(IMAGE.transpose(Image.Transpose.TRANSPOSE), "shear-x", 0.3, 128)).transpose(1, 0, 2)
    )


def test_rotation_by_a_right_angle_is_exact_and_by_an_acute_one_leaves_filled_corners() -> None:
    square = scene(41, 41)
    turned = as_pixels(apply(Image.fromarray(square), "rotate", 90, 0))
    np.testing.assert_array_equal(turned, np.rot90(square))
    turned = done("rotate", 30, fill=3)
    assert (turned[0, 0] == 3).all()
    np.testing.assert_array_equal(turned[20, 28], PIXELS[20, 28])


def test_autocontrast_and_equalize_use_the_whole_range() -> None:
    dull = (PIXELS // 4 + 90).astype(np.uint8)
    for operation in ("autocontrast", "equalize"):
        spread = as_pixels(apply(Image.fromarray(dull), operation, 0, 128))
        assert (spread.min((0, 1)) == 0).all()
        assert (spread.max((0, 1)) == 255).all()


def test_cutout_fills_a_square_clipped_at_the_border() -> None:
    changed = as_pixels(cutout(IMAGE, 6, 200, centre=(10, 20)))
    expected = PIXELS.copy()
    expected[4:16, 14:26] = 200
    np.testing.assert_array_equal(changed, expected)
    changed = as_pixels(cutout(IMAGE, 6, 200, centre=(0, 55)))
    expected = PIXELS.copy()
    expected[:6, 49:] = 200
    np.testing.assert_array_equal(changed, expected)
    np.testing.assert_array_equal(as_pixels(cutout(IMAGE, 0, 200, centre=(10, 20))), PIXELS)


# ---- magnitudes


@pytest.mark.parametrize(
    ("operation", "at_0", "at_10", "at_15", "at_20"),
    [
        ("rotate", 0, 30, 45, 60),
        ("shear-x", 0, 0.3, 0.45, 0.6),
        ("shear-y", 0, 0.3, 0.45, 0.6),
        ("translate-x", 0, 100, 150, 200),
        ("translate-y", 0, 100, 150, 200),
        ("color", 0.1, 1.9, 2.8, 3.7),
        ("sharpness", 0.1, 1.9, 2.8, 3.7),
        ("posterize", 1, 4, 6, 8),
        ("solarize", 0, 256, 256, 256),
        ("solarize-add", 0, 110, 165, 220),
        ("cutout", 0, 40, 60, 80),
    ],
)
def test_at_224_pixels_magnitudes_are_the_official_ones(
    operation: Operation, at_0: float, at_10: float, at_15: float, at_20: float
) -> None:
    found = [argument_of(operation, magnitude, (224, 224)) for magnitude in (0, 10, 15, 20)]
    assert found == pytest.approx([at_0, at_10, at_15, at_20])


def test_shifts_and_holes_grow_with_the_image() -> None:
    assert argument_of("translate-x", 10, (32, 64)) == pytest.approx(32 * 100 / 224)
    assert argument_of("translate-y", 10, (32, 64)) == pytest.approx(64 * 100 / 224)
    assert argument_of("cutout", 10, (32, 64)) == int(32 * 40 / 224)


def test_only_geometry_has_two_directions() -> None:
    for operation in OPERATIONS:
        there, back = (argument_of(operation, 7, SIZE, negative=negative) for negative in (False, True))
        two_sided = operation in ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")
        assert back == (-there if two_sided else there)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 4), st.floats(0, 30), st.integers(0, 2**32), st.sampled_from([1, 3]), st.integers(1, 9), st.integers(1, 9))
def test_any_magnitude_on_any_image_gives_an_image_of_the_same_shape(
    layers: int, magnitude: float, seed: int, channels: int, height: int, width: int
) -> None:
    image_HWC = scene(height, width)[:, :, :channels]
    before_HWC = image_HWC.copy()
    out_HWC = randaugment(image_HWC, layers, magnitude, rng_of(seed, 0, 0))
    assert out_HWC.shape == image_HWC.shape
    assert out_HWC.dtype == np.uint8
    np.testing.assert_array_equal(image_HWC, before_HWC)


def test_every_operation_is_drawn_alike() -> None:
    # Each single-layer result is that of exactly one operation, in one of two directions; cutout is what is left.
    counts = dict.fromkeys(OPERATIONS, 0)
    results = {
        as_pixels(apply(IMAGE, operation, argument_of(operation, 9, SIZE, negative=negative), 128)).tobytes(): operation
        for operation in OPERATIONS
        if operation != "cutout"
        for negative in (False, True)
    }
    for index in range(3200):
        out = randaugment(PIXELS, 1, 9, rng_of(0, 0, index)).tobytes()
        counts[results.get(out, "cutout")] += 1
    assert min(counts.values()) > 140
    assert max(counts.values()) < 265


def test_two_layers_are_one_after_the_other() -> None:
    rng = rng_of(0, 0, 5)
    once = randaugment(randaugment(PIXELS, 1, 9, rng), 1, 9, rng)
    np.testing.assert_array_equal(once, randaugment(PIXELS, 2, 9, rng_of(0, 0, 5)))


def test_more_channels_than_colours_are_refused_by_colour_operations_only() -> None:
    image_HWC = np.zeros((8, 8, 5), np.uint8)
    for config in (Augment(randaugment=(1, 5)), Augment(hue=0.1)):
        with pytest.raises(DataError, match="5 channels"):
            distort(image_HWC, config, rng_of(0, 0, 0))
    assert distort(image_HWC, Augment(erase=1.0), rng_of(0, 0, 0)).shape == (8, 8, 5)


# ---- colour jitter


def test_factors_of_one_and_no_turn_change_nothing() -> None:
    for change, neutral in ((brighten, 1.0), (contrast, 1.0), (saturate, 1.0)):
        np.testing.assert_array_equal(as_pixels(change(IMAGE, neutral)), PIXELS)
    hsv = IMAGE.convert("HSV").convert("RGB")
    np.testing.assert_array_equal(as_pixels(turn_hue(IMAGE, 0.0)), np.asarray(hsv))


def test_a_third_of_a_turn_carries_red_to_green_to_blue() -> None:
    red = Image.fromarray(np.full((1, 1, 3), (255, 0, 0), np.uint8))
    green, blue = turn_hue(red, 1 / 3), turn_hue(red, -1 / 3)
    assert np.asarray(green)[0, 0].argmax() == 1
    assert np.asarray(blue)[0, 0].argmax() == 2


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (Augment(brightness=0.3), brighten),
        (Augment(contrast=0.3), contrast),
        (Augment(saturation=0.3), saturate),
        (Augment(hue=0.3), turn_hue),
    ],
)
def test_jitter_stays_within_its_width(config: Augment, change: Callable[[Image.Image, float], Image.Image]) -> None:
    low, high = (-0.3, 0.3) if config.hue else (0.7, 1.3)
    views = [jitter(PIXELS, config, rng_of(0, 0, index)) for index in range(60)]
    assert len({view.tobytes() for view in views}) > 40
    # The sum of the differences to a candidate is least at the factor that was used, and that lies inside.
    for view in views[:10]:
        factors = np.linspace(low - 0.1, high + 0.1, 81)
        distances = [np.abs(as_pixels(change(IMAGE, float(f))).astype(int) - view).sum() for f in factors]
        assert low - 0.03 <= factors[int(np.argmin(distances))] <= high + 0.03


def test_grey_images_keep_their_one_channel() -> None:
    grey_HWC = PIXELS[:, :, :1]
    config = Augment(brightness=0.3, contrast=0.3, saturation=0.3, hue=0.2)
    assert jitter(grey_HWC, config, rng_of(0, 0, 0)).shape == grey_HWC.shape
    np.testing.assert_array_equal(as_pixels(as_pillow(grey_HWC)), grey_HWC)


# ---- erasing


@pytest.mark.parametrize("fill", ["grey", "noise"])
def test_erasing_replaces_one_box_and_nothing_else(fill: EraseFill) -> None:
    image_HWC = np.full((60, 80, 3), 250, np.uint8)
    config = Augment(erase=1.0, erase_fill=fill, fill=17, erase_area=(0.05, 0.3), erase_aspect=(0.5, 2))
    shares = []
    for index in range(60):
        out_HWC = erase(image_HWC, config, rng_of(0, 0, index))
        changed_HW = (out_HWC != 250).any(2)
        rows, columns = np.flatnonzero(changed_HW.any(1)), np.flatnonzero(changed_HW.any(0))
        box = out_HWC[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        if fill == "grey":
            assert (box == 17).all()
        else:
            assert 60 < box.std() < 90
        shares.append(box.shape[0] * box.shape[1] / (60 * 80))
        assert 0.5 - 0.1 < box.shape[0] / box.shape[1] < 2 + 0.2
    assert (image_HWC == 250).all()
    assert 0.04 < min(shares) < max(shares) < 0.32


def test_erasing_is_a_probability() -> None:
    config = Augment(erase=0.25)
    erased = sum((erase(PIXELS, config, rng_of(0, 0, index)) != PIXELS).any() for index in range(400))
    assert 70 < erased < 130
    np.testing.assert_array_equal(distort(PIXELS, Augment(), rng_of(0, 0, 0)), PIXELS)


def test_an_image_too_small_for_a_box_is_left_alone() -> None:
    image_HWC = np.zeros((1, 1, 3), np.uint8)
    np.testing.assert_array_equal(erase(image_HWC, Augment(erase=1.0), rng_of(0, 0, 0)), image_HWC)
