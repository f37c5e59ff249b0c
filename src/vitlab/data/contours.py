"""Rings bent by two sinusoids, after Visual Atoms (Takashima et al., CVPR 2023): a class is its two frequencies and their mix.

The paper draws orbit after orbit as polygons, each displaced by the same waves. Here the family of orbits is one equation,
`radius = core + k * step(angle)` for k = 0, 1, ..., so that a pixel finds its nearest orbit by division, with soft edges at
any resolution and no polygon at all.

Axes: B pictures, H height, W width, M angles of the wave's table, K orbits.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vitlab.data.keyed import TURN, Draws, Floats, cosine, keys, sine, turns

Pixels = NDArray[np.float32]

DRAWS = 32
"""Random numbers that one picture takes."""

_FORMULA_STREAM = 11
_FREQUENCIES = 10
_MOST_ORBITS = 4
# Two frequencies make a shape; the lowest pairs come first, so that a set of few classes stays legible at few pixels.
_PAIRS = tuple(
    sorted(((a, b) for b in range(2, _FREQUENCIES + 1) for a in range(1, b)), key=lambda pair: (sum(pair), pair))
)


@lru_cache(maxsize=1 << 14)
def _formula(seed: int, label: int) -> Floats:
    """The class: frequencies, their share, shift (turns), amplitude, orbits, core radius, ovalness."""
    low, high = _PAIRS[label % len(_PAIRS)]
    lap = label // len(_PAIRS)
    pair_key = keys(seed, _FORMULA_STREAM, np.array([label % len(_PAIRS)]))
    chosen = Draws(keys(seed, _FORMULA_STREAM + 1, np.array([label])), count=8)
    # Classes of one pair of frequencies differ in their number of orbits as long as there is another number to take.
    orbits = (int(pair_key[0] % np.uint64(_MOST_ORBITS)) + lap) % _MOST_ORBITS + 1
    return np.array(
        [
            low,
            high,
            chosen.between(0.35, 0.65)[0],
            chosen.between(0, 1)[0],
            chosen.between(0.4, 0.75)[0],
            orbits,
            chosen.between(0.1, 0.45)[0],
            chosen.between(1.0, 1.5)[0],
        ]
    )


@lru_cache(maxsize=8)
def _angles(count: int) -> NDArray[np.int64]:
    """The angle at each of `count` even steps of the diamond angle, which a pixel can compute without an arc tangent."""
    diamond_M = np.arange(count) * (4 / count) - 2
    x_M = 1 - np.abs(diamond_M)
    y_M = np.copysign(1 - np.abs(x_M), diamond_M)
    return turns(np.arctan2(y_M, x_M) / (2 * np.pi))


def coverage(seed: int, label_B: NDArray[np.int64], draws: Draws, image_size: tuple[int, int]) -> NDArray[np.uint8]:
    """How much of each pixel the shape covers, 0 to 255, [B, H, W]."""
    formula_B8 = np.array([_formula(seed, int(label)) for label in label_B])
    low_B, high_B, share_B, shift_B, amplitude_B, orbits_B, core_B, oval_B = formula_B8.T
    height, width = image_size
    side = min(image_size)

    # Where and how large: radius in pixels, then the matrix from pixels to the shape's own plane.
    radius_B = draws.between(0.6, 1.02, middle=0.92) * (side / 2)
    room_B2 = draws.several(2, -1, 1)
    oval_B = oval_B * draws.between(0.85, 1.18, middle=1)
    spin_B = turns(draws.between(0, 1, middle=0))
    lean_B = turns(draws.between(0, 1, middle=0))
    middle_y_B = height / 2 + room_B2[:, 0] * (height / 2 - radius_B * 0.8)
    middle_x_B = width / 2 + room_B2[:, 1] * (width / 2 - radius_B * 0.8)
    squeeze_B = np.sqrt(oval_B)
    x_BHW, y_BHW = _plane(image_size, (middle_x_B, middle_y_B), (spin_B, lean_B), (squeeze_B, radius_B))

    # The wave along the angle, bent a little by a slow wave of the sample's own.
    table = 1 << (16 * max(image_size) - 1).bit_length()
    angle_M = _angles(table)
    share_B = share_B + draws.between(-0.1, 0.1)
    shift_B = shift_B + draws.between(-0.05, 0.05)
    amplitude_B = amplitude_B * draws.between(0.8, 1.2)
    own_size_B = draws.between(0, 0.12, middle=0)
    own_frequency_B = np.floor(draws.between(1, 4)).astype(np.int64)
    own_shift_B = turns(draws.between(0, 1))
    wave_BM = (
        share_B[:, None] * sine(low_B.astype(np.int64)[:, None] * angle_M)
        + (1 - share_B)[:, None] * sine(high_B.astype(np.int64)[:, None] * angle_M + turns(shift_B)[:, None])
        + own_size_B[:, None] * sine(own_frequency_B[:, None] * angle_M + own_shift_B[:, None])
    )
    core_B = core_B + draws.between(-0.06, 0.06)
    # Scaled so that the outermost point of the outermost orbit has radius 1 and the drawing fills its place.
    reach_B = (1 - core_B) / (1 + amplitude_B * wave_BM.max(axis=1))
    step_BM = ((reach_B / orbits_B)[:, None] * (1 + amplitude_B[:, None] * wave_BM)).astype(np.float32)

    # Distance, in pixels, to the nearest orbit: the gap along the radius times the cosine of the orbit's lean there.
    core_B11, orbits_B11, radius_B11 = _pixels(core_B), _pixels(orbits_B), _pixels(radius_B)
    at_BN = _table_index(x_BHW, y_BHW, table).reshape(len(label_B), -1)
    step_BHW = np.take_along_axis(step_BM, at_BN, axis=1).reshape(x_BHW.shape)
    slope_BHW = np.take_along_axis(_slope(step_BM, angle_M), at_BN, axis=1).reshape(x_BHW.shape)
    orbit_BHW = (np.sqrt(x_BHW * x_BHW + y_BHW * y_BHW) - core_B11) / step_BHW
    nearest_BHW = np.clip(np.rint(orbit_BHW), np.float32(0), orbits_B11)
    lean_BHW = nearest_BHW * slope_BHW / (core_B11 + nearest_BHW * step_BHW)
    gap_BHW = np.abs(orbit_BHW - nearest_BHW) * step_BHW * radius_B11 / np.sqrt(1 + lean_BHW * lean_BHW)

    # Pen and filling: each orbit with a tone of its own, the body empty, tinted or full.
    spacing_B = radius_B * reach_B / orbits_B
    pen_B = np.minimum(draws.between(0.02, 0.075, middle=0.045) * side, np.maximum(0.5 * spacing_B, 1.0)) / 2
    line_BHW = np.clip(_pixels(pen_B + 0.5) - gap_BHW, np.float32(0), np.float32(1))
    tone_BK = draws.several(_MOST_ORBITS + 1, 0.45, 1.0, middle=1.0).astype(np.float32)
    tone_BK[np.arange(len(label_B)), orbits_B.astype(np.int64)] = 1  # the outline, which tells the class, is always full
    nearest_BN = nearest_BHW.astype(np.int64).reshape(len(label_B), -1)
    tone_BHW = np.take_along_axis(tone_BK, nearest_BN, axis=1).reshape(x_BHW.shape)
    filling_B = draws.happens(0.5) * draws.between(0.2, 0.7)
    inside_BHW = np.clip((orbits_B11 - orbit_BHW) * step_BHW * radius_B11, 0, 1)
    return (np.maximum(line_BHW * tone_BHW, inside_BHW * _pixels(filling_B)) * 255 + np.float32(0.5)).astype(np.uint8)


def _pixels(value_B: Floats) -> Pixels:
    """One number per picture, ready to meet its pixels: [B, 1, 1]."""
    return value_B.astype(np.float32)[:, None, None]


def _plane(
    image_size: tuple[int, int],
    middle: tuple[Floats, Floats],
    angles: tuple[NDArray[np.int64], NDArray[np.int64]],
    sizes: tuple[Floats, Floats],
) -> tuple[Pixels, Pixels]:
    """Pixel centres in the shape's own plane: shifted, squeezed along the lean, turned by the spin, radius 1."""
    spin_B, lean_B = angles
    squeeze_B, radius_B = sizes
    y_BH = (np.arange(image_size[0]) + 0.5 - middle[1][:, None]) / radius_B[:, None]
    x_BW = (np.arange(image_size[1]) + 0.5 - middle[0][:, None]) / radius_B[:, None]
    cos_lean_B, sin_lean_B = cosine(lean_B), sine(lean_B)
    cos_spin_B, sin_spin_B = cosine(spin_B), sine(spin_B)
    # rows of spin @ diag(1/squeeze, squeeze) @ lean; the shorter axis keeps radius 1 at most
    a_B, b_B = cos_lean_B, sin_lean_B
    c_B, d_B = -sin_lean_B * squeeze_B * squeeze_B, cos_lean_B * squeeze_B * squeeze_B
    xx_B, xy_B = cos_spin_B * a_B - sin_spin_B * c_B, cos_spin_B * b_B - sin_spin_B * d_B
    yx_B, yy_B = sin_spin_B * a_B + cos_spin_B * c_B, sin_spin_B * b_B + cos_spin_B * d_B
    x_BHW = (xx_B[:, None] * x_BW).astype(np.float32)[:, None, :] + (xy_B[:, None] * y_BH).astype(np.float32)[:, :, None]
    y_BHW = (yx_B[:, None] * x_BW).astype(np.float32)[:, None, :] + (yy_B[:, None] * y_BH).astype(np.float32)[:, :, None]
    return x_BHW, y_BHW


def _table_index(x_BHW: Pixels, y_BHW: Pixels, table: int) -> NDArray[np.int64]:
    """Place of each pixel's angle in a table of even diamond angles."""
    across_BHW = x_BHW / (np.abs(x_BHW) + np.abs(y_BHW) + np.float32(1e-12))
    diamond_BHW = np.copysign(1 - across_BHW, y_BHW)
    return ((diamond_BHW + 2) * np.float32(table / 4)).astype(np.int64) & (table - 1)


def _slope(step_BM: Pixels, angle_M: NDArray[np.int64]) -> Pixels:
    """How fast the orbits' spacing changes with the angle, per radian."""
    turn_M = (np.roll(angle_M, -1) - np.roll(angle_M, 1)) % TURN
    radians_M = (turn_M * (2 * np.pi / TURN)).astype(np.float32)
    return (np.roll(step_BM, -1, axis=1) - np.roll(step_BM, 1, axis=1)) / radians_M
