"""Attractors of iterated function systems, after FractalDB (Kataoka et al., ACCV 2020): a class is a set of affine maps.

The maps are drawn by their singular values, whose sum is held where attractors are neither dust nor blob (Anderson and
Farrell, WACV 2022). Instead of a long chain of single points, a cloud of points of the class's attractor goes through a few
steps of the sample's own maps, all of them at once.

Axes: B pictures, F maps of a system, W chains of maps, L links of a chain, Q points of the cloud, N points, H height, W width.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitlab.data.keyed import Draws, Floats, cosine, keys, sine, turns, uniforms

DRAWS = 48
"""Random numbers that one picture takes."""

_MOST_MAPS = 4
_CHAINS = 64
_LINKS = 3
_CANDIDATES = 32
_SETTLING = 24
_CELLS = 16
_FORMULA_STREAM = 31
_CLOUD_STREAM = 32


class _System(NamedTuple):
    """One class: `maps_F6` rows are a, b, c, d, e, f of (x, y) -> (ax + by + e, cx + dy + f); its cloud; its chains of maps."""

    maps_F6: Floats
    cloud_2Q: NDArray[np.float32]
    chain_LW: NDArray[np.int64]


def coverage(seed: int, label_B: NDArray[np.int64], draws: Draws, image_size: tuple[int, int]) -> NDArray[np.uint8]:
    """How much of each pixel the fractal covers, 0 to 255, [B, H, W]."""
    height, width = image_size
    cloud = max(24, 3 * height * width // _CHAINS)
    systems = [_system(seed, int(label), cloud) for label in label_B]
    batch, side = len(label_B), min(image_size)

    # The sample's own maps: every coefficient off by a share, as FractalDB weights them.
    weight_BF6 = draws.several(_MOST_MAPS * 6, 0.86, 1.14).reshape(batch, _MOST_MAPS, 6)
    maps_BF6 = np.array([system.maps_F6 for system in systems]) * weight_BF6
    maps_BF6[..., 4:] += draws.several(_MOST_MAPS * 2, -0.06, 0.06).reshape(batch, _MOST_MAPS, 2)
    maps_BF6 = maps_BF6.astype(np.float32)
    chain_BLW = np.array([system.chain_LW for system in systems])
    cloud_B2Q = np.array([system.cloud_2Q for system in systems])
    x_BWQ, y_BWQ = cloud_B2Q[:, 0, None], cloud_B2Q[:, 1, None]
    for link in range(_LINKS):
        map_6BW1 = np.take_along_axis(maps_BF6, chain_BLW[:, link, :, None], axis=1).transpose(2, 0, 1)[..., None]
        a, b, c, d, e, f = map_6BW1
        x_BWQ, y_BWQ = a * x_BWQ + b * y_BWQ + e, c * x_BWQ + d * y_BWQ + f

    # Turned, then scaled and put where it fits.
    x_BN, y_BN = x_BWQ.reshape(batch, -1), y_BWQ.reshape(batch, -1)
    turn_B1 = turns(draws.several(1, -0.08, 0.08))
    cos_B1, sin_B1 = cosine(turn_B1).astype(np.float32), sine(turn_B1).astype(np.float32)
    x_BN, y_BN = x_BN * cos_B1 - y_BN * sin_B1, x_BN * sin_B1 + y_BN * cos_B1
    stretch_B1 = draws.several(1, 0.8, 1.25, middle=1).astype(np.float32)
    x_BN = x_BN * stretch_B1
    size_B1 = (draws.several(1, 0.6, 1.0, middle=0.92) * (side - 1)).astype(np.float32)
    place_B2 = draws.several(2, 0, 1).astype(np.float32)
    low_B2 = np.stack([x_BN.min(axis=1), y_BN.min(axis=1)], axis=1)
    span_B2 = np.stack([x_BN.max(axis=1), y_BN.max(axis=1)], axis=1) - low_B2
    scale_B1 = size_B1 / span_B2.max(axis=1, keepdims=True)
    start_B2 = (np.array([width, height], np.float32) - span_B2 * scale_B1) * place_B2 - low_B2 * scale_B1
    column_BN = (x_BN * scale_B1 + start_B2[:, :1]).astype(np.int32)
    row_BN = (y_BN * scale_B1 + start_B2[:, 1:]).astype(np.int32)
    np.minimum(column_BN, width - 1, out=column_BN)
    np.minimum(row_BN, height - 1, out=row_BN)

    # Points per pixel, as light: one point already shows, a few are full.
    column_BN += row_BN * width
    column_BN += (np.arange(batch, dtype=np.int32) * (height * width))[:, None]
    count_BHW = np.bincount(column_BN.ravel(), minlength=batch * height * width).reshape(batch, height, width)
    light_B = draws.between(70, 255, middle=140)
    return np.minimum(count_BHW * light_B[:, None, None], 255).astype(np.uint8)


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
    # The last link places the pieces: dealt out evenly, so that no part of the picture is missed by chance.
    uniform_LW[-1] = (np.arange(_CHAINS) + uniform_LW[-1]) / _CHAINS
    return _System(maps_F6, cloud_2Q, _choose(shares_F=best_shares_F, uniform=uniform_LW))


def _candidate(key_1: NDArray[np.uint64]) -> tuple[Floats, Floats]:
    """Maps [F, 6], unused ones zero, and the share of points that each takes, by area (FractalDB)."""
    draws = Draws(key_1, count=8 * _MOST_MAPS)
    count = 2 + int(draws.between(0, _MOST_MAPS - 1)[0])
    larger_F = draws.several(count, 0.3, 0.9)[0]
    smaller_F = larger_F * draws.several(count, 0.15, 1.0)[0]
    # Anderson and Farrell's sigma factor: the sum over maps of larger + 2 * smaller is held at about (5 + count) / 2.
    factor = (5.5 + count) / 2 / float(np.cumsum(larger_F + 2 * smaller_F)[-1])
    larger_F, smaller_F = np.minimum(larger_F * factor, 0.9), np.minimum(smaller_F * factor, 0.85)
    first_F, second_F = turns(draws.several(count, 0, 1)[0]), turns(draws.several(count, 0, 1)[0])
    flip_F = np.where(draws.several(count, 0, 1)[0] < 0.3, -1.0, 1.0)
    shift_2F = draws.several(2 * count, -1, 1)[0].reshape(2, count)
    cos_first_F, sin_first_F, cos_second_F, sin_second_F = cosine(first_F), sine(first_F), cosine(second_F), sine(second_F)
    smaller_F = smaller_F * flip_F
    maps_F6 = np.zeros((_MOST_MAPS, 6))
    maps_F6[:count] = np.stack(  # rotation @ diag(larger, smaller) @ rotation
        [
            cos_first_F * larger_F * cos_second_F - sin_first_F * smaller_F * sin_second_F,
            -cos_first_F * larger_F * sin_second_F - sin_first_F * smaller_F * cos_second_F,
            sin_first_F * larger_F * cos_second_F + cos_first_F * smaller_F * sin_second_F,
            -sin_first_F * larger_F * sin_second_F + cos_first_F * smaller_F * cos_second_F,
            *shift_2F,
        ],
        axis=1,
    )
    area_F = np.zeros(_MOST_MAPS)
    area_F[:count] = np.maximum(np.abs(larger_F * smaller_F), 0.02)
    return maps_F6, area_F / np.cumsum(area_F)[-1]


def _choose(*, shares_F: Floats, uniform: Floats) -> NDArray[np.int64]:
    """Which map each number in [0, 1) stands for."""
    edges_F = np.cumsum(shares_F)[:-1]
    return np.searchsorted(edges_F, uniform, side="right").clip(0, np.count_nonzero(shares_F) - 1)


def _settled(maps_F6: Floats, shares_F: Floats, count: int, key_1: NDArray[np.uint64]) -> Floats:
    """`count` points of the attractor, [2, count]: the chaos game played by all of them side by side."""
    x_Q, y_Q = np.zeros(count), np.zeros(count)
    choice_SQ = _choose(
        shares_F=shares_F, uniform=uniforms(key_1, _SETTLING * count, after=1 << 20).reshape(_SETTLING, count)
    )
    for choice_Q in choice_SQ:
        a, b, c, d, e, f = maps_F6[choice_Q].T
        x_Q, y_Q = a * x_Q + b * y_Q + e, c * x_Q + d * y_Q + f
    return np.stack([x_Q, y_Q])


def _misfit(points_2N: Floats, low_2: Floats, high_2: Floats) -> float:
    """How far from legible: 0 for an attractor that is no line, no dust and no blob."""
    span_2 = high_2 - low_2
    longest = float(span_2.max())
    if longest == 0:
        return float("inf")
    cell_2N = np.minimum((points_2N - low_2[:, None]) * (_CELLS / longest), _CELLS - 1).astype(np.int64)
    filled = len(np.unique(cell_2N[0] * _CELLS + cell_2N[1])) / _CELLS**2
    narrow = max(0.0, 0.55 - float(span_2.min()) / longest)
    return narrow + max(0.0, 0.16 - filled) + max(0.0, filled - 0.42)
