"""The sections of a report that are pictures and facts: mistakes, the inside, the data, the cost, the config."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.checkpoint.contents import Checkpoint
from vitlab.config.text import to_text
from vitlab.data.care.progress import Tell, silent
from vitlab.errors import ConfigError
from vitlab.inspect.chart import Axes, Series, chart, short
from vitlab.inspect.distance import attention_distance
from vitlab.inspect.filters import principal_filters
from vitlab.inspect.markup import Markup, joined, picture, tag
from vitlab.inspect.paint import Pixels, as_rgb, filter_tiles, overlay, position_tiles
from vitlab.inspect.positions import position_similarity
from vitlab.inspect.report_judge import DataCard, Judgement, Shot, as_batch, surest, worst
from vitlab.inspect.report_numbers import percent
from vitlab.inspect.report_page import Section
from vitlab.inspect.report_run import WATTS_A_CORE, RunRecord, Spent, versions
from vitlab.inspect.rollout import rollout

_MISTAKES = 12
_RIGHT = 6
_LOOKED_AT = 32  # pictures over which attention distance is a mean
_MOST_SIDE = 200  # pixels of a picture in the page
_MOST_CLASSES = 60  # whose sizes are drawn


def mistakes(judgement: Judgement, checkpoint: Checkpoint) -> Section:
    """What it got wrong and was surest of."""
    shots = worst(judgement, checkpoint, count=_MISTAKES)
    wrong = judgement.found.judged
    assert wrong is not None
    total = int(np.count_nonzero(wrong.rank_N != 0))
    body = [tag("h2", {}, "The most confident mistakes")]
    if not shots:
        body.append(tag("p", {}, "None: every picture was told right."))
        return Section(anchor="mistakes", title="Mistakes", body=joined(body))
    maps = _rollouts(shots, checkpoint)
    said = f"{len(shots)} of {total:,}. " if total > len(shots) else ""
    words = (
        f"{said}Left, the picture as the model sees it; right, the same darkened where, by attention rollout, little of it"
        " reached the answer."
    )
    body.append(tag("p", {"class": "quiet"}, words if maps is not None else f"{said}The picture as the model sees it."))
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
        pictures = [picture(own, alt=f"a picture of {shot.label}")]
        if maps is not None:
            pictures.append(picture(overlay(own, maps[place], "shade"), alt="what reached the answer"))
        truth, said = tag("span", {"class": "truth"}, shot.label), tag("span", {"class": "said"}, shot.said)
        verdict = [truth] if shot.right else ["is ", truth, ", taken for ", said]
        words = tag("p", {}, *verdict, ", ", tag("span", {"class": "tight"}, f"{percent(shot.confidence)} sure"))
        cards.append(tag("li", {}, tag("div", {"class": "pair"}, *pictures), words, tag("small", {}, shot.name)))
    return tag("ul", {"class": "shots"}, *cards)


def shrunk(pixels_HWC: Pixels) -> Pixels:
    """The picture, every n-th pixel of it where it is larger than the page shows."""
    step = -(-max(pixels_HWC.shape[:2]) // (2 * _MOST_SIDE))
    return np.ascontiguousarray(pixels_HWC[::step, ::step])


def inside(judgement: Judgement | None, checkpoint: Checkpoint, tell: Tell = silent) -> Section:
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
    return tag("figure", {"class": "wide"}, tag("figcaption", {}, caption), picture(pixels, alt=alt, kind="tiles-picture"))


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
    title = f"How far attention reaches, over {len(images_BCHW)} pictures (Fig. 7, right)"
    return chart(drawn, Axes(x="layer", y="pixels", low=0.0, whole=True), title=title)


def data(card: DataCard | None, record: RunRecord) -> Section:
    """The data set in short."""
    source = record.run.data.source
    if card is None:
        gone = tag("p", {}, f"The pictures of {source} cannot be opened any more, so nothing is told of them.")
        return Section(anchor="data", title="Data", body=joined([tag("h2", {}, "Data"), gone]))
    facts = {
        "source": source,
        "pictures": ", ".join(f"{name} {count:,}" for name, count in card.parts.items()),
        "classes": f"{len(card.classes):,}",
        "fingerprint": card.fingerprint or "not taken of so many pictures",
    }
    if any(card.counts):
        facts["pictures of a class"] = f"{min(card.counts):,} to {max(card.counts):,}"
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
        "pictures seen": f"{spent.pictures:,}" + ("" if spent.epochs is None else f", each {spent.epochs:.1f} times on average"),
        "multiply-adds a picture": f"{spent.macs:,} ({short(spent.macs)})",
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
