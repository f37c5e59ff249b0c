"""Things in rows, a dot for each with a bar of its spread; several panels side by side, each with a scale of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitlab.errors import ConfigError
from vitlab.inspect.lines import COLOURS, MARKS
from vitlab.inspect.paper import INK, PAPER, Style, entitle, new_paper, tint, written


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What stands in a row: its name, and of which group it is: rows of one group have one colour and mark."""

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


def draw_dots(rows: Sequence[Row], panels: Sequence[Panel], style: Style = Style()) -> bytes:  # noqa: B008
    """A chart of the rows from top to bottom, the panels from left to right."""
    if not rows or not panels:
        raise ConfigError("there is nothing to draw")
    for panel in panels:
        if len(panel.values) != len(rows) or (panel.spread is not None and len(panel.spread) != len(rows)):
            raise ConfigError(f"the panel {panel.axis!r} has {len(panel.values)} values for {len(rows)} rows")
    figure = new_paper(2.2 + 2.9 * len(panels), 1.2 + 0.32 * len(rows), style)
    columns = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for panel, axes in zip(panels, columns, strict=True):
        _panel(axes, rows, panel, style)
    first = columns[0]
    first.set_yticks(range(len(rows)), [row.name for row in rows])
    first.set_ylim(len(rows) - 0.4, -0.6)  # the first row on top
    return written(figure, style)


def _panel(axes: Any, rows: Sequence[Row], panel: Panel, style: Style) -> None:
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
    axes.set_xlabel(panel.axis)
    axes.grid(visible=True, alpha=0.25)
    tint(axes, style)
    axes.tick_params(axis="y", length=0)
    entitle(axes, panel.title, style)
