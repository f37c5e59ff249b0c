"""Near duplicates: bands of bits find what comparing all pairs finds, and different images are not reported."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.data.images import scene
from vitlab.data import duplicates as likeness
from vitlab.data.duplicates import SIDE, NearPair, is_flat, near_pairs, thumbnail

Thumbs = NDArray[np.uint8]


def strangers(count: int, *, seed: int = 0) -> Thumbs:
    """Thumbnails of images that have nothing in common."""
    return np.stack([thumbnail(scene(64, 64, seed=seed + number)) for number in range(count)])


def disturbed(thumb_NHW: Thumbs, *, noise: float, seed: int) -> Thumbs:
    """The same with other light and some noise."""
    rng = np.random.default_rng(seed)
    changed = thumb_NHW * rng.uniform(0.7, 1.2, (len(thumb_NHW), 1, 1)) + rng.normal(0, noise, thumb_NHW.shape)
    return np.clip(changed, 0, 255).astype(np.uint8)


def pairs_of(found: list[NearPair]) -> set[tuple[int, int]]:
    return {(pair.first, pair.second) for pair in found}


def test_strangers_are_not_alike() -> None:
    assert near_pairs(strangers(300)) == []


@pytest.mark.parametrize("many", [False, True])
def test_every_disturbed_copy_is_found_whatever_the_length_of_the_bands(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if many:
        monkeypatch.setattr(likeness, "_MANY", 10)  # bands of 21 bits, as for hundreds of thousands
    first = strangers(150)
    thumbs = np.concatenate([first, disturbed(first, noise=3, seed=1), strangers(150, seed=5000)])
    assert pairs_of(near_pairs(thumbs)) == {(number, number + 150) for number in range(150)}


def test_mirrored_copies_are_found_and_reported_as_mirrored() -> None:
    first = strangers(60)
    found = near_pairs(np.concatenate([first, disturbed(first[:, :, ::-1], noise=2, seed=2)]))
    assert pairs_of(found) == {(number, number + 60) for number in range(60)}
    assert all(pair.mirrored for pair in found)


def test_the_hash_of_a_mirrored_thumbnail_is_that_of_the_other_with_known_bits_flipped() -> None:
    thumbs = strangers(40)
    mirrored = likeness._frequencies(thumbs[:, :, ::-1])
    assert np.allclose(mirrored, likeness._frequencies(thumbs) * likeness._MIRROR_F, atol=1e-2)


def test_frequencies_keep_what_a_thumbnail_correlates_with() -> None:
    """The cosines have length 1 and are at right angles, so products of frequencies are products of images."""
    cosines = likeness._cosines(SIDE)
    assert np.allclose(cosines @ cosines.T, np.eye(SIDE), atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.5, 1.5), st.integers(-40, 40))
def test_light_and_contrast_do_not_change_a_hash(seed: int, contrast: float, light: int) -> None:
    thumb = thumbnail(scene(64, 64, seed=seed)).astype(np.float32)
    plain, changed = likeness._frequencies(np.stack([thumb, thumb * contrast + light]))
    assert np.array_equal(plain[np.abs(plain) > 1] > 0, changed[np.abs(plain) > 1] > 0)


def test_two_images_in_the_same_frame_are_not_the_same_image() -> None:
    blots = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)  # scenes have a corner in common
    inside = blots.repeat(4, axis=1).repeat(4, axis=2)
    framed = np.full((40, 64, 64), 255, np.uint8)
    framed[:, :8] = framed[:, -8:] = framed[:, :, :8] = framed[:, :, -8:] = 0
    framed[:, 16:48, 16:48] = inside
    thumbs = np.stack([thumbnail(image[:, :, None]) for image in framed])
    assert near_pairs(thumbs) == []


def test_images_that_agree_in_all_that_is_large_and_in_nothing_small_are_not_the_same() -> None:
    rng = np.random.default_rng(1)
    down, across = np.array(likeness._LOWEST).T
    weights = np.zeros((12, 12))
    weights[down, across] = rng.normal(size=64) / (down + across) ** 1.5
    large = likeness._cosines(12).T @ weights @ likeness._cosines(12)
    large *= 40 / large.std()
    thumbs = np.clip(128 + large + rng.normal(0, 9, (30, SIDE, SIDE)), 0, 255).astype(np.uint8)
    assert np.corrcoef(thumbs.reshape(30, -1).astype(float)).min() > 0.92
    assert near_pairs(thumbs) == []


def test_images_of_one_colour_are_flat_and_scenes_are_not() -> None:
    blank = np.full((1, SIDE, SIDE), 77, np.uint8)
    assert is_flat(np.concatenate([blank, strangers(5)])).tolist() == [True, False, False, False, False, False]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_thumbnail_is_made_of_any_number_of_channels(channels: int) -> None:
    image = np.repeat(scene(50, 90)[:, :, :1], channels, axis=2)
    assert thumbnail(image).shape == (SIDE, SIDE)
    assert np.allclose(thumbnail(image), thumbnail(image[:, :, :1]), atol=1)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_images_are_no_special_case(count: int) -> None:
    assert near_pairs(strangers(3)[:count]) == []


def test_thousands_of_copies_do_not_take_for_ever() -> None:
    copies = np.repeat(strangers(1), 1500, axis=0)
    found = near_pairs(disturbed(copies, noise=1, seed=3))
    assert len({place for pair in pairs_of(found) for place in pair}) == 1500
