"""Colour jitter: brightness, contrast, saturation and hue, each by a random factor, in a random order.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from vitlab.config.augment import Augment
from vitlab.errors import DataError

Pixels = NDArray[np.uint8]


def as_pillow(image_HWC: Pixels) -> Image.Image:
    """A grey or RGB picture as Pillow's."""
    channels = image_HWC.shape[2]
    if channels not in (1, 3):
        raise DataError(
            f"RandAugment and colour jitter are for grey and RGB pictures, not for {channels} channels",
            hint="switch them off: randaugment=None and no brightness, contrast, saturation or hue",
        )
    return Image.fromarray(image_HWC[:, :, 0] if channels == 1 else image_HWC)


def as_pixels(image: Image.Image) -> Pixels:
    """Pillow's picture as [H, W, C]."""
    pixels = np.array(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def jitter(image_HWC: Pixels, config: Augment, rng: np.random.Generator) -> Pixels:
    """Brightness, contrast and saturation times 1 - width (at least 0) to 1 + width; hue turned by up to its width."""
    image = as_pillow(image_HWC)
    widths = config.brightness, config.contrast, config.saturation, config.hue
    shares = rng.random(4)  # all drawn, whatever is on, so that one setting does not change the others' draws
    for at in np.argsort(rng.random(4)):
        change, width, share = _CHANGES[at], widths[at], float(shares[at])
        if width:
            low, high = (-width, width) if change is turn_hue else (max(0.0, 1 - width), 1 + width)
            image = change(image, low + (high - low) * share)
    return as_pixels(image)


def brighten(image: Image.Image, factor: float) -> Image.Image:
    """Blend with black: 0 is black, 1 the picture."""
    return ImageEnhance.Brightness(image).enhance(factor)


def contrast(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the mean grey: 0 is flat grey, 1 the picture."""
    return ImageEnhance.Contrast(image).enhance(factor)


def saturate(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the grey picture: 0 is grey, 1 the picture."""
    return image if image.mode == "L" else ImageEnhance.Color(image).enhance(factor)


def turn_hue(image: Image.Image, turn: float) -> Image.Image:
    """Shift the hue by -0.5 to 0.5 of a turn; a grey picture has none."""
    if image.mode == "L":
        return image
    hue, saturation, value = image.convert("HSV").split()
    shifted = Image.fromarray(np.asarray(hue) + np.uint8(int(turn * 255) % 256))
    return Image.merge("HSV", (shifted, saturation, value)).convert("RGB")


_CHANGES: tuple[Callable[[Image.Image, float], Image.Image], ...] = (brighten, contrast, saturate, turn_hue)
