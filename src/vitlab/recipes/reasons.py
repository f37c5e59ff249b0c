"""A run in sentences: what was chosen, and why. For the person who typed one line and got a hundred settings."""

from __future__ import annotations

from vitlab.config.model import ModelConfig
from vitlab.config.overrides import DataFacts, Overrides, RunFacts
from vitlab.config.run import RunConfig
from vitlab.config.train import scaled
from vitlab.config.vit import ViTConfig
from vitlab.recipes.paper import TABLE_3, row_of


def reasons(run: RunConfig, facts: RunFacts, overrides: Overrides) -> tuple[str, ...]:
    """What the run is and why it is so, a sentence each."""
    begun = [_images(run, facts.data), _model(run), _size(run, facts, overrides), _growth(run)]
    told = [*begun, _length(run, facts, overrides), _steps(run), _views(run, facts.data)]
    return tuple(sentence for sentence in told if sentence)


def _images(run: RunConfig, data: DataFacts | None) -> str:
    if data is None:
        return f"images: {run.data.dataset}"
    kinds = f"{data.classes:,} classes" if data.classes else "no labels"
    judged = "nothing is held out" if run.data.evaluate_split is None else f"judged by its {run.data.evaluate_split} part"
    exact = "" if run.data.evaluate_split is None else "about "
    return f"images: {data.dataset}, {exact}{data.images:,} to learn from, {kinds}, {judged}"


def _model(run: RunConfig) -> str:
    name = model_said(run.model)
    if run.start is not None:
        head = f"for {run.model.num_classes:,} classes, of zeros unless the checkpoint has the same classes (app. B.1.1)"
        return f"model: {name} of {run.start} with a head {head}"
    if run.name in TABLE_3 and (other := row_of(run.name, run.model)[1]) is not None:
        return f"model: {name} from random values; Table 3 does not have it, so it takes the row of {other}"
    return f"model: {name} from random values"


def _size(run: RunConfig, facts: RunFacts, overrides: Overrides) -> str:
    size, own = run.model.image_size, None if facts.start is None else facts.start.model.image_size
    said = f"image size: {_by(size)} pixels"
    if isinstance(run.model, ViTConfig):
        said += f", {run.model.grid[0] * run.model.grid[1]:,} patches"
    if overrides.image_size is not None:
        return f"{said}, as asked"
    if own is not None and own != size:
        limited = " to be bearable on a processor" if max(size) < max(own) and not facts.machine.accelerator else ""
        fitted = ": its positions are interpolated" if isinstance(run.model, ViTConfig) else ""
        return f"{said} instead of the checkpoint's {_by(own)}{limited}{fitted}"
    return said


def _growth(run: RunConfig) -> str:
    if not run.train.progressive_resizing:
        return ""
    sizes = [
        f"{_by(scaled(run.model.image_size, scale))}{f' from {100 * share:.0f} % of the steps on' if share else ' at first'}"
        for share, scale in run.train.progressive_resizing
    ]
    return f"growing images: {', '.join(sizes)}: small ones are cheaper, and most can be learned from them"


def _length(run: RunConfig, facts: RunFacts, overrides: Overrides) -> str:
    steps, batch = run.train.steps, run.data.loader.batch_size
    said = f"length: {steps:,} steps of {batch:,} images"
    if facts.data is not None:
        epochs = f"{steps * batch / facts.data.images:.3g}"
        said += f", {epochs} epoch{'' if epochs == '1' else 's'}"
    if overrides.steps is not None or overrides.epochs is not None:
        return f"{said}, as asked"
    return said if facts.machine.accelerator or run.name not in ("finetune-folder", "small-data") else f"{said}, for a processor"


def _steps(run: RunConfig) -> str:
    optimizer, schedule, average = run.train.optimizer, run.train.schedule, run.train.average
    said = (
        f"learning: {optimizer.kind}, rate {optimizer.lr:.3g} after {_steps_said(schedule.warmup)} of warm-up, then {schedule.kind}"
    )
    if optimizer.layer_decay < 1:
        said += f", {optimizer.layer_decay:g} times as much for each layer further from the head"
    return said + (f"; weights averaged with factor {average.decay:g}" if average.decay else "")


def _steps_said(steps: int) -> str:
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def _views(run: RunConfig, data: DataFacts | None) -> str:
    augment = run.data.augment
    parts = [f"{augment.crop} crops" if augment.crop != "squash" else "whole images"]
    parts += ["flips"] if augment.flip else []
    parts += [f"RandAugment {augment.randaugment[0]}, {augment.randaugment[1]:g}"] if augment.randaugment is not None else []
    parts += [f"mixup {augment.mixup:g}"] if augment.mixup else []
    parts += [f"cutmix {augment.cutmix:g}"] if augment.cutmix else []
    said = f"views: {', '.join(parts)}"
    if not augment.flip and data is not None and data.channels == 1:
        said += "; no flips, since the images are grey and may be writing"
    if run.data.loader.balance and data is not None:
        said += f"; rare classes shown more often, since the largest is {data.imbalance:.3g} times the smallest"
    return said


def model_said(model: ModelConfig) -> str:
    """A model's name, or what it is where it has none."""
    if (name := model.name) is not None:
        return name
    if isinstance(model, ViTConfig):
        return f"a ViT of width {model.width}, depth {model.depth}, patch {_by(model.patch_size)}"
    return f"{model.title} without a name"


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
