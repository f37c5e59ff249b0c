"""Decoding: every image gives 8-bit pixels or a DataError that names the file."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tests import processes
from tests.data.images import Pixels, encode, jpeg, pillow_rgb, scene, with_orientation
from vitlab.config.data import DecodeLimits
from vitlab.data.decode import decode
from vitlab.errors import ConfigError, DataError

PICTURE = scene()


def open_gate(content: bytes, channels: int = 3) -> Pixels:
    return decode(content, name="cat.jpg", channels=channels)


def refusal(content: bytes, limits: DecodeLimits | None = None) -> DataError:
    with pytest.raises(DataError) as caught:
        decode(content, name="cat.jpg", limits=limits or DecodeLimits())
    assert "cat.jpg" in caught.value.message
    assert caught.value.hint
    return caught.value


# ---- what comes out of what goes in


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_a_lossless_file_gives_back_its_pixels(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    np.testing.assert_array_equal(open_gate(encode(PICTURE, kind, **options)), PICTURE)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 20, "subsampling": 1}])
def test_a_jpeg_gives_the_pixels_pillow_gives(options: dict[str, object]) -> None:
    content = jpeg(PICTURE, **options)
    np.testing.assert_array_equal(open_gate(content), pillow_rgb(content))


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (3, 2), (17, 16)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "WEBP"])
def test_any_size_passes_from_one_pixel_to_a_strip(kind: str, size: tuple[int, int]) -> None:
    content = encode(scene(*size), kind)
    image_HWC = open_gate(content)
    assert image_HWC.shape == (*size, 3)
    np.testing.assert_array_equal(image_HWC, pillow_rgb(content))


def test_pixels_are_contiguous_and_may_be_written_to() -> None:
    for content in (jpeg(PICTURE), jpeg(PICTURE, exif=with_orientation(6)), encode(PICTURE, "PNG")):
        for channels in (1, 3, 4):
            flags = open_gate(content, channels).flags
            assert flags["C_CONTIGUOUS"]
            assert flags["WRITEABLE"]


def test_sixteen_bit_grey_is_scaled_and_not_clipped() -> None:
    levels = np.array([[0, 128, 257, 40_000, 65_535]], np.uint16)
    grey_HWC = open_gate(encode(Image.fromarray(levels), "PNG"))
    assert grey_HWC[0, :, 0].tolist() == [0, 0, 1, 156, 255]
    assert (grey_HWC == grey_HWC[:, :, :1]).all()


def test_sixteen_bit_grey_of_either_byte_order_is_read_from_tiff() -> None:
    tiff = DecodeLimits(formats=("tiff",))
    levels = np.array([[0, 40_000, 65_535]], np.uint16)
    for order in ("<u2", ">u2"):
        content = encode(Image.fromarray(levels.astype(order)), "TIFF")
        assert decode(content, name="a.tif", limits=tiff)[0, :, 0].tolist() == [0, 156, 255]


def test_black_and_white_and_grey_become_equal_channels() -> None:
    grey = Image.fromarray(PICTURE).convert("L")
    for image in (grey, grey.convert("1")):
        expected_HW = np.asarray(image.convert("L"))
        for channels in (1, 3):
            np.testing.assert_array_equal(
                open_gate(encode(image, "PNG"), channels), np.repeat(expected_HW[:, :, None], channels, 2)
            )


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_what_is_transparent_is_laid_on_white(mode: str, kind: str) -> None:
    image = Image.fromarray(PICTURE).convert(mode)
    opacity = np.full(PICTURE.shape[:2], 255, np.uint8)
    opacity[:, :20], opacity[:, 20:40] = 0, 128
    image.putalpha(Image.fromarray(opacity))
    image_HWC = open_gate(encode(image, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {})))
    solid_HWC = np.asarray(Image.fromarray(PICTURE).convert(mode).convert("RGB")).astype(float)
    assert (image_HWC[:, :20] == 255).all()
    np.testing.assert_array_equal(image_HWC[:, 40:], solid_HWC[:, 40:])
    half = solid_HWC[:, 20:40] * 128 / 255 + 255 * 127 / 255
    assert np.abs(image_HWC[:, 20:40] - half).max() <= 1


def test_a_palette_with_transparency_is_laid_on_white() -> None:
    image = Image.fromarray(np.array([[0, 1, 2, 3]], np.uint8), "L").convert("P")
    image.putpalette([10, 20, 30, 200, 0, 0, 0, 200, 0, 0, 0, 200])
    content = encode(image, "PNG", transparency=bytes([255, 0, 128, 255]))
    image_HWC = open_gate(content)
    assert image_HWC[0, 0].tolist() == [10, 20, 30]
    assert image_HWC[0, 1].tolist() == [255, 255, 255]
    assert np.abs(image_HWC[0, 2].astype(int) - [127, 227, 127]).max() <= 1
    assert image_HWC[0, 3].tolist() == [0, 0, 200]


def test_one_transparent_colour_of_a_png_is_laid_on_white() -> None:
    rgb = encode(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8), "PNG", transparency=(1, 2, 3))
    assert open_gate(rgb)[0].tolist() == [[255, 255, 255], [4, 5, 6]]
    grey = encode(np.array([[7, 8]], np.uint8), "PNG", transparency=7)
    assert open_gate(grey, 1)[0, :, 0].tolist() == [255, 8]
    deep = encode(Image.fromarray(np.array([[40_000, 257]], np.uint16)), "PNG", transparency=40_000)
    assert open_gate(deep, 1)[0, :, 0].tolist() == [255, 1]


def test_cmyk_becomes_rgb() -> None:
    cmyk = Image.fromarray(PICTURE).convert("CMYK")
    content = jpeg(cmyk, quality=100)
    image_HWC = open_gate(content)
    np.testing.assert_array_equal(image_HWC, pillow_rgb(content))
    assert np.abs(image_HWC.astype(int) - PICTURE).mean() < 3


def test_the_first_frame_of_a_moving_image_is_taken() -> None:
    frames = [Image.fromarray(scene(seed=seed)) for seed in range(3)]
    moving = {"save_all": True, "append_images": frames[1:], "duration": 50}
    webp = encode(frames[0], "WEBP", lossless=True, **moving)
    np.testing.assert_array_equal(open_gate(webp), frames[0])
    png = encode(frames[0], "PNG", **moving)
    np.testing.assert_array_equal(open_gate(png), frames[0])
    gif = encode(frames[0], "GIF", **moving)
    assert np.abs(open_gate(gif).astype(int) - np.asarray(frames[0])).mean() < 12


def test_four_channels_keep_the_opacity() -> None:
    image = Image.fromarray(PICTURE).convert("RGBA")
    image.putalpha(77)
    np.testing.assert_array_equal(open_gate(encode(image, "PNG"), 4), image)
    assert (open_gate(jpeg(PICTURE), 4)[:, :, 3] == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_every_exif_orientation_is_turned_upright(kind: str, orientation: int) -> None:
    content = encode(PICTURE, kind, exif=with_orientation(orientation))
    with Image.open(io.BytesIO(content)) as image:
        expected = ImageOps.exif_transpose(image).convert("RGB")
    limits = DecodeLimits(formats=("jpeg", "png", "webp", "tiff"))
    np.testing.assert_array_equal(decode(content, name="a", limits=limits), expected)


@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\x01" * 40])
def test_a_broken_exif_block_leaves_the_image_as_it_lies(exif: bytes) -> None:
    content = jpeg(PICTURE, exif=exif)
    np.testing.assert_array_equal(open_gate(content), open_gate(jpeg(PICTURE)))


def test_an_orientation_that_does_not_exist_is_no_orientation() -> None:
    for orientation in (0, 9, 300):
        content = jpeg(PICTURE, exif=with_orientation(orientation))
        np.testing.assert_array_equal(open_gate(content), open_gate(jpeg(PICTURE)))


# ---- reduced decoding


def test_without_a_target_a_jpeg_keeps_its_full_size() -> None:
    assert open_gate(jpeg(scene(600, 400))).shape == (600, 400, 3)


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


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
        (b"\n  <html lang=en>", "HTML"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "EPS"),
        (b"8BPS\x00\x01" + bytes(40), "Photoshop"),
        (b"SIMPLE  =                    T" + b" " * 50, "FITS"),
        (b"%PDF-1.7\n", "PDF"),
        (b"PK\x03\x04" + bytes(30), "zip"),
        (b"\x00\x00\x00\x18ftypheic" + bytes(20), "HEIC"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"P6 2 2 255 " + bytes(12), "no known image format"),
        (bytes(range(256)), "no known image format"),
        (b"BM hello, this is text", "no known image format"),
        (b"\xff\xd8\xff", "cut short"),
        (b"\x89PNG\r\n\x1a\n", "broken"),
        (b"GIF89a", "cut short"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "broken"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00", "cut short"),
    ],
)
def test_what_is_no_image_is_refused_by_its_content_and_named(content: bytes, says: str) -> None:
    assert says in refusal(content).message


@pytest.mark.parametrize("kind", ["EPS", "PDF", "TIFF", "PPM", "ICO", "PCX", "TGA", "JPEG2000", "SGI"])
def test_every_format_off_the_list_is_refused_though_pillow_would_open_it(kind: str) -> None:
    refusal(encode(PICTURE, kind))


def test_tiff_passes_once_it_is_switched_on_and_only_then() -> None:
    content = encode(PICTURE, "TIFF")
    assert "TIFF" in refusal(content).message
    np.testing.assert_array_equal(decode(content, name="a", limits=DecodeLimits(formats=("tiff",))), PICTURE)
    assert "JPEG" in refusal(jpeg(PICTURE), DecodeLimits(formats=("png",))).message


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_a_file_cut_short_is_refused(kind: str, share: float) -> None:
    content = encode(scene(120, 160), kind)
    refusal(content[: int(len(content) * share)])


def test_a_jpeg_without_its_end_is_refused_even_when_zeros_fill_the_place() -> None:
    for options in ({}, {"progressive": True}):
        content = jpeg(PICTURE, **options)
        assert "cut short" in refusal(content[:-2]).message
        assert "cut short" in refusal(content[:-200] + bytes(200)).message


def test_what_a_camera_appends_after_the_end_does_no_harm() -> None:
    for options in ({}, {"progressive": True}):
        content = jpeg(PICTURE, **options)
        np.testing.assert_array_equal(open_gate(content + b"trailer" * 30), open_gate(content))


@pytest.mark.parametrize("mode", ["F", "I"])
def test_numbers_that_are_no_levels_are_refused(mode: str) -> None:
    content = encode(Image.fromarray(PICTURE).convert("L").convert(mode), "TIFF")
    error = refusal(content, DecodeLimits(formats=("tiff",)))
    assert "8 bits" in str(error.hint)


def test_a_number_of_channels_that_no_image_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="channels=2"):
        open_gate(jpeg(PICTURE), 2)


# ---- bombs


def forged(kind: str, side: int) -> bytes:
    """A small file whose header claims side x side pixels."""
    small = encode(np.zeros((8, 8), np.uint8), kind, **({"lossless": True} if kind == "WEBP" else {}))
    match kind:
        case "PNG":
            return small[:16] + side.to_bytes(4, "big") * 2 + small[24:]
        case "BMP":
            return small[:18] + side.to_bytes(4, "little") * 2 + small[26:]
        case "GIF":
            return small[:6] + side.to_bytes(2, "little") * 2 + small[10:]
        case "JPEG":
            at = small.index(b"\xff\xc0") + 5
            return small[:at] + side.to_bytes(2, "big") * 2 + small[at + 4 :]
        case _:
            at = small.index(b"VP8L") + 9
            bits = (side - 1) | (side - 1) << 14
            return small[:at] + bits.to_bytes(4, "little") + small[at + 4 :]


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "JPEG", "WEBP"])
def test_a_size_beyond_the_limit_is_refused_from_the_header(kind: str) -> None:
    assert "13000x13000" in refusal(forged(kind, 13_000)).message


def test_the_limit_is_the_callers() -> None:
    content = jpeg(PICTURE)
    assert decode(content, name="a", limits=DecodeLimits(max_pixels=48 * 64)).shape == (48, 64, 3)
    assert "48x64" in refusal(content, DecodeLimits(max_pixels=48 * 64 - 1)).message
    assert "48x64" in refusal(encode(PICTURE, "TIFF"), DecodeLimits(max_pixels=48 * 64 - 1, formats=("tiff",))).message


def test_a_gif_frame_larger_than_its_canvas_still_meets_the_limit() -> None:
    content = encode(np.zeros((400, 400), np.uint8), "GIF")
    smaller = content[:6] + (8).to_bytes(2, "little") * 2 + content[10:]
    refusal(smaller, DecodeLimits(max_pixels=1000))


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", (13_000, 13_000)).save(path)
    assert path.stat().st_size < 100_000
    code = f"""
from vitlab.data.decode import decode
from vitlab.errors import DataError
content = open({str(path)!r}, "rb").read()
before = int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])
try:
    decode(content, name="bomb.png")
except DataError:
    print((int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) - before) / 1024)
"""
    done = processes.run([sys.executable, "-c", code])
    assert float(done.stdout) < 50  # megabytes


@pytest.mark.filterwarnings("error")
def test_a_image_above_pillows_own_warning_line_passes_in_silence_when_the_limit_allows_it() -> None:
    content = encode(Image.new("1", (9_500, 9_500)), "PNG")
    with pytest.raises(DataError, match="limit"):
        decode(content, name="a", channels=1)
    assert decode(content, name="a", channels=1, limits=DecodeLimits(max_pixels=10**8)).shape == (9_500, 9_500, 1)


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
