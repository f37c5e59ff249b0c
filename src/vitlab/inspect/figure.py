"""Figures with axes and words, by matplotlib's objects alone: no pyplot, no window, no state left behind.

Axes: L layers, H heads (of pictures: height), W width, C channels, G x J patches down and across, M filters, P x Q pixels of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vitlab.errors import ConfigError
from vitlab.inspect.paint import GAP, Colour, Pixels, Values, filter_tiles, position_tiles, ramp, shown_places
from vitlab.inspect.paper import FAINT, INK, PAPER, Style, drawable, entitle, new_paper, tint, written

if TYPE_CHECKING:
    pass

_DOTS: dict[str, str] = {"light": "#0072b2", "dark": "#56b4e9"}  # Okabe and Ito's colours, told apart by everybody
_LINE: dict[str, str] = {"light": "#d55e00", "dark": "#e69f00"}


def draw_filters(filters_MPQC: Values, style: Style = Style(), *, title: str = "") -> bytes:  # noqa: B008 (a frozen value)
    """Filters or their principal components as tiles (Fig. 7 left)."""
    tiles = filter_tiles(filters_MPQC, paper=_rgb(PAPER[style.theme]))
    figure = new_paper(4.4, 4.4 * tiles.shape[0] / tiles.shape[1] + (0.4 if title else 0.1), style)
    axes = figure.subplots()
    axes.imshow(tiles, interpolation="nearest")
    axes.axis("off")
    entitle(axes, title, style)
    return written(figure, style)


def draw_positions(similarity_GJGJ: Values, style: Style = Style(), *, title: str = "") -> bytes:  # noqa: B008
    """A tile for each patch at its place, showing its position's cosine with all others (Fig. 7 centre)."""
    tiles = position_tiles(similarity_GJGJ, paper=_rgb(PAPER[style.theme]))
    g, j = similarity_GJGJ.shape[:2]
    figure = new_paper(4.8, 3.3 * tiles.shape[0] / tiles.shape[1] + 0.85, style)
    from matplotlib.colors import ListedColormap, Normalize

    axes = figure.subplots()
    image = axes.imshow(
        tiles, interpolation="nearest", norm=Normalize(-1, 1), cmap=ListedColormap(ramp(np.linspace(0, 1, 256)) / 255)
    )
    for places, length, side in ((shown_places(g), tiles.shape[0], axes.yaxis), (shown_places(j), tiles.shape[1], axes.xaxis)):
        step = (length + GAP) / len(places)
        every = max(1, len(places) // 7)
        side.set_ticks(
            [(place + 0.5) * step - (GAP + 1) / 2 for place in range(0, len(places), every)],
            [str(places[at]) for at in range(0, len(places), every)],
        )
    axes.set_xlabel("column of the patch")
    axes.set_ylabel("row of the patch")
    tint(axes, style)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, label="cosine")
    tint(bar.ax, style)
    bar.outline.set_edgecolor(FAINT[style.theme])
    entitle(axes, title, style)
    return written(figure, style)


def draw_distance(distance_LH: Values, style: Style = Style(), *, title: str = "") -> bytes:  # noqa: B008
    """Mean attention distance by layer, a dot a head (Fig. 7 right, Fig. 11)."""
    layers, heads = distance_LH.shape
    figure = new_paper(5, 3.5, style)
    from matplotlib.ticker import MaxNLocator

    axes = figure.subplots()
    depth = np.arange(layers)
    axes.plot(depth, distance_LH.mean(1), color=_LINE[style.theme], linewidth=1.5, label="mean of the heads", zorder=2)
    axes.scatter(
        depth.repeat(heads),
        distance_LH.ravel(),
        s=26,
        color=_DOTS[style.theme],
        alpha=0.8,
        linewidths=0,
        label="one head",
        zorder=3,
    )
    axes.set_xlabel("layer")
    axes.set_ylabel("mean attention distance (pixels)")
    axes.set_ylim(0, max(1.0, float(distance_LH.max()) * 1.12))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color=FAINT[style.theme], linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="lower right", frameon=False, labelcolor=INK[style.theme], fontsize=9)
    tint(axes, style)
    entitle(axes, title, style)
    return written(figure, style)


def draw_sheet(
    rows: Sequence[Sequence[Pixels]],
    style: Style = Style(),  # noqa: B008
    *,
    title: str = "",
    captions: Sequence[Sequence[str]] = (),
    inches: float = 1.7,
) -> bytes:
    """Pictures in rows, each with its caption above it where there is one; `inches` is the width of one."""
    columns = max((len(row) for row in rows), default=0)
    if columns == 0:
        raise ConfigError("a sheet without pictures")
    tallest = [max(pixels.shape[0] / pixels.shape[1] for pixels in row) for row in rows]
    words = 0.24 if captions else 0.06
    height = sum(inches * share + words for share in tallest) + (0.35 if title else 0)
    figure = new_paper(columns * (inches + 0.06), height, style)
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=tallest)
    for row, line in enumerate(grid):
        for column, axes in enumerate(line):
            axes.axis("off")
            if column < len(rows[row]):
                axes.imshow(rows[row][column], interpolation="nearest")
                if captions:
                    entitle(axes, _fitted(captions[row][column], int(inches * 14)), style, size=7.5)
    if title:
        figure.suptitle(drawable(title), color=INK[style.theme], fontsize=10, parse_math=False)
    return written(figure, style)


def _fitted(text: str, room: int) -> str:
    """At most so many letters: names differ at their end as often as at their start, so the middle goes."""
    return text if len(text) <= room else f"{text[: room // 2 - 1]}…{text[-(room - room // 2) :]}"


def _rgb(colour: str) -> Colour:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
