"""The shape of a ViT, all variants at equal compute: Figures 8, 9 and 13 of the paper in miniature.

The base is Figure 8's in small: an MLP of twice the width, a class token. Each variant changes one thing. Its pre-training sees as
many images as the compute of the base allows: a variant that costs half sees twice as many.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from vitlab.config.serialize import Json
from vitlab.config.vit import ViTConfig
from vitlab.interpretation.drawing import DotRow, Style, draw_dots
from vitlab.io.progress import ProgressCallback, silent
from vitlab.models.cost import cost
from vitlab.studies.fits import difference, percent
from vitlab.studies.packs import StudyImages, prepare
from vitlab.studies.protocol import (
    LEARNING_RATES,
    SHOTS,
    StudyPlan,
    accuracy_of,
    few_shot_of,
    for_data,
    pretrained_job,
    pretraining,
    seeds_panel,
    vit,
)
from vitlab.studies.runner import Job, counts_of
from vitlab.studies.study import Results, Study, Verdict

BASE = replace(vit(96, 4, 3), mlp_width=192, pool="token", class_token=True)
_FINE = replace(BASE, patch_size=(4, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A ViT that differs from the base in one `group` of settings, or in two where it says so."""

    name: str
    group: str
    model: ViTConfig


VARIANTS: tuple[Variant, ...] = (
    Variant(name="base: depth 4, width 96, MLP 192, patch 8", group="base", model=BASE),
    Variant(name="depth 2", group="depth", model=replace(BASE, depth=2)),
    Variant(name="depth 8", group="depth", model=replace(BASE, depth=8)),
    Variant(name="width 48", group="width", model=replace(BASE, width=48)),
    Variant(name="width 192", group="width", model=replace(BASE, width=192)),
    Variant(name="MLP width 96", group="MLP width", model=replace(BASE, mlp_width=96)),
    Variant(name="MLP width 768", group="MLP width", model=replace(BASE, mlp_width=768)),
    Variant(name="patch 16", group="patch size", model=replace(BASE, patch_size=(16, 16))),
    Variant(name="patch 4", group="patch size", model=_FINE),
    Variant(name="patch 4x16", group="patch aspect ratio", model=replace(BASE, patch_size=(4, 16))),
    Variant(name="patch 16x4", group="patch aspect ratio", model=replace(BASE, patch_size=(16, 4))),
    Variant(name="mean of the patches", group="pooling", model=replace(BASE, pool="mean", class_token=False)),
    Variant(name="local attention at patch 4", group="attention", model=replace(_FINE, attention="local", window=3)),
    Variant(name="axial attention at patch 4", group="attention", model=replace(_FINE, attention="axial")),
)
_AGAINST = {"attention": "patch 4"}  # the variant that a group is compared with, if it is not the base


def shape(out: Path, plan: StudyPlan, *, progress: ProgressCallback = silent) -> Study:
    """The study: every variant and seed, then each against the base."""
    images = prepare(out, plan.images, progress=progress)
    results = yield tuple(_job(out, plan, images, variant, seed) for seed in range(plan.seeds) for variant in VARIANTS)
    return _verdict(plan, images, results)


def seen_by(variant: Variant, plan: StudyPlan) -> int:
    """The images that a variant sees for the compute of the base."""
    return round(plan.seen * cost(BASE).macs / cost(variant.model).macs)


def _job(out: Path, plan: StudyPlan, images: StudyImages, variant: Variant, seed: int) -> Job:
    run = pretraining(variant.model, images.pretrain, seen=seen_by(variant, plan), seed=seed, lr=LEARNING_RATES["ViT"])
    run = replace(run, train=replace(run.train, patience=run.train.steps))  # the whole of the compute; the best weights are kept
    return pretrained_job(_name(variant, seed), f"{variant.name}, seed {seed}", run, out, images.transfer)


def _name(variant: Variant, seed: int) -> str:
    word = variant.group if variant.group == "base" else variant.name.replace(" ", "-").replace(",", "")
    return f"{word}-{seed}"


def _verdict(plan: StudyPlan, images: StudyImages, results: Results) -> Verdict:
    few_shot = {variant.name: _each(plan, results, variant, "few_shot") for variant in VARIANTS}
    test = {variant.name: _each(plan, results, variant, "test") for variant in VARIANTS}
    total = counts_of(results[_name(VARIANTS[0], 0)], "test").total
    rows, data = [], list[Json]()
    better, worse, undecided = list[str](), list[str](), list[str]()
    for variant in VARIANTS:
        against = _AGAINST.get(variant.group, VARIANTS[0].name)
        gain = difference(few_shot[variant.name], few_shot[against], total=total)
        spent = cost(for_data(variant.model, images.pretrain))
        alone = variant.group == "base"
        if not alone:
            (better if gain.sign > 0 else worse if gain.sign < 0 else undecided).append(variant.name)
        rows.append(
            {
                "variant": variant.name,
                "parameters": f"{spent.parameters:,}",
                "MMACs": f"{spent.macs / 1e6:.1f}",
                "images seen": f"{seen_by(variant, plan):,}",
                f"{SHOTS}-shot": percent(few_shot[variant.name]),
                "test": percent(test[variant.name]),
                "points above": "-" if alone else f"{gain.text()} {'patch 4' if variant.group in _AGAINST else 'base'}",
            }
        )
        data.append(
            {
                "variant": variant.name,
                "group": variant.group,
                "parameters": spent.parameters,
                "macs": spent.macs,
                "images_seen": seen_by(variant, plan),
                "few_shot": list(few_shot[variant.name]),
                "test": list(test[variant.name]),
                "against": None if alone else against,
                "gain": None if alone else gain.to_json(),
            }
        )
    sentence = (
        f"at equal compute, {SHOTS}-shot accuracy is higher with {_listed(better)}, lower with {_listed(worse)}, "
        f"and not decided with {_listed(undecided)}"
    )
    return Verdict(rows=[rows], data=data, sentences=(*images.notes, sentence), plots={"shape.png": _draw(plan, few_shot, test)})


def _each(plan: StudyPlan, results: Results, variant: Variant, measure: str) -> tuple[float, ...]:
    found = (results[_name(variant, seed)] for seed in range(plan.seeds))
    return tuple(few_shot_of(result) if measure == "few_shot" else accuracy_of(result, measure) for result in found)


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _draw(plan: StudyPlan, few_shot: dict[str, tuple[float, ...]], test: dict[str, tuple[float, ...]]) -> bytes:
    groups = list(dict.fromkeys(variant.group for variant in VARIANTS))
    rows = [DotRow(name=variant.name, group=groups.index(variant.group)) for variant in VARIANTS]
    measures = ((f"{SHOTS}-shot accuracy, %", few_shot), ("test accuracy, %", test))
    return draw_dots(rows, [seeds_panel(axis, [values[row.name] for row in rows]) for axis, values in measures], Style())
