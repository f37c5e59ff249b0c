"""JPEG: size, sampling, EXIF orientation and completeness from its markers; and partial decoding.

Most of the decoding time goes into the entropy-coded bits, which can only be read from the start. But reading can stop early: if
only the upper rows are needed, the height in the header is rewritten, and any decoder stops there.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from types import ModuleType
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import JpegImagePlugin

from vitlab.config.data import JpegDecoder
from vitlab.errors import ConfigError

Reduction = Literal[1, 2, 4, 8]
REDUCTIONS: tuple[Reduction, ...] = (8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class JpegScale:
    """The scale of decoding: 1/`reduction` of the size, and `rough` with libjpeg's fast arithmetic.

    `rough` is about 10 % faster and differs by about one level on average, because colours are repeated instead of interpolated;
    it is for images that are scaled down afterwards.
    """

    reduction: Reduction = 1
    rough: bool = False


FULL = JpegScale()

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL_FRAMES = frozenset({0xC0, 0xC1})  # baseline and extended
_HUFFMAN_FRAMES = _SEQUENTIAL_FRAMES | {0xC2}  # and progressive
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
_START_OF_SCAN, _END_OF_IMAGE, _APP1 = 0xDA, 0xD9, 0xE1
# Inside a scan, a 0xFF byte is followed by 0, and the markers D0-D7 are restarts; the next other marker ends the scan.
_NEXT_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_MARKER = re.compile(rb"\xff[^\xff]")  # after any number of fill bytes 0xFF
_MOST_SEGMENTS = 4096  # before the first scan: a quarter of a gigabyte, if they are full
# Encoders write about ten scans. Each costs a pass over the whole image, however short it is: of a large image fewer are allowed.
_FEWEST_SCANS, _MOST_SCANS = 16, 64
_SCANNED_PIXELS = 1.5e9  # in all scans together: about two seconds
_SMALLEST_REDUCED = 16  # below this two scales can give the same size, and simplejpeg takes a size, not a scale


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """The header of a JPEG, before the first scan.

    `height` and `width` are in pixels as stored; `components` is 1 (grey), 3 (colour) or 4 (CMYK); `mcu_height` is the number of
    pixel rows that are coded together. `plain`: an 8-bit Huffman-coded image of 1 or 3 components, which both decoders decode
    identically; `one_scan`: coded in one pass from top to bottom. `height_at` is the offset of the height in the file, `scan_at`
    that of the first scan. `least_bytes` is what the shortest codes for so many blocks take. `exif` is the EXIF block without
    its signature; it may be empty.
    """

    height: int
    width: int
    components: int
    mcu_height: int
    plain: bool
    one_scan: bool
    height_at: int
    scan_at: int
    least_bytes: int
    exif: bytes


def read_jpeg_header(content: bytes) -> JpegHeader:
    """Read the markers up to the first scan; ValueError if they are broken."""
    at, end, exif = 2, len(content), b""
    frame: tuple[int, int] | None = None
    for _ in range(_MOST_SEGMENTS):
        found = _MARKER.search(content, at)  # bytes between segments are skipped, as libjpeg does
        at = end if found is None else found.start()
        if at + 4 > end:
            raise ValueError("its header is cut short")
        marker = content[at + 1]
        if marker in _NO_LENGTH or marker == 0:
            at += 2
            continue
        if marker == _END_OF_IMAGE:
            raise ValueError("it ends before its first scan")
        length = content[at + 2] << 8 | content[at + 3]
        if length < 2 or at + 2 + length > end:
            raise ValueError("its header is cut short")
        if marker in _START_OF_FRAME:
            if frame is not None:
                raise ValueError("it has two frame headers")
            frame = marker, at
        elif marker == _APP1 and not exif and content[at + 4 : at + 10] == b"Exif\x00\x00":
            exif = content[at + 10 : at + 2 + length]
        elif marker == _START_OF_SCAN:
            break
        at += 2 + length
    else:
        raise ValueError(f"its header has more than {_MOST_SEGMENTS:,} segments")
    if frame is None:
        raise ValueError("it has no frame header")
    return _describe(content, *frame, scan_at=at, exif=exif)


def _describe(content: bytes, marker: int, at: int, *, scan_at: int, exif: bytes) -> JpegHeader:
    length, precision, height, width, components = struct.unpack_from(">HBHHB", content, at + 2)
    if length < 8 + 3 * components or not components:
        raise ValueError("its frame header is broken")
    samplings = [(content[at + 11 + 3 * k] >> 4, content[at + 11 + 3 * k] & 15) for k in range(components)]
    if not all(1 <= vertical <= 4 for _, vertical in samplings):
        raise ValueError("its frame header is broken")
    widest, tallest = map(max, zip(*samplings, strict=True))
    blocks = height * width / 64 * sum(across * down for across, down in samplings) / max(1, widest * tallest)
    # A block takes at least one bit for its DC and, in a sequential frame, one for the end of its AC coefficients.
    bits = 2 if marker in _SEQUENTIAL_FRAMES else 1 if marker in _HUFFMAN_FRAMES else 0
    return JpegHeader(
        height=height,
        width=width,
        components=components,
        mcu_height=8 * tallest,
        plain=marker in _HUFFMAN_FRAMES and precision == 8 and components in (1, 3),
        one_scan=marker in _SEQUENTIAL_FRAMES and content[scan_at + 4] == components,
        height_at=at + 5,
        scan_at=scan_at,
        least_bytes=int(blocks * bits / 8),
        exif=exif,
    )


def is_whole(content: bytes, header: JpegHeader) -> bool:
    """Whether the end-of-image marker exists, which a truncated file lacks.

    It need not be at the end of the file, because cameras append data. Its two bytes cannot occur inside a scan, but they can
    inside a table between two scans, so these segments are skipped one by one.
    """
    return content.endswith(b"\xff\xd9") or _END_OF_IMAGE in _markers(content, header)


def most_scans(header: JpegHeader) -> int:
    """The most scans that an image of this size may have."""
    return max(_FEWEST_SCANS, min(_MOST_SCANS, int(_SCANNED_PIXELS / max(1, header.height * header.width))))


def has_too_many_scans(content: bytes, header: JpegHeader) -> bool:
    """Whether there are more than `most_scans`.

    A JPEG coded in one scan, as nearly all are, is not searched; else two bytes are counted first, which also occur in tables and
    in appended data, and only if they are many the scans themselves.
    """
    if header.one_scan or content.count(b"\xff\xda", header.scan_at) <= (most := most_scans(header)):
        return False
    scans = (marker for marker in _markers(content, header) if marker == _START_OF_SCAN)
    return next(islice(scans, most, None), None) is not None


def _markers(content: bytes, header: JpegHeader) -> Iterator[int]:
    """The markers from the first scan to the end of the image, or to the end of a truncated file."""
    at, end = header.scan_at, len(content)
    while True:
        marker = content[at + 1]
        yield marker
        if marker == _END_OF_IMAGE:
            return
        if marker not in _NO_LENGTH:
            if at + 4 > end:
                return
            at += content[at + 2] << 8 | content[at + 3]  # a segment between two scans, or the header of the next one
        found = _NEXT_MARKER.search(content, at + 2)
        if found is None:
            return
        at = found.start()


def orientation_of(exif: bytes) -> int:
    """The orientation, 1 to 8, in an EXIF block; 1 if it is missing or broken."""
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    try:
        (table,) = struct.unpack_from(order + "I", exif, 4)
        (count,) = struct.unpack_from(order + "H", exif, table)
        for entry in range(table + 2, table + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", exif, entry)
            if tag == 0x0112:
                return value if kind == 3 and 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1


@cache
def _simplejpeg() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    module: ModuleType = simplejpeg
    return module


def _library(decoder: JpegDecoder) -> ModuleType | None:
    """simplejpeg, or None for Pillow."""
    if decoder == "pillow":
        return None
    found = _simplejpeg()
    if found is None and decoder == "simplejpeg":
        raise ConfigError("jpeg_decoder='simplejpeg' is not installed", hint="pip install 'vitlab[jpeg]'")
    return found


def decode_rows(
    content: bytes, header: JpegHeader, *, rows: int, scale: JpegScale = FULL, decoder: JpegDecoder = "auto"
) -> NDArray[np.uint8]:
    """At least the first `rows` rows of a plain JPEG as RGB, as stored, each side divided by `scale.reduction` (rounded up).

    The pixels are bit-identical to those of Pillow decoding the whole image at the same scale, and errors are Pillow's; damage
    below the rows is not noticed.
    """
    reduction = scale.reduction
    height = header.height
    assert min(height, header.width) >= reduction, "nothing would be left"
    # Whole rows of blocks, and one more pixel row, because subsampled chroma is interpolated with the row below.
    enough = -(-(rows + 1) // header.mcu_height) * header.mcu_height
    if header.one_scan and enough < height:
        height = enough
        at = header.height_at
        content = b"".join((content[:at], struct.pack(">H", height), content[at + 2 :]))
    library = _library(decoder)
    if library is not None:
        pixels = np.empty((-(-height // reduction), -(-header.width // reduction), 3), np.uint8)
        if _into(pixels, content, library, scale):
            return pixels
    return _by_pillow(content, scale)


# libjpeg's message about the rows below a rewritten height. It reports the first fault only, so there was no other one.
_LEFT_OVER = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd9")


def _into(pixels: NDArray[np.uint8], content: bytes, library: ModuleType, scale: JpegScale) -> bool:
    """Decode into `pixels` by simplejpeg; False on any complaint, so that Pillow decides.

    Always strict: with strict=False it ignores fatal faults too, and returns uninitialised memory.
    """
    height, width = pixels.shape[:2] if scale.reduction > 1 else (0, 0)  # the minimum size, which selects the scale
    try:
        found = library.decode_jpeg_header(content, min_height=height, min_width=width)
        if found[:2] != pixels.shape[:2]:
            return False
        library.decode_jpeg(
            content,
            "RGB",
            fastdct=scale.rough,
            fastupsample=scale.rough,
            min_height=height,
            min_width=width,
            buffer=pixels,
        )
    except ValueError as error:
        return _LEFT_OVER.fullmatch(str(error)) is not None
    return True


def _by_pillow(content: bytes, scale: JpegScale) -> NDArray[np.uint8]:
    with JpegImagePlugin.JpegImageFile(io.BytesIO(content)) as image:
        if scale.reduction > 1:
            image.draft("RGB", (image.width // scale.reduction, image.height // scale.reduction))
        image.decoderconfig = (scale.reduction, int(scale.rough))
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def reduction_for(box: tuple[int, int], wanted: tuple[int, int]) -> Reduction:
    """The strongest reduction that leaves a (height, width) box at least as large as `wanted`."""
    if max(box) < 8 * _SMALLEST_REDUCED:
        return 1
    for reduction in REDUCTIONS:
        if box[0] // reduction >= wanted[0] and box[1] // reduction >= wanted[1]:
            return reduction
    return 1
