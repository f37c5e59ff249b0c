"""Images come in every mode, size, orientation and number of frames: vitlab decodes each to 8-bit pixels or says why not."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.data.images import decoded, encode, jpeg, pillow_rgb, scene, with_orientation
from vitlab.config.data import Augment, DecodeLimits
from vitlab.data.decode import decode
from vitlab.data.transforms import training_transform

PIXELS = scene()


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (3, 2), (17, 16)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "WEBP"])
def test_any_size_passes_from_one_pixel_to_a_strip(kind: str, size: tuple[int, int]) -> None:
    content = encode(scene(*size), kind)
    image_HWC = decoded(content)
    assert image_HWC.shape == (*size, 3)
    np.testing.assert_array_equal(image_HWC, pillow_rgb(content))


def test_sixteen_bit_grey_is_scaled_and_not_clipped() -> None:
    levels = np.array([[0, 128, 257, 40_000, 65_535]], np.uint16)
    grey_HWC = decoded(encode(Image.fromarray(levels), "PNG"))
    assert grey_HWC[0, :, 0].tolist() == [0, 0, 1, 156, 255]
    assert (grey_HWC == grey_HWC[:, :, :1]).all()


def test_black_and_white_and_grey_become_equal_channels() -> None:
    grey = Image.fromarray(PIXELS).convert("L")
    for image in (grey, grey.convert("1")):
        expected_HW = np.asarray(image.convert("L"))
        for channels in (1, 3):
            np.testing.assert_array_equal(decoded(encode(image, "PNG"), channels), np.repeat(expected_HW[:, :, None], channels, 2))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_what_is_transparent_is_laid_on_white(mode: str, kind: str) -> None:
    image = Image.fromarray(PIXELS).convert(mode)
    opacity = np.full(PIXELS.shape[:2], 255, np.uint8)
    opacity[:, :20], opacity[:, 20:40] = 0, 128
    image.putalpha(Image.fromarray(opacity))
    image_HWC = decoded(encode(image, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {})))
    solid_HWC = np.asarray(Image.fromarray(PIXELS).convert(mode).convert("RGB")).astype(float)
    assert (image_HWC[:, :20] == 255).all()
    np.testing.assert_array_equal(image_HWC[:, 40:], solid_HWC[:, 40:])
    half = solid_HWC[:, 20:40] * 128 / 255 + 255 * 127 / 255
    assert np.abs(image_HWC[:, 20:40] - half).max() <= 1


def test_a_palette_with_transparency_is_laid_on_white() -> None:
    image = Image.fromarray(np.array([[0, 1, 2, 3]], np.uint8), "L").convert("P")
    image.putpalette([10, 20, 30, 200, 0, 0, 0, 200, 0, 0, 0, 200])
    content = encode(image, "PNG", transparency=bytes([255, 0, 128, 255]))
    image_HWC = decoded(content)
    assert image_HWC[0, 0].tolist() == [10, 20, 30]
    assert image_HWC[0, 1].tolist() == [255, 255, 255]
    assert np.abs(image_HWC[0, 2].astype(int) - [127, 227, 127]).max() <= 1
    assert image_HWC[0, 3].tolist() == [0, 0, 200]


def test_one_transparent_colour_of_a_png_is_laid_on_white() -> None:
    rgb = encode(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8), "PNG", transparency=(1, 2, 3))
    assert decoded(rgb)[0].tolist() == [[255, 255, 255], [4, 5, 6]]
    grey = encode(np.array([[7, 8]], np.uint8), "PNG", transparency=7)
    assert decoded(grey, 1)[0, :, 0].tolist() == [255, 8]
    deep = encode(Image.fromarray(np.array([[40_000, 257]], np.uint16)), "PNG", transparency=40_000)
    assert decoded(deep, 1)[0, :, 0].tolist() == [255, 1]


def test_cmyk_becomes_rgb() -> None:
    cmyk = Image.fromarray(PIXELS).convert("CMYK")
    content = jpeg(cmyk, quality=100)
    image_HWC = decoded(content)
    np.testing.assert_array_equal(image_HWC, pillow_rgb(content))
    assert np.abs(image_HWC.astype(int) - PIXELS).mean() < 3


def test_the_first_frame_of_a_moving_image_is_taken() -> None:
    frames = [Image.fromarray(scene(seed=seed)) for seed in range(3)]
    moving = {"save_all": True, "append_images": frames[1:], "duration": 50}
    webp = encode(frames[0], "WEBP", lossless=True, **moving)
    np.testing.assert_array_equal(decoded(webp), frames[0])
    png = encode(frames[0], "PNG", **moving)
    np.testing.assert_array_equal(decoded(png), frames[0])
    gif = encode(frames[0], "GIF", **moving)
    assert np.abs(decoded(gif).astype(int) - np.asarray(frames[0])).mean() < 12


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_every_exif_orientation_is_turned_upright(kind: str, orientation: int) -> None:
    content = encode(PIXELS, kind, exif=with_orientation(orientation))
    with Image.open(io.BytesIO(content)) as image:
        expected = ImageOps.exif_transpose(image).convert("RGB")
    limits = DecodeLimits(formats=("jpeg", "png", "webp", "tiff"))
    np.testing.assert_array_equal(decode(content, name="a", limits=limits), expected)


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("size", [(2, 1), (1, 2), (1, 1)])
def test_an_image_one_pixel_wide_is_trained_on_in_every_orientation(size: tuple[int, int], orientation: int) -> None:
    content = jpeg(scene(*size), exif=with_orientation(orientation))
    view_HWC = training_transform(content, Augment(image_size=(8, 8)), np.random.default_rng(0))
    assert view_HWC.shape == (8, 8, 3)


def test_a_progressive_jpeg_gives_the_pixels_pillow_gives() -> None:
    content = jpeg(PIXELS, progressive=True)
    np.testing.assert_array_equal(decoded(content), pillow_rgb(content))
