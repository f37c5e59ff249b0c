"""The recipe of segmentation: any images with masks, from a checkpoint or from scratch."""

from __future__ import annotations

from dataclasses import replace

from vitlab.config.backbone import BackboneConfig
from vitlab.config.data import Augment, LoaderConfig, SplitRule, feeding
from vitlab.config.model import ModelConfig
from vitlab.config.overrides import DataFacts, Overrides, RunFacts
from vitlab.config.run import RunConfig, RunData
from vitlab.config.scaling import every, lr_for, pretraining_batch, steps_of, warmup_of
from vitlab.config.segmenter import SegmenterConfig
from vitlab.config.train import Average, Optimizer, Schedule, TrainConfig
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError
from vitlab.recipes.rules import new_model, plain_preprocess, precision_of, start_of, whole_patches, workers_of

_REFERENCE_BATCH = 32
_SCRATCH = "ViT-Ti/16"


def segment_folder(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """Give each pixel a class: a linear decoder (or the mask transformer) on the features of a checkpoint, all of it fine-tuned.

    AdamW, layer-wise learning-rate decay, averaged weights, cosine; random crops and flips of image and mask together. A decoder on
    frozen features (trainable head) has a learning rate of its own. An image is squashed to the model's square, so that the whole
    image is seen; masks come back at its own size.
    On a CPU: at most 160 px and no more than the images have, 30,000 images in total, 3 to 30 epochs, batches of at most 32. With
    an accelerator: the checkpoint's own image size, 300,000 images, 5 to 60 epochs, batches of at most 128. From scratch, three
    times as many images.
    Command: vitlab finetune pets-seg/ --task segment --from deit_tiny.npz
    Time: DeiT-Ti on 3,327 pets, minutes on a CPU; docs/guides/segment.md.
    Score: in docs/results.md, beside a linear decoder on frozen features.
    """
    data = facts.data
    if data is None or not data.masks:
        raise ConfigError("segment-folder needs images with masks", hint="images/ beside masks/, or masks.json")
    if overrides.head == "fitted":
        raise ConfigError("segmentation has a decoder, no head that is fitted", hint="leave `head` out")
    if facts.start is None:
        size = overrides.image_size or _size(None, data, facts)
        backbone = new_model("segment-folder", facts, overrides, _SCRATCH, classes=data.classes, channels=data.channels)
        fed = plain_preprocess(backbone, margin=1.0, interpolation="bilinear")
        start, lr, layer_decay, more = None, 1e-3, 1.0, 3
    else:
        begins = start_of("segment-folder", facts, overrides)
        backbone, fed = begins.model, begins.preprocess
        size = overrides.image_size or _size(backbone, data, facts)
        start, lr, layer_decay, more = begins.path, 2e-2 if overrides.trainable == "head" else 5e-4, 0.75, 1
    model = _segmenter(backbone, size, data, overrides)
    preprocess = replace(feeding(fed, model, resized=True)[0], resize="squash")
    most, seen, fewest, longest = (128, 300_000.0, 5, 60) if facts.machine.accelerator else (32, 30_000.0, 3, 30)
    batch = overrides.batch_size or pretraining_batch(data.images, most=most)
    epochs = overrides.epochs or min(max(more * seen / data.images, fewest), longest)
    steps = steps_of(epochs, data.images, batch) if overrides.steps is None else overrides.steps
    interval = max(every(steps, times=10), min(max(1, data.images // batch), every(steps, times=5)))
    augment = Augment(
        image_size=size,
        resize_to=max(256, *size),
        area=(0.25, 1.0),
        interpolation="bicubic" if preprocess.interpolation == "bicubic" else "bilinear",
        flip=0.0 if data.channels == 1 else 0.5,
    )
    return RunConfig(
        name="segment-folder",
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
                layer_decay=layer_decay,
            ),
            schedule=Schedule(warmup=warmup_of(steps, fraction=0.1, most=steps)),
            average=Average(decay=0.999),
            precision=precision_of(facts.machine),
            evaluate_every=interval,
            save_every=interval,
            seed=overrides.seed or 0,
        ),
        preprocess=preprocess,
        start=start,
    )


def _segmenter(model: ModelConfig, size: tuple[int, int], data: DataFacts, overrides: Overrides) -> SegmenterConfig:
    """The model of the checkpoint as a backbone; of a segmenter, its own backbone and decoder."""
    before = model if isinstance(model, SegmenterConfig) else None
    backbone = model.backbone if isinstance(model, SegmenterConfig) else model
    if not isinstance(backbone, BackboneConfig):
        raise ConfigError(
            f"{backbone.title} gives no grid of features that a decoder takes", hint="use a ViT, a Swin Transformer or a ConvNeXt"
        )
    kept = before is not None and overrides.decoder in (None, before.decoder) and overrides.layers in (None, before.layers)
    if before is not None and kept:
        return replace(before, image_size=size, num_classes=data.classes, channels=overrides.channels or before.channels)
    width = backbone.width if isinstance(backbone, ViTConfig) else backbone.widths[-1]
    return SegmenterConfig(
        backbone=backbone,
        num_classes=data.classes,
        image_size=size,
        channels=overrides.channels or backbone.channels,
        decoder=overrides.decoder or (before.decoder if before is not None else "linear"),
        layers=overrides.layers or (),
        decoder_heads=next(heads for heads in range(max(1, width // 64), 0, -1) if width % heads == 0),
    )


def _size(model: ModelConfig | None, data: DataFacts, facts: RunFacts) -> tuple[int, int]:
    """The checkpoint's own size with an accelerator; on a CPU at most 160 px, and no more than the images have."""
    backbone = model.backbone if isinstance(model, SegmenterConfig) else model
    if model is not None and facts.machine.accelerator:
        return model.image_size
    side = min(160, max(data.side, 32)) if model is None else min(160, max(data.side, 32), max(model.image_size))
    return (round(side / 16) * 16,) * 2 if backbone is None else whole_patches(backbone, side)
