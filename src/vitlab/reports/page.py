"""The page around a report's sections: its styles, its few lines of script, and its head. It asks nothing of the outside.

Without script everything is there; with it, tables sort and the theme can be chosen. The page's own policy forbids every request
and every script but this one, whatever else might get into it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np
from PIL import Image

from vitlab.interpretation.paint import Pixels, png
from vitlab.io.names import printable

# HTML out of Python values, where text can never become markup.
#
# tag("p", {"class": "note"}, "5 < 6")    ->    <p class="note">5 &lt; 6</p>
#
# A plain str is text and is escaped; only what `tag`, `joined` and `raw` made is markup.

_VOID = frozenset({"img", "br", "meta", "link", "hr"})
_MOST_PNG = 24_000  # bytes: an image that takes more is a photograph, which JPEG keeps smaller


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | Markup | None
Attributes = Mapping[str, str | int | float | None]


def tag(name: str, attributes: Attributes | None = None, *children: Child) -> Markup:
    """An element. An attribute that is None is left out, one that is "" stands without a value."""
    told = "".join(
        f" {key}" if value == "" else f' {key}="{escape(printable(str(value)))}"'
        for key, value in (attributes or {}).items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{told}>")
    return Markup(f"<{name}{told}>{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Markup:
    """Children one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else text(child) for child in children if child is not None))


def text(words: str) -> Markup:
    """Words as markup that shows them; what a terminal or a page would act on is escaped."""
    return Markup(escape(printable(words)))


def raw(trusted: str) -> Markup:
    """Markup that this package wrote itself, never what came from outside."""
    return Markup(trusted)


def image(pixels_HWC: Pixels, *, alt: str, kind: str = "") -> Markup:
    """An image inside the page itself: PNG, or JPEG where that is much smaller."""
    data, form = png(pixels_HWC), "png"
    if len(data) > _MOST_PNG and not kind:
        file = io.BytesIO()
        Image.fromarray(pixels_HWC).save(file, "JPEG", quality=85, optimize=True)
        data, form = file.getvalue(), "jpeg"
    height, width = pixels_HWC.shape[:2]
    return tag(
        "img",
        {
            "src": f"data:image/{form};base64,{base64.b64encode(data).decode()}",
            "alt": alt,
            "class": kind or ("pixels" if max(height, width) <= 96 else None),
            "width": width,
            "height": height,
            "loading": "lazy",
        },
    )


STYLE = """
:root{color-scheme:light dark;--paper:#fbfbfa;--card:#fff;--ink:#1b1d21;--quiet:#5d636d;--rule:#e3e4e6;--a:#0b62a8;--b:#c2500a;
--good:#0b62a8;--tint:#0b62a814;--shadow:0 1px 2px #0001,0 4px 16px #0000000a}
@media (prefers-color-scheme:dark){:root:not([data-theme=light]){--paper:#14161a;--card:#1c1f24;--ink:#e8eaee;--quiet:#a2a9b4;
--rule:#32373f;--a:#6cb6f5;--b:#f0994d;--good:#6cb6f5;--tint:#6cb6f51c;--shadow:none}}
:root[data-theme=dark]{color-scheme:dark;--paper:#14161a;--card:#1c1f24;--ink:#e8eaee;--quiet:#a2a9b4;--rule:#32373f;--a:#6cb6f5;
--b:#f0994d;--good:#6cb6f5;--tint:#6cb6f51c;--shadow:none}
:root[data-theme=light]{color-scheme:light}
*{box-sizing:border-box}
html{scroll-behavior:smooth;scroll-padding-top:1rem;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.page{max-width:1240px;margin:0 auto;padding:1.25rem 1rem 4rem}
header.top{display:flex;flex-wrap:wrap;gap:.25rem 1.5rem;align-items:baseline;justify-content:space-between;margin:.5rem 0 1rem}
h1{font-size:clamp(1.35rem,4vw,1.9rem);line-height:1.2;margin:0;letter-spacing:-.015em;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:0 0 .35rem;letter-spacing:-.01em}
h3{font-size:1rem;margin:1.5rem 0 .5rem}
table+p,.scroll+p{margin-top:.8rem}
p{margin:.4rem 0 .8rem;max-width:72ch}
.quiet,figcaption,small,.unit{color:var(--quiet)}
small,figcaption{font-size:.86rem;overflow-wrap:anywhere}
a{color:var(--a);text-underline-offset:.18em}
nav.parts{display:flex;flex-wrap:wrap;gap:.35rem;margin:0 0 1.25rem;padding:0;list-style:none}
nav.parts a{padding:.2rem .65rem;border:1px solid var(--rule);border-radius:99px;text-decoration:none;font-size:.86rem;
background:var(--card)}
nav.parts a:hover,nav.parts a:focus-visible{border-color:var(--a)}
section{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:1.1rem 1.1rem 1.2rem;margin:0 0 1rem;
box-shadow:var(--shadow)}
.headline{display:grid;grid-template-columns:minmax(0,1fr);gap:1rem}
.big{font-size:clamp(3rem,12vw,4.6rem);font-weight:650;line-height:1;letter-spacing:-.035em;font-variant-numeric:tabular-nums}
.big .unit{font-size:.42em;font-weight:500;letter-spacing:0;margin-left:.12em}
.interval{position:relative;height:.6rem;border-radius:99px;background:var(--tint);margin:.7rem 0 .3rem;max-width:30rem}
.interval i{position:absolute;top:0;bottom:0;border-radius:99px;background:var(--a);opacity:.45}
.interval b{position:absolute;top:-.2rem;bottom:-.2rem;width:3px;margin-left:-1px;border-radius:2px;background:var(--a)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.2rem,1fr));gap:.6rem;margin:0}
.tiles div{border:1px solid var(--rule);border-radius:10px;padding:.55rem .7rem}
.tiles dt{font-size:.8rem;color:var(--quiet);line-height:1.3}
.tiles dd{margin:.1rem 0 0;font-size:1.18rem;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));gap:1rem 1.5rem;align-items:start}
figure{margin:0}
.columns>*,.headline>*{min-width:0}
figcaption{margin:0 0 .3rem}
svg.chart{width:100%;height:auto;display:block;max-width:620px}
svg text{font:12px system-ui,sans-serif;fill:var(--quiet)}
.rule{stroke:var(--rule)}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.line.a{stroke:var(--a)}.line.b{stroke:var(--b)}.line.faint{stroke-width:1;opacity:.28}
.line.diagonal{stroke:var(--quiet);stroke-width:1;stroke-dasharray:4 4}
.dot.a{fill:var(--a)}.dot.b{fill:var(--b)}.dot.faint{opacity:.5}.bar{fill:var(--a);opacity:.75}
.legend{font-size:.86rem;margin:.15rem 0 0;display:flex;flex-wrap:wrap;gap:0 1.1rem;color:var(--quiet)}
.key::before{content:"";display:inline-block;width:1.1em;height:.2em;border-radius:2px;margin-right:.45em;vertical-align:.28em;
background:var(--a)}
.key.b::before{background:var(--b)}
.scroll{overflow-x:auto;max-width:100%}
.tall{max-height:26rem;overflow:auto}
table{border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.34rem .6rem;text-align:left;border-bottom:1px solid var(--rule);vertical-align:middle}
th{font-weight:600;color:var(--quiet);font-size:.84rem}
thead th{position:sticky;top:0;background:var(--card);z-index:1}
td.n,th.n{text-align:right}
td.n,.tight{white-space:nowrap}
tr.first td{font-weight:600}
td.name{overflow-wrap:anywhere;min-width:6rem}
th button{all:unset;cursor:pointer}
th button:focus-visible{outline:2px solid var(--a);outline-offset:2px}
th button::after{content:" ↕";opacity:.45}
th[aria-sort=ascending] button::after{content:" ↑";opacity:1}
th[aria-sort=descending] button::after{content:" ↓";opacity:1}
.meter{display:block;height:.5rem;border-radius:99px;background:var(--tint);min-width:5rem}
.meter i{display:block;height:100%;border-radius:99px;background:var(--a)}
.confusion{max-width:34rem}
.confusion svg{width:100%;height:auto;display:block}
.confusion .cell{fill:var(--a)}.confusion .wrong{fill:var(--b)}.confusion text{fill:var(--ink)}.confusion .on{fill:#fff}
:root[data-theme=dark] .confusion .on{fill:#0d1014}
@media (prefers-color-scheme:dark){:root:not([data-theme=light]) .confusion .on{fill:#0d1014}}
.shots{display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.8rem;margin:.6rem 0 0;padding:0;list-style:none}
.shots li{border:1px solid var(--rule);border-radius:10px;padding:.55rem;min-width:0}
.shots .pair{display:grid;grid-template-columns:1fr 1fr;gap:.4rem}
.shots p{margin:.45rem 0 0;font-size:.88rem;line-height:1.35;overflow-wrap:anywhere}
img{max-width:100%;height:auto;border-radius:6px;display:block}
.shots img,.wide img{width:100%}
.wide{max-width:30rem}
img.pixels,img.tiles-image{image-rendering:pixelated}
.truth{color:var(--a);font-weight:600}.said{color:var(--b);font-weight:600}
details>summary{cursor:pointer;color:var(--a);margin:.4rem 0}
pre{background:var(--tint);border-radius:8px;padding:.8rem;overflow:auto;font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,monospace;
max-height:28rem;margin:.5rem 0 0}
pre.command{max-height:none;white-space:pre-wrap;overflow-wrap:anywhere}
code{font:13px ui-monospace,SFMono-Regular,Menlo,monospace;overflow-wrap:anywhere}
.facts th{width:13rem;font-weight:500}.facts td{overflow-wrap:anywhere}
button.theme{font:inherit;font-size:.86rem;color:var(--ink);background:var(--card);border:1px solid var(--rule);border-radius:99px;
padding:.2rem .7rem;cursor:pointer}
.only-script{display:none}.script .only-script{display:inline-block}
@media (min-width:900px){.headline{grid-template-columns:minmax(0,5fr) minmax(0,7fr);align-items:center}
section{padding:1.4rem 1.6rem}.page{padding:2rem 2rem 4rem}}
@media (max-width:520px){.facts th{width:9rem}.roomy{display:none}table{font-size:.86rem}
td.name{min-width:4.5rem}th,td{padding:.3rem .4rem}
.shots{grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr))}}
@media print{:root{--paper:#fff;--card:#fff;--ink:#000;--quiet:#444;--rule:#ccc;--a:#0b62a8;--b:#c2500a;--tint:#0b62a814}
html{font-size:11px}body{font-size:11px}.page{max-width:none;padding:0}.roomy{display:none}
th button::after{content:""!important}.columns table{font-size:9px}.columns th,.columns td{padding:.2rem .3rem}
nav.parts,.only-script,button.theme{display:none!important}
section{border:0;border-top:1px solid #ccc;border-radius:0;box-shadow:none;padding:.8rem 0}
.tall{max-height:none;overflow:visible}pre{max-height:none;white-space:pre-wrap}
figure,.shots li,.tiles div,tr{break-inside:avoid}h2,h3{break-after:avoid}.columns{grid-template-columns:1fr 1fr}
.shots{grid-template-columns:repeat(4,1fr)}.headline{grid-template-columns:5fr 7fr}a{color:inherit;text-decoration:none}
details>summary{display:none}}
"""

SCRIPT = """
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("script");
  const button = document.querySelector("button.theme");
  const themes = ["", "light", "dark"], names = ["theme: system", "theme: light", "theme: dark"];
  let now = 0;
  button.addEventListener("click", () => {
    now = (now + 1) % 3;
    if (now) root.dataset.theme = themes[now]; else delete root.dataset.theme;
    button.textContent = names[now];
  });
  const value = (row, place) => {
    const cell = row.children[place];
    const told = cell.dataset.value;
    return told === undefined ? cell.textContent : Number(told);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      if (!head.textContent) return;
      const knob = document.createElement("button");
      knob.type = "button";
      knob.textContent = head.textContent;
      head.replaceChildren(knob);
      knob.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach(other => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((one, two) => {
          const a = value(one, place), b = value(two, place);
          const order = typeof a === "number" ? a - b : a.localeCompare(b, undefined, {numeric: true});
          return up ? order : -order;
        });
        table.tBodies[0].append(...rows);
      });
    });
  }
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(part => { part.open = true; }));
})();
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a report: its anchor, its name in the list of parts, and what is in it."""

    anchor: str
    title: str
    body: Markup


def page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The whole document."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    head = tag(
        "head",
        {},
        tag("meta", {"charset": "utf-8"}),
        tag("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        tag("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        tag("meta", {"name": "referrer", "content": "no-referrer"}),
        tag("link", {"rel": "icon", "href": "data:,"}),  # else a browser may go looking for one
        tag("title", {}, title),
        tag("style", {}, raw(STYLE)),
    )
    top = tag(
        "header",
        {"class": "top"},
        tag("div", {}, tag("h1", {}, title), tag("small", {}, subtitle)),
        tag("button", {"class": "theme only-script", "type": "button"}, "theme: system"),
    )
    parts = tag("nav", {"class": "parts", "aria-label": "parts"}, *(tag("a", {"href": f"#{s.anchor}"}, s.title) for s in sections))
    bodies = joined(tag("section", {"id": section.anchor}, section.body) for section in sections)
    body = tag("body", {}, tag("div", {"class": "page"}, top, parts, tag("main", {}, bodies)), tag("script", {}, raw(SCRIPT)))
    return f"<!DOCTYPE html>\n{tag('html', {'lang': 'en'}, head, body)}\n"


# Charts as SVG inside a page, coloured by the page's own styles, so that they follow its light and dark themes and print.
#
# Every chart is 420 units wide: on a telephone and in a column of a wide screen its letters are of the size of the text around it.

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
