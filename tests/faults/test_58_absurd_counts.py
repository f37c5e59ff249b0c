"""An image has thousands of scans, chunks or blocks, each of which takes time: vitlab refuses it by counting them first."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.data.images import decoded, encode, jpeg, refusal, scene
from vitlab.data.jpeg import has_too_many_scans, most_scans, read_jpeg_header

PIXELS = scene()
MOST_SCANS = 64


def with_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan is repeated until there are so many."""
    content = jpeg(PIXELS, progressive=True)
    last = content.rindex(b"\xff\xda")
    return content[:-2] + content[last:-2] * (count - content.count(b"\xff\xda")) + b"\xff\xd9"


@pytest.mark.parametrize("count", [MOST_SCANS + 1, 1000, 20_000])
def test_a_progressive_jpeg_with_more_scans_than_encoders_write_is_refused(count: int) -> None:
    assert f"more than {MOST_SCANS} scans" in refusal(with_scans(count)).message


def test_the_scans_of_encoders_pass() -> None:
    content = jpeg(PIXELS, progressive=True)
    assert 5 < content.count(b"\xff\xda") < 20
    assert decoded(content).shape == PIXELS.shape
    assert decoded(with_scans(MOST_SCANS)).shape == PIXELS.shape


def test_a_large_image_may_have_fewer_scans_and_always_those_of_encoders() -> None:
    header = read_jpeg_header(jpeg(PIXELS, progressive=True))
    counts = [most_scans(replace(header, height=side, width=side)) for side in (100, 4_000, 6_000, 9_000, 60_000)]
    assert counts == [64, 64, 41, 18, 16]


def test_what_is_appended_to_a_jpeg_is_not_counted() -> None:
    content = jpeg(PIXELS, progressive=True)
    np.testing.assert_array_equal(decoded(content + b"\xff\xda\0\0" * 1000), decoded(content))


def test_a_jpeg_in_one_scan_is_not_searched() -> None:
    class Unsearched(bytes):
        def count(self, *_: object) -> int:
            raise AssertionError("nearly all images are coded in one scan: their check costs nothing")

    content = Unsearched(jpeg(PIXELS))
    assert not has_too_many_scans(content, read_jpeg_header(content))


@pytest.mark.parametrize("filler", [b"\xff\xfe\0\2", b"\xff" * 400])
def test_a_jpeg_with_absurdly_many_segments_or_fill_bytes_is_read_at_once(filler: bytes) -> None:
    content = jpeg(PIXELS)
    changed = content[:2] + filler * 10_000 + content[2:]
    if filler == b"\xff" * 400:  # four million fill bytes are allowed, and skipped in one step
        np.testing.assert_array_equal(decoded(changed), decoded(content))
    else:
        assert "more than 4,096 segments" in refusal(changed).message


def chunk(name: bytes, body: bytes = b"") -> bytes:
    return len(body).to_bytes(4) + name + body + zlib.crc32(name + body).to_bytes(4)


@pytest.mark.parametrize("name", [b"teXt", b"fdAT", b"IDAT"])
def test_a_png_with_absurdly_many_chunks_is_refused(name: bytes) -> None:
    content = encode(PIXELS, "PNG")
    assert "more than 65,536 chunks" in refusal(content[:33] + chunk(name) * 70_000 + content[33:]).message
    np.testing.assert_array_equal(decoded(content[:33] + chunk(b"teXt") * 100 + content[33:]), PIXELS)


def test_a_gif_with_absurdly_many_blocks_before_its_first_frame_is_refused() -> None:
    content = encode(PIXELS, "GIF")
    start = 13 + (3 << (content[10] & 7) + 1)
    comment = b"!\xfe" + b"\1a" * 200_000 + b"\0"
    assert "more than 4,096 blocks" in refusal(content[:start] + comment + content[start:]).message
    np.testing.assert_array_equal(decoded(content[:start] + b"!\xfe\1a\0" * 100 + content[start:]), decoded(content))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_many_frames_only_the_first_is_read(kind: str) -> None:
    frames = [Image.fromarray(scene(8, 8, seed=seed)) for seed in range(200)]
    moving = encode(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    cut = moving[: len(moving) // 2] if kind == "GIF" else moving
    assert decoded(cut).shape == (8, 8, 3)
