"""Small images for tests of decoding: smooth enough for JPEG, and different in every orientation; and decoding them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from vitlab.config.data import DecodeLimits
from vitlab.data.decode import decode
from vitlab.errors import DataError

Pixels = NDArray[np.uint8]


def scene(height: int = 48, width: int = 64, *, seed: int = 0, finest: int = 5) -> Pixels:
    """An RGB image, uint8 [H, W, 3]: waves of about `finest` pixels and longer in each channel, a bright corner top left."""
    rng = np.random.default_rng([seed, height, width])
    y_H1, x_1W = np.arange(height)[:, None], np.arange(width)[None, :]
    channels = []
    for _ in range(3):
        grey_HW = np.full((height, width), 110.0)
        for length in (finest, 3 * finest, 8 * finest):
            down, across, phase = rng.normal(size=3)
            grey_HW += 22 * np.sin((down * y_H1 + across * x_1W) * 2 * np.pi / length + phase * 6)
        channels.append(grey_HW)
    image_HWC = np.stack(channels, axis=2)
    image_HWC[: height // 4, : width // 4] += 80
    pixels_HWC: Pixels = np.clip(image_HWC, 0, 255).astype(np.uint8)
    return pixels_HWC


def encode(pixels: Pixels | Image.Image, kind: str, /, **options: object) -> bytes:
    """An image as a file of Pillow's format `kind`."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def jpeg(pixels: Pixels | Image.Image, **options: object) -> bytes:
    """An image as a JPEG file."""
    return encode(pixels, "JPEG", **{"quality": 90, **options})


def with_orientation(orientation: int) -> bytes:
    """An EXIF block that says so."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def pillow_rgb(content: bytes) -> Pixels:
    """What Pillow makes of a file, as RGB."""
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB"))


def decoded(content: bytes, channels: int = 3) -> Pixels:
    """What vitlab makes of a file."""
    return decode(content, name="cat.jpg", channels=channels)


def refusal(content: bytes, limits: DecodeLimits | None = None) -> DataError:
    """The error with which vitlab refuses a file; it names the file and says what to do."""
    with pytest.raises(DataError) as caught:
        decode(content, name="cat.jpg", limits=limits or DecodeLimits())
    assert "cat.jpg" in caught.value.message
    assert caught.value.hint
    return caught.value
