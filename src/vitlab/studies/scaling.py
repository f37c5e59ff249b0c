"""Figures 3, 4 and 5 of the paper in miniature: families x model sizes x pre-training set sizes, several seeds.

Every model is pre-trained on nested random subsets, always for the same number of images in all, so that only the number of
different images changes. The best weights by validation accuracy are kept. 5-shot accuracy on other classes is Figure 4. For
Figure 3, the smaller subsets are also pre-trained with more regularisation, validation chooses, and the model is fine-tuned. On the
largest subset each model is also pre-trained for a quarter of the images: that is Figure 5, accuracy against compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from vitlab.config.serialize import Json
from vitlab.errors import ConfigError, at_least
from vitlab.interpretation.drawing import Axis, Line, Style, draw_lines
from vitlab.io.display import ProgressCallback, silent
from vitlab.models.cost import cost
from vitlab.studies.fits import Cell, Estimate, Fit, crossing, fit, log_ratio, percent
from vitlab.studies.protocol import (
    LEARNING_RATES,
    LIGHT,
    LONG,
    MODELS,
    SHOTS,
    STRONG,
    TINY,
    PackPlan,
    Regularisation,
    StudyImages,
    accuracy_of,
    config_of,
    family_of,
    few_shot_of,
    finetuned_job,
    finetuning,
    for_data,
    prepare,
    pretrained_job,
    pretraining,
    refuse_unknown,
    seen_of,
    subset,
)
from vitlab.studies.study import Job, Results, Study, Verdict, counts_of

_REFERENCE = "ViT"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPlan:
    """The runs of the study.

    `sizes` are numbers of images to pre-train on; `models` are some of `MODELS`, family by family; `seen` the images of each
    pre-training run in all; `steps` the updates of each fine-tuning. Subsets of at most `regularised` images are also pre-trained
    with more regularisation.
    """

    images: PackPlan = field(default_factory=PackPlan)
    sizes: tuple[int, ...] = (1_000, 5_600, 32_000)
    models: tuple[str, ...] = ("ViT 96/8", "ViT 128/8", "hybrid 96", "BiT 128", "BiT 192", "ConvNeXt 48", "LSTM 192")
    seen: int = 24_000
    seeds: int = 3
    steps: int = 60
    regularised: int = 1_000

    def __post_init__(self) -> None:
        for name in ("seen", "seeds", "steps"):
            at_least(name, getattr(self, name), 1)
        if not self.sizes or sorted(set(self.sizes)) != list(self.sizes):
            raise ConfigError(f"sizes={self.sizes} must be different numbers of images, smallest first")
        if not self.models:
            raise ConfigError("models: at least one is needed", hint=f"families are {', '.join(MODELS)}")

    @property
    def families(self) -> tuple[str, ...]:
        """The families of the models."""
        return tuple(dict.fromkeys(map(family_of, self.models)))

    def of_families(self, families: Sequence[str]) -> ScalingPlan:
        """The plan with the models of these families alone."""
        refuse_unknown(families)
        return replace(self, models=tuple(model for model in self.models if family_of(model) in families))


BUDGETS: dict[str, ScalingPlan] = {
    "tiny": ScalingPlan(
        images=TINY,
        sizes=(64, 256),
        models=tuple(next(iter(models)) for models in MODELS.values()),
        seen=256,
        seeds=2,
        steps=4,
        regularised=64,
    ),
    "default": ScalingPlan(),
    "long": ScalingPlan(
        images=LONG,
        sizes=(1_000, 3_200, 10_000, 32_000),
        models=tuple(name for models in MODELS.values() for name in models),
        seen=160_000,
        seeds=5,
        steps=500,
        regularised=10_000,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A model pre-trained on `images` different images, `part` of the usual length: one number for each seed in every tuple.

    `few_shot` is of the run without more regularisation (Fig. 4). The others are of the run that validation chose (Fig. 3, 5).
    """

    model: str
    images: int
    part: float
    few_shot: tuple[float, ...]
    val: tuple[float, ...]
    test: tuple[float, ...]
    finetuned: tuple[float, ...]
    exaflops: tuple[float, ...]
    regularisation: tuple[str, ...]

    @property
    def family(self) -> str:
        """The model's family."""
        return family_of(self.model)


def scaling(out: Path, plan: ScalingPlan, *, progress: ProgressCallback = silent) -> Study:
    """The study: all pre-training runs, then one fine-tuning run for each model, subset and seed."""
    images = prepare(out, plan.images, progress=progress)
    plan = _within(plan, images)
    first = {job.name: job for key in _keys(plan) for job in _pretraining_jobs(out, plan, images, key)}
    results = yield tuple(first.values())
    chosen = {key: _chosen(plan, key, results) for key in _keys(plan)}
    second = [_finetuning_job(out, plan, images, key, first[_name(key, chosen[key])]) for key in _keys(plan)]
    results = yield tuple(second)
    points = _points(plan, images, results, chosen)
    tested = counts_of(results[second[0].name], "test").total
    return _verdict(plan, images, points, tested)


# --- the runs -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """A model, a number of images, a part of the usual length, and a seed."""

    model: str
    images: int
    part: float
    seed: int

    @property
    def title(self) -> str:
        short = "" if self.part == 1 else f", {self.part:g} of the length"
        return f"{self.model}, {self.images:,} images{short}, seed {self.seed}"


def _keys(plan: ScalingPlan) -> list[_Key]:
    """Every run but its regularisation; all of one seed before the next."""
    places = [(images, 1.0) for images in plan.sizes] + [(plan.sizes[-1], 0.25)]
    return [
        _Key(model=model, images=images, part=part, seed=seed)
        for seed in range(plan.seeds)
        for images, part in places
        for model in plan.models
    ]


def _within(plan: ScalingPlan, images: StudyImages) -> ScalingPlan:
    """The plan with the sizes that the data has; the largest becomes the number of its images, if that is smaller."""
    there = images.pretrain.images
    if plan.sizes[-1] <= there:
        return plan
    return replace(plan, sizes=(*(size for size in plan.sizes if size < 0.7 * there), there))


def _regularisations(plan: ScalingPlan, key: _Key) -> tuple[Regularisation, ...]:
    return (LIGHT, STRONG) if key.images <= plan.regularised else (LIGHT,)


def _name(key: _Key, regularisation: Regularisation, *, last: str = "") -> str:
    """The name of a run, which is its folder."""
    model = key.model.replace(" ", "-").replace("/", "-")
    return f"{model}-{key.images}{'' if key.part == 1 else '-short'}-{regularisation.name}-{key.seed}{last}"


def _pretraining_jobs(out: Path, plan: ScalingPlan, images: StudyImages, key: _Key) -> list[Job]:
    data = subset(images, count=key.images, seed=key.seed)
    made = []
    for regularisation in _regularisations(plan, key):
        run = pretraining(
            config_of(key.model),
            data,
            seen=round(plan.seen * key.part),
            seed=key.seed,
            lr=LEARNING_RATES[family_of(key.model)],
            regularisation=regularisation,
        )
        title = key.title if regularisation == LIGHT else f"{key.title}, {regularisation.name} regularisation"
        made.append(pretrained_job(_name(key, regularisation), title, run, out, images.transfer))
    return made


def _chosen(plan: ScalingPlan, key: _Key, results: Results) -> Regularisation:
    """The regularisation with the best validation accuracy."""
    return max(_regularisations(plan, key), key=lambda kind: accuracy_of(results[_name(key, kind)], "val"))


def _finetuning_job(out: Path, plan: ScalingPlan, images: StudyImages, key: _Key, start: Job) -> Job:
    run = finetuning(config_of(key.model), images.transfer, steps=plan.steps, seed=key.seed, start=start.out)
    return finetuned_job(f"{start.name}-finetuned", f"fine-tune {key.title}", run, out)


# --- the verdict --------------------------------------------------------------------------------------------------------------


def _points(plan: ScalingPlan, images: StudyImages, results: Results, chosen: dict[_Key, Regularisation]) -> tuple[Point, ...]:
    made = []
    for first in (key for key in _keys(plan) if key.seed == 0):
        keys = [replace(first, seed=seed) for seed in range(plan.seeds)]
        kept = [results[_name(key, chosen[key])] for key in keys]
        spent = cost(for_data(config_of(first.model), images.pretrain))
        made.append(
            Point(
                model=first.model,
                images=first.images,
                part=first.part,
                few_shot=tuple(few_shot_of(results[_name(key, LIGHT)]) for key in keys),
                val=tuple(accuracy_of(result, "val") for result in kept),
                test=tuple(accuracy_of(result, "test") for result in kept),
                finetuned=tuple(accuracy_of(results[f"{_name(key, chosen[key])}-finetuned"], "test") for key in keys),
                exaflops=tuple(spent.training_exaflops(seen_of(result)) for result in kept),
                regularisation=tuple(chosen[key].name for key in keys),
            )
        )
    return tuple(made)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """A figure of the paper, its measure, and its plot."""

    number: int
    measure: str  # a field of Point
    words: str
    file: str


_FIGURES = (
    _Figure(number=3, measure="finetuned", words="fine-tuned accuracy", file="figure3.png"),
    _Figure(number=4, measure="few_shot", words=f"{SHOTS}-shot accuracy", file="figure4.png"),
)


def _verdict(plan: ScalingPlan, images: StudyImages, points: Sequence[Point], tested: int) -> Verdict:
    whole = [point for point in points if point.part == 1]
    largest = [point for point in points if point.images == plan.sizes[-1]]
    by_images = {
        figure: _fitted({family: _curve(plan, whole, family, figure.measure, tested) for family in plan.families})
        for figure in _FIGURES
        if len(plan.sizes) > 1
    }
    by_compute = _fitted({family: _compute_cells(largest, family, tested) for family in plan.families})
    fits: dict[str, Json] = {f"figure{figure.number}": _by_images_json(plan, lines) for figure, lines in by_images.items()}
    fits["figure5"] = _by_compute_json(largest, by_compute)
    plots = {figure.file: _draw_images(plan, whole, figure) for figure in _FIGURES}
    return Verdict(
        rows=[[_row(point) for point in points], _fit_rows(plan, largest, by_images, by_compute)],
        data={"points": [_json(point) for point in points], "fits": fits},
        sentences=(
            *images.notes,
            *(["one seed: the intervals hold the noise of the test images alone"] if plan.seeds == 1 else []),
            *(_by_images(plan, lines, figure) for figure, lines in by_images.items()),
            _by_compute(plan, largest, by_compute),
        ),
        plots={**plots, "figure5.png": _draw_compute(plan, largest)},
    )


def _fitted(cells: dict[str, list[Cell]]) -> dict[str, Fit]:
    """The line of each family; each has noise of its own."""
    return {family: fit(mine, seed=place) for place, (family, mine) in enumerate(cells.items())}


def _fit_rows(
    plan: ScalingPlan, points: Sequence[Point], by_images: dict[_Figure, dict[str, Fit]], by_compute: dict[str, Fit]
) -> list[dict[str, str]]:
    rows = []
    for family in plan.families:
        row = {"family": family}
        for figure, lines in by_images.items():
            row[f"{figure.words}: points for 10x images"] = lines[family].gain().text()
        row["fine-tuned accuracy: points for 10x compute"] = by_compute[family].gain().text()
        row["compute / ViT's at equal accuracy"] = _ratio_text(points, by_compute, family)
        rows.append(row)
    return rows


def _ratio_text(points: Sequence[Point], lines: dict[str, Fit], family: str) -> str:
    if _REFERENCE not in lines or family == _REFERENCE:
        return "-"
    ratio, accuracy = _ratio(points, lines, family)
    return "-" if ratio is None else f"{_times(ratio).text('.2g')} at {accuracy:.1f} %"


def _curve(plan: ScalingPlan, points: Sequence[Point], family: str, measure: str, tested: int) -> list[Cell]:
    """A family by the number of images: for each subset and seed its model with the best validation accuracy."""
    cells = []
    for images in plan.sizes:
        mine = [point for point in points if point.family == family and point.images == images]
        best = [max(mine, key=lambda point, seed=seed: point.val[seed]) for seed in range(plan.seeds)]  # type: ignore[misc]
        values = tuple(getattr(point, measure)[seed] for seed, point in enumerate(best))
        cells.append(Cell(x=math.log10(images), accuracies=values, total=tested))
    return cells


def _compute_cells(points: Sequence[Point], family: str, tested: int) -> list[Cell]:
    """A family by compute: each of its models, at both lengths."""
    return [
        Cell(x=math.log10(fmean(point.exaflops)), accuracies=point.finetuned, total=tested)
        for point in points
        if point.family == family
    ]


def _by_images(plan: ScalingPlan, lines: dict[str, Fit], figure: _Figure) -> str:
    """One sentence: what the runs show about accuracy against pre-training images, and what they do not."""
    low, high = plan.sizes[0], plan.sizes[-1]
    begin = f"Figure {figure.number} ({figure.words}, {low:,} to {high:,} images)"
    if _REFERENCE not in lines or len(lines) < 2:
        return f"{begin}: there is nothing to compare a ViT with"
    shown, open_ = list[str](), list[str]()
    for family, other in lines.items():
        if family == _REFERENCE:
            continue
        vit, met = lines[_REFERENCE], crossing(lines[_REFERENCE], other)
        first, last = vit.above(other, math.log10(low)), vit.above(other, math.log10(high))
        side = "above" if last.sign > 0 else "below"
        if first.sign * last.sign < 0 and met is not None:
            place = " to ".join(f"{10**value:,.0f}" for value in (met.low, met.high))
            shown.append(f"ViT crosses {family} at about {10**met.value:,.0f} images ({place})")
        elif first.sign * last.sign < 0:
            open_.append(f"where ViT and {family} cross")
        elif first.sign and last.sign:
            shown.append(f"ViT is {side} {family} at every size, by {_from_to(first, last)}")
        elif last.sign:
            shown.append(f"ViT is {side} {family} at the largest size, by {last.text()} points")
        else:
            open_.append(f"whether ViT or {family} is better{' at the largest size' if first.sign else ''}")
    text = f"{begin}: the runs show {'that ' + ', '.join(shown) if shown else 'nothing certain about ViT'}"
    return f"{text}; they do not show {', '.join(open_)}" if open_ else f"{text}; they show nothing beyond {high:,} images"


def _from_to(first: Estimate, last: Estimate) -> str:
    return f"{abs(first.value):.1f} points at first and {abs(last.value):.1f} at last"


def _times(ratio: Estimate) -> Estimate:
    """A distance along log10 as a factor."""
    return Estimate(value=10**ratio.value, low=10**ratio.low, high=10**ratio.high)


def _by_compute(plan: ScalingPlan, points: Sequence[Point], lines: dict[str, Fit]) -> str:
    """One sentence: what the runs show about accuracy against compute, and what they do not."""
    begin = f"Figure 5 (fine-tuned accuracy against compute, {plan.sizes[-1]:,} images)"
    if _REFERENCE not in lines or len(lines) < 2:
        return f"{begin}: there is nothing to compare a ViT with"
    shown, open_ = list[str](), list[str]()
    for family in lines:
        if family == _REFERENCE:
            continue
        ratio, accuracy = _ratio(points, lines, family)
        if ratio is not None and ratio.sign:
            shown.append(f"{family} needs {_times(ratio).text('.2g')} times the compute of ViT for {accuracy:.1f} %")
        elif accuracy is None:
            open_.append(f"{family} (its accuracies do not overlap with ViT's)")
        else:
            open_.append(family)
    text = f"{begin}: the runs show {'that ' + ', '.join(shown) if shown else 'no ratio of compute at equal accuracy'}"
    return f"{text}; they do not show a ratio for {', '.join(open_)}" if open_ else text


def _ratio(points: Sequence[Point], lines: dict[str, Fit], family: str) -> tuple[Estimate | None, float | None]:
    """log10 of the compute of a family over a ViT's, at the middle of the accuracies that both reach; None if there is none."""
    ends = []
    for name in (_REFERENCE, family):
        places = [math.log10(fmean(point.exaflops)) for point in points if point.family == name]
        ends.append(sorted((lines[name].at(min(places)), lines[name].at(max(places)))))
    low, high = max(low for low, _ in ends), min(high for _, high in ends)
    if low > high:
        return None, None
    accuracy = (low + high) / 2
    return log_ratio(lines[_REFERENCE], lines[family], accuracy=accuracy), accuracy


def _by_images_json(plan: ScalingPlan, lines: dict[str, Fit]) -> Json:
    found: dict[str, Json] = {}
    for family, line in lines.items():
        row: dict[str, Json] = {"points_per_tenfold": line.gain().to_json()}
        if family != _REFERENCE and _REFERENCE in lines:
            met = crossing(lines[_REFERENCE], line)
            row["vit_above_at_first"] = lines[_REFERENCE].above(line, math.log10(plan.sizes[0])).to_json()
            row["vit_above_at_last"] = lines[_REFERENCE].above(line, math.log10(plan.sizes[-1])).to_json()
            row["crossing_log10_images"] = None if met is None else met.to_json()
        found[family] = row
    return found


def _by_compute_json(points: Sequence[Point], lines: dict[str, Fit]) -> Json:
    found: dict[str, Json] = {}
    for family, line in lines.items():
        row: dict[str, Json] = {"points_per_tenfold": line.gain().to_json()}
        if family != _REFERENCE and _REFERENCE in lines:
            ratio, accuracy = _ratio(points, lines, family)
            row |= {"accuracy": accuracy, "log10_compute_over_vit": None if ratio is None else ratio.to_json()}
        found[family] = row
    return found


def _row(point: Point) -> dict[str, str]:
    return {
        "model": point.model,
        "images": f"{point.images:,}",
        "exaFLOPs": f"{fmean(point.exaflops):.2g}",
        "test": percent(point.test),
        f"{SHOTS}-shot": percent(point.few_shot),
        "fine-tuned": percent(point.finetuned),
    }


def _json(point: Point) -> Json:
    return {
        "model": point.model,
        "family": point.family,
        "images": point.images,
        "part": point.part,
        "few_shot": list(point.few_shot),
        "val": list(point.val),
        "test": list(point.test),
        "finetuned": list(point.finetuned),
        "exaflops": list(point.exaflops),
        "regularisation": list(point.regularisation),
    }


def _draw_images(plan: ScalingPlan, points: Sequence[Point], figure: _Figure) -> bytes:
    lines = []
    for model in plan.models:
        mine = [point for point in points if point.model == model]
        values = [getattr(point, figure.measure) for point in mine]
        lines.append(_line(model, plan, [point.images for point in mine], values))
    x = Axis(name="images to pre-train on", log=True, at=plan.sizes)
    return draw_lines(lines, x, Axis(name=f"{figure.words}, %"), Style(), title=f"Figure {figure.number} in miniature")


def _draw_compute(plan: ScalingPlan, points: Sequence[Point]) -> bytes:
    lines = []
    for model in plan.models:
        mine = sorted((point for point in points if point.model == model), key=lambda point: fmean(point.exaflops))
        lines.append(_line(model, plan, [fmean(point.exaflops) for point in mine], [point.finetuned for point in mine]))
    x = Axis(name="exaFLOPs of pre-training", log=True)
    return draw_lines(lines, x, Axis(name="fine-tuned accuracy, %"), Style(), title="Figure 5 in miniature")


def _line(model: str, plan: ScalingPlan, x: Sequence[float], values: Sequence[Sequence[float]]) -> Line:
    """One colour for each family; its larger models are dashed. The band is from the lowest to the highest seed."""
    family = family_of(model)
    return Line(
        name=model,
        x=x,
        y=[100 * fmean(row) for row in values],
        spread=[(100 * min(row), 100 * max(row)) for row in values] if plan.seeds > 1 else None,
        dashed=model != next(iter(MODELS[family])),
        like=plan.families.index(family),
    )
