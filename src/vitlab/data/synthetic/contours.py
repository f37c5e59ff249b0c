"""Rings bent by two sinusoids, after Visual Atoms (Takashima et al., CVPR 2023): a class is its two frequencies and their mix.

The paper draws orbit after orbit as polygons, each displaced by the same waves. Here the family of orbits is one equation,
`radius = core + k * step(angle)` for k = 0, 1, ..., so that a pixel finds its nearest orbit by division, with soft edges at
any resolution and no polygon at all.

Axes: B images, H height, W width, M angles of the wave's table, K orbits.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vitlab.data.random_numbers import CHANCE, TURN, Choice, Choices, Floats, Keys, cosine, keys, sine, turns, uniforms

Pixels = NDArray[np.float32]

COARSEST = 0.4
"""The strongest blur that still shows the class, as a fraction of the pixels along a side."""

_FORMULA_STREAM = 11
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
_SAMPLE = Choices(
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
def _formula(seed: int, label: int) -> Floats:
    """The class: two frequencies, orbits, the share of the first, shift of the second, amplitude, core radius, ovalness, and
    the directions of the first wave and of the oval; angles in turns."""
    share, shift, amplitude, core, oval, spin, lean = uniforms(keys(seed, _FORMULA_STREAM, np.array([label])), 7)[0]
    mix = (0.3 + 0.4 * share, shift, 0.5 + 0.35 * amplitude, 0.1 + 0.3 * core, 1 + 0.7 * oval, spin, lean)
    return np.array([*_PLANS[label % len(_PLANS)], *mix])


def coverage(
    seed: int, label_B: NDArray[np.int64], key_B: Keys, image_size: tuple[int, int], *, variety: float
) -> NDArray[np.uint8]:
    """How much of each pixel the shape covers, 0 to 255, [B, H, W]; `key_B` holds the samples' own keys."""
    formula_BF = np.array([_formula(seed, int(label)) for label in label_B])
    low_B1, high_B1, orbits_B1, share_B1, shift_B1, amplitude_B1, core_B1, oval_B1, spin_B1, lean_B1 = formula_BF.T[..., None]
    sample = _SAMPLE.draw(key_B, variety=variety)
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
    x_BHW, y_BHW = _plane(image_size, sample["place"], (radius_B1, oval_B1 * sample["oval"]), angles)
    core_B11, orbits_B11, radius_B11 = _pixels(core_B1), _pixels(orbits_B1), _pixels(radius_B1)
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
    line_BHW = np.minimum(np.maximum(_pixels(pen_B1 + 0.5) - gap_BHW, np.float32(0)), np.float32(1))
    tone_BK = sample["tone"].astype(np.float32)
    np.put_along_axis(tone_BK, orbits_B1.astype(np.int64), 1, axis=1)  # the outline, which shows the class, is always full
    rows_B11 = np.arange(len(label_B))[:, None, None]
    ink_BHW = line_BHW * tone_BK[rows_B11, nearest_BHW.astype(np.int64)]
    filling_B11 = _pixels((sample["filled"] < 0.4) * sample["filling"])
    inside_BHW = np.minimum(np.maximum((orbits_B11 - orbit_BHW) * step_BHW * radius_B11, np.float32(0)), np.float32(1))
    covered_BHW: Pixels = np.maximum(ink_BHW, inside_BHW * filling_B11) * 255 + np.float32(0.5)
    return covered_BHW.astype(np.uint8)


def _pixels(value_B1: Floats) -> Pixels:
    """One number per image, as [B, 1, 1]."""
    return value_B1.astype(np.float32)[..., None]


@lru_cache(maxsize=8)
def _angles(count: int) -> tuple[NDArray[np.int64], Pixels]:
    """The angle at each of `count` even steps of the diamond angle, which a pixel can compute without an arc tangent; and
    one over the radians from the step before to the step after."""
    diamond_M = np.arange(count) * (4 / count) - 2
    x_M = 1 - np.abs(diamond_M)
    y_M = np.copysign(1 - np.abs(x_M), diamond_M)
    angle_M = turns(np.arctan2(y_M, x_M) / (2 * np.pi))
    around_M = (np.roll(angle_M, -1) - np.roll(angle_M, 1)) % TURN * (2 * np.pi / TURN)
    return angle_M, (1 / around_M).astype(np.float32)


def _plane(
    image_size: tuple[int, int],
    place_B2: Floats,
    sizes: tuple[Floats, Floats],
    angles: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> tuple[Pixels, Pixels]:
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


def _table_index(x_BHW: Pixels, y_BHW: Pixels, table: int) -> NDArray[np.int32]:
    """Place of each pixel's angle in the images' tables of even diamond angles, laid end to end."""
    across_BHW = x_BHW / (np.abs(x_BHW) + np.abs(y_BHW) + np.float32(1e-12))
    diamond_BHW = np.copysign(1 - across_BHW, y_BHW)
    at_BHW = ((diamond_BHW + 2) * np.float32(table / 4)).astype(np.int32) & (table - 1)
    at_BHW += (np.arange(len(at_BHW), dtype=np.int32) * table)[:, None, None]
    return at_BHW


def _slope(step_BM: Pixels, per_radian_M: Pixels) -> Pixels:
    """How fast the orbits' spacing changes with the angle, per radian."""
    around_BM = np.concatenate([step_BM[:, -1:], step_BM, step_BM[:, :1]], axis=1)
    slope_BM: Pixels = (around_BM[:, 2:] - around_BM[:, :-2]) * per_radian_M
    return slope_BM
