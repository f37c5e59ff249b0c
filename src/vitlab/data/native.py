"""Native aspect ratio (NaViT, Dehghani et al. 2023): each image keeps its shape and gets as many patches as a square would have.

An image travels as rows of patches: uint8 (R, V, C), of which each row holds the V pixels of a patch in reading order. Its g x j
patches fill the first rows, and the last row holds g and j. So images of all shapes have one size for loaders, worker processes,
caches and servers; `models/packing.py` takes the rows that are used, and nothing is computed for the others.

Axes: B batch, H height, W width, C channels, R rows: a budget of patches and one, V pixels of a patch, P x Q its sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import Augment, DecodeLimits, PixelScale, Preprocess
from vitlab.data.augment import distort
from vitlab.data.batch import Pipeline
from vitlab.data.dataset import RawSample
from vitlab.data.decode import Pixels, decode, fit_channels
from vitlab.data.transforms import EvaluationTransform, WholeImage, check_pixels, cut, inception_box, mirror, resize, scale

Size = tuple[int, int]
_AREA_WEIGHT = 0.5  # a lost fraction of the budget counts half as much as the same fraction of a wrong aspect ratio


def native_grid(height: int, width: int, image_size: Size, patch: Size) -> Size:
    """Patches (down, across) of an image: as many as `image_size` has or a few less, in the image's own aspect ratio."""
    budget = budget_of(image_size, patch)
    wanted = (height / patch[0]) / (width / patch[1])  # rows over columns
    down = math.sqrt(budget * wanted)
    rows = {min(max(1, side), budget) for side in (math.floor(down), math.ceil(down))}
    grids = [(g, min(max(1, j), budget // g)) for g in rows for j in (math.floor(g / wanted), math.ceil(g / wanted))]
    return min(grids, key=lambda grid: (_mismatch(grid, wanted, budget), grid))


def _mismatch(grid: Size, wanted: float, budget: int) -> float:
    g, j = grid
    return abs(math.log(g / j / wanted)) + _AREA_WEIGHT * math.log(budget / (g * j))


def budget_of(image_size: Size, patch: Size) -> int:
    """Patches of an image of `image_size`."""
    return max(1, image_size[0] // patch[0]) * max(1, image_size[1] // patch[1])


def to_rows(image_HWC: Pixels, patch: Size, budget: int) -> Pixels:
    """An image of whole patches as rows (budget + 1, V, C)."""
    height, width, channels = image_HWC.shape
    (p, q), (g, j) = patch, (height // patch[0], width // patch[1])
    rows_RVC = np.zeros((budget + 1, p * q, channels), np.uint8)
    rows_RVC[: g * j] = image_HWC.reshape(g, p, j, q, channels).transpose(0, 2, 1, 3, 4).reshape(g * j, p * q, channels)
    rows_RVC[-1].reshape(-1)[:4] = (g >> 8, g & 255, j >> 8, j & 255)
    return rows_RVC


def grids_of(rows_BRVC: NDArray[np.uint8]) -> tuple[Size, ...]:
    """The grid (down, across) of each image of a batch of rows."""
    said_B4 = rows_BRVC[:, -1].reshape(len(rows_BRVC), -1)[:, :4].astype(np.int64)
    return tuple(
        (int(g), int(j)) for g, j in zip(said_B4[:, 0] << 8 | said_B4[:, 1], said_B4[:, 2] << 8 | said_B4[:, 3], strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeTransform(EvaluationTransform):
    """The transform of evaluation at the native aspect ratio: an image as rows of patches of `patch` pixels."""

    patch: Size

    def apply(self, content: bytes | Pixels, *, name: str) -> Pixels:
        """The rows of an image file, or of pixels."""
        own = self.preprocess
        if isinstance(content, bytes):
            image_HWC = decode(content, name=name, limits=self.limits, channels=own.channels, scale=own.pixel_scale)
        else:
            image_HWC = fit_channels(content, own.channels, name=name)
        check_pixels(image_HWC, own.channels)
        g, j = native_grid(image_HWC.shape[0], image_HWC.shape[1], own.image_size, self.patch)
        sized_HWC = resize(image_HWC, (g * self.patch[0], j * self.patch[1]), own.interpolation)
        return to_rows(sized_HWC, self.patch, budget_of(own.image_size, self.patch))

    def pipeline(self) -> Pipeline:
        """The pipeline of a loader."""
        return Pipeline(transform=self, shape=rows_shape(self.preprocess, self.patch))


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeTrainingTransform:
    """The transform of training: a random crop of about the image's aspect ratio, which it keeps, and augmentation; as rows.

    `augment.aspect` is the crop's aspect ratio over the image's.
    """

    augment: Augment
    patch: Size
    channels: int
    limits: DecodeLimits
    scale: PixelScale = "full"

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Pixels:
        config = self.augment
        image_HWC = WholeImage(channels=self.channels, limits=self.limits, scale=self.scale)(sample)
        if config.crop == "inception":
            height, width, _ = image_HWC.shape
            low, high = config.aspect
            own = replace(config, aspect=(low * width / height, high * width / height))  # of the image, not of a square
            image_HWC = cut(image_HWC, inception_box(height, width, rng, own))
        g, j = native_grid(image_HWC.shape[0], image_HWC.shape[1], config.image_size, self.patch)
        image_HWC = scale(image_HWC, (g * self.patch[0], j * self.patch[1]), config.interpolation)
        if rng.random() < config.flip:
            image_HWC = mirror(image_HWC)
        return to_rows(distort(image_HWC, config, rng), self.patch, budget_of(config.image_size, self.patch))


def native_training_pipeline(
    augment: Augment, patch: Size, *, channels: int, limits: DecodeLimits, pixel_scale: PixelScale = "full"
) -> Pipeline:
    """The pipeline of a training loader at the native aspect ratio."""
    whole = WholeImage(channels=channels, limits=limits, scale=pixel_scale)
    transform = NativeTrainingTransform(augment=augment, patch=patch, channels=channels, limits=limits, scale=pixel_scale)
    shape = (budget_of(augment.image_size, patch) + 1, patch[0] * patch[1], channels)
    return Pipeline(transform=transform, shape=shape, decode=whole, settings=repr(whole))


def native_evaluation_pipeline(config: Preprocess, patch: Size, *, limits: DecodeLimits) -> Pipeline:
    """The pipeline of a loader that evaluates the same images repeatedly: decoded images may be cached."""
    whole = WholeImage(channels=config.channels, limits=limits, scale=config.pixel_scale)
    transform = NativeTransform(preprocess=config, limits=limits, patch=patch)
    return Pipeline(transform=transform, shape=rows_shape(config, patch), decode=whole, settings=repr(whole))


def rows_shape(config: Preprocess, patch: Size) -> tuple[int, int, int]:
    """The shape (R, V, C) of an image as rows."""
    return budget_of(config.image_size, patch) + 1, patch[0] * patch[1], config.channels
