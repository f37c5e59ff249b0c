"""Augmentation after the crop: RandAugment, colour jitter and random erasing. Pure functions of (image, config, rng).

RandAugment (Cubuk et al., 2019) has the sixteen operations and the scale of the official ViT pre-training. A magnitude M is on
the scale where 10 ends the range that AutoAugment searched; AugReg goes to 20. The meaning of M:

    rotate        +-30 M/10 degrees                     shear-x, shear-y          +-0.3 M/10
    translate-x   +-100/224 M/10 of the width           translate-y               +-100/224 M/10 of the height
    color, contrast, brightness, sharpness              factor 0.1 + 1.8 M/10: 1 is the unchanged image
    posterize     int(4 M/10) bits kept, 1 to 8         solarize                  levels from int(256 M/10) up are inverted
    solarize-add  int(110 M/10) added below 128         cutout                    a square of side 80/224 M/10 of the shorter side
    autocontrast, equalize, invert                      no magnitude

As in the official code M = 0 is not the identity: it darkens, inverts (solarize from 0) and posterizes to one bit; posterize and
solarize become weaker with M. There a shift is 100 pixels and a cutout 80 pixels for every image size; here they are these
fractions of 224, so that small images keep something. Contrast blends with the mean grey, as in Pillow.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from vitlab.config.data import Augment
from vitlab.data.dataset import Pixels
from vitlab.errors import DataError


def as_pillow(image_HWC: Pixels) -> Image.Image:
    """A grey or RGB image as a Pillow image."""
    channels = image_HWC.shape[2]
    if channels not in (1, 3):
        raise DataError(
            f"RandAugment and colour jitter are for grey and RGB images, not for {channels} channels",
            hint="switch them off: randaugment=None and no brightness, contrast, saturation or hue",
        )
    return Image.fromarray(image_HWC[:, :, 0] if channels == 1 else image_HWC)


def as_pixels(image: Image.Image) -> Pixels:
    """A Pillow image as [H, W, C]."""
    pixels = np.array(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def jitter(image_HWC: Pixels, config: Augment, rng: np.random.Generator) -> Pixels:
    """Colour jitter in a random order: factors from 1 - width (at least 0) to 1 + width; hue shifted by up to its width."""
    image = as_pillow(image_HWC)
    widths = config.brightness, config.contrast, config.saturation, config.hue
    amounts = rng.random(4)  # always all four, so that one setting does not change the random numbers of the others
    for at in np.argsort(rng.random(4)):
        change, width, amount = _CHANGES[at], widths[at], float(amounts[at])
        if width:
            low, high = (-width, width) if change is turn_hue else (max(0.0, 1 - width), 1 + width)
            image = change(image, low + (high - low) * amount)
    return as_pixels(image)


def brighten(image: Image.Image, factor: float) -> Image.Image:
    """Blend with black: 0 is black, 1 is the image."""
    return ImageEnhance.Brightness(image).enhance(factor)


def contrast(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the mean grey: 0 is flat grey, 1 is the image."""
    return ImageEnhance.Contrast(image).enhance(factor)


def saturate(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the grey image: 0 is grey, 1 is the image."""
    return image if image.mode == "L" else ImageEnhance.Color(image).enhance(factor)


def turn_hue(image: Image.Image, turn: float) -> Image.Image:
    """Shift the hue by -0.5 to 0.5 of a turn; a grey image has none."""
    if image.mode == "L":
        return image
    hue, saturation, value = image.convert("HSV").split()
    shifted = Image.fromarray(np.asarray(hue) + np.uint8(int(turn * 255) % 256))
    return Image.merge("HSV", (shifted, saturation, value)).convert("RGB")


_CHANGES: tuple[Callable[[Image.Image, float], Image.Image], ...] = (brighten, contrast, saturate, turn_hue)

Operation = Literal[
    "autocontrast",
    "equalize",
    "invert",
    "rotate",
    "posterize",
    "solarize",
    "color",
    "contrast",
    "brightness",
    "sharpness",
    "shear-x",
    "shear-y",
    "translate-x",
    "translate-y",
    "cutout",
    "solarize-add",
]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


def randaugment(image_HWC: Pixels, layers: int, magnitude: float, rng: np.random.Generator, *, fill: int = 128) -> Pixels:
    """Apply `layers` operations at the same magnitude, each drawn uniformly from all sixteen."""
    image = as_pillow(image_HWC)
    for _ in range(layers):
        # Always four numbers per layer, so that one layer does not change the random numbers of the next.
        chosen, sign, down, across = rng.random(4)
        operation = OPERATIONS[int(chosen * len(OPERATIONS))]
        argument = argument_of(operation, magnitude, image.size, negative=bool(sign < 0.5))
        if operation == "cutout":
            image = cutout(image, argument, fill, centre=(int(down * image.height), int(across * image.width)))
        else:
            image = apply(image, operation, argument, fill)
    return as_pixels(image)


def argument_of(operation: Operation, magnitude: float, size: tuple[int, int], *, negative: bool = False) -> float:
    """The argument of an operation at a magnitude, for an image of (width, height) `size`, by the table above.

    `negative` reverses rotation, shear and translation. Translation and cutout are in pixels.
    """
    level, sign, (width, height) = magnitude / 10, -1 if negative else 1, size
    match operation:
        case "autocontrast" | "equalize" | "invert":
            return 0.0
        case "rotate":
            return sign * 30 * level
        case "shear-x" | "shear-y":
            return sign * 0.3 * level
        case "translate-x":
            return sign * level * width * 100 / 224
        case "translate-y":
            return sign * level * height * 100 / 224
        case "color" | "contrast" | "brightness" | "sharpness":
            return 0.1 + 1.8 * level
        case "posterize":
            return min(8, max(1, int(4 * level)))
        case "solarize":
            return min(256, int(256 * level))
        case "solarize-add":
            return int(110 * level)
        case "cutout":
            return int(level * min(width, height) * 40 / 224)


def apply(image: Image.Image, operation: Operation, argument: float, fill: int) -> Image.Image:
    """Apply an operation other than `cutout`, with the argument of `argument_of`."""
    match operation:
        case "autocontrast":
            return ImageOps.autocontrast(image)
        case "equalize":
            return ImageOps.equalize(image)
        case "invert":
            return ImageOps.invert(image)
        case "rotate":
            return image.rotate(argument, Image.Resampling.NEAREST, fillcolor=_colour(image, fill))
        case "posterize":
            return ImageOps.posterize(image, int(argument))
        case "solarize":
            return _by_level(image, lambda level: level if level < argument else 255 - level)
        case "color":
            return saturate(image, argument)
        case "contrast":
            return contrast(image, argument)
        case "brightness":
            return brighten(image, argument)
        case "sharpness":
            return ImageEnhance.Sharpness(image).enhance(argument)
        case "shear-x":
            return _affine(image, (1, argument, 0, 0, 1, 0), fill)
        case "shear-y":
            return _affine(image, (1, 0, 0, argument, 1, 0), fill)
        case "translate-x":
            return _affine(image, (1, 0, argument, 0, 1, 0), fill)
        case "translate-y":
            return _affine(image, (1, 0, 0, 0, 1, argument), fill)
        case "solarize-add":
            return _by_level(image, lambda level: min(255, level + int(argument)) if level < 128 else level)
        case "cutout":
            raise AssertionError("cutout needs a position: call `cutout`")


def cutout(image: Image.Image, half_side: float, fill: int, *, centre: tuple[int, int]) -> Image.Image:
    """Fill a square of twice `half_side` pixels around (row, column) `centre` with grey."""
    row, column, reach = *centre, int(half_side)
    box = max(0, column - reach), max(0, row - reach), min(image.width, column + reach), min(image.height, row + reach)
    if box[0] < box[2] and box[1] < box[3]:
        image = image.copy()
        image.paste(_colour(image, fill), box)
    return image


def _colour(image: Image.Image, grey: int) -> int | tuple[int, int, int]:
    return grey if image.mode == "L" else (grey, grey, grey)


def _affine(image: Image.Image, matrix: tuple[float, float, float, float, float, float], fill: int) -> Image.Image:
    """`matrix` (a, b, c, d, e, f) takes an output pixel (x, y) to the input pixel (ax + by + c, dx + ey + f)."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=_colour(image, fill))


def _by_level(image: Image.Image, function: Callable[[int], int]) -> Image.Image:
    """Replace each of the 256 levels, in the same way in every channel."""
    return image.point([function(level) for level in range(256)] * len(image.getbands()))


_TRIES = 10


def distort(image_HWC: Pixels, config: Augment, rng: np.random.Generator) -> Pixels:
    """Apply RandAugment, colour jitter and erasing as `config` says, in this order."""
    if config.randaugment is not None:
        layers, magnitude = config.randaugment
        image_HWC = randaugment(image_HWC, layers, magnitude, rng, fill=config.fill)
    if config.brightness or config.contrast or config.saturation or config.hue:
        image_HWC = jitter(image_HWC, config, rng)
    if config.erase:
        image_HWC = erase(image_HWC, config, rng)
    return image_HWC


def erase(image_HWC: Pixels, config: Augment, rng: np.random.Generator) -> Pixels:
    """With probability `config.erase`, replace one box by grey or noise ("Random erasing", Zhong et al., 2017, alg. 1)."""
    if rng.random() >= config.erase:
        return image_HWC
    height, width, channels = image_HWC.shape
    least_area, most_area = config.erase_area
    low, high = math.log(config.erase_aspect[0]), math.log(config.erase_aspect[1])
    for _ in range(_TRIES):
        size, slope, down, across = rng.random(4)
        area = (least_area + (most_area - least_area) * size) * height * width
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
    """Uniformly random levels from 0 to 255."""
    return np.frombuffer(rng.bytes(count), np.uint8)
