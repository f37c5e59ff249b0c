"""Images with masks or boxes: transforms that move both together.

The mask is one more channel of the image, the class of each pixel, so that loaders, workers and caches treat both as one. Images
are interpolated as configured; classes are those of the nearest pixel. Of boxes a transform says only where it put the image
(`vitlab.data.batch`), and they move with it.

Axes: H height, W width, C channels of the image; the last channel of an HWM array is the class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitlab.config.data import Augment, DecodeLimits, PixelScale, Preprocess
from vitlab.data.augment import distort
from vitlab.data.batch import Frame, Framed, Pipeline, whole_frame
from vitlab.data.dataset import IGNORED, Pixels, RawSample
from vitlab.data.decode import Box, decode, fit_channels
from vitlab.data.transforms import (
    WholeImage,
    bounded_size,
    centre_box,
    cut,
    fitted_size,
    inception_box,
    mirror,
    no_native,
    pad,
    preprocess,
    random_box,
    scale,
    short_side_size,
)
from vitlab.errors import ConfigError, DataError

# --- masks --------------------------------------------------------------------------------------------------------------------


def image_and_mask(sample: RawSample, *, channels: int, limits: DecodeLimits, scale: PixelScale = "full") -> Pixels:
    """All pixels of an image with the class of each as last channel, [H, W, C + 1]; DataError if the sizes differ."""
    if sample.mask is None:
        if not isinstance(sample.content, bytes) and sample.content.shape[-1] == channels + 1:
            return sample.content  # of the cache of decoded images
        raise DataError(f"{sample.name} has no mask", hint="segmentation needs a mask for each image")
    if isinstance(sample.content, bytes):
        image_HWC = decode(sample.content, name=sample.name, limits=limits, channels=channels, scale=scale)
    else:
        image_HWC = fit_channels(sample.content, channels, name=sample.name)
    classes_HW = sample.mask.classes(image_HWC.shape[:2], limits=limits)
    return np.concatenate([image_HWC, classes_HW[:, :, None]], axis=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeWithMask:
    """All pixels of an image and its mask, for a cache of decoded images."""

    channels: int
    limits: DecodeLimits
    scale: PixelScale = "full"

    def __call__(self, sample: RawSample) -> Pixels:
        return image_and_mask(sample, channels=self.channels, limits=self.limits, scale=self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTransformWithMask:
    """A random crop and flip of image and mask together; colours change in the image alone."""

    augment: Augment
    channels: int
    limits: DecodeLimits
    scale: PixelScale = "full"

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Pixels:
        config = self.augment
        both_HWM = image_and_mask(sample, channels=self.channels, limits=self.limits, scale=self.scale)
        if config.crop == "inception":
            box = inception_box(both_HWM.shape[0], both_HWM.shape[1], rng, config)
            both_HWM = _scaled(cut(both_HWM, box), config.image_size, config)
        else:
            size = (config.resize_to, config.resize_to) if config.crop == "random" else config.image_size
            both_HWM = _scaled(both_HWM, size, config)
            if config.crop == "pad":
                classes_HW = pad(both_HWM[:, :, -1:], config.padding, IGNORED)
                both_HWM = np.concatenate([pad(both_HWM[:, :, :-1], config.padding, config.fill), classes_HW], axis=2)
            if config.crop != "squash":
                both_HWM = cut(both_HWM, random_box(both_HWM.shape[0], both_HWM.shape[1], config.image_size, rng))
        if rng.random() < config.flip:
            both_HWM = mirror(both_HWM)
        image_HWC = distort(np.ascontiguousarray(both_HWM[:, :, :-1]), config, rng)
        return np.concatenate([image_HWC, both_HWM[:, :, -1:]], axis=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTransformWithMask:
    """The transform of evaluation, of image and mask together; what a `pad` adds counts for nothing."""

    preprocess: Preprocess
    limits: DecodeLimits

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Pixels:
        config = self.preprocess
        both_HWM = image_and_mask(sample, channels=config.channels, limits=self.limits, scale=config.pixel_scale)
        image_HWC = preprocess(np.ascontiguousarray(both_HWM[:, :, :-1]), config)
        classes_HW = preprocess_mask(both_HWM[:, :, -1], config)
        return np.concatenate([image_HWC, classes_HW[:, :, None]], axis=2)


def training_pipeline_with_masks(augment: Augment, *, channels: int, limits: DecodeLimits, scale: PixelScale = "full") -> Pipeline:
    """The pipeline of a loader that trains on masks."""
    whole = WholeWithMask(channels=channels, limits=limits, scale=scale)
    transform = TrainingTransformWithMask(augment=augment, channels=channels, limits=limits, scale=scale)
    shape = (*augment.image_size, channels + 1)
    return Pipeline(transform=transform, shape=shape, decode=whole, settings=repr(whole), masks=True)


def evaluation_pipeline_with_masks(config: Preprocess, *, limits: DecodeLimits) -> Pipeline:
    """The pipeline of a loader that evaluates on masks at the model's image size."""
    whole = WholeWithMask(channels=config.channels, limits=limits, scale=config.pixel_scale)
    transform = EvaluationTransformWithMask(preprocess=config, limits=limits)
    shape = (*config.image_size, config.channels + 1)
    return Pipeline(transform=transform, shape=shape, decode=whole, settings=repr(whole), masks=True)


def preprocess_mask(classes_HW: Pixels, config: Preprocess) -> Pixels:
    """A mask resized, cropped or padded as `preprocess` does with its image: each pixel takes the class of the nearest one."""
    height, width = classes_HW.shape
    match config.resize:
        case "short-side":
            size = short_side_size(height, width, config.resize_to)
            return nearest(classes_HW, size, box=centre_box(size, config.image_size))
        case "squash":
            return nearest(classes_HW, config.image_size)
        case "pad":
            size = fitted_size(height, width, config.image_size)
            out_height, out_width = config.image_size
            top, left = (out_height - size[0]) // 2, (out_width - size[1]) // 2
            padded_HW = np.full(config.image_size, IGNORED, np.uint8)
            padded_HW[top : top + size[0], left : left + size[1]] = nearest(classes_HW, size)
            return padded_HW
        case "fit":
            return nearest(classes_HW, bounded_size(height, width, config.image_size))
        case "native":
            raise no_native()


def nearest(classes_HW: Pixels, size: tuple[int, int], *, box: Box | None = None) -> Pixels:
    """A mask scaled to (height, width) `size`, or the `box` of the scaled mask: pixel centres take the class they fall into."""
    top, left, tall, wide = (0, 0, *size) if box is None else box
    rows, columns = (
        np.minimum(((np.arange(first, first + count) + 0.5) * length / resized).astype(np.int64), length - 1)
        for first, count, length, resized in (
            (top, tall, classes_HW.shape[0], size[0]),
            (left, wide, classes_HW.shape[1], size[1]),
        )
    )
    return np.ascontiguousarray(classes_HW[rows][:, columns])


def _scaled(both_HWM: Pixels, size: tuple[int, int], config: Augment) -> Pixels:
    image_HWC = scale(np.ascontiguousarray(both_HWM[:, :, :-1]), size, config.interpolation)
    return np.concatenate([image_HWC, nearest(both_HWM[:, :, -1], size)[:, :, None]], axis=2)


# --- boxes --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTransformWithBoxes:
    """A random crop and flip of an image with boxes; colours change too."""

    augment: Augment
    whole: WholeImage

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Framed:
        config = self.augment
        image_HWC = self.whole(sample)
        height, width = image_HWC.shape[:2]
        if config.crop == "inception":
            box = inception_box(height, width, rng, config)
            frame = _cropped(whole_frame(height, width), (height, width), box)
            image_HWC = scale(np.ascontiguousarray(cut(image_HWC, box)), config.image_size, config.interpolation)
        else:
            image_HWC, frame = self._scaled_crop(image_HWC, rng)
        if rng.random() < config.flip:
            image_HWC, frame = mirror(image_HWC), frame.mirrored()
        return Framed(image_HWC=distort(np.ascontiguousarray(image_HWC), config, rng), frame=frame)

    def _scaled_crop(self, image_HWC: Pixels, rng: np.random.Generator) -> tuple[Pixels, Frame]:
        config, frame = self.augment, whole_frame(*image_HWC.shape[:2])
        size = (config.resize_to, config.resize_to) if config.crop == "random" else config.image_size
        image_HWC = scale(image_HWC, size, config.interpolation)
        if config.crop == "squash":
            return image_HWC, frame
        if config.crop == "pad":
            border = config.padding
            image_HWC = pad(image_HWC, border, config.fill)
            frame = _cropped(frame, size, (-border, -border, *image_HWC.shape[:2]))
        box = random_box(image_HWC.shape[0], image_HWC.shape[1], config.image_size, rng)
        return cut(image_HWC, box), _cropped(frame, (image_HWC.shape[0], image_HWC.shape[1]), box)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTransformWithBoxes:
    """The transform of evaluation of an image with boxes."""

    preprocess: Preprocess
    whole: WholeImage

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Framed:
        image_HWC = self.whole(sample)
        frame = preprocess_frame(image_HWC.shape[0], image_HWC.shape[1], self.preprocess)
        return Framed(image_HWC=preprocess(image_HWC, self.preprocess), frame=frame)


def training_pipeline_with_boxes(augment: Augment, *, channels: int, limits: DecodeLimits, scale: PixelScale = "full") -> Pipeline:
    """The pipeline of a loader that trains on boxes."""
    whole = WholeImage(channels=channels, limits=limits, scale=scale)
    transform = TrainingTransformWithBoxes(augment=augment, whole=whole)
    return Pipeline(transform=transform, shape=(*augment.image_size, channels), decode=whole, settings=repr(whole), boxes=True)


def evaluation_pipeline_with_boxes(config: Preprocess, *, limits: DecodeLimits) -> Pipeline:
    """The pipeline of a loader that evaluates on boxes at the model's image size."""
    whole = WholeImage(channels=config.channels, limits=limits, scale=config.pixel_scale)
    transform = EvaluationTransformWithBoxes(preprocess=config, whole=whole)
    shape = (*config.image_size, config.channels)
    return Pipeline(transform=transform, shape=shape, decode=whole, settings=repr(whole), boxes=True)


def preprocess_frame(height: int, width: int, config: Preprocess) -> Frame:
    """Where `preprocess` puts an image of this size."""
    frame = whole_frame(height, width)
    match config.resize:
        case "short-side":
            size = short_side_size(height, width, config.resize_to)
            return _cropped(frame, size, centre_box(size, config.image_size))
        case "squash" | "fit":
            return frame
        case "native":
            raise ConfigError("resize='native' packs images of classifiers, not of detectors", hint="resize='squash' or 'pad'")
        case "pad":
            size, (down, across) = fitted_size(height, width, config.image_size), config.image_size
            return _cropped(frame, size, (-((down - size[0]) // 2), -((across - size[1]) // 2), down, across))


def _cropped(frame: Frame, size: tuple[int, int], box: Box) -> Frame:
    """The frame after a crop of `box` (top, left, height, width) out of what has (height, width) `size` so far."""
    (height, width), (top, left, tall, wide) = size, box
    return frame._replace(
        across=frame.across * width / wide,
        left=(frame.left * width - left) / wide,
        down=frame.down * height / tall,
        top=(frame.top * height - top) / tall,
    )
