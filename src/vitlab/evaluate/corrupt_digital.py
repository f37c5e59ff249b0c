"""What screens, lenses and files do. Strengths after Hendrycks and Dietterich 2019. Axes: H height, W width, C channels."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from vitlab.evaluate.corrupt_blur import scale_of
from vitlab.evaluate.corrupt_noise import Pixels, floats, pixels
from vitlab.evaluate.smoothing import gaussian, sampled


def contrast(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Everything drawn towards the mean of its channel; this share of the difference is left."""
    left = (0.4, 0.3, 0.2, 0.1, 0.05)[severity]
    image = floats(image_HWC)
    mean = image.mean((0, 1), keepdims=True)
    return pixels((image - mean) * left + mean)


def elastic(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Sheared by three points that move by chance, then stretched and pinched in small regions."""
    # 244 is a slip of the pen in the published code that its files were made with.
    reach, region, corner = (
        (244 * 2.0, 244 * 0.7, 244 * 0.1),
        (244 * 2.0, 244 * 0.08, 244 * 0.2),
        (244 * 0.05, 244 * 0.01, 244 * 0.02),
        (244 * 0.07, 244 * 0.01, 244 * 0.02),
        (244 * 0.12, 244 * 0.01, 244 * 0.02),
    )[severity]
    scale = scale_of(image_HWC)
    height, width, _ = image_HWC.shape
    third = min(height, width) // 3
    middle = np.array([height // 2, width // 2], np.float64)
    before = middle + third * np.array([[1, 1], [1, -1], [-1, -1]])
    after = before + rng.uniform(-corner * scale, corner * scale, before.shape)
    # The affine map that brings the moved points back to where they were: where each pixel of the result comes from.
    back_32 = np.linalg.solve(np.column_stack([after, np.ones(3)]), before)
    noise = rng.uniform(-1, 1, (height, width, 2)).astype(np.float32)
    # The mean of more pixels is smaller: once for the length itself, once to undo that.
    shift_HW2 = gaussian(noise, region * scale, truncate=3.0) * np.float32(reach * scale**2)
    place_HW2 = np.moveaxis(np.mgrid[:height, :width], 0, 2) + shift_HW2
    from_HW2 = place_HW2 @ back_32[:2] + back_32[2]
    return pixels(sampled(floats(image_HWC), from_HW2[:, :, 0], from_HW2[:, :, 1]))


def pixelate(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Enlarged from this share of its size."""
    share = (0.6, 0.5, 0.4, 0.3, 0.25)[severity]
    height, width, channels = image_HWC.shape
    small = max(1, int(width * share)), max(1, int(height * share))
    planes = []
    for channel in range(channels):
        plane = Image.fromarray(image_HWC[:, :, channel]).resize(small, Image.Resampling.BOX)
        planes.append(np.asarray(plane.resize((width, height), Image.Resampling.BOX)))
    return np.stack(planes, axis=2)


def jpeg(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Packed as JPEG of this quality, and unpacked; other than three channels one by one."""
    quality = (25, 18, 15, 10, 7)[severity]
    if image_HWC.shape[2] == 3:
        return _packed(Image.fromarray(image_HWC), quality)
    return np.stack([_packed(Image.fromarray(plane), quality) for plane in np.moveaxis(image_HWC, 2, 0)], axis=2)


def _packed(image: Image.Image, quality: int) -> Pixels:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    with Image.open(file, formats=["JPEG"]) as opened:
        return np.array(opened)
