"""Arrays to pixels, with numpy and Pillow alone: heat over an image, tiles of filters and positions, features as colours.

Colours are ordered by lightness, and go from blue to yellow, which nearly everybody can tell apart.
Axes: H height, W width, C channels, G x J patches down and across, M filters or components, P x Q pixels of a filter.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.decode import as_rgb
from vitlab.errors import ConfigError, choice

Pixels = NDArray[np.uint8]
Values = NDArray[np.float32] | NDArray[np.float64]
Colour = tuple[int, int, int]
How = Literal["shade", "colour", "signed"]

# From dark blue over grey to yellow, lightness rising evenly: for values from 0 to 1.
_RAMP = np.array([(0, 34, 78), (53, 69, 108), (102, 105, 112), (148, 142, 119), (200, 184, 102), (253, 231, 55)], float)
_AGAINST, _FOR = np.array([0, 114, 178.0]), np.array([213, 94, 0.0])  # blue and vermilion
_MOST_TILES = 16  # tiles of positions down or across; of a finer grid, evenly spaced ones
_WHITE = (255, 255, 255)
GAP = 3  # pixels between tiles


def overlay(
    image_HWC: Pixels, heat_GJ: Values, how: How = "shade", *, smooth: bool = True, step: tuple[int, int] | None = None
) -> Pixels:
    """An image (uint8, any number of channels) with a map of patches laid over it, (H, W, 3).

    `shade` darkens what has little heat, as in the paper's Fig. 6; `colour` lays colours from blue (least) to yellow (most) over
    the grey image; `signed` lays vermilion where heat is above 0 and blue where it is below. Heat is scaled to its own range.
    `smooth` blends neighbouring patches; without it each patch keeps its square. `step` is a patch's (height, width) in pixels:
    what reaches past the edge of the image is cut. Without `step` the map is stretched over the image.
    """
    choice("how", how, How)
    rgb_HWC = as_rgb(image_HWC).astype(np.float64)
    if heat_GJ.ndim != 2 or not heat_GJ.size or not np.isfinite(heat_GJ).all():
        raise ConfigError(f"heat is a map (rows, columns) of finite numbers, not {heat_GJ.dtype} of shape {heat_GJ.shape}")
    height, width = rgb_HWC.shape[:2]
    size = (height, width) if step is None else (heat_GJ.shape[0] * step[0], heat_GJ.shape[1] * step[1])
    if size[0] < height or size[1] < width:
        raise ConfigError(f"a map of {size[0]}x{size[1]} pixels does not cover an image of {height}x{width}")
    if how == "signed":
        share_HW = scaled(heat_GJ / max(float(np.abs(heat_GJ).max()), 1e-12), size, smooth=smooth).clip(-1, 1)
        share_HW1 = share_HW[:height, :width, None]
        tint_HWC = np.where(share_HW1 < 0, _AGAINST, _FOR)
        strength_HW1 = 0.85 * np.abs(share_HW1) ** 0.7
        return _levels(_grey(rgb_HWC) * (1 - strength_HW1) + tint_HWC * strength_HW1)
    spread = float(heat_GJ.max() - heat_GJ.min())
    share_HW = scaled((heat_GJ - heat_GJ.min()) / max(spread, 1e-12), size, smooth=smooth).clip(0, 1)[:height, :width]
    if how == "shade":
        return _levels(rgb_HWC * (0.12 + 0.88 * share_HW[:, :, None]))
    return _levels(0.4 * _grey(rgb_HWC) + 0.6 * ramp(share_HW))


def filter_tiles(filters_MPQC: Values, *, columns: int = 7, scale: int | None = None, paper: Colour = _WHITE) -> Pixels:
    """Filters as tiles in reading order: middle grey is 0, and each tile goes as far to both sides as its largest value.

    Three channels are red, green and blue, one is grey; of more, the first three are shown. `scale` pixels stand for
    one; `paper` is what shows between tiles.
    """
    tiles = []
    for filter_PQC in filters_MPQC:
        largest = max(float(np.abs(filter_PQC).max()), 1e-12)
        tiles.append(as_rgb(_levels(127.5 + 127.5 * filter_PQC / largest)))
    scale = scale if scale is not None else max(1, 56 // max(filters_MPQC.shape[1:3]))
    rows = [tiles[start : start + columns] for start in range(0, len(tiles), columns)]
    return mosaic([[enlarged(tile, scale) for tile in row] for row in rows], paper)


def shown_places(count: int) -> list[int]:
    """Which of `count` rows or columns get tiles in `position_tiles`."""
    return [round(place) for place in np.linspace(0, count - 1, min(count, _MOST_TILES)).tolist()]


def position_tiles(similarity_GJGJ: Values, *, scale: int | None = None, paper: Colour = _WHITE) -> Pixels:
    """A tile for each patch, at its place: its cosine with every patch, from dark blue (-1) to yellow (1)."""
    g, j = similarity_GJGJ.shape[:2]
    rows, columns = shown_places(g), shown_places(j)
    scale = scale if scale is not None else max(1, 42 // max(g, j))
    tiles = [[enlarged(_levels(ramp((similarity_GJGJ[row, column] + 1) / 2)), scale) for column in columns] for row in rows]
    return mosaic(tiles, paper)


def feature_maps(scores_BGJM: Values, size: tuple[int, int], *, smooth: bool = False) -> list[Pixels]:
    """Components of features as colours, an image (height, width) each, on one scale for all of them.

    The first is lightness, the second goes from blue to yellow, the third from green to red.
    """
    low_M, high_M = np.percentile(scores_BGJM, (2, 98), axis=(0, 1, 2))
    unit_BGJM = ((scores_BGJM - low_M) / np.maximum(high_M - low_M, 1e-12)).clip(0, 1)[..., :3]
    missing = 3 - unit_BGJM.shape[3]
    unit_BGJM = np.concatenate([unit_BGJM, np.full((*unit_BGJM.shape[:3], missing), 0.5)], axis=3)
    maps = []
    for unit_GJM in unit_BGJM:
        light, yellow, red = (scaled(unit_GJM[:, :, place], size, smooth=smooth) for place in range(3))
        maps.append(_oklab(0.3 + 0.62 * light, 0.22 * (red - 0.5), 0.26 * (yellow - 0.5)))
    return maps


def field_pixels(field_HW: Values) -> Pixels:
    """A map of sizes, none below 0, as colours from dark blue (0) to yellow (its largest); the square root shows small ones."""
    return _levels(ramp(np.sqrt(field_HW / max(float(field_HW.max()), 1e-30))))


def ramp(share: Values) -> NDArray[np.float64]:
    """Values from 0 to 1 as colours, levels from 0 to 255 along a last axis of three."""
    place = np.asarray(share, np.float64).clip(0, 1) * (len(_RAMP) - 1)
    stops = np.arange(len(_RAMP))
    return np.stack([np.interp(place, stops, _RAMP[:, channel]) for channel in range(3)], axis=-1)


def scaled(map_GJ: Values, size: tuple[int, int], *, smooth: bool) -> NDArray[np.float64]:
    """A map brought to (height, width) pixels."""
    how = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(map_GJ.astype(np.float32)).resize((size[1], size[0]), how), np.float64)


def enlarged(pixels_HWC: Pixels, scale: int) -> Pixels:
    """Each pixel as a square of `scale` x `scale`."""
    return pixels_HWC.repeat(scale, axis=0).repeat(scale, axis=1)


def png(pixels_HWC: Pixels) -> bytes:
    """The pixels as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels_HWC).save(file, "PNG", optimize=True)
    return file.getvalue()


def _grey(rgb_HWC: NDArray[np.float64]) -> NDArray[np.float64]:
    grey: NDArray[np.float64] = (rgb_HWC @ np.array([0.299, 0.587, 0.114]))[:, :, None]
    return grey


def _levels(values: NDArray[np.float64] | NDArray[np.float32]) -> Pixels:
    levels: Pixels = np.rint(np.clip(values, 0, 255)).astype(np.uint8)
    return levels


def mosaic(tiles: Sequence[Sequence[Pixels]], paper: Colour = _WHITE) -> Pixels:
    """Tiles of one size in rows, `GAP` pixels of paper between them."""
    gap = GAP
    height, width = tiles[0][0].shape[:2]
    rows, columns = len(tiles), max(map(len, tiles))
    out_HWC = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, 3), paper, np.uint8)
    for row, line in enumerate(tiles):
        for column, tile in enumerate(line):
            top, left = row * (height + gap), column * (width + gap)
            out_HWC[top : top + height, left : left + width] = tile
    return out_HWC


def _oklab(light: NDArray[np.float64], red: NDArray[np.float64], yellow: NDArray[np.float64]) -> Pixels:
    """Colours of the OKLab space (Ottosson 2020), in which equal steps look equal, as sRGB pixels."""
    to_cones = np.array([[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]])
    to_rgb = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = (((np.stack([light, red, yellow], axis=-1) @ to_cones.T) ** 3) @ to_rgb.T).clip(0, 1)
    return _levels(255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055))
