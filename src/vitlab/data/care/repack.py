"""A picture as it goes into a shard: the bytes it has, or made smaller and encoded again."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.config.decode import DecodeLimits, ImageFormat
from vitlab.config.pack import PackConfig
from vitlab.data.decode import check, decode
from vitlab.data.pixels.header import Header
from vitlab.data.source import Example

_ENDINGS: dict[ImageFormat, str] = {"jpeg": "jpg", "png": "png", "webp": "webp", "bmp": "bmp", "gif": "gif", "tiff": "tif"}
_LIMITS = DecodeLimits()
_GREY_PNG = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A picture ready to be written: its file's bytes and ending."""

    content: bytes
    ending: str


def prepared(example: Example, config: PackConfig) -> Prepared:
    """The picture as `config` wants it; DataError where it cannot be read. Pixels become PNG, which loses nothing."""
    content = example.content
    if not isinstance(content, bytes):
        return Prepared(content=_png(_smaller(_image(content), config.max_side)), ending="png")
    header = check(content, name=example.name, limits=_LIMITS)
    if config.max_side is None or max(header.height, header.width) <= config.max_side:
        return Prepared(content=content, ending=_ENDINGS[header.format])
    pixels_HWC = decode(content, name=example.name, channels=1 if _is_grey(content, header) else 3)
    image = _smaller(_image(pixels_HWC), config.max_side)
    if header.format == "jpeg":
        return Prepared(content=_encoded(image, "JPEG", config.quality), ending="jpg")
    if header.format == "webp":
        return Prepared(content=_encoded(image, "WEBP", config.quality), ending="webp")
    return Prepared(content=_png(image), ending="png")


def _image(pixels_HWC: NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(pixels_HWC[:, :, 0] if pixels_HWC.shape[2] == 1 else pixels_HWC)


def _is_grey(content: bytes, header: Header) -> bool:
    if header.jpeg is not None:
        return header.jpeg.components == 1
    return header.format == "png" and content[25] == _GREY_PNG


def _smaller(image: Image.Image, max_side: int | None) -> Image.Image:
    if max_side is None or max(image.size) <= max_side:
        return image
    scale = max_side / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _encoded(image: Image.Image, kind: str, quality: int) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, quality=quality)
    return out.getvalue()


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
