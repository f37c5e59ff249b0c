"""A file is no image, or of a format that is not accepted: vitlab refuses it by its content, whatever its name, and names it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.images import encode, jpeg, refusal, scene
from vitlab.config.data import DecodeLimits
from vitlab.data.decode import decode

PIXELS = scene()


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


@pytest.mark.parametrize("kind", ["EPS", "PDF", "PPM", "ICO", "PCX", "TGA", "JPEG2000", "SGI"])
def test_every_format_off_the_list_is_refused_though_pillow_would_open_it(kind: str) -> None:
    refusal(encode(PIXELS, kind))


def test_tiff_passes_unless_it_is_switched_off() -> None:
    content = encode(PIXELS, "TIFF")
    assert "TIFF" in refusal(content, DecodeLimits(formats=("jpeg", "png"))).message
    np.testing.assert_array_equal(decode(content, name="a"), PIXELS)
    assert "JPEG" in refusal(jpeg(PIXELS), DecodeLimits(formats=("png",))).message
