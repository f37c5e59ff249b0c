"""What a picture's first bytes say of it: its format and its size, before any decoder sees it."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from vitlab.config.decode import ImageFormat
from vitlab.data.pixels.jpeg import JpegHeader, read_jpeg_header

# What a file that is no picture we read most often is, by its first bytes: only to say so in the error.
_STRANGERS: tuple[tuple[bytes, str], ...] = (
    (b"%!PS", "an EPS or PostScript document"),
    (b"\xc5\xd0\xd3\xc6", "an EPS document"),
    (b"8BPS", "a Photoshop document"),
    (b"SIMPLE  =", "a FITS picture"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x00\x00\x00\x0cjP  ", "a JPEG 2000 picture"),
    (b"\xff\x4f\xff\x51", "a JPEG 2000 picture"),
    (b"\xff\x0a", "a JPEG XL picture"),
    (b"\x00\x00\x00\x0cJXL ", "a JPEG XL picture"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file it points to"),
)


@dataclass(frozen=True, slots=True)
class Header:
    """The format of a picture and its size in pixels as stored, before any EXIF orientation; `jpeg` says more of a JPEG."""

    format: ImageFormat
    height: int
    width: int
    jpeg: JpegHeader | None = None


def format_of(content: bytes) -> ImageFormat | None:
    """The format that the content's signature tells, or None where it is none of ours."""
    if content.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "webp"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if content.startswith(b"BM") and _BMP_HEADERS.get(content[14:18]):
        return "bmp"
    if content.startswith((b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")):
        return "tiff"
    return None


def stranger(content: bytes) -> str:
    """What content that is none of our formats seems to be, in words."""
    for start, what in _STRANGERS:
        if content.startswith(start):
            return what
    if content[4:8] == b"ftyp":
        return "a HEIC, AVIF or video file"
    text = content[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head")):
        return "an HTML page (a failed download?)"
    if text.startswith((b"<?xml", b"<svg")):
        return "an XML or SVG document"
    return "no picture format known"


def read_header(content: bytes) -> Header | None:
    """Format and size out of the first bytes; None where the signature is none of ours, ValueError where the header is broken.

    A TIFF's size stands anywhere in the file, so it is 0 x 0 here and its opener checks it.
    """
    found = format_of(content)
    try:
        match found:
            case None:
                return None
            case "jpeg":
                jpeg = read_jpeg_header(content)
                return Header("jpeg", jpeg.height, jpeg.width, jpeg)
            case "png":
                if content[12:16] != b"IHDR":
                    raise ValueError("its first chunk is not IHDR")
                width, height = struct.unpack_from(">II", content, 16)
            case "gif":
                width, height = struct.unpack_from("<HH", content, 6)
            case "bmp":
                width, height = struct.unpack_from(_BMP_HEADERS[content[14:18]], content, 18)
            case "webp":
                width, height = _webp_size(content)
            case "tiff":
                width, height = 0, 0
    except (struct.error, IndexError) as error:
        raise ValueError("its header is cut short") from error
    return Header(found, abs(height), abs(width))


# The second word of a BMP is the length of its header: 12 holds the size in 16 bits, the later ones in 32 (height signed).
_BMP_HEADERS = {struct.pack("<I", 12): "<HH"} | {struct.pack("<I", length): "<ii" for length in (40, 52, 56, 64, 108, 124)}


def _webp_size(content: bytes) -> tuple[int, int]:
    """(width, height) from the first chunk: lossy, lossless or extended."""
    match content[12:16]:
        case b"VP8 ":
            if content[23:26] != b"\x9d\x01\x2a":
                raise ValueError("its first frame has no start code")
            width, height = struct.unpack_from("<HH", content, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", content, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            width, height = content[24:27], content[27:30]
            if len(height) < 3:
                raise ValueError("its header is cut short")
            return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
        case _:
            raise ValueError("its first chunk holds no picture")
