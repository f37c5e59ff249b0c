"""Pre-training as published: Table 3 and masked patch prediction of the paper, and the AugReg runs after it.

What Table 3 leaves open is from the authors' answers and code: sigmoid cross-entropy with labels smoothed by 1e-4, the hidden
layer of the head as wide as the model, the head's bias at -10, the linear schedule's end at 1e-5, inception crops and flips.
On other data than the published, the rules of `scale.py` apply.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from vitlab.config.augment import Augment, augreg
from vitlab.config.ingredients import new_model, plain_preprocess, precision_of, workers_of
from vitlab.config.loader import LoaderConfig
from vitlab.config.model import ModelConfig, Position, ViTConfig
from vitlab.config.paper_tables import IMAGENET, IMAGENET21K, JFT, row_of
from vitlab.config.run import RunConfig, RunData
from vitlab.config.scale import every, pretraining_batch, rate_for, steps_of, warmup_of
from vitlab.config.source import SplitRule
from vitlab.config.train import LossKind, Masked, Optimizer, Schedule, ScheduleKind, TrainConfig
from vitlab.config.variants import called, name_of
from vitlab.config.wish import DataFacts, Wish
from vitlab.errors import ConfigError

_BATCH = 4096  # Table 3
_WARMUP = 10_000  # Table 3
_MASKED_STEPS = 1_000_000  # app. B.1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A published pre-training: on `reference`, so many epochs of batches of `batch`, ...; what `scale.py` scales."""

    reference: DataFacts
    epochs: float
    lr: float
    weight_decay: float
    batch: int = _BATCH
    schedule: ScheduleKind = "cosine"
    clip: float = 1.0
    loss: LossKind = "sigmoid"
    smoothing: float = 0.0
    masked: Masked | None = None
    augment: Augment = field(default_factory=lambda: Augment(interpolation="tf-bilinear"))


def imagenet_scratch(wish: Wish) -> RunConfig:
    """ViT from random values on ImageNet-1k: Table 3's last row, 300 epochs, cosine, weight decay 0.3, clipping at 1.

    Command: vitlab pretrain --recipe imagenet-scratch --model ViT-B/16 --data imagenet/ --out runs/b16
    Time: 300 epochs of B/16 are 4e19 multiply-adds, forward and back: days on eight large GPUs. Not measured here.
    Score: top-1 at 224 px by the authors: B/32 69.19, B/16 74.79, L/32 66.90, L/16 72.59. Not run here.
    """
    return _table_3("imagenet-scratch", wish, IMAGENET, clip=1.0)


def imagenet21k(wish: Wish) -> RunConfig:
    """ViT on ImageNet-21k: Table 3, 90 epochs (of 30 and 90 for L), linear decay, weight decay 0.03, dropout 0.1.

    Command: vitlab pretrain --recipe imagenet21k --model ViT-L/16 --data imagenet21k/ --out runs/l16
    Time: Table 2 has 230 TPUv3-core-days for L/16. Not measured here.
    Score: top-1 on held-out pictures by the authors: B/16 47.88, B/32 44.04, L/16 49.90, L/32 45.42. Not run here.
    """
    return _table_3("imagenet21k", wish, IMAGENET21K, clip=0.0)


def jft(wish: Wish) -> RunConfig:
    """ViT, hybrids and BiT ResNets on JFT-300M, or on any large set: Table 3, 7 or 14 epochs, linear decay, weight decay 0.1.

    Command: vitlab pretrain --recipe jft --model ViT-H/14 --data shards/ --out runs/h14
    Time: Table 2 has 2,500 TPUv3-core-days for H/14 and 680 for L/16. JFT is not public. Not measured here.
    Score: fine-tuned on ImageNet, Table 6: from 80.73 (B/32, 7 epochs) to 88.08 (H/14, 14 epochs). Not run here.
    """
    return _table_3("jft", wish, JFT, clip=0.0)


def masked(wish: Wish) -> RunConfig:
    """Masked patch prediction (B.1.2): half of the patch embeddings corrupted, their mean 3-bit colour predicted. No labels.

    Command: vitlab pretrain --recipe masked --model ViT-B/16 --data pictures:unlabelled/ --out runs/masked
    Time: 1M steps of 4,096 pictures; the authors saw little more after 100,000. Not measured here.
    Score: B/16 then fine-tuned on ImageNet: 79.9, 2 points above training from scratch. Not run here.
    """
    model = new_model("masked", wish, "ViT-B/16", classes=0, channels=3)  # its target is a colour
    if not isinstance(model, ViTConfig):
        raise ConfigError(f"masked patch prediction needs a ViT, and this is {called(model)}")
    epochs = _MASKED_STEPS * _BATCH / JFT.pictures
    # B.1.2 names no weight decay and no clipping.
    course = Course(reference=JFT, epochs=epochs, lr=2e-4, weight_decay=0.0, clip=0.0, loss="softmax", masked=Masked())
    return _run("masked", wish, model, course)


def augreg_i1k(wish: Wish) -> RunConfig:
    """ViT on ImageNet-1k with AugReg (Steiner et al. 2021): 300 epochs, rate 1e-3, weight decay 0.1, one of seven augmentations.

    The augmentation is `preset`, or what suits the model best by their Fig. 4.
    Command: vitlab pretrain --recipe augreg-i1k --model ViT-S/16 --preset medium2 --data imagenet/ --out runs/s16
    Time: not measured here.
    Score: not published model by model for ImageNet-1k alone at 224 px. Not run here.
    """
    model = _labelled_model("augreg-i1k", wish, IMAGENET)
    if isinstance(model, ViTConfig):
        model = replace(model, representation_width=model.width)
    return _augreg("augreg-i1k", wish, replace(model, head_bias=-6.9), IMAGENET, _I1K_PRESETS)


def augreg_i21k(wish: Wish) -> RunConfig:
    """ViT on ImageNet-21k with AugReg: 300 epochs, rate 1e-3, weight decay 0.1, mean pooling, one of seven augmentations.

    Command: vitlab pretrain --recipe augreg-i21k --model ViT-B/16 --preset light2 --data imagenet21k/ --out runs/b16
    Time: not measured here.
    Score: fine-tuned on ImageNet at 384 px: Ti/16 78.22, S/16 83.73, B/16 85.49, L/16 85.59 at best. Not run here.
    """
    model = _labelled_model("augreg-i21k", wish, IMAGENET21K)
    if isinstance(model, ViTConfig):
        model = replace(model, pool="mean", class_token=False)
    return _augreg("augreg-i21k", wish, replace(model, head_bias=-10.0), IMAGENET21K, _I21K_PRESETS)


def s16_i1k(wish: Wish) -> RunConfig:
    """The plain good baseline (Beyer et al. 2022): S/16, 90 epochs of ImageNet-1k, batch 1,024, mean pooling, fixed 2-D positions.

    RandAugment (2, 10) and mixup 0.2, softmax, rate 1e-3, weight decay 0.1, 10,000 steps of warm-up.
    Command: vitlab pretrain --recipe s16-i1k --data imagenet/ --out runs/s16
    Time: 6 to 7 hours on a TPU v3-8 by its authors. Not measured here.
    Score: 76.5 top-1 by its authors. Not run here.
    """
    model = _labelled_model("s16-i1k", wish, IMAGENET, default="ViT-S/16")
    if isinstance(model, ViTConfig):
        position = Position(kind="sincos-2d")
        model = replace(model, pool="mean", class_token=False, position=position, representation_width=model.width)
    augment = replace(augreg("light2"), interpolation="tf-bilinear")
    course = Course(reference=IMAGENET, epochs=90, lr=1e-3, weight_decay=0.1, batch=1024, loss="softmax", augment=augment)
    return _run("s16-i1k", wish, model, course)


# The augmentation that suits each model best, by Fig. 4 of AugReg as its authors' code has it.
_I1K_PRESETS = {
    "ViT-Ti/16": "light1",
    "ViT-S/32": "light2",
    "ViT-S/16": "medium2",
    "ViT-B/32": "medium2",
    "ViT-B/16": "medium2",
    "ViT-L/16": "medium2",
}
_I21K_PRESETS = {
    "ViT-Ti/16": "none",
    "ViT-S/32": "none",
    "ViT-S/16": "light1",
    "ViT-B/32": "light2",
    "ViT-B/16": "light2",
    "ViT-L/16": "medium2",
}


def _augreg(name: str, wish: Wish, model: ModelConfig, reference: DataFacts, presets: dict[str, str]) -> RunConfig:
    preset = wish.preset or presets.get(name_of(model) or "", "medium1")
    augment = replace(augreg(preset), interpolation="tf-bilinear")
    return _run(name, wish, model, Course(reference=reference, epochs=300, lr=1e-3, weight_decay=0.1, augment=augment))


def _table_3(name: str, wish: Wish, reference: DataFacts, *, clip: float) -> RunConfig:
    model = _labelled_model(name, wish, reference)
    row, _ = row_of(name, model)
    if isinstance(model, ViTConfig):
        model = replace(model, dropout=row.dropout, representation_width=model.width, head_bias=-10.0)
    else:
        model = replace(model, head_bias=-10.0)
    course = Course(
        reference=reference,
        epochs=max(row.epochs),
        lr=row.lr,
        weight_decay=row.weight_decay,
        schedule=row.schedule,
        clip=clip,
        smoothing=1e-4,
    )
    return _run(name, wish, model, course)


def _labelled_model(name: str, wish: Wish, reference: DataFacts, *, default: str = "ViT-B/16") -> ModelConfig:
    data = wish.data or reference
    if not data.classes:
        raise ConfigError(f"{data.source} has no labels, which {name} learns", hint="--recipe masked learns without labels")
    return new_model(name, wish, default, classes=data.classes, channels=data.channels)


def _run(name: str, wish: Wish, model: ModelConfig, course: Course) -> RunConfig:
    """The course, on the data and with the batch and length wished for."""
    data = wish.data or course.reference
    batch = wish.batch_size or pretraining_batch(data.pictures, most=course.batch)
    steps = wish.steps or steps_of(wish.epochs or course.epochs, data.pictures, batch)
    published = steps_of(course.epochs, course.reference.pictures, course.batch)
    return RunConfig(
        name=name,
        model=model,
        data=RunData(
            source=data.source,
            evaluate_split="val" if "val" in data.parts else None,
            rule=wish.rule or SplitRule(),
            augment=replace(course.augment, image_size=model.image_size),
            loader=LoaderConfig(batch_size=batch, seed=wish.seed, workers=workers_of(wish.machine)),
        ),
        train=TrainConfig(
            steps=steps,
            optimizer=Optimizer(
                lr=wish.lr or rate_for(course.lr, batch=batch, reference=course.batch, kind="adamw"),
                weight_decay=course.weight_decay,
                clip=course.clip,
            ),
            schedule=Schedule(
                kind=course.schedule,
                warmup=warmup_of(steps, share=_WARMUP / published, most=_WARMUP),
                end=1e-5 if course.schedule == "linear" else 0.0,
            ),
            loss=course.loss,
            smoothing=course.smoothing,
            masked=course.masked,
            precision=precision_of(wish.machine),
            evaluate_every=every(steps, times=20),
            save_every=every(steps, times=50),
            seed=wish.seed,
        ),
        preprocess=plain_preprocess(model, margin=256 / 224, interpolation="tf-bilinear"),
    )
