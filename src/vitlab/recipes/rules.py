"""What every recipe needs and none decides alone: the model wished for, its preprocessing, and what the machine is good for."""

from __future__ import annotations

from dataclasses import replace

from vitlab.config.data import Interpolation, Preprocess
from vitlab.config.model import ModelConfig, variant
from vitlab.config.overrides import Machine, Overrides, RunFacts, StartFacts
from vitlab.config.train import Precision
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError


def new_model(
    name: str, facts: RunFacts, overrides: Overrides, default: str | ModelConfig, *, classes: int, channels: int
) -> ModelConfig:
    """The model wished for, or else `default`, with random values, for these classes; else as its config or name has it."""
    if facts.start is not None:
        raise ConfigError(
            f"{name} begins from random values, and a checkpoint is given",
            hint="leave the checkpoint out, or take a recipe that begins with one: finetune-folder",
        )
    chosen = default if overrides.model is None else overrides.model
    if isinstance(chosen, str):
        return variant(chosen, image_size=overrides.image_size, num_classes=classes, channels=channels)
    size = overrides.image_size or chosen.image_size
    return replace(chosen, image_size=size, num_classes=classes, channels=channels)


def start_of(name: str, facts: RunFacts, overrides: Overrides) -> StartFacts:
    """The checkpoint to begin with."""
    if facts.start is None:
        raise ConfigError(
            f"{name} fine-tunes a checkpoint, and none is given",
            hint="--from CHECKPOINT, or recipe(..., start=start_facts(CHECKPOINT))",
        )
    if overrides.model is not None:
        raise ConfigError(f"{name} takes the model of its checkpoint, so none can be chosen", hint="leave the model out")
    return facts.start


def fitted_model(model: ModelConfig, image_size: tuple[int, int], classes: int) -> ModelConfig:
    """A checkpoint's model for another size and other classes: the whole head becomes one linear layer of zeros (B.1.1)."""
    if isinstance(model, ViTConfig):
        return replace(model, image_size=image_size, num_classes=classes, representation_width=0, head_bias=0.0)
    return replace(model, image_size=image_size, num_classes=classes, head_bias=0.0)


def whole_patches(model: ModelConfig, side: int) -> tuple[int, int]:
    """The square nearest to that many pixels, each side a whole number of the model's patches."""
    if not isinstance(model, ViTConfig):
        return side, side
    down, across = (max(1, round(side / step)) * step for step in model.step)
    return down, across


def plain_preprocess(model: ModelConfig, *, margin: float, interpolation: Interpolation) -> Preprocess:
    """The centre of an image whose short side is `margin` times the model's, to [-1, 1]."""
    middle = (0.5,) * model.channels
    return Preprocess(
        image_size=model.image_size,
        resize_to=round(max(model.image_size) * margin),
        interpolation=interpolation,
        mean=middle,
        std=middle,
    )


def workers_of(machine: Machine) -> int:
    """Loading processes: at most two where the processor also computes the model, else one a core up to 16."""
    return min(machine.cores, 16 if machine.accelerator else 2)


def precision_of(machine: Machine) -> Precision:
    """bfloat16 where there is an accelerator made for it; a processor is seldom faster with it."""
    return "bfloat16" if machine.accelerator else "float32"
