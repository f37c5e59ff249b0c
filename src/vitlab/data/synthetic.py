"""The synthetic dataset: endless labelled images drawn from formulas. An image depends on (config, class, index) only.

    image(SyntheticConfig(kind="strokes"), label=7, index=0)    # uint8 [H, W, C], the same bits everywhere

The dataset comes first, then what all images share (sharpness, colours, light and noise), then the three kinds of shapes: contours,
fractals and strokes.

Axes: B images, H height, W width, C channels; each kind explains its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitlab.config.data import SyntheticConfig
from vitlab.data.dataset import MapStyle, Pixels, RawSample
from vitlab.data.random_numbers import CHANCE, TURN, Choice, Choices, Floats, Keys, cosine, keys, sine, turns, uniforms, words
from vitlab.errors import DataError

FORMULA_VERSION = 1
"""Increased whenever the same (config, label, index) gives another image; included in every fingerprint."""

_SAMPLE_STREAM = 1
_BLOCK_PIXELS = 1 << 16  # images are drawn in blocks of about this many pixels, which fit into a core's cache


def image(config: SyntheticConfig, label: int, index: int) -> NDArray[np.uint8]:
    """Image number `index` (from 0, without an end) of class `label`: uint8 [H, W, C]."""
    if not 0 <= label < config.classes:
        raise DataError(f"label {label} is not a class of this dataset: they are 0 to {config.classes - 1}")
    if index < 0:
        raise DataError(f"index {index} is negative: the images of a class start at 0")
    kind, formula = _formula(config.kind, label)
    return np.ascontiguousarray(_draw(config, kind, np.array([formula]), np.array([index]))[0])


def images(
    config: SyntheticConfig,
    labels: Sequence[int] | NDArray[np.integer],
    indices: Sequence[int] | NDArray[np.integer],
) -> NDArray[np.uint8]:
    """Many images at once, uint8 [B, H, W, C]: the same bits as one by one, but several times faster."""
    label_B, index_B = _whole("labels", labels), _whole("indices", indices)
    if len(label_B) != len(index_B):
        raise DataError(f"{len(label_B)} labels but {len(index_B)} indices: an image needs one of each")
    if label_B.size and not 0 <= label_B.min() <= label_B.max() < config.classes:
        wrong = label_B[(label_B < 0) | (label_B >= config.classes)][0]
        raise DataError(f"label {wrong} is not a class of this dataset: they are 0 to {config.classes - 1}")
    if index_B.size and index_B.min() < 0:
        raise DataError(f"index {index_B.min()} is negative: the images of a class start at 0")
    made_BHWC = np.empty((len(label_B), *config.image_size, config.channels), np.uint8)
    block = max(1, _BLOCK_PIXELS // (config.image_size[0] * config.image_size[1]))
    for kind, formula_B, member_B in _by_kind(config.kind, label_B):
        for start in range(0, len(member_B), block):
            chosen = member_B[start : start + block]
            made_BHWC[chosen] = _draw(config, kind, formula_B[chosen], index_B[chosen])
    return made_BHWC


def _draw(config: SyntheticConfig, kind: str, formula_B: NDArray[np.int64], index_B: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Images of one kind; `formula_B` is the class counted within the kind."""
    # Each kind has its own random stream, so classes of two kinds with the same number are independent.
    key_B = keys(config.seed, _SAMPLE_STREAM + _MIXED.index(kind), formula_B, index_B)
    coverage, coarsest = _KINDS[kind]
    coverage_BHW = coverage(config.seed, formula_B, key_B, config.image_size, variety=config.variety)
    return _painted(coverage_BHW, key_B, config.channels, coarsest=coarsest, variety=config.variety)


def _formula(kind: str, label: int) -> tuple[str, int]:
    """A class's kind, and its number within the kind."""
    return (_MIXED[label % len(_MIXED)], label // len(_MIXED)) if kind == "mixed" else (kind, label)


def _by_kind(kind: str, label_B: NDArray[np.int64]) -> list[tuple[str, NDArray[np.int64], NDArray[np.intp]]]:
    """For each kind: its name, every image's class counted within the kind, and which images are of it."""
    if kind != "mixed":
        return [(kind, label_B, np.arange(len(label_B)))]
    formula_B, turn_B = np.divmod(label_B, len(_MIXED))
    return [(name, formula_B, np.flatnonzero(turn_B == turn)) for turn, name in enumerate(_MIXED)]


def _whole(name: str, numbers: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int64]:
    given = np.asarray(numbers)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise DataError(f"{name} must be a list of whole numbers, not {given.dtype} of shape {given.shape}")
    return given.astype(np.int64)


class SyntheticDataset(MapStyle):
    """The synthetic dataset: `samples_per_class` images of each class; labels run 0, 1, 2, ..., 0, 1, 2, ..."""

    __slots__ = ("config", "labels", "transform")

    def __init__(self, config: SyntheticConfig, *, transform: Callable[[Pixels], Any] | None = None) -> None:
        self.config = config
        self.transform = transform
        formulas = (_formula(config.kind, label) for label in range(config.classes))
        self.labels = tuple(f"{kind}-{formula:05d}" for kind, formula in formulas)

    @property
    def multi_label(self) -> bool:
        """An image has one class."""
        return False

    def __len__(self) -> int:
        return self.config.classes * self.config.samples_per_class

    def read(self, index: int) -> RawSample:
        """The image, drawn when it is read."""
        label, number = self._place(index)
        return RawSample(
            name=f"synthetic/{self.labels[label]}/{number}",
            content=image(self.config, label, number),
            label=label,
        )

    def label(self, index: int) -> int:
        """The class of an image, without drawing it."""
        return self._place(index)[0]

    def images(self, indices: Sequence[int] | NDArray[np.integer]) -> NDArray[np.uint8]:
        """The images with these indices, uint8 [B, H, W, C], much faster than one by one."""
        place_B = _whole("indices", indices)
        for place in place_B:
            self._place(int(place))
        number_B, label_B = np.divmod(place_B, self.config.classes)
        return images(self.config, label_B, number_B + self.config.first)

    def fingerprint(self) -> str:
        """Hash of everything the images depend on."""
        settings = asdict(self.config)
        settings["examples"] = settings.pop("samples_per_class")  # its name when the first fingerprints were made
        content = json.dumps({"formulas": FORMULA_VERSION, **settings}, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def _place(self, index: int) -> tuple[int, int]:
        """(class, number within the class) of an image."""
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of a synthetic dataset of {len(self)}")
        number, label = divmod(index, self.config.classes)
        return label, number + self.config.first


# --- sharpness, colours, light and noise: the same for all classes ------------------------------------------------------------

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


def _painted(coverage_BHW: NDArray[np.uint8], key_B: Keys, channels: int, *, coarsest: float, variety: float) -> NDArray[np.uint8]:
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


# --- contours ----------------------------------------------------------------------------------------------------------------

# Rings bent by two sinusoids, after Visual Atoms (Takashima et al., CVPR 2023): a class is its two frequencies and their mix.
#
# The paper draws orbit after orbit as polygons, each displaced by the same waves. Here the family of orbits is one equation,
# `radius = core + k * step(angle)` for k = 0, 1, ..., so that a pixel finds its nearest orbit by division, with soft edges at
# any resolution and no polygon at all.
#
# Axes: B images, H height, W width, M angles of the wave's table, K orbits.

_Values = NDArray[np.float32]

_CONTOURS_COARSEST = 0.4
"""The strongest blur that still shows the class, as a fraction of the pixels along a side."""

_CONTOUR_STREAM = 11
_HIGHEST_FREQUENCY = 12
_MOST_ORBITS = 4
# A class has two frequencies and a number of orbits. The simplest come first, so that a few classes stay legible at few pixels;
# when all are used, they come again with other mixes of the two waves.
_PLANS = tuple(
    sorted(
        ((a, b, k) for b in range(2, _HIGHEST_FREQUENCY + 1) for a in range(1, b) for k in range(1, _MOST_ORBITS + 1)),
        key=lambda plan: (plan[0] + plan[1] + 4 * plan[2], plan),
    )
)

# How a sample varies its class. Sizes are fractions of half the image's side; angles are in turns.
_CONTOUR_SAMPLE = Choices(
    {
        "radius": Choice(0.7, 1.02, 0.92),
        "place": Choice(-1, 1, times=2),
        "oval": Choice(0.85, 1.18, 1),
        "turn": Choice(-0.05, 0.05),
        "skew": Choice(-0.02, 0.02),
        "share": Choice(-0.08, 0.08),
        "shift": Choice(-0.05, 0.05),
        "amplitude": Choice(0.85, 1.15),
        "core": Choice(-0.06, 0.06),
        "own wave": Choice(0, 0.08, 0),
        "own frequency": Choice(1, 4),
        "own shift": Choice(0, 1),
        "pen": Choice(0.05, 0.18, 0.1),
        "tone": Choice(0.45, 1.0, 1.0, _MOST_ORBITS + 1),
        "filled": CHANCE,
        "filling": Choice(0.2, 0.6),
    }
)


@lru_cache(maxsize=1 << 14)
def _contour(seed: int, label: int) -> Floats:
    """The class: two frequencies, orbits, the share of the first, shift of the second, amplitude, core radius, ovalness, and
    the directions of the first wave and of the oval; angles in turns."""
    share, shift, amplitude, core, oval, spin, lean = uniforms(keys(seed, _CONTOUR_STREAM, np.array([label])), 7)[0]
    mix = (0.3 + 0.4 * share, shift, 0.5 + 0.35 * amplitude, 0.1 + 0.3 * core, 1 + 0.7 * oval, spin, lean)
    return np.array([*_PLANS[label % len(_PLANS)], *mix])


def _contours(
    seed: int, label_B: NDArray[np.int64], key_B: Keys, image_size: tuple[int, int], *, variety: float
) -> NDArray[np.uint8]:
    """How much of each pixel the shape covers, 0 to 255, [B, H, W]; `key_B` holds the samples' own keys."""
    formula_BF = np.array([_contour(seed, int(label)) for label in label_B])
    low_B1, high_B1, orbits_B1, share_B1, shift_B1, amplitude_B1, core_B1, oval_B1, spin_B1, lean_B1 = formula_BF.T[..., None]
    sample = _CONTOUR_SAMPLE.draw(key_B, variety=variety)
    radius_B1 = sample["radius"] * (min(image_size) / 2)
    amplitude_B1 = amplitude_B1 * sample["amplitude"]
    core_B1 = core_B1 + sample["core"]

    # The wave along the angle, bent a little by a slow wave of the sample's own.
    table = 1 << (16 * max(image_size) - 1).bit_length()
    angle_M, per_radian_M = _angles(table)
    share_B1 = share_B1 + sample["share"]
    wave_BM = (
        share_B1 * sine(low_B1.astype(np.int64) * angle_M)
        + (1 - share_B1) * sine(high_B1.astype(np.int64) * angle_M + turns(shift_B1 + sample["shift"]))
        + sample["own wave"] * sine(sample["own frequency"].astype(np.int64) * angle_M + turns(sample["own shift"]))
    )
    # Scaled so that the outermost point of the outermost orbit has radius 1 and the drawing fills its place.
    reach_B1 = (1 - core_B1) / (1 + amplitude_B1 * wave_BM.max(axis=1, keepdims=True))
    step_BM = (reach_B1 / orbits_B1 * (1 + amplitude_B1 * wave_BM)).astype(np.float32)

    # Distance, in pixels, to the nearest orbit: the gap along the radius times the cosine of the orbit's lean there.
    # Turning the whole drawing turns the oval's direction; the waves' direction is counted from it.
    angles = (turns(spin_B1 + sample["skew"]), turns(lean_B1 + sample["turn"]))
    x_BHW, y_BHW = _contour_plane(image_size, sample["place"], (radius_B1, oval_B1 * sample["oval"]), angles)
    core_B11, orbits_B11, radius_B11 = _spread(core_B1), _spread(orbits_B1), _spread(radius_B1)
    at_BHW = _table_index(x_BHW, y_BHW, table)
    step_BHW = step_BM.ravel()[at_BHW]
    slope_BHW = _slope(step_BM, per_radian_M).ravel()[at_BHW]
    orbit_BHW = (np.sqrt(x_BHW * x_BHW + y_BHW * y_BHW) - core_B11) / step_BHW
    nearest_BHW = np.minimum(np.maximum(np.rint(orbit_BHW), np.float32(0)), orbits_B11)
    lean_BHW = nearest_BHW * slope_BHW / (core_B11 + nearest_BHW * step_BHW)
    gap_BHW = np.abs(orbit_BHW - nearest_BHW) * step_BHW * radius_B11 / np.sqrt(1 + lean_BHW * lean_BHW)

    # Pen and filling: each orbit with a tone of its own, the body empty or tinted.
    spacing_B1 = radius_B1 * reach_B1 / orbits_B1
    pen_B1 = np.minimum(sample["pen"] * (min(image_size) / 2), np.maximum(0.5 * spacing_B1, 1.0)) / 2
    line_BHW = np.minimum(np.maximum(_spread(pen_B1 + 0.5) - gap_BHW, np.float32(0)), np.float32(1))
    tone_BK = sample["tone"].astype(np.float32)
    np.put_along_axis(tone_BK, orbits_B1.astype(np.int64), 1, axis=1)  # the outline, which shows the class, is always full
    rows_B11 = np.arange(len(label_B))[:, None, None]
    ink_BHW = line_BHW * tone_BK[rows_B11, nearest_BHW.astype(np.int64)]
    filling_B11 = _spread((sample["filled"] < 0.4) * sample["filling"])
    inside_BHW = np.minimum(np.maximum((orbits_B11 - orbit_BHW) * step_BHW * radius_B11, np.float32(0)), np.float32(1))
    covered_BHW: _Values = np.maximum(ink_BHW, inside_BHW * filling_B11) * 255 + np.float32(0.5)
    return covered_BHW.astype(np.uint8)


def _spread(value_B1: Floats) -> _Values:
    """One number per image, as [B, 1, 1]."""
    return value_B1.astype(np.float32)[..., None]


@lru_cache(maxsize=8)
def _angles(count: int) -> tuple[NDArray[np.int64], _Values]:
    """The angle at each of `count` even steps of the diamond angle, which a pixel can compute without an arc tangent; and
    one over the radians from the step before to the step after."""
    diamond_M = np.arange(count) * (4 / count) - 2
    x_M = 1 - np.abs(diamond_M)
    y_M = np.copysign(1 - np.abs(x_M), diamond_M)
    angle_M = turns(np.arctan2(y_M, x_M) / (2 * np.pi))
    around_M = (np.roll(angle_M, -1) - np.roll(angle_M, 1)) % TURN * (2 * np.pi / TURN)
    return angle_M, (1 / around_M).astype(np.float32)


def _contour_plane(
    image_size: tuple[int, int],
    place_B2: Floats,
    sizes: tuple[Floats, Floats],
    angles: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> tuple[_Values, _Values]:
    """Pixel centres in the shape's own plane, where it has radius 1: put in place, squeezed along the lean, then spun."""
    height, width = image_size
    radius_B1, oval_B1 = sizes
    middle_B2 = np.array([width / 2, height / 2]) + place_B2 * (np.array([width / 2, height / 2]) - 0.85 * radius_B1)
    x_BW = (np.arange(width) + 0.5 - middle_B2[:, :1]) / radius_B1
    y_BH = (np.arange(height) + 0.5 - middle_B2[:, 1:]) / radius_B1
    spin_B1, lean_B1 = angles
    across_B1, along_B1 = cosine(lean_B1), sine(lean_B1)
    cos_B1, sin_B1 = cosine(spin_B1), sine(spin_B1)
    # rows of spin @ diag(1, oval) @ lean
    x_by_x_B1, x_by_y_B1 = cos_B1 * across_B1 + sin_B1 * along_B1 * oval_B1, cos_B1 * along_B1 - sin_B1 * across_B1 * oval_B1
    y_by_x_B1, y_by_y_B1 = sin_B1 * across_B1 - cos_B1 * along_B1 * oval_B1, sin_B1 * along_B1 + cos_B1 * across_B1 * oval_B1
    x_BHW = (x_by_x_B1 * x_BW).astype(np.float32)[:, None, :] + (x_by_y_B1 * y_BH).astype(np.float32)[:, :, None]
    y_BHW = (y_by_x_B1 * x_BW).astype(np.float32)[:, None, :] + (y_by_y_B1 * y_BH).astype(np.float32)[:, :, None]
    return x_BHW, y_BHW


def _table_index(x_BHW: _Values, y_BHW: _Values, table: int) -> NDArray[np.int32]:
    """Place of each pixel's angle in the images' tables of even diamond angles, laid end to end."""
    across_BHW = x_BHW / (np.abs(x_BHW) + np.abs(y_BHW) + np.float32(1e-12))
    diamond_BHW = np.copysign(1 - across_BHW, y_BHW)
    at_BHW = ((diamond_BHW + 2) * np.float32(table / 4)).astype(np.int32) & (table - 1)
    at_BHW += (np.arange(len(at_BHW), dtype=np.int32) * table)[:, None, None]
    return at_BHW


def _slope(step_BM: _Values, per_radian_M: _Values) -> _Values:
    """How fast the orbits' spacing changes with the angle, per radian."""
    around_BM = np.concatenate([step_BM[:, -1:], step_BM, step_BM[:, :1]], axis=1)
    slope_BM: _Values = (around_BM[:, 2:] - around_BM[:, :-2]) * per_radian_M
    return slope_BM


# --- fractals ----------------------------------------------------------------------------------------------------------------

# Attractors of iterated function systems, after FractalDB (Kataoka et al., ACCV 2020): a class is a set of affine maps.
#
# The maps are drawn by their singular values, whose sum is held where attractors are neither dust nor blob (Anderson and
# Farrell, WACV 2022). Instead of a long chain of single points, a cloud of points of the class's attractor goes through a few
# steps of the sample's own maps, all of them at once.
#
# Axes: B images, F maps of a system, W chains of maps, L links of a chain, Q points of the cloud, N points, H height, W width.

_FRACTALS_COARSEST = 0.4
"""The strongest blur that still shows the class, as a fraction of the pixels along a side."""

_MOST_MAPS = 4
_CHAINS = 64
_LINKS = 3
_SYSTEM_CANDIDATES = 32
_MEASURE = 24
_SETTLING = 24
_SYSTEM_CELLS = 16
_FRACTAL_STREAM = 31
_CLOUD_STREAM = 32


# How a sample varies its class. Sizes are fractions of the image's side; angles are in turns.
_FRACTAL_SAMPLE = Choices(
    {
        "weight": Choice(0.86, 1.14, times=_MOST_MAPS * 6),
        "shift": Choice(-0.06, 0.06, times=_MOST_MAPS * 2),
        "turn": Choice(-0.08, 0.08),
        "stretch": Choice(0.8, 1.25, 1),
        "size": Choice(0.68, 0.97, 0.9),
        "place": Choice(0, 1, times=2),
        "light": Choice(12, 120, 40),
    }
)


class _System(NamedTuple):
    """One class: `maps_F6` rows are a, b, c, d, e, f of (x, y) -> (ax + by + e, cx + dy + f); its cloud; its chains of maps."""

    maps_F6: Floats
    cloud_2Q: NDArray[np.float32]
    chain_LW: NDArray[np.int64]


def _fractals(
    seed: int, label_B: NDArray[np.int64], key_B: Keys, image_size: tuple[int, int], *, variety: float
) -> NDArray[np.uint8]:
    """How much of each pixel the fractal covers, 0 to 255, [B, H, W]; `key_B` holds the samples' own keys."""
    batch, height, width = len(label_B), *image_size
    cloud = max(_MEASURE, 3 * height * width // _CHAINS)
    systems = [_system(seed, int(label), cloud) for label in label_B]
    sample = _FRACTAL_SAMPLE.draw(key_B, variety=variety)

    # The sample's own maps: every coefficient varies by a fraction, as FractalDB weights them.
    maps_BF6 = np.array([system.maps_F6 for system in systems]) * sample["weight"].reshape(batch, _MOST_MAPS, 6)
    maps_BF6[..., 4:] += sample["shift"].reshape(batch, _MOST_MAPS, 2)
    chain_BLW = np.array([system.chain_LW for system in systems])
    maps_BLW6 = maps_BF6.astype(np.float32)[np.arange(batch)[:, None, None], chain_BLW]
    maps_L6BW1 = np.ascontiguousarray(maps_BLW6.transpose(1, 3, 0, 2))[..., None]
    cloud_B2Q = np.array([system.cloud_2Q for system in systems])
    x_BWQ, y_BWQ = cloud_B2Q[:, 0, None], cloud_B2Q[:, 1, None]
    for a, b, c, d, e, f in maps_L6BW1:
        x_BWQ, y_BWQ = a * x_BWQ + b * y_BWQ + e, c * x_BWQ + d * y_BWQ + f

    # Turned, then scaled and put where it fits.
    turn_B11 = turns(sample["turn"])[..., None]
    cos_B11, sin_B11 = cosine(turn_B11).astype(np.float32), sine(turn_B11).astype(np.float32)
    stretch_B11 = sample["stretch"].astype(np.float32)[..., None]
    x_BWQ, y_BWQ = (x_BWQ * cos_B11 - y_BWQ * sin_B11) * stretch_B11, x_BWQ * sin_B11 + y_BWQ * cos_B11
    points_B2WQ = np.stack([x_BWQ, y_BWQ], axis=1)
    # The first points are the same at every resolution: measured by them, so is the drawing.
    low_B2 = points_B2WQ[..., :_MEASURE].min(axis=(2, 3))
    span_B2 = points_B2WQ[..., :_MEASURE].max(axis=(2, 3)) - low_B2
    size_B1 = (sample["size"] * (min(image_size) - 1)).astype(np.float32)
    scale_B1 = size_B1 / span_B2.max(axis=1, keepdims=True)
    room_B2 = np.array([width, height], np.float32) - span_B2 * scale_B1
    start_B2 = room_B2 * sample["place"].astype(np.float32) - low_B2 * scale_B1
    pixel_B2N = (points_B2WQ.reshape(batch, 2, -1) * scale_B1[..., None] + start_B2[..., None]).astype(np.int32)
    np.clip(pixel_B2N, 0, np.array([[width - 1], [height - 1]], np.int32), out=pixel_B2N)

    # Points per pixel, as light.
    first_B1 = (np.arange(batch, dtype=np.int32) * (height * width))[:, None]
    pixel_BN = pixel_B2N[:, 1] * width + pixel_B2N[:, 0] + first_B1
    count_BHW = np.bincount(pixel_BN.ravel(), minlength=batch * height * width).reshape(batch, height, width)
    return np.minimum(count_BHW * sample["light"][..., None], 255).astype(np.uint8)


@lru_cache(maxsize=1 << 12)
def _system(seed: int, label: int, cloud: int) -> _System:
    """The first of the class's candidates whose attractor is legible, moved into the square from -1 to 1."""
    best_F6, best_misfit = None, np.inf
    for attempt in range(_SYSTEM_CANDIDATES):
        key_1 = keys(seed, _FRACTAL_STREAM, np.array([label]), np.array([attempt]))
        maps_F6, shares_F = _system_candidate(key_1)
        points_2N = _settled(maps_F6, shares_F, 512, key_1)
        low_2, high_2 = points_2N.min(axis=1), points_2N.max(axis=1)
        misfit = _misfit(points_2N, low_2, high_2)
        if misfit < best_misfit:
            best_F6, best_shares_F, best_low_2, best_high_2, best_misfit = maps_F6, shares_F, low_2, high_2, misfit
        if misfit == 0:
            break
    assert best_F6 is not None
    centre_2 = (best_low_2 + best_high_2) / 2
    half = float((best_high_2 - best_low_2).max()) / 2
    maps_F6 = best_F6.copy()
    # in coordinates (x - centre) / half the linear part stays and the shift becomes (A centre + shift - centre) / half
    maps_F6[:, 4] = (best_F6[:, 0] * centre_2[0] + best_F6[:, 1] * centre_2[1] + best_F6[:, 4] - centre_2[0]) / half
    maps_F6[:, 5] = (best_F6[:, 2] * centre_2[0] + best_F6[:, 3] * centre_2[1] + best_F6[:, 5] - centre_2[1]) / half
    key_1 = keys(seed, _CLOUD_STREAM, np.array([label]))
    cloud_2Q = _settled(maps_F6, best_shares_F, cloud, key_1).astype(np.float32)
    uniform_LW = uniforms(key_1, _LINKS * _CHAINS).reshape(_LINKS, _CHAINS)
    # The last link places the pieces; its maps are distributed evenly, so that no piece is missed by chance.
    uniform_LW[-1] = (np.arange(_CHAINS) + uniform_LW[-1]) / _CHAINS
    return _System(maps_F6, cloud_2Q, _choose(shares_F=best_shares_F, uniform=uniform_LW))


def _system_candidate(key_1: NDArray[np.uint64]) -> tuple[Floats, Floats]:
    """Maps [F, 6], unused ones zero, and the share of points that each takes, by area (FractalDB)."""
    maps, larger_F, smaller_F, first_F, second_F, flip_F, *shift_2F = np.split(
        uniforms(key_1, 1 + 7 * _MOST_MAPS)[0], range(1, 1 + 7 * _MOST_MAPS, _MOST_MAPS)
    )
    count = 2 + int(maps[0] * (_MOST_MAPS - 1))
    used_F = np.arange(_MOST_MAPS) < count
    larger_F = (0.3 + 0.6 * larger_F) * used_F
    smaller_F = larger_F * (0.15 + 0.85 * smaller_F)
    # Anderson and Farrell's sigma factor: the sum over maps of larger + 2 * smaller is held at about (5 + count) / 2.
    factor = (5.5 + count) / 2 / float(np.cumsum(larger_F + 2 * smaller_F)[-1])
    larger_F, smaller_F = np.minimum(larger_F * factor, 0.9), np.minimum(smaller_F * factor, 0.85)
    area_F = np.maximum(larger_F * smaller_F, 0.02) * used_F
    smaller_F = np.where(flip_F < 0.3, -smaller_F, smaller_F)
    first_F, second_F = turns(first_F), turns(second_F)
    cos_first_F, sin_first_F = cosine(first_F), sine(first_F)
    cos_second_F, sin_second_F = cosine(second_F), sine(second_F)
    maps_F6 = np.stack(  # rotation @ diag(larger, smaller) @ rotation, and the shift
        [
            cos_first_F * larger_F * cos_second_F - sin_first_F * smaller_F * sin_second_F,
            -cos_first_F * larger_F * sin_second_F - sin_first_F * smaller_F * cos_second_F,
            sin_first_F * larger_F * cos_second_F + cos_first_F * smaller_F * sin_second_F,
            -sin_first_F * larger_F * sin_second_F + cos_first_F * smaller_F * cos_second_F,
            *(2 * shift_F - 1 for shift_F in shift_2F),
        ],
        axis=1,
    )
    return maps_F6, area_F / np.cumsum(area_F)[-1]


def _choose(*, shares_F: Floats, uniform: Floats) -> NDArray[np.int64]:
    """Which map each number in [0, 1) stands for."""
    edges_F = np.cumsum(shares_F)[:-1]
    return np.searchsorted(edges_F, uniform, side="right").clip(0, np.count_nonzero(shares_F) - 1)


def _settled(maps_F6: Floats, shares_F: Floats, count: int, key_1: NDArray[np.uint64]) -> Floats:
    """`count` points of the attractor, [2, count]: the chaos game played by all of them side by side."""
    x_Q, y_Q = np.zeros(count), np.zeros(count)
    # Point by point, so that the first points are the same however many follow.
    uniform_QS = uniforms(key_1, count * _SETTLING, after=1 << 20).reshape(count, _SETTLING)
    choice_SQ = _choose(shares_F=shares_F, uniform=uniform_QS.T)
    for choice_Q in choice_SQ:
        a, b, c, d, e, f = maps_F6[choice_Q].T
        x_Q, y_Q = a * x_Q + b * y_Q + e, c * x_Q + d * y_Q + f
    return np.stack([x_Q, y_Q])


def _misfit(points_2N: Floats, low_2: Floats, high_2: Floats) -> float:
    """How far from legible the attractor is: 0 if it is not a line, dust or a blob."""
    span_2 = high_2 - low_2
    longest = float(span_2.max())
    if longest == 0:
        return float("inf")
    cell_2N = np.minimum((points_2N - low_2[:, None]) * (_SYSTEM_CELLS / longest), _SYSTEM_CELLS - 1).astype(np.int64)
    filled = len(np.unique(cell_2N[0] * _SYSTEM_CELLS + cell_2N[1])) / _SYSTEM_CELLS**2
    narrow = max(0.0, 0.55 - float(span_2.min()) / longest)
    return narrow + max(0.0, 0.16 - filled) + max(0.0, filled - 0.42)


# --- strokes -----------------------------------------------------------------------------------------------------------------

# Pen strokes like letters of an unknown script: a class is a sequence of pen movements, a sample is one handwriting of it.
#
# A stroke consists of pieces of line, straight or bent, with or without a corner between them. A handwriting varies lengths, bends,
# corners and pressure, and slants and stretches the whole. It does not rotate the letter, so the orientation belongs to the class,
# unlike that of contours.
#
# Axes: B images, S strokes, G pieces of a stroke, T points of a piece.

_STROKES_COARSEST = 0.22
"""The strongest blur that still shows the class, as a fraction of the pixels along a side: 7 of 32."""

_STROKES = 3
_PIECES = 4
_FEWEST_POINTS, _MOST_POINTS = 10, 64
_FIELDS = 3  # of a piece: length, bend (turns), corner before it (turns)
_STARTS = 4  # of a stroke: heading (turns), where it meets the first stroke, where on itself, how far beside
_STROKE_STREAM = 21
_LETTER_CANDIDATES = 64
_LETTER_CELLS = 6
_STROKE_COUNTS = (0.55, 0.9)  # more than half of the classes are written in one stroke, nine of ten in at most two
_BEND_COUNTS = (0.4, 0.62, 0.88)
_BENDS = ((0.0, 0.0), (0.2, 0.2), (0.4, 0.25), (0.75, 0.2))  # straight, quarter, half, loop: turns, at least and on top
_EASY = 2.5  # lengths of line per side of the drawing that still take any pen
_NEARLY_STRAIGHT = 0.25  # turns over the fewest points: below, the wedge left open between two steps does not show
_HAND_FRACTION = np.array([0.28, 0.18, 0.15])  # how far a hand strays from a length, a bend, a corner
_X_THEN_Y = np.array([TURN // 4, 0])[:, None, None, None]
_ASIDE = np.array([1.0, -1.0])[:, None]

# How a sample varies its class. Sizes are fractions of the image's side; angles are in turns.
_STROKE_SAMPLE = Choices(
    {
        "hand": Choice(-1, 1, times=_STROKES * _PIECES * _FIELDS),
        "waver": Choice(-0.035, 0.035, times=_STROKES * _PIECES),
        "start": Choice(-0.06, 0.06, times=_STROKES * _STARTS),
        "tilt": Choice(-0.06, 0.06),
        "slant": Choice(-0.35, 0.35),
        "stretch": Choice(0.72, 1.3, 1),
        "size": Choice(0.7, 1.0, 0.92),
        "place": Choice(0, 1, times=2),
        "pen": Choice(0.05, 0.18, 0.1),
        "pressure": Choice(0.8, 1.2, 1, _STROKES * _PIECES),
    }
)


@lru_cache(maxsize=1 << 14)
def _letter(seed: int, label: int) -> tuple[Floats, Floats]:
    """The class: pieces [S, G, 3] and starts [S, 4]."""
    for attempt in range(_LETTER_CANDIDATES):
        pieces_SG3, starts_S4 = _letter_candidate(seed, label, attempt)
        if _legible(_walk(pieces_SG3[None], starts_S4[None], _FEWEST_POINTS)[0], pieces_SG3):
            break
    return pieces_SG3, starts_S4


def _letter_candidate(seed: int, label: int, attempt: int) -> tuple[Floats, Floats]:
    key_1 = keys(seed, _STROKE_STREAM, np.array([label]), np.array([attempt]))
    uniform_1K = uniforms(key_1, 4 + _STROKES * (_STARTS + 7 * _PIECES))
    count_4, start_K, piece_K = np.split(uniform_1K[0], [4, 4 + _STROKES * _STARTS])
    strokes = int(np.searchsorted(_STROKE_COUNTS, count_4[0])) + 1
    pieces_SG3 = np.zeros((_STROKES, _PIECES, _FIELDS))
    for stroke in range(strokes):
        least, most = (2, _PIECES) if strokes == 1 else ((1, _PIECES), (1, 2), (1, 1))[stroke]
        for piece in range(least + int(count_4[1 + stroke] * (most - least + 1))):
            length, bend_kind, bend, bend_sign, corner_kind, corner, corner_sign = piece_K.reshape(_STROKES, _PIECES, 7)[
                stroke, piece
            ]
            least_bend, more_bend = _BENDS[int(np.searchsorted(_BEND_COUNTS, bend_kind))]
            arc = least_bend + more_bend * bend
            sharp = piece > 0 and corner_kind > 0.4
            pieces_SG3[stroke, piece] = (
                (0.5 + 0.7 * length) * (1 + 0.8 * arc) * 0.75**stroke,  # what bends more is longer; later strokes are shorter
                np.copysign(arc, bend_sign - 0.5),
                np.copysign(0.18 + 0.22 * corner, corner_sign - 0.5) if sharp else 0.0,
            )
    starts_S4 = start_K.reshape(_STROKES, _STARTS).copy()
    starts_S4[:, 3] = (starts_S4[:, 3] - 0.5) * 0.3
    return pieces_SG3, starts_S4


def _legible(points_2SN: Floats, pieces_SG3: Floats) -> bool:
    """Whether the ink fills a reasonable part of the square around it: not a speck, a bare line or a knot."""
    points_2N = points_2SN.reshape(2, -1)
    low_2 = points_2N.min(axis=1)
    span_2 = points_2N.max(axis=1) - low_2
    longest = float(span_2.max())
    cell_2N = np.minimum((points_2N - low_2[:, None]) * (_LETTER_CELLS / longest), _LETTER_CELLS - 1).astype(np.int64)
    inked = len(np.unique(cell_2N[0] * _LETTER_CELLS + cell_2N[1]))
    crowd = float(np.cumsum(pieces_SG3[..., 0])[-1]) / longest
    return float(span_2.min()) >= 0.45 * longest and 9 <= inked <= 24 and 1.6 <= crowd <= 4.5


def _walk(pieces_BSG3: Floats, starts_BS4: Floats, points: int) -> Floats:
    """The strokes' beginnings and `points` along each of their pieces, [B, 2, S, 1 + G * T], x (right) before y (down), in the
    units of the lengths. A piece or stroke of length 0 is a point on the first stroke.
    """
    length_BSG, bend_BSG, corner_BSG = pieces_BSG3[..., 0], pieces_BSG3[..., 1], pieces_BSG3[..., 2]
    # heading at the middle of each step: all earlier bends and corners, and the part of this piece's bend done so far
    before_BSG = np.cumsum(bend_BSG + corner_BSG, axis=2) - bend_BSG + starts_BS4[:, :, :1]
    done_T = (np.arange(points) + 0.5) / points
    heading_BSGT = turns(before_BSG[..., None] + bend_BSG[..., None] * done_T)
    step_B2SGT = sine(heading_BSGT[:, None] + _X_THEN_Y) * (length_BSG / points)[:, None, :, :, None]
    points_B2SN = np.zeros((len(length_BSG), 2, _STROKES, 1 + _PIECES * points))
    np.cumsum(step_B2SGT.reshape(len(length_BSG), 2, _STROKES, -1), axis=3, out=points_B2SN[..., 1:])
    # A later stroke touches or crosses the first: a point of its own meets a point of the first, give or take a shift.
    last_BS = np.count_nonzero(length_BSG, axis=2) * points
    there_BS = (starts_BS4[:, :, 1] * last_BS[:, :1] + 0.5).astype(np.int64)
    here_BS = (starts_BS4[:, :, 2] * last_BS + 0.5).astype(np.int64)
    shift_BS = starts_BS4[:, :, 3] * (last_BS > 0)
    meet_B2S = (
        np.take_along_axis(points_B2SN[:, :, 0], there_BS[:, None], axis=2)
        - np.take_along_axis(points_B2SN, here_BS[:, None, :, None], axis=3)[..., 0]
        + shift_BS[:, None] * _ASIDE
    )
    meet_B2S[:, :, 0] = 0
    points_B2SN += meet_B2S[..., None]
    return points_B2SN


def _strokes(
    seed: int, label_B: NDArray[np.int64], key_B: Keys, image_size: tuple[int, int], *, variety: float
) -> NDArray[np.uint8]:
    """How much of each pixel the ink covers, 0 to 255, [B, H, W]; `key_B` holds the samples' own keys."""
    formulas = [_letter(seed, int(label)) for label in label_B]
    pieces_BSG3 = np.array([pieces for pieces, _ in formulas])
    starts_BS4 = np.array([starts for _, starts in formulas])
    sample = _STROKE_SAMPLE.draw(key_B, variety=variety)
    batch = len(label_B)

    # The handwriting: lengths, bends and corners vary by a fraction, headings and meeting points by a little.
    pieces_BSG3 *= 1 + sample["hand"].reshape(pieces_BSG3.shape) * _HAND_FRACTION
    pieces_BSG3[..., 1] += sample["waver"].reshape(pieces_BSG3.shape[:3])
    starts_BS4 += sample["start"].reshape(starts_BS4.shape)
    np.clip(starts_BS4[:, :, 1:3], 0, 1, out=starts_BS4[:, :, 1:3])
    points = max(_FEWEST_POINTS, min(max(image_size) // 3, _MOST_POINTS))
    points_B2SN = _walk(pieces_BSG3, starts_BS4, points)

    # The whole drawing is rotated, slanted and stretched, then scaled and placed where it fits.
    tilt_B1 = turns(sample["tilt"])
    cos_B1, sin_B1 = cosine(tilt_B1), sine(tilt_B1)
    x_BN, y_BN = points_B2SN.reshape(batch, 2, -1).transpose(1, 0, 2)
    points_B2N = np.empty((batch, 2, x_BN.shape[1]))
    points_B2N[:, 1] = down_BN = x_BN * sin_B1 + y_BN * cos_B1
    points_B2N[:, 0] = (x_BN * cos_B1 - y_BN * sin_B1 + sample["slant"] * down_BN) * sample["stretch"]
    low_B2 = points_B2N.min(axis=2)
    span_B2 = points_B2N.max(axis=2) - low_B2
    longest_B1 = span_B2.max(axis=1, keepdims=True)

    # The pen is finer if a long line has little space, and its pressure varies.
    size_B1 = sample["size"] * (min(image_size) - 1)
    crowd_B1 = np.cumsum(pieces_BSG3[..., 0].reshape(batch, -1), axis=1)[:, -1:] / longest_B1
    pen_B1 = size_B1 * sample["pen"] * np.minimum(1, _EASY / crowd_B1)
    scale_B1 = (size_B1 - pen_B1) / longest_B1
    room_B2 = np.array(image_size[::-1]) - pen_B1 - span_B2 * scale_B1
    start_B2 = pen_B1 / 2 + room_B2 * sample["place"] - low_B2 * scale_B1
    finer = 4 if max(image_size) <= 96 else 2  # drawn larger and reduced, so that edges are soft
    points_BN2 = ((points_B2N * scale_B1[..., None] + start_B2[..., None]) * finer).transpose(0, 2, 1)
    pen_BD = pen_B1 * sample["pressure"] * finer
    jointed_BD = (points > _FEWEST_POINTS) | (np.abs(pieces_BSG3[..., 1]).reshape(batch, -1) > _NEARLY_STRAIGHT)
    sheets = zip(
        points_BN2.reshape(batch, _STROKES, -1).tolist(),
        pen_BD.tolist(),
        jointed_BD.tolist(),
        np.count_nonzero(pieces_BSG3[..., 0], axis=2).tolist(),
        strict=True,
    )
    large = (image_size[1] * finer, image_size[0] * finer)
    return np.array([np.asarray(_ink(*sheet, large).reduce(finer)) for sheet in sheets])


def _ink(
    strokes: list[list[float]], pens: list[float], jointed: list[bool], drawn: list[int], size: tuple[int, int]
) -> Image.Image:
    """One drawing on a sheet of `size` (width, height): each stroke's points (x, y, x, y, ...); each piece's pen width, and
    whether its joints show; how many pieces of each stroke to draw. All in pixels."""
    sheet = Image.new("L", size)
    draw = ImageDraw.Draw(sheet)
    for stroke, (points, pieces) in enumerate(zip(strokes, drawn, strict=True)):
        values = (len(points) - 2) // _PIECES
        for piece in range(pieces):
            line = points[piece * values : (piece + 1) * values + 2]  # a piece begins where the one before ends
            pen = pens[stroke * _PIECES + piece]
            half = pen / 2
            draw.line(line, fill=255, width=round(pen))
            # Round ends, and round joints where they show.
            every = 2 if jointed[stroke * _PIECES + piece] else len(line) - 2
            for x, y in zip(line[::every], line[1::every], strict=True):
                draw.ellipse((x - half, y - half, x + half, y + half), fill=255)
    return sheet


# --- the kinds of images: how each is drawn, and the strongest blur -----------------------------------------------------------

_KINDS = {
    "contours": (_contours, _CONTOURS_COARSEST),
    "fractals": (_fractals, _FRACTALS_COARSEST),
    "strokes": (_strokes, _STROKES_COARSEST),
}
_MIXED = tuple(_KINDS)
