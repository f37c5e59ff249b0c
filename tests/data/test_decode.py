"""Decoding: every image gives 8-bit pixels or a DataError that names the file."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.images import decoded, encode, jpeg, pillow_rgb, refusal, scene, with_orientation
from vitlab.config.data import DecodeLimits
from vitlab.data.decode import decode
from vitlab.errors import ConfigError, DataError

PIXELS = scene()


# ---- what comes out of what goes in


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_a_lossless_file_gives_back_its_pixels(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    np.testing.assert_array_equal(decoded(encode(PIXELS, kind, **options)), PIXELS)


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"quality": 20, "subsampling": 1}])
def test_a_jpeg_gives_the_pixels_pillow_gives(options: dict[str, object]) -> None:
    content = jpeg(PIXELS, **options)
    np.testing.assert_array_equal(decoded(content), pillow_rgb(content))


def test_pixels_are_contiguous_and_may_be_written_to() -> None:
    for content in (jpeg(PIXELS), jpeg(PIXELS, exif=with_orientation(6)), encode(PIXELS, "PNG")):
        for channels in (1, 3, 4):
            flags = decoded(content, channels).flags
            assert flags["C_CONTIGUOUS"]
            assert flags["WRITEABLE"]


def test_sixteen_bit_grey_of_either_byte_order_is_read_from_tiff() -> None:
    tiff = DecodeLimits(formats=("tiff",))
    levels = np.array([[0, 40_000, 65_535]], np.uint16)
    for order in ("<u2", ">u2"):
        content = encode(Image.fromarray(levels.astype(order)), "TIFF")
        assert decode(content, name="a.tif", limits=tiff)[0, :, 0].tolist() == [0, 156, 255]


def test_four_channels_keep_the_opacity() -> None:
    image = Image.fromarray(PIXELS).convert("RGBA")
    image.putalpha(77)
    np.testing.assert_array_equal(decoded(encode(image, "PNG"), 4), image)
    assert (decoded(jpeg(PIXELS), 4)[:, :, 3] == 255).all()


@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\x01" * 40])
def test_a_broken_exif_block_leaves_the_image_as_it_lies(exif: bytes) -> None:
    content = jpeg(PIXELS, exif=exif)
    np.testing.assert_array_equal(decoded(content), decoded(jpeg(PIXELS)))


def test_an_orientation_that_does_not_exist_is_no_orientation() -> None:
    for orientation in (0, 9, 300):
        content = jpeg(PIXELS, exif=with_orientation(orientation))
        np.testing.assert_array_equal(decoded(content), decoded(jpeg(PIXELS)))


# ---- reduced decoding


def test_without_a_target_a_jpeg_keeps_its_full_size() -> None:
    assert decoded(jpeg(scene(600, 400))).shape == (600, 400, 3)


@pytest.mark.parametrize(
    ("at_least", "shape"),
    [((300, 200), (300, 200)), ((301, 200), (600, 400)), ((150, 10), (150, 100)), ((1, 1), (75, 50)), ((601, 1), (600, 400))],
)
def test_a_jpeg_is_reduced_as_far_as_the_target_allows(at_least: tuple[int, int], shape: tuple[int, int]) -> None:
    content = jpeg(scene(600, 400))
    assert decode(content, name="a", at_least=at_least).shape[:2] == shape
    turned = jpeg(scene(400, 600), exif=with_orientation(6))
    assert decode(turned, name="a", at_least=at_least).shape[:2] == shape


@pytest.mark.parametrize("at_least", [(256, 192), (128, 96), (64, 48)])
def test_a_reduced_jpeg_is_the_image_made_smaller(at_least: tuple[int, int]) -> None:
    content = jpeg(scene(512, 384, finest=60), quality=95)
    reduced_HWC = decode(content, name="a", at_least=at_least)
    factor = 512 // at_least[0]
    averaged_HWC = pillow_rgb(content).reshape(at_least[0], factor, at_least[1], factor, 3).mean((1, 3))
    assert reduced_HWC.shape == (*at_least, 3)
    assert np.abs(reduced_HWC - averaged_HWC).mean() < 1


# ---- refusals


def test_what_a_camera_appends_after_the_end_does_no_harm() -> None:
    for options in ({}, {"progressive": True}):
        content = jpeg(PIXELS, **options)
        np.testing.assert_array_equal(decoded(content + b"trailer" * 30), decoded(content))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 100.0, 255.0]], np.float32), [0, 100, 255]),
        (np.array([[-1.0, 0.0, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[7.0, 7.0, -7.0]], np.float32), [255, 255, 0]),
        (np.array([[0, 32768, 65535]], np.int32), [0, 128, 255]),
        (np.array([[0, 1, 255]], np.int32), [0, 1, 255]),
        (np.array([[-100, 0, 100_000]], np.int32), [0, 0, 255]),
    ],
)
def test_floating_point_and_32_bit_tiffs_are_scaled_as_documented(values: np.ndarray, expected: list[int]) -> None:
    content = encode(Image.fromarray(values), "TIFF")
    assert decode(content, name="a.tif", channels=1)[0, :, 0].tolist() == expected
    assert decode(content, name="a.tif")[0, :, 2].tolist() == expected


def test_a_tiff_that_holds_nan_is_refused_and_one_of_several_pages_is_its_first() -> None:
    assert "not finite" in refusal(encode(Image.fromarray(np.array([[np.nan, 1.0]], np.float32)), "TIFF")).message
    made = io.BytesIO()
    first, second = Image.new("L", (3, 2), 10), Image.new("L", (3, 2), 20)
    first.save(made, "TIFF", save_all=True, append_images=[second])
    assert set(decode(made.getvalue(), name="a.tif").ravel().tolist()) == {10}


def test_a_number_of_channels_that_no_image_has_is_refused() -> None:
    with pytest.raises(DataError, match="grey or colour image; the model takes 2"):
        decoded(jpeg(PIXELS), 2)
    with pytest.raises(ConfigError, match="channels=0"):
        decoded(jpeg(PIXELS), 0)


def test_the_limit_is_the_callers() -> None:
    content = jpeg(PIXELS)
    assert decode(content, name="a", limits=DecodeLimits(max_pixels=48 * 64)).shape == (48, 64, 3)
    assert "48x64" in refusal(content, DecodeLimits(max_pixels=48 * 64 - 1)).message
    assert "48x64" in refusal(encode(PIXELS, "TIFF"), DecodeLimits(max_pixels=48 * 64 - 1, formats=("tiff",))).message


# ---- hostile bytes

SEEDS = [
    jpeg(scene(24, 32)),
    jpeg(scene(24, 32), progressive=True, exif=with_orientation(6)),
    encode(scene(24, 32), "PNG"),
    encode(Image.fromarray(scene(24, 32)).convert("P"), "PNG", transparency=bytes(range(256))),
    encode(scene(24, 32), "WEBP"),
    encode(scene(24, 32), "BMP"),
    encode(scene(24, 32), "GIF"),
    encode(scene(24, 32), "TIFF"),
]


@pytest.mark.filterwarnings("error")  # Pillow warns of damaged metadata: no reason for another exception
@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SEEDS), st.data())
def test_damaged_bytes_give_pixels_or_a_data_error(content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 8))):
        # Headers are where a flipped byte can do most.
        where = data.draw(st.integers(0, min(200, len(content) - 1)) | st.integers(0, len(content) - 1))
        damaged[where] = data.draw(st.integers(0, 255))
    limits = DecodeLimits(formats=("jpeg", "png", "webp", "bmp", "gif", "tiff"), max_pixels=10**6)
    with contextlib.suppress(DataError):
        image_HWC = decode(bytes(damaged), name="cat.jpg", limits=limits)
        assert image_HWC.dtype == np.uint8
        assert image_HWC.shape[2] == 3


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", *(seed[:12] for seed in SEEDS)]))
def test_garbage_is_refused(tail: bytes, head: bytes) -> None:
    refusal(head + tail)
