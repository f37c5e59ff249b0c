"""What the recipes of segmentation and detection have in common: where a run starts, its image size, its length, its settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitlab.config.backbone import BackboneConfig, OnBackbone
from vitlab.config.data import Augment, LoaderConfig, Preprocess, SplitRule, feeding
from vitlab.config.model import ModelConfig
from vitlab.config.overrides import DataFacts, Overrides, RunFacts
from vitlab.config.run import RunConfig, RunData
from vitlab.config.scaling import every, lr_for, pretraining_batch, steps_of, warmup_of
from vitlab.config.train import Average, Optimizer, Schedule, TrainConfig
from vitlab.errors import ConfigError
from vitlab.recipes.rules import new_model, plain_preprocess, precision_of, start_of, whole_patches, workers_of

_REFERENCE_BATCH = 32
_SCRATCH = "ViT-Ti/16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where a run starts: a model whose features are used, how it was fed, the image size, and its file, None from scratch."""

    model: ModelConfig
    preprocess: Preprocess
    image_size: tuple[int, int]
    path: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How many images a run sees in total, within so many epochs, in batches of at most `batch`."""

    images: float
    epochs: tuple[int, int]
    batch: int


def beginning(name: str, data: DataFacts, facts: RunFacts, overrides: Overrides) -> Beginning:
    """The checkpoint of the run, or a new ViT-Ti/16."""
    if facts.start is None:
        size = overrides.image_size or _size(None, data, facts)
        model = new_model(name, facts, overrides, _SCRATCH, classes=data.classes, channels=data.channels)
        fed = plain_preprocess(model, margin=1.0, interpolation="bilinear")
        return Beginning(model=model, preprocess=fed, image_size=size, path=None)
    start = start_of(name, facts, overrides)
    size = overrides.image_size or _size(start.model, data, facts)
    return Beginning(model=start.model, preprocess=start.preprocess, image_size=size, path=start.path)


def _size(model: ModelConfig | None, data: DataFacts, facts: RunFacts) -> tuple[int, int]:
    """The checkpoint's own size with an accelerator; on a CPU at most 160 px, and no more than the images have."""
    backbone = model.backbone if isinstance(model, OnBackbone) else model
    if model is not None and facts.machine.accelerator:
        return model.image_size
    side = min(160, max(data.side, 32)) if model is None else min(160, max(data.side, 32), max(model.image_size))
    return (round(side / 16) * 16,) * 2 if backbone is None else whole_patches(backbone, side)


def backbone_in(model: ModelConfig, *, taker: str) -> BackboneConfig:
    """The backbone of a model on one, or the model itself; ConfigError if it gives no grid of features."""
    backbone = model.backbone if isinstance(model, OnBackbone) else model
    if not isinstance(backbone, BackboneConfig):
        raise ConfigError(
            f"{backbone.title} gives no grid of features that a {taker} takes", hint="use a ViT, a Swin Transformer or a ConvNeXt"
        )
    return backbone


def dense_run(
    name: str,
    model: ModelConfig,
    begun: Beginning,
    data: DataFacts,
    facts: RunFacts,
    overrides: Overrides,
    *,
    lr: float,
    length: Length,
    area: float,
) -> RunConfig:
    """AdamW, layer-wise learning-rate decay from a checkpoint, averaged weights, cosine; crops of at least `area`, and flips.

    An image is squashed to the model's square, so that the whole image is seen. `lr` is for batches of 32.
    """
    preprocess = replace(feeding(begun.preprocess, model, resized=True)[0], resize="squash")
    batch = overrides.batch_size or pretraining_batch(data.images, most=length.batch)
    epochs = overrides.epochs or min(max(length.images / data.images, length.epochs[0]), length.epochs[1])
    steps = steps_of(epochs, data.images, batch) if overrides.steps is None else overrides.steps
    interval = max(every(steps, times=10), min(max(1, data.images // batch), every(steps, times=5)))
    augment = Augment(
        image_size=begun.image_size,
        resize_to=max(256, *begun.image_size),
        area=(area, 1.0),
        interpolation="bicubic" if preprocess.interpolation == "bicubic" else "bilinear",
        flip=0.0 if data.channels == 1 else 0.5,
    )
    return RunConfig(
        name=name,
        model=model,
        data=RunData(
            dataset=data.dataset,
            evaluate_split="val" if "val" in data.splits else None,
            rule=overrides.rule or SplitRule(),
            augment=augment,
            loader=LoaderConfig(batch_size=batch, seed=overrides.seed or 0, workers=workers_of(facts.machine), corrupt="skip"),
        ),
        train=TrainConfig(
            steps=steps,
            optimizer=Optimizer(
                lr=overrides.lr or lr_for(lr, batch=batch, reference=_REFERENCE_BATCH, kind="adamw"),
                weight_decay=0.05,
                layer_decay=1.0 if begun.path is None else 0.75,
            ),
            schedule=Schedule(warmup=warmup_of(steps, fraction=0.1, most=steps)),
            average=Average(decay=0.999),
            precision=precision_of(facts.machine),
            evaluate_every=interval,
            save_every=interval,
            seed=overrides.seed or 0,
        ),
        preprocess=preprocess,
        start=begun.path,
    )
