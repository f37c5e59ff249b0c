"""Evaluation preprocessing is Pillow's resize and a centre crop to the bit, or TensorFlow's own arithmetic."""

from __future__ import annotations

import math
import zipfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tests.data.images import Pixels, pillow_rgb, scene
from vitlab.config.data import IMAGENET_MEAN, IMAGENET_STD, Interpolation, Preprocess, Resize
from vitlab.data.decode import decode
from vitlab.data.transforms import centre_box, fitted_size, normalise, preprocess, short_side_size
from vitlab.errors import DataError

FILTERS: dict[Interpolation, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
INTERPOLATIONS: tuple[Interpolation, ...] = ("bilinear", "bicubic", "tf-bilinear")
RESIZES: tuple[Resize, ...] = ("short-side", "squash", "pad")
sides = st.integers(1, 90)


@settings(max_examples=80, deadline=None)
@given(sides, sides, st.integers(8, 40), st.integers(8, 40), st.integers(0, 20), st.sampled_from(sorted(FILTERS)))
def test_short_side_is_pillows_resize_and_a_centre_crop(
    height: int, width: int, out_height: int, out_width: int, more: int, interpolation: Interpolation
) -> None:
    image_HWC = scene(height, width)
    resize_to = max(out_height, out_width) + more
    config = Preprocess(image_size=(out_height, out_width), resize_to=resize_to, interpolation=interpolation)
    factor = Fraction(resize_to, min(height, width))
    scaled = Image.fromarray(image_HWC).resize((round(width * factor), round(height * factor)), FILTERS[interpolation])
    top, left = math.floor((scaled.height - out_height) / 2), math.floor((scaled.width - out_width) / 2)
    expected = scaled.crop((left, top, left + out_width, top + out_height))
    np.testing.assert_array_equal(preprocess(image_HWC, config), expected)


@settings(max_examples=30, deadline=None)
@given(sides, sides, sides, sides, st.sampled_from(sorted(FILTERS)))
def test_squash_is_pillows_resize(height: int, width: int, out_height: int, out_width: int, interpolation: Interpolation) -> None:
    image_HWC = scene(height, width)
    config = Preprocess(image_size=(out_height, out_width), resize="squash", interpolation=interpolation)
    expected = Image.fromarray(image_HWC).resize((out_width, out_height), FILTERS[interpolation])
    np.testing.assert_array_equal(preprocess(image_HWC, config), expected)


@settings(max_examples=60, deadline=None)
@given(sides, sides, sides, sides)
def test_pad_keeps_the_aspect_and_fills_the_rest(height: int, width: int, out_height: int, out_width: int) -> None:
    image_HWC = np.full((height, width, 3), 200, np.uint8)
    config = Preprocess(image_size=(out_height, out_width), resize="pad", fill=9)
    padded_HWC = preprocess(image_HWC, config)
    inside_HW = padded_HWC[:, :, 0] == 200
    assert set(np.unique(padded_HWC)) <= {9, 200}
    rows, columns = inside_HW.any(1), inside_HW.any(0)
    assert rows.all() or columns.all()
    np.testing.assert_array_equal(inside_HW, rows[:, None] & columns[None])
    factor = min(out_height / height, out_width / width)
    assert abs(rows.sum() - max(1, height * factor)) <= 0.5 + 1e-9
    assert abs(columns.sum() - max(1, width * factor)) <= 0.5 + 1e-9
    before, after = rows.argmax(), rows[::-1].argmax()
    assert 0 <= after - before <= 1


def tf_formula(image_HWC: Pixels, size: tuple[int, int]) -> NDArray[np.float64]:
    """tf.image.resize, bilinear, no antialias, pixel by pixel as its documentation defines it, in double precision."""
    height, width, channels = image_HWC.shape
    out_HWC = np.empty((*size, channels), np.float64)
    for y in range(size[0]):
        for x in range(size[1]):
            fy, fx = (y + 0.5) * height / size[0] - 0.5, (x + 0.5) * width / size[1] - 0.5
            y0, x0 = math.floor(fy), math.floor(fx)
            total = np.zeros(channels)
            for dy, wy in ((0, 1 - (fy - y0)), (1, fy - y0)):
                for dx, wx in ((0, 1 - (fx - x0)), (1, fx - x0)):
                    row, column = min(max(y0 + dy, 0), height - 1), min(max(x0 + dx, 0), width - 1)
                    total += wy * wx * image_HWC[row, column]
            out_HWC[y, x] = total
    return out_HWC


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 24), st.integers(1, 24))
def test_tf_bilinear_is_the_formula_rounded_to_the_nearest_level(height: int, width: int, out_height: int, out_width: int) -> None:
    image_HWC = scene(height, width)
    config = Preprocess(image_size=(out_height, out_width), resize="squash", interpolation="tf-bilinear")
    exact_HWC = tf_formula(image_HWC, (out_height, out_width))
    # Single precision, which TensorFlow uses, may round a value that lies in the middle of two levels either way.
    assert np.abs(preprocess(image_HWC, config) - exact_HWC).max() <= 0.5 + 1e-3


def test_tf_bilinear_agrees_with_torchs_half_pixel_bilinear() -> None:
    image_HWC = scene(61, 83)
    config = Preprocess(image_size=(32, 40), resize_to=50, interpolation="tf-bilinear")
    image_1CHW = torch.from_numpy(image_HWC).permute(2, 0, 1)[None].float()
    scaled_1CHW = torch.nn.functional.interpolate(image_1CHW, size=(50, 68), mode="bilinear", antialias=False)
    top, left, height, width = centre_box((50, 68), (32, 40))
    expected_HWC = scaled_1CHW[0, :, top : top + height, left : left + width].permute(1, 2, 0).numpy()
    assert np.abs(preprocess(image_HWC, config) - expected_HWC).max() <= 0.5 + 1e-3


def test_tf_bilinear_does_not_antialias_and_the_others_do() -> None:
    stripes_HWC = np.zeros((64, 64, 3), np.uint8)
    stripes_HWC[:, ::4] = stripes_HWC[:, 1::4] = 255
    spread = {
        interpolation: preprocess(stripes_HWC, Preprocess(image_size=(9, 9), resize="squash", interpolation=interpolation)).std()
        for interpolation in INTERPOLATIONS
    }
    assert spread["tf-bilinear"] > 60 > 25 > max(spread["bilinear"], spread["bicubic"])


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (2, 3)])
def test_any_size_becomes_the_models_size(size: tuple[int, int], interpolation: Interpolation, resize: Resize) -> None:
    config = Preprocess(image_size=(48, 64), resize_to=70, resize=resize, interpolation=interpolation)
    image_HWC = np.full((*size, 3), 77, np.uint8)
    out_HWC = preprocess(image_HWC, config)
    assert out_HWC.shape == (48, 64, 3)
    assert set(np.unique(out_HWC)) <= {77, config.fill}


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("channels", [1, 2, 4, 5])
def test_channels_are_resized_each_for_itself(channels: int, interpolation: Interpolation, resize: Resize) -> None:
    rng = np.random.default_rng(0)
    image_HWC = rng.integers(0, 256, (31, 45, channels), dtype=np.uint8)
    config = Preprocess(
        image_size=(20, 24), resize_to=25, resize=resize, interpolation=interpolation,
        mean=(0.5,) * channels, std=(0.5,) * channels,
    )  # fmt: skip
    one = Preprocess(image_size=(20, 24), resize_to=25, resize=resize, interpolation=interpolation, mean=(0.5,), std=(0.5,))
    planes = [preprocess(image_HWC[:, :, c : c + 1], one) for c in range(channels)]
    np.testing.assert_array_equal(preprocess(image_HWC, config), np.concatenate(planes, axis=2))


def test_the_longer_side_is_rounded_and_the_crop_is_floored() -> None:
    assert short_side_size(100, 151, 256) == (256, 387)  # 386.56
    assert short_side_size(151, 100, 256) == (387, 256)
    assert short_side_size(300, 401, 256) == (256, 342)  # 342.19
    assert centre_box((256, 387), (224, 224)) == (16, 81, 224, 224)
    assert fitted_size(100, 200, (64, 64)) == (32, 64)
    assert fitted_size(5000, 1, (64, 64)) == (64, 1)


def test_the_result_may_be_written_to_and_leaves_its_dataset_alone() -> None:
    for resize in RESIZES:
        image_HWC = scene(224, 224)
        before_HWC = image_HWC.copy()
        out_HWC = preprocess(image_HWC, Preprocess(resize=resize, resize_to=224))
        out_HWC[:] = 0
        np.testing.assert_array_equal(image_HWC, before_HWC)


@pytest.mark.parametrize(
    "image",
    [np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3), np.float32), np.zeros((0, 8, 3), np.uint8), np.zeros((8, 8, 1), np.uint8)],
)
def test_what_is_not_an_image_of_the_right_channels_is_refused(image: Pixels) -> None:
    with pytest.raises(DataError, match="channels"):
        preprocess(image, Preprocess())


@pytest.mark.data
def test_real_images_come_out_as_pillow_makes_them(data_folder: Path) -> None:
    config = Preprocess(image_size=(192, 224), resize_to=236)
    with zipfile.ZipFile(data_folder / "imagenet_val_1000.zip") as archive:
        for name in sorted(n for n in archive.namelist() if n.endswith((".jpg", ".JPEG")))[::50]:
            content = archive.read(name)
            image = Image.fromarray(pillow_rgb(content))
            scaled = image.resize(short_side_size(image.height, image.width, 236)[::-1], Image.Resampling.BICUBIC)
            top, left = (scaled.height - 192) // 2, (scaled.width - 224) // 2
            expected = scaled.crop((left, top, left + 224, top + 192))
            np.testing.assert_array_equal(preprocess(decode(content, name=name), config), expected)


# ---- normalisation


def test_normalising_is_the_textbook_formula() -> None:
    images_BHWC = np.stack([scene(5, 7, seed=seed) for seed in range(3)])
    config = Preprocess(mean=IMAGENET_MEAN, std=IMAGENET_STD)
    images_BCHW = normalise(torch.from_numpy(images_BHWC), config)
    expected = ((images_BHWC / 255 - IMAGENET_MEAN) / IMAGENET_STD).transpose(0, 3, 1, 2)
    assert images_BCHW.shape == (3, 3, 5, 7)
    assert images_BCHW.is_contiguous()
    np.testing.assert_allclose(images_BCHW, expected, atol=1e-6)


def test_the_official_range_is_hit_to_the_bit() -> None:
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(1, 16, 16, 3)
    images_BCHW = normalise(levels, Preprocess())
    expected = (levels.float() - 127.5) / 127.5
    assert torch.equal(images_BCHW, expected.permute(0, 3, 1, 2))
    assert (images_BCHW.min().item(), images_BCHW.max().item()) == (-1, 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_narrow_type_loses_only_its_own_last_rounding(dtype: torch.dtype) -> None:
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(1, 16, 16, 3)
    config = Preprocess(mean=IMAGENET_MEAN, std=IMAGENET_STD)
    images_BCHW = normalise(levels, config, dtype)
    assert images_BCHW.dtype == dtype
    assert torch.equal(images_BCHW, normalise(levels, config).to(dtype))


def test_grey_has_one_channel_and_a_batch_may_be_empty() -> None:
    config = Preprocess(mean=(0.5,), std=(0.5,))
    assert normalise(torch.zeros(2, 4, 4, 1, dtype=torch.uint8), config).shape == (2, 1, 4, 4)
    assert normalise(torch.zeros(0, 4, 4, 1, dtype=torch.uint8), config).shape == (0, 1, 4, 4)


@pytest.mark.parametrize(
    "images", [torch.zeros(2, 4, 4, 1, dtype=torch.uint8), torch.zeros(2, 4, 4, 3), torch.zeros(4, 4, 3, dtype=torch.uint8)]
)
def test_a_batch_of_another_kind_is_refused(images: torch.Tensor) -> None:
    with pytest.raises(DataError):
        normalise(images, Preprocess())
