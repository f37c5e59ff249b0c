"""Charts as SVG: from numbers to the places of lines, dots, bars and ticks, which the report's template draws.

The page's own styles colour them, so that they follow its light and dark themes and print well. Every chart is 420 units wide: on
a phone and in a column of a wide screen its letters are as large as the text around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

WIDTH, HEIGHT = 420, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 38
_MOST_POINTS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line (`line`), dots (`dots`) or both; `style` is a CSS class: `a` or `b`, with `faint`."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "a"
    line: bool = True
    dots: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The names of the axes, the range of y where it is fixed, and how numbers are written; `whole`: x has whole numbers only."""

    x: str
    y: str
    low: float | None = None
    high: float | None = None
    percent: bool = False
    diagonal: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawn chart; `empty` where there was nothing to draw."""

    title: str
    x_name: str = ""
    y_name: str = ""
    x_ticks: tuple[tuple[str, str], ...] = ()
    y_ticks: tuple[tuple[str, str], ...] = ()
    lines: tuple[tuple[str, str], ...] = ()
    dots: tuple[tuple[str, str, str], ...] = ()
    bars: tuple[tuple[str, str, str, str], ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    empty: bool = False
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    bottom: int = HEIGHT - _BOTTOM


def line_chart(series: Sequence[Series], axes: Axes, *, title: str) -> Chart:
    """Lines and dots over two axes."""
    drawn = [some for some in series if len(some.x)]
    if not drawn:
        return Chart(title=title, empty=True)
    x_low, x_high = _range([value for some in drawn for value in some.x])
    y_low, y_high = _range([value for some in drawn for value in some.y])
    y_low, y_high = (axes.low if axes.low is not None else y_low), (axes.high if axes.high is not None else y_high)
    x_at = _scale(x_low, x_high, _LEFT, WIDTH - _RIGHT)
    y_at = _scale(y_low, y_high, HEIGHT - _BOTTOM, _TOP)
    xs = [value for value in ticks(x_low, x_high) if not axes.whole or value == round(value)]
    lines = [("diagonal", _points([(x_at(0), y_at(0)), (x_at(1), y_at(1))]))] if axes.diagonal else []
    dots = []
    for some in drawn:
        places = [(x_at(x), y_at(y)) for x, y in zip(some.x, some.y, strict=True)]
        if some.line and len(places) > 1:
            lines.append((some.style, _points(places)))
        if some.dots or len(places) == 1:
            dots += [(some.style, _number(x), _number(y)) for x, y in places]
    names = [(some.style, some.name) for some in drawn if some.name]
    return Chart(
        title=title,
        x_name=axes.x,
        y_name=axes.y,
        x_ticks=tuple((_number(x_at(value)), short(value)) for value in xs),
        y_ticks=_y_ticks(axes, y_at, ticks(y_low, y_high)),
        lines=tuple(lines),
        dots=tuple(dots),
        legend=tuple(names) if len(names) > 1 else (),
    )


def bar_chart(heights: Sequence[float], axes: Axes, *, title: str) -> Chart:
    """Bars of equal width over the range from 0 to 1."""
    x_at = _scale(0, 1, _LEFT, WIDTH - _RIGHT)
    top = max(heights, default=0) or 1
    y_at = _scale(0, top, HEIGHT - _BOTTOM, _TOP)
    wide = 1 / max(len(heights), 1)
    bars = []
    for place, height in enumerate(heights):
        left, right = x_at(place * wide) + 1, x_at((place + 1) * wide) - 1
        bars.append((_number(left), _number(y_at(height)), _number(right - left), _number(y_at(0) - y_at(height))))
    return Chart(
        title=title,
        x_name=axes.x,
        y_name=axes.y,
        x_ticks=tuple((_number(x_at(value)), short(value)) for value in ticks(0, 1)),
        y_ticks=_y_ticks(axes, y_at, ticks(0, top)),
        bars=tuple(bars),
    )


def thinned(x: Sequence[float], y: Sequence[float], *, most: int = _MOST_POINTS) -> tuple[list[float], list[float]]:
    """At most `most` points: means of neighbours."""
    if len(x) <= most:
        return list(x), list(y)
    edges = np.linspace(0, len(x), most + 1).astype(int)
    pairs = [(float(np.mean(x[a:b])), float(np.mean(y[a:b]))) for a, b in pairwise(edges.tolist()) if b > a]
    return [a for a, _ in pairs], [b for _, b in pairs]


def smoothed(y: Sequence[float], *, over: int) -> list[float]:
    """A centred running mean over about `over` points, over fewer at the ends."""
    half = max(0, over // 2)
    total = np.concatenate([[0.0], np.cumsum(y)])
    return [
        float((total[min(len(y), i + half + 1)] - total[max(0, i - half)]) / (min(len(y), i + half + 1) - max(0, i - half)))
        for i in range(len(y))
    ]


def ticks(low: float, high: float, *, about: int = 5) -> list[float]:
    """About `about` round numbers from low to high, evenly spaced."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [place * step for place in range(first, last + 1)]


def short(value: float) -> str:
    """A number in few letters: 12k, 0.05, 1.5M, 2e-05."""
    size = abs(value)
    for power, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= power:
            return f"{value / power:.3g}{letter}"
    return f"{value:.4g}"


def _y_ticks(axes: Axes, y_at: Callable[[float], float], values: list[float]) -> tuple[tuple[str, str], ...]:
    return tuple((_number(y_at(value)), f"{value:.0%}" if axes.percent else short(value)) for value in values)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = high - low if high > low else 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in places)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
