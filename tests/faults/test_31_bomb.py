"""A small file claims a huge image: vitlab refuses it by its header, before it takes memory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import processes
from tests.data.images import encode, refusal, scene
from vitlab.config.data import DecodeLimits
from vitlab.data.decode import decode
from vitlab.errors import DataError

PIXELS = scene()


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
def test_an_image_above_pillows_own_warning_line_passes_in_silence_when_the_limit_allows_it() -> None:
    content = encode(Image.new("1", (9_500, 9_500)), "PNG")
    with pytest.raises(DataError, match="limit"):
        decode(content, name="a", channels=1)
    assert decode(content, name="a", channels=1, limits=DecodeLimits(max_pixels=10**8, max_memory=2**33)).shape == (9_500, 9_500, 1)
