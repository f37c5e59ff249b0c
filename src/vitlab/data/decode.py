"""Decoding of untrusted image files: bytes in, uint8 pixels out, or a DataError that names the file.

This file is the gate: what is an image, how large it may be, grey and colour. `scientific.py` reads numbers of other kinds.

A box is (top, left, height, width) in pixels of the upright image.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from vitlab.config.data import DecodeLimits, ImageFormat, PixelScale
from vitlab.data.jpeg import (
    JpegHeader,
    JpegScale,
    Reduction,
    decode_rows,
    has_too_many_scans,
    is_whole,
    most_scans,
    orientation_of,
    read_jpeg_header,
    reduction_for,
)
from vitlab.data.scientific import MOST_CHANNELS, Numbers, Stored, levels, open_dicom, open_npy, open_tiff
from vitlab.errors import ConfigError, DataError

Pixels = NDArray[np.uint8]

# First bytes of other files -> what they are, for the error message.
_STRANGERS: tuple[tuple[bytes, str], ...] = (
    (b"%!PS", "an EPS or PostScript document"),
    (b"\xc5\xd0\xd3\xc6", "an EPS document"),
    (b"8BPS", "a Photoshop document"),
    (b"SIMPLE  =", "a FITS image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x00\x00\x00\x0cjP  ", "a JPEG 2000 image"),
    (b"\xff\x4f\xff\x51", "a JPEG 2000 image"),
    (b"\xff\x0a", "a JPEG XL image"),
    (b"\x00\x00\x00\x0cJXL ", "a JPEG XL image"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file it points to"),
)


@dataclass(frozen=True, slots=True)
class Header:
    """The format of an image and its size in pixels as stored, before EXIF orientation; `jpeg` is the header of a JPEG."""

    format: ImageFormat
    height: int
    width: int
    jpeg: JpegHeader | None = None


def format_of(content: bytes) -> ImageFormat | None:
    """The format by the file's signature, or None if it is not supported."""
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
    if content.startswith(b"\x93NUMPY"):
        return "npy"
    if content[128:132] == b"DICM":
        return "dicom"
    return None


def stranger(content: bytes) -> str:
    """What a file of an unsupported format seems to be, in words."""
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
    return "in no known image format"


def read_header(content: bytes) -> Header | None:
    """Format and size from the first bytes; None for an unsupported format, ValueError for a broken header.

    The size of a TIFF or DICOM file can be anywhere in it, so it is 0 x 0 here, as for an array, and checked when it is opened.
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
                _check_chunks(content)
            case "gif":
                width, height = struct.unpack_from("<HH", content, 6)
                _check_extensions(content)
            case "bmp":
                width, height = struct.unpack_from(_BMP_HEADERS[content[14:18]], content, 18)
            case "webp":
                width, height = _webp_size(content)
            case "tiff" | "npy" | "dicom":
                width, height = 0, 0
    except (struct.error, IndexError) as error:
        raise ValueError("its header is cut short") from error
    return Header(found, abs(height), abs(width))


# A BMP header of 12 bytes holds the size in 16 bits; longer ones hold it in 32 bits (height signed).
_BMP_HEADERS = {struct.pack("<I", 12): "<HH"} | {struct.pack("<I", length): "<ii" for length in (40, 52, 56, 64, 108, 124)}


_MOST_CHUNKS = 65_536  # of a PNG, of a few microseconds each; encoders write chunks of 8 kB and more
_MOST_EXTENSIONS = 4_096  # blocks of up to 255 bytes before the first frame of a GIF, which Pillow joins one by one


def _check_chunks(content: bytes) -> None:
    """ValueError if a PNG has absurdly many chunks; one below a megabyte cannot, and is not searched."""
    place, end = 8, len(content)
    if end < 12 * _MOST_CHUNKS:
        return
    for _ in range(_MOST_CHUNKS):
        if place + 8 > end or content[place + 4 : place + 8] == b"IEND":
            return
        place += 12 + int.from_bytes(content[place : place + 4])
    raise ValueError(f"it has more than {_MOST_CHUNKS:,} chunks")


def _check_extensions(content: bytes) -> None:
    """ValueError if a GIF has absurdly many blocks before its first frame; a missing end is the decoder's to report."""
    place, end = 13 + (3 << (content[10] & 7) + 1 if content[10] & 128 else 0), len(content)
    blocks = 0
    while place + 2 < end and content[place] == ord("!"):
        place += 2
        while place < end and content[place]:
            place += 1 + content[place]
            blocks += 1
            if blocks > _MOST_EXTENSIONS:
                raise ValueError(f"it has more than {_MOST_EXTENSIONS:,} blocks before its first frame")
        place += 1


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
            raise ValueError("its first chunk holds no image")


# Pillow's readers by name, not `Image.open`, which tries all 43 formats and has a global limit of its own.
_OPENERS: dict[ImageFormat, type[ImageFile.ImageFile]] = {
    "jpeg": JpegImagePlugin.JpegImageFile,
    "png": PngImagePlugin.PngImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
    "bmp": BmpImagePlugin.BmpImageFile,
    "gif": GifImagePlugin.GifImageFile,
    "tiff": TiffImagePlugin.TiffImageFile,
}
# All errors that decoders raise on broken files, except MemoryError.
BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    AttributeError,
    EOFError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Warning,  # Pillow warns about damaged metadata, and the caller may have turned warnings into errors
)
_WHITE = 255
_TIFF_TILE = (323, 322)  # tags of a tile's height and width
_GREY_PHOTOMETRIC = (0, 1)  # white is 0, black is 0
_DESCRIPTION, _BITS, _PHOTOMETRIC, _SAMPLES, _EXTRA = 270, 258, 262, 277, 338  # other tags of a TIFF
_CMYK = 5
_SIZED_LATER: tuple[ImageFormat, ...] = ("tiff", "npy", "dicom")
CHANNELS = (1, 3, 4)


def decode(
    content: bytes,
    *,
    name: str,
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
    at_least: tuple[int, int] | None = None,
    channels: int | None = 3,
    scale: PixelScale = "full",
) -> Pixels:
    """Decode an image to uint8 [H, W, C], upright by its EXIF orientation; of an animation the first frame.

    `channels` is 3 (RGB), 1 (grey) or 4 (RGB and opacity); for 1 and 3, transparent pixels are composited on white. Another number
    is for TIFF files and arrays that have as many channels, or as many grey pages: DataError for all others. None gives RGB for
    grey and colour images, and all channels of an image that has 2 or more than 4.
    `scale` is how images of more than 8 bits become levels from 0 to 255: see `Preprocess` and `levels`. CMYK is converted.
    `at_least` (height, width), of the upright image: a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size if it stays at least
    that large; None decodes at full size, bit-identical to Pillow.
    `name` is the image's name in errors.
    """
    header = check(content, name=name, limits=limits)
    if channels is not None and not 1 <= channels <= MOST_CHANNELS:
        raise ConfigError(f"channels={channels} must be from 1 to {MOST_CHANNELS}")
    jpeg = header.jpeg
    try:
        if header.format in ("npy", "dicom"):
            return _open_numbers(content, header, name=name, limits=limits, channels=channels, scale=scale)
        if header.format == "tiff":
            return _open_tiff(content, header, name=name, limits=limits, channels=channels, scale=scale)
        if channels not in (None, *CHANNELS):
            raise other_channels(name, None, channels)
        channels = channels or 3
        if jpeg is None or not jpeg.plain:
            return _open(content, header, name=name, limits=limits, channels=channels, scale=scale)
        orientation = orientation_of(jpeg.exif)
        wanted = at_least if at_least is None or orientation < 5 else at_least[::-1]
        reduction = 1 if wanted is None else reduction_for((jpeg.height, jpeg.width), wanted)
        image_HWC = decode_rows(content, jpeg, rows=jpeg.height, scale=JpegScale(reduction), decoder=limits.jpeg_decoder)
    except BROKEN as error:
        raise broken(name, header.format, error) from error
    return in_channels(owned(upright(image_HWC, orientation)), channels)


STRANGE = "is not an image that vitlab reads"


def check(content: bytes, *, name: str, limits: DecodeLimits) -> Header:
    """The header of an image; DataError if its format or size exceeds `limits`, or if it is truncated."""
    if not content:
        raise DataError(f"{name} is empty", hint="copy or download it again, or remove it")
    try:
        header = read_header(content)
    except ValueError as error:
        raise DataError(f"{name} is a broken image: {error}", hint="copy or download it again, or remove it") from error
    if header is None:
        raise DataError(f"{name} {STRANGE}: it is {stranger(content)}", hint=_accepted(limits))
    if header.format not in limits.formats:
        raise DataError(f"{name} is {_a(header.format)} image, which is switched off", hint=_accepted(limits))
    if header.format not in _SIZED_LATER:
        needs = _bytes_per_pixel(header)
        _check_size(header.height, header.width, name=name, limits=limits, bytes_per_pixel=needs, size=len(content))
    if header.jpeg is not None:
        _check_jpeg(content, header.jpeg, name=name)
    return header


def _check_jpeg(content: bytes, jpeg: JpegHeader, *, name: str) -> None:
    if not is_whole(content, jpeg):
        raise DataError(f"{name} is cut short: its end is missing", hint="copy or download it again, or remove it")
    if (found := len(content) - jpeg.scan_at) < jpeg.least_bytes:
        raise DataError(
            f"{name} is cut short: {found:,} bytes cannot hold {jpeg.height}x{jpeg.width} pixels",
            hint="copy or download it again, or remove it",
        )
    if has_too_many_scans(content, jpeg):
        raise DataError(
            f"{name} has more than {most_scans(jpeg)} scans, which no encoder writes", hint="save it again, or remove it"
        )


# Most bytes in memory for one pixel while a file is decoded and converted, all copies together, measured for every mode.
# Of an image whose numbers are scaled (`Stored`), it depends on its channels and type.
_BYTES_PER_PIXEL: dict[ImageFormat, int] = {"jpeg": 8, "png": 18, "webp": 26, "bmp": 18, "gif": 18, "tiff": 18}
_JPEG_IN_SEVERAL_SCANS, _JPEG_OF_OTHER_COLOURS = 12, 24  # the first keeps all coefficients


def _bytes_per_pixel(header: Header) -> int:
    jpeg = header.jpeg
    if jpeg is None or (jpeg.plain and jpeg.one_scan):
        return _BYTES_PER_PIXEL[header.format]
    return _JPEG_IN_SEVERAL_SCANS if jpeg.plain else _JPEG_OF_OTHER_COLOURS


# A file of few bytes may take a quarter of `max_memory`, and so many bytes more for each of its own: a PNG of zeros takes 6,000.
_QUARTER, _MORE_PER_BYTE = 4, 8000


def _check_size(
    height: int, width: int, *, name: str, limits: DecodeLimits, bytes_per_pixel: int = 1, size: int | None = None
) -> None:
    if height < 1 or width < 1:
        raise DataError(f"{name} is empty: its header says {height}x{width} pixels", hint="remove it")
    if height * width > limits.max_pixels:
        raise DataError(
            f"{name} has {height}x{width} pixels, more than the limit of {limits.max_pixels:,}",
            hint="make it smaller, or raise max_pixels if you trust it",
        )
    most = limits.max_memory if size is None else min(limits.max_memory, limits.max_memory // _QUARTER + _MORE_PER_BYTE * size)
    if (needed := height * width * bytes_per_pixel) > most:
        words = "" if most == limits.max_memory else f" for a file of {size:,} bytes"
        raise DataError(
            f"{name} has {height}x{width} pixels, whose decoding takes up to {needed / 1e6:,.0f} MB; the limit is"
            f" {most / 1e6:,.0f} MB{words}",
            hint="make it smaller, or raise max_memory if you trust it",
        )


def _accepted(limits: DecodeLimits) -> str:
    return f"convert it to one of {', '.join(limits.formats)}, or remove it"


def _a(word: str) -> str:
    return f"a {word.upper()}"


def broken(name: str, kind: ImageFormat, error: Exception) -> DataError:
    """The error for an image that cannot be decoded."""
    reason = str(error).strip() or type(error).__name__
    return DataError(f"{name} is a broken {kind.upper()}: {reason}", hint="copy or download it again, or remove it")


def other_channels(name: str, given: int | None, channels: int) -> DataError:
    """The error for an image with another number of channels; `given` is None for a file of a format of grey and colour images."""
    has = "a grey or colour image" if given is None else f"an image of {given} channel{'' if given == 1 else 's'}"
    return DataError(
        f"{name} is {has}; the model takes {channels} channel{'' if channels == 1 else 's'}",
        hint="remove it, or train with `channels`, the number that the images have",
    )


def _open(content: bytes, header: Header, *, name: str, limits: DecodeLimits, channels: int, scale: PixelScale) -> Pixels:
    with _OPENERS[header.format](io.BytesIO(content)) as image:
        # Checked again: a GIF frame may be larger than its canvas.
        needs = _bytes_per_pixel(header)
        _check_size(image.height, image.width, name=name, limits=limits, bytes_per_pixel=needs, size=len(content))
        image.load()
        pixels_HWC = _pixels(image, name=name, channels=channels, scale=scale)
        exif: bytes = image.info.get("exif", b"")
    return owned(upright(pixels_HWC, orientation_of(exif.removeprefix(b"Exif\x00\x00"))))


def open_numbers(content: bytes, header: Header, *, name: str, limits: DecodeLimits) -> Stored:
    """The header of an array or a DICOM file, or of a TIFF that Pillow does not read."""
    match header.format:
        case "npy":
            return open_npy(content, name=name)
        case "dicom":

            def inner(jpeg: bytes, channels: int) -> Pixels:
                return decode(jpeg, name=f"the image in {name}", limits=limits, channels=channels)

            return open_dicom(content, name=name, limits=limits, decode_jpeg=inner)
        case _:
            return open_tiff(content, name=name)


def _open_numbers(
    content: bytes, header: Header, *, name: str, limits: DecodeLimits, channels: int | None, scale: PixelScale
) -> Pixels:
    """An array or a DICOM file, or a TIFF that Pillow does not read."""
    stored = open_numbers(content, header, name=name, limits=limits)
    _check_stored(stored, name=name, limits=limits, size=len(content), channels=channels)
    image_HWC = levels(stored.read(), name=name, scale=scale, span=stored.span, inverted=stored.inverted)
    if channels is None:
        channels = 3 if stored.channels in CHANNELS else stored.channels
    return fit_channels(image_HWC, channels, name=name)


def _check_stored(stored: Stored, *, name: str, limits: DecodeLimits, size: int, channels: int | None) -> None:
    """DataError if an image is too large, or if it has another number of channels than the wanted one."""
    needs = stored.bytes_per_pixel
    _check_size(stored.height, stored.width, name=name, limits=limits, bytes_per_pixel=needs, size=size)
    if not 1 <= stored.channels <= MOST_CHANNELS:
        raise DataError(f"{name} has {stored.channels:,} channels; the limit is {MOST_CHANNELS:,}", hint="remove it")
    if channels is None or stored.channels == channels or (stored.channels in CHANNELS and channels in CHANNELS):
        return
    error = other_channels(name, stored.channels, channels)
    if stored.height == channels:
        error.hint = "its first axis seems to be the channels: save array.transpose(1, 2, 0)"
    raise error


def _open_tiff(
    content: bytes, header: Header, *, name: str, limits: DecodeLimits, channels: int | None, scale: PixelScale
) -> Pixels:
    """A TIFF by Pillow if it is grey or colour, else by tifffile. Grey pages are channels if there are as many as `channels`."""
    tags = _tiff_tags(content)
    samples, photometric = int(tags.get(_SAMPLES, 1)), tags.get(_PHOTOMETRIC)
    bits = tags.get(_BITS, (8,))
    deep = samples == len("RGB") and max(bits if isinstance(bits, tuple) else (bits,)) > 8
    fourth = samples == channels == 4 and tags.get(_EXTRA) in (0, (0,))  # neither opacity nor colour: Pillow leaves it out
    many = samples > len("RGBA") and photometric != _CMYK
    if many or fourth or (deep and scale != "full"):  # of deep colours Pillow keeps 8 bits
        return _open_numbers(content, header, name=name, limits=limits, channels=channels, scale=scale)
    try:
        image = TiffImagePlugin.TiffImageFile(io.BytesIO(content))
    except SyntaxError as error:
        if str(error) not in _UNKNOWN_TO_PILLOW:
            raise
        return _open_numbers(content, header, name=name, limits=limits, channels=channels, scale=scale)
    with image:
        needs = _bytes_per_pixel(header)
        pages = _channel_pages(content, tags.get(_DESCRIPTION), channels)
        most = max(needs, 10 * pages + 40 if pages else 0)
        _check_size(image.height, image.width, name=name, limits=limits, bytes_per_pixel=most, size=len(content))
        down, across = (int(image.tag_v2.get(tag, 1)) for tag in _TIFF_TILE)
        _check_size(down, across, name=f"a tile of {name}", limits=limits, bytes_per_pixel=needs, size=len(content))
        if pages:
            values_HWC = _stacked(image, pages)
            if values_HWC.shape[2] != channels:  # the pages are rows: an array [H, W, C] that was saved page by page
                values_HWC = values_HWC.transpose(2, 0, 1)
            return owned(levels(values_HWC, name=name, scale=scale))
        image.load()
        if channels not in (None, *CHANNELS):
            raise other_channels(name, len(image.getbands()), channels)
        return owned(_pixels(image, name=name, channels=channels or 3, scale=scale))


# What Pillow says of a TIFF that is sound, but of channels or numbers that it does not read.
_UNKNOWN_TO_PILLOW = ("unknown pixel mode", "unknown data organization", "Invalid value for samples per pixel")
_MOST_ROWS = 4096  # of an array that was saved row by row, each a page
_GREY_MODES = ("L", "I", "F", "I;16", "I;16L", "I;16B", "I;16N")


def _tiff_tags(content: bytes) -> TiffImagePlugin.ImageFileDirectory_v2:
    """The tags of the first page."""
    head = content[: 16 if 43 in content[2:4] else 8]
    tags = TiffImagePlugin.ImageFileDirectory_v2(head)
    stream = io.BytesIO(content)
    stream.seek(tags.next)
    tags.load(stream)
    return tags


def has_pages(content: bytes) -> bool:
    """Whether a sound TIFF has more than one page."""
    return bool(_tiff_tags(content).next)


def tiff_numbers(content: bytes) -> tuple[int, bool]:
    """The bits of a channel of a sound TIFF, and whether it is grey."""
    tags = _tiff_tags(content)
    bits = tags.get(_BITS, (1,))
    return max(bits if isinstance(bits, tuple) else (bits,)), tags.get(_PHOTOMETRIC) in _GREY_PHOTOMETRIC


def _channel_pages(content: bytes, description: object, channels: int | None) -> int:
    """The number of grey pages that together are one image of `channels` channels; 0 if the first page is the image."""
    if channels is None or channels < 2:
        return 0
    pages = channels
    try:  # tifffile saves an array [H, W, C] as H pages of W x C, and its shape in the description
        shape = json.loads(description)["shape"] if isinstance(description, str) and description.startswith('{"shape"') else None
    except (ValueError, KeyError, TypeError, RecursionError):
        shape = None
    with TiffImagePlugin.TiffImageFile(io.BytesIO(content)) as image:
        if image.mode not in _GREY_MODES:
            return 0
        if isinstance(shape, list) and len(shape) == 3 and shape[1:] == [image.height, channels] and image.width == channels:
            pages = shape[0] if isinstance(shape[0], int) and 1 < shape[0] <= _MOST_ROWS else channels
        return pages if _has_pages(image, pages) else 0


def _has_pages(image: TiffImagePlugin.TiffImageFile, pages: int) -> bool:
    """Whether a TIFF has exactly so many pages, all of the size and type of the first; a later page may be damaged."""
    first = image.mode, image.size
    try:
        for page in range(pages):
            image.seek(page)
            if (image.mode, image.size) != first:
                return False
        image.seek(pages)
    except EOFError:
        return image.tell() == pages - 1
    except BROKEN:
        return False
    return False


def _stacked(image: TiffImagePlugin.TiffImageFile, pages: int) -> Numbers:
    """The pages as channels, [H, W, C]."""
    planes = []
    for page in range(pages):
        image.seek(page)
        planes.append(np.array(image))
    return np.stack(planes, axis=2)


def decode_values(content: bytes, *, name: str, limits: DecodeLimits = DecodeLimits()) -> Pixels:  # noqa: B008 (a frozen value)
    """The numbers that a mask stores, uint8 [H, W]: indices of a palette, or grey levels; DataError for any other image."""
    header = check(content, name=name, limits=limits)
    if header.format not in _OPENERS:
        raise _no_mask(name, f"{_a(header.format)} file")
    try:
        with _OPENERS[header.format](io.BytesIO(content)) as image:
            needs = _bytes_per_pixel(header)
            _check_size(image.height, image.width, name=name, limits=limits, bytes_per_pixel=needs, size=len(content))
            image.load()
            mode, values = image.mode, np.asarray(image)
    except BROKEN as error:
        raise broken(name, header.format, error) from error
    if header.format == "jpeg" or mode not in ("1", "L", "P", "I", "I;16"):
        raise _no_mask(name, f"{_a(header.format)} image of mode {mode}")
    if int(values.max(initial=0)) > 255 or int(values.min(initial=0)) < 0:
        raise DataError(f"the mask {name} has the value {int(values.max())}; the largest is 255")
    return owned(values.astype(np.uint8))


def _no_mask(name: str, what: str) -> DataError:
    return DataError(
        f"the mask {name} is {what}, whose pixels are not class numbers",
        hint="save it as a PNG with a palette or with grey levels that are the numbers of the classes",
    )


def from_pillow(
    image: Image.Image,
    *,
    name: str,
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
    channels: int = 3,
    scale: PixelScale = "full",
) -> Pixels:
    """An image that Pillow has opened, converted as by `decode`: upright, composited on white, uint8 [H, W, C]."""
    if channels not in CHANNELS:
        raise other_channels(name, None, channels)
    _check_size(image.height, image.width, name=name, limits=limits)
    try:
        image.load()
        pixels_HWC = _pixels(image, name=name, channels=channels, scale=scale)
    except BROKEN as error:
        raise DataError(f"{name} cannot be read: {str(error).strip() or type(error).__name__}") from error
    exif = image.info.get("exif", b"")
    turned = image.format == "TIFF" or not isinstance(exif, bytes)  # Pillow applies the orientation of a TIFF when it loads it
    return owned(upright(pixels_HWC, 1 if turned else orientation_of(exif.removeprefix(b"Exif\x00\x00"))))


def _pixels(image: Image.Image, *, name: str, channels: int, scale: PixelScale) -> Pixels:
    """The pixels of a loaded image of any mode, in 1, 3 or 4 channels."""
    if image.mode.startswith("I;16"):
        image = _eight_bits(image, name=name, scale=scale)
    elif image.mode in ("I", "F"):
        image = Image.fromarray(levels(np.asarray(image)[:, :, None], name=name, scale=scale)[:, :, 0])
    if image.mode not in _MODES:
        raise DataError(
            f"{name} stores its pixels as {_REFUSED.get(image.mode, 'an unknown kind of number')} (mode {image.mode})",
            hint="save it again with 8 bits for each channel",
        )
    if image.mode in _WITH_OPACITY or _has_transparent_colour(image):
        image = _in_mode(image, "RGBA")
        if channels != 4:
            image = Image.alpha_composite(Image.new("RGBA", image.size, (_WHITE, _WHITE, _WHITE, _WHITE)), image)
    if channels != 1:
        return np.asarray(_in_mode(image, "RGB" if channels == 3 else "RGBA"))
    if image.mode not in ("1", "L"):
        image = _in_mode(image, "RGB")
    return np.asarray(_in_mode(image, "L"))[:, :, None]


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    """The image itself if it has this mode, else converted; `convert` would copy it."""
    return image if image.mode == mode else image.convert(mode)


_WITH_OPACITY = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_MODES = _WITH_OPACITY | {"1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr"}
_REFUSED = {"LAB": "Lab colours", "HSV": "HSV colours"}


def _has_transparent_colour(image: Image.Image) -> bool:
    """Whether one colour is transparent; unknown for 16-bit RGB, of which Pillow keeps the upper bytes only."""
    colour = image.info.get("transparency")
    if colour is None:
        return False
    return not (isinstance(colour, tuple) and max(colour) > 255)


def _eight_bits(image: Image.Image, *, name: str, scale: PixelScale) -> Image.Image:
    """16-bit grey as levels: by `full`, 65,535 becomes 255; Pillow's own conversion clips at 255."""
    deep_HW = np.asarray(image).astype(np.uint16)
    grey_HW = levels(deep_HW[:, :, None], name=name, scale=scale)[:, :, 0]
    nothing = image.info.get("transparency")
    if not isinstance(nothing, int):
        return Image.fromarray(grey_HW)
    opacity_HW = np.where(deep_HW == nothing, 0, 255).astype(np.uint8)
    return Image.merge("LA", (Image.fromarray(grey_HW), Image.fromarray(opacity_HW)))


def in_channels(image_HWC: Pixels, channels: int) -> Pixels:
    """An RGB image in 1, 3 or 4 channels."""
    if channels == 1:
        image_HWC = np.asarray(Image.fromarray(image_HWC).convert("L"))[:, :, None]
    elif channels == 4:
        height, width, _ = image_HWC.shape
        image_HWC = np.concatenate([image_HWC, np.full((height, width, 1), 255, np.uint8)], axis=2)
    return owned(image_HWC)


def fit_channels(pixels: Pixels, channels: int, *, name: str) -> Pixels:
    """Pixels (H, W) or (H, W, C) in `channels` channels.

    Grey is repeated to RGB, RGB is reduced to grey by its luma, and a fourth channel is opacity: composited on white, or added
    as opaque. Any other number of channels must already match.
    """
    image_HWC = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if image_HWC.dtype != np.uint8 or image_HWC.ndim != 3 or 0 in image_HWC.shape:
        raise DataError(
            f"{name} must be uint8 pixels [height, width, channels], not {pixels.dtype} {list(pixels.shape)}",
            hint="scale floating-point pixels to 0..255 and round them, or give the encoded file",
        )
    given = image_HWC.shape[2]
    if given == channels:
        return owned(image_HWC)
    if given not in CHANNELS or channels not in CHANNELS:
        raise other_channels(name, given, channels)
    if given == 1:
        return in_channels(np.repeat(image_HWC, 3, axis=2), channels) if channels == 4 else np.repeat(image_HWC, 3, axis=2)
    if given == 4:
        opaque = Image.new("RGBA", image_HWC.shape[1::-1], (255, 255, 255, 255))
        image_HWC = np.asarray(Image.alpha_composite(opaque, Image.fromarray(owned(image_HWC))).convert("RGB"))
    return in_channels(owned(image_HWC), channels)


def as_rgb(image_HWC: Pixels) -> Pixels:
    """An image of any number of channels as three, to look at: grey repeated, of more than three the first three."""
    if image_HWC.dtype != np.uint8 or image_HWC.ndim != 3:
        raise ConfigError(f"an image is uint8 [height, width, channels], not {image_HWC.dtype} {list(image_HWC.shape)}")
    channels = image_HWC.shape[2]
    if channels == 1:
        return np.repeat(image_HWC, 3, axis=2)
    if channels == 2:
        return np.concatenate([image_HWC, np.full_like(image_HWC[:, :, :1], 127)], axis=2)
    return image_HWC[:, :, :3]


def upright(image_HWC: Pixels, orientation: int) -> Pixels:
    """A stored image turned upright by its EXIF orientation (1 to 8), without a copy."""
    if orientation >= 5:  # 5 to 8 are 1 to 4 with rows and columns exchanged
        image_HWC = image_HWC.transpose(1, 0, 2)
    rows = -1 if orientation in UPSIDE_DOWN else 1
    columns = -1 if orientation in MIRRORED else 1
    return image_HWC[::rows, ::columns]


UPSIDE_DOWN = frozenset({3, 4, 7, 8})
MIRRORED = frozenset({2, 3, 6, 7})


def owned(image_HWC: Pixels) -> Pixels:
    """The same pixels as a contiguous, writable array."""
    pixels_HWC = np.require(image_HWC, requirements=("C", "W"))
    # To NumPy an image one pixel wide is contiguous also if it is mirrored; to torch it is not.
    return pixels_HWC if min(pixels_HWC.strides) >= 0 else pixels_HWC.copy()


Box = tuple[int, int, int, int]


def decode_box(content: bytes, header: Header, box: Box, scale: JpegScale, *, name: str, limits: DecodeLimits) -> Pixels:
    """One box of a plain JPEG that passed `check`, upright, as RGB; rows below the box are not decoded.

    `box` is in pixels of the full size, on the grid of `scale.reduction` (see `snap`); the result is smaller by that factor.
    """
    jpeg = header.jpeg
    assert jpeg is not None, "only a JPEG is decoded by boxes"
    orientation = orientation_of(jpeg.exif)
    stored, reduction = _as_stored(box, jpeg, orientation), scale.reduction
    assert not any(edge % reduction for edge in stored), "the box is not on the grid of its reduction"
    top, left, height, width = (edge // reduction for edge in stored)
    try:
        image_HWC = decode_rows(content, jpeg, rows=stored[0] + stored[2], scale=scale, decoder=limits.jpeg_decoder)
    except BROKEN as error:
        raise broken(name, header.format, error) from error
    return upright(image_HWC[top : top + height, left : left + width], orientation)


def snap(box: Box, wanted: tuple[int, int], header: Header | None = None) -> tuple[Box, Reduction]:
    """The strongest reduction that leaves a box at least `wanted` (height, width) large, and the box moved onto its grid.

    Without a reduction the box does not move; else its corners move by less than two pixels of an output of size `wanted`.
    `header` is that of a JPEG, whose grid starts at the first stored pixel, which may be any corner of the upright image.
    """
    reduction = reduction_for(box[2:], wanted)
    jpeg = None if header is None else header.jpeg
    if jpeg is None:
        top, left, height, width = (edge - edge % reduction for edge in box)
        return (top, left, height, width), reduction
    orientation = orientation_of(jpeg.exif)
    top, left, height, width = (edge - edge % reduction for edge in _as_stored(box, jpeg, orientation))
    return _as_upright((top, left, height, width), jpeg, orientation), reduction


def upright_size(header: Header) -> tuple[int, int]:
    """(height, width) of the upright image of a JPEG, from its header."""
    assert header.jpeg is not None, "only a JPEG has its orientation in its header"
    size = header.height, header.width
    return size if orientation_of(header.jpeg.exif) < 5 else size[::-1]


def _as_stored(box: Box, jpeg: JpegHeader, orientation: int) -> Box:
    """A box of the upright image in coordinates of the stored one."""
    size = (jpeg.height, jpeg.width) if orientation < 5 else (jpeg.width, jpeg.height)
    top, left, height, width = _turned(box, size, orientation)
    return (top, left, height, width) if orientation < 5 else (left, top, width, height)


def _as_upright(box: Box, jpeg: JpegHeader, orientation: int) -> Box:
    """A box of the stored image in coordinates of the upright one."""
    if orientation < 5:
        return _turned(box, (jpeg.height, jpeg.width), orientation)
    top, left, height, width = box
    return _turned((left, top, width, height), (jpeg.width, jpeg.height), orientation)


def _turned(box: Box, size: tuple[int, int], orientation: int) -> Box:
    """A box with the axes reversed that `orientation` reverses."""
    top, left, height, width = box
    if orientation in UPSIDE_DOWN:
        top = size[0] - top - height
    if orientation in MIRRORED:
        left = size[1] - left - width
    return top, left, height, width
