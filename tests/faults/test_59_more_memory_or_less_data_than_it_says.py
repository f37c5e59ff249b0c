"""An image needs far more memory than its file, or its data is missing: vitlab refuses it by its header, before it is decoded."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import processes
from tests.data.images import decoded, encode, jpeg, refusal, scene
from vitlab.config.data import DecodeLimits
from vitlab.data.decode import decode

PIXELS = scene()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_a_file_cut_short_is_refused(kind: str, share: float) -> None:
    content = encode(scene(120, 160), kind)
    refusal(content[: int(len(content) * share)])


def test_a_jpeg_without_its_end_is_refused_even_when_zeros_fill_the_place() -> None:
    for options in ({}, {"progressive": True}):
        content = jpeg(PIXELS, **options)
        assert "cut short" in refusal(content[:-2]).message
        assert "cut short" in refusal(content[:-200] + bytes(200)).message


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 30}])
def test_a_jpeg_whose_data_is_nearly_all_missing_is_cut_short_though_it_has_its_end(options: dict[str, object]) -> None:
    content = jpeg(scene(240, 320), **options)
    start = content.index(b"\xff\xda")
    scan = start + 2 + int.from_bytes(content[start + 2 : start + 4])
    assert "cut short" in refusal(content[: scan + 8] + b"\xff\xd9").message


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"optimize": True}, {"subsampling": 0, "optimize": True}])
@pytest.mark.parametrize("size", [(1, 1), (8, 8), (17, 1000), (1500, 1500)])
def test_the_smallest_jpeg_of_any_size_has_its_data(size: tuple[int, int], options: dict[str, object]) -> None:
    for mode in ("RGB", "L", "CMYK"):
        assert decoded(jpeg(Image.new(mode, size), quality=1, **options)).shape == (*size[::-1], 3)


def test_an_image_that_takes_more_memory_than_its_budget_is_refused_from_the_header() -> None:
    content = encode(Image.new("RGBA", (8_000, 8_000)), "WEBP", lossless=True, method=0, quality=0)
    assert len(content) < 10_000
    assert "1,664 MB; the limit is" in refusal(content).message
    assert f"for a file of {len(content):,} bytes" in refusal(content).message  # a quarter of the budget, and more for each byte
    assert "the limit is 1,074 MB" in refusal(content + bytes(10**6)).message
    small = encode(PIXELS, "WEBP", lossless=True)
    needed = PIXELS[:, :, 0].size * 26
    assert "takes up to" in refusal(small, DecodeLimits(max_memory=needed - 1)).message
    np.testing.assert_array_equal(decode(small, name="a", limits=DecodeLimits(max_memory=needed)), PIXELS)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process's memory is read from /proc")
def test_no_format_takes_more_than_its_budget_says(tmp_path: Path) -> None:
    side, files = 2_000, list[Path]()
    for kind, mode, options in (
        ("JPEG", "RGB", {}), ("JPEG", "RGB", {"progressive": True, "subsampling": 0}), ("JPEG", "CMYK", {}), ("PNG", "RGBA", {}),
        ("PNG", "LA", {}), ("WEBP", "RGBA", {"lossless": True, "method": 0}), ("BMP", "RGB", {}), ("GIF", "P", {"transparency": 0}),
    ):  # fmt: skip
        files.append(tmp_path / f"{len(files)}.{kind}")
        files[-1].write_bytes(encode(Image.new(mode, (side, side)), kind, **options))
    done = processes.run([sys.executable, "-c", _PEAKS, *files])
    for file, line in zip(files, done.stdout.splitlines(), strict=True):
        taken, allowed = map(int, line.split())
        assert taken <= allowed * 1.1 + 2**22, file  # the interpreter takes some for itself


_PEAKS = """
import sys
from pathlib import Path
from vitlab.config.data import DecodeLimits
from vitlab.data.decode import _bytes_per_pixel, check, decode

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024

contents = [Path(name).read_bytes() for name in sys.argv[1:]]
for content in contents:
    header = check(content, name="a", limits=DecodeLimits())
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = peak()
    decode(content, name="a")
    print(peak() - before, header.height * header.width * _bytes_per_pixel(header))
"""


@pytest.mark.parametrize("side", [64, 60_000])
def test_a_tile_of_a_tiff_that_is_larger_than_any_image_is_refused(side: int) -> None:
    data = zlib.compress(bytes(64 * 64))
    entries = {256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side, 324: 200, 325: len(data)}
    table = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries.items())
    content = struct.pack("<4sIH", b"II*\0", 8, len(entries)) + table + bytes(4)
    content = content.ljust(200, b"\0") + data
    limits = DecodeLimits(formats=("tiff",))
    if side == 64:
        assert decode(content, name="a", limits=limits).shape == (8, 8, 3)
    else:
        assert "a tile of cat.jpg has 60000x60000 pixels" in refusal(content, limits).message
