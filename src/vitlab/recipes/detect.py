"""The recipe of detection: any images with boxes, from a checkpoint or from scratch."""

from __future__ import annotations

from dataclasses import replace

from vitlab.config.backbone import BackboneConfig, OnBackbone
from vitlab.config.data import Augment, LoaderConfig, SplitRule, feeding
from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.model import ModelConfig
from vitlab.config.overrides import DataFacts, Overrides, RunFacts
from vitlab.config.run import RunConfig, RunData
from vitlab.config.scaling import every, lr_for, pretraining_batch, steps_of, warmup_of
from vitlab.config.train import Average, Optimizer, Schedule, TrainConfig
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError
from vitlab.recipes.rules import new_model, plain_preprocess, precision_of, start_of, whole_patches, workers_of

_REFERENCE_BATCH = 32
_SCRATCH = "ViT-Ti/16"
_TOKENS = 100  # as the authors of YOLOS
_NAME = "detect-folder"


def detect_folder(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """Find objects: a light head on the grid of a checkpoint's features (or YOLOS's detection tokens), all of it fine-tuned.

    AdamW, layer-wise learning-rate decay, averaged weights, cosine; random crops and flips, which boxes follow. An image is
    squashed to the model's square, so that the whole image is seen; boxes come back in its own pixels. A YOLOS is fine-tuned as
    what it is; any other model gets the grid, which needs far fewer images than tokens.
    On a CPU: at most 160 px and no more than the images have, 15,000 images in total, 3 to 60 epochs, batches of at most 32. With
    an accelerator: the checkpoint's own image size, 300,000 images, 5 to 100 epochs, batches of at most 128. From scratch, and
    with tokens, three times as many images.
    Command: vitlab finetune pets-heads/ --task detect --from deit_tiny.npz
    Time: DeiT-Ti on 2,919 pets' heads, 9 minutes of one core; docs/guides/detect.md.
    Score: AP50 94 % of held-out heads; docs/results.md.
    """
    data = facts.data
    if data is None or not data.boxes:
        raise ConfigError("detect-folder needs images with boxes", hint="boxes.csv, COCO's JSON or VOC's XML beside the images")
    if overrides.head == "fitted":
        raise ConfigError("detection has no head that is fitted", hint="leave `head` out")
    if facts.start is None:
        size = overrides.image_size or _size(None, data, facts)
        begun = new_model(_NAME, facts, overrides, _SCRATCH, classes=data.classes, channels=data.channels)
        fed = plain_preprocess(begun, margin=1.0, interpolation="bilinear")
        start, lr, layer_decay, more = None, 1e-3, 1.0, 3
    else:
        begins = start_of(_NAME, facts, overrides)
        begun, fed = begins.model, begins.preprocess
        size = overrides.image_size or _size(begun, data, facts)
        start, lr, layer_decay, more = begins.path, 1.5e-3, 0.75, 1
    model = _detector(begun, size, data, overrides)
    more = 3 if isinstance(model, ViTConfig) else more
    preprocess = replace(feeding(replace(fed, resize="squash"), model, resized=True)[0], resize="squash")
    most, seen, fewest, longest = (128, 300_000.0, 5, 100) if facts.machine.accelerator else (32, 15_000.0, 3, 60)
    batch = overrides.batch_size or pretraining_batch(data.images, most=most)
    epochs = overrides.epochs or min(max(more * seen / data.images, fewest), longest)
    steps = steps_of(epochs, data.images, batch) if overrides.steps is None else overrides.steps
    interval = max(every(steps, times=10), min(max(1, data.images // batch), every(steps, times=5)))
    return RunConfig(
        name=_NAME,
        model=model,
        data=RunData(
            dataset=data.dataset,
            evaluate_split="val" if "val" in data.splits else None,
            rule=overrides.rule or SplitRule(),
            augment=Augment(
                image_size=size,
                resize_to=max(256, *size),
                area=(0.4, 1.0),
                interpolation="bicubic" if preprocess.interpolation == "bicubic" else "bilinear",
                flip=0.0 if data.channels == 1 else 0.5,
            ),
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


def _detector(model: ModelConfig, size: tuple[int, int], data: DataFacts, overrides: Overrides) -> GridDetectorConfig | ViTConfig:
    """A detector on the checkpoint's model; of a detector, its own kind unless another is asked for."""
    before = "tokens" if isinstance(model, ViTConfig) and model.detection_classes else "grid"
    channels = overrides.channels or model.channels
    if (overrides.detector or before) == "tokens":
        return _with_tokens(model, size, data, channels)
    if isinstance(model, GridDetectorConfig):
        return replace(model, image_size=size, num_classes=data.classes, channels=channels)
    if isinstance(model, ViTConfig) and model.detection_classes:
        raise ConfigError("a YOLOS detects with its tokens", hint="detector='tokens', or start from a ViT")
    backbone = model.backbone if isinstance(model, OnBackbone) else model
    if not isinstance(backbone, BackboneConfig):
        raise ConfigError(
            f"{backbone.title} gives no grid of features that a head takes", hint="use a ViT, a Swin Transformer or a ConvNeXt"
        )
    return GridDetectorConfig(backbone=backbone, num_classes=data.classes, image_size=size, channels=channels)


def _with_tokens(model: ModelConfig, size: tuple[int, int], data: DataFacts, channels: int) -> ViTConfig:
    """A YOLOS: the checkpoint's, or its ViT with detection tokens."""
    if not isinstance(model, ViTConfig):
        raise ConfigError(f"{model.title} has no tokens to detect with", hint="detector='grid', or start from a ViT")
    position = model.position
    if not model.detection_classes and (
        model.register_tokens
        or model.pool == "map"
        or position.kind != "learned-1d"
        or not (position.prefix and position.registers)
    ):
        raise ConfigError(
            "detection tokens are added to a ViT with learned positions of its class token and patches, without registers",
            hint="detector='grid'",
        )
    return replace(
        model,
        image_size=size,
        channels=channels,
        num_classes=0,
        head_bias=0.0,
        representation_width=0,
        projection_width=0,
        norm_after_pool=False,
        register_tokens=model.register_tokens or _TOKENS,
        detection_classes=data.classes + 1,
    )


def _size(model: ModelConfig | None, data: DataFacts, facts: RunFacts) -> tuple[int, int]:
    """The checkpoint's own size with an accelerator; on a CPU at most 160 px, and no more than the images have."""
    backbone = model.backbone if isinstance(model, OnBackbone) else model
    if model is not None and facts.machine.accelerator:
        return model.image_size
    side = min(160, max(data.side, 32)) if model is None else min(160, max(data.side, 32), max(model.image_size))
    return (round(side / 16) * 16,) * 2 if backbone is None else whole_patches(backbone, side)
