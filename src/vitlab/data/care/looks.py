"""What one picture of a source is: whole or broken, its size, how it is stored, and what is unusual about that."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import GifImagePlugin

from vitlab.config.decode import DecodeLimits, ImageFormat
from vitlab.data.care.likeness import SIDE, thumbnail
from vitlab.data.decode import check, decode
from vitlab.data.files.digests import digest
from vitlab.data.pixels.header import Header
from vitlab.data.pixels.jpeg import orientation_of
from vitlab.data.source import Example

_ENDINGS: dict[str, ImageFormat] = {
    ".jpg": "jpeg", ".jpeg": "jpeg", ".jpe": "jpeg", ".jfif": "jpeg", ".png": "png", ".webp": "webp", ".bmp": "bmp",
    ".gif": "gif", ".tif": "tiff", ".tiff": "tiff",
}  # fmt: skip
_PNG_COLOURS = {0: "grey", 2: "colour", 3: "palette", 4: "grey", 6: "colour"}
_PNG_WITH_OPACITY = (4, 6)
_JPEG_COLOURS = {1: "grey", 3: "colour", 4: "CMYK"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A picture that could be decoded as a whole.

    `digest` is that of its content; `height` and `width` are in pixels, upright; `stored` is its format and colours
    (`jpeg, colour`); `odd` says what is unusual about it, in words; `thumb` is its grey thumbnail, None where it is too small.
    """

    digest: bytes
    height: int
    width: int
    stored: str
    odd: tuple[str, ...]
    thumb: NDArray[np.uint8] | None


def look_at(example: Example, limits: DecodeLimits) -> Look:
    """Decode a picture as a whole and say what it is; DataError where it is broken."""
    content = example.content
    if isinstance(content, bytes):
        header = check(content, name=example.name, limits=limits)
        image_HWC = decode(content, name=example.name, limits=limits)
        colours, odd = _stored(content, header)
        said = _ENDINGS.get(PurePosixPath(example.name).suffix.lower())
        if said is not None and said != header.format:
            odd.append(f"{header.format} called {PurePosixPath(example.name).suffix.lower()}")
        stored = f"{header.format}, {colours}"
    else:
        image_HWC, odd = content, []
        stored = f"pixels, {'grey' if content.shape[2] == 1 else 'colour'}"
    height, width = image_HWC.shape[:2]
    return Look(
        digest=digest(content),
        height=height,
        width=width,
        stored=stored,
        odd=tuple(odd),
        thumb=thumbnail(image_HWC) if min(height, width) >= SIDE else None,
    )


def _stored(content: bytes, header: Header) -> tuple[str, list[str]]:
    """The colours of a sound picture, and what is odd about them, from its own headers."""
    odd: list[str] = []
    match header.format:
        case "jpeg":
            assert header.jpeg is not None
            colours = _JPEG_COLOURS.get(header.jpeg.components, f"{header.jpeg.components} components")
            if colours == "CMYK":
                odd.append("CMYK")
            exif = header.jpeg.exif
        case "png":
            colours, exif = _png(content, odd)
        case "webp":
            colours, exif = _webp(content, odd)
        case "gif":
            colours, exif = "palette", b""
            with GifImagePlugin.GifImageFile(io.BytesIO(content)) as image:
                if "transparency" in image.info:
                    odd.append("transparent")
                if image.n_frames > 1:
                    odd.append("animated")
        case _:
            colours, exif = "colour", b""
    if (orientation := orientation_of(exif)) != 1:
        odd.append(f"turned by EXIF ({orientation})")
    return colours, odd


def _png(content: bytes, odd: list[str]) -> tuple[str, bytes]:
    depth, kind = content[24], content[25]
    chunks = _png_chunks(content)
    if depth == 16:
        odd.append("16 bits")
    if kind in _PNG_WITH_OPACITY or b"tRNS" in chunks:
        odd.append("transparent")
    if b"acTL" in chunks:
        odd.append("animated")
    return _PNG_COLOURS.get(kind, "colour"), chunks.get(b"eXIf", b"")


def _png_chunks(content: bytes) -> dict[bytes, bytes]:
    """The chunks by type; of those of one type the last."""
    chunks = {}
    place = 8
    while place + 8 <= len(content):
        length = int.from_bytes(content[place : place + 4], "big")
        kind = content[place + 4 : place + 8]
        chunks[kind] = b"" if kind == b"IDAT" else content[place + 8 : place + 8 + length]
        place += length + 12
    return chunks


def _webp(content: bytes, odd: list[str]) -> tuple[str, bytes]:
    exif = b""
    if content[12:16] == b"VP8X":
        flags = content[20]
        if flags & 0x10:
            odd.append("transparent")
        if flags & 0x02:
            odd.append("animated")
        if flags & 0x08 and (place := content.find(b"EXIF", 30)) >= 0:
            exif = content[place + 8 :].removeprefix(b"Exif\0\0")
    elif content[12:16] == b"VP8L" and content[24] & 0x10:  # the bit after the two sizes of 14 bits
        odd.append("transparent")
    return "colour", exif
