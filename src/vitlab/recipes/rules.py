"""What all recipes share: the choice of the model, its preprocessing, and what the machine can do."""

from __future__ import annotations

from dataclasses import replace

from vitlab.config.backbone import BackboneConfig
from vitlab.config.data import Interpolation, Preprocess
from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.model import ModelConfig, variant
from vitlab.config.overrides import DataFacts, Machine, Overrides, RunFacts, StartFacts
from vitlab.config.run import RunConfig
from vitlab.config.segmenter import SegmenterConfig
from vitlab.config.train import Precision, common_size
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError

_FEW_IMAGES = 1_000


def new_model(
    name: str, facts: RunFacts, overrides: Overrides, default: str | ModelConfig, *, classes: int, channels: int
) -> ModelConfig:
    """The model to train from scratch, `overrides.model` or else `default`, for these classes and channels."""
    if facts.start is not None:
        raise ConfigError(
            f"{name} trains from scratch, but a checkpoint is given",
            hint="leave the checkpoint out, or use a recipe that starts from one: finetune-folder",
        )
    chosen = default if overrides.model is None else overrides.model
    if isinstance(chosen, str):
        size = None if overrides.patch_size else overrides.image_size
        chosen = variant(chosen, image_size=size, num_classes=classes, channels=channels)
    chosen = chosen if overrides.patch_size is None else with_patch_size(chosen, overrides.patch_size)
    size = overrides.image_size or chosen.image_size
    return replace(chosen, image_size=size, num_classes=classes, channels=channels)


def with_patch_size(model: ModelConfig, patch_size: tuple[int, int]) -> ModelConfig:
    """The model with patches of another size, at the image size nearest to its own that has whole patches."""
    if isinstance(model, SegmenterConfig | GridDetectorConfig):
        backbone = with_patch_size(model.backbone, patch_size)
        assert isinstance(backbone, BackboneConfig)
        return replace(model, backbone=backbone, image_size=backbone.image_size)
    if not isinstance(model, ViTConfig):
        raise ConfigError(f"{model.title} has no patch_size to change", hint="leave patch_size out, or use a ViT")
    stride = 1 if model.before is None else model.before.stride
    return replace(model, patch_size=patch_size, image_size=common_size(model.image_size, [patch_size], stride=stride))


def start_of(name: str, facts: RunFacts, overrides: Overrides) -> StartFacts:
    """The checkpoint to start from."""
    if facts.start is None:
        raise ConfigError(
            f"{name} fine-tunes a checkpoint, but none is given",
            hint="`start` names one; recipe(..., start=start_facts(CHECKPOINT))",
        )
    if overrides.model is not None:
        raise ConfigError(f"{name} uses the model of its checkpoint; you cannot choose another", hint="leave the model out")
    return facts.start


def fitted_model(model: ModelConfig, image_size: tuple[int, int], classes: int, *, channels: int | None = None) -> ModelConfig:
    """A checkpoint's model for another size and other classes: the whole head becomes one linear layer of zeros (B.1.1)."""
    channels = channels or model.channels
    if isinstance(model, ViTConfig):
        return replace(model, image_size=image_size, num_classes=classes, channels=channels, representation_width=0, head_bias=0.0)
    return replace(model, image_size=image_size, num_classes=classes, channels=channels, head_bias=0.0)


COLOURS = (1, 3, 4)  # channels that an image of a usual format is converted to: grey, RGB, RGB and opacity


def channels_for(model: ModelConfig, data: DataFacts, overrides: Overrides) -> int:
    """Channels of a fine-tuned model: as asked, those of the images if they are neither grey nor colour, or the checkpoint's."""
    return overrides.channels or (model.channels if data.channels in COLOURS else data.channels)


def for_channels(run: RunConfig, data: DataFacts | None, overrides: Overrides) -> RunConfig:
    """The run with the scale of its pixels; for other channels than grey and RGB, without what needs colours.

    RandAugment and colour jitter are left out, and channels that the data has measured are normalised by their own mean and std.
    """
    preprocess, augment = run.preprocess, run.data.augment
    if overrides.pixel_scale is not None:
        preprocess = replace(preprocess, pixel_scale=overrides.pixel_scale)
    if run.model.channels not in (1, 3):
        augment = replace(augment, randaugment=None, brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0)
        if data is not None and data.mean is not None and data.std is not None and len(data.mean) == run.model.channels:
            preprocess = replace(preprocess, mean=data.mean, std=data.std)
    return replace(run, preprocess=preprocess, data=replace(run.data, augment=augment))


def whole_patches(model: ModelConfig, side: int) -> tuple[int, int]:
    """The square nearest to that side in pixels that has whole patches."""
    if not isinstance(model, ViTConfig):
        return side, side
    down, across = (max(1, round(side / step)) * step for step in model.step)
    return down, across


def plain_preprocess(model: ModelConfig, *, margin: float, interpolation: Interpolation) -> Preprocess:
    """Resize the short side to `margin` times the model's image size, crop the centre, normalise to [-1, 1]."""
    middle = (0.5,) * model.channels
    return Preprocess(
        image_size=model.image_size,
        resize_to=round(max(model.image_size) * margin),
        interpolation=interpolation,
        mean=middle,
        std=middle,
    )


def workers_of(machine: Machine, *, images: int | None = None) -> int:
    """Worker processes: at most two if the CPU also computes the model, else one per core up to 16.

    None for a run that reads so few `images` that it would be done before a worker has started, which takes about a second.
    """
    if images is not None and images <= _FEW_IMAGES:
        return 0
    return min(machine.cores, 16 if machine.accelerator else 2)


def precision_of(machine: Machine, *, also_on_cpu: bool = False) -> Precision:
    """bfloat16 with an accelerator; `also_on_cpu`: and on a CPU that has instructions for it, which pays unless models are tiny."""
    return "bfloat16" if machine.accelerator or (also_on_cpu and machine.bfloat16) else "float32"
