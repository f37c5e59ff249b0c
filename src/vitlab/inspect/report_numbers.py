"""The sections of a report that are numbers: the headline, the comparison, and the curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitlab.config.variants import name_of
from vitlab.evaluate.classify import Classification, MultiLabel
from vitlab.inspect.chart import Axes, Series, chart, short, smoothed, thinned
from vitlab.inspect.markup import Markup, joined, tag
from vitlab.inspect.report_judge import Judgement
from vitlab.inspect.report_page import Section
from vitlab.inspect.report_run import RunRecord, read_run
from vitlab.model.cost import cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Several runs side by side, told by who made them: a table of heads and rows, sentences under it, and the folders of two runs
    whose curves are drawn together, each with its name."""

    title: str
    sentences: tuple[str, ...]
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    courses: tuple[tuple[str, Path], ...] = ()


def percent(share: float, *, digits: int = 1) -> str:
    """0.978 as 97.8 %, nan as a dash."""
    return "–" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def summary(record: RunRecord, judgement: Judgement | None) -> Section:
    """The number one looks for first, with its interval, and the plain facts beside it."""
    run = record.run
    told: dict[str, str] = {}
    result = None if judgement is None else judgement.found.result
    if isinstance(result, Classification):
        assert judgement is not None
        value, interval = result.top1.value, result.top1.interval
        words = f"{result.top1.right:,} of {result.top1.of:,} pictures of the {judgement.part} part told right"
        if result.unreadable:
            words += f"; {result.unreadable:,} of them could not be read and count as wrong"
        left = _headline(value, interval, words)
        if result.top5 is not None and len(judgement.found.targets.names) > 5:
            told["among the first five"] = percent(result.top5.value)
        told["mean over classes"] = percent(result.mean_class_accuracy)
        told["loss, nats a picture"] = f"{result.loss:.3f}"
        told["calibration error"] = percent(result.calibration.error)
    elif isinstance(result, MultiLabel):
        assert judgement is not None
        words = f"mean average precision over {result.pictures:,} pictures of the {judgement.part} part"
        left = _headline(result.mean_average_precision, result.interval, words)
        told["loss, nats a picture"] = f"{result.loss:.3f}"
    else:
        left = tag("p", {}, "This run learned no classes, so there is no accuracy to tell: its curves and its inside are below.")
    made = cost(run.model)
    told |= {
        "model": name_of(run.model) or "of its own",
        "parameters": short(made.parameters),
        "picture size": " x ".join(map(str, run.model.image_size)),
        "updates": f"{int(record.course.step.max(initial=0)):,}",
    }
    notes = [*record.notes, *(judgement.notes if judgement is not None else ())]
    body = joined(
        [
            tag("div", {"class": "headline"}, left, _tiles(told)),
            *(tag("p", {"class": "quiet"}, _sentence(note)) for note in notes),
        ]
    )
    return Section(anchor="summary", title="Summary", body=joined([tag("h2", {}, "Summary"), body]))


def _headline(value: float, interval: tuple[float, float] | None, words: str) -> Markup:
    parts = [tag("div", {"class": "big"}, f"{100 * value:.1f}", tag("span", {"class": "unit"}, "%"))]
    if interval is not None:
        low, high = interval
        band = tag("i", {"style": f"left:{100 * low:.2f}%;width:{100 * (high - low):.2f}%"})
        mark = tag("b", {"style": f"left:{100 * value:.2f}%"})
        parts.append(tag("div", {"class": "interval", "aria-hidden": "true"}, band, mark))
        parts.append(tag("small", {}, f"between {percent(low)} and {percent(high)} with 95 % confidence"))
    parts.append(tag("p", {}, words))
    return tag("div", {}, *parts)


def _tiles(told: dict[str, str]) -> Markup:
    return tag(
        "dl", {"class": "tiles"}, *(tag("div", {}, tag("dt", {}, name), tag("dd", {}, value)) for name, value in told.items())
    )


def compared(comparison: Comparison) -> Section:
    """Several runs side by side."""
    head = tag("tr", {}, *(tag("th", {"class": "n"} if place else {}, word) for place, word in enumerate(comparison.heads)))
    rows = [
        tag(
            "tr",
            {"class": "first"} if number == 0 else {},
            *(tag("td", {"class": "n" if place else "name"}, cell) for place, cell in enumerate(row)),
        )
        for number, row in enumerate(comparison.rows)
    ]
    body = [
        tag("h2", {}, comparison.title),
        tag("div", {"class": "scroll"}, tag("table", {}, tag("thead", {}, head), tag("tbody", {}, *rows))),
        *(tag("p", {"class": "quiet"}, sentence) for sentence in comparison.sentences),
        _together(comparison.courses) if comparison.courses else None,
    ]
    return Section(anchor="comparison", title="Comparison", body=joined(body))


def _together(courses: Sequence[tuple[str, Path]]) -> Markup:
    """The curves of two runs in one chart each for loss and accuracy."""
    made: dict[str, list[Series]] = {"loss": [], "accuracy": []}
    for (name, folder), look in zip(courses, ("a", "b"), strict=False):
        course = read_run(folder).course
        for what, values in (("loss", course.loss), ("accuracy", course.accuracy)):
            x, y = thinned(course.step.tolist(), values.tolist())
            made[what].append(Series(name=name, x=x, y=smoothed(y, over=max(1, len(y) // 12)), look=look))
    share = Axes(x="updates", y="share right", low=0.0, high=1.0, percent=True)
    drawn = [
        chart(made["loss"], Axes(x="updates", y="loss", low=0.0), title="Fine-tuning with all labels: loss of the batches"),
        chart(made["accuracy"], share, title="Fine-tuning with all labels: share of the batches told right"),
    ]
    return tag("div", {"class": "columns"}, *drawn)


def curves(record: RunRecord) -> Section:
    """Loss, accuracy and learning rate over the updates."""
    course = record.course
    steps = course.step.tolist()
    drawn = [
        chart(_curve(steps, course.loss, course.looks, "loss"), Axes(x="updates", y="loss"), title="Loss, nats a picture"),
        chart(
            _curve(steps, course.accuracy, course.looks, "top1"),
            Axes(x="updates", y="share right", low=0.0, high=1.0, percent=True),
            title="Share of pictures told right",
        ),
        chart(
            [Series(name="", x=(thin := thinned(steps, course.rate.tolist()))[0], y=thin[1])],
            Axes(x="updates", y="rate", low=0.0),
            title="Learning rate",
        ),
    ]
    note = None if not course.skipped else tag("p", {}, f"{course.skipped} updates were skipped: their loss was no finite number.")
    body = [tag("h2", {}, "How it learned"), note, tag("div", {"class": "columns"}, *drawn)]
    return Section(anchor="curves", title="Curves", body=joined(body))


def _curve(steps: list[float], values: np.ndarray, looks: Sequence[tuple[int, dict[str, float]]], name: str) -> list[Series]:
    known = np.isfinite(values)
    x, y = thinned(np.array(steps)[known].tolist(), values[known].tolist())
    held = [(step, metrics[name]) for step, metrics in looks if name in metrics]
    made = [
        Series(name="", x=x, y=y, look="a faint"),
        Series(name="batches, running mean", x=x, y=smoothed(y, over=max(1, len(y) // 12)), look="a"),
    ]
    if held:
        made.append(
            Series(
                name="held-out pictures", x=[float(step) for step, _ in held], y=[value for _, value in held], look="b", mark=True
            )
        )
    return made


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")
