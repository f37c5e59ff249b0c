"""VTAB's classes where a set has measurements and no classes of its own: distances and counts in bins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

KITTI_CLASSES = ("up to 8 m", "8 to 20 m", "over 20 m", "no vehicle")
CLEVR_DISTANCES = ("up to 8", "8 to 8.5", "8.5 to 9", "9 to 9.5", "9.5 to 10", "over 10")
CLEVR_FEWEST, CLEVR_MOST = 3, 10
CLEVR_COUNTS = tuple(f"{count} objects" for count in range(CLEVR_FEWEST, CLEVR_MOST + 1))

_KITTI_METRES = (-100.0, 8.0, 20.0, 999.0)
_NO_VEHICLE = 1000.0
_VEHICLES = ("Car", "Van", "Truck")
_CLEVR_DEPTHS = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)


def bin_of(value: float, thresholds: Sequence[float]) -> int:
    """The last of the thresholds that the value exceeds."""
    return max(place for place, threshold in enumerate(thresholds) if threshold < value)


def kitti_class(lines: Iterable[str]) -> int:
    """How far the closest vehicle is ahead of the camera, from the lines of a label file.

    A line is type, truncated, occluded, alpha, box (4), height, width, length, x, y, z, rotation; z is metres ahead.
    ValueError or IndexError where a line is none.
    """
    objects = (line.split() for line in lines)
    ahead = min((float(words[13]) for words in objects if words[0] in _VEHICLES), default=_NO_VEHICLE)
    return bin_of(ahead, _KITTI_METRES)


def clevr_distance(depths: Iterable[float]) -> int:
    """The bin of the closest object's depth; ValueError where there is no object."""
    return bin_of(min(depths), _CLEVR_DEPTHS)
