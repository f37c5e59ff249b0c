"""Table 7 of the paper in miniature: Adam against SGD for pre-training a ResNet.

Each optimizer first tries three learning rates with one seed; the best on the validation split is used for all seeds. Then the
models are evaluated with 5 labels a class on other images, and fine-tuned there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitlab.config.paper_tables import TABLE_7
from vitlab.config.serialize import Json
from vitlab.interpretation.drawing import DotRow, Style, draw_dots
from vitlab.io.progress import ProgressCallback, silent
from vitlab.studies.fits import difference, percent
from vitlab.studies.packs import StudyImages, prepare
from vitlab.studies.protocol import (
    SHOTS,
    StudyPlan,
    accuracy_of,
    config_of,
    few_shot_of,
    finetuned_job,
    finetuning,
    pretrained_job,
    pretraining,
    seeds_panel,
)
from vitlab.studies.runner import Job, counts_of
from vitlab.studies.study import Results, Study, Verdict

MODELS = ("BiT 128", "BiT 192")
Kind = Literal["adamw", "sgd"]
LEARNING_RATES: dict[Kind, tuple[float, ...]] = {"adamw": (7e-4, 2e-3, 6e-3), "sgd": (0.01, 0.03, 0.1)}
_WORDS: dict[Kind, str] = {"adamw": "Adam", "sgd": "SGD"}


@dataclass(frozen=True, slots=True)
class _Key:
    model: str
    kind: Kind


_KEYS = tuple(_Key(model, kind) for model in MODELS for kind in LEARNING_RATES)


def optimizer(out: Path, plan: StudyPlan, *, progress: ProgressCallback = silent) -> Study:
    """The study: learning rates, seeds, fine-tuning."""
    images = prepare(out, plan.images, progress=progress)
    results = yield tuple(_job(out, plan, images, key, lr, 0) for key in _KEYS for lr in LEARNING_RATES[key.kind])
    chosen = {key: max(LEARNING_RATES[key.kind], key=lambda lr: accuracy_of(results[_name(key, lr, 0)], "val")) for key in _KEYS}
    first = [_job(out, plan, images, key, chosen[key], seed) for seed in range(plan.seeds) for key in _KEYS]
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
    return _verdict(plan, images, chosen, results)


def _name(key: _Key, lr: float, seed: int) -> str:
    return f"{key.model.replace(' ', '-')}-{key.kind}-{lr:g}-{seed}"


def _job(out: Path, plan: StudyPlan, images: StudyImages, key: _Key, lr: float, seed: int) -> Job:
    run = pretraining(config_of(key.model), images.pretrain, seen=plan.seen, seed=seed, lr=lr, optimizer=key.kind)
    return pretrained_job(
        _name(key, lr, seed), f"{key.model}, {_WORDS[key.kind]}, lr {lr:g}, seed {seed}", run, out, images.transfer
    )


def _verdict(plan: StudyPlan, images: StudyImages, chosen: dict[_Key, float], results: Results) -> Verdict:
    few_shot, test, finetuned = dict[_Key, list[float]](), dict[_Key, list[float]](), dict[_Key, list[float]]()
    for key, lr in chosen.items():
        names = [_name(key, lr, seed) for seed in range(plan.seeds)]
        few_shot[key] = [few_shot_of(results[name]) for name in names]
        test[key] = [accuracy_of(results[name], "test") for name in names]
        finetuned[key] = [accuracy_of(results[f"{name}-finetuned"], "test") for name in names]
    rows = [
        {
            "model": key.model,
            "optimizer": _WORDS[key.kind],
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
    total = counts_of(results[f"{_name(_KEYS[0], chosen[_KEYS[0]], 0)}-finetuned"], "test").total
    published = ", ".join(f"{row.model} with {row.optimizer} {row.average:g} %" for row in TABLE_7)
    sentences = [
        *images.notes,
        *(_compared(model, finetuned, few_shot, total) for model in MODELS),
        f"the paper (Table 7, JFT-300M, mean of five datasets after fine-tuning): {published}",
    ]
    drawn = [DotRow(name=f"{key.model}, {_WORDS[key.kind]}", group=MODELS.index(key.model)) for key in chosen]
    panels = [
        seeds_panel(f"{SHOTS}-shot accuracy, %", [few_shot[key] for key in chosen]),
        seeds_panel("fine-tuned accuracy, %", [finetuned[key] for key in chosen]),
    ]
    return Verdict(rows=[rows], data=data, sentences=sentences, plots={"optimizer.png": draw_dots(drawn, panels, Style())})


def _compared(model: str, finetuned: dict[_Key, list[float]], few_shot: dict[_Key, list[float]], total: int) -> str:
    adam, sgd = _Key(model, "adamw"), _Key(model, "sgd")
    parts = []
    for words, values in (("fine-tuned", finetuned), (f"{SHOTS}-shot", few_shot)):
        gain = difference(values[adam], values[sgd], total=total)
        parts.append(f"{words} {gain.points()} SGD{'' if gain.sign else ', which is not decided'}")
    return f"{model} with Adam is {'; '.join(parts)}"
