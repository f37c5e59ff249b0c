"""Charts as SVG inside a page, coloured by the page's own styles, so that they follow its light and dark themes and print.

Every chart is 420 units wide: on a telephone and in a column of a wide screen its letters are of the size of the text around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vitlab.inspect.markup import Markup, joined, tag

WIDTH, HEIGHT = 420, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 38
_MOST_POINTS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line or points: `look` is the class of its style (`a`, `b`, with `faint`), `mark` draws points too."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: str = "a"
    line: bool = True
    mark: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What is drawn on: names of the axes, the range of y where it is known, how numbers are written; `whole`: x counts things."""

    x: str
    y: str
    low: float | None = None
    high: float | None = None
    percent: bool = False
    diagonal: bool = False
    whole: bool = False


def chart(series: Sequence[Series], axes: Axes, *, title: str) -> Markup:
    """A chart with its legend under it; without a point, a sentence that says so."""
    drawn = [some for some in series if len(some.x)]
    if not drawn:
        return tag("p", {"class": "quiet"}, f"{title}: nothing was recorded.")
    x_low, x_high = _range([value for some in drawn for value in some.x])
    y_low, y_high = _range([value for some in drawn for value in some.y])
    y_low, y_high = (axes.low if axes.low is not None else y_low), (axes.high if axes.high is not None else y_high)
    across = _scale(x_low, x_high, _LEFT, WIDTH - _RIGHT)
    down = _scale(y_low, y_high, HEIGHT - _BOTTOM, _TOP)
    xs = [value for value in ticks(x_low, x_high) if not axes.whole or value == round(value)]
    parts = [_grid(axes, across, down, xs, ticks(y_low, y_high))]
    if axes.diagonal:
        parts.append(_line([(across(0), down(0)), (across(1), down(1))], "line diagonal"))
    parts += [_drawn(some, across, down) for some in drawn]
    view = f"0 0 {WIDTH} {HEIGHT}"
    svg = tag("svg", {"viewBox": view, "role": "img", "aria-label": title, "class": "chart"}, *parts)
    names = [some for some in drawn if some.name]
    legend = tag("p", {"class": "legend"}, *(_key(some) for some in names)) if len(names) > 1 else None
    return tag("figure", {}, tag("figcaption", {}, title), svg, legend)


def bars(counts: Sequence[float], axes: Axes, *, title: str) -> Markup:
    """Bars over the range from 0 to 1."""
    across = _scale(0, 1, _LEFT, WIDTH - _RIGHT)
    top = max(counts, default=0) or 1
    down = _scale(0, top, HEIGHT - _BOTTOM, _TOP)
    wide = 1 / max(len(counts), 1)
    parts = [_grid(axes, across, down, ticks(0, 1), ticks(0, top))]
    for place, count in enumerate(counts):
        left, right = across(place * wide) + 1, across((place + 1) * wide) - 1
        box = {"x": _n(left), "y": _n(down(count)), "width": _n(right - left), "height": _n(down(0) - down(count)), "class": "bar"}
        parts.append(tag("rect", box))
    svg = tag("svg", {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "aria-label": title, "class": "chart"}, *parts)
    return tag("figure", {}, tag("figcaption", {}, title), svg)


def thinned(x: Sequence[float], y: Sequence[float], *, most: int = _MOST_POINTS) -> tuple[list[float], list[float]]:
    """At most so many points: the means of neighbours."""
    if len(x) <= most:
        return list(x), list(y)
    edges = np.linspace(0, len(x), most + 1).astype(int)
    pairs = [(float(np.mean(x[a:b])), float(np.mean(y[a:b]))) for a, b in pairwise(edges.tolist()) if b > a]
    return [a for a, _ in pairs], [b for _, b in pairs]


def smoothed(y: Sequence[float], *, over: int) -> list[float]:
    """A running mean over about so many points that is centred and never looks past the ends."""
    half = max(0, over // 2)
    total = np.concatenate([[0.0], np.cumsum(y)])
    places = range(len(y))
    return [
        float((total[min(len(y), i + half + 1)] - total[max(0, i - half)]) / (min(len(y), i + half + 1) - max(0, i - half)))
        for i in places
    ]


def ticks(low: float, high: float, *, about: int = 5) -> list[float]:
    """Round numbers from low to high, about so many."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [place * step for place in range(first, last + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = high - low if high > low else 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _grid(axes: Axes, across: Callable[[float], float], down: Callable[[float], float], xs: list[float], ys: list[float]) -> Markup:
    bottom = HEIGHT - _BOTTOM
    parts = []
    for value in ys:
        y = _n(down(value))
        parts.append(tag("line", {"x1": _LEFT, "x2": WIDTH - _RIGHT, "y1": y, "y2": y, "class": "rule"}))
        label = f"{value:.0%}" if axes.percent else short(value)
        parts.append(tag("text", {"x": _LEFT - 6, "y": y, "class": "tick", "text-anchor": "end", "dy": "0.32em"}, label))
    parts += [
        tag("text", {"x": _n(across(value)), "y": bottom + 15, "class": "tick", "text-anchor": "middle"}, short(value))
        for value in xs
    ]
    parts.append(tag("text", {"x": WIDTH - _RIGHT, "y": HEIGHT - 4, "class": "axis", "text-anchor": "end"}, axes.x))
    parts.append(tag("text", {"x": _LEFT, "y": HEIGHT - 4, "class": "axis", "text-anchor": "start"}, f"↑ {axes.y}"))
    return joined(parts)


def _drawn(series: Series, across: Callable[[float], float], down: Callable[[float], float]) -> Markup:
    places = [(across(x), down(y)) for x, y in zip(series.x, series.y, strict=True)]
    parts = [_line(places, f"line {series.look}")] if series.line and len(places) > 1 else []
    if series.mark or len(places) == 1:
        parts += [tag("circle", {"cx": _n(x), "cy": _n(y), "r": 3, "class": f"dot {series.look}"}) for x, y in places]
    return joined(parts)


def _line(places: Sequence[tuple[float, float]], look: str) -> Markup:
    return tag("polyline", {"points": " ".join(f"{_n(x)},{_n(y)}" for x, y in places), "class": look})


def _key(series: Series) -> Markup:
    return tag("span", {"class": f"key {series.look}"}, series.name)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def short(value: float) -> str:
    """A number in few letters: 12k, 0.05, 1.5M, 2e-05."""
    size = abs(value)
    for power, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= power:
            return f"{value / power:.3g}{letter}"
    return f"{value:.4g}"
