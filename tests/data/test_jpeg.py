"""Partial decoding of a JPEG gives the bits of the whole; both decoders give the same bits and the same errors."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.images import jpeg, pillow_rgb, scene, with_orientation
from vitlab.config.data import DecodeLimits, JpegDecoder
from vitlab.data import jpeg as reader
from vitlab.data.decode import check, decode, decode_box, snap, upright, upright_size
from vitlab.data.jpeg import FULL, REDUCTIONS, JpegScale, Reduction, decode_rows, is_whole, orientation_of, read_jpeg_header
from vitlab.errors import ConfigError, DataError

CODINGS: dict[str, dict[str, object]] = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 3},
    "restart rows": {"restart_marker_rows": 1},
    "coarse": {"quality": 8},
    "fine": {"quality": 100, "subsampling": 0},
    "rgb": {"keep_rgb": True},
}
BOTH: tuple[JpegDecoder, ...] = ("pillow", "simplejpeg")
DECODERS = BOTH if find_spec("simplejpeg") else BOTH[:1]
needs_both = pytest.mark.skipif(len(DECODERS) < 2, reason="simplejpeg is not installed: pip install 'vitlab[jpeg]'")


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("coding", CODINGS)
def test_the_upper_rows_alone_are_those_of_the_whole_image(coding: str, decoder: JpegDecoder) -> None:
    content = jpeg(scene(130, 70), **CODINGS[coding])
    header, whole_HWC = read_jpeg_header(content), pillow_rgb(content)
    for rows in (1, 7, 8, 15, 16, 17, 40, 63, 64, 65, 100, 129, 130):
        upper_HWC = decode_rows(content, header, rows=rows, decoder=decoder)
        assert upper_HWC.shape[0] >= rows
        np.testing.assert_array_equal(upper_HWC[:rows], whole_HWC[:rows])


def test_rows_that_are_not_needed_are_not_decoded() -> None:
    content = jpeg(scene(300, 64))
    for decoder in DECODERS:
        assert decode_rows(content, read_jpeg_header(content), rows=20, decoder=decoder).shape[0] == 32
    # In several passes every pass covers the whole height: nothing could be left early.
    content = jpeg(scene(300, 64), progressive=True)
    assert decode_rows(content, read_jpeg_header(content), rows=20).shape[0] == 300


@needs_both
@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("coding", CODINGS)
def test_both_decoders_give_the_same_bits_at_every_scale(coding: str, reduction: Reduction, rough: bool) -> None:
    scale = JpegScale(reduction, rough)
    for height, width in ((160, 233), (239, 128), (500, 9)):
        content = jpeg(scene(height, width), **CODINGS[coding])
        header = read_jpeg_header(content)
        for rows in (reduction, height // 3, height):
            mine, other = (decode_rows(content, header, rows=rows, scale=scale, decoder=d) for d in DECODERS)
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("coding", CODINGS)
def test_rough_decoding_is_close_and_its_upper_rows_are_those_of_the_whole(coding: str) -> None:
    content = jpeg(scene(130, 70, finest=20), **CODINGS[coding])
    header = read_jpeg_header(content)
    rough = JpegScale(rough=True)
    whole_HWC = decode_rows(content, header, rows=130, scale=rough)
    assert np.abs(whole_HWC.astype(int) - pillow_rgb(content)).mean() < 2.5
    for rows in (1, 16, 33, 100):
        np.testing.assert_array_equal(decode_rows(content, header, rows=rows, scale=rough)[:rows], whole_HWC[:rows])


def test_a_grey_jpeg_has_equal_channels_in_both_decoders() -> None:
    content = jpeg(Image.fromarray(scene()).convert("L"))
    for decoder in DECODERS:
        image_HWC = decode(content, name="a", limits=DecodeLimits(jpeg_decoder=decoder))
        np.testing.assert_array_equal(image_HWC, pillow_rgb(content))


FRAGILE = [jpeg(scene(40, 48), **CODINGS[coding]) for coding in ("4:2:0", "progressive", "restarts", "4:4:4")]


@needs_both
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FRAGILE), st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=5))
def test_of_damaged_bytes_both_decoders_make_the_same(content: bytes, damage: list[tuple[float, int]]) -> None:
    damaged = bytearray(content)
    for place, value in damage:
        damaged[int(place * len(damaged))] = value
    outcomes = []
    for decoder in DECODERS:
        try:
            limits = DecodeLimits(max_pixels=10**6, jpeg_decoder=decoder)
            outcomes.append(decode(bytes(damaged), name="a", limits=limits).tolist())
        except DataError as error:
            outcomes.append(error.message)
    assert outcomes[0] == outcomes[1]


def test_a_fatal_fault_never_lets_old_memory_through() -> None:
    content = jpeg(scene(40, 48))
    at = content.index(b"\xff\xc4") + 5
    for decoder in DECODERS:
        with pytest.raises(DataError, match="cat"):
            decode(content[:at] + b"\xff" * 16 + content[at + 16 :], name="cat", limits=DecodeLimits(jpeg_decoder=decoder))


def test_naming_a_decoder_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_simplejpeg", lambda: None)
    content = jpeg(scene())
    with pytest.raises(ConfigError, match="simplejpeg"):
        decode(content, name="a", limits=DecodeLimits(jpeg_decoder="simplejpeg"))
    np.testing.assert_array_equal(decode(content, name="a"), pillow_rgb(content))


# ---- boxes


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 8), st.sampled_from(sorted(CODINGS)))
def test_a_box_is_the_box_of_the_whole_upright_image(data: st.DataObject, orientation: int, coding: str) -> None:
    content = jpeg(scene(90, 50), exif=with_orientation(orientation), **CODINGS[coding])
    limits = DecodeLimits()
    header = check(content, name="a", limits=limits)
    whole_HWC = decode(content, name="a")
    height, width = upright_size(header)
    assert whole_HWC.shape == (height, width, 3)
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    box = top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    cut_HWC = decode_box(content, header, box, FULL, name="a", limits=limits)
    np.testing.assert_array_equal(cut_HWC, whole_HWC[top : top + box[2], left : left + box[3]])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("wanted", [(100, 60), (50, 30), (25, 15)])
def test_a_reduced_box_lies_where_the_full_one_does(orientation: int, wanted: tuple[int, int]) -> None:
    content = jpeg(scene(600, 560, finest=80), exif=with_orientation(orientation), quality=95)
    header = check(content, name="a", limits=DecodeLimits())
    limits = DecodeLimits()
    box, reduction = snap((37, 101, 403, 301), wanted, header)
    assert reduction == {100: 4, 50: 8, 25: 8}[wanted[0]]
    assert np.abs(np.subtract(box, (37, 101, 403, 301))).max() <= 2 * reduction
    full_HWC = decode_box(content, header, box, FULL, name="a", limits=limits)
    reduced_HWC = decode_box(content, header, box, JpegScale(reduction), name="a", limits=limits)
    height, width, _ = full_HWC.shape
    assert reduced_HWC.shape == (height // reduction, width // reduction, 3)
    averaged_HWC = full_HWC.reshape(height // reduction, reduction, width // reduction, reduction, 3).mean((1, 3))
    assert np.abs(averaged_HWC - reduced_HWC).mean() < 1


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 8))
def test_snapping_keeps_a_box_inside_and_moves_it_by_less_than_two_pixels_of_the_view(
    data: st.DataObject, orientation: int
) -> None:
    content = jpeg(np.zeros((301, 403, 3), np.uint8), exif=with_orientation(orientation))
    header = check(content, name="a", limits=DecodeLimits())
    size = upright_size(header)
    corner = data.draw(st.tuples(st.integers(0, size[0] - 1), st.integers(0, size[1] - 1)))
    sides = data.draw(st.tuples(st.integers(1, size[0] - corner[0]), st.integers(1, size[1] - corner[1])))
    wanted = data.draw(st.tuples(st.integers(1, 200), st.integers(1, 200)))
    for known in (header, None):
        (top, left, height, width), reduction = snap((*corner, *sides), wanted, known)
        assert 0 <= top <= size[0] - height
        assert 0 <= left <= size[1] - width
        for before, after, length, axis in ((corner[0], top, height, 0), (corner[1], left, width, 1)):
            if reduction == 1:
                assert (before, sides[axis]) == (after, length)
            else:
                assert length // reduction >= wanted[axis]
                assert abs(before - after) < 2 * reduction
                assert 0 <= sides[axis] - length < reduction


# ---- headers


def test_the_end_is_found_behind_tables_that_look_like_it() -> None:
    content = jpeg(scene(), progressive=True)
    scan = read_jpeg_header(content).scan_at
    comment = b"\xff\xfe\x00\x06\xff\xd9\xff\xd9"
    second = content.index(b"\xff\xda", scan + 2)
    cheating = content[:second] + comment + content[second:]
    assert is_whole(cheating, read_jpeg_header(cheating))
    assert not is_whole(cheating[: second + len(comment) + 20], read_jpeg_header(cheating))


def test_a_thumbnail_inside_the_exif_block_is_not_taken_for_the_image() -> None:
    thumbnail = jpeg(scene(8, 8))
    content = jpeg(scene(40, 30), exif=with_orientation(6) + thumbnail)
    header = read_jpeg_header(content)
    assert (header.height, header.width, orientation_of(header.exif)) == (40, 30, 6)
    np.testing.assert_array_equal(decode(content, name="a"), upright(pillow_rgb(content), 6))


def test_the_header_has_size_and_sampling() -> None:
    for coding, mcu_height in (("4:4:4", 8), ("4:2:2", 8), ("4:2:0", 16)):
        header = read_jpeg_header(jpeg(scene(33, 65), **CODINGS[coding]))
        assert (header.height, header.width, header.components, header.mcu_height) == (33, 65, 3, mcu_height)
        assert header.plain
        assert header.one_scan
    assert not read_jpeg_header(jpeg(scene(), progressive=True)).one_scan
    assert not read_jpeg_header(jpeg(Image.fromarray(scene()).convert("CMYK"))).plain


@pytest.mark.data
def test_on_real_images_both_decoders_and_the_row_limit_give_pillows_bits(data_folder: Path) -> None:
    with zipfile.ZipFile(data_folder / "imagenet_val_1000.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith((".jpg", ".JPEG")))[::10]
        contents = [archive.read(name) for name in names]
    assert len(contents) == 100
    for content in contents:
        expected_HWC = pillow_rgb(content)
        header = read_jpeg_header(content)
        for decoder in DECODERS:
            limits = DecodeLimits(jpeg_decoder=decoder)
            np.testing.assert_array_equal(decode(content, name="a", limits=limits), expected_HWC)
            rows = header.height // 2
            upper_HWC = decode_rows(content, header, rows=rows, decoder=decoder)
            np.testing.assert_array_equal(upper_HWC[:rows], expected_HWC[:rows])
