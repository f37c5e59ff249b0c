"""Images that are numbers of any type in any number of channels: NumPy arrays, TIFF beyond what Pillow reads, DICOM.

Each `open_*` reads a header and gives a `Stored`, whose size is checked before `read` makes its numbers; `levels` then makes 8-bit
levels of them. Errors of broken files are those of the libraries: `vitlab.data.decode` gives them the image's name.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import DecodeLimits, PixelScale
from vitlab.errors import DataError
from vitlab.io.arrays import read_npy_header
from vitlab.io.optional import optional_import

Pixels = NDArray[np.uint8]
Numbers = NDArray[Any]

MOST_CHANNELS = 1024
_KINDS = "buif"  # of numbers in an array: bool, unsigned, signed, floating point
_PERCENTILES = 0.5, 99.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An image in a file whose header has been read: its size, and `read`, which gives its numbers [H, W, C].

    `bytes_per_pixel` is the memory that reading and scaling take for each pixel. `span` is the range of its numbers that `full`
    scales to 0 to 255, if the file states one; `inverted` says that its least number is white. `bits` are those of a whole number
    whose range the file does not state, else 0.
    """

    height: int
    width: int
    channels: int
    bytes_per_pixel: int
    read: Callable[[], Numbers]
    span: tuple[float, float] | None = None
    inverted: bool = False
    bits: int = 0


def _memory(channels: int, itemsize: int) -> int:
    """Bytes for each pixel: the numbers and two copies, one channel in double precision with its sorted copy, and the levels."""
    return 3 * channels * itemsize + 32 + channels


def open_npy(content: bytes, *, name: str) -> Stored:
    """A NumPy array of shape (H, W) or (H, W, C). An array of Python objects, which would be unpickled, is refused."""
    header = read_npy_header(content, where=name)
    shape, dtype = header.shape, header.dtype
    if dtype.kind not in _KINDS or dtype.itemsize > 8:
        raise DataError(f"{name} is an array of {dtype}, not an image", hint="save whole numbers or floating point")
    if len(shape) not in (2, 3):
        raise DataError(f"{name} is an array of shape {list(shape)}, not an image", hint="save [height, width, channels]")
    height, width, channels = (*shape, 1) if len(shape) == 2 else shape

    def read() -> Numbers:
        count = height * width * channels
        if len(content) - header.bytes < count * dtype.itemsize:
            raise ValueError("it is cut short")
        flat = np.frombuffer(content, dtype, count, header.bytes)
        return flat.reshape((height, width, channels), order="F" if header.fortran else "C").astype(dtype.newbyteorder("="))

    return Stored(
        height=height,
        width=width,
        channels=channels,
        bytes_per_pixel=_memory(channels, dtype.itemsize),
        read=read,
        bits=8 * dtype.itemsize if dtype.kind in "ui" else 0,
    )


_PLAIN, _DEFLATE = 1, (8, 32946)  # TIFF's numbers of compressions


def open_tiff(content: bytes, *, name: str) -> Stored:
    """The first page of a TIFF that Pillow does not read, by tifffile: any number of channels, any type of numbers.

    Accepted is what is not compressed or compressed by deflate, whose output is bounded before it is made.
    """
    tifffile = optional_import("tifffile", purpose=f"{name} and other TIFF files beyond grey and colour", error=DataError)
    # Nothing is read but the first page: descriptions of other programs may name further files and are not followed.
    file = tifffile.TiffFile(io.BytesIO(content), is_ome=False, is_lsm=False, is_mmstack=False, is_scanimage=False, is_ndpi=False)
    page = file.pages.first
    if int(page.compression) not in (_PLAIN, *_DEFLATE):
        raise DataError(
            f"{name} is compressed by {page.compression.name}, which is read for grey and 8-bit colour images only",
            hint="save it again without compression or with deflate (zlib)",
        )
    if page.dtype is None or page.dtype.kind not in _KINDS or page.dtype.itemsize > 8:
        raise ValueError("its numbers are of a type that is not an image's")
    if page.imagedepth != 1 or page.imagelength < 1 or page.imagewidth < 1:
        raise ValueError(f"its shape {list(page.shape)} is not that of an image")
    height, width, channels = page.imagelength, page.imagewidth, page.samplesperpixel
    chunk = math.prod(page.chunks) * page.dtype.itemsize

    def read() -> Numbers:
        if int(page.compression) in _DEFLATE:
            _check_deflate(content, page, chunk)
        values = page.asarray(maxworkers=1)
        separate = page.planarconfig == 2 and channels > 1
        shaped: Numbers = values.reshape((channels, height, width) if separate else (height, width, channels))
        return shaped.transpose(1, 2, 0) if separate else shaped

    own = _memory(channels, page.dtype.itemsize)
    return Stored(
        height=height,
        width=width,
        channels=channels,
        bytes_per_pixel=max(own, math.ceil(2 * chunk / max(1, height * width))),
        read=read,
        inverted=int(page.photometric) == 0,
    )


def _check_deflate(content: bytes, page: Any, most: int) -> None:
    """ValueError if a strip or tile holds more than its header says: tifffile would make all of it."""
    for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True):
        inflater = zlib.decompressobj()
        inflater.decompress(content[offset : offset + count], most)
        if inflater.unconsumed_tail and inflater.decompress(inflater.unconsumed_tail, 1):
            raise ValueError("a strip holds more pixels than its header says")


_RAW = {"1.2.840.10008.1.2": "implicit", "1.2.840.10008.1.2.1": "little", "1.2.840.10008.1.2.2": "big"}
_RLE, _JPEG = "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4.50"
_RLE_GROWS = 64  # two bytes become at most 128
_GREY, _COLOUR = ("MONOCHROME1", "MONOCHROME2"), ("RGB", "YBR_FULL", "YBR_FULL_422")
_DICOM_TAGS = [
    "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames", "Rows", "Columns", "BitsAllocated",
    "BitsStored", "HighBit", "PixelRepresentation", "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "WindowCenter",
    "WindowWidth", "PixelData", "ExtendedOffsetTable", "ExtendedOffsetTableLengths",
]  # fmt: skip

DecodeJpeg = Callable[[bytes, int], Pixels]
"""From a JPEG file and a number of channels to its pixels."""


def open_dicom(content: bytes, *, name: str, limits: DecodeLimits, decode_jpeg: DecodeJpeg) -> Stored:
    """The first frame of a DICOM file, by pydicom: not compressed, by RLE or by 8-bit JPEG.

    Grey numbers are multiplied by the rescale slope, and the intercept is added. Their `span` is the file's first window, else the
    range of its bits. MONOCHROME1 is inverted. `decode_jpeg` decodes a JPEG inside the file.
    """
    pydicom = optional_import("pydicom", purpose=f"{name} and other DICOM files", error=DataError)
    try:
        return _opened_dicom(pydicom, content, name=name, limits=limits, decode_jpeg=decode_jpeg)
    except (pydicom.errors.InvalidDicomError, pydicom.errors.BytesLengthException) as error:
        raise ValueError(str(error)) from error


def _opened_dicom(pydicom: Any, content: bytes, *, name: str, limits: DecodeLimits, decode_jpeg: DecodeJpeg) -> Stored:
    syntax = _transfer_syntax(content)
    if syntax not in (*_RAW, _RLE, _JPEG):
        known = pydicom.uid.UID(syntax)
        raise DataError(
            f"{name} is compressed in a way that vitlab does not read: {known.name if known.is_valid else 'unknown'}",
            hint="decompress it, for example by gdcmconv or dcmdjpeg",
        )
    found = pydicom.dcmread(io.BytesIO(content), specific_tags=_DICOM_TAGS)
    list(found)  # pydicom reads a field when it is first asked for: now, so that a damaged one is an error here
    kind = str(found.get("PhotometricInterpretation", ""))
    if "PixelData" not in found:
        raise DataError(f"{name} is a DICOM file without an image", hint="remove it")
    if kind not in (*_GREY, *_COLOUR) or "ModalityLUTSequence" in found:
        what = f"colours stored as {kind}" if kind not in (*_GREY, *_COLOUR) else "a look-up table of its numbers"
        raise DataError(f"{name} is a DICOM file with {what}, which vitlab does not read", hint="export it as PNG")
    height, width, channels = int(found.Rows), int(found.Columns), int(found.SamplesPerPixel)
    bits, allocated = int(found.BitsStored), int(found.BitsAllocated)
    if channels != (1 if kind in _GREY else 3) or not 1 <= bits <= allocated <= 32:
        raise ValueError(f"it has {channels} channels of {bits} bits, stored in {allocated}, as {kind}")
    if syntax == _RLE and _RLE_GROWS * len(content) > limits.max_memory:
        raise DataError(
            f"{name} is a file of {len(content):,} bytes compressed by RLE, which may take more than the limit of"
            f" {limits.max_memory / 1e6:,.0f} MB",
            hint="decompress it, or raise max_memory if you trust it",
        )

    slope, intercept = float(found.get("RescaleSlope", 1)), float(found.get("RescaleIntercept", 0))

    def read() -> Numbers:
        if syntax == _JPEG:
            frames = int(found.get("NumberOfFrames", 1) or 1)
            frame = pydicom.encaps.get_frame(found.PixelData, 0, number_of_frames=frames)
            values: Numbers = decode_jpeg(bytes(frame), channels)
        else:
            values = pydicom.pixels.pixel_array(found, index=0)
        values = values.reshape(height, width, channels)
        return values if kind in _COLOUR else values * np.float64(slope) + intercept

    signed = int(found.get("PixelRepresentation", 0)) == 1
    ends = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    low, high = sorted(slope * end + intercept for end in ends)
    if not math.isfinite(high - low):
        raise ValueError(f"its rescale slope {slope} and intercept {intercept} are not usable")
    return Stored(
        height=height,
        width=width,
        channels=channels,
        bytes_per_pixel=_memory(channels, 8),
        read=read,
        span=None if kind in _COLOUR and bits == 8 else (None if kind in _COLOUR else _window(found)) or (low, high),
        inverted=kind == "MONOCHROME1",
    )


def _transfer_syntax(content: bytes) -> str:
    """How the data of a DICOM file is encoded, read before pydicom opens it: a deflated file would be inflated without a limit."""
    filereader = optional_import("pydicom.filereader", purpose="DICOM files", error=DataError)
    stream = io.BytesIO(content)
    stream.seek(132)
    meta = filereader.read_dataset(stream, False, True, stop_when=lambda tag, vr, length: tag.group != 2)
    return str(meta.TransferSyntaxUID)


def _window(found: Any) -> tuple[float, float] | None:
    """The first window as the numbers that become black and white: DICOM PS3.3, C.11.2.1.2.1."""

    def first(key: str) -> float | None:
        value = found.get(key)
        if value is None or value == "":
            return None
        return float(value if isinstance(value, str | int | float) else value[0])

    centre, width = first("WindowCenter"), first("WindowWidth")
    if centre is None or width is None or not (math.isfinite(centre) and width > 1):
        return None
    return centre - 0.5 - (width - 1) / 2, centre - 0.5 + (width - 1) / 2


def levels(
    values_HWC: Numbers, *, name: str, scale: PixelScale = "full", span: tuple[float, float] | None = None, inverted: bool = False
) -> Pixels:
    """Numbers of any type as 8-bit levels; numbers of 8 bits stay as they are for every `scale`.

    `full`: `span` if it is given, else 0 to 65,535 for unsigned numbers of 16 bits, else the smallest range that holds all numbers:
    0 to 1 (floating point), 0 to 255, 0 to 65,535, from least to largest. `percentile`: from the 0.5th to the 99.5th percentile of
    each channel; `file`: from the least to the largest number of each channel; a channel of one number is scaled as by `full`.
    Numbers outside the range become 0 or 255.
    """
    if values_HWC.dtype == bool:
        values_HWC = values_HWC * np.uint8(255)
    if values_HWC.dtype == np.uint8 and span is None:
        return 255 - values_HWC if inverted else values_HWC
    if values_HWC.dtype.kind == "f" and not np.isfinite(values_HWC).all():
        raise DataError(f"{name} holds numbers that are not finite", hint="replace NaN and Inf before you save it")
    if scale == "full":
        low, high = _full_range(values_HWC) if span is None else span
        ranges = [(low, high)] * values_HWC.shape[2]
    else:
        ranges = [_own_range(plane_HW, scale) for plane_HW in _planes(values_HWC)]
    if not all(math.isfinite(high - low) for low, high in ranges):
        raise DataError(f"{name} holds numbers that are too large", hint="scale them before you save it")
    planes = [_scaled(plane_HW, low, high) for plane_HW, (low, high) in zip(_planes(values_HWC), ranges, strict=True)]
    levels_HWC = np.stack(planes, axis=2)
    return 255 - levels_HWC if inverted else levels_HWC


def _planes(values_HWC: Numbers) -> Iterator[Numbers]:
    return (values_HWC[:, :, channel] for channel in range(values_HWC.shape[2]))


def _scaled(plane_HW: Numbers, low: float, high: float) -> Pixels:
    wide = plane_HW.astype(np.float64)
    wide -= low
    wide *= 255 / (high - low) if high > low else 0.0
    wide += 0.5
    return np.floor(np.clip(wide, 0, 255)).astype(np.uint8)


def _full_range(values: Numbers) -> tuple[float, float]:
    if values.dtype == np.uint16:
        return 0.0, 65535.0
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 65535:
        return low, high
    return 0.0, 1.0 if high <= 1 and values.dtype.kind == "f" else 255.0 if high <= 255 else 65535.0


def _own_range(plane_HW: Numbers, scale: PixelScale) -> tuple[float, float]:
    if scale == "percentile":
        low, high = np.percentile(plane_HW, _PERCENTILES)
        if high > low:
            return float(low), float(high)
    low, high = float(plane_HW.min()), float(plane_HW.max())  # also of a channel that is background nearly everywhere
    return (low, high) if high > low else _full_range(plane_HW)
