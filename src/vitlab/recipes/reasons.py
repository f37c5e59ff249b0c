"""A run in sentences: what a recipe chose, and why. For the person who typed one line and got a hundred settings."""

from __future__ import annotations

from vitlab.config.model import ModelConfig, flexible_vit
from vitlab.config.overrides import DataFacts, Overrides, RunFacts
from vitlab.config.run import RunConfig
from vitlab.config.train import scaled
from vitlab.config.vit import ViTConfig
from vitlab.recipes.paper import TABLE_3, row_of


def reasons(run: RunConfig, facts: RunFacts, overrides: Overrides, *, timed: bool = False) -> tuple[str, ...]:
    """What was chosen and why, one sentence for each choice.

    `overrides` are the user's own; what they leave open, the recipe chose, or a time budget (`timed`).
    """
    sentences = (
        _images(run, facts.data),
        _model(run),
        _lora(run),
        _trainable(run),
        _size(run, facts, overrides, timed=timed),
        _channels(run, facts),
        _resizing(run),
        _patch_sizes(run),
        _native(run),
        _length(run, facts, overrides, timed=timed),
        _optimizer(run) if run.train.steps else "",
        _without_forgetting(run),
        _augmentation(run, facts.data) if run.train.steps else "",
    )
    return tuple(sentence for sentence in sentences if sentence)


def _images(run: RunConfig, data: DataFacts | None) -> str:
    if data is None:
        return f"images: {run.data.dataset}"
    classes = f"{data.classes:,} classes" if data.classes else "no labels"
    split = run.data.evaluate_split
    evaluated = "no evaluation" if split is None else f"evaluated on its {split} split"
    return f"images: {data.dataset}, {'' if split is None else 'about '}{data.images:,} for training, {classes}, {evaluated}"


def _model(run: RunConfig) -> str:
    name = model_in_words(run.model)
    if run.start is not None:
        classes = f"a head for {run.model.num_classes:,} classes"
        head = (
            f"{classes}, fitted to the features of the training images before the first step"
            if run.train.head == "fitted"
            else f"{classes}, zero unless the checkpoint has the same classes (app. B.1.1)"
        )
        return f"model: {name} from {run.start} with {head}"
    if run.name in TABLE_3 and (other := row_of(run.name, run.model)[1]) is not None:
        return f"model: {name} from scratch; Table 3 does not have it, so the recipe uses the row of {other}"
    return f"model: {name} from scratch"


def _lora(run: RunConfig) -> str:
    if (lora := run.train.lora) is None:
        return ""
    return f"lora: updates of rank {lora.rank} of {', '.join(lora.targets)}, and the head; all other weights are frozen"


def _trainable(run: RunConfig) -> str:
    """Which weights train, unless all do."""
    train, new = run.train, "decoder" if run.task == "segment" else "head"
    match train.trainable:
        case "head":
            return f"trainable: the {new}; all other weights are frozen"
        case "last-blocks":
            return f"trainable: the {new} and the last {train.blocks} blocks; all other weights are frozen"
        case "all":
            return ""


def _size(run: RunConfig, facts: RunFacts, overrides: Overrides, *, timed: bool) -> str:
    size, own = run.model.image_size, None if facts.start is None else facts.start.model.image_size
    text = f"image size: {_by(size)} pixels"
    if isinstance(run.model, ViTConfig):
        text += f", {run.model.grid[0] * run.model.grid[1]:,} patches"
    if overrides.image_size is not None:
        return f"{text}, as requested"
    if own is not None and own != size:
        slow = max(size) < max(own) and not facts.machine.accelerator
        limited = ", chosen for the time" if timed else ", so that a CPU is fast enough" if slow else ""
        fitted = "; its positions are interpolated" if isinstance(run.model, ViTConfig) else ""
        return f"{text} instead of the checkpoint's {_by(own)}{limited}{fitted}"
    return text


def _channels(run: RunConfig, facts: RunFacts) -> str:
    """How channels other than grey and RGB are read, and the scale of pixels of more than 8 bits."""
    channels, preprocess, data = run.model.channels, run.preprocess, facts.data
    scale, deep = "", data is not None and data.deep
    if deep or preprocess.pixel_scale != "full":
        scale = f"numbers of more than 8 bits are scaled by {preprocess.pixel_scale}"
    if data is not None and data.dark and preprocess.pixel_scale == "full":
        scale += ", at which these images are almost black; `pixel_scale=percentile` takes the range of each image instead"
    if channels in (1, 3) and (facts.start is None or facts.start.model.channels == channels):
        return f"pixels: {scale}" if scale else ""
    text = f"channels: {channels}"
    if facts.start is not None and (old := facts.start.model.channels) != channels:
        kernels = "keep their kernels and the fourth gets their mean, all times 3/4"
        own = f"red, green and blue {kernels}" if (old, channels) == (3, 4) else f"each gets the mean kernel times {old}/{channels}"
        text += f" instead of the checkpoint's {old}; {own}"
    if data is not None and preprocess.mean == data.mean:
        mean = ", ".join(f"{value:.3g}" for value in preprocess.mean)
        text += f"; each is normalised by its own mean ({mean}) and std, measured on some images"
    return text + (f"; {scale}" if scale else "")


def _resizing(run: RunConfig) -> str:
    if not run.train.progressive_resizing:
        return ""
    sizes = [
        f"{_by(scaled(run.model.image_size, scale))}{f' after {100 * start:.0f} % of the steps' if start else ' at first'}"
        for start, scale in run.train.progressive_resizing
    ]
    return f"progressive resizing: {', '.join(sizes)}; small images are cheaper, and the model learns most from them"


def _patch_sizes(run: RunConfig) -> str:
    if not run.train.patch_sizes or (vit := flexible_vit(run.model)) is None:
        return ""
    sizes = ", ".join(_by(size) for size in run.train.patch_sizes)
    return f"patch sizes: each step draws one of {sizes}; the weights are saved at {_by(vit.patch_size)}, and load at any"


def _native(run: RunConfig) -> str:
    if run.preprocess.resize != "native":
        return ""
    return "aspect ratio: each image keeps its own, in as many patches; images of different shapes are packed into one sequence"


def _length(run: RunConfig, facts: RunFacts, overrides: Overrides, *, timed: bool) -> str:
    steps, batch = run.train.steps, run.data.loader.batch_size
    if steps == 0:
        return "length: no steps after the head is fitted"
    text = f"length: {steps:,} {'step' if steps == 1 else 'steps'} of {batch:,} images"
    if facts.data is not None:
        exact = steps * batch / facts.data.images
        epochs = f"{exact:.3g}" if exact < 100 else f"{exact:,.0f}"
        text += f", {epochs} epoch{'' if epochs == '1' else 's'}"
    if overrides.steps is not None or overrides.epochs is not None:
        return f"{text}, as requested"
    if timed:
        return f"{text}, chosen for the time"
    return text if facts.machine.accelerator or run.name not in ("finetune-folder", "small-data") else f"{text}, chosen for a CPU"


def _optimizer(run: RunConfig) -> str:
    optimizer, schedule, average = run.train.optimizer, run.train.schedule, run.train.average
    warmup = f"{schedule.warmup:,} step{'' if schedule.warmup == 1 else 's'}"
    text = f"optimizer: {optimizer.kind}, learning rate {optimizer.lr:.3g} after {warmup} of warm-up, then {schedule.kind}"
    if optimizer.layer_decay < 1:
        text += f", times {optimizer.layer_decay:g} for each layer further from the head"
    return text + (f"; weights averaged with decay {average.decay:g}" if average.decay else "")


def _without_forgetting(run: RunConfig) -> str:
    if not run.train.lwf or not run.train.steps:
        return ""
    return f"learning without forgetting: what the checkpoint says of its own classes is kept with the weight {run.train.lwf:g}"


def _augmentation(run: RunConfig, data: DataFacts | None) -> str:
    augment = run.data.augment
    parts = [f"{augment.crop} crops" if augment.crop != "squash" else "whole images"]
    parts += ["flips"] if augment.flip else []
    parts += [f"RandAugment {augment.randaugment[0]}, {augment.randaugment[1]:g}"] if augment.randaugment is not None else []
    parts += [f"mixup {augment.mixup:g}"] if augment.mixup else []
    parts += [f"cutmix {augment.cutmix:g}"] if augment.cutmix else []
    text = f"augmentation: {', '.join(parts)}"
    if (channels := run.model.channels) not in (1, 3):
        text += (
            f"; RandAugment and colour jitter are left out, since they are for grey and RGB images and not for {channels} channels"
        )
    if not augment.flip and data is not None and data.channels == 1:
        text += "; no flips, since the images are grey and may show writing"
    if run.data.loader.balance and data is not None:
        text += f"; rare classes are sampled more often, since the largest class is {data.imbalance:.3g} times the smallest"
    return text


def model_in_words(model: ModelConfig) -> str:
    """A model's name, or a description if it has none."""
    if (name := model.name) is not None:
        return name
    if isinstance(model, ViTConfig):
        stem = "" if model.stem is None and model.conv_stem is None else " after a conv stem"
        return f"a ViT of width {model.width}, depth {model.depth}, patch {_by(model.patch_size)}{stem}"
    return f"{model.title} without a name"


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
