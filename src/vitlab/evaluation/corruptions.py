"""Fifteen common corruptions in five severities, after ImageNet-C (Hendrycks and Dietterich 2019), on the model's input pixels.

The strengths are those of the paper at 224 pixels, one for each severity; lengths in pixels scale with the shorter side, so that a
corruption looks the same at every size. The pixels differ from the published files, which other libraries made and saved as JPEG;
frost is drawn here instead of cut out of photographs. Compare models with each other, not with published tables.

A corruption takes pixels, uint8 (H, W, C), a severity from 0 to 4 and a random generator. The image operations below them work on
float32 (H, W, C) from 0 to 1.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.batch import Pipeline
from vitlab.data.dataset import RawSample
from vitlab.data.transforms import EvaluationTransform
from vitlab.errors import ConfigError, did_you_mean

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]
Corrupt = Callable[[Pixels, int, np.random.Generator], Pixels]
"""An image, uint8 (H, W, C), a severity from 0 to 4 and a random generator -> an image of the same shape."""

SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(image_HWC: Pixels, corruption: str, severity: int, rng: np.random.Generator) -> Pixels:
    """The corrupted image; `severity` is from 1 (weak) to 5 (strong). The same `rng` gives the same pixels."""
    check_corruption(corruption, severity)
    return CORRUPTIONS[corruption](image_HWC, severity - 1, rng)


def check_corruption(corruption: str, severity: int) -> None:
    """Refuse an unknown corruption or severity."""
    if corruption not in CORRUPTIONS:
        hint = did_you_mean(corruption, list(CORRUPTIONS)) or f"known corruptions: {', '.join(CORRUPTIONS)}"
        raise ConfigError(f"no corruption called {corruption!r}", hint=hint)
    if severity not in SEVERITIES:
        raise ConfigError(f"severity={severity} must be from 1 to 5")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptedTransform:
    """A loader's transform: the model's input, corrupted."""

    transform: EvaluationTransform
    corruption: str
    severity: int

    def __post_init__(self) -> None:
        check_corruption(self.corruption, self.severity)

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Pixels:
        """uint8 (H, W, C) of the model's input size."""
        return corrupt(self.transform(sample, rng), self.corruption, self.severity, rng)

    @property
    def seed(self) -> int:
        """The loader's seed: it makes randomness a function of the image's index, the corruption and the severity."""
        return 1 + list(CORRUPTIONS).index(self.corruption) * len(SEVERITIES) + self.severity - 1

    @property
    def description(self) -> str:
        """`fog 3`"""
        return f"{self.corruption} {self.severity}"

    def pipeline(self) -> Pipeline:
        """For the loader."""
        return Pipeline(transform=self, shape=self.transform.pipeline().shape)


def chosen_corruptions(words: Sequence[str]) -> tuple[str, ...]:
    """The corruptions of these names, in the paper's order; `all` means all. An unknown name is refused."""
    for word in words:
        if word != "all":
            check_corruption(word, 1)
    return tuple(name for name in CORRUPTIONS if "all" in words or name in words)


def floats(image_HWC: Pixels) -> Floats:
    """Pixels as floats from 0 to 1."""
    return image_HWC.astype(np.float32) / np.float32(255)


def pixels(image_HWC: NDArray[np.floating]) -> Pixels:
    """Floats from 0 to 1 as pixels, clipped and rounded."""
    rounded_HWC: Pixels = np.rint(np.clip(image_HWC, 0, 1) * 255).astype(np.uint8)
    return rounded_HWC


def gaussian_noise(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Gaussian noise, as in poor light."""
    spread = (0.08, 0.12, 0.18, 0.26, 0.38)[severity]
    return pixels(floats(image_HWC) + np.float32(spread) * rng.standard_normal(image_HWC.shape, np.float32))


def shot_noise(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Poisson noise, as of single photons, this many for white."""
    particles = (60, 25, 12, 5, 3)[severity]
    return pixels(rng.poisson(floats(image_HWC) * particles) / particles)


def impulse_noise(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Salt-and-pepper noise: this share of the values becomes black or white."""
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[severity]
    draw = rng.random(image_HWC.shape, np.float32)
    return np.where(draw < share / 2, np.uint8(0), np.where(draw < share, np.uint8(255), image_HWC))


def gaussian(image_HWC: Floats, sigma: float, *, truncate: float = 4.0) -> Floats:
    """Blur by a Gaussian of `sigma` pixels, cut at `truncate` sigmas; borders are mirrored."""
    height, width, channels = image_HWC.shape
    down_HH, across_WW = _blur_matrix(height, sigma, truncate), _blur_matrix(width, sigma, truncate)
    blurred_HWC = (down_HH @ image_HWC.reshape(height, -1)).reshape(height, width, channels)
    blurred_HCW = blurred_HWC.transpose(0, 2, 1).reshape(-1, width) @ across_WW.T
    return np.ascontiguousarray(blurred_HCW.reshape(height, channels, width).transpose(0, 2, 1))


@lru_cache(maxsize=64)
def _blur_matrix(length: int, sigma: float, truncate: float) -> Floats:
    """(length, length): the weight of each pixel in each other, borders included, so that any sigma is exact."""
    reach = int(truncate * sigma + 0.5)
    offset_R = np.arange(-reach, reach + 1)
    weight_R = np.exp(-0.5 * (offset_R / max(sigma, 1e-6)) ** 2)
    place_LR = mirrored(np.arange(length)[:, None] + offset_R[None, :], length)
    code = (np.arange(length)[:, None] * length + place_LR).ravel()
    matrix = np.bincount(code, np.tile(weight_R / weight_R.sum(), length), minlength=length * length)
    return matrix.reshape(length, length).astype(np.float32)


def mirrored(place: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Mirror places outside 0..length - 1 to the inside: -1 is 0, -2 is 1, `length` is length - 1."""
    place = place % (2 * length)
    return np.where(place >= length, 2 * length - 1 - place, place)


def convolved(image_HWC: Floats, kernel_KK: Floats) -> Floats:
    """Convolve with a square kernel of odd size; borders are mirrored."""
    reach = len(kernel_KK) // 2
    height, width, _ = image_HWC.shape
    padded = image_HWC[mirrored(np.arange(-reach, height + reach), height)][:, mirrored(np.arange(-reach, width + reach), width)]
    shape = padded.shape[:2]
    frequencies = np.fft.rfft2(padded, axes=(0, 1)) * np.fft.rfft2(kernel_KK, s=shape)[:, :, None]
    found = np.fft.irfft2(frequencies, s=shape, axes=(0, 1))
    return np.ascontiguousarray(found[2 * reach :, 2 * reach :], np.float32)


def moved(image_HWC: Floats, length: int, sigma: float, angle: float) -> Floats:
    """Smear over `length` pixels in one direction, fading as a Gaussian of `sigma`; `angle` is in radians from the x axis."""
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
    """Enlarge the centre by `factor`, bilinearly, at the same size."""
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
    """Sample the image bilinearly at these places (in pixels); borders are mirrored."""
    height, width, _ = image_HWC.shape
    top, left = np.floor(y_HW).astype(np.int64), np.floor(x_HW).astype(np.int64)
    down, across = (y_HW - top).astype(np.float32)[:, :, None], (x_HW - left).astype(np.float32)[:, :, None]
    above, below = mirrored(top, height), mirrored(top + 1, height)
    before, after = mirrored(left, width), mirrored(left + 1, width)
    upper = image_HWC[above, before] * (1 - across) + image_HWC[above, after] * across
    lower = image_HWC[below, before] * (1 - across) + image_HWC[below, after] * across
    return np.asarray(upper * (1 - down) + lower * down, np.float32)


def plasma(side: int, decay: float, rng: np.random.Generator) -> Floats:
    """A plasma fractal (side, side) from 0 to 1, by the diamond-square algorithm; each level is `decay` times weaker."""
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


def scale_of(image_HWC: Pixels) -> float:
    """The image's shorter side relative to the paper's 224 pixels."""
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
    """Frosted glass: blur, exchange nearby pixels at random, blur again."""
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
    """The camera moves, within 45 degrees of the horizontal."""
    radius, sigma = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))[severity]
    scale = scale_of(image_HWC)
    angle = np.deg2rad(rng.uniform(-45, 45))
    return pixels(moved(floats(image_HWC), round(2 * radius * scale) + 1, sigma * scale, angle))


def zoom_blur(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """The camera comes nearer: the mean of enlarged images, up to this factor in steps of this size."""
    largest, step = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))[severity]
    image = floats(image_HWC)
    factors = np.arange(1, largest, step)
    total = image.copy()
    for factor in factors:
        total += zoomed(image, factor)
    return pixels(total / (len(factors) + 1))


def contrast(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Contrast reduced: this share of the difference from the channel's mean is left."""
    left = (0.4, 0.3, 0.2, 0.1, 0.05)[severity]
    image = floats(image_HWC)
    mean = image.mean((0, 1), keepdims=True)
    return pixels((image - mean) * left + mean)


def elastic(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """An affine map by three randomly moved points, then random stretching of small regions."""
    # 244 (for 224) is a typo in the published code, with which the published files were made.
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
    # The affine map from the moved points back to their origin gives the source of each pixel.
    back_32 = np.linalg.solve(np.column_stack([after, np.ones(3)]), before)
    noise = rng.uniform(-1, 1, (height, width, 2)).astype(np.float32)
    # Squared: once because lengths scale, once because averaging more pixels of noise makes it smaller.
    shift_HW2 = gaussian(noise, region * scale, truncate=3.0) * np.float32(reach * scale**2)
    place_HW2 = np.moveaxis(np.mgrid[:height, :width], 0, 2) + shift_HW2
    from_HW2 = place_HW2 @ back_32[:2] + back_32[2]
    return pixels(sampled(floats(image_HWC), from_HW2[:, :, 0], from_HW2[:, :, 1]))


def pixelate(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Reduce to this share of the size, and enlarge again."""
    share = (0.6, 0.5, 0.4, 0.3, 0.25)[severity]
    height, width, channels = image_HWC.shape
    small = max(1, int(width * share)), max(1, int(height * share))
    planes = []
    for channel in range(channels):
        plane = Image.fromarray(image_HWC[:, :, channel]).resize(small, Image.Resampling.BOX)
        planes.append(np.asarray(plane.resize((width, height), Image.Resampling.BOX)))
    return np.stack(planes, axis=2)


def jpeg(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Encode as JPEG of this quality, and decode; images without three channels channel by channel."""
    quality = (25, 18, 15, 10, 7)[severity]
    if image_HWC.shape[2] == 3:
        return _jpeg_round_trip(Image.fromarray(image_HWC), quality)
    return np.stack([_jpeg_round_trip(Image.fromarray(plane), quality) for plane in np.moveaxis(image_HWC, 2, 0)], axis=2)


def _jpeg_round_trip(image: Image.Image, quality: int) -> Pixels:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    with Image.open(file, formats=["JPEG"]) as opened:
        return np.array(opened)


_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_ICE = np.array([0.82, 0.91, 1.0], np.float32)


def snow(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Falling flakes, blurred by their motion, over a whitened image."""
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
    """Ice on the lens: crystals made from noise, thickest towards one corner."""
    kept, ice = ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))[severity]
    image = floats(image_HWC)
    return pixels(kept * image + ice * _crystals(image.shape, rng))


def _crystals(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Ice (H, W, C): ridges of three sizes, where noise crosses its mean, times a slowly varying thickness."""
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
    """A cloud of this thickness and roughness over the image."""
    thick, decay = ((1.5, 2), (2.0, 2), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))[severity]
    image = floats(image_HWC)
    height, width, _ = image.shape
    brightest = float(image.max())
    # In the published code, noise falls by the square of its decay from level to level.
    cloud = thick * plasma(max(height, width), decay**2, rng)[:height, :width, None]
    return pixels((image + cloud) * brightest / (brightest + thick))


def brightness(image_HWC: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Brightness: this much is added to the V of HSV, which scales all channels of a pixel equally."""
    added = (0.1, 0.2, 0.3, 0.4, 0.5)[severity]
    image = floats(image_HWC)
    value = image.max(2, keepdims=True)
    brighter = np.minimum(value + added, 1)
    return pixels(np.where(value > 0, image * brighter / np.maximum(value, 1e-6), brighter))


def _grey(image: Floats) -> Floats:
    weights = _LUMA if image.shape[2] == 3 else np.full(image.shape[2], 1 / image.shape[2], np.float32)
    return np.asarray(image @ weights, np.float32)[:, :, None]


CORRUPTIONS: dict[str, Corrupt] = {
    "gaussian-noise": gaussian_noise,
    "shot-noise": shot_noise,
    "impulse-noise": impulse_noise,
    "defocus-blur": defocus_blur,
    "glass-blur": glass_blur,
    "motion-blur": motion_blur,
    "zoom-blur": zoom_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic": elastic,
    "pixelate": pixelate,
    "jpeg": jpeg,
}
