"""The training transform depends on the file, the config and the generator only, and gives what decoding the whole image gives."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests import processes
from tests.data.images import Pixels, encode, jpeg, scene, with_orientation
from vitlab.config.data import AUGREG, Augment, Crop, DecodeLimits, Interpolation, Preprocess
from vitlab.data.decode import check, decode, snap
from vitlab.data.sampler import rng_of
from vitlab.data.transforms import (
    EvaluationTransform,
    TrainingTransform,
    inception_box,
    mirror,
    pad,
    preprocess,
    random_box,
    scale,
    training_transform,
)
from vitlab.errors import ConfigError, DataError

CROPS: tuple[Crop, ...] = ("inception", "random", "pad", "squash")
sides = st.integers(1, 3000)


# ---- randomness


def test_a_generator_is_a_function_of_its_numbers_and_streams_stay_apart() -> None:
    numbers = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**64 - 1, 5, 7), (0, 2**64 - 1, 2**64 - 1)]
    draws = {tuple(rng_of(*key, stream=stream).random(4)) for key in numbers for stream in ("sample", "batch", "order")}
    assert len(draws) == 3 * len(numbers)
    for key in numbers:
        assert rng_of(*key).random() == rng_of(*key).random() != rng_of(*key, repeat=1).random()


def test_neighbouring_samples_are_not_correlated() -> None:
    draws = np.array([[rng_of(3, epoch, index).random() for index in range(60)] for epoch in range(60)])
    assert abs(draws.mean() - 0.5) < 0.02
    for other in (np.roll(draws, 1, 0), np.roll(draws, 1, 1)):
        assert abs(np.corrcoef(draws.ravel(), other.ravel())[0, 1]) < 0.05


def test_numpys_own_integers_will_do_and_negative_ones_will_not() -> None:
    assert rng_of(np.int64(1), np.int64(2), np.int64(3)).random() == rng_of(1, 2, 3).random()  # type: ignore[arg-type]
    for key in ((-1, 0, 0), (0, -1, 0), (0, 0, 2**64)):
        with pytest.raises(ConfigError):
            rng_of(*key)


# ---- boxes


@settings(max_examples=300, deadline=None)
@given(sides, sides, st.integers(0, 2**32), st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0.2, 1), st.floats(1, 5))
def test_an_inception_box_lies_inside_and_keeps_its_area_and_aspect(
    height: int, width: int, seed: int, one: float, other: float, narrow: float, wide: float
) -> None:
    config = Augment(area=(min(one, other), max(one, other)), aspect=(narrow, wide))
    top, left, box_height, box_width = inception_box(height, width, rng_of(seed, 0, 0), config)
    assert box_height >= 1
    assert box_width >= 1
    assert 0 <= top <= height - box_height
    assert 0 <= left <= width - box_width
    # Sides are rounded to whole pixels; the aspect is that of some sides within half a pixel.
    assert (box_width + 0.5) / (box_height - 0.5) >= narrow or box_width == width
    assert (box_width - 0.5) / (box_height + 0.5) <= wide or box_height == height


@settings(max_examples=100, deadline=None)
@given(st.integers(200, 2000), st.integers(200, 2000), st.integers(0, 2**32))
def test_the_area_of_an_inception_box_is_within_its_bounds(height: int, width: int, seed: int) -> None:
    assume(0.5 < height / width < 2)
    config = Augment(area=(0.2, 0.4))
    _, _, box_height, box_width = inception_box(height, width, rng_of(seed, 0, 0), config)
    share = box_height * box_width / (height * width)
    assert 0.2 - 0.01 < share < 0.4 + 0.01


def test_inception_boxes_are_spread_evenly() -> None:
    config = Augment()
    boxes = np.array([inception_box(300, 300, rng_of(0, 0, index), config) for index in range(4000)])
    share = boxes[:, 2] * boxes[:, 3] / 300**2
    small = share[share < 0.5]
    # Small boxes always fit, so their area is drawn evenly; large ones may need another try.
    assert abs(small.mean() - 0.275) < 0.01
    assert share.min() < 0.06
    assert share.max() > 0.97
    slope = np.log(boxes[:, 3] / boxes[:, 2])[share < 0.5]
    assert abs(slope.mean()) < 0.01
    assert np.abs(slope).max() < np.log(4 / 3) + 0.03
    free = 300 - boxes[:, 2:]
    place = (boxes[:, :2] / np.maximum(free, 1))[(free > 50).all(1)]
    assert np.abs(place.mean(0) - 0.5).max() < 0.02


@pytest.mark.parametrize(
    ("size", "box"), [((10, 1000), (0, 493, 10, 13)), ((1000, 10), (493, 0, 13, 10)), ((1, 5000), (0, 2499, 1, 1))]
)
def test_where_no_box_fits_the_largest_central_one_is_taken(size: tuple[int, int], box: tuple[int, int, int, int]) -> None:
    assert inception_box(*size, rng_of(0, 0, 0), Augment(area=(0.9, 1.0))) == box


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 49), st.integers(0, 49), st.integers(0, 2**32))
def test_a_random_box_lies_inside(height: int, width: int, less_height: int, less_width: int, seed: int) -> None:
    size = max(1, height - less_height), max(1, width - less_width)
    top, left, *found = random_box(height, width, size, rng_of(seed, 0, 0))
    assert tuple(found) == size
    assert 0 <= top <= height - size[0]
    assert 0 <= left <= width - size[1]


def test_a_random_box_reaches_every_place_alike() -> None:
    places = [random_box(5, 4, (3, 3), rng_of(0, 0, index))[:2] for index in range(3000)]
    counts = np.array([places.count((top, left)) for top in range(3) for left in range(2)])
    assert counts.min() > 420
    assert counts.sum() == 3000


# ---- views


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_transform_has_the_size_asked_for_whatever_goes_in(crop: Crop, channels: int) -> None:
    config = Augment(image_size=(20, 28), resize_to=40, crop=crop)
    for height, width in ((1, 1), (3, 200), (200, 3), (20, 28), (90, 120)):
        for content in (jpeg(scene(height, width)), encode(scene(height, width), "PNG")):
            view_HWC = training_transform(content, config, rng_of(0, 0, 0), channels=channels)
            assert view_HWC.shape == (20, 28, channels)
            assert view_HWC.dtype == np.uint8
            assert view_HWC.flags["C_CONTIGUOUS"]


@pytest.mark.parametrize("preset", AUGREG)
def test_the_same_numbers_give_the_same_bits(preset: str) -> None:
    config = replace(AUGREG[preset], image_size=(32, 32), hue=0.1, brightness=0.3, erase=0.7)
    content = jpeg(scene(70, 90))
    for index in range(8):
        first = training_transform(content, config, rng_of(7, 1, index))
        np.testing.assert_array_equal(first, training_transform(content, config, rng_of(7, 1, index)))
        assert (first != training_transform(content, config, rng_of(7, 2, index))).any()
        assert (first != training_transform(content, config, rng_of(8, 1, index))).any()


def test_another_process_gives_the_same_bits(warm: Path, tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    path.write_bytes(jpeg(scene(300, 200)))
    code = f"""
import hashlib, pathlib
from vitlab.config.data import Augment
from vitlab.data.sampler import rng_of
from vitlab.data.transforms import training_transform
config = Augment(image_size=(32, 32), randaugment=(2, 15), hue=0.2, contrast=0.4, erase=0.5)
content = pathlib.Path({str(path)!r}).read_bytes()
views = b"".join(training_transform(content, config, rng_of(1, 2, index)).tobytes() for index in range(20))
print(hashlib.sha256(views).hexdigest())
"""
    other = processes.run([warm / "python", "-c", code]).stdout
    local = io.StringIO()
    exec(code.replace("print(", "print_to("), {"print_to": lambda text: print(text, file=local)})
    assert other == local.getvalue()


def test_a_transform_that_is_sent_to_workers_imports_torch_before_they_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = DecodeLimits()
    training = TrainingTransform(augment=Augment(image_size=(32, 32)), channels=1, limits=limits, scale="file")
    evaluation = EvaluationTransform(preprocess=Preprocess(image_size=(32, 32)), limits=limits)
    sent = pickle.dumps(training), pickle.dumps(evaluation)
    assert pickle.loads(sent[0]) == training
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
    with pytest.raises(ImportError, match="torch"):
        pickle.loads(sent[0])
    assert pickle.loads(sent[1]) == evaluation


def test_neither_the_image_nor_numpys_global_generator_is_touched() -> None:
    image_HWC = scene(40, 40)
    before_HWC = image_HWC.copy()
    state = np.random.get_state(legacy=False)["state"]["key"]  # noqa: NPY002
    config = Augment(image_size=(40, 40), crop="squash", flip=1, randaugment=(3, 10), brightness=0.5, erase=1)
    for index in range(20):
        training_transform(image_HWC, config, rng_of(0, 0, index))
    np.testing.assert_array_equal(image_HWC, before_HWC)
    np.testing.assert_array_equal(np.random.get_state(legacy=False)["state"]["key"], state)  # noqa: NPY002


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize("size", [(90, 120), (127, 300), (300, 127), (20, 20)])
def test_of_images_less_than_twice_the_transform_decoded_pixels_give_the_transform_of_their_file(
    size: tuple[int, int], crop: Crop
) -> None:
    config = Augment(image_size=(64, 64), resize_to=72, crop=crop, randaugment=(2, 9))
    image = scene(*size)
    for content in (jpeg(image), jpeg(image, exif=with_orientation(5)), encode(image, "PNG")):
        pixels_HWC = decode(content, name="a")
        pixels_HWC.flags.writeable = False  # as they lie in a cache
        for index in range(6):
            np.testing.assert_array_equal(
                training_transform(content, config, rng_of(0, 0, index)),
                training_transform(pixels_HWC, config, rng_of(0, 0, index)),
            )


def by_hand(content: bytes, config: Augment, index: int) -> Pixels:
    """Decode everything, crop, resize with Pillow, flip."""
    rng = rng_of(0, 0, index)
    image_HWC = decode(content, name="a", limits=DecodeLimits(jpeg_decoder="pillow"))
    height, width, _ = image_HWC.shape
    box = inception_box(height, width, rng, config)
    if height >= 2 * config.image_size[0] and width >= 2 * config.image_size[1]:
        box, _ = snap(box, config.image_size, check(content, name="a", limits=DecodeLimits()))
    top, left, height, width = box
    resample = Image.Resampling.BICUBIC if config.interpolation == "bicubic" else Image.Resampling.BILINEAR
    shown = Image.fromarray(image_HWC).crop((left, top, left + width, top + height))
    view_HWC = np.asarray(shown.resize(config.image_size[::-1], resample))
    return view_HWC[:, ::-1] if rng.random() < config.flip else view_HWC


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
@pytest.mark.parametrize(("interpolation", "levels"), [("bilinear", 2), ("bicubic", 2)])
def test_a_transform_of_a_small_image_is_a_whole_decode_cropped_and_resized(
    interpolation: Interpolation, levels: int, orientation: int
) -> None:
    config = Augment(image_size=(96, 128), interpolation=interpolation)
    content = jpeg(scene(180, 170), exif=with_orientation(orientation))
    for index in range(12):
        view_HWC = training_transform(content, config, rng_of(0, 0, index))
        assert np.abs(view_HWC.astype(int) - by_hand(content, config, index)).max() <= levels


def test_a_transform_of_a_large_image_shows_the_same_place() -> None:
    config = Augment(image_size=(40, 48), area=(0.6, 1.0))
    for orientation in (1, 6):
        content = jpeg(scene(500, 600, finest=70), exif=with_orientation(orientation), quality=95)
        for index in range(8):
            view_HWC = training_transform(content, config, rng_of(0, 0, index)).astype(int)
            expected_HWC = by_hand(content, config, index).astype(int)
            off = np.abs(view_HWC - expected_HWC).mean()
            # A shift by a quarter of a pixel would already show.
            shifted = np.abs(expected_HWC[:, 1:] - expected_HWC[:, :-1]).mean()
            assert off < shifted / 4


@pytest.mark.data
def test_on_real_images_a_transform_is_exact_and_of_enlarged_ones_close(data_folder: Path) -> None:
    config = Augment()
    with zipfile.ZipFile(data_folder / "imagenet_val_1000.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith((".jpg", ".JPEG")))[::40]
        contents = [archive.read(name) for name in names]
    for index, content in enumerate(contents):
        with Image.open(io.BytesIO(content)) as image:
            small = image.convert("RGB")
        large = jpeg(small.resize((2 * small.width, 2 * small.height), Image.Resampling.BICUBIC))
        off = np.abs(training_transform(content, config, rng_of(0, 0, index)).astype(int) - by_hand(content, config, index))
        assert off.max() <= 2
        off = np.abs(training_transform(large, config, rng_of(0, 0, index)).astype(int) - by_hand(large, config, index))
        assert off.mean() < 2


def test_tf_bilinear_is_never_reduced() -> None:
    content = jpeg(scene(400, 400))
    config = Augment(image_size=(32, 32), crop="squash", flip=0, interpolation="tf-bilinear")
    expected_HWC = preprocess(
        decode(content, name="a"), Preprocess(image_size=(32, 32), resize="squash", interpolation="tf-bilinear")
    )
    for crop in ("squash", "inception"):
        view_HWC = training_transform(content, replace(config, crop=crop, area=(1, 1), aspect=(1, 1)), rng_of(0, 0, 0))
        assert np.abs(view_HWC.astype(int) - expected_HWC).max() <= 1


@pytest.mark.parametrize("channels", [1, 3, 4, 5])
@pytest.mark.parametrize(("interpolation", "levels"), [("bilinear", 2), ("bicubic", 2), ("tf-bilinear", 1)])
def test_scaling_for_training_agrees_with_evaluation(interpolation: Interpolation, levels: int, channels: int) -> None:
    image_HWC = np.concatenate([scene(90, 70), scene(90, 70, seed=1)], axis=2)[:, :, :channels]
    for size in ((40, 50), (130, 61), (90, 70), (1, 1)):
        config = Preprocess(
            image_size=size, resize="squash", interpolation=interpolation, mean=(0.5,) * channels, std=(0.5,) * channels
        )
        scaled_HWC = scale(image_HWC, size, interpolation)
        assert scaled_HWC.shape == (*size, channels)
        assert np.abs(scaled_HWC.astype(int) - preprocess(image_HWC, config)).max() <= levels


def test_mirroring_twice_is_nothing_and_once_exchanges_left_and_right() -> None:
    for channels in (1, 3, 4):
        image_HWC = np.repeat(scene(9, 14)[:, :, :1], channels, 2)
        np.testing.assert_array_equal(mirror(image_HWC), image_HWC[:, ::-1])
        np.testing.assert_array_equal(mirror(mirror(image_HWC)), image_HWC)


def test_flip_is_a_probability() -> None:
    image_HWC = scene(8, 8)
    for probability, low, high in ((0.0, 0, 0), (0.3, 60, 120), (1.0, 300, 300)):
        config = Augment(image_size=(8, 8), crop="squash", flip=probability)
        views = [training_transform(image_HWC, config, rng_of(0, 0, index)) for index in range(300)]
        flipped = sum(np.array_equal(view, image_HWC[:, ::-1]) for view in views)
        assert low <= flipped <= high
        assert flipped + sum(np.array_equal(view, image_HWC) for view in views) == 300


def test_pad_and_crop_shifts_by_at_most_the_padding() -> None:
    image_HWC = scene(32, 32)
    config = Augment(image_size=(32, 32), crop="pad", padding=4, flip=0, fill=7)
    padded_HWC = pad(image_HWC, 4, 7)
    assert padded_HWC.shape == (40, 40, 3)
    assert (padded_HWC[:4] == 7).all()
    seen = set()
    for index in range(400):
        view_HWC = training_transform(image_HWC, config, rng_of(0, 0, index))
        places = [
            (top, left)
            for top in range(9)
            for left in range(9)
            if np.array_equal(padded_HWC[top : top + 32, left : left + 32], view_HWC)
        ]
        assert len(places) == 1
        seen.update(places)
    assert len(seen) > 75  # of 81


def test_random_crop_cuts_out_of_the_scaled_image() -> None:
    image_HWC = scene(50, 70)
    config = Augment(image_size=(24, 20), crop="random", resize_to=30, flip=0)
    scaled_HWC = scale(image_HWC, (30, 30), "bilinear")
    view_HWC = training_transform(image_HWC, config, rng_of(0, 0, 1))
    assert any(np.array_equal(scaled_HWC[top : top + 24, left : left + 20], view_HWC) for top in range(7) for left in range(11))


def test_what_is_switched_on_later_does_not_change_the_crop() -> None:
    content = jpeg(scene(90, 120))
    plain = Augment(image_size=(32, 32), erase=0)
    erased = replace(plain, erase=1.0, erase_area=(0.02, 0.1))
    for index in range(5):
        one, other = (training_transform(content, config, rng_of(0, 0, index)) for config in (plain, erased))
        assert 0.85 < (one == other).all(2).mean() < 1


@pytest.mark.parametrize("crop", CROPS)
def test_errors_name_the_image(crop: Crop) -> None:
    config = Augment(image_size=(32, 32), crop=crop)
    content = jpeg(scene(80, 80))
    for bad in (b"", b"<html>", content[:-40], encode(scene(), "PPM")):
        with pytest.raises(DataError, match=r"pets/cat\.jpg"):
            training_transform(bad, config, rng_of(0, 0, 0), name="pets/cat.jpg")
    with pytest.raises(DataError, match=r"pets/cat\.jpg.*limit"):
        training_transform(content, config, rng_of(0, 0, 0), name="pets/cat.jpg", limits=DecodeLimits(max_pixels=100))
    with pytest.raises(DataError, match="channels"):
        training_transform(scene(), config, rng_of(0, 0, 0), channels=1)
