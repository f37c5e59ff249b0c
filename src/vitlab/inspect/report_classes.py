"""The sections of a report about its answers: class by class, what is taken for what, and whether it is right as often as sure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vitlab.evaluate.classify import Classification, MultiLabel
from vitlab.inspect.chart import Axes, Series, bars, chart
from vitlab.inspect.markup import Markup, joined, tag
from vitlab.inspect.report_judge import Judgement
from vitlab.inspect.report_numbers import percent
from vitlab.inspect.report_page import Section

_MOST_IN_MATRIX = 40  # classes: a larger matrix cannot be read
_MOST_ROWS = 1000
_PAIRS = 20


def classes(judgement: Judgement) -> Section | None:
    """Every class in a table that sorts, and which classes are taken for which."""
    result, names = judgement.found.result, judgement.found.targets.names
    if isinstance(result, MultiLabel):
        each = [(label, value, str(count), None) for label, value, count in result.per_class]
        table = _class_table(each, of="average precision", last=None)
        return Section(anchor="classes", title="Classes", body=joined([tag("h2", {}, "Class by class"), table]))
    wrong: dict[int, tuple[int, int]] = {}
    right = judgement.found.targets.right
    for label, chosen, count in result.confusion:
        if chosen not in right[label] and count > wrong.get(label, (0, 0))[1]:
            wrong[label] = (chosen, count)
    rows: list[tuple[str, float | None, str, str | None]] = []
    for place, score in enumerate(result.per_class):
        taken = wrong.get(place)
        said = None if taken is None else f"{names[taken[0]]} ({taken[1]})"
        rows.append((score.label, score.right / score.of if score.of else None, f"{score.right} of {score.of}", said))
    parts = [
        tag("h2", {}, "Class by class"),
        tag("div", {"class": "columns"}, _class_table(rows, of="told right", last="most often taken for"), _confusions(judgement)),
    ]
    return Section(anchor="classes", title="Classes", body=joined(parts))


def _class_table(rows: Sequence[tuple[str, float | None, str, str | None]], *, of: str, last: str | None) -> Markup:
    heads = ["class", of, "", "pictures", *([] if last is None else [last])]
    lines = []
    for label, value, count, said in sorted(rows, key=lambda row: (math.inf if row[1] is None else row[1], row[0]))[:_MOST_ROWS]:
        share = 0.0 if value is None else value
        meter = tag("span", {"class": "meter"}, tag("i", {"style": f"width:{100 * share:.1f}%"}))
        number = {"class": "n", "data-value": f"{share:.6f}"}
        cells = [
            tag("td", {"class": "name"}, label),
            tag("td", number, percent(math.nan if value is None else value)),
            tag("td", {"class": "roomy"}, meter),
            tag("td", {"class": "n", "data-value": count.split()[-1].replace(",", "")}, count),
        ]
        if last is not None:
            cells.append(tag("td", {"class": "name"}, said or "–"))
        lines.append(tag("tr", {}, *cells))
    head = tag(
        "tr", {}, *(tag("th", {"class": "n" if word in (of, "pictures") else None if word else "roomy"}, word) for word in heads)
    )
    more = (
        None if len(rows) <= _MOST_ROWS else tag("p", {"class": "quiet"}, f"The {_MOST_ROWS:,} hardest of {len(rows):,} classes.")
    )
    table = tag("table", {"class": "sortable"}, tag("thead", {}, head), tag("tbody", {}, *lines))
    return tag("div", {}, tag("div", {"class": "tall"}, table), more)


def _confusions(judgement: Judgement) -> Markup:
    result, targets = judgement.found.result, judgement.found.targets
    assert isinstance(result, Classification)
    if targets.one_each and len(targets.labels) == len(targets.names) <= _MOST_IN_MATRIX:
        order = {right[0]: place for place, right in enumerate(targets.right)}
        return _matrix(targets.labels, [(label, order[chosen], count) for label, chosen, count in result.confusion])
    pairs = [(count, label, chosen) for label, chosen, count in result.confusion if chosen not in targets.right[label]]
    pairs.sort(reverse=True)
    rows = [
        tag(
            "tr",
            {},
            tag("td", {"class": "name"}, targets.labels[label]),
            tag("td", {"class": "name"}, targets.names[chosen]),
            tag("td", {"class": "n", "data-value": str(count)}, f"{count:,}"),
        )
        for count, label, chosen in pairs[:_PAIRS]
    ]
    head = tag("tr", {}, tag("th", {}, "is"), tag("th", {}, "taken for"), tag("th", {"class": "n"}, "pictures"))
    table = tag("table", {"class": "sortable"}, tag("thead", {}, head), tag("tbody", {}, *rows))
    return tag("div", {}, tag("figcaption", {}, "The most frequent confusions"), tag("div", {"class": "scroll"}, table))


def _matrix(labels: Sequence[str], confusion: Sequence[tuple[int, int, int]]) -> Markup:
    """Rows are what pictures are, columns what they were taken for; shades by the row's share."""
    count, cell = len(labels), 30
    longest = min(14, max(map(len, labels)))
    left, top = 14 + 7 * longest, 20 + (12 if longest <= 3 else 6 * longest)
    side, lean = count * cell, 0 if longest <= 3 else 3 * longest  # turned words reach past the last column
    totals = np.zeros(count)
    for label, _, number in confusion:
        totals[label] += number
    parts = []
    for place, name in enumerate(labels):
        word = name if len(name) <= 14 else f"{name[:13]}…"
        middle = place * cell + cell / 2
        parts.append(tag("text", {"x": left - 6, "y": top + middle, "text-anchor": "end", "dy": "0.32em"}, word))
        if longest <= 3:
            parts.append(tag("text", {"x": left + middle, "y": top - 7, "text-anchor": "middle"}, word))
        else:
            turn = f"rotate(-60 {left + middle:.0f} {top - 6})"
            parts.append(tag("text", {"x": left + middle, "y": top - 6, "transform": turn}, word))
    for row in range(count):
        parts += [_cell(left + column * cell, top + row * cell, cell, "cell", 0.06, None) for column in range(count)]
    for label, chosen, number in confusion:
        shade = round(0.15 + 0.85 * (number / totals[label]) ** 0.6, 3)
        x, y = left + chosen * cell, top + label * cell
        said = f"{number} of {totals[label]:.0f} pictures of {labels[label]} taken for {labels[chosen]}"
        parts.append(_cell(x, y, cell, "cell" if label == chosen else "wrong", shade, said))
        look = "on" if shade > 0.55 else None
        parts.append(
            tag("text", {"x": x + cell / 2, "y": y + cell / 2, "text-anchor": "middle", "dy": "0.34em", "class": look}, str(number))
        )
    svg = tag(
        "svg",
        {"viewBox": f"0 0 {left + side + 4 + lean} {top + side + 4}", "role": "img", "aria-label": "confusion matrix"},
        *parts,
    )
    return tag(
        "figure", {"class": "confusion"}, tag("figcaption", {}, "Down: what pictures are. Across: what they were taken for."), svg
    )


def _cell(x: int, y: int, side: int, look: str, shade: float, said: str | None) -> Markup:
    box = {"x": x + 1, "y": y + 1, "width": side - 2, "height": side - 2, "rx": 3, "fill-opacity": shade}
    return tag("rect", {**box, "class": look}, None if said is None else tag("title", {}, said))


def calibration(judgement: Judgement) -> Section | None:
    """Whether the model is right as often as it is sure."""
    result = judgement.found.result
    if not isinstance(result, Classification):
        return None
    made = result.calibration
    full = [place for place, count in enumerate(made.count) if count]
    line = Series(name="", x=[made.confidence[place] for place in full], y=[made.accuracy[place] for place in full], mark=True)
    axes = Axes(x="confidence", y="share right", low=0.0, high=1.0, percent=True, diagonal=True)
    total = max(sum(made.count), 1)
    sentences = [
        f"On average the confidence is {percent(made.error)} away from how often the model is right (expected calibration error)."
    ]
    if result.temperature is not None:
        way = (
            "too sure of itself"
            if result.temperature > 1.05
            else "too modest"
            if result.temperature < 0.95
            else "about as sure as it may be"
        )
        sentences.append(f"The best temperature for its logits is {result.temperature:.2f}: the model is {way}.")
    zero_to_one = Series(name="", x=[0.0, 1.0], y=[0.0, 0.0], look="none", line=False)
    drawn = [
        chart([zero_to_one, line], axes, title="Right as often as it is sure? On the dashed line it is."),
        bars(
            [count / total for count in made.count],
            Axes(x="confidence", y="share of pictures", percent=True),
            title="How sure it is",
        ),
    ]
    body = [tag("h2", {}, "Calibration"), *(tag("p", {}, words) for words in sentences), tag("div", {"class": "columns"}, *drawn)]
    return Section(anchor="calibration", title="Calibration", body=joined(body))
