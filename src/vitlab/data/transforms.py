"""Transforms: from an image file or pixels to what the model sees, in evaluation and in training, also at the native aspect ratio.

`evaluation_pipeline` and `training_pipeline` tell a loader what to do. Randomness is an argument of every function.
torch is imported where it is used, so that worker processes of an evaluation loader start without it. Those of a training loader
share one import of it: see `TrainingTransform.__reduce__`.

Axes: B batch, H height, W width, C channels, R rows: a budget of patches and one, V pixels of a patch, P x Q its sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.config.data import Augment, DecodeLimits, Interpolation, PixelScale, Preprocess
from vitlab.data.augment import distort
from vitlab.data.batch import Pipeline
from vitlab.data.dataset import RawSample
from vitlab.data.decode import (
    CHANNELS,
    Box,
    Header,
    Pixels,
    check,
    decode,
    decode_box,
    fit_channels,
    in_channels,
    other_channels,
    owned,
    snap,
    upright_size,
)
from vitlab.data.jpeg import JpegScale, Reduction
from vitlab.errors import DataError

if TYPE_CHECKING:
    import torch

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_LARGEST_WHOLE = 1 << 24  # pixels of a scaled image of which only the centre is kept
_TRIES = 10
CROPS = 3
"""Crops of an image that `CropsTransform` makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTransform:
    """The transform of evaluation: no randomness; the whole image is decoded at full size."""

    preprocess: Preprocess
    limits: DecodeLimits

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Pixels:
        """The pixels of a sample, uint8 [H, W, C] of the model's size."""
        return self.apply(sample.content, name=sample.name)

    def apply(self, content: bytes | Pixels, *, name: str) -> Pixels:
        """The pixels of an image file, or of pixels (H, W) or (H, W, C); DataError with the name if it cannot be read."""
        return preprocess(self.decoded(content, name=name), self.preprocess)

    def decoded(self, content: bytes | Pixels, *, name: str) -> Pixels:
        """All pixels of an image file, or of pixels, uint8 [H, W, C] with the channels of the model."""
        own = self.preprocess
        if isinstance(content, bytes):
            image_HWC = decode(content, name=name, limits=self.limits, channels=own.channels, scale=own.pixel_scale)
        else:
            image_HWC = fit_channels(content, own.channels, name=name)
        check_pixels(image_HWC, own.channels)
        return image_HWC

    def pipeline(self) -> Pipeline:
        """The pipeline of a loader."""
        return Pipeline(transform=self, shape=(*self.preprocess.image_size, self.preprocess.channels))


@dataclass(frozen=True, slots=True, kw_only=True)
class CropsTransform(EvaluationTransform):
    """The transform of evaluation with three crops of each image, one below the other: uint8 [3 H, W, C].

    The first is that of `EvaluationTransform`; the others lie at both ends of the longer side.
    """

    def apply(self, content: bytes | Pixels, *, name: str) -> Pixels:
        """The crops of an image file, or of pixels."""
        own = self.preprocess
        assert own.resize == "short-side", "the other ways show the whole image"
        image_HWC = self.decoded(content, name=name)
        size = short_side_size(image_HWC.shape[0], image_HWC.shape[1], own.resize_to)
        middle = top, left, height, width = centre_box(size, own.image_size)
        if size[0] > size[1]:
            ends = (0, left, height, width), (size[0] - height, left, height, width)
        else:
            ends = (top, 0, height, width), (top, size[1] - width, height, width)
        return np.concatenate([resize(image_HWC, size, own.interpolation, box=box) for box in (middle, *ends)])

    def pipeline(self) -> Pipeline:
        """The pipeline of a loader."""
        height, width = self.preprocess.image_size
        return Pipeline(transform=self, shape=(CROPS * height, width, self.preprocess.channels))


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeImage:
    """All pixels of an image, for a cache of decoded images."""

    channels: int
    limits: DecodeLimits
    scale: PixelScale = "full"

    def __call__(self, sample: RawSample) -> Pixels:
        if isinstance(sample.content, bytes):
            return decode(sample.content, name=sample.name, limits=self.limits, channels=self.channels, scale=self.scale)
        return fit_channels(sample.content, self.channels, name=sample.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTransform:
    """The transform of training: a random crop and augmentation."""

    augment: Augment
    channels: int
    limits: DecodeLimits
    scale: PixelScale = "full"

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Pixels:
        content, channels = sample.content, self.channels
        if not isinstance(content, bytes):
            content = fit_channels(content, channels, name=sample.name)
        return training_transform(
            content, self.augment, rng, name=sample.name, limits=self.limits, channels=channels, pixel_scale=self.scale
        )

    def __reduce__(self) -> tuple[Callable[..., TrainingTransform], tuple[Augment, int, DecodeLimits, PixelScale]]:
        return _unpickled, (self.augment, self.channels, self.limits, self.scale)


def _unpickled(augment: Augment, channels: int, limits: DecodeLimits, scale: PixelScale) -> TrainingTransform:
    """Also imports torch, which `scale` needs: the launcher of the workers does so once, and its forks share the memory."""
    import torch  # noqa: F401

    return TrainingTransform(augment=augment, channels=channels, limits=limits, scale=scale)


def training_pipeline(augment: Augment, *, channels: int, limits: DecodeLimits, scale: PixelScale = "full") -> Pipeline:
    """The pipeline of a training loader."""
    whole = WholeImage(channels=channels, limits=limits, scale=scale)
    transform = TrainingTransform(augment=augment, channels=channels, limits=limits, scale=scale)
    return Pipeline(transform=transform, shape=(*augment.image_size, channels), decode=whole, settings=repr(whole))


def evaluation_pipeline(config: Preprocess, *, limits: DecodeLimits) -> Pipeline:
    """The pipeline of a loader that evaluates the same images repeatedly: decoded images may be cached."""
    whole = WholeImage(channels=config.channels, limits=limits, scale=config.pixel_scale)
    transform = EvaluationTransform(preprocess=config, limits=limits)
    return Pipeline(transform=transform, shape=(*config.image_size, config.channels), decode=whole, settings=repr(whole))


def preprocess(image_HWC: Pixels, config: Preprocess) -> Pixels:
    """Resize a decoded image (uint8 [H, W, C]) and crop or pad it to `config.image_size`, except for `fit`; the result is uint8.

    The image must have `config.channels` channels. `normalise` does the rest.
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
        case "fit":
            return resize(image_HWC, bounded_size(height, width, config.image_size), config.interpolation)
        case "native":
            raise no_native()


def no_native() -> DataError:
    """The error for code that takes images of one size."""
    return DataError("resize='native' gives images as rows of patches, and here they need one size", hint="resize='squash'")


def check_pixels(image_HWC: Pixels, channels: int) -> None:
    """DataError if an array is not a uint8 image with this number of channels."""
    if image_HWC.dtype != np.uint8 or image_HWC.ndim != 3 or 0 in image_HWC.shape:
        raise DataError(
            f"an image must be a uint8 array [height, width, channels], not {image_HWC.dtype} {list(image_HWC.shape)}",
            hint="a grey image has one channel: array[:, :, None]",
        )
    if image_HWC.shape[2] != channels:
        raise DataError(
            f"the image has {image_HWC.shape[2]} channels and the model takes {channels}",
            hint=f"decode it with channels={channels}",
        )


def short_side_size(height: int, width: int, resize_to: int) -> tuple[int, int]:
    """(height, width) with the shorter side scaled to `resize_to` and the longer side rounded to the nearest pixel."""
    if height <= width:
        return resize_to, round(width * resize_to / height)
    return round(height * resize_to / width), resize_to


def fitted_size(height: int, width: int, into: tuple[int, int]) -> tuple[int, int]:
    """The largest (height, width) of the same aspect that fits inside `into`, rounded, at least 1 pixel."""
    if height * into[1] >= width * into[0]:  # the height is what fills
        return into[0], max(1, round(width * into[0] / height))
    return max(1, round(height * into[1] / width)), into[1]


FIT_STEP = 16  # pixels: the patch of YOLOS


def bounded_size(height: int, width: int, edges: tuple[int, int]) -> tuple[int, int]:
    """(height, width) for `fit`: the shorter side scaled to the first of `edges`, or the longer to the second if that is less.

    The arithmetic, down to where it rounds, is that of YOLOS in transformers; a side has at least 16 pixels.
    """
    short, long = min(height, width), max(height, width)
    scaled = min(float(edges[0]), edges[1] * short / long)
    sides = (round(scaled), int(scaled * long / short))
    if height <= width and sides[0] == short:
        sides = (short, long)
    shorter, longer = (max(FIT_STEP, side - side % FIT_STEP) for side in sides)
    return (shorter, longer) if height <= width else (longer, shorter)


def centre_box(size: tuple[int, int], crop: tuple[int, int]) -> Box:
    """The central (height, width) `crop` of an image of `size`; an odd pixel remains at the bottom or right."""
    return (size[0] - crop[0]) // 2, (size[1] - crop[1]) // 2, *crop


def resize(image_HWC: Pixels, size: tuple[int, int], interpolation: Interpolation, *, box: Box | None = None) -> Pixels:
    """The image scaled to `size` (height, width), or only the `box` of the scaled image."""
    box = (0, 0, *size) if box is None else box
    if interpolation == "tf-bilinear":
        return _tf_bilinear(image_HWC, size, box)
    if image_HWC.shape[:2] == size:  # Pillow would copy it
        top, left, height, width = box
        return np.array(image_HWC[top : top + height, left : left + width])
    channels = image_HWC.shape[2]
    if channels == 3:
        return _pillow(Image.fromarray(image_HWC), size, interpolation, box)
    # One channel at a time: with four, Pillow takes the last for opacity and weights the others by it.
    planes = [_pillow(Image.fromarray(image_HWC[:, :, c]), size, interpolation, box) for c in range(channels)]
    return np.stack(planes, axis=2)


def _pillow(image: Image.Image, size: tuple[int, int], interpolation: Interpolation, box: Box) -> Pixels:
    top, left, height, width = box
    if size[0] * size[1] <= _LARGEST_WHOLE:
        scaled_HWC = np.asarray(image.resize((size[1], size[0]), _FILTERS[interpolation]))
        return np.array(scaled_HWC[top : top + height, left : left + width])
    # A strip of 1 x 5,000 pixels would become 256 x 1,280,000 before its crop, so only the box is computed. Not for every image:
    # Pillow takes box corners in single precision and orders its two passes by cost, so levels would differ by a few.
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
    """For `count` output pixels from `first`: the input pixels before and after each, and the distance from the one before."""
    scale = np.float32(length) / np.float32(resized)
    half = np.float32(0.5)
    position = (np.arange(first, first + count, dtype=np.float32) + half) * scale - half
    whole = np.floor(position)
    before = np.maximum(whole, 0).astype(np.intp)
    after = np.minimum(np.ceil(position), length - 1).astype(np.intp)
    return before, after, position - whole


def _lerp(
    start: NDArray[np.uint8] | NDArray[np.float32], end: NDArray[np.uint8] | NDArray[np.float32], weight: NDArray[np.float32]
) -> NDArray[np.float32]:
    first = start.astype(np.float32)
    between: NDArray[np.float32] = first + (end.astype(np.float32) - first) * weight
    return between


def training_transform(
    content: bytes | Pixels,
    config: Augment,
    rng: np.random.Generator,
    *,
    name: str = "the image",
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (a frozen value)
    channels: int = 3,
    pixel_scale: PixelScale = "full",
) -> Pixels:
    """Crop and augment an image file or pixels at random: uint8 [H, W, C] of `config.image_size`.

    The rows of a JPEG below the crop are not decoded. If the image is at least twice the output on both sides and the crop covers
    the output, the JPEG is also decoded with libjpeg's faster arithmetic, and at 1/2, 1/4 or 1/8 of its size as long as the crop
    still covers the output; the crop then lies on the grid of that reduction. The result equals that of decoding, cropping and
    resizing the whole image: exactly for smaller images, within about one level on average for these.
    Random choices are drawn in this order: crop, flip, RandAugment, colour jitter, erasing.
    """
    image = _Source(content, name=name, limits=limits, channels=channels, scale=pixel_scale)
    image_HWC = _inception_crop(image, config, rng) if config.crop == "inception" else _scaled_crop(image, config, rng)
    if rng.random() < config.flip:
        image_HWC = mirror(image_HWC)
    return distort(image_HWC, config, rng)


@dataclass(frozen=True, slots=True)
class _Source:
    """An image file or pixels, and how it is decoded."""

    content: bytes | Pixels
    name: str
    limits: DecodeLimits
    channels: int
    scale: PixelScale

    def decoded(self, *, at_least: tuple[int, int] | None = None) -> Pixels:
        """All pixels."""
        if isinstance(self.content, bytes):
            return decode(
                self.content, name=self.name, limits=self.limits, at_least=at_least, channels=self.channels, scale=self.scale
            )
        check_pixels(self.content, self.channels)
        return self.content


def _inception_crop(image: _Source, config: Augment, rng: np.random.Generator) -> Pixels:
    content, name, limits = image.content, image.name, image.limits
    header = check(content, name=name, limits=limits) if isinstance(content, bytes) else None
    if isinstance(content, bytes) and header is not None and header.jpeg is not None and header.jpeg.plain:
        if image.channels not in CHANNELS:
            raise other_channels(name, None, image.channels)
        height, width = upright_size(header)
        box, reduction = _box(height, width, rng, config, header)
        rough = _economical((height, width), config) and _covers(box[2:], config.image_size)
        cut_HWC = decode_box(content, header, box, JpegScale(reduction, rough), name=name, limits=limits)
        return scale(in_channels(owned(cut_HWC), image.channels), config.image_size, config.interpolation)
    image_HWC = image.decoded()
    height, width, _ = image_HWC.shape
    box, _ = _box(height, width, rng, config)
    return scale(cut(image_HWC, box), config.image_size, config.interpolation)


def _box(height: int, width: int, rng: np.random.Generator, config: Augment, header: Header | None = None) -> tuple[Box, Reduction]:
    """The box to crop and how far a JPEG may be reduced for it; every image format gets the box that a JPEG would get."""
    box = inception_box(height, width, rng, config)
    return snap(box, config.image_size, header) if _economical((height, width), config) else (box, 1)


def _economical(size: tuple[int, int], config: Augment) -> bool:
    """Whether an image of (height, width) `size` is at least twice the output, so that a JPEG need not be decoded in full.

    This depends on the image and not on the crop, so that a dataset of small images is always exact and can be cached.
    tf-bilinear is used for its lack of antialiasing, which a reduction would undo.
    """
    height, width = config.image_size
    return config.interpolation != "tf-bilinear" and _covers(size, (2 * height, 2 * width))


def _covers(size: tuple[int, int], other: tuple[int, int]) -> bool:
    return size[0] >= other[0] and size[1] >= other[1]


def _scaled_crop(image: _Source, config: Augment, rng: np.random.Generator) -> Pixels:
    size = (config.resize_to, config.resize_to) if config.crop == "random" else config.image_size
    at_least = None if config.interpolation == "tf-bilinear" else size
    image_HWC = scale(image.decoded(at_least=at_least), size, config.interpolation)
    if config.crop == "pad":
        image_HWC = pad(image_HWC, config.padding, config.fill)
    if config.crop == "squash":
        return image_HWC
    height, width, _ = image_HWC.shape
    return cut(image_HWC, random_box(height, width, config.image_size, rng))


def inception_box(height: int, width: int, rng: np.random.Generator, config: Augment) -> Box:
    """A random box: its area is uniform in `config.area`, the logarithm of its aspect ratio uniform in `config.aspect`.

    After ten boxes that do not fit ("Going deeper with convolutions", Szegedy et al., 2014, sec. 6, as commonly implemented), the
    largest central box with an allowed aspect ratio is taken.
    """
    least_area, most_area = config.area
    low, high = math.log(config.aspect[0]), math.log(config.aspect[1])
    for _ in range(_TRIES):
        size, slope = rng.random(2)
        area = (least_area + (most_area - least_area) * size) * height * width
        aspect = math.exp(low + (high - low) * slope)
        box_height, box_width = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < box_height <= height and 0 < box_width <= width:
            return random_box(height, width, (box_height, box_width), rng)
    box_width = min(width, max(1, round(height * config.aspect[1])))
    box_height = min(height, max(1, round(width / config.aspect[0])))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def random_box(height: int, width: int, size: tuple[int, int], rng: np.random.Generator) -> Box:
    """A box of (height, width) `size` at a uniformly random place inside an image."""
    down, across = rng.random(2)
    return int(down * (height - size[0] + 1)), int(across * (width - size[1] + 1)), *size


def cut(image_HWC: Pixels, box: Box) -> Pixels:
    """The pixels of a box, without a copy."""
    top, left, height, width = box
    return image_HWC[top : top + height, left : left + width]


def pad(image_HWC: Pixels, padding: int, fill: int) -> Pixels:
    """The image with a border of `padding` pixels of grey `fill` on each side."""
    height, width, channels = image_HWC.shape
    padded_HWC = np.full((height + 2 * padding, width + 2 * padding, channels), fill, np.uint8)
    padded_HWC[padding : padding + height, padding : padding + width] = image_HWC
    return padded_HWC


def mirror(image_HWC: Pixels) -> Pixels:
    """Flip the image horizontally."""
    return _pixels(_tensor(image_HWC).flip(3))


def scale(image_HWC: Pixels, size: tuple[int, int], interpolation: Interpolation) -> Pixels:
    """Scale the image to (height, width) `size` by torch's integer kernel: within two levels of Pillow, three times as fast."""
    import torch.nn.functional as F

    if image_HWC.shape[:2] == size:
        return owned(image_HWC)
    mode = "bicubic" if interpolation == "bicubic" else "bilinear"
    antialias = interpolation != "tf-bilinear"
    return _pixels(F.interpolate(_tensor(image_HWC), size=size, mode=mode, antialias=antialias))


def _tensor(image_HWC: Pixels) -> torch.Tensor:
    """[1, C, H, W] over the same memory, in the channels-last layout that torch has fast uint8 kernels for."""
    import torch

    return torch.from_numpy(owned(image_HWC))[None].permute(0, 3, 1, 2)


def _pixels(image_1CHW: torch.Tensor) -> Pixels:
    pixels_HWC: Pixels = image_1CHW.permute(0, 2, 3, 1)[0].numpy()
    return np.ascontiguousarray(pixels_HWC)


def normalise(images_BHWC: torch.Tensor, config: Preprocess, dtype: torch.dtype | None = None) -> torch.Tensor:
    """uint8 [B, H, W, C] to `dtype` (float32 if None) [B, C, H, W]: (pixel / 255 - mean) / std, on the batch's device.

    The computation is in float32 for every `dtype`, so half precision loses only the last rounding. With mean and std of 0.5 the
    result equals the official (pixel - 127.5) / 127.5 bit for bit.
    """
    import torch

    if images_BHWC.dtype != torch.uint8 or images_BHWC.ndim != 4:
        raise DataError(
            f"a batch must be uint8 [batch, height, width, channels], not {images_BHWC.dtype} {list(images_BHWC.shape)}"
        )
    if images_BHWC.shape[3] != config.channels:
        raise DataError(f"the batch has {images_BHWC.shape[3]} channels and mean has {config.channels}")
    mean_C11 = 255 * torch.tensor(config.mean, dtype=torch.float64).view(-1, 1, 1)
    std_C11 = 255 * torch.tensor(config.std, dtype=torch.float64).view(-1, 1, 1)
    images_BCHW = images_BHWC.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    images_BCHW -= mean_C11.to(images_BCHW)
    images_BCHW /= std_C11.to(images_BCHW)
    return images_BCHW if dtype is None else images_BCHW.to(dtype)


# --- native aspect ratio -----------------------------------------------------------------------------------------------------

# After NaViT (Dehghani et al. 2023): each image keeps its shape and gets as many patches as a square would have.
#
# An image travels as rows of patches: uint8 (R, V, C), of which each row holds the V pixels of a patch in reading order. Its g x j
# patches fill the first rows, and the last row holds g and j. So images of all shapes have one size for loaders, worker processes,
# caches and servers; `models/packing.py` takes the rows that are used, and nothing is computed for the others.

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
        own, image_HWC = self.preprocess, self.decoded(content, name=name)
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
