"""Noise of sensors and wires. Strengths after Hendrycks and Dietterich 2019. Axes: H height, W width, C channels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]


def floats(image_HWC: Pixels) -> Floats:
    """Pixels as 0 to 1."""
    return image_HWC.astype(np.float32) / np.float32(255)


def pixels(image_HWC: NDArray[np.floating]) -> Pixels:
    """0 to 1 as pixels, rounded, whatever is beyond cut off."""
    rounded_HWC: Pixels = np.rint(np.clip(image_HWC, 0, 1) * 255).astype(np.uint8)
    return rounded_HWC


def gaussian_noise(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """As in poor light."""
    spread = (0.08, 0.12, 0.18, 0.26, 0.38)[severity]
    return pixels(floats(image_HWC) + np.float32(spread) * rng.standard_normal(image_HWC.shape, np.float32))


def shot_noise(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """As of light that comes in single particles, this many for white."""
    particles = (60, 25, 12, 5, 3)[severity]
    return pixels(rng.poisson(floats(image_HWC) * particles) / particles)


def impulse_noise(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """As of broken bits: this share of the values becomes black or white."""
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[severity]
    draw = rng.random(image_HWC.shape, np.float32)
    return np.where(draw < share / 2, np.uint8(0), np.where(draw < share, np.uint8(255), image_HWC))
