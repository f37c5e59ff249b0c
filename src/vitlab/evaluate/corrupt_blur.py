"""Blurs. Strengths after Hendrycks and Dietterich 2019. Axes: H height, W width, C channels."""

from __future__ import annotations

import numpy as np

from vitlab.evaluate.corrupt_noise import Floats, Pixels, floats, pixels
from vitlab.evaluate.smoothing import convolved, gaussian, moved, zoomed


def scale_of(image_HWC: Pixels) -> float:
    """How much larger than the 224 pixels of the paper the picture is."""
    height, width, _ = image_HWC.shape
    return float(min(height, width)) / 224


def defocus_blur(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Out of focus: every point becomes a disc."""
    radius, soft = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))[severity]
    return pixels(convolved(floats(image_HWC), _disc(radius * scale_of(image_HWC), soft)))


def _disc(radius: float, soft: float) -> Floats:
    reach = int(np.ceil(radius + 2 * soft)) + 1
    y_K1, x_1K = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(np.float32)
    kernel = np.clip(radius + 0.5 - np.hypot(y_K1, x_1K), 0, 1).astype(np.float32)  # pixels the edge passes count in part
    kernel = gaussian(kernel[:, :, None], soft)[:, :, 0]
    return np.asarray(kernel / kernel.sum(), np.float32)


def glass_blur(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Through frosted glass: blurred, pixels taken from nearby by chance, blurred again."""
    sigma, farthest, rounds = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))[severity]
    scale = scale_of(image_HWC)
    height, width, _ = image_HWC.shape
    reach = max(1, round(farthest * scale))
    image = gaussian(floats(image_HWC), sigma * scale)
    y_H1, x_1W = np.mgrid[:height, :width]
    for _ in range(rounds):
        down, across = rng.integers(-reach, reach, (2, height, width))
        image = image[np.clip(y_H1 + down, 0, height - 1), np.clip(x_1W + across, 0, width - 1)]
    return pixels(gaussian(image, sigma * scale))


def motion_blur(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """The camera moved, in a direction within 45 degrees of level."""
    radius, sigma = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))[severity]
    scale = scale_of(image_HWC)
    angle = np.deg2rad(rng.uniform(-45, 45))
    return pixels(moved(floats(image_HWC), round(2 * radius * scale) + 1, sigma * scale, angle))


def zoom_blur(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """The camera came nearer: the mean of ever larger pictures, up to this factor in steps of this size."""
    largest, step = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))[severity]
    image = floats(image_HWC)
    factors = np.arange(1, largest, step)
    total = image.copy()
    for factor in factors:
        total += zoomed(image, factor)
    return pixels(total / (len(factors) + 1))
