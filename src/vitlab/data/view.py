"""From a picture of any origin to the pixels the model is fed with: decoded, brought to its channels, resized and cut.

Needs no torch, so that worker processes of a loader start at once.
Axes: H height, W width, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.config.data import Preprocess
from vitlab.config.decode import DecodeLimits
from vitlab.data.batch import Feed
from vitlab.data.decode import decode, in_channels, owned
from vitlab.data.preprocess import preprocess
from vitlab.data.source import Example
from vitlab.errors import DataError

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationView:
    """The view of a picture in evaluation: no randomness, the whole picture decoded at full size. A loader's view."""

    preprocess: Preprocess
    limits: DecodeLimits

    def __call__(self, example: Example, rng: np.random.Generator) -> Pixels:
        """uint8 [H, W, C] of the model's size."""
        return self.see(example.content, name=example.name)

    def see(self, content: bytes | Pixels, *, name: str) -> Pixels:
        """The same of an encoded file or of pixels (H, W) or (H, W, C); DataError, with the name, where it cannot be."""
        channels = self.preprocess.channels
        if isinstance(content, bytes):
            image_HWC = decode(content, name=name, limits=self.limits, channels=channels)
        else:
            image_HWC = fit_channels(content, channels, name=name)
        return preprocess(image_HWC, self.preprocess)

    def feed(self) -> Feed:
        """As a loader wants it."""
        return Feed(view=self, shape=(*self.preprocess.image_size, self.preprocess.channels))


def fit_channels(pixels: Pixels, channels: int, *, name: str) -> Pixels:
    """Pixels (H, W) or (H, W, C) in so many channels.

    Grey becomes RGB by repetition, RGB becomes grey by its luma, and a fourth channel is opacity: laid on white, or full where
    it is missing. Any other number of channels must already be right.
    """
    image_HWC = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if image_HWC.dtype != np.uint8 or image_HWC.ndim != 3 or 0 in image_HWC.shape:
        raise DataError(
            f"{name} must be uint8 pixels [height, width, channels], not {pixels.dtype} {list(pixels.shape)}",
            hint="scale floating-point pixels to 0..255 and round them, or give the encoded file",
        )
    given = image_HWC.shape[2]
    if given == channels:
        return owned(image_HWC)
    if given not in (1, 3, 4) or channels not in (1, 3, 4):
        raise DataError(f"{name} has {given} channels and the model takes {channels}")
    if given == 1:
        return in_channels(np.repeat(image_HWC, 3, axis=2), channels) if channels == 4 else np.repeat(image_HWC, 3, axis=2)
    if given == 4:
        opaque = Image.new("RGBA", image_HWC.shape[1::-1], (255, 255, 255, 255))
        image_HWC = np.asarray(Image.alpha_composite(opaque, Image.fromarray(owned(image_HWC))).convert("RGB"))
    return in_channels(owned(image_HWC), channels)
