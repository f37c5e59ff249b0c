"""The training view of a picture: where to cut is decided from the header, then only that is decoded and scaled.

Every function is pure: the picture, a generator and a config in, pixels out.
Axes: H height, W width, C channels.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from vitlab.config.augment import Augment
from vitlab.config.data import Interpolation
from vitlab.config.decode import DecodeLimits
from vitlab.data.augment import distort
from vitlab.data.decode import check, decode, in_channels, owned
from vitlab.data.pixels.boxes import Box, decode_box, snap, upright_size
from vitlab.data.pixels.header import Header
from vitlab.data.pixels.jpeg import JpegScale, Reduction
from vitlab.data.preprocess import check_pixels

Pixels = NDArray[np.uint8]

_TRIES = 10


def training_view(
    content: bytes | Pixels,
    config: Augment,
    rng: np.random.Generator,
    *,
    name: str = "the picture",
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
    channels: int = 3,
) -> Pixels:
    """One augmented view, uint8 [H, W, C] of `config.image_size`, of a picture file's bytes or of decoded pixels.

    A JPEG is decoded no further down than the crop reaches. Where the picture is at least twice the view on both sides and the
    crop covers the view, it is also decoded by libjpeg's quicker arithmetic, and at 1/2, 1/4 or 1/8 of its size as long as the
    crop still covers the view; the crop then lies on the grid of that reduction. The view is that of a whole decode, crop and
    resize: exactly for smaller pictures, and to about one level on average for these.
    The random choices are drawn in this order: crop, flip, RandAugment, colour jitter, erasing.
    """
    if config.crop == "inception":
        view_HWC = _inception_view(content, config, rng, name=name, limits=limits, channels=channels)
    else:
        view_HWC = _whole_view(content, config, rng, name=name, limits=limits, channels=channels)
    if rng.random() < config.flip:
        view_HWC = mirror(view_HWC)
    return distort(view_HWC, config, rng)


def _inception_view(
    content: bytes | Pixels, config: Augment, rng: np.random.Generator, *, name: str, limits: DecodeLimits, channels: int
) -> Pixels:
    header = check(content, name=name, limits=limits) if isinstance(content, bytes) else None
    if isinstance(content, bytes) and header is not None and header.jpeg is not None and header.jpeg.plain:
        height, width = upright_size(header)
        box, reduction = _box(height, width, rng, config, header)
        rough = _economical((height, width), config) and _covers(box[2:], config.image_size)
        cut_HWC = decode_box(content, header, box, JpegScale(reduction, rough), name=name, limits=limits)
        return scale(in_channels(owned(cut_HWC), channels), config.image_size, config.interpolation)
    image_HWC = _decoded(content, name=name, limits=limits, channels=channels)
    height, width, _ = image_HWC.shape
    box, _ = _box(height, width, rng, config)
    return scale(cut(image_HWC, box), config.image_size, config.interpolation)


def _box(height: int, width: int, rng: np.random.Generator, config: Augment, header: Header | None = None) -> tuple[Box, Reduction]:
    """The box to show and how far a JPEG may be reduced for it; every kind of source gets the box a JPEG would get."""
    box = inception_box(height, width, rng, config)
    return snap(box, config.image_size, header) if _economical((height, width), config) else (box, 1)


def _economical(size: tuple[int, int], config: Augment) -> bool:
    """Whether a picture of (height, width) `size` is at least twice the view, so that a JPEG need not be decoded in full.

    It goes by the picture and not by the crop: of a set of small pictures every view is exact, and may be made from a cache.
    The lack of antialiasing is what tf-bilinear is asked for, and a reduction would bring it back.
    """
    height, width = config.image_size
    return config.interpolation != "tf-bilinear" and _covers(size, (2 * height, 2 * width))


def _covers(size: tuple[int, int], other: tuple[int, int]) -> bool:
    return size[0] >= other[0] and size[1] >= other[1]


def _whole_view(
    content: bytes | Pixels, config: Augment, rng: np.random.Generator, *, name: str, limits: DecodeLimits, channels: int
) -> Pixels:
    size = (config.resize_to, config.resize_to) if config.crop == "random" else config.image_size
    at_least = None if config.interpolation == "tf-bilinear" else size
    image_HWC = _decoded(content, name=name, limits=limits, channels=channels, at_least=at_least)
    image_HWC = scale(image_HWC, size, config.interpolation)
    if config.crop == "pad":
        image_HWC = pad(image_HWC, config.padding, config.fill)
    if config.crop == "squash":
        return image_HWC
    height, width, _ = image_HWC.shape
    return cut(image_HWC, random_box(height, width, config.image_size, rng))


def _decoded(
    content: bytes | Pixels, *, name: str, limits: DecodeLimits, channels: int, at_least: tuple[int, int] | None = None
) -> Pixels:
    if isinstance(content, bytes):
        return decode(content, name=name, limits=limits, at_least=at_least, channels=channels)
    check_pixels(content, channels)
    return content


def inception_box(height: int, width: int, rng: np.random.Generator, config: Augment) -> Box:
    """A box whose area and aspect ratio are drawn from `config.area` (evenly) and `config.aspect` (evenly in its logarithm).

    Ten tries are made for one that fits ("Going deeper with convolutions", Szegedy et al., 2014, sec. 6, as everyone draws it
    since); then the largest central box with an allowed aspect ratio is taken.
    """
    least_area, most_area = config.area
    low, high = math.log(config.aspect[0]), math.log(config.aspect[1])
    for _ in range(_TRIES):
        share, slope = rng.random(2)
        area = (least_area + (most_area - least_area) * share) * height * width
        aspect = math.exp(low + (high - low) * slope)
        box_height, box_width = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < box_height <= height and 0 < box_width <= width:
            return random_box(height, width, (box_height, box_width), rng)
    box_width = min(width, max(1, round(height * config.aspect[1])))
    box_height = min(height, max(1, round(width / config.aspect[0])))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def random_box(height: int, width: int, size: tuple[int, int], rng: np.random.Generator) -> Box:
    """A box of (height, width) `size` anywhere inside a picture, every place alike."""
    down, across = rng.random(2)
    return int(down * (height - size[0] + 1)), int(across * (width - size[1] + 1)), *size


def cut(image_HWC: Pixels, box: Box) -> Pixels:
    """The pixels of a box, as a view."""
    top, left, height, width = box
    return image_HWC[top : top + height, left : left + width]


def pad(image_HWC: Pixels, padding: int, fill: int) -> Pixels:
    """The picture with a border of `padding` pixels of grey `fill` on each side."""
    height, width, channels = image_HWC.shape
    padded_HWC = np.full((height + 2 * padding, width + 2 * padding, channels), fill, np.uint8)
    padded_HWC[padding : padding + height, padding : padding + width] = image_HWC
    return padded_HWC


def mirror(image_HWC: Pixels) -> Pixels:
    """Left and right exchanged."""
    return _pixels(_tensor(image_HWC).flip(3))


def scale(image_HWC: Pixels, size: tuple[int, int], interpolation: Interpolation) -> Pixels:
    """The picture scaled to (height, width) `size` by torch's integer kernel: within two levels of Pillow, thrice as fast."""
    if image_HWC.shape[:2] == size:
        return owned(image_HWC)
    mode = "bicubic" if interpolation == "bicubic" else "bilinear"
    antialias = interpolation != "tf-bilinear"
    return _pixels(F.interpolate(_tensor(image_HWC), size=size, mode=mode, antialias=antialias))


def _tensor(image_HWC: Pixels) -> torch.Tensor:
    """[1, C, H, W] over the same memory, in the channels-last order that torch has fast uint8 kernels for."""
    return torch.from_numpy(owned(image_HWC))[None].permute(0, 3, 1, 2)


def _pixels(image_1CHW: torch.Tensor) -> Pixels:
    pixels_HWC: Pixels = image_1CHW.permute(0, 2, 3, 1)[0].numpy()
    return np.ascontiguousarray(pixels_HWC)
