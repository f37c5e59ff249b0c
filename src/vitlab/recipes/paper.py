"""The recipes of the paper and of AugReg: Tables 3 and 4 as data, and a function for each recipe.

Pre-training: Table 3, masked patch prediction (app. B.1.2), and the later AugReg runs. What Table 3 leaves open is from the
authors' answers and code: sigmoid cross-entropy with label smoothing 1e-4, a pre-training head whose hidden layer has the model's
width, the head's bias at -10, a linear schedule that ends at 1e-5, inception crops and flips.

Fine-tuning: Table 4 and app. B.1.1, each dataset with its own steps and learning rates, at 384 px with a new head of zeros. What
they leave open is from the authors' code: inception crops and flips, test images resized to a square, and a warm-up of 500 steps
(100 for runs of 500), counted in batches of 512.

On other data than the published, the rules of `vitlab.config.train` apply.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from vitlab.config.data import Augment, LoaderConfig, SplitRule, augreg, feeding
from vitlab.config.model import ModelConfig, variant
from vitlab.config.overrides import DataFacts, Overrides, RunFacts
from vitlab.config.resnet import ResNetConfig
from vitlab.config.run import RunConfig, RunData
from vitlab.config.train import (
    Average,
    LossKind,
    Masked,
    Optimizer,
    Schedule,
    ScheduleKind,
    TrainConfig,
    every,
    finetuning_batch,
    lr_for,
    pretraining_batch,
    steps_like,
    steps_of,
    warmup_of,
)
from vitlab.config.vit import Position, ViTConfig
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

IMAGENET = DataFacts(dataset="imagenet", images=1_281_167, classes=1000, side=400, splits=("train", "val"))
IMAGENET21K = DataFacts(dataset="imagenet21k", images=14_197_122, classes=21_843, side=400)
JFT = DataFacts(dataset="jft", images=303_000_000, classes=18_291, side=400)  # section 4.1: 303M images, 18k classes
CIFAR10 = DataFacts(dataset="cifar10", images=50_000, classes=10, side=32)
CIFAR100 = DataFacts(dataset="cifar100", images=50_000, classes=100, side=32)
PETS = DataFacts(dataset="pets", images=3_680, classes=37, side=375)
FLOWERS = DataFacts(dataset="flowers", images=2_040, classes=102, side=500)
VTAB = DataFacts(dataset="vtab", images=1_000, classes=100, side=256)
PUBLISHED_DATA = {facts.dataset: facts for facts in (IMAGENET, IMAGENET21K, JFT, CIFAR10, CIFAR100, PETS, FLOWERS, VTAB)}
"""The datasets of the published recipes by name; a recipe without data is for its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainRow:
    """A row of Table 3; of two numbers of epochs the recipe takes the larger."""

    models: tuple[str, ...]
    epochs: tuple[int, ...]
    lr: float
    schedule: ScheduleKind
    weight_decay: float
    dropout: float


def _jft(models: tuple[str, ...], lr: float, *epochs: int) -> PretrainRow:
    return PretrainRow(models=models, epochs=epochs, lr=lr, schedule="linear", weight_decay=0.1, dropout=0.0)


TABLE_3: dict[str, tuple[PretrainRow, ...]] = {
    "jft": (
        _jft(("ViT-B/16", "ViT-B/32"), 8e-4, 7),
        _jft(("ViT-L/32",), 6e-4, 7),
        _jft(("ViT-L/16",), 4e-4, 7, 14),
        _jft(("ViT-H/14",), 3e-4, 14),
        _jft(("BiT-R50x1", "BiT-R50x2"), 1e-3, 7),
        _jft(("BiT-R101x1",), 8e-4, 7),
        _jft(("BiT-R152x1", "BiT-R152x2"), 6e-4, 7),
        _jft(("R50+ViT-B/16", "R50+ViT-B/32"), 8e-4, 7),
        _jft(("R50+ViT-L/32",), 2e-4, 7),
        _jft(("R50+ViT-L/16",), 4e-4, 7, 14),
    ),
    "imagenet21k": (
        PretrainRow(models=("ViT-B/16", "ViT-B/32"), epochs=(90,), lr=1e-3, schedule="linear", weight_decay=0.03, dropout=0.1),
        PretrainRow(models=("ViT-L/16", "ViT-L/32"), epochs=(30, 90), lr=1e-3, schedule="linear", weight_decay=0.03, dropout=0.1),
    ),
    "imagenet-scratch": (  # "ViT-*": one row for all
        PretrainRow(
            models=("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32"),
            epochs=(300,),
            lr=3e-3,
            schedule="cosine",
            weight_decay=0.3,
            dropout=0.1,
        ),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneRow:
    """A row of Table 4 with its dev split (B.1.1); `lr` is the learning rate without a sweep over `lrs`."""

    data: DataFacts
    steps: int
    lrs: tuple[float, ...]
    lr: float
    dev: float


_SMALL_LRS = (0.001, 0.003, 0.01, 0.03)
TABLE_4: dict[str, FinetuneRow] = {
    "finetune-imagenet": FinetuneRow(data=IMAGENET, steps=20_000, lrs=(0.003, 0.01, 0.03, 0.06), lr=0.03, dev=0.01),
    "finetune-cifar10": FinetuneRow(data=CIFAR10, steps=10_000, lrs=_SMALL_LRS, lr=0.01, dev=0.02),
    "finetune-cifar100": FinetuneRow(data=CIFAR100, steps=10_000, lrs=_SMALL_LRS, lr=0.03, dev=0.02),
    "finetune-pets": FinetuneRow(data=PETS, steps=500, lrs=_SMALL_LRS, lr=0.01, dev=0.1),
    "finetune-flowers": FinetuneRow(data=FLOWERS, steps=500, lrs=_SMALL_LRS, lr=0.01, dev=0.1),
    "finetune-vtab": FinetuneRow(data=VTAB, steps=2_500, lrs=(0.01,), lr=0.01, dev=0.2),
}


def row_of(table: str, model: ModelConfig) -> tuple[PretrainRow, str | None]:
    """The row of Table 3 for a model; if no row has it, also the name of the listed model whose row it takes.

    That is the nearest in size, then in patch size; hybrids count as their ViT (B.1). Models of other families take the first row,
    that of the smallest ViT.
    """
    rows = TABLE_3[table]
    name = model.name
    for row in rows:
        if name in row.models:
            return row, None
    if not isinstance(model, ViTConfig | ResNetConfig):
        return rows[0], rows[0].models[0]
    listed = {other: row for row in rows for other in row.models if type(variant(other)) is type(model) and "+" not in other}
    if not listed:
        raise ConfigError(f"Table 3 has no ResNet for {table}", hint="its ResNets were trained on JFT: `recipe=jft`")
    nearest = min(listed, key=lambda other: _distance(model, variant(other)))
    return listed[nearest], nearest


def _distance(model: ModelConfig, other: ModelConfig) -> tuple[float, float]:
    """The logarithm of the ratio of sizes, then of patch sizes."""
    if isinstance(model, ViTConfig) and isinstance(other, ViTConfig):
        return (
            abs(math.log(model.depth * model.width**2 / (other.depth * other.width**2))),
            abs(math.log(model.step[0] / other.step[0])),
        )
    assert isinstance(model, ResNetConfig)
    assert isinstance(other, ResNetConfig)
    return abs(math.log(sum(model.blocks) / sum(other.blocks))), abs(math.log(model.width_factor / other.width_factor))


def sweep_lrs(recipe: str, model: ModelConfig, *, batch: int) -> tuple[float, ...]:
    """Table 4's learning rates for a recipe, scaled for another batch size than 512.

    0.06 is for ResNets and hybrids only (B.1.1).
    """
    plain = isinstance(model, ViTConfig) and model.stem is None
    lrs = [lr for lr in TABLE_4[recipe].lrs if not (plain and lr == 0.06)]
    return tuple(lr_for(lr, batch=batch, reference=512, kind="sgd") for lr in lrs)


_BATCH = 4096  # Table 3
_WARMUP = 10_000  # Table 3
_MASKED_STEPS = 1_000_000  # app. B.1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretraining:
    """A published pre-training run on `reference`; `vitlab.config.train` scales it to other data."""

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


def imagenet_scratch(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """ViT from scratch on ImageNet-1k: Table 3's last row, 300 epochs, cosine, weight decay 0.3, clipping at 1.

    Command: vitlab pretrain imagenet/ --recipe imagenet-scratch --model ViT-B/16 --out runs/b16
    Time: 300 epochs of B/16 are 2e19 multiply-adds, forward and back: `vitlab plan ViT-B/16` has the hours. Not measured here.
    Score: top-1 at 224 px by the authors: B/32 69.19, B/16 74.79, L/32 66.90, L/16 72.59. Not run here.
    """
    return _table_3("imagenet-scratch", facts, overrides, IMAGENET, clip=1.0)


def imagenet21k(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """ViT on ImageNet-21k: Table 3, 90 epochs (of 30 and 90 for L), linear decay, weight decay 0.03, dropout 0.1.

    Command: vitlab pretrain imagenet21k/ --recipe imagenet21k --model ViT-L/16 --out runs/l16
    Time: Table 2 has 230 TPUv3-core-days for L/16. Not measured here.
    Score: top-1 on held-out images by the authors: B/16 47.88, B/32 44.04, L/16 49.90, L/32 45.42. Not run here.
    """
    return _table_3("imagenet21k", facts, overrides, IMAGENET21K, clip=0.0)


def jft(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """ViT, hybrids and BiT ResNets on JFT-300M, or on any large dataset: Table 3, 7 or 14 epochs, linear decay, weight decay 0.1.

    Command: vitlab pretrain shards/ --recipe jft --model ViT-H/14 --out runs/h14
    Time: Table 2 has 2,500 TPUv3-core-days for H/14 and 680 for L/16. JFT is not public. Not measured here.
    Score: fine-tuned on ImageNet, Table 6: from 80.73 (B/32, 7 epochs) to 88.08 (H/14, 14 epochs). Not run here.
    """
    return _table_3("jft", facts, overrides, JFT, clip=0.0)


def masked(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """Masked patch prediction (B.1.2): half of the patch embeddings corrupted, their mean 3-bit colour predicted. No labels.

    Command: vitlab pretrain images:unlabelled/ --recipe masked --model ViT-B/16 --out runs/masked
    Time: 1M steps of 4,096 images; the authors saw little more after 100,000. Not measured here.
    Score: B/16 then fine-tuned on ImageNet: 79.9, 2 points above training from scratch. Not run here.
    """
    if overrides.channels not in (None, 3):
        raise ConfigError(f"masked patch prediction predicts colours of 3 channels, not of {overrides.channels}")
    model = new_model("masked", facts, overrides, "ViT-B/16", classes=0, channels=3)  # the target is a colour
    if not isinstance(model, ViTConfig):
        raise ConfigError(f"masked patch prediction needs a ViT, not {model.title}")
    epochs = _MASKED_STEPS * _BATCH / JFT.images
    # B.1.2 names no weight decay and no clipping.
    published = Pretraining(reference=JFT, epochs=epochs, lr=2e-4, weight_decay=0.0, clip=0.0, loss="softmax", masked=Masked())
    return _run("masked", facts, overrides, model, published)


def augreg_i1k(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """ViT on ImageNet-1k with AugReg (Steiner et al. 2021): 300 epochs, lr 1e-3, weight decay 0.1, one of seven augmentations.

    The augmentation is `preset`, or the best for the model by their Fig. 4.
    Command: vitlab pretrain imagenet/ --recipe augreg-i1k --model ViT-S/16 --preset medium2 --out runs/s16
    Time: not measured here.
    Score: not published model by model for ImageNet-1k alone at 224 px. Not run here.
    """
    model = _labelled_model("augreg-i1k", facts, overrides, IMAGENET)
    if isinstance(model, ViTConfig):
        model = replace(model, representation_width=model.width)
    return _augreg("augreg-i1k", facts, overrides, replace(model, head_bias=-6.9), IMAGENET, _I1K_PRESETS)


def augreg_i21k(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """ViT on ImageNet-21k with AugReg: 300 epochs, lr 1e-3, weight decay 0.1, mean pooling, one of seven augmentations.

    Command: vitlab pretrain imagenet21k/ --recipe augreg-i21k --model ViT-B/16 --preset light2 --out runs/b16
    Time: not measured here.
    Score: fine-tuned on ImageNet at 384 px: Ti/16 78.22, S/16 83.73, B/16 85.49, L/16 85.59 at best. Not run here.
    """
    model = _labelled_model("augreg-i21k", facts, overrides, IMAGENET21K)
    if isinstance(model, ViTConfig):
        model = replace(model, pool="mean", class_token=False)
    return _augreg("augreg-i21k", facts, overrides, replace(model, head_bias=-10.0), IMAGENET21K, _I21K_PRESETS)


def s16_i1k(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """The plain good baseline (Beyer et al. 2022): S/16, 90 epochs of ImageNet-1k, batch 1,024, mean pooling, fixed 2-D positions.

    RandAugment (2, 10) and mixup 0.2, softmax, lr 1e-3, weight decay 0.1, 10,000 steps of warm-up.
    Command: vitlab pretrain imagenet/ --recipe s16-i1k --out runs/s16
    Time: 6 to 7 hours on a TPU v3-8 by its authors. Not measured here.
    Score: 76.5 top-1 by its authors. Not run here.
    """
    model = _labelled_model("s16-i1k", facts, overrides, IMAGENET, default="ViT-S/16")
    if isinstance(model, ViTConfig):
        position = Position(kind="sincos-2d")
        model = replace(model, pool="mean", class_token=False, position=position, representation_width=model.width)
    augment = replace(augreg("light2"), interpolation="tf-bilinear")
    published = Pretraining(reference=IMAGENET, epochs=90, lr=1e-3, weight_decay=0.1, batch=1024, loss="softmax", augment=augment)
    return _run("s16-i1k", facts, overrides, model, published)


# The best augmentation for each model, by Fig. 4 of AugReg and its authors' code.
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


def _augreg(
    name: str, facts: RunFacts, overrides: Overrides, model: ModelConfig, reference: DataFacts, presets: dict[str, str]
) -> RunConfig:
    preset = overrides.preset or presets.get(model.name or "", "medium1")
    augment = replace(augreg(preset), interpolation="tf-bilinear")
    published = Pretraining(reference=reference, epochs=300, lr=1e-3, weight_decay=0.1, augment=augment)
    return _run(name, facts, overrides, model, published)


def _table_3(name: str, facts: RunFacts, overrides: Overrides, reference: DataFacts, *, clip: float) -> RunConfig:
    model = _labelled_model(name, facts, overrides, reference)
    row, _ = row_of(name, model)
    if isinstance(model, ViTConfig):
        model = replace(model, dropout=row.dropout, representation_width=model.width, head_bias=-10.0)
    else:
        model = replace(model, head_bias=-10.0)
    published = Pretraining(
        reference=reference,
        epochs=max(row.epochs),
        lr=row.lr,
        weight_decay=row.weight_decay,
        schedule=row.schedule,
        clip=clip,
        smoothing=1e-4,
    )
    return _run(name, facts, overrides, model, published)


def _labelled_model(
    name: str, facts: RunFacts, overrides: Overrides, reference: DataFacts, *, default: str = "ViT-B/16"
) -> ModelConfig:
    data = facts.data or reference
    if not data.classes:
        raise ConfigError(f"{name} needs labels, and {data.dataset} has none", hint="`recipe=masked` trains without labels")
    return new_model(name, facts, overrides, default, classes=data.classes, channels=data.channels)


def _run(name: str, facts: RunFacts, overrides: Overrides, model: ModelConfig, published: Pretraining) -> RunConfig:
    """The published run, scaled to the data, with overrides."""
    data = facts.data or published.reference
    batch = overrides.batch_size or pretraining_batch(data.images, most=published.batch)
    steps = overrides.steps or steps_of(overrides.epochs or published.epochs, data.images, batch)
    published_steps = steps_of(published.epochs, published.reference.images, published.batch)
    return RunConfig(
        name=name,
        model=model,
        data=RunData(
            dataset=data.dataset,
            evaluate_split="val" if "val" in data.splits else None,
            rule=overrides.rule or SplitRule(),
            augment=replace(published.augment, image_size=model.image_size),
            loader=LoaderConfig(batch_size=batch, seed=overrides.seed or 0, workers=workers_of(facts.machine)),
        ),
        train=TrainConfig(
            steps=steps,
            optimizer=Optimizer(
                lr=overrides.lr or lr_for(published.lr, batch=batch, reference=published.batch, kind="adamw"),
                weight_decay=published.weight_decay,
                clip=published.clip,
            ),
            schedule=Schedule(
                kind=published.schedule,
                warmup=warmup_of(steps, fraction=_WARMUP / published_steps, most=_WARMUP),
                end=1e-5 if published.schedule == "linear" else 0.0,
            ),
            loss=published.loss,
            smoothing=published.smoothing,
            masked=published.masked,
            precision=precision_of(facts.machine),
            evaluate_every=every(steps, times=20, least=_LEAST_INTERVAL),
            save_every=every(steps, times=50, least=_LEAST_INTERVAL),
            seed=overrides.seed or 0,
        ),
        preprocess=plain_preprocess(model, margin=256 / 224, interpolation="tf-bilinear"),
    )


_LEAST_INTERVAL = 50  # steps between two evaluations of a short pre-training run, which would else evaluate after each step
_FINETUNE_BATCH = 512
_SIZE = 384
_FINETUNE_WARMUP = 500


def finetune_imagenet(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """Fine-tune on ImageNet-1k at 384 px: Table 4, 20,000 steps of 512, cosine. lr .03; with --sweep .003 .01 .03 .06.

    Command: vitlab finetune imagenet/ --recipe finetune-imagenet --from l16.npz --sweep
    Time: not measured here; `--dry-run` estimates it.
    Score: Table 5 without averaging, from ImageNet-21k: B/16 83.97, B/32 81.28, L/16 85.15, L/32 80.99. Not run here.
    """
    return _table_4("finetune-imagenet", facts, overrides)


def finetune_imagenet_table2(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """The same as in Table 2 (section 4.1): 512 px, 518 for a patch of 14, weights averaged with decay 0.9999.

    Command: vitlab finetune imagenet/ --recipe finetune-imagenet-table2 --from h14.safetensors
    Time: not measured here.
    Score: H/14 from JFT 88.55, L/16 from JFT 87.76, L/16 from ImageNet-21k 85.30. Not run here.
    """
    start = start_of("finetune-imagenet-table2", facts, overrides)
    side = 518 if isinstance(start.model, ViTConfig) and start.model.step[0] == 14 else 512
    sized = overrides if overrides.image_size is not None else replace(overrides, image_size=whole_patches(start.model, side))
    run = _table_4("finetune-imagenet", facts, sized)
    return replace(run, name="finetune-imagenet-table2", train=replace(run.train, average=Average(decay=0.9999, warmup=False)))


def finetune_cifar10(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """Fine-tune on CIFAR-10 at 384 px: Table 4, 10,000 steps of 512. lr .01; with --sweep .001 .003 .01 .03.

    Command: vitlab finetune cifar10:cifar-10-batches-bin --recipe finetune-cifar10 --from b16.npz --sweep
    Time: not measured here.
    Score: Table 5 from ImageNet-21k: B/16 98.95, B/32 98.79, L/16 99.16, L/32 99.13. Not run here.
    """
    return _table_4("finetune-cifar10", facts, overrides)


def finetune_cifar100(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """Fine-tune on CIFAR-100 at 384 px: Table 4, 10,000 steps of 512. lr .03; with --sweep .001 .003 .01 .03.

    Command: vitlab finetune cifar100:cifar-100-binary --recipe finetune-cifar100 --from b16.npz --sweep
    Time: not measured here.
    Score: Table 5 from ImageNet-21k: B/16 91.67, B/32 91.97, L/16 93.44, L/32 93.04. Not run here.
    """
    return _table_4("finetune-cifar100", facts, overrides)


def finetune_pets(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """Fine-tune on Oxford-IIIT Pets at 384 px: Table 4, 500 steps of 512. lr .01; with --sweep .001 .003 .01 .03.

    Command: vitlab finetune pets/ --recipe finetune-pets --from b16.npz --sweep
    Time: not measured here.
    Score: Table 5 from ImageNet-21k: B/16 94.43, B/32 93.02, L/16 94.73, L/32 93.09. Not run here.
    """
    return _table_4("finetune-pets", facts, overrides)


def finetune_flowers(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """Fine-tune on Oxford Flowers-102 at 384 px: Table 4, 500 steps of 512. lr .01; with --sweep .001 .003 .01 .03.

    Command: vitlab finetune flowers/ --recipe finetune-flowers --from b16.npz --sweep
    Time: not measured here.
    Score: Table 5 from ImageNet-21k: B/16 99.38, B/32 99.11, L/16 99.61, L/32 99.19. Not run here.
    """
    return _table_4("finetune-flowers", facts, overrides)


def finetune_vtab(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """Fine-tune on a VTAB-1k task at 384 px: Table 4, 2,500 steps of 512 at learning rate 0.01, one setting for all tasks.

    Command: vitlab finetune task/ --recipe finetune-vtab --from l16.npz
    Time: not measured here.
    Score: Table 9, mean over 19 tasks: H/14 from JFT 77.6, L/16 from JFT 76.3, L/16 from ImageNet-21k 72.7. Not run here.
    """
    return _table_4("finetune-vtab", facts, overrides)


def _table_4(name: str, facts: RunFacts, overrides: Overrides) -> RunConfig:
    row, start = TABLE_4[name], start_of(name, facts, overrides)
    data = facts.data or row.data
    size = overrides.image_size or whole_patches(start.model, _SIZE)
    model = fitted_model(start.model, size, data.classes, channels=channels_for(start.model, data, overrides))
    batch = overrides.batch_size or finetuning_batch(data.images, most=_FINETUNE_BATCH)
    like = steps_like(row.steps, images=data.images, reference=row.data.images)
    length = round(like * _FINETUNE_BATCH / batch) if overrides.epochs is None else steps_of(overrides.epochs, data.images, batch)
    steps = length if overrides.steps is None else overrides.steps
    tests = "test" in data.splits
    fed, _ = feeding(replace(start.preprocess, resize="squash", interpolation="tf-bilinear"), model, resized=True)
    return RunConfig(
        name=name,
        model=model,
        data=RunData(
            dataset=data.dataset,
            train_split="train+val" if tests else "train",  # B.1.1: the final run trains on all training images
            evaluate_split="test" if tests else "val" if "val" in data.splits else None,
            rule=overrides.rule or SplitRule(val=row.dev),
            augment=Augment(image_size=size, interpolation="tf-bilinear"),
            loader=LoaderConfig(batch_size=batch, seed=overrides.seed or 0, workers=workers_of(facts.machine)),
        ),
        train=TrainConfig(
            steps=steps,
            head=overrides.head or "zero",
            optimizer=Optimizer(
                kind="sgd",
                lr=overrides.lr or lr_for(row.lr, batch=batch, reference=_FINETUNE_BATCH, kind="sgd"),
                momentum=0.9,
                clip=1.0,
            ),
            schedule=Schedule(
                kind="cosine", warmup=warmup_of(steps, fraction=0.2, most=round(_FINETUNE_WARMUP * _FINETUNE_BATCH / batch))
            ),
            loss="sigmoid" if data.multi_label else "softmax",
            precision=precision_of(facts.machine),
            save_every=every(steps, times=10),
            seed=overrides.seed or 0,
        ),
        preprocess=fed,
        start=start.path,
    )
