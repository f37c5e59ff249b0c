"""What pre-training gains: model families with and without it, by the number of labels to fine-tune on.

Each family is pre-trained once for each seed. Then it is fine-tuned from there, and trained from scratch, on a few images of each
class. `scaling` varies the images of pre-training instead, as the paper's Figures 3 and 4 do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from vitlab.config.serialize import Json
from vitlab.config.train import Optimizer
from vitlab.errors import ConfigError, at_least
from vitlab.interpretation.drawing import Axis, Line, Style, draw_lines
from vitlab.io.progress import ProgressCallback, silent
from vitlab.studies.fits import difference, percent
from vitlab.studies.packs import StudyImages, few, prepare
from vitlab.studies.protocol import (
    LEARNING_RATES,
    MODELS,
    SHOTS,
    StudyPlan,
    accuracy_of,
    few_shot_of,
    finetuned_job,
    finetuning,
    pretrained_job,
    pretraining,
)
from vitlab.studies.runner import Job, counts_of
from vitlab.studies.study import Results, Study, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Test accuracy, 0 to 1, by the number of labels of each class: a number for each seed."""

    family: str
    pretrained: bool
    shots: tuple[int, ...]
    accuracy: tuple[tuple[float, ...], ...]


def transfer(out: Path, plan: StudyPlan, *, shots: tuple[int, ...], progress: ProgressCallback = silent) -> Study:
    """The study: pre-training of each family and seed, then fine-tuning and training from scratch for each number of labels."""
    if not shots:
        raise ConfigError("shots: at least one number of labels is needed")
    for count in shots:
        at_least("shots", count, 1)
    images = prepare(out, plan.images, progress=progress)
    results = yield tuple(
        job for seed in range(plan.seeds) for family in MODELS for job in _jobs(out, plan, images, family, shots, seed)
    )
    return _verdict(plan, images, shots, results)


def _jobs(out: Path, plan: StudyPlan, images: StudyImages, family: str, shots: tuple[int, ...], seed: int) -> list[Job]:
    model, lr = next(iter(MODELS[family].values())), LEARNING_RATES[family]
    run = pretraining(model, images.pretrain, seen=plan.seen, seed=seed, lr=lr)
    first = pretrained_job(f"{family}-{seed}", f"{family}: pre-train, seed {seed}", run, out, images.transfer)
    made = [first]
    for count in shots:
        data = few(images, shots=count, seed=seed)
        for pretrained in (True, False):
            title = f"{family}, {'pre-trained' if pretrained else 'from scratch'}, {count} labels a class, seed {seed}"
            tuned = finetuning(
                model, data, steps=plan.steps, seed=seed, start=first.out if pretrained else None, optimizer=Optimizer(lr=lr)
            )
            after = (first.name,) if pretrained else ()
            made.append(finetuned_job(_name(family, pretrained, count, seed), title, tuned, out, after=after))
    return made


def _name(family: str, pretrained: bool, shots: int, seed: int) -> str:
    """The name of a fine-tuning run, which is its folder."""
    return f"{family}-{'pretrained' if pretrained else 'scratch'}-{shots}-{seed}"


def _verdict(plan: StudyPlan, images: StudyImages, shots: tuple[int, ...], results: Results) -> Verdict:
    seeds = range(plan.seeds)
    curves = [
        Curve(
            family=family,
            pretrained=pretrained,
            shots=shots,
            accuracy=tuple(
                tuple(accuracy_of(results[_name(family, pretrained, count, seed)], "test") for seed in seeds) for count in shots
            ),
        )
        for family in MODELS
        for pretrained in (True, False)
    ]
    linear = {family: [few_shot_of(results[f"{family}-{seed}"]) for seed in seeds] for family in MODELS}
    rows = [
        {
            "family": curve.family,
            "starts from": "pre-training" if curve.pretrained else "scratch",
            **{f"{count} labels": percent(values) for count, values in zip(curve.shots, curve.accuracy, strict=True)},
            f"{SHOTS}-shot, frozen": percent(linear[curve.family]) if curve.pretrained else "-",
        }
        for curve in curves
    ]
    data: list[Json] = [
        {
            "family": curve.family,
            "pretrained": curve.pretrained,
            "shots": list(curve.shots),
            "accuracy": [list(values) for values in curve.accuracy],
            "few_shot": list(linear[curve.family]) if curve.pretrained else None,
        }
        for curve in curves
    ]
    total = counts_of(results[_name(next(iter(MODELS)), True, shots[0], 0)], "test").total
    gains = [
        f"{pair[0].family} {difference(pair[0].accuracy[0], pair[1].accuracy[0], total=total).text()}"
        for pair in zip(curves[::2], curves[1::2], strict=True)
    ]
    sentence = f"with {shots[0]} labels a class, pre-training gains, in points: {', '.join(gains)}"
    return Verdict(rows=[rows], data=data, sentences=(*images.notes, sentence), plots={"transfer.png": draw_curves(curves)})


def draw_curves(curves: Sequence[Curve]) -> bytes:
    """Accuracy by the number of labels of each class: one colour for each family, dashed from scratch."""
    families = list(dict.fromkeys(curve.family for curve in curves))
    lines = [
        Line(
            name=f"{curve.family}{', pre-trained' if curve.pretrained else ''}",
            x=curve.shots,
            y=[100 * fmean(values) for values in curve.accuracy],
            spread=[(100 * min(values), 100 * max(values)) for values in curve.accuracy] if len(curve.accuracy[0]) > 1 else None,
            dashed=not curve.pretrained,
            like=families.index(curve.family),
        )
        for curve in curves
    ]
    at = sorted({shots for curve in curves for shots in curve.shots})
    x = Axis(name="labels of each class", log=True, at=at)
    return draw_lines(lines, x, Axis(name="test accuracy, %"), Style(), title="Few labels, by family")
