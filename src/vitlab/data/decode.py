"""The image gate: bytes of any origin in, uint8 pixels out, or a DataError that names the file.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import io
import struct
import zlib

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

from vitlab.config.decode import DecodeLimits, ImageFormat
from vitlab.data.pixels.header import Header, read_header, stranger
from vitlab.data.pixels.jpeg import JpegScale, decode_rows, is_whole, orientation_of, reduction_for
from vitlab.errors import ConfigError, DataError

Pixels = NDArray[np.uint8]

# Pillow's readers by name and never `Image.open`: that tries all 43 of its formats and warns by a global limit of its own.
_OPENERS: dict[ImageFormat, type[ImageFile.ImageFile]] = {
    "jpeg": JpegImagePlugin.JpegImageFile,
    "png": PngImagePlugin.PngImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
    "bmp": BmpImagePlugin.BmpImageFile,
    "gif": GifImagePlugin.GifImageFile,
    "tiff": TiffImagePlugin.TiffImageFile,
}
# All that decoders have been seen to raise on broken bytes; MemoryError is not among them.
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
    Warning,  # Pillow warns of damaged metadata, and the caller may have made warnings errors
)
_WHITE = 255
CHANNELS = (1, 3, 4)


def decode(
    content: bytes,
    *,
    name: str,
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
    at_least: tuple[int, int] | None = None,
    channels: int = 3,
) -> Pixels:
    """A picture as uint8 [H, W, C], upright (its EXIF orientation applied), the first frame where it moves.

    `channels` is 3 (RGB), 1 (grey) or 4 (RGB and opacity); for 1 and 3 whatever is transparent is laid on white.
    16-bit grey is scaled to 8 bits; CMYK is converted; floating-point and 32-bit pictures are refused.
    `at_least` (height, width), as seen upright: a JPEG may then be decoded at 1/2, 1/4 or 1/8 of its size, as long as it
    stays at least that large; None decodes at full size, bit for bit as Pillow does.
    `name` is how errors call the picture.
    """
    header = check(content, name=name, limits=limits)
    if channels not in CHANNELS:
        raise ConfigError(f"channels={channels} must be 1 (grey), 3 (RGB) or 4 (RGB and opacity)")
    jpeg = header.jpeg
    try:
        if jpeg is None or not jpeg.plain:
            return _open(content, header, name=name, limits=limits, channels=channels)
        orientation = orientation_of(jpeg.exif)
        wanted = at_least if at_least is None or orientation < 5 else at_least[::-1]
        reduction = 1 if wanted is None else reduction_for((jpeg.height, jpeg.width), wanted)
        image_HWC = decode_rows(content, jpeg, rows=jpeg.height, scale=JpegScale(reduction), decoder=limits.jpeg_decoder)
    except BROKEN as error:
        raise broken(name, header.format, error) from error
    return in_channels(owned(upright(image_HWC, orientation)), channels)


def check(content: bytes, *, name: str, limits: DecodeLimits) -> Header:
    """The header of a picture that may be decoded; DataError where its format, size or end breaks `limits`."""
    if not content:
        raise DataError(f"{name} is empty", hint="copy or download it again, or remove it")
    try:
        header = read_header(content)
    except ValueError as error:
        raise DataError(f"{name} is a broken picture: {error}", hint="copy or download it again, or remove it") from error
    if header is None:
        raise DataError(f"{name} is not a picture vitlab reads: it is {stranger(content)}", hint=_accepted(limits))
    if header.format not in limits.formats:
        raise DataError(f"{name} is {_a(header.format)} picture, which is switched off", hint=_accepted(limits))
    if header.format != "tiff":
        _check_size(header.height, header.width, name=name, limits=limits)
    if header.jpeg is not None and not is_whole(content, header.jpeg):
        raise DataError(f"{name} is cut short: its end is missing", hint="copy or download it again, or remove it")
    return header


def _check_size(height: int, width: int, *, name: str, limits: DecodeLimits) -> None:
    if height < 1 or width < 1:
        raise DataError(f"{name} is empty: its header says {height}x{width} pixels", hint="remove it")
    if height * width > limits.max_pixels:
        raise DataError(
            f"{name} has {height}x{width} pixels, more than the limit of {limits.max_pixels:,}",
            hint="make it smaller, or raise max_pixels if you trust it",
        )


def _accepted(limits: DecodeLimits) -> str:
    return f"convert it to one of {', '.join(limits.formats)}, or remove it"


def _a(word: str) -> str:
    return f"a {word.upper()}"


def broken(name: str, kind: ImageFormat, error: Exception) -> DataError:
    """What to say of a picture that its decoder gave up on."""
    reason = str(error).strip() or type(error).__name__
    return DataError(f"{name} is a broken {kind.upper()}: {reason}", hint="copy or download it again, or remove it")


def _open(content: bytes, header: Header, *, name: str, limits: DecodeLimits, channels: int) -> Pixels:
    with _OPENERS[header.format](io.BytesIO(content)) as image:
        # Once more, by the reader's own account: a GIF frame may be larger than its canvas, a TIFF's size is only known now.
        _check_size(image.height, image.width, name=name, limits=limits)
        image.load()
        pixels_HWC = _pixels(image, name=name, channels=channels)
        exif: bytes = image.info.get("exif", b"")
    # TIFF turns itself upright when it is loaded.
    orientation = 1 if header.format == "tiff" else orientation_of(exif.removeprefix(b"Exif\x00\x00"))
    return owned(upright(pixels_HWC, orientation))


def from_pillow(
    image: Image.Image,
    *,
    name: str,
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
    channels: int = 3,
) -> Pixels:
    """A picture that Pillow has opened, as `decode` gives its file: upright, transparency laid on white, uint8 [H, W, C]."""
    if channels not in CHANNELS:
        raise ConfigError(f"channels={channels} must be 1 (grey), 3 (RGB) or 4 (RGB and opacity)")
    _check_size(image.height, image.width, name=name, limits=limits)
    try:
        image.load()
        pixels_HWC = _pixels(image, name=name, channels=channels)
    except BROKEN as error:
        raise DataError(f"{name} cannot be read: {str(error).strip() or type(error).__name__}") from error
    exif = image.info.get("exif", b"")
    turned = image.format == "TIFF" or not isinstance(exif, bytes)  # TIFF turns itself upright when it is loaded
    return owned(upright(pixels_HWC, 1 if turned else orientation_of(exif.removeprefix(b"Exif\x00\x00"))))


def _pixels(image: Image.Image, *, name: str, channels: int) -> Pixels:
    """The pixels of a loaded picture of any mode, as 1, 3 or 4 channels."""
    if image.mode.startswith("I;16"):
        image = _eight_bits(image)
    if image.mode not in _MODES:
        raise DataError(
            f"{name} stores its pixels as {_REFUSED.get(image.mode, 'an unknown kind of number')} (mode {image.mode})",
            hint="save it again with 8 bits for each channel",
        )
    if image.mode in _WITH_OPACITY or _has_transparent_colour(image):
        image = image.convert("RGBA")
        if channels != 4:
            image = Image.alpha_composite(Image.new("RGBA", image.size, (_WHITE, _WHITE, _WHITE, _WHITE)), image)
    if channels != 1:
        return np.asarray(image.convert("RGB" if channels == 3 else "RGBA"))
    if image.mode not in ("1", "L"):
        image = image.convert("RGB")
    return np.asarray(image.convert("L"))[:, :, None]


_WITH_OPACITY = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_MODES = _WITH_OPACITY | {"1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr"}
_REFUSED = {"F": "floating-point numbers", "I": "32-bit whole numbers", "LAB": "Lab colours", "HSV": "HSV colours"}


def _has_transparent_colour(image: Image.Image) -> bool:
    """Whether one colour stands for nothing; it cannot be told in 16-bit RGB, of which Pillow keeps the upper halves."""
    colour = image.info.get("transparency")
    if colour is None:
        return False
    return not (isinstance(colour, tuple) and max(colour) > 255)


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey scaled so that 65,535 is 255; Pillow's own conversion would clip at 255."""
    deep_HW = np.asarray(image).astype(np.uint32)
    grey_HW = ((deep_HW * 255 + 32767) // 65535).astype(np.uint8)
    nothing = image.info.get("transparency")
    if not isinstance(nothing, int):
        return Image.fromarray(grey_HW)
    opacity_HW = np.where(deep_HW == nothing, 0, 255).astype(np.uint8)
    return Image.merge("LA", (Image.fromarray(grey_HW), Image.fromarray(opacity_HW)))


def in_channels(image_HWC: Pixels, channels: int) -> Pixels:
    """An RGB picture as 1, 3 or 4 channels."""
    if channels == 1:
        image_HWC = np.asarray(Image.fromarray(image_HWC).convert("L"))[:, :, None]
    elif channels == 4:
        height, width, _ = image_HWC.shape
        image_HWC = np.concatenate([image_HWC, np.full((height, width, 1), 255, np.uint8)], axis=2)
    return owned(image_HWC)


def upright(image_HWC: Pixels, orientation: int) -> Pixels:
    """A stored picture turned as its EXIF orientation (1 to 8) says; a view, nothing is copied."""
    if orientation >= 5:  # 5 to 8 are 1 to 4 with rows and columns exchanged
        image_HWC = image_HWC.transpose(1, 0, 2)
    rows = -1 if orientation in UPSIDE_DOWN else 1
    columns = -1 if orientation in MIRRORED else 1
    return image_HWC[::rows, ::columns]


UPSIDE_DOWN = frozenset({3, 4, 7, 8})
MIRRORED = frozenset({2, 3, 6, 7})


def owned(image_HWC: Pixels) -> Pixels:
    """The same pixels in one contiguous block that may be written to."""
    return np.require(image_HWC, requirements=("C", "W"))
