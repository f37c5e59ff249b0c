"""From the coverage of a shape to an image: sharpness, colours, light and noise, which do not depend on the class.

Axes: B images, C channels, H height, W width.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.random_numbers import CHANCE, Choice, Choices, Floats, Keys, cosine, sine, turns, words

# Brightness is from 0 (black) to 1 (white); the direction is in turns.
_SAMPLE = Choices(
    {
        "coarse": CHANCE,
        "fineness": Choice(0, 1),
        "round": CHANCE,
        "inverted": CHANCE,
        "paper": Choice(0.0, 0.35, 0.05),
        "contrast": Choice(0.5, 1.0, 0.9),
        "paper tint": Choice(-0.3, 0.3, times=3),
        "ink tint": Choice(-0.25, 0.25, times=3),
        "direction": Choice(0, 1),
        "paper slope": Choice(-0.15, 0.15, times=3),
        "ink slope": Choice(-0.15, 0.15, times=3),
        "noisy": CHANCE,
        "noise": Choice(0.03, 0.22),
    }
)
_FINEST = 0.9  # above this a blur is not visible
# Where the random words of this stage begin in a sample's sequence; those of the shape come before.
_CHOICES_AFTER = 1 << 16
_NOISE_AFTER = 1 << 32


def image(coverage_BHW: NDArray[np.uint8], key_B: Keys, channels: int, *, coarsest: float, variety: float) -> NDArray[np.uint8]:
    """Images [B, H, W, C] of the shapes; `coverage_BHW` is overwritten; `key_B` holds the samples' keys.

    `coarsest` is the strongest blur, as a fraction of the image's pixels along a side.
    """
    height, width = coverage_BHW.shape[1:]
    sample = _SAMPLE.draw(key_B, variety=variety, after=_CHOICES_AFTER)
    _blur(coverage_BHW, sample, coarsest)
    share_B1HW = (coverage_BHW * np.float32(1 / 255))[:, None]

    # Ink and paper always contrast; usually bright on dark; tinted in colour images.
    inverted_B1 = sample["inverted"] < 0.25
    ink_B1 = sample["paper"] + sample["contrast"] * (1 - sample["paper"])
    paper_BC = _tinted(np.where(inverted_B1, 1 - sample["paper"], sample["paper"]), sample["paper tint"], channels)
    ink_BC = _tinted(np.where(inverted_B1, 1 - ink_B1, ink_B1), sample["ink tint"], channels)
    light_BCHW = share_B1HW * _pixels(ink_BC - paper_BC) + _pixels(paper_BC)

    # Light changes in one direction, by different amounts for paper and ink.
    paper_slope_BC, ink_slope_BC = sample["paper slope"][:, :channels], sample["ink slope"][:, :channels]
    slope_BCHW = share_B1HW * _pixels(ink_slope_BC - paper_slope_BC) + _pixels(paper_slope_BC)
    light_BCHW += _plane(turns(sample["direction"]), height, width)[:, None] * slope_BCHW

    strength_B1 = (sample["noisy"] < 0.5) * sample["noise"] * sample["contrast"]
    if strength_B1.any():
        light_BCHW += _noise(key_B, light_BCHW.shape) * _pixels(strength_B1)
    light_BCHW *= 255
    light_BCHW += 0.5
    np.maximum(light_BCHW, 0, out=light_BCHW)
    np.minimum(light_BCHW, 255, out=light_BCHW)
    return light_BCHW.astype(np.uint8).transpose(0, 2, 3, 1)


def _blur(coverage_BHW: NDArray[np.uint8], sample: dict[str, Floats], coarsest: float) -> None:
    """Blur some of the shapes, as when a small image is enlarged."""
    height, width = coverage_BHW.shape[1:]
    for b in np.flatnonzero(sample["coarse"] < 0.5).tolist():
        fineness = coarsest + (_FINEST - coarsest) * float(sample["fineness"][b, 0])
        small = (max(4, round(width * fineness)), max(4, round(height * fineness)))
        enlarge = Image.Resampling.BICUBIC if sample["round"][b, 0] < 0.5 else Image.Resampling.BILINEAR
        seen = Image.fromarray(coverage_BHW[b]).resize(small, Image.Resampling.BOX).resize((width, height), enlarge)
        seen_HW = np.asarray(seen)
        # Thin lines fade when blurred, so the brightest pixel is brought back to white, within limits.
        gain = np.float32(min(255 / max(1, int(seen_HW.max())), 2.5))
        np.minimum(seen_HW * gain, 255, out=coverage_BHW[b], casting="unsafe")


def _tinted(grey_B1: Floats, tint_B3: Floats, channels: int) -> Floats:
    """One value per channel: the grey itself, or a colour around it."""
    return grey_B1 if channels == 1 else (grey_B1 + tint_B3).clip(0, 1)


def _pixels(value_BC: Floats) -> NDArray[np.float32]:
    """One value per image and channel, as [B, C, 1, 1]."""
    return value_BC.astype(np.float32)[:, :, None, None]


def _plane(way_B1: NDArray[np.int64], height: int, width: int) -> NDArray[np.float32]:
    """A gradient [B, H, W] from about -1 to 1 across each image, in its own direction."""
    down_BH = (sine(way_B1) * _even_steps(height)).astype(np.float32)
    along_BW = (cosine(way_B1) * _even_steps(width)).astype(np.float32)
    return down_BH[:, :, None] + along_BW[:, None, :]


@lru_cache(maxsize=16)
def _even_steps(count: int) -> Floats:
    """Pixel centres on a line from -1 to 1."""
    return (np.arange(count) * 2 + 1 - count) / count


def _noise(key_B: Keys, shape_BCHW: tuple[int, ...]) -> NDArray[np.float32]:
    """Noise between -1 and 1, independent in each pixel and channel, more often small than large."""
    count = int(np.prod(shape_BCHW[1:]))
    bytes_BK = words(key_B, -(-count // 4), after=_NOISE_AFTER).astype("<u8", copy=False).view(np.int8)
    sum_BK = bytes_BK[:, :count].astype(np.int16) + bytes_BK[:, count : 2 * count]  # a sum of two: small values are likelier
    return (sum_BK * np.float32(1 / 256)).reshape(shape_BCHW)
