"""vitlab's own recipes: any folder of images, with masks or boxes too; few images without a checkpoint; the quickstart."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vitlab.config.backbone import BackboneConfig, OnBackbone
from vitlab.config.data import Augment, LoaderConfig, Preprocess, SplitRule, augreg, feeding
from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.model import ModelConfig, variant
from vitlab.config.overrides import DataFacts, Machine, Overrides, RunFacts
from vitlab.config.run import RunConfig, RunData, can_keep_classes
from vitlab.config.segmenter import SegmenterConfig
from vitlab.config.train import (
    Average,
    Optimizer,
    Resizing,
    Schedule,
    TrainConfig,
    every,
    lr_for,
    pretraining_batch,
    scaled,
    steps_of,
    warmup_of,
)
from vitlab.config.vit import ViTConfig
from vitlab.config.vit_parts import ConvStem
from vitlab.errors import ConfigError
from vitlab.recipes.rules import (
    channels_for,
    fitted_model,
    new_model,
    plain_preprocess,
    precision_of,
    start_of,
    whole_patches,
    workers_of,
)

STROKES = DataFacts(
    dataset="synthetic:kind=strokes,classes=100,image_size=32,variety=0.5", images=100_000, classes=100, channels=1, side=32
)
DIGITS = DataFacts(dataset="digits", images=1_212, classes=10, channels=1, side=8)

_MINI = variant("ViT-Mini/8", pool="mean")
_REFERENCE_BATCH = 64
_BROKEN = 0.01  # of the images may be unreadable ...
_FEW_BROKEN, _MOST_BROKEN = 10, 0.1  # ... or ten images, but no more than a tenth
_UNEVEN = 3.0  # if the largest class has this many times the images of the smallest, rare classes are sampled more often
_OFTEN = 5.0  # epochs from which on photos are fine-tuned with more augmentation, and from a fitted head with ...
_KEEP = 0.3  # ... this weight of learning without forgetting, in place of label smoothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """How a recipe trains without overrides: `lr` is for batches of 64, `most` is the largest batch.

    `half`: in bfloat16 also on a CPU that has instructions for it.
    """

    most: int
    epochs: float
    lr: float
    weight_decay: float
    warmup: float
    average: float = 0.0
    layer_decay: float = 1.0
    smoothing: float = 0.1
    half: bool = False


def finetune_folder(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """Fine-tune a checkpoint on any labelled images: AdamW, layer-wise learning-rate decay, averaged weights, cosine.

    On a CPU: at most 160 px and no more than the images have, 60,000 images in total (fewer for a model larger than Ti, by the
    square root of its size), 3 to 20 epochs, batches of at most 64. With an accelerator: the checkpoint's own image size, 400,000
    images, 5 to 40 epochs, batches of at most 512. From 5 epochs on, photos are changed by RandAugment; if such a run begins with a
    fitted head, it learns without forgetting the checkpoint's classes, and without label smoothing. With LoRA the learning rate is
    the same for all layers.
    Command: vitlab finetune pets/ --from deit_tiny.npz
    Time: DeiT-Ti on 3,680 pets, on one core of an Intel Xeon: 7 epochs at 128 px 10 CPU-minutes, then 2.5 at 160 px 5 more.
    Score: of the 3,669 test pets 86.7 % after the first, 88.8 % after the second, one seed; commands in docs/guides/fine-tune.md.
    Both without RandAugment, from crops of a quarter of the image on, and evaluated on a centre crop of 0.875 of the shorter side.
    """
    start, data = start_of("finetune-folder", facts, overrides), _labelled("finetune-folder", facts.data)
    size = overrides.image_size or _folder_size(start.model, data, facts.machine)
    model = fitted_model(start.model, size, data.classes, channels=channels_for(start.model, data, overrides))
    fed = _whole(feeding(start.preprocess, model, resized=True)[0])
    most, seen, fewest, longest = (512, 400_000.0, 5, 40) if facts.machine.accelerator else (64, 60_000 / _times_ti(model), 3, 20)
    defaults = Defaults(
        most=most,
        epochs=min(max(seen / data.images, fewest), longest),
        lr=1e-3,
        weight_decay=0.05,
        warmup=0.1,
        average=0.999,
        layer_decay=0.75 if overrides.lora is None else 1.0,
        half=True,
    )
    often = (
        _epochs(overrides, data, defaults) >= _OFTEN and (data.channels, model.channels) == (3, 3) and overrides.resize != "native"
    )
    augment = _augment(overrides, _finetuning_augment(data, often=often), size)
    run = _run("finetune-folder", facts, overrides, data, model, defaults, augment, fed, start=start.path)
    keeps = can_keep_classes(start.model) and start.model.num_classes and overrides.lora is None and not overrides.patch_sizes
    if often and overrides.head == "fitted" and keeps:
        return replace(run, train=replace(run.train, lwf=_KEEP, smoothing=0.0))
    return run


def _finetuning_augment(data: DataFacts, *, often: bool) -> Augment:
    """A pretrained model learns photos that it sees often by heart: then RandAugment changes them, and crops are larger."""
    return Augment(
        area=(0.5, 1.0) if often else (0.25, 1.0),
        randaugment=(2, 9) if often else None,
        interpolation="bicubic",
        flip=_flip(data),
    )


def _whole(preprocess: Preprocess) -> Preprocess:
    """With the whole shorter side of the image in the centre crop: on Pets 0.5 to 1.2 points better than 0.875 of it."""
    if preprocess.resize != "short-side":
        return preprocess
    return replace(preprocess, resize_to=max(preprocess.image_size))


def small_data(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """A few thousand images and no checkpoint: convolutions with BatchNorm before few patches, Muon, and progressive resizing.

    Longer runs augment more: shifts and flips for up to 15 epochs, random crops up to 60, then RandAugment and mixup too.
    Command: vitlab finetune pets/          (without --from), or vitlab pretrain pets/ --recipe small-data --out runs/pets
    Time: about 300,000 images in total on a CPU; 409,088 of 32 px took 565 s on one core of an AMD EPYC, in bfloat16.
    Score: then 82.6 to 82.8 % on CIFAR-10's test split (trained on all 50,000 images), measured here, three seeds;
    a plain ViT with three times the parameters has 47.4 % after 600 s (benchmarks/time_to_accuracy.py). Starting from a checkpoint
    is worth far more.
    """
    data = _labelled("small-data", facts.data)
    side = 32 if data.side <= 48 else 128 if facts.machine.accelerator and data.side > 96 else 64
    fine = ConvStem(widths=(64, 128), units=(2, 3), activation="relu", norm="batch")
    coarse = ConvStem(widths=(32, 64, 128), units=(1, 2, 3), activation="relu", norm="batch")
    small = ViTConfig(
        width=128,
        depth=2,
        heads=2,
        mlp_width=512,
        patch_size=(2, 2),
        image_size=(side, side),
        conv_stem=fine if side == 32 else coarse,
        pool="mean",
        class_token=False,
    )
    model = new_model("small-data", facts, overrides, small, classes=data.classes, channels=data.channels)
    seen = 2_000_000 if facts.machine.accelerator else 300_000
    defaults = Defaults(
        most=512 if facts.machine.accelerator else 256,
        epochs=min(max(seen / data.images, 6), 200),
        lr=4e-3,
        weight_decay=0.02,
        warmup=0.1,
        half=True,
    )
    augment = _augment(overrides, _augment_for(_epochs(overrides, data, defaults), data, model.image_size), model.image_size)
    run = _run(
        "small-data", facts, overrides, data, model, defaults, augment, plain_preprocess(model, margin=1.0, interpolation="bicubic")
    )
    optimizer = replace(run.train.optimizer, kind="muon", momentum=0.95, adam_lr=0.6 * run.train.optimizer.lr)
    schedule = replace(run.train.schedule, kind="linear")
    return replace(run, train=replace(run.train, optimizer=optimizer, schedule=schedule, progressive_resizing=_resizing(model)))


def _epochs(overrides: Overrides, data: DataFacts, defaults: Defaults) -> float:
    """Passes over the training images."""
    if overrides.steps is None:
        return overrides.epochs or defaults.epochs
    return overrides.steps * (overrides.batch_size or pretraining_batch(data.images, most=defaults.most)) / data.images


def _augment_for(epochs: float, data: DataFacts, size: tuple[int, int]) -> Augment:
    """Images that the model sees only a few times need little augmentation; images that it sees often need much."""
    if epochs <= 15 and data.side <= 48:
        return Augment(crop="pad", padding=max(size) // 8, flip=_flip(data), interpolation="bicubic")
    if epochs <= 60:
        return Augment(area=(0.5, 1.0), flip=_flip(data), interpolation="bicubic")
    return Augment(area=(0.3, 1.0), flip=_flip(data), randaugment=(2, 5), mixup=0.2, interpolation="bicubic")


def _resizing(model: ModelConfig) -> Resizing:
    """Images of 75 % of the side for half of the steps; none if those sizes have no whole patches."""
    steps: Resizing = ((0.0, 0.75), (0.5, 1.0))
    if not isinstance(model, ViTConfig) or model.position.kind == "relative" or model.attention != "global":
        return ()
    fits = all(
        side % step == 0 for _, scale in steps for side, step in zip(scaled(model.image_size, scale), model.step, strict=True)
    )
    return steps if fits else ()


def quickstart(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """First steps: a tiny ViT learns 100 invented letters, which are drawn during training. Nothing is downloaded.

    Command: vitlab pretrain --recipe quickstart --out runs/quickstart
    Time: about 40 s on one core of an Intel Xeon.
    Score: 79.6 % accuracy on 2,000 held-out letters of 100 classes; measured here.
    """
    data = facts.data or STROKES
    model = new_model("quickstart", facts, overrides, _MINI, classes=data.classes, channels=data.channels)
    defaults = Defaults(most=128, epochs=1.0, lr=2e-3, weight_decay=0.05, warmup=0.1, smoothing=0.0)
    augment = _augment(overrides, Augment(crop="squash", flip=0.0), model.image_size)
    preprocess = plain_preprocess(model, margin=1.0, interpolation="bilinear")
    run = _run("quickstart", facts, overrides, data, model, defaults, augment, preprocess)
    # No cache: drawing all images beforehand would only delay the first step. 2,000 of 100,000 images are enough to evaluate.
    loader, rule = replace(run.data.loader, cache="none"), overrides.rule or SplitRule(val=0.02, test=0.02)
    return replace(run, data=replace(run.data, loader=loader, rule=rule))


def quickstart_finetune(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """Second steps: 1,797 real handwritten digits of 8 x 8 pixels, from the checkpoint of `quickstart` or from scratch.

    Command: vitlab finetune digits --recipe quickstart-finetune --from runs/quickstart
    Time: 15 s on one core of an Intel Xeon.
    Score: in `vitlab quickstart`, at 48 px and 600 updates, 99.1 % of the 450 test digits from the checkpoint of `quickstart` and
    97.1 % from scratch, each at its best learning rate; measured here, one seed each.
    """
    data = facts.data or DIGITS
    if facts.start is None:
        model = new_model("quickstart-finetune", facts, overrides, _MINI, classes=data.classes, channels=data.channels)
        fed = plain_preprocess(model, margin=1.0, interpolation="bilinear")
    else:
        start = start_of("quickstart-finetune", facts, overrides)
        size, channels = overrides.image_size or start.model.image_size, channels_for(start.model, data, overrides)
        model = fitted_model(start.model, size, data.classes, channels=channels)
        fed, _ = feeding(start.preprocess, model, resized=True)
    defaults = Defaults(most=64, epochs=20.0, lr=1e-3, weight_decay=0.05, warmup=0.1, smoothing=0.0)
    augment = _augment(overrides, Augment(crop="pad", padding=2, flip=0.0, fill=0), model.image_size)
    path = None if facts.start is None else facts.start.path
    return _run("quickstart-finetune", facts, overrides, data, model, defaults, augment, fed, start=path)


def _labelled(name: str, data: DataFacts | None) -> DataFacts:
    if data is None:
        raise ConfigError(f"{name} needs a dataset", hint="recipe(..., data=survey(FOLDER)), or vitlab finetune FOLDER")
    if not data.classes:
        raise ConfigError(f"{data.dataset} has no labels", hint="`recipe=masked` trains without labels")
    return data


def _folder_size(model: ModelConfig, data: DataFacts, machine: Machine) -> tuple[int, int]:
    """The checkpoint's own size; on a CPU at most 160 px and no more than the images have, but at least 96."""
    limit = min(max(data.side, 96), 160)
    if machine.accelerator or max(model.image_size) <= limit:
        return model.image_size
    return whole_patches(model, limit)


def _times_ti(model: ModelConfig) -> float:
    """The square root of how many times larger than ViT-Ti a model is, at least 1; other families count as ViT-S."""
    size = model.depth * model.width**2 if isinstance(model, ViTConfig) else 12 * 384**2
    return max(1.0, math.sqrt(size / (12 * 192**2)))


def _flip(data: DataFacts) -> float:
    """No flips for grey images: most are writing or scans, and a mirrored letter is another letter."""
    return 0.0 if data.channels == 1 else 0.5


def _augment(overrides: Overrides, own: Augment, image_size: tuple[int, int]) -> Augment:
    """The recipe's own augmentation, or the requested preset with the recipe's flips."""
    chosen = own if overrides.preset is None else replace(augreg(overrides.preset), flip=own.flip, interpolation=own.interpolation)
    return replace(chosen, image_size=image_size, resize_to=max(chosen.resize_to, *image_size))


def _run(
    name: str,
    facts: RunFacts,
    overrides: Overrides,
    data: DataFacts,
    model: ModelConfig,
    defaults: Defaults,
    augment: Augment,
    preprocess: Preprocess,
    *,
    start: str | None = None,
) -> RunConfig:
    batch = overrides.batch_size or pretraining_batch(data.images, most=defaults.most)
    steps = steps_of(overrides.epochs or defaults.epochs, data.images, batch) if overrides.steps is None else overrides.steps
    uneven = data.imbalance >= _UNEVEN and not data.multi_label
    # Once an epoch, but about 5 to 20 times a run.
    interval = max(every(steps, times=20), min(max(1, data.images // batch), every(steps, times=5)))
    return RunConfig(
        name=name,
        model=model,
        data=RunData(
            dataset=data.dataset,
            evaluate_split="val" if "val" in data.splits else None,
            rule=overrides.rule or SplitRule(),
            augment=augment,
            loader=LoaderConfig(
                batch_size=batch,
                seed=overrides.seed or 0,
                workers=workers_of(facts.machine, images=steps * batch + (data.images if overrides.head == "fitted" else 0)),
                balance=0.5 if uneven else 0.0,
                corrupt="skip",
                corrupt_budget=min(max(_BROKEN, _FEW_BROKEN / max(data.images, 1)), _MOST_BROKEN),
            ),
        ),
        train=TrainConfig(
            steps=steps,
            head=overrides.head or "zero",
            optimizer=Optimizer(
                lr=overrides.lr or lr_for(defaults.lr, batch=batch, reference=_REFERENCE_BATCH, kind="adamw"),
                weight_decay=defaults.weight_decay,
                layer_decay=defaults.layer_decay,
            ),
            schedule=Schedule(warmup=warmup_of(steps, fraction=defaults.warmup, most=steps)),
            average=Average(decay=defaults.average),
            loss="sigmoid" if data.multi_label else "softmax",
            smoothing=0.0 if data.multi_label else defaults.smoothing,
            precision=precision_of(facts.machine, also_on_cpu=defaults.half),
            evaluate_every=interval,
            save_every=interval,
            seed=overrides.seed or 0,
        ),
        preprocess=preprocess,
        start=start,
    )


# --- segmentation and detection ----------------------------------------------------------------------------------------------

# Both recipes say where a run starts, its image size and its length; `dense_run` has the settings that they share.

_DENSE_BATCH = 32
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
        size = overrides.image_size or _dense_size(None, data, facts)
        model = new_model(name, facts, overrides, _SCRATCH, classes=data.classes, channels=data.channels)
        fed = plain_preprocess(model, margin=1.0, interpolation="bilinear")
        return Beginning(model=model, preprocess=fed, image_size=size, path=None)
    start = start_of(name, facts, overrides)
    size = overrides.image_size or _dense_size(start.model, data, facts)
    return Beginning(model=start.model, preprocess=start.preprocess, image_size=size, path=start.path)


def _dense_size(model: ModelConfig | None, data: DataFacts, facts: RunFacts) -> tuple[int, int]:
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
                lr=overrides.lr or lr_for(lr, batch=batch, reference=_DENSE_BATCH, kind="adamw"),
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
