"""Lines and points over an axis, for studies: each with a name, an own mark, and its spread where that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vitlab.errors import ConfigError
from vitlab.inspect.paper import INK, Style, entitle, new_paper, tint, written

# Okabe and Ito's colours, told apart by everybody; and marks, for who prints in grey.
COLOURS: dict[str, tuple[str, ...]] = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#000000", "#e69f00"),
    "dark": ("#56b4e9", "#e69f00", "#3ec79a", "#cc79a7", "#f0e442", "#3d8fd1", "#ffffff", "#d55e00"),
}
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points joined by a line; `spread` is (low, high) of each, `dashed` tells a second kind of the same thing."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[tuple[float, float]] | None = None
    dashed: bool = False
    like: int | None = None  # draw it in the colour and mark of that line


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis counts; `log`: by equal factors; `at`: where to write numbers, else where it suits."""

    name: str
    log: bool = False
    at: Sequence[float] | None = None


def draw_lines(lines: Sequence[Line], x: Axis, y: Axis, style: Style = Style(), *, title: str = "") -> bytes:  # noqa: B008
    """A chart of several lines with a legend beside it."""
    if not lines:
        raise ConfigError("there is nothing to draw")
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
            linestyle="--" if line.dashed else "-",
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
    for text in legend.get_texts():
        text.set_color(INK[style.theme])
    entitle(axes, title, style)
    return written(figure, style)
