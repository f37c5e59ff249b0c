"""The recipes of segmentation and detection: any images with masks or with boxes, from a checkpoint or from scratch.

Both say where a run starts, its image size and its length; `dense_run` has the settings that they share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitlab.config.backbone import BackboneConfig, OnBackbone
from vitlab.config.data import Augment, LoaderConfig, Preprocess, SplitRule, feeding
from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.model import ModelConfig
from vitlab.config.overrides import DataFacts, Overrides, RunFacts
from vitlab.config.run import RunConfig, RunData
from vitlab.config.segmenter import SegmenterConfig
from vitlab.config.train import Average, Optimizer, Schedule, TrainConfig, every, lr_for, pretraining_batch, steps_of, warmup_of
from vitlab.config.vit import ViTConfig
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


# --- segmentation -------------------------------------------------------------------------------------------------------------


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
    begun = beginning("segment-folder", data, facts, overrides)
    more, lr = (3, 1e-3) if begun.path is None else (1, 2e-2 if overrides.trainable == "head" else 5e-4)
    gpu, cpu = Length(images=more * 3e5, epochs=(5, 60), batch=128), Length(images=more * 3e4, epochs=(3, 30), batch=32)
    length = gpu if facts.machine.accelerator else cpu
    model = _segmenter(begun, data, overrides)
    return dense_run("segment-folder", model, begun, data, facts, overrides, lr=lr, length=length, area=0.25)


def _segmenter(begun: Beginning, data: DataFacts, overrides: Overrides) -> SegmenterConfig:
    """The model of the checkpoint as a backbone; of a segmenter, its own backbone and decoder."""
    model, size = begun.model, begun.image_size
    before = model if isinstance(model, SegmenterConfig) else None
    backbone = backbone_in(model, taker="decoder")
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


# --- detection ----------------------------------------------------------------------------------------------------------------

_TOKENS = 100  # as the authors of YOLOS
_DETECT = "detect-folder"


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
    begun = beginning(_DETECT, data, facts, overrides)
    begun = replace(begun, preprocess=replace(begun.preprocess, resize="squash"))  # a YOLOS may have been fed at any shape
    model = _detector(begun, data, overrides)
    more = 3 if begun.path is None or isinstance(model, ViTConfig) else 1
    gpu, cpu = Length(images=more * 3e5, epochs=(5, 100), batch=128), Length(images=more * 1.5e4, epochs=(3, 60), batch=32)
    length = gpu if facts.machine.accelerator else cpu
    lr = 1e-3 if begun.path is None else 1.5e-3
    return dense_run(_DETECT, model, begun, data, facts, overrides, lr=lr, length=length, area=0.4)


def _detector(begun: Beginning, data: DataFacts, overrides: Overrides) -> GridDetectorConfig | ViTConfig:
    """A detector on the checkpoint's model; of a detector, its own kind unless another is asked for."""
    model, size = begun.model, begun.image_size
    before = "tokens" if isinstance(model, ViTConfig) and model.detection_classes else "grid"
    channels = overrides.channels or model.channels
    if (overrides.detector or before) == "tokens":
        return _with_tokens(model, size, data, channels)
    if isinstance(model, GridDetectorConfig):
        return replace(model, image_size=size, num_classes=data.classes, channels=channels)
    if isinstance(model, ViTConfig) and model.detection_classes:
        raise ConfigError("a YOLOS detects with its tokens", hint="detector='tokens', or start from a ViT")
    backbone = backbone_in(model, taker="head")
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
