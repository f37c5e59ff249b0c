"""Weather. Strengths after Hendrycks and Dietterich 2019. Axes: H height, W width, C channels."""

from __future__ import annotations

import numpy as np

from vitlab.evaluate.corrupt_blur import scale_of
from vitlab.evaluate.corrupt_noise import Floats, Pixels, floats, pixels
from vitlab.evaluate.smoothing import moved, plasma, zoomed

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_ICE = np.array([0.82, 0.91, 1.0], np.float32)


def snow(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Falling flakes, blurred by their fall, before a picture that the snow has whitened."""
    mean, spread, zoom, least, radius, sigma, kept = (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    )[severity]
    scale = scale_of(image_HWC)
    image = floats(image_HWC)
    flakes = (mean + spread * rng.standard_normal((*image.shape[:2], 1))).astype(np.float32)
    flakes = zoomed(flakes, max(1.0, zoom * scale))
    flakes = np.clip(np.where(flakes < least, 0, flakes), 0, 1).astype(np.float32)
    angle = np.deg2rad(rng.uniform(-135, -45))
    flakes = moved(flakes, round(2 * radius * scale) + 1, sigma * scale, angle)
    whitened = np.maximum(image, _grey(image) * 1.5 + 0.5)
    return pixels(kept * image + (1 - kept) * whitened + flakes + flakes[::-1, ::-1])


def frost(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Ice on the lens: crystals grown from noise, thickest towards one corner."""
    kept, ice = ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))[severity]
    image = floats(image_HWC)
    return pixels(kept * image + ice * _crystals(image.shape, rng))


def _crystals(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Ice (H, W, C): ridges, the places where noise crosses its middle, of three sizes, under a slowly changing thickness."""
    height, width, channels = shape
    side = max(height, width)
    ridges = np.zeros((height, width), np.float32)
    for decay, share in ((1.5, 0.3), (1.9, 0.35), (2.4, 0.35)):
        noise = plasma(side, decay, rng)[:height, :width]
        noise = (noise - noise.mean()) / max(float(noise.std()), 1e-6)
        ridges += np.float32(share) * np.exp(-np.abs(noise) * 5)
    corner = rng.integers(0, 2, 2)
    y_H1, x_1W = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j].astype(np.float32)
    far = np.hypot(y_H1 - corner[0], x_1W - corner[1]) / np.float32(np.sqrt(2))
    thickness = np.clip(1.15 - far + 0.6 * (plasma(side, 3.0, rng)[:height, :width] - 0.5), 0.15, 1)
    grey = np.clip(thickness * (0.4 + 1.6 * ridges), 0, 1)
    tint = _ICE if channels == 3 else np.full(channels, _ICE.mean(), np.float32)
    return np.asarray(grey[:, :, None] * tint, np.float32)


def fog(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """A cloud of this thickness and roughness before everything."""
    thick, decay = ((1.5, 2), (2.0, 2), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))[severity]
    image = floats(image_HWC)
    height, width, _ = image.shape
    brightest = float(image.max())
    # The published code's noise falls by the square of its decay from level to level.
    cloud = thick * plasma(max(height, width), decay**2, rng)[:height, :width, None]
    return pixels((image + cloud) * brightest / (brightest + thick))


def brightness(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Daylight: this much added to the value of hue, saturation and value, which scales all channels of a pixel alike."""
    added = (0.1, 0.2, 0.3, 0.4, 0.5)[severity]
    image = floats(image_HWC)
    value = image.max(2, keepdims=True)
    brighter = np.minimum(value + added, 1)
    return pixels(np.where(value > 0, image * brighter / np.maximum(value, 1e-6), brighter))


def _grey(image: Floats) -> Floats:
    weights = _LUMA if image.shape[2] == 3 else np.full(image.shape[2], 1 / image.shape[2], np.float32)
    return np.asarray(image @ weights, np.float32)[:, :, None]
