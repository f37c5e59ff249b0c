"""Figures 3 and 4 of the paper in small: families of models, with and without pre-training, by how many labels there are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.model import ModelConfig, variant
from vitlab.config.overrides import DataFacts, Overrides, StartFacts
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.run import RunConfig
from vitlab.config.stems import ResNetStem
from vitlab.config.vit import ViTConfig
from vitlab.data.opening import open_dataset
from vitlab.errors import ConfigError, at_least
from vitlab.recipes.table import recipe
from vitlab.studies.quickstart import write_few
from vitlab.studies.runner import Done, Job, Went, on_one_core, side_by_side
from vitlab.studies.verdict import accuracy_of, judge_run
from vitlab.training.control import Control

# Small models of every family, alike in size, for studies that train them all: images of 32 pixels, a few 100,000 parameters.


def _vit() -> ViTConfig:
    mini = variant("ViT-Mini/8", pool="mean")
    assert isinstance(mini, ViTConfig)
    return replace(mini, width=96, depth=3, heads=3, mlp_width=384)


SIDE = 32
FAMILIES: dict[str, ModelConfig] = {
    "ViT": _vit(),
    "hybrid": replace(_vit(), stem=ResNetStem(blocks=(1,), width=32), patch_size=(2, 2)),
    "BiT ResNet": ResNetConfig(blocks=(1, 1, 1), stage_widths=(64, 128, 256), root_width=32, groups=16, image_size=(SIDE, SIDE)),
    "ConvNeXt": ConvNeXtConfig(depths=(1, 2, 1), widths=(32, 64, 128), patch_size=2, layer_scale=0.1, image_size=(SIDE, SIDE)),
    "LSTM": RecurrentConfig(cell="lstm", width=160, depth=1, patch_size=(8, 8), image_size=(SIDE, SIDE)),
}


_BATCH = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is made: `shots` are labels of each class, `letters` the images of pre-training, `steps` the updates of each
    fine-tuning, `lr` its peak rate, `families` some of `vitlab.studies.transfer.FAMILIES`. The same for everybody."""

    shots: tuple[int, ...] = (3, 10, 30, 100)
    letters: int = 40_000
    steps: int = 200
    lr: float = 2e-3
    families: tuple[str, ...] = tuple(FAMILIES)

    def __post_init__(self) -> None:
        at_least("letters", self.letters, 64)
        at_least("steps", self.steps, 1)
        for count in self.shots:
            at_least("shots", count, 1)
        if not self.shots:
            raise ConfigError("shots: at least one number of labels is needed")
        for family in self.families:
            if family not in FAMILIES:
                raise ConfigError(f"no family called {family!r}", hint=f"they are {', '.join(FAMILIES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Shares of the test images told right, 0 to 1, by number of labels of each class."""

    family: str
    pretrained: bool
    shots: tuple[int, ...]
    shares: tuple[float, ...]


def jobs_of(out: Path, plan: Plan) -> tuple[Job, ...]:
    """Each family learns invented letters; then digits with and without that, for each number of labels."""
    packs = {shots: write_few(out / "data" / f"digits-{shots}.npz", shots=shots, seed=0) for shots in plan.shots}
    classes = len(open_dataset("digits", split="test").labels)
    made = []
    for family in plan.families:
        slug = family.replace(" ", "-")
        letters = recipe("quickstart", Overrides(model=FAMILIES[family], epochs=plan.letters / 100_000))
        first = Job(
            name=f"{slug}-letters",
            title=f"{family}: invented letters",
            run=on_one_core(letters),
            out=out / f"{slug}-letters",
            verdict=judge_run,
        )
        made.append(first)
        start = StartFacts(path=str(first.out / "model.safetensors"), model=first.run.model, preprocess=first.run.preprocess)
        for shots, pack in packs.items():
            data = DataFacts(dataset=str(pack), images=shots * classes, classes=classes, channels=1, side=8)
            overrides = Overrides(image_size=(SIDE, SIDE), lr=plan.lr, steps=plan.steps, batch_size=min(_BATCH, shots * classes))
            for begun in (True, False):
                chosen = overrides if begun else replace(overrides, model=FAMILIES[family])
                name = f"{slug}-{'pretrained' if begun else 'random'}-{shots}"
                made.append(
                    Job(
                        name=name,
                        title=f"{family}, {'pre-trained' if begun else 'from random values'}, {shots} labels a class",
                        run=_finetuning(recipe("quickstart-finetune", chosen, data=data, start=start if begun else None)),
                        out=out / name,
                        verdict=judge_run,
                        after=(first.name,) if begun else (),
                    )
                )
    return tuple(made)


def transfer(out: Path, plan: Plan, *, control: Control) -> Iterator[Went | Done | tuple[Curve, ...]]:
    """Make the runs that are not made yet; the last event are the curves, and without them the study was asked to stop."""
    out.mkdir(parents=True, exist_ok=True)
    jobs, found = jobs_of(out, plan), dict[str, float]()
    for event in side_by_side(jobs, lanes=min(2, os.cpu_count() or 1), control=control):
        if isinstance(event, Done):
            found[event.job] = accuracy_of(event.result, "test")
        yield event
    if len(found) == len(jobs):
        yield tuple(_curves(plan, found))


def _curves(plan: Plan, found: dict[str, float]) -> Sequence[Curve]:
    return [
        Curve(
            family=family,
            pretrained=pretrained,
            shots=plan.shots,
            shares=tuple(
                found[f"{family.replace(' ', '-')}-{'pretrained' if pretrained else 'random'}-{shots}"] for shots in plan.shots
            ),
        )
        for family in plan.families
        for pretrained in (True, False)
    ]


def _finetuning(run: RunConfig) -> RunConfig:
    """Every labelled image is learned from, as it is, without a look at held-out ones."""
    augment = replace(run.data.augment, crop="squash")
    return on_one_core(replace(run, data=replace(run.data, train_split="train+val", evaluate_split=None, augment=augment)))
