"""Images with boxes: transforms that say where they put the image, so that its boxes move with it.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitlab.config.data import Augment, DecodeLimits, PixelScale, Preprocess
from vitlab.data.augment import distort
from vitlab.data.batch import Pipeline
from vitlab.data.dataset import Pixels, RawSample
from vitlab.data.decode import Box
from vitlab.data.frame import Frame, Framed, whole_frame
from vitlab.data.transforms import (
    WholeImage,
    centre_box,
    cut,
    fitted_size,
    inception_box,
    mirror,
    pad,
    preprocess,
    random_box,
    scale,
    short_side_size,
)
from vitlab.errors import ConfigError


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
