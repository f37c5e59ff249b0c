"""The few operations corruptions are made of: blurs as matrices, shifts, zooms, and sampling between pixels.

Pictures are float32 [H, W, C], 0 to 1. Axes: H height, W width, C channels.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def gaussian(image_HWC: Floats, sigma: float, *, truncate: float = 4.0) -> Floats:
    """Blurred by a Gaussian of `sigma` pixels, cut at `truncate` sigmas; the picture is mirrored at its borders."""
    height, width, channels = image_HWC.shape
    down_HH, across_WW = _blur_matrix(height, sigma, truncate), _blur_matrix(width, sigma, truncate)
    blurred_HWC = (down_HH @ image_HWC.reshape(height, -1)).reshape(height, width, channels)
    blurred_HCW = blurred_HWC.transpose(0, 2, 1).reshape(-1, width) @ across_WW.T
    return np.ascontiguousarray(blurred_HCW.reshape(height, channels, width).transpose(0, 2, 1))


@lru_cache(maxsize=64)
def _blur_matrix(length: int, sigma: float, truncate: float) -> Floats:
    """(length, length): what each pixel gives to each other, borders folded in, so that any sigma is exact."""
    reach = int(truncate * sigma + 0.5)
    offset_R = np.arange(-reach, reach + 1)
    weight_R = np.exp(-0.5 * (offset_R / max(sigma, 1e-6)) ** 2)
    place_LR = mirrored(np.arange(length)[:, None] + offset_R[None, :], length)
    code = (np.arange(length)[:, None] * length + place_LR).ravel()
    matrix = np.bincount(code, np.tile(weight_R / weight_R.sum(), length), minlength=length * length)
    return matrix.reshape(length, length).astype(np.float32)


def mirrored(place: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Places outside 0..length - 1 brought inside by mirroring: -1 is 0, -2 is 1, `length` is length - 1."""
    place = place % (2 * length)
    return np.where(place >= length, 2 * length - 1 - place, place)


def convolved(image_HWC: Floats, kernel_KK: Floats) -> Floats:
    """The picture through a square kernel of odd side, mirrored at its borders."""
    reach = len(kernel_KK) // 2
    height, width, _ = image_HWC.shape
    padded = image_HWC[mirrored(np.arange(-reach, height + reach), height)][:, mirrored(np.arange(-reach, width + reach), width)]
    shape = padded.shape[:2]
    frequencies = np.fft.rfft2(padded, axes=(0, 1)) * np.fft.rfft2(kernel_KK, s=shape)[:, :, None]
    found = np.fft.irfft2(frequencies, s=shape, axes=(0, 1))
    return np.ascontiguousarray(found[2 * reach :, 2 * reach :], np.float32)


def moved(image_HWC: Floats, length: int, sigma: float, angle: float) -> Floats:
    """Dragged in one direction over `length` pixels, fading as a Gaussian of `sigma`; `angle` in radians from the x axis."""
    step_I = np.arange(max(length, 1))
    weight_I = np.exp(-0.5 * (step_I / max(sigma, 1e-6)) ** 2)
    weight_I /= weight_I.sum()
    down_I, across_I = np.rint(step_I * np.sin(angle)).astype(int), np.rint(step_I * np.cos(angle)).astype(int)
    height, width, _ = image_HWC.shape
    reach = len(step_I)
    padded = np.pad(image_HWC, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    out = np.zeros_like(image_HWC)
    for weight, down, across in zip(weight_I.astype(np.float32), reach + down_I, reach + across_I, strict=True):
        out += weight * padded[down : down + height, across : across + width]
    return out


def zoomed(image_HWC: Floats, factor: float) -> Floats:
    """The centre enlarged by `factor`, of the same size, linear between pixels."""
    height, width, _ = image_HWC.shape
    above, below, down = _between(height, factor)
    left, right, across = _between(width, factor)
    rows = image_HWC[above] * (1 - down)[:, None, None] + image_HWC[below] * down[:, None, None]
    return np.asarray(rows[:, left] * (1 - across)[None, :, None] + rows[:, right] * across[None, :, None], np.float32)


def _between(length: int, factor: float) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    centre = (length - 1) / 2
    place = centre + (np.arange(length) - centre) / factor
    before = np.floor(place).astype(np.int64)
    return before, np.minimum(before + 1, length - 1), (place - before).astype(np.float32)


def sampled(image_HWC: Floats, y_HW: NDArray[np.float64], x_HW: NDArray[np.float64]) -> Floats:
    """The picture at any places (in pixels), linear between pixels, mirrored at its borders."""
    height, width, _ = image_HWC.shape
    top, left = np.floor(y_HW).astype(np.int64), np.floor(x_HW).astype(np.int64)
    down, across = (y_HW - top).astype(np.float32)[:, :, None], (x_HW - left).astype(np.float32)[:, :, None]
    above, below = mirrored(top, height), mirrored(top + 1, height)
    before, after = mirrored(left, width), mirrored(left + 1, width)
    upper = image_HWC[above, before] * (1 - across) + image_HWC[above, after] * across
    lower = image_HWC[below, before] * (1 - across) + image_HWC[below, after] * across
    return np.asarray(upper * (1 - down) + lower * down, np.float32)


def plasma(side: int, decay: float, rng: np.random.Generator) -> Floats:
    """A cloudy height map (side, side), 0 to 1: a torus refined by diamonds and squares, each level `decay` times weaker."""
    map_SS = np.zeros((1, 1))
    strength = 1.0
    while len(map_SS) < side:
        size = 2 * len(map_SS)
        finer = np.empty((size, size))
        finer[::2, ::2] = map_SS
        below = np.roll(map_SS, -1, 0)
        square = (map_SS + below + np.roll(map_SS, -1, 1) + np.roll(below, -1, 1)) / 4
        finer[1::2, 1::2] = square + strength * rng.uniform(-1, 1, map_SS.shape)
        centre = finer[1::2, 1::2]
        right = (map_SS + np.roll(map_SS, -1, 1) + centre + np.roll(centre, 1, 0)) / 4
        finer[::2, 1::2] = right + strength * rng.uniform(-1, 1, map_SS.shape)
        under = (map_SS + below + centre + np.roll(centre, 1, 1)) / 4
        finer[1::2, ::2] = under + strength * rng.uniform(-1, 1, map_SS.shape)
        map_SS = finer
        strength /= decay
    map_SS = map_SS[:side, :side] - map_SS.min()
    return np.asarray(map_SS / max(float(map_SS.max()), 1e-12), np.float32)
