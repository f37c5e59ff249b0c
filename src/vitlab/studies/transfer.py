"""Model families with and without pre-training, by the number of labels of the downstream task."""

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
from vitlab.interpretation.drawing import Axis, Line, Style, draw_lines, form_of
from vitlab.recipes.table import recipe
from vitlab.studies.quickstart import write_few
from vitlab.studies.runner import Done, Job, JobProgress, counts_of, evaluate_run, on_one_core, run_jobs
from vitlab.training.control import Control


def _vit() -> ViTConfig:
    mini = variant("ViT-Mini/8", pool="mean")
    assert isinstance(mini, ViTConfig)
    return replace(mini, width=96, depth=3, heads=3, mlp_width=384)


SIDE = 32  # pixels

# Small models of similar size, for studies that train them all: a few 100,000 parameters each.
FAMILIES: dict[str, ModelConfig] = {
    "ViT": _vit(),
    "hybrid": replace(_vit(), stem=ResNetStem(blocks=(1,), width=32), patch_size=(2, 2)),
    "BiT ResNet": ResNetConfig(blocks=(1, 1, 1), stage_widths=(64, 128, 256), root_width=32, groups=16, image_size=(SIDE, SIDE)),
    "ConvNeXt": ConvNeXtConfig(depths=(1, 2, 1), widths=(32, 64, 128), patch_size=2, layer_scale=0.1, image_size=(SIDE, SIDE)),
    "LSTM": RecurrentConfig(cell="lstm", width=160, depth=1, patch_size=(8, 8), image_size=(SIDE, SIDE)),
}


_BATCH = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan:
    """The runs of the study, with the same budget for every family.

    `shots` are labels of each class, `letters` the images of pre-training, `steps` the steps of each fine-tuning, `lr` its peak
    learning rate, `families` some of `FAMILIES`.
    """

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
    """Test accuracy, 0 to 1, by the number of labels of each class."""

    family: str
    pretrained: bool
    shots: tuple[int, ...]
    accuracy: tuple[float, ...]


def jobs_of(out: Path, plan: TransferPlan) -> tuple[Job, ...]:
    """Each family is pre-trained on letters; then trained on digits from there and from scratch, for each number of labels."""
    packs = {shots: write_few(out / "data" / f"digits-{shots}.npz", shots=shots, seed=0) for shots in plan.shots}
    classes = len(open_dataset("digits", split="test").labels)
    made = []
    for family in plan.families:
        name = f"{_slug(family)}-letters"
        letters = recipe("quickstart", Overrides(model=FAMILIES[family], epochs=plan.letters / 100_000))
        first = Job(
            name=name,
            title=f"{family}: pre-train on synthetic letters",
            run=on_one_core(letters),
            out=out / name,
            evaluate=evaluate_run,
        )
        made.append(first)
        start = StartFacts(path=str(first.out / "model.safetensors"), model=first.run.model, preprocess=first.run.preprocess)
        for shots, pack in packs.items():
            data = DataFacts(dataset=str(pack), images=shots * classes, classes=classes, channels=1, side=8)
            overrides = Overrides(image_size=(SIDE, SIDE), lr=plan.lr, steps=plan.steps, batch_size=min(_BATCH, shots * classes))
            for pretrained in (True, False):
                chosen = overrides if pretrained else replace(overrides, model=FAMILIES[family])
                name = _name(family, pretrained, shots)
                made.append(
                    Job(
                        name=name,
                        title=f"{family}, {'pre-trained' if pretrained else 'from scratch'}, {shots} labels a class",
                        run=_finetuning(recipe("quickstart-finetune", chosen, data=data, start=start if pretrained else None)),
                        out=out / name,
                        evaluate=evaluate_run,
                        after=(first.name,) if pretrained else (),
                    )
                )
    return tuple(made)


def transfer(out: Path, plan: TransferPlan, *, control: Control) -> Iterator[JobProgress | Done | tuple[Curve, ...]]:
    """Run what is not finished yet; the last event are the curves. A stopped study has none."""
    out.mkdir(parents=True, exist_ok=True)
    jobs, found = jobs_of(out, plan), dict[str, float]()
    for event in run_jobs(jobs, processes=min(2, os.cpu_count() or 1), control=control):
        if isinstance(event, Done):
            found[event.job] = counts_of(event.result, "test").accuracy
        yield event
    if len(found) == len(jobs):
        yield tuple(_curves(plan, found))


def _curves(plan: TransferPlan, found: dict[str, float]) -> Sequence[Curve]:
    return [
        Curve(
            family=family,
            pretrained=pretrained,
            shots=plan.shots,
            accuracy=tuple(found[_name(family, pretrained, shots)] for shots in plan.shots),
        )
        for family in plan.families
        for pretrained in (True, False)
    ]


def _name(family: str, pretrained: bool, shots: int) -> str:
    """The name of a fine-tuning run, which is its folder."""
    return f"{_slug(family)}-{'pretrained' if pretrained else 'scratch'}-{shots}"


def _slug(family: str) -> str:
    return family.replace(" ", "-")


def _finetuning(run: RunConfig) -> RunConfig:
    """Train on every labelled image, the whole of it, without validation."""
    augment = replace(run.data.augment, crop="squash")
    return on_one_core(replace(run, data=replace(run.data, train_split="train+val", evaluate_split=None, augment=augment)))


def draw_curves(curves: Sequence[Curve], path: Path) -> bytes:
    """Accuracy by the number of labels of each class: one colour for each family, dashed from scratch."""
    families = list(dict.fromkeys(curve.family for curve in curves))
    lines = [
        Line(
            name=f"{curve.family}{', pre-trained' if curve.pretrained else ''}",
            x=curve.shots,
            y=[100 * value for value in curve.accuracy],
            dashed=not curve.pretrained,
            like=families.index(curve.family),
        )
        for curve in curves
    ]
    at = sorted({shots for curve in curves for shots in curve.shots})
    x = Axis(name="labels of each digit", log=True, at=at)
    return draw_lines(lines, x, Axis(name="test accuracy, %"), Style(form=form_of(path)), title="Few labels, by family")
