"""Tables 3 and 4 of the paper as they stand there, with the size of the sets they were made for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vitlab.config.model import ModelConfig, ResNetConfig, ViTConfig
from vitlab.config.scale import rate_for
from vitlab.config.train import ScheduleKind
from vitlab.config.variants import name_of, variant
from vitlab.config.wish import DataFacts
from vitlab.errors import ConfigError

IMAGENET = DataFacts(source="imagenet", pictures=1_281_167, classes=1000, side=400, parts=("train", "val"))
IMAGENET21K = DataFacts(source="imagenet21k", pictures=14_197_122, classes=21_843, side=400)
JFT = DataFacts(source="jft", pictures=303_000_000, classes=18_291, side=400)  # section 4.1: 303M pictures, 18k classes
CIFAR10 = DataFacts(source="cifar10", pictures=50_000, classes=10, side=32)
CIFAR100 = DataFacts(source="cifar100", pictures=50_000, classes=100, side=32)
PETS = DataFacts(source="pets", pictures=3_680, classes=37, side=375)
FLOWERS = DataFacts(source="flowers", pictures=2_040, classes=102, side=500)
VTAB = DataFacts(source="vtab", pictures=1_000, classes=100, side=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of Table 3; of two numbers of epochs the larger is taken unless the wish says otherwise."""

    models: tuple[str, ...]
    epochs: tuple[int, ...]
    lr: float
    schedule: ScheduleKind
    weight_decay: float
    dropout: float


def _jft(models: tuple[str, ...], lr: float, *epochs: int) -> Row:
    return Row(models=models, epochs=epochs, lr=lr, schedule="linear", weight_decay=0.1, dropout=0.0)


TABLE_3: dict[str, tuple[Row, ...]] = {
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
        Row(models=("ViT-B/16", "ViT-B/32"), epochs=(90,), lr=1e-3, schedule="linear", weight_decay=0.03, dropout=0.1),
        Row(models=("ViT-L/16", "ViT-L/32"), epochs=(30, 90), lr=1e-3, schedule="linear", weight_decay=0.03, dropout=0.1),
    ),
    "imagenet-scratch": (  # "ViT-*": one row for all
        Row(
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
    """A row of Table 4 with its dev split (B.1.1); `lr` is the rate without a sweep over `rates`."""

    data: DataFacts
    steps: int
    rates: tuple[float, ...]
    lr: float
    dev: float


_SMALL_RATES = (0.001, 0.003, 0.01, 0.03)
TABLE_4: dict[str, FinetuneRow] = {
    "finetune-imagenet": FinetuneRow(data=IMAGENET, steps=20_000, rates=(0.003, 0.01, 0.03, 0.06), lr=0.03, dev=0.01),
    "finetune-cifar10": FinetuneRow(data=CIFAR10, steps=10_000, rates=_SMALL_RATES, lr=0.01, dev=0.02),
    "finetune-cifar100": FinetuneRow(data=CIFAR100, steps=10_000, rates=_SMALL_RATES, lr=0.03, dev=0.02),
    "finetune-pets": FinetuneRow(data=PETS, steps=500, rates=_SMALL_RATES, lr=0.01, dev=0.1),
    "finetune-flowers": FinetuneRow(data=FLOWERS, steps=500, rates=_SMALL_RATES, lr=0.01, dev=0.1),
    "finetune-vtab": FinetuneRow(data=VTAB, steps=2_500, rates=(0.01,), lr=0.01, dev=0.2),
}


def row_of(table: str, model: ModelConfig) -> tuple[Row, str | None]:
    """The row of Table 3 for a model, and where it stands in none, the name of the listed model whose row it takes.

    That is the nearest in size, and of equals in size the nearest in patch; hybrids count as their ViT (B.1). What is neither a
    ViT nor a BiT ResNet takes the first row, of the smallest ViT.
    """
    rows = TABLE_3[table]
    name = name_of(model)
    for row in rows:
        if name in row.models:
            return row, None
    if not isinstance(model, ViTConfig | ResNetConfig):
        return rows[0], rows[0].models[0]
    listed = {other: row for row in rows for other in row.models if type(variant(other)) is type(model) and "+" not in other}
    if not listed:
        raise ConfigError(f"Table 3 trains no ResNet on {table}", hint="its ResNets were trained on JFT: --recipe jft")
    nearest = min(listed, key=lambda other: _distance(model, variant(other)))
    return listed[nearest], nearest


def _distance(model: ModelConfig, other: ModelConfig) -> tuple[float, float]:
    """How many times larger or smaller, as a logarithm: the weights, then the step between patches."""
    if isinstance(model, ViTConfig) and isinstance(other, ViTConfig):
        return (
            abs(math.log(model.depth * model.width**2 / (other.depth * other.width**2))),
            abs(math.log(model.step[0] / other.step[0])),
        )
    assert isinstance(model, ResNetConfig)
    assert isinstance(other, ResNetConfig)
    return abs(math.log(sum(model.blocks) / sum(other.blocks))), abs(math.log(model.width_factor / other.width_factor))


def rates_of(recipe: str, model: ModelConfig, *, batch: int) -> tuple[float, ...]:
    """Table 4's grid of learning rates for a recipe, by the rule of `scale.py` for another batch than 512.

    0.06 was tried for ResNets and hybrids alone (B.1.1).
    """
    plain = isinstance(model, ViTConfig) and model.stem is None
    rates = [rate for rate in TABLE_4[recipe].rates if not (plain and rate == 0.06)]
    return tuple(rate_for(rate, batch=batch, reference=512, kind="sgd") for rate in rates)
