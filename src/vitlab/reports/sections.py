"""The sections of a report that are numbers: the headline, the comparison, and the curves."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.serialize import to_text
from vitlab.config.variants import name_of
from vitlab.errors import ConfigError
from vitlab.evaluation.classify import Classification, MultiLabel
from vitlab.interpretation.attention import attention_distance, rollout
from vitlab.interpretation.paint import Pixels, as_rgb, filter_tiles, overlay, position_tiles
from vitlab.interpretation.weights import position_similarity, principal_filters
from vitlab.io.progress import ProgressCallback, silent
from vitlab.models.cost import cost
from vitlab.reports.page import Axes, Markup, Section, Series, bars, chart, image, joined, short, smoothed, tag, thinned
from vitlab.reports.run import (
    WATTS_A_CORE,
    DataCard,
    Judgement,
    RunRecord,
    Shot,
    Spent,
    as_batch,
    read_run,
    surest,
    versions,
    worst,
)


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
        words = f"{result.top1.right:,} of {result.top1.of:,} images of the {judgement.part} part told right"
        if result.unreadable:
            words += f"; {result.unreadable:,} of them could not be read and count as wrong"
        left = _headline(value, interval, words)
        if result.top5 is not None and len(judgement.found.targets.names) > 5:
            told["among the first five"] = percent(result.top5.value)
        told["mean over classes"] = percent(result.mean_class_accuracy)
        told["loss, nats an image"] = f"{result.loss:.3f}"
        told["calibration error"] = percent(result.calibration.error)
    elif isinstance(result, MultiLabel):
        assert judgement is not None
        words = f"mean average precision over {result.images:,} images of the {judgement.part} part"
        left = _headline(result.mean_average_precision, result.interval, words)
        told["loss, nats an image"] = f"{result.loss:.3f}"
    else:
        left = tag("p", {}, "This run learned no classes, so there is no accuracy to tell: its curves and its inside are below.")
    made = cost(run.model)
    told |= {
        "model": name_of(run.model) or "of its own",
        "parameters": short(made.parameters),
        "image size": " x ".join(map(str, run.model.image_size)),
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
        chart(_curve(steps, course.loss, course.looks, "loss"), Axes(x="updates", y="loss"), title="Loss, nats an image"),
        chart(
            _curve(steps, course.accuracy, course.looks, "top1"),
            Axes(x="updates", y="share right", low=0.0, high=1.0, percent=True),
            title="Share of images told right",
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
            Series(name="held-out images", x=[float(step) for step, _ in held], y=[value for _, value in held], look="b", mark=True)
        )
    return made


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")


# The sections of a report about its answers: class by class, what is taken for what, and whether it is right as often as sure.

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
    heads = ["class", of, "", "images", *([] if last is None else [last])]
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
        "tr", {}, *(tag("th", {"class": "n" if word in (of, "images") else None if word else "roomy"}, word) for word in heads)
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
    head = tag("tr", {}, tag("th", {}, "is"), tag("th", {}, "taken for"), tag("th", {"class": "n"}, "images"))
    table = tag("table", {"class": "sortable"}, tag("thead", {}, head), tag("tbody", {}, *rows))
    return tag("div", {}, tag("figcaption", {}, "The most frequent confusions"), tag("div", {"class": "scroll"}, table))


def _matrix(labels: Sequence[str], confusion: Sequence[tuple[int, int, int]]) -> Markup:
    """Rows are what images are, columns what they were taken for; shades by the row's share."""
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
        said = f"{number} of {totals[label]:.0f} images of {labels[label]} taken for {labels[chosen]}"
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
        "figure", {"class": "confusion"}, tag("figcaption", {}, "Down: what images are. Across: what they were taken for."), svg
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
            Axes(x="confidence", y="share of images", percent=True),
            title="How sure it is",
        ),
    ]
    body = [tag("h2", {}, "Calibration"), *(tag("p", {}, words) for words in sentences), tag("div", {"class": "columns"}, *drawn)]
    return Section(anchor="calibration", title="Calibration", body=joined(body))


# The sections of a report that are images and facts: mistakes, the inside, the data, the cost, the config.

_MISTAKES = 12
_RIGHT = 6
_LOOKED_AT = 32  # images over which attention distance is a mean
_MOST_SIDE = 200  # pixels of an image in the page
_MOST_CLASSES = 60  # whose sizes are drawn


def mistakes(judgement: Judgement, checkpoint: Checkpoint) -> Section:
    """What it got wrong and was surest of."""
    shots = worst(judgement, checkpoint, count=_MISTAKES)
    wrong = judgement.found.judged
    assert wrong is not None
    total = int(np.count_nonzero(wrong.rank_N != 0))
    body = [tag("h2", {}, "The most confident mistakes")]
    if not shots:
        body.append(tag("p", {}, "None: every image was told right."))
        return Section(anchor="mistakes", title="Mistakes", body=joined(body))
    maps = _rollouts(shots, checkpoint)
    said = f"{len(shots)} of {total:,}. " if total > len(shots) else ""
    words = (
        f"{said}Left, the image as the model sees it; right, the same darkened where, by attention rollout, little of it"
        " reached the answer."
    )
    body.append(tag("p", {"class": "quiet"}, words if maps is not None else f"{said}The image as the model sees it."))
    body.append(_cards(shots, maps))
    return Section(anchor="mistakes", title="Mistakes", body=joined(body))


def _rollouts(shots: list[Shot], checkpoint: Checkpoint) -> NDArray[np.float32] | None:
    try:
        return rollout(checkpoint.model, as_batch(shots, checkpoint))
    except ConfigError:
        return None  # this kind of model has no attention to roll out, which the section on its inside says


def _cards(shots: Sequence[Shot], maps: NDArray[np.float32] | None) -> Markup:
    cards = []
    for place, shot in enumerate(shots):
        own = shrunk(as_rgb(shot.pixels_HWC))
        images = [image(own, alt=f"an image of {shot.label}")]
        if maps is not None:
            images.append(image(overlay(own, maps[place], "shade"), alt="what reached the answer"))
        truth, said = tag("span", {"class": "truth"}, shot.label), tag("span", {"class": "said"}, shot.said)
        verdict = [truth] if shot.right else ["is ", truth, ", taken for ", said]
        words = tag("p", {}, *verdict, ", ", tag("span", {"class": "tight"}, f"{percent(shot.confidence)} sure"))
        cards.append(tag("li", {}, tag("div", {"class": "pair"}, *images), words, tag("small", {}, shot.name)))
    return tag("ul", {"class": "shots"}, *cards)


def shrunk(pixels_HWC: Pixels) -> Pixels:
    """The image, every n-th pixel of it where it is larger than the page shows."""
    step = -(-max(pixels_HWC.shape[:2]) // (2 * _MOST_SIDE))
    return np.ascontiguousarray(pixels_HWC[::step, ::step])


def inside(judgement: Judgement | None, checkpoint: Checkpoint, tell: ProgressCallback = silent) -> Section:
    """What the paper's Figures 6 and 7 show, of this model; what it has not is said."""
    model = checkpoint.model
    reasons: list[str] = []

    def tried(draw: Callable[[], Markup]) -> Markup | None:
        try:
            return draw()
        except ConfigError as reason:
            reasons.append(reason.message)
            return None

    tell("looking inside", 0, 4)
    figures = [tried(lambda: _filters(model)), tried(lambda: _positions(model))]
    tell("looking inside", 2, 4)
    shots = surest(judgement, checkpoint, count=_LOOKED_AT) if judgement is not None and judgement.found.judged is not None else []
    cards = None
    if shots:
        figures.append(tried(lambda: _distance(model, as_batch(shots, checkpoint))))
        tell("looking inside", 3, 4)
        maps = _rollouts(shots[:_RIGHT], checkpoint)
        if maps is not None:
            cards = joined(
                [tag("h3", {}, "Where it looked when it was right: attention rollout (Fig. 6)"), _cards(shots[:_RIGHT], maps)]
            )
    tell("looking inside", 4, 4)
    body = [tag("h2", {}, "A look inside"), tag("div", {"class": "columns"}, *figures), cards]
    body += [tag("p", {"class": "quiet"}, f"Left out: {reason}.") for reason in dict.fromkeys(reasons)]
    return Section(anchor="inside", title="Inside", body=joined(body))


def _figure(caption: str, pixels: Pixels, alt: str) -> Markup:
    return tag("figure", {"class": "wide"}, tag("figcaption", {}, caption), image(pixels, alt=alt, kind="tiles-image"))


def _filters(model: torch.nn.Module) -> Markup:
    filters = principal_filters(model, count=28)
    caption = f"The first {len(filters)} principal components of the patch embedding (Fig. 7, left)"
    return _figure(caption, filter_tiles(filters), "patch embedding filters")


def _positions(model: torch.nn.Module) -> Markup:
    tiles = position_tiles(position_similarity(model))
    return _figure(
        "Each patch's position embedding against all others: yellow is alike (Fig. 7, centre)", tiles, "position similarity"
    )


def _distance(model: torch.nn.Module, images_BCHW: torch.Tensor) -> Markup:
    distance_LH = attention_distance(model, images_BCHW)
    layers = [float(layer + 1) for layer, heads in enumerate(distance_LH) for _ in heads]
    means = [float(heads.mean()) for heads in distance_LH]
    drawn = [
        Series(
            name="a head",
            x=layers,
            y=[float(value) for heads in distance_LH for value in heads],
            look="a faint",
            line=False,
            mark=True,
        ),
        Series(name="mean of the layer", x=[float(layer + 1) for layer in range(len(means))], y=means, look="b"),
    ]
    title = f"How far attention reaches, over {len(images_BCHW)} images (Fig. 7, right)"
    return chart(drawn, Axes(x="layer", y="pixels", low=0.0, whole=True), title=title)


def data(card: DataCard | None, record: RunRecord) -> Section:
    """The data set in short."""
    dataset = record.run.data.dataset
    if card is None:
        gone = tag("p", {}, f"The images of {dataset} cannot be opened any more, so nothing is told of them.")
        return Section(anchor="data", title="Data", body=joined([tag("h2", {}, "Data"), gone]))
    facts = {
        "source": dataset,
        "images": ", ".join(f"{name} {count:,}" for name, count in card.parts.items()),
        "classes": f"{len(card.classes):,}",
        "fingerprint": card.fingerprint or "not taken of so many images",
    }
    if any(card.counts):
        facts["images of a class"] = f"{min(card.counts):,} to {max(card.counts):,}"
    rows = sorted(zip(card.classes, card.counts, strict=True), key=lambda row: -row[1])[:_MOST_CLASSES]
    most = max((count for _, count in rows), default=1) or 1
    lines = [
        tag(
            "tr",
            {},
            tag("td", {"class": "name"}, label),
            tag("td", {"class": "n", "data-value": str(count)}, f"{count:,}"),
            tag("td", {}, _meter(count / most)),
        )
        for label, count in rows
    ]
    head = tag("tr", {}, tag("th", {}, "class"), tag("th", {"class": "n"}, "learned from"), tag("th", {}, ""))
    table = tag("div", {"class": "tall"}, tag("table", {"class": "sortable"}, tag("thead", {}, head), tag("tbody", {}, *lines)))
    more = (
        None
        if len(card.classes) <= _MOST_CLASSES
        else tag("p", {"class": "quiet"}, f"The {_MOST_CLASSES} largest of {len(card.classes):,} classes.")
    )
    body = [
        tag("h2", {}, "Data"),
        tag("div", {"class": "columns"}, facts_table(facts), tag("div", {}, table, more) if lines else None),
    ]
    return Section(anchor="data", title="Data", body=joined(body))


def costs(spent: Spent) -> Section:
    """What the run took."""
    facts = {
        "images seen": f"{spent.images:,}" + ("" if spent.epochs is None else f", each {spent.epochs:.1f} times on average"),
        "multiply-adds an image": f"{spent.macs:,} ({short(spent.macs)})",
        "multiply-adds of training": f"about {short(spent.training_macs)}, a backward pass counted as two forward passes",
        "time of updates": f"{spent.seconds:,.1f} s on {spent.cores} core{'s' if spent.cores != 1 else ''}",
        "core-hours": f"{spent.core_hours:.4g}",
        "energy": f"about {spent.watt_hours:.3g} Wh: an estimate, {WATTS_A_CORE:g} W assumed for a busy core, nothing measured",
    }
    return Section(anchor="cost", title="Cost", body=joined([tag("h2", {}, "Cost"), facts_table(facts)]))


def again(record: RunRecord) -> Section:
    """The config, the versions, and the command that makes the run again."""
    config = record.folder / "run.json"
    command = f"vitlab train --config {shlex.quote(str(config))} --out {shlex.quote(str(record.folder))}-again"
    text = json.dumps(json.loads(to_text(record.run)), indent=2)
    body = [
        tag("h2", {}, "Make it again"),
        tag("p", {}, "The same config gives the same run, bit for bit on the same machine and number of threads:"),
        tag("pre", {"class": "command"}, command),
        tag("h3", {}, "Made with"),
        facts_table(versions()),
        tag("details", {}, tag("summary", {}, "The whole config, run.json"), tag("pre", {}, *_lines(text))),
    ]
    return Section(anchor="again", title="Config", body=joined(body))


def _lines(words: str) -> list[Markup]:
    """Text that keeps its line ends, each line escaped by itself."""
    return [joined([line, Markup("\n")]) for line in words.splitlines()]


def facts_table(facts: dict[str, str]) -> Markup:
    """Names and values."""
    rows = [tag("tr", {}, tag("th", {"scope": "row"}, name), tag("td", {}, value)) for name, value in facts.items()]
    return tag("table", {"class": "facts"}, tag("tbody", {}, *rows))


def _meter(share: float) -> Markup:
    return tag("span", {"class": "meter"}, tag("i", {"style": f"width:{100 * share:.1f}%"}))
