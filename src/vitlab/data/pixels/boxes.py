"""One box of a JPEG, decoded no further down than it reaches and no finer than it is shown.

A box is (top, left, height, width) in pixels of the upright picture. Axes: H height, W width, C channels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitlab.config.decode import DecodeLimits
from vitlab.data.decode import BROKEN, MIRRORED, UPSIDE_DOWN, broken, upright
from vitlab.data.pixels.header import Header
from vitlab.data.pixels.jpeg import JpegHeader, JpegScale, Reduction, decode_rows, orientation_of, reduction_for

Pixels = NDArray[np.uint8]
Box = tuple[int, int, int, int]


def decode_box(content: bytes, header: Header, box: Box, scale: JpegScale, *, name: str, limits: DecodeLimits) -> Pixels:
    """One box of a plain JPEG that `check` let pass, upright, as RGB: rows below the box are never decoded.

    `box` is in pixels of the full size, on the grid of `scale.reduction` as `snap` puts it; what comes back is smaller by
    that factor.
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

    Unreduced it does not move; else its corners do, by less than two pixels of a view of size `wanted`.
    `header` is that of a JPEG, whose grid starts at the first pixel stored, wherever that one is once it is upright.
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
    """(height, width) of a JPEG once it is upright, from its header alone."""
    assert header.jpeg is not None, "only a JPEG has its orientation in its header"
    size = header.height, header.width
    return size if orientation_of(header.jpeg.exif) < 5 else size[::-1]


def _as_stored(box: Box, jpeg: JpegHeader, orientation: int) -> Box:
    """Where a box of the upright picture lies in the stored one: `upright` undone."""
    size = (jpeg.height, jpeg.width) if orientation < 5 else (jpeg.width, jpeg.height)
    top, left, height, width = _turned(box, size, orientation)
    return (top, left, height, width) if orientation < 5 else (left, top, width, height)


def _as_upright(box: Box, jpeg: JpegHeader, orientation: int) -> Box:
    """Where a box of the stored picture lies in the upright one."""
    if orientation < 5:
        return _turned(box, (jpeg.height, jpeg.width), orientation)
    top, left, height, width = box
    return _turned((left, top, width, height), (jpeg.width, jpeg.height), orientation)


def _turned(box: Box, size: tuple[int, int], orientation: int) -> Box:
    """A box counted from the other end of each axis that `orientation` turns round."""
    top, left, height, width = box
    if orientation in UPSIDE_DOWN:
        top = size[0] - top - height
    if orientation in MIRRORED:
        left = size[1] - left - width
    return top, left, height, width
