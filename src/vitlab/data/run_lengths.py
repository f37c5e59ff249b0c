"""Masks as COCO writes them: run lengths, plain or as text, and polygons.

Run lengths go down the columns, from left to right: the number of pixels outside, then inside, then outside, and so on. A polygon
becomes the pixels that COCO's own program gives it.

Axes: H W pixels, P points.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError

Inside = NDArray[np.bool_]

_FINE = 5  # points of an outline for each pixel's side
_MOST_POINTS = 20_000_000  # of one polygon's outline: 4 million pixels of its length


def run_lengths(inside_HW: Inside) -> dict[str, Any]:
    """A mask as COCO's uncompressed run lengths."""
    flat = np.asarray(inside_HW).ravel(order="F")
    changes = np.flatnonzero(np.diff(flat.astype(np.int8))) + 1
    counts = np.diff([0, *changes.tolist(), len(flat)]).tolist()
    return {"size": list(inside_HW.shape), "counts": [0, *counts] if len(flat) and flat[0] else counts}


def from_run_lengths(rle: dict[str, Any]) -> Inside:
    """The mask that run lengths describe, plain or as text; DataError if they do not fill their size."""
    size, counts = rle.get("size"), rle.get("counts")
    if not isinstance(size, list) or len(size) != 2 or not all(isinstance(side, int) and 0 < side < 2**31 for side in size):
        raise DataError(f"the size of run lengths must be height and width, not {str(size)[:50]}")
    numbers = decoded_counts(counts) if isinstance(counts, str) else counts
    if not isinstance(numbers, list) or not all(type(number) is int and 0 <= number < 2**53 for number in numbers):
        raise DataError("the counts of run lengths must be whole numbers of at least 0, or COCO's text of them")
    height, width = size
    if (total := sum(numbers)) != height * width:
        raise DataError(f"run lengths of {total:,} pixels do not fill {height}x{width}")
    flat = np.repeat(np.arange(len(numbers)) % 2 == 1, numbers)
    return flat.reshape((height, width), order="F")


def decoded_counts(text: str) -> list[int]:
    """The counts in COCO's text: five bits a letter, the last letter of a number without its sixth; from the third number on,
    each is the difference to the last but one before it."""
    counts: list[int] = []
    value = shift = 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64 or shift > 60:
            raise DataError(f"the text of run lengths has {letter!r}, which COCO does not write there")
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            if bits & 16:
                value -= 1 << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    if shift:
        raise DataError("the text of run lengths ends inside of a number")
    return counts


def polygon_inside(points: NDArray[np.float64], size: tuple[int, int]) -> Inside:
    """The pixels of an image of (height, width) `size` inside a polygon of (x, y) `points`, (P, 2); parts outside are cut off.

    The outline is drawn on a grid five times as fine, as COCO does; each column changes where the outline crosses its middle.
    """
    height, width = size
    fine_P2 = np.trunc(points * _FINE + 0.5).astype(np.int64)
    x_P, y_P = np.append(fine_P2[:, 0], fine_P2[0, 0]), np.append(fine_P2[:, 1], fine_P2[0, 1])
    longest_P = np.maximum(np.abs(np.diff(x_P)), np.abs(np.diff(y_P)))
    if int(longest_P.sum()) + len(points) > _MOST_POINTS:
        raise DataError(f"a polygon has an outline of {int(longest_P.sum()) // _FINE:,} pixels, which is too long")
    u, v = _outline(x_P, y_P, longest_P)
    crosses = np.flatnonzero(u[1:] != u[:-1])
    column = np.minimum(u[crosses], u[crosses + 1])
    middle = (column % _FINE == _FINE // 2) & (column >= 0) & (column < width * _FINE)
    row = np.clip((np.minimum(v[crosses], v[crosses + 1])[middle] + 2) // _FINE, 0, height)
    places = column[middle] // _FINE * height + row
    changes = np.bincount(places[places < height * width], minlength=height * width)
    inside_HW: Inside = (np.cumsum(changes) % 2 == 1).reshape((height, width), order="F")
    return inside_HW


def _outline(
    x_P: NDArray[np.int64], y_P: NDArray[np.int64], longest_P: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every point of the closed outline, from corner to corner: whole steps along the longer axis of each edge."""
    edge = np.repeat(np.arange(len(longest_P)), longest_P + 1)
    first = np.cumsum(longest_P + 1) - (longest_P + 1)
    step = np.arange(len(edge)) - first[edge]
    dx_P, dy_P = np.diff(x_P), np.diff(y_P)
    flat_P = np.abs(dx_P) >= np.abs(dy_P)
    back_P = np.where(flat_P, dx_P < 0, dy_P < 0)  # such an edge is walked from its end, so that both directions give one line
    start_x_P, start_y_P = np.where(back_P, x_P[1:], x_P[:-1]), np.where(back_P, y_P[1:], y_P[:-1])
    rise_P = np.where(back_P, -1, 1) * np.where(flat_P, dy_P, dx_P) / np.maximum(longest_P, 1)
    along = np.where(back_P[edge], longest_P[edge] - step, step)
    begin = np.where(flat_P, start_y_P, start_x_P)[edge]
    across = np.trunc(begin + rise_P[edge] * along + 0.5).astype(np.int64)
    along = along + np.where(flat_P, start_x_P, start_y_P)[edge]
    flat = flat_P[edge]
    return np.where(flat, along, across), np.where(flat, across, along)
