"""Figures with axes and text, drawn by matplotlib objects: no pyplot, no window, no global state.

Axes: L layers, H heads (of images: height), W width, C channels, G x J patches down and across, M filters, P x Q pixels of one.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitlab.data.contact_sheet import drawable, font_for
from vitlab.errors import ConfigError, at_least, choice
from vitlab.interpretation.config import Form, Theme
from vitlab.interpretation.paint import GAP, Colour, Pixels, Values, filter_tiles, position_tiles, ramp, shown_places
from vitlab.io.optional import optional_import

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER: dict[str, str] = {"light": "#ffffff", "dark": "#14171c"}
INK: dict[str, str] = {"light": "#1f2328", "dark": "#e6e8eb"}
FAINT: dict[str, str] = {"light": "#c9ced6", "dark": "#3a414b"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Light or dark, PNG or SVG, and `dpi` pixels an inch."""

    theme: Theme = "light"
    form: Form = "png"
    dpi: int = 110

    def __post_init__(self) -> None:
        choice("theme", self.theme, Theme)
        choice("form", self.form, Form)
        at_least("dpi", self.dpi, 20)


_FORMS: dict[str, Form] = {".png": "png", ".svg": "svg"}


def form_of(path: Path) -> Form:
    """PNG or SVG, by the file's ending."""
    if path.suffix not in _FORMS:
        raise ConfigError(f"{path.name} is neither .png nor .svg", hint="end the name with one of them")
    return _FORMS[path.suffix]


def new_paper(width: float, height: float, style: Style) -> Figure:
    """An empty figure, in inches."""
    drawing = optional_import("matplotlib.figure", purpose="figures")
    made: Figure = drawing.Figure(figsize=(width, height), dpi=style.dpi, facecolor=PAPER[style.theme], layout="constrained")
    return made


def tint(axes: Any, style: Style) -> None:
    """Text, ticks and edges in the theme's colours."""
    axes.set_facecolor(PAPER[style.theme])
    axes.tick_params(colors=INK[style.theme], labelsize=8)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(INK[style.theme])
        label.set_fontsize(9)
    for spine in axes.spines.values():
        spine.set_edgecolor(FAINT[style.theme])


def entitle(axes: Any, title: str, style: Style, *, size: float = 10, room: int | None = None) -> None:
    """A title above the axes, of at most `room` letters."""
    if title:  # parse_math: a dollar in a file name is not a formula
        text, font = lettering(title, size)
        axes.set_title(text if room is None else _fitted(text, room), color=INK[style.theme], fontproperties=font, parse_math=False)


def lettering(text: str, size: float) -> tuple[str, Any]:
    """The text as it can be drawn, and matplotlib's font for it: its own, or one of this machine that has more of the letters.

    A letter that no font has becomes its plain form or its code point, as on contact sheets.
    """
    from matplotlib.font_manager import FontProperties, findfont, get_font
    from PIL.ImageFont import FreeTypeFont

    fonts = [FontProperties(size=size)]
    other = font_for(text, round(size))
    if isinstance(other, FreeTypeFont) and isinstance(other.path, str):
        fonts.append(FontProperties(fname=other.path, size=size))
    known = [get_font(findfont(font)).get_charmap() for font in fonts]
    best = max(range(len(fonts)), key=lambda place: sum(ord(letter) in known[place] for letter in text))  # the first of the best
    return drawable(text, lambda letter: ord(letter) in known[best]), fonts[best]


def written(figure: Figure, style: Style) -> bytes:
    file = io.BytesIO()
    if style.form == "svg":
        figure.savefig(file, format="svg", metadata={"Date": None})
    else:
        figure.savefig(file, format="png", pil_kwargs={"optimize": True})
    return file.getvalue()


_DOTS: dict[str, str] = {
    "light": "#0072b2",
    "dark": "#56b4e9",
}  # Okabe and Ito's colours, which colour-blind readers can tell apart
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


_TITLE_LETTERS = 12.5  # letters of a title in an inch, so that it is not cut off beside one narrow image


def draw_sheet(
    rows: Sequence[Sequence[Pixels]],
    style: Style = Style(),  # noqa: B008
    *,
    title: str = "",
    captions: Sequence[Sequence[str]] = (),
    inches: float = 1.7,
) -> bytes:
    """Images in rows, with captions above them; `inches` is the width of one image."""
    columns = max((len(row) for row in rows), default=0)
    if columns == 0:
        raise ConfigError("no image to draw")
    tallest = [max(pixels.shape[0] / pixels.shape[1] for pixels in row) for row in rows]
    words = 0.24 if captions else 0.06
    width, height = columns * (inches + 0.06), sum(inches * share + words for share in tallest)
    figure = new_paper(width, height, style)
    if title:
        text, font = lettering(title, 10)
        lines = textwrap.wrap(text, int(width * _TITLE_LETTERS))
        figure.set_figheight(height + 0.18 + 0.17 * len(lines))
        figure.suptitle("\n".join(lines), color=INK[style.theme], fontproperties=font, parse_math=False)
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=tallest)
    for row, line in enumerate(grid):
        for column, axes in enumerate(line):
            axes.axis("off")
            if column < len(rows[row]):
                axes.imshow(rows[row][column], interpolation="nearest")
                if captions:
                    entitle(axes, captions[row][column], style, size=7.5, room=int(inches * 14))
    return written(figure, style)


def _fitted(text: str, room: int) -> str:
    """At most `room` letters: the middle is left out, since names differ at their start or end."""
    return text if len(text) <= room else f"{text[: room // 2 - 1]}…{text[-(room - room // 2) :]}"


def _rgb(colour: str) -> Colour:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


# Okabe and Ito's colours, which colour-blind readers can tell apart, and marks for grey prints.
COLOURS: dict[str, tuple[str, ...]] = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#000000", "#e69f00"),
    "dark": ("#56b4e9", "#e69f00", "#3ec79a", "#cc79a7", "#f0e442", "#3d8fd1", "#ffffff", "#d55e00"),
}
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points, `joined` by a line; `spread` is (low, high) of each; `dashed` marks a second variant of the same thing."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[tuple[float, float]] | None = None
    dashed: bool = False
    joined: bool = True
    like: int | None = None  # draw it in the colour and mark of that line


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The name of an axis; `log` for a logarithmic scale; `at`: where to put ticks, by default matplotlib's choice."""

    name: str
    log: bool = False
    at: Sequence[float] | None = None


def draw_lines(lines: Sequence[Line], x: Axis, y: Axis, style: Style = Style(), *, title: str = "") -> bytes:  # noqa: B008
    """A chart of several lines with a legend beside it."""
    if not lines:
        raise ConfigError("nothing to draw")
    figure = new_paper(7.0, 4.2, style)
    axes = figure.subplots()
    for place, line in enumerate(lines):
        kind = (place if line.like is None else line.like) % len(MARKS)
        colour = COLOURS[style.theme][kind]
        axes.plot(
            line.x,
            line.y,
            color=colour,
            marker=MARKS[kind],
            markersize=4.5,
            linewidth=1.4,
            linestyle="" if not line.joined else "--" if line.dashed else "-",
            label=line.name,
        )
        if line.spread is not None:
            axes.fill_between(line.x, [low for low, _ in line.spread], [high for _, high in line.spread], color=colour, alpha=0.15)
    for axis, set_scale, set_label, side in (
        (x, axes.set_xscale, axes.set_xlabel, axes.xaxis),
        (y, axes.set_yscale, axes.set_ylabel, axes.yaxis),
    ):
        if axis.log:
            set_scale("log")
        if axis.at is not None:
            side.set_ticks(list(axis.at), [f"{value:g}" for value in axis.at])
            side.set_ticks([], minor=True)
        set_label(axis.name)
    axes.grid(visible=True, alpha=0.25)
    tint(axes, style)
    legend = axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for text, line in zip(legend.get_texts(), lines, strict=True):
        text.set_color(INK[style.theme])
        words, font = lettering(line.name, 8)
        text.set(text=words, fontproperties=font, parse_math=False)
    entitle(axes, title, style)
    return written(figure, style)


@dataclass(frozen=True, slots=True, kw_only=True)
class DotRow:
    """A row of a dot chart: its name and its group; rows of one group have one colour and mark."""

    name: str
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A value for each row, None where there is none, and half the length of its bar; `missing` is written in place of None."""

    axis: str
    title: str = ""
    values: Sequence[float | None]
    spread: Sequence[float] | None = None
    missing: str = ""


def draw_dots(rows: Sequence[DotRow], panels: Sequence[Panel], style: Style = Style()) -> bytes:  # noqa: B008
    """A chart of the rows from top to bottom, the panels from left to right, at most four in a line."""
    if not rows or not panels:
        raise ConfigError("nothing to draw")
    for panel in panels:
        if len(panel.values) != len(rows) or (panel.spread is not None and len(panel.spread) != len(rows)):
            raise ConfigError(f"the panel {panel.axis!r} has {len(panel.values)} values for {len(rows)} rows")
    across = min(len(panels), 4)
    lines = -(-len(panels) // across)
    figure = new_paper(2.2 + 2.9 * across, lines * (1.2 + 0.32 * len(rows)), style)
    grid = figure.subplots(lines, across, sharey=True, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place < len(panels):
            _panel(axes, rows, panels[place], style)
        else:
            axes.set_visible(False)
    first = grid[0, 0]
    words = [lettering(row.name, 8) for row in rows]
    first.set_yticks(range(len(rows)), [text for text, _ in words])
    for label, (_, font) in zip(first.get_yticklabels(), words, strict=True):
        label.set(fontproperties=font, parse_math=False)
    first.set_ylim(len(rows) - 0.4, -0.6)  # the first row on top
    return written(figure, style)


def _panel(axes: Any, rows: Sequence[DotRow], panel: Panel, style: Style) -> None:
    known = [value for value in panel.values if value is not None]
    spread = panel.spread or [0.0] * len(rows)
    for place, (row, value, half) in enumerate(zip(rows, panel.values, spread, strict=True)):
        kind = row.group % len(MARKS)
        if value is not None:
            axes.errorbar(
                value,
                place,
                xerr=half if half > 0 else None,
                color=COLOURS[style.theme][kind],
                marker=MARKS[kind],
                markersize=6,
                elinewidth=1.6,
                capsize=3,
            )
        elif panel.missing:
            middle = axes.get_yaxis_transform()  # across: share of the panel; down: rows
            axes.text(
                0.5,
                place,
                panel.missing,
                transform=middle,
                ha="center",
                va="center",
                fontsize=7,
                color=INK[style.theme],
                backgroundcolor=PAPER[style.theme],
            )
    if known:
        ends = [(value - half, value + half) for value, half in zip(panel.values, spread, strict=True) if value is not None]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        room = 0.08 * (high - low) or 0.5
        axes.set_xlim(low - room, high + room)
        axes.locator_params(axis="x", nbins=5)  # or the numbers of a narrow range run into each other
    axes.set_xlabel(panel.axis)
    axes.grid(visible=True, alpha=0.25)
    tint(axes, style)
    axes.tick_params(axis="y", length=0)
    entitle(axes, panel.title, style)
