"""The paper's ablations in miniature: positions, shape, optimizer, self-supervision.

Each is a study of its own: a generator of runs that differ in one thing and are otherwise trained alike, and its verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from vitlab.config.published import TABLE_7, TABLE_8
from vitlab.config.serialize import Json
from vitlab.config.train import Masked
from vitlab.config.vit import Position, PositionKind, PositionPlace, ViTConfig
from vitlab.interpretation.drawing import DotRow, Panel, Style, draw_dots
from vitlab.io.display import ProgressCallback, silent
from vitlab.models.cost import cost
from vitlab.studies.fits import difference, percent
from vitlab.studies.protocol import (
    BATCH,
    LEARNING_RATES,
    SHOTS,
    StudyImages,
    StudyPlan,
    accuracy_of,
    config_of,
    few_shot_of,
    finetuned_job,
    finetuning,
    for_data,
    prepare,
    pretrained_job,
    pretraining,
    seeds_panel,
    vit,
)
from vitlab.studies.study import Job, Results, Study, Verdict, counts_of

# --- position embeddings ------------------------------------------------------------------------------------------------------
# Table 8 of the paper in miniature: every position embedding at every place in a ViT, all trained alike.

POSITION_KINDS: tuple[PositionKind, ...] = ("none", "learned-1d", "learned-2d", "relative")
POSITION_PLACES: tuple[PositionPlace, ...] = ("stem", "every", "shared")
KIND_WORDS: dict[PositionKind, str] = {"none": "none", "learned-1d": "1-D", "learned-2d": "2-D", "relative": "relative"}
PLACE_WORDS: dict[PositionPlace, str] = {"stem": "at the stem", "every": "at every layer", "shared": "every layer, shared"}

CELLS: tuple[tuple[PositionKind, PositionPlace], ...] = tuple(
    (kind, place) for kind in POSITION_KINDS for place in POSITION_PLACES if kind != "none" or place == "stem"
)
_POSITIONS_MODEL = vit(96, 3, 3)
_DEFAULT_POSITION: tuple[PositionKind, PositionPlace] = ("learned-1d", "stem")


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionCell:
    """One position embedding: 5-shot and test accuracy, 0 to 1, for each seed; `published` is the paper's percentage, if any."""

    kind: PositionKind
    place: PositionPlace
    few_shot: tuple[float, ...]
    test: tuple[float, ...]
    published: float | None

    @property
    def title(self) -> str:
        """Its name in the plot."""
        return KIND_WORDS[self.kind] if self.kind == "none" else f"{KIND_WORDS[self.kind]}, {PLACE_WORDS[self.place]}"


def positions(out: Path, plan: StudyPlan, *, progress: ProgressCallback = silent) -> Study:
    """The study: one run for each position embedding and seed."""
    images = prepare(out, plan.images, progress=progress)
    results = yield tuple(
        _position_job(out, plan, images, kind, place, seed) for seed in range(plan.seeds) for kind, place in CELLS
    )
    cells = [
        PositionCell(
            kind=kind,
            place=place,
            few_shot=tuple(few_shot_of(results[_position_name(kind, place, seed)]) for seed in range(plan.seeds)),
            test=tuple(accuracy_of(results[_position_name(kind, place, seed)], "test") for seed in range(plan.seeds)),
            published=TABLE_8.get((kind, place)),
        )
        for kind, place in CELLS
    ]
    return _positions_verdict(images, cells, counts_of(results[_position_name(*CELLS[0], 0)], "test").total)


def _position_name(kind: PositionKind, place: PositionPlace, seed: int) -> str:
    return f"{kind}-{place}-{seed}"


def _position_job(out: Path, plan: StudyPlan, images: StudyImages, kind: PositionKind, place: PositionPlace, seed: int) -> Job:
    model = replace(_POSITIONS_MODEL, position=Position(kind=kind, place=place, prefix=False))
    run = pretraining(model, images.pretrain, seen=plan.seen, seed=seed, lr=LEARNING_RATES["ViT"])
    return pretrained_job(_position_name(kind, place, seed), f"{kind}, {place}, seed {seed}", run, out, images.transfer)


def _positions_verdict(images: StudyImages, cells: list[PositionCell], total: int) -> Verdict:
    by_place = {(cell.kind, cell.place): cell for cell in cells}
    rows = [
        {"positions": words, **{head: _cell_text(by_place.get((kind, place))) for place, head in PLACE_WORDS.items()}}
        for kind, words in KIND_WORDS.items()
    ]
    data: list[Json] = [
        {
            "kind": cell.kind,
            "place": cell.place,
            "few_shot": list(cell.few_shot),
            "test": list(cell.test),
            "published": cell.published,
        }
        for cell in cells
    ]
    sentences = [*images.notes, f"{SHOTS}-shot accuracy; in brackets the paper's ViT-B/16 on ImageNet, {SHOTS}-shot linear"]
    if {("none", "stem"), _DEFAULT_POSITION} <= set(by_place):
        gain = difference(by_place[_DEFAULT_POSITION].few_shot, by_place["none", "stem"].few_shot, total=total)
        sentences.append(f"1-D positions at the stem are {gain.points()} none")
    others = [fmean(cell.few_shot) for cell in cells if cell.kind != "none"]
    if len(others) > 1:
        sentences.append(f"all kinds and places of positions are within {100 * (max(others) - min(others)):.1f} points")
    return Verdict(rows=[rows], data=data, sentences=sentences, plots={"positions.png": draw_cells(cells)})


def _cell_text(cell: PositionCell | None) -> str:
    if cell is None:
        return "-"
    return percent(cell.few_shot) if cell.published is None else f"{percent(cell.few_shot)} [{cell.published:.1f}]"


def draw_cells(cells: list[PositionCell]) -> bytes:
    """Accuracy of each position embedding, with its deviation between seeds; beside it the paper's."""
    kinds = list(dict.fromkeys(cell.kind for cell in cells))
    rows = [DotRow(name=cell.title, group=kinds.index(cell.kind)) for cell in cells]
    paper = Panel(
        axis="ImageNet, 5-shot linear, %",
        title="The paper's ViT-B/16 (Table 8)",
        values=[cell.published for cell in cells],
        missing="not in the table",
    )
    return draw_dots(rows, (seeds_panel(f"{SHOTS}-shot accuracy, %", [cell.few_shot for cell in cells]), paper), Style())


# --- shape --------------------------------------------------------------------------------------------------------------------
# The shape of a ViT, all variants at equal compute: Figures 8, 9 and 13 of the paper in miniature.
# The base is Figure 8's in small: an MLP of twice the width, a class token. Each variant changes one thing. Its pre-training
# sees as many images as the compute of the base allows: a variant that costs half sees twice as many.

BASE = replace(vit(96, 4, 3), mlp_width=192, pool="token", class_token=True)
_FINE_PATCHES = replace(BASE, patch_size=(4, 4))


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
    Variant(name="patch 4", group="patch size", model=_FINE_PATCHES),
    Variant(name="patch 4x16", group="patch aspect ratio", model=replace(BASE, patch_size=(4, 16))),
    Variant(name="patch 16x4", group="patch aspect ratio", model=replace(BASE, patch_size=(16, 4))),
    Variant(name="mean of the patches", group="pooling", model=replace(BASE, pool="mean", class_token=False)),
    Variant(name="local attention at patch 4", group="attention", model=replace(_FINE_PATCHES, attention="local", window=3)),
    Variant(name="axial attention at patch 4", group="attention", model=replace(_FINE_PATCHES, attention="axial")),
)
_AGAINST = {"attention": "patch 4"}  # the variant that a group is compared with, if it is not the base


def shape(out: Path, plan: StudyPlan, *, progress: ProgressCallback = silent) -> Study:
    """The study: every variant and seed, then each against the base."""
    images = prepare(out, plan.images, progress=progress)
    results = yield tuple(_variant_job(out, plan, images, variant, seed) for seed in range(plan.seeds) for variant in VARIANTS)
    return _shape_verdict(plan, images, results)


def seen_by(variant: Variant, plan: StudyPlan) -> int:
    """The images that a variant sees for the compute of the base."""
    return round(plan.seen * cost(BASE).macs / cost(variant.model).macs)


def _variant_job(out: Path, plan: StudyPlan, images: StudyImages, variant: Variant, seed: int) -> Job:
    run = pretraining(variant.model, images.pretrain, seen=seen_by(variant, plan), seed=seed, lr=LEARNING_RATES["ViT"])
    run = replace(run, train=replace(run.train, patience=run.train.steps))  # the whole of the compute; the best weights are kept
    return pretrained_job(_variant_name(variant, seed), f"{variant.name}, seed {seed}", run, out, images.transfer)


def _variant_name(variant: Variant, seed: int) -> str:
    word = variant.group if variant.group == "base" else variant.name.replace(" ", "-").replace(",", "")
    return f"{word}-{seed}"


def _shape_verdict(plan: StudyPlan, images: StudyImages, results: Results) -> Verdict:
    few_shot = {variant.name: _each(plan, results, variant, "few_shot") for variant in VARIANTS}
    test = {variant.name: _each(plan, results, variant, "test") for variant in VARIANTS}
    total = counts_of(results[_variant_name(VARIANTS[0], 0)], "test").total
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
    return Verdict(
        rows=[rows], data=data, sentences=(*images.notes, sentence), plots={"shape.png": _draw_shape(plan, few_shot, test)}
    )


def _each(plan: StudyPlan, results: Results, variant: Variant, measure: str) -> tuple[float, ...]:
    found = (results[_variant_name(variant, seed)] for seed in range(plan.seeds))
    return tuple(few_shot_of(result) if measure == "few_shot" else accuracy_of(result, measure) for result in found)


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _draw_shape(plan: StudyPlan, few_shot: dict[str, tuple[float, ...]], test: dict[str, tuple[float, ...]]) -> bytes:
    groups = list(dict.fromkeys(variant.group for variant in VARIANTS))
    rows = [DotRow(name=variant.name, group=groups.index(variant.group)) for variant in VARIANTS]
    measures = ((f"{SHOTS}-shot accuracy, %", few_shot), ("test accuracy, %", test))
    return draw_dots(rows, [seeds_panel(axis, [values[row.name] for row in rows]) for axis, values in measures], Style())


# --- optimizer ----------------------------------------------------------------------------------------------------------------
# Table 7 of the paper in miniature: Adam against SGD for pre-training a ResNet.
# Each optimizer first tries three learning rates with one seed; the best on the validation split is used for all seeds. Then the
# models are evaluated with 5 labels a class on other images, and fine-tuned there.

OPTIMIZER_MODELS = ("BiT 128", "BiT 192")
OptimizerKind = Literal["adamw", "sgd"]
OPTIMIZER_RATES: dict[OptimizerKind, tuple[float, ...]] = {"adamw": (7e-4, 2e-3, 6e-3), "sgd": (0.01, 0.03, 0.1)}
_OPTIMIZER_WORDS: dict[OptimizerKind, str] = {"adamw": "Adam", "sgd": "SGD"}


@dataclass(frozen=True, slots=True)
class _OptimizerKey:
    model: str
    kind: OptimizerKind


_OPTIMIZER_KEYS = tuple(_OptimizerKey(model, kind) for model in OPTIMIZER_MODELS for kind in OPTIMIZER_RATES)


def optimizer(out: Path, plan: StudyPlan, *, progress: ProgressCallback = silent) -> Study:
    """The study: learning rates, seeds, fine-tuning."""
    images = prepare(out, plan.images, progress=progress)
    results = yield tuple(
        _optimizer_job(out, plan, images, key, lr, 0) for key in _OPTIMIZER_KEYS for lr in OPTIMIZER_RATES[key.kind]
    )
    chosen = {
        key: max(OPTIMIZER_RATES[key.kind], key=lambda lr: accuracy_of(results[_optimizer_name(key, lr, 0)], "val"))
        for key in _OPTIMIZER_KEYS
    }
    first = [_optimizer_job(out, plan, images, key, chosen[key], seed) for seed in range(plan.seeds) for key in _OPTIMIZER_KEYS]
    results = yield tuple(first)
    results = yield tuple(
        finetuned_job(
            f"{job.name}-finetuned",
            f"fine-tune {job.title}",
            finetuning(job.run.model, images.transfer, steps=plan.steps, seed=job.run.train.seed, start=job.out),
            out,
        )
        for job in first
    )
    return _optimizer_verdict(plan, images, chosen, results)


def _optimizer_name(key: _OptimizerKey, lr: float, seed: int) -> str:
    return f"{key.model.replace(' ', '-')}-{key.kind}-{lr:g}-{seed}"


def _optimizer_job(out: Path, plan: StudyPlan, images: StudyImages, key: _OptimizerKey, lr: float, seed: int) -> Job:
    run = pretraining(config_of(key.model), images.pretrain, seen=plan.seen, seed=seed, lr=lr, optimizer=key.kind)
    return pretrained_job(
        _optimizer_name(key, lr, seed),
        f"{key.model}, {_OPTIMIZER_WORDS[key.kind]}, lr {lr:g}, seed {seed}",
        run,
        out,
        images.transfer,
    )


def _optimizer_verdict(plan: StudyPlan, images: StudyImages, chosen: dict[_OptimizerKey, float], results: Results) -> Verdict:
    few_shot, test, finetuned = (
        dict[_OptimizerKey, list[float]](),
        dict[_OptimizerKey, list[float]](),
        dict[_OptimizerKey, list[float]](),
    )
    for key, lr in chosen.items():
        names = [_optimizer_name(key, lr, seed) for seed in range(plan.seeds)]
        few_shot[key] = [few_shot_of(results[name]) for name in names]
        test[key] = [accuracy_of(results[name], "test") for name in names]
        finetuned[key] = [accuracy_of(results[f"{name}-finetuned"], "test") for name in names]
    rows = [
        {
            "model": key.model,
            "optimizer": _OPTIMIZER_WORDS[key.kind],
            "lr": f"{lr:g}",
            "test": percent(test[key]),
            f"{SHOTS}-shot": percent(few_shot[key]),
            "fine-tuned": percent(finetuned[key]),
        }
        for key, lr in chosen.items()
    ]
    data: list[Json] = [
        {
            "model": key.model,
            "optimizer": key.kind,
            "lr": lr,
            "test": list(test[key]),
            "few_shot": list(few_shot[key]),
            "finetuned": list(finetuned[key]),
        }
        for key, lr in chosen.items()
    ]
    total = counts_of(results[f"{_optimizer_name(_OPTIMIZER_KEYS[0], chosen[_OPTIMIZER_KEYS[0]], 0)}-finetuned"], "test").total
    published = ", ".join(f"{row.model} with {row.optimizer} {row.average:g} %" for row in TABLE_7)
    sentences = [
        *images.notes,
        *(_compared_optimizers(model, finetuned, few_shot, total) for model in OPTIMIZER_MODELS),
        f"the paper (Table 7, JFT-300M, mean of five datasets after fine-tuning): {published}",
    ]
    drawn = [DotRow(name=f"{key.model}, {_OPTIMIZER_WORDS[key.kind]}", group=OPTIMIZER_MODELS.index(key.model)) for key in chosen]
    panels = [
        seeds_panel(f"{SHOTS}-shot accuracy, %", [few_shot[key] for key in chosen]),
        seeds_panel("fine-tuned accuracy, %", [finetuned[key] for key in chosen]),
    ]
    return Verdict(rows=[rows], data=data, sentences=sentences, plots={"optimizer.png": draw_dots(drawn, panels, Style())})


def _compared_optimizers(
    model: str, finetuned: dict[_OptimizerKey, list[float]], few_shot: dict[_OptimizerKey, list[float]], total: int
) -> str:
    adam, sgd = _OptimizerKey(model, "adamw"), _OptimizerKey(model, "sgd")
    parts = []
    for words, values in (("fine-tuned", finetuned), (f"{SHOTS}-shot", few_shot)):
        gain = difference(values[adam], values[sgd], total=total)
        parts.append(f"{words} {gain.points()} SGD{'' if gain.sign else ', which is not decided'}")
    return f"{model} with Adam is {'; '.join(parts)}"


# --- self-supervision ---------------------------------------------------------------------------------------------------------
# Section 4.6 of the paper in miniature: masked patch prediction against supervised pre-training and training from scratch.
# A ViT is pre-trained without labels (app. B.1.2) or with them on as many images, and fine-tuned on other images. From scratch,
# it is trained on these other images alone, for the compute of both.

SELF_SUPERVISED_MODEL = "ViT 128/8"
STARTS = ("masked", "supervised", "scratch")
_START_WORDS = {"masked": "masked patch prediction", "supervised": "supervised", "scratch": "from scratch"}


def self_supervision(out: Path, plan: StudyPlan, *, progress: ProgressCallback = silent) -> Study:
    """The study: for each seed both kinds of pre-training, fine-tuned, and training from scratch."""
    images = prepare(out, plan.images, progress=progress)
    first = [_start_job(out, plan, images, start, seed) for seed in range(plan.seeds) for start in STARTS]
    second = [
        finetuned_job(
            f"{job.name}-finetuned",
            f"fine-tune {job.title}",
            finetuning(job.run.model, images.transfer, steps=plan.steps, seed=job.run.train.seed, start=job.out),
            out,
            after=(job.name,),
        )
        for job in first
        if not job.name.startswith("scratch")
    ]
    results = yield (*first, *second)
    return _self_supervision_verdict(plan, images, results)


def _start_job(out: Path, plan: StudyPlan, images: StudyImages, start: str, seed: int) -> Job:
    """Pre-training, or training from scratch on the images to transfer to for the compute of pre-training and fine-tuning."""
    name, title = f"{start}-{seed}", f"{_START_WORDS[start]}, seed {seed}"
    lr, model = LEARNING_RATES["ViT"], config_of(SELF_SUPERVISED_MODEL)
    if start == "scratch":
        seen = plan.seen + plan.steps * min(BATCH, images.transfer.images)
        return finetuned_job(name, title, pretraining(model, images.transfer, seen=seen, seed=seed, lr=lr), out)
    masked = None
    if start == "masked":
        masked = Masked(target="mean-colour" if images.pretrain.channels == 3 else "pixels")
    run = pretraining(model, images.pretrain, seen=plan.seen, seed=seed, lr=lr, masked=masked)
    if masked is None:
        run = replace(run, train=replace(run.train, patience=run.train.steps))  # all of the compute
    return pretrained_job(name, title, run, out, images.transfer)


def _self_supervision_verdict(plan: StudyPlan, images: StudyImages, results: Results) -> Verdict:
    seeds = range(plan.seeds)
    few_shot = {start: [few_shot_of(results[f"{start}-{seed}"]) for seed in seeds] for start in STARTS if start != "scratch"}
    ends = {start: "" if start == "scratch" else "-finetuned" for start in STARTS}
    tested = {start: [accuracy_of(results[f"{start}-{seed}{ends[start]}"], "test") for seed in seeds] for start in STARTS}
    total = counts_of(results["scratch-0"], "test").total
    rows = [
        {
            "pre-training": _START_WORDS[start],
            f"{SHOTS}-shot": percent(few_shot[start]) if start in few_shot else "-",
            "fine-tuned": percent(tested[start]),
        }
        for start in STARTS
    ]
    data: list[Json] = [
        {"start": start, "few_shot": list(few_shot.get(start, [])), "finetuned": list(tested[start])} for start in STARTS
    ]
    gains = [
        f"{difference(tested['masked'], tested[other], total=total).points()} {words}"
        for other, words in (("scratch", "training from scratch"), ("supervised", "supervised pre-training"))
    ]
    sentences = (
        *images.notes,
        f"at equal compute, masked patch prediction is {' and '.join(gains)} after fine-tuning",
        "the paper's ViT-B/16 is 2 points above training from scratch and 4 below supervised pre-training (79.9 % on ImageNet)",
    )
    drawn = [DotRow(name=_START_WORDS[start], group=place) for place, start in enumerate(STARTS)]
    panels = [seeds_panel("fine-tuned accuracy, %", [tested[start] for start in STARTS])]
    return Verdict(rows=[rows], data=data, sentences=sentences, plots={"self-supervision.png": draw_dots(drawn, panels, Style())})
