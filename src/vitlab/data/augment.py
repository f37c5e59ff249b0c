"""What is done to a training view after its crop: RandAugment, colour jitter, erasing. Pure functions of (picture, config, rng).

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vitlab.config.augment import Augment
from vitlab.data.pixels.colour import jitter
from vitlab.data.pixels.randaugment import randaugment

Pixels = NDArray[np.uint8]

_TRIES = 10


def distort(image_HWC: Pixels, config: Augment, rng: np.random.Generator) -> Pixels:
    """The view with everything `config` asks for applied, in the order RandAugment, colour jitter, erasing."""
    if config.randaugment is not None:
        layers, magnitude = config.randaugment
        image_HWC = randaugment(image_HWC, layers, magnitude, rng, fill=config.fill)
    if config.brightness or config.contrast or config.saturation or config.hue:
        image_HWC = jitter(image_HWC, config, rng)
    if config.erase:
        image_HWC = erase(image_HWC, config, rng)
    return image_HWC


def erase(image_HWC: Pixels, config: Augment, rng: np.random.Generator) -> Pixels:
    """With probability `config.erase`, one box replaced by grey or noise ("Random erasing", Zhong et al., 2017, alg. 1)."""
    if rng.random() >= config.erase:
        return image_HWC
    height, width, channels = image_HWC.shape
    least_area, most_area = config.erase_area
    low, high = math.log(config.erase_aspect[0]), math.log(config.erase_aspect[1])
    for _ in range(_TRIES):
        share, slope, down, across = rng.random(4)
        area = (least_area + (most_area - least_area) * share) * height * width
        aspect = math.exp(low + (high - low) * slope)
        box_height, box_width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if not (0 < box_height < height and 0 < box_width < width):
            continue
        top, left = int(down * (height - box_height + 1)), int(across * (width - box_width + 1))
        erased_HWC = image_HWC.copy()
        box_HWC = erased_HWC[top : top + box_height, left : left + box_width]
        if config.erase_fill == "grey":
            box_HWC[:] = config.fill
        else:
            box_HWC[:] = noise(box_HWC.size, rng).reshape(box_height, box_width, channels)
        return erased_HWC
    return image_HWC


def noise(count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """So many random levels, every one of the 256 alike."""
    return np.frombuffer(rng.bytes(count), np.uint8)
