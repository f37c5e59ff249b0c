"""The sections of a report as plain values, one function a section; `templates/report.html` turns them into HTML."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.data.decode import as_rgb
from vitlab.errors import ConfigError
from vitlab.evaluation.classification import Classification, MultiLabel, averaged
from vitlab.interpretation.attention import attention_distance, rollout
from vitlab.interpretation.paint import Pixels, filter_tiles, overlay, png, position_tiles
from vitlab.interpretation.weights import position_similarity, principal_filters
from vitlab.io.display import ProgressCallback, silent
from vitlab.models.cost import cost
from vitlab.reports.charts import Axes, Chart, Series, bar_chart, line_chart, short, smoothed, thinned
from vitlab.reports.run import (
    WATTS_PER_CORE,
    DataCard,
    EvaluatedImage,
    RunCost,
    RunEvaluation,
    RunRecord,
    as_batch,
    confident_correct,
    confident_mistakes,
    read_run,
)

_MOST_IN_MATRIX = 40  # classes: a larger matrix cannot be read
_MOST_ROWS = 1000
_MOST_FAILURES = 20  # images that could not be read and are named
_PAIRS = 20
_MISTAKES = 12
_CORRECT = 6
_DISTANCE_IMAGES = 32
_MOST_SIDE = 200  # pixels of an image in the page
_MOST_CLASSES = 60  # classes whose sizes are drawn
_MOST_PNG = 24_000  # bytes: a larger image is a photograph, which JPEG keeps smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Several runs in one table, with sentences under it; `curves` are the run folders of two runs to draw together, by name."""

    title: str
    sentences: tuple[str, ...]
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    curves: tuple[tuple[str, Path], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The number one looks for first, with its interval, and the plain facts beside it."""

    value: float | None
    interval: tuple[float, float] | None
    sentence: str
    facts: dict[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedImage:
    """An image inside the page itself, as a data address."""

    src: str
    alt: str
    style: str
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One evaluated image with its label, prediction and confidence, and maybe its rollout beside it."""

    images: tuple[EmbeddedImage, ...]
    label: str
    predicted: str
    correct: bool
    confidence: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """One class: its accuracy or average precision, its images, and the class most often predicted instead."""

    label: str
    value: float | None
    count: str
    images: int
    instead: str | None = None
    precision: float | None = None
    f1: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixName:
    """A class name at the edge of the confusion matrix."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCell:
    """A cell of the confusion matrix with images in it."""

    x: int
    y: int
    shade: float
    correct: bool
    count: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A confusion matrix, drawn: rows are true classes, columns predicted ones, shaded by the fraction of the row."""

    width: int
    height: int
    cell: int
    turned: bool
    row_names: tuple[MatrixName, ...]
    column_names: tuple[MatrixName, ...]
    empty_cells: tuple[tuple[int, int], ...]
    cells: tuple[MatrixCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """Every class in a table, and a confusion matrix or, for many classes, the most frequent confusions."""

    measure: str
    rows: tuple[ClassRow, ...]
    confused: bool
    more: str | None
    matrix: Matrix | None = None
    pairs: tuple[tuple[str, str, int], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistakes:
    """The most confident mistakes, and a sentence that explains their images."""

    cards: tuple[Card, ...]
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """An image with its caption."""

    caption: str
    image: EmbeddedImage


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The paper's Figures 6 and 7 of this model; `left_out` says what it has not."""

    figures: tuple[Figure, ...]
    distance: Chart | None
    cards: tuple[Card, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSection:
    """Whether the model's confidence is its accuracy."""

    sentences: tuple[str, ...]
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSection:
    """The dataset in short: facts, and the training images of the largest classes."""

    facts: dict[str, str]
    classes: tuple[tuple[str, int], ...]
    most: int
    more: str | None


def start_name(start: str | None) -> str:
    """The name of the checkpoint that a run started from: of a file its name, of another run's model the name of that run."""
    if start is None:
        return "scratch"
    path = Path(start)
    return start if start.startswith("hub:") else path.parent.name if path.name == "model.safetensors" else path.name


def percent(fraction: float | None, *, digits: int = 1) -> str:
    """0.978 as 97.8 %; a dash for None and nan."""
    return "–" if fraction is None or math.isnan(fraction) else f"{100 * fraction:.{digits}f} %"


def summary(record: RunRecord, evaluation: RunEvaluation | None) -> Summary:
    """The accuracy of the run, or its mean average precision, and the facts of its model."""
    run, facts = record.run, dict[str, str]()
    value, interval, sentence = None, None, ""
    result = None if evaluation is None else evaluation.result.result
    if isinstance(result, Classification):
        assert evaluation is not None
        value, interval = result.top1.value, result.top1.interval
        sentence = (
            f"{result.top1.correct:,} of {result.top1.total:,} images of the {evaluation.split} split are classified correctly"
        )
        if result.unreadable:
            sentence += f"; {result.unreadable:,} of them could not be read and count as wrong"
        if result.top5 is not None and len(evaluation.result.targets.names) > 5:
            facts["top-5 accuracy"] = percent(result.top5.value)
        facts["mean over classes"] = percent(result.mean_class_accuracy)
        if result.scores is not None:
            macro = averaged(result.scores)
            facts["precision, F1 (mean over classes)"] = f"{percent(macro['precision'])}, {percent(macro['f1'])}"
            facts["ROC-AUC, average precision"] = f"{percent(macro['roc_auc'])}, {percent(macro['average_precision'])}"
        facts["loss, nats per image"] = f"{result.loss:.3f}"
        facts["calibration error"] = percent(result.calibration.error)
    elif isinstance(result, MultiLabel):
        assert evaluation is not None
        value, interval = result.mean_average_precision, result.interval
        sentence = f"mean average precision over {result.images:,} images of the {evaluation.split} split"
        facts["loss, nats per image"] = f"{result.loss:.3f}"
    facts |= {
        "model": run.model.name or "custom",
        "started from": start_name(run.start),
        "parameters": short(cost(run.model).parameters),
        "image size": " x ".join(map(str, run.model.image_size)),
        "updates": f"{int(record.history.step.max(initial=0)):,}",
    }
    notes = [*record.notes, *(evaluation.notes if evaluation is not None else ())]
    if evaluation is not None and (failures := evaluation.result.logits.failures):
        more = f" and {len(failures) - _MOST_FAILURES:,} more" if len(failures) > _MOST_FAILURES else ""
        notes.append(f"could not be read: {'; '.join(map(str, failures[:_MOST_FAILURES]))}{more}")
    return Summary(value=value, interval=interval, sentence=sentence, facts=facts, notes=tuple(map(_sentence, notes)))


def comparison_charts(comparison: Comparison) -> list[Chart]:
    """Loss and accuracy of two runs in one chart each."""
    if not comparison.curves:
        return []
    loss: list[Series] = []
    accuracy: list[Series] = []
    for (name, folder), style in zip(comparison.curves, ("a", "b"), strict=False):
        history = read_run(folder).history
        for made, values in ((loss, history.loss), (accuracy, history.accuracy)):
            x, y = thinned(history.step.tolist(), values.tolist())
            made.append(Series(name=name, x=x, y=smoothed(y, over=max(1, len(y) // 12)), style=style))
    axes = Axes(x="updates", y="accuracy", low=0.0, high=1.0, percent=True)
    return [
        line_chart(loss, Axes(x="updates", y="loss", low=0.0), title="Fine-tuning with all labels: training loss"),
        line_chart(accuracy, axes, title="Fine-tuning with all labels: training accuracy"),
    ]


def curves(record: RunRecord) -> list[Chart]:
    """Loss, accuracy and learning rate over the updates; nothing if there were none, as after a fitted head alone."""
    history = record.history
    if not len(history.step):
        return []
    measure, name = {
        "classify": ("Accuracy", "top1"),
        "segment": ("Accuracy of pixels", "pixel_accuracy"),
        "detect": ("AP50", "ap50"),
    }[record.run.task]
    steps = history.step.tolist()
    x, lr = thinned(steps, history.lr.tolist())
    return [
        line_chart(
            _curve(steps, history.loss, history.evaluations, "loss"), Axes(x="updates", y="loss"), title="Loss, nats per image"
        ),
        line_chart(
            _curve(steps, history.accuracy, history.evaluations, name),
            Axes(x="updates", y="AP50" if name == "ap50" else "accuracy", low=0.0, high=1.0, percent=True),
            title=measure,
        ),
        line_chart([Series(name="", x=x, y=lr)], Axes(x="updates", y="lr", low=0.0), title="Learning rate"),
    ]


def _curve(
    steps: list[float], values: NDArray[np.float64], evaluations: Sequence[tuple[int, dict[str, float]]], name: str
) -> list[Series]:
    known = np.isfinite(values)
    x, y = thinned(np.array(steps)[known].tolist(), values[known].tolist())
    held_out = [(step, metrics[name]) for step, metrics in evaluations if name in metrics]
    made = [
        Series(name="", x=x, y=y, style="a faint"),
        Series(name="training batches, running mean", x=x, y=smoothed(y, over=max(1, len(y) // 12)), style="a"),
    ]
    if held_out:
        at, found = [float(step) for step, _ in held_out], [value for _, value in held_out]
        made.append(Series(name="held-out images", x=at, y=found, style="b", dots=True))
    return made


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")


def classes(evaluation: RunEvaluation) -> Classes:
    """Every class, the hardest first, and which classes are confused."""
    result, names = evaluation.result.result, evaluation.result.targets.names
    if isinstance(result, MultiLabel):
        rows = [ClassRow(label=label, value=value, count=str(count), images=count) for label, value, count in result.per_class]
        return Classes(measure="average precision", rows=_hardest(rows), confused=False, more=_more(len(rows)))
    instead: dict[int, tuple[int, int]] = {}
    correct = evaluation.result.targets.correct
    for label, predicted, count in result.confusion:
        if predicted not in correct[label] and count > instead.get(label, (0, 0))[1]:
            instead[label] = (predicted, count)
    rows = []
    for place, score in enumerate(result.per_class):
        wrong = instead.get(place)
        rows.append(
            ClassRow(
                label=score.label,
                value=score.correct / score.total if score.total else None,
                count=f"{score.correct} of {score.total}",
                images=score.total,
                instead=None if wrong is None else f"{names[wrong[0]]} ({wrong[1]})",
                precision=None if result.scores is None else result.scores[place].precision,
                f1=None if result.scores is None else result.scores[place].f1,
            )
        )
    matrix, pairs = _confusions(evaluation)
    return Classes(measure="recall", rows=_hardest(rows), confused=True, more=_more(len(rows)), matrix=matrix, pairs=pairs)


def _hardest(rows: list[ClassRow]) -> tuple[ClassRow, ...]:
    return tuple(sorted(rows, key=lambda row: (math.inf if row.value is None else row.value, row.label))[:_MOST_ROWS])


def _more(count: int) -> str | None:
    return None if count <= _MOST_ROWS else f"The {_MOST_ROWS:,} hardest of {count:,} classes."


def _confusions(evaluation: RunEvaluation) -> tuple[Matrix | None, tuple[tuple[str, str, int], ...] | None]:
    result, targets = evaluation.result.result, evaluation.result.targets
    assert isinstance(result, Classification)
    if targets.one_to_one and len(targets.labels) == len(targets.names) <= _MOST_IN_MATRIX:
        order = {correct[0]: place for place, correct in enumerate(targets.correct)}
        return _matrix(targets.labels, [(label, order[predicted], count) for label, predicted, count in result.confusion]), None
    wrong = [(count, label, predicted) for label, predicted, count in result.confusion if predicted not in targets.correct[label]]
    pairs = [(targets.labels[label], targets.names[predicted], count) for count, label, predicted in sorted(wrong, reverse=True)]
    return None, tuple(pairs[:_PAIRS])


def _matrix(labels: Sequence[str], confusion: Sequence[tuple[int, int, int]]) -> Matrix:
    count, cell = len(labels), 30
    longest = min(14, max(map(len, labels)))
    turned = longest > 3
    left, top = 14 + 7 * longest, 20 + (6 * longest if turned else 12)
    side, overhang = count * cell, 3 * longest if turned else 0  # turned names reach past the last column
    totals = np.zeros(count)
    for label, _, number in confusion:
        totals[label] += number
    words = [name if len(name) <= 14 else f"{name[:13]}…" for name in labels]
    middles = [place * cell + cell / 2 for place in range(count)]
    cells = [
        MatrixCell(
            x=left + predicted * cell + 1,
            y=top + label * cell + 1,
            shade=round(0.15 + 0.85 * (number / totals[label]) ** 0.6, 3),
            correct=label == predicted,
            count=number,
            sentence=f"{number} of {totals[label]:.0f} images of {labels[label]} predicted as {labels[predicted]}",
        )
        for label, predicted, number in confusion
    ]
    return Matrix(
        width=left + side + 4 + overhang,
        height=top + side + 4,
        cell=cell - 2,
        turned=turned,
        row_names=tuple(MatrixName(x=left - 6, y=top + middles[i], text=word) for i, word in enumerate(words)),
        column_names=tuple(
            MatrixName(x=left + middles[i], y=top - (6 if turned else 7), text=word) for i, word in enumerate(words)
        ),
        empty_cells=tuple((left + x * cell + 1, top + y * cell + 1) for y in range(count) for x in range(count)),
        cells=tuple(cells),
    )


def calibration(evaluation: RunEvaluation) -> CalibrationSection | None:
    """Accuracy by confidence, and how confident the model is."""
    result = evaluation.result.result
    if not isinstance(result, Classification):
        return None
    found = result.calibration
    full = [place for place, count in enumerate(found.count) if count]
    line = Series(name="", x=[found.confidence[place] for place in full], y=[found.accuracy[place] for place in full], dots=True)
    axes = Axes(x="confidence", y="accuracy", low=0.0, high=1.0, percent=True, diagonal=True)
    total = max(sum(found.count), 1)
    sentences = [f"On average, confidence and accuracy are {percent(found.error)} apart (expected calibration error)."]
    if result.temperature is not None:
        way = "overconfident" if result.temperature > 1.05 else "underconfident" if result.temperature < 0.95 else "well calibrated"
        sentences.append(f"The best temperature for its logits is {result.temperature:.2f}: the model is {way}.")
    zero_to_one = Series(name="", x=[0.0, 1.0], y=[0.0, 0.0], style="none", line=False)
    return CalibrationSection(
        sentences=tuple(sentences),
        charts=(
            line_chart([zero_to_one, line], axes, title="Accuracy by confidence; a calibrated model is on the dashed line"),
            bar_chart(
                [count / total for count in found.count],
                Axes(x="confidence", y="fraction of images", percent=True),
                title="How confident it is",
            ),
        ),
    )


def mistakes(evaluation: RunEvaluation, checkpoint: Checkpoint) -> Mistakes:
    """The wrong predictions with the highest confidence, each with its attention rollout where the model has one."""
    images = confident_mistakes(evaluation, checkpoint, count=_MISTAKES)
    per_image = evaluation.result.per_image
    assert per_image is not None
    if not images:
        return Mistakes(cards=(), sentence="")
    total = int(np.count_nonzero(per_image.rank_N != 0))
    maps = _rollouts(images, checkpoint)
    sentence = f"{len(images)} of {total:,}. " if total > len(images) else ""
    sentence += "Left: the image as the model sees it." if maps is not None else "The image as the model sees it."
    if maps is not None:
        sentence += " Right: the same image, darker where attention rollout says that little of it reached the prediction."
    return Mistakes(cards=_cards(images, maps), sentence=sentence)


def _rollouts(images: list[EvaluatedImage], checkpoint: Checkpoint) -> NDArray[np.float32] | None:
    try:
        return rollout(checkpoint.model, as_batch(images, checkpoint))
    except ConfigError:
        return None  # this model has no attention to roll out, which the section on its inside says


def _cards(images: Sequence[EvaluatedImage], maps: NDArray[np.float32] | None) -> tuple[Card, ...]:
    cards = []
    for place, image in enumerate(images):
        own = reduced(as_rgb(image.pixels_HWC))
        shown = [embedded_image(own, alt=f"an image of {image.label}")]
        if maps is not None:
            shown.append(embedded_image(overlay(own, maps[place], "shade"), alt="what reached the prediction"))
        cards.append(
            Card(
                images=tuple(shown),
                label=image.label,
                predicted=image.predicted,
                correct=image.correct,
                confidence=percent(image.confidence),
                name=image.name,
            )
        )
    return tuple(cards)


def reduced(pixels_HWC: Pixels) -> Pixels:
    """Every n-th pixel of an image that is larger than the page shows."""
    step = -(-max(pixels_HWC.shape[:2]) // (2 * _MOST_SIDE))
    return np.ascontiguousarray(pixels_HWC[::step, ::step])


def embedded_image(pixels_HWC: Pixels, *, alt: str, style: str = "") -> EmbeddedImage:
    """The image as a data address: PNG, or JPEG where that is much smaller."""
    data, form = png(pixels_HWC), "png"
    if len(data) > _MOST_PNG and not style:
        file = io.BytesIO()
        Image.fromarray(pixels_HWC).save(file, "JPEG", quality=85, optimize=True)
        data, form = file.getvalue(), "jpeg"
    height, width = pixels_HWC.shape[:2]
    return EmbeddedImage(
        src=f"data:image/{form};base64,{base64.b64encode(data).decode()}",
        alt=alt,
        style=style or ("pixels" if max(height, width) <= 96 else ""),
        width=width,
        height=height,
    )


def inside(evaluation: RunEvaluation | None, checkpoint: Checkpoint, progress: ProgressCallback = silent) -> Inside:
    """Filters, position similarity, attention distance and rollout, as far as the model has them."""
    model = checkpoint.model
    figures: list[Figure] = []
    left_out: list[str] = []
    progress("looking inside", 0, 4)
    for figure in (_filters, _positions):
        try:
            figures.append(figure(model))
        except ConfigError as reason:
            left_out.append(reason.message)
    progress("looking inside", 2, 4)
    images = []
    if evaluation is not None and evaluation.result.per_image is not None:
        images = confident_correct(evaluation, checkpoint, count=_DISTANCE_IMAGES)
    distance, cards = None, tuple[Card, ...]()
    if images:
        try:
            distance = _distance(model, as_batch(images, checkpoint))
        except ConfigError as reason:
            left_out.append(reason.message)
        progress("looking inside", 3, 4)
        if (maps := _rollouts(images[:_CORRECT], checkpoint)) is not None:
            cards = _cards(images[:_CORRECT], maps)
    progress("looking inside", 4, 4)
    return Inside(figures=tuple(figures), distance=distance, cards=cards, left_out=tuple(dict.fromkeys(left_out)))


def _filters(model: torch.nn.Module) -> Figure:
    filters = principal_filters(model, count=28)
    image = embedded_image(filter_tiles(filters), alt="patch embedding filters", style="tiles-image")
    return Figure(caption=f"The first {len(filters)} principal components of the patch embedding (Fig. 7, left)", image=image)


def _positions(model: torch.nn.Module) -> Figure:
    image = embedded_image(position_tiles(position_similarity(model)), alt="position similarity", style="tiles-image")
    return Figure(
        caption="Similarity of each patch's position embedding to all others; yellow: similar (Fig. 7, centre)", image=image
    )


def _distance(model: torch.nn.Module, images_BCHW: torch.Tensor) -> Chart:
    distance_LH = attention_distance(model, images_BCHW)
    layers = [float(layer + 1) for layer, heads in enumerate(distance_LH) for _ in heads]
    means = [float(heads.mean()) for heads in distance_LH]
    values = [float(value) for heads in distance_LH for value in heads]
    drawn = [
        Series(name="one head", x=layers, y=values, style="a faint", line=False, dots=True),
        Series(name="mean of the layer", x=[float(layer + 1) for layer in range(len(means))], y=means, style="b"),
    ]
    title = f"Mean attention distance over {len(images_BCHW)} images (Fig. 7, right)"
    return line_chart(drawn, Axes(x="layer", y="pixels", low=0.0, whole=True), title=title)


def data_section(card: DataCard) -> DataSection:
    """The dataset in short."""
    facts = {
        "dataset": card.dataset,
        "images": ", ".join(f"{name} {count:,}" for name, count in card.splits.items()),
        "classes": f"{len(card.classes):,}",
        "fingerprint": card.fingerprint or "not computed for so many images",
    }
    if any(card.counts):
        facts["images per class"] = f"{min(card.counts):,} to {max(card.counts):,}"
    counted = zip(card.classes, card.counts, strict=True) if any(card.counts) else ()  # masks have pixels of classes
    rows = sorted(counted, key=lambda row: -row[1])[:_MOST_CLASSES]
    more = None if len(card.classes) <= _MOST_CLASSES else f"The {_MOST_CLASSES} largest of {len(card.classes):,} classes."
    return DataSection(facts=facts, classes=tuple(rows), most=max((count for _, count in rows), default=1) or 1, more=more)


def cost_facts(spent: RunCost) -> dict[str, str]:
    """What the run took, in words."""
    return {
        "images seen": f"{spent.images:,}" + ("" if spent.epochs is None else f", {spent.epochs:.1f} epochs"),
        "MACs per image": f"{spent.macs:,} ({short(spent.macs)})",
        "MACs of training": f"about {short(spent.training_macs)}; a backward pass counts as two forward passes",
        "time of updates": f"{spent.seconds:,.1f} s on {spent.cores} core{'s' if spent.cores != 1 else ''}",
        "core-hours": f"{spent.core_hours:.4g}",
        "energy": f"about {spent.watt_hours:.3g} Wh: an estimate that assumes {WATTS_PER_CORE:g} W for a busy core",
    }
