"""Where a transform puts an image, and boxes that move with it.

The boxes of a batch are one array (B, M, 6), a row for each box: its class, its left, top, right and bottom as fractions of what
the model sees, and 1 if it counts for nothing, else 0. Images with fewer boxes than M are filled with rows of class -1.

Axes: B batch, M boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import ImageBoxes, Pixels

NO_BOX = -1
"""The class of a row that is no box."""

VISIBLE = 0.25
"""In training, a box of which a crop leaves less than this fraction counts for nothing: nobody could tell what it shows."""

BatchBoxes = NDArray[np.float32]


class Frame(NamedTuple):
    """Where an image of (height, width) pixels lies in what the model sees.

    Its point (x, y), in pixels, lies at (x * across + left, y * down + top), in fractions of what the model sees; `across` is
    negative for a mirrored image.
    """

    height: int
    width: int
    across: float
    left: float
    down: float
    top: float

    def mirrored(self) -> Frame:
        """The same, flipped horizontally."""
        return self._replace(across=-self.across, left=1 - self.left)

    def forward(self, corners_M4: NDArray[np.float64]) -> NDArray[np.float64]:
        """Boxes in pixels of the image as fractions of what the model sees."""
        x_M2 = np.sort(corners_M4[:, 0::2] * self.across + self.left, axis=1)
        y_M2 = corners_M4[:, 1::2] * self.down + self.top
        return np.stack([x_M2[:, 0], y_M2[:, 0], x_M2[:, 1], y_M2[:, 1]], axis=1)

    def back(self, corners_M4: NDArray[np.float64]) -> NDArray[np.float64]:
        """Boxes as fractions of what the model sees in pixels of the image."""
        x_M2 = np.sort((corners_M4[:, 0::2] - self.left) / self.across, axis=1)
        y_M2 = (corners_M4[:, 1::2] - self.top) / self.down
        return np.stack([x_M2[:, 0], y_M2[:, 0], x_M2[:, 1], y_M2[:, 1]], axis=1)


class Framed(NamedTuple):
    """What a transform of images with boxes gives: pixels, and where the image lies in them."""

    image_HWC: Pixels
    frame: Frame


def whole_frame(height: int, width: int) -> Frame:
    """The frame of an image that is squashed: it fills what the model sees."""
    return Frame(height=height, width=width, across=1 / width, left=0.0, down=1 / height, top=0.0)


def areas(corners_M4: NDArray[np.float64]) -> NDArray[np.float64]:
    """Width times height of each box, 0 for one whose sides are not positive."""
    found_M: NDArray[np.float64] = (corners_M4[:, 2:] - corners_M4[:, :2]).clip(0).prod(1)
    return found_M


def inside_image(boxes: ImageBoxes, size: tuple[int, int]) -> NDArray[np.float64]:
    """The boxes cut at the edges of an image of (height, width) `size`."""
    height, width = size
    return boxes.corners_M4.clip(0, np.array([width, height, width, height], np.float64))


def move_boxes(boxes: ImageBoxes, frame: Frame, *, visible: float = 0.0) -> BatchBoxes:
    """The boxes of an image in what the model sees, (M, 6) as in a batch, cut at its edges.

    A box without area inside the image or inside the frame is left out. One of which the frame shows less than the fraction
    `visible` counts for nothing.
    """
    own_M4 = inside_image(boxes, (frame.height, frame.width))
    whole_M4 = frame.forward(own_M4)
    seen_M4 = whole_M4.clip(0, 1)
    area_M, seen_M = areas(whole_M4), areas(seen_M4)
    kept_M = (area_M > 0) & (seen_M > 0)
    ignored_M = boxes.ignored_M | (seen_M < visible * area_M)
    moved_M6 = np.concatenate([boxes.codes_M[:, None], seen_M4, ignored_M[:, None]], axis=1)
    return moved_M6[kept_M].astype(np.float32)


def batch_boxes(images: Sequence[BatchBoxes]) -> BatchBoxes:
    """The boxes of several images as one array, at least one row an image."""
    most = max([1, *map(len, images)])
    filled_BM6 = np.zeros((len(images), most, 6), np.float32)
    filled_BM6[:, :, 0] = NO_BOX
    for row, boxes_M6 in enumerate(images):
        filled_BM6[row, : len(boxes_M6)] = boxes_M6
    return filled_BM6
