"""Evaluation preprocessing: from a decoded picture to the pixels the model sees, the same for everyone who evaluates.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.config.data import Interpolation, Preprocess
from vitlab.errors import DataError

Pixels = NDArray[np.uint8]
Box = tuple[int, int, int, int]  # top, left, height, width in pixels

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_LARGEST_WHOLE = 1 << 24  # pixels of a scaled picture of which only the centre is kept


def preprocess(image_HWC: Pixels, config: Preprocess) -> Pixels:
    """A decoded picture (uint8 [H, W, C]) resized and cropped or padded to `config.image_size`, still uint8.

    The picture must have `config.channels` channels. Normalisation is left to `vitlab.data.normalise`.
    """
    check_pixels(image_HWC, config.channels)
    height, width, _ = image_HWC.shape
    out_height, out_width = config.image_size
    match config.resize:
        case "short-side":
            size = short_side_size(height, width, config.resize_to)
            box = centre_box(size, config.image_size)
            return resize(image_HWC, size, config.interpolation, box=box)
        case "squash":
            return resize(image_HWC, config.image_size, config.interpolation)
        case "pad":
            size = fitted_size(height, width, config.image_size)
            padded_HWC = np.full((out_height, out_width, config.channels), config.fill, np.uint8)
            top, left = (out_height - size[0]) // 2, (out_width - size[1]) // 2
            padded_HWC[top : top + size[0], left : left + size[1]] = resize(image_HWC, size, config.interpolation)
            return padded_HWC


def check_pixels(image_HWC: Pixels, channels: int) -> None:
    """Refuse an array that is not a uint8 picture of so many channels."""
    if image_HWC.dtype != np.uint8 or image_HWC.ndim != 3 or 0 in image_HWC.shape:
        raise DataError(
            f"a picture must be a uint8 array [height, width, channels], not {image_HWC.dtype} {list(image_HWC.shape)}",
            hint="a grey picture has one channel: array[:, :, None]",
        )
    if image_HWC.shape[2] != channels:
        raise DataError(
            f"the picture has {image_HWC.shape[2]} channels and the model takes {channels}",
            hint=f"decode it with channels={channels}",
        )


def short_side_size(height: int, width: int, resize_to: int) -> tuple[int, int]:
    """(height, width) once the shorter side is `resize_to`, the longer one rounded to the nearest pixel."""
    if height <= width:
        return resize_to, round(width * resize_to / height)
    return round(height * resize_to / width), resize_to


def fitted_size(height: int, width: int, into: tuple[int, int]) -> tuple[int, int]:
    """The largest (height, width) of the same aspect that fits inside `into`, rounded, at least 1 pixel."""
    if height * into[1] >= width * into[0]:  # the height is what fills
        return into[0], max(1, round(width * into[0] / height))
    return max(1, round(height * into[1] / width)), into[1]


def centre_box(size: tuple[int, int], crop: tuple[int, int]) -> Box:
    """The central (height, width) `crop` of a picture of `size`; an odd pixel is left over at the bottom or right."""
    return (size[0] - crop[0]) // 2, (size[1] - crop[1]) // 2, *crop


def resize(image_HWC: Pixels, size: tuple[int, int], interpolation: Interpolation, *, box: Box | None = None) -> Pixels:
    """The picture scaled to `size` (height, width), or only the `box` of the scaled picture."""
    box = (0, 0, *size) if box is None else box
    if interpolation == "tf-bilinear":
        return _tf_bilinear(image_HWC, size, box)
    channels = image_HWC.shape[2]
    if channels == 3:
        return _pillow(Image.fromarray(image_HWC), size, interpolation, box)
    # One by one: with four, Pillow would take the last for opacity and weigh the others by it.
    planes = [_pillow(Image.fromarray(image_HWC[:, :, c]), size, interpolation, box) for c in range(channels)]
    return np.stack(planes, axis=2)


def _pillow(image: Image.Image, size: tuple[int, int], interpolation: Interpolation, box: Box) -> Pixels:
    top, left, height, width = box
    if size[0] * size[1] <= _LARGEST_WHOLE:
        scaled_HWC = np.asarray(image.resize((size[1], size[0]), _FILTERS[interpolation]))
        return np.array(scaled_HWC[top : top + height, left : left + width])
    # A strip of 1 x 5,000 would be 256 x 1,280,000 before its crop: compute the box alone. Not done for every picture, because
    # Pillow takes box corners in single precision and orders its two passes by their cost: levels would differ by a few.
    down, across = image.height / size[0], image.width / size[1]
    right, bottom = min((left + width) * across, image.width), min((top + height) * down, image.height)
    return np.array(image.resize((width, height), _FILTERS[interpolation], box=(left * across, top * down, right, bottom)))


def _tf_bilinear(image_HWC: Pixels, size: tuple[int, int], box: Box) -> Pixels:
    """`tf.image.resize(method="bilinear", antialias=False)`, in its own float32 arithmetic, then rounded to the nearest level."""
    top, left, height, width = box
    above_H, below_H, down_H = _tf_neighbours(image_HWC.shape[0], size[0], top, height)
    left_W, right_W, across_W = _tf_neighbours(image_HWC.shape[1], size[1], left, width)
    across_W1, down_H11 = across_W[:, None], down_H[:, None, None]
    upper_HWC = _lerp(image_HWC[above_H][:, left_W], image_HWC[above_H][:, right_W], across_W1)
    lower_HWC = _lerp(image_HWC[below_H][:, left_W], image_HWC[below_H][:, right_W], across_W1)
    return np.rint(_lerp(upper_HWC, lower_HWC, down_H11)).astype(np.uint8)


def _tf_neighbours(
    length: int, resized: int, first: int, count: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """For `count` output pixels from `first`: the input pixels before and after each, and how far it is from the first one."""
    scale = np.float32(length) / np.float32(resized)
    half = np.float32(0.5)
    position = (np.arange(first, first + count, dtype=np.float32) + half) * scale - half
    whole = np.floor(position)
    before = np.maximum(whole, 0).astype(np.intp)
    after = np.minimum(np.ceil(position), length - 1).astype(np.intp)
    return before, after, position - whole


def _lerp(
    start: NDArray[np.uint8] | NDArray[np.float32], end: NDArray[np.uint8] | NDArray[np.float32], share: NDArray[np.float32]
) -> NDArray[np.float32]:
    first = start.astype(np.float32)
    between: NDArray[np.float32] = first + (end.astype(np.float32) - first) * share
    return between
