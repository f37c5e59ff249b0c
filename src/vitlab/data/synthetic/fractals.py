"""Attractors of iterated function systems, after FractalDB (Kataoka et al., ACCV 2020): a class is a set of affine maps.

The maps are drawn by their singular values, whose sum is held where attractors are neither dust nor blob (Anderson and
Farrell, WACV 2022). Instead of a long chain of single points, a cloud of points of the class's attractor goes through a few
steps of the sample's own maps, all of them at once.

Axes: B images, F maps of a system, W chains of maps, L links of a chain, Q points of the cloud, N points, H height, W width.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitlab.data.random_numbers import Choice, Choices, Floats, Keys, cosine, keys, sine, turns, uniforms

COARSEST = 0.4
"""The strongest blur that still shows the class, as a fraction of the pixels along a side."""

_MOST_MAPS = 4
_CHAINS = 64
_LINKS = 3
_CANDIDATES = 32
_MEASURE = 24
_SETTLING = 24
_CELLS = 16
_FORMULA_STREAM = 31
_CLOUD_STREAM = 32


# How a sample varies its class. Sizes are fractions of the image's side; angles are in turns.
_SAMPLE = Choices(
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


def coverage(
    seed: int, label_B: NDArray[np.int64], key_B: Keys, image_size: tuple[int, int], *, variety: float
) -> NDArray[np.uint8]:
    """How much of each pixel the fractal covers, 0 to 255, [B, H, W]; `key_B` holds the samples' own keys."""
    batch, height, width = len(label_B), *image_size
    cloud = max(_MEASURE, 3 * height * width // _CHAINS)
    systems = [_system(seed, int(label), cloud) for label in label_B]
    sample = _SAMPLE.draw(key_B, variety=variety)

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
    for attempt in range(_CANDIDATES):
        key_1 = keys(seed, _FORMULA_STREAM, np.array([label]), np.array([attempt]))
        maps_F6, shares_F = _candidate(key_1)
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


def _candidate(key_1: NDArray[np.uint64]) -> tuple[Floats, Floats]:
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
    cell_2N = np.minimum((points_2N - low_2[:, None]) * (_CELLS / longest), _CELLS - 1).astype(np.int64)
    filled = len(np.unique(cell_2N[0] * _CELLS + cell_2N[1])) / _CELLS**2
    narrow = max(0.0, 0.55 - float(span_2.min()) / longest)
    return narrow + max(0.0, 0.16 - filled) + max(0.0, filled - 0.42)
