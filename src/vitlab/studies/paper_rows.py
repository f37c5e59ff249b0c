"""The rows of `vitlab paper`, one function for each table or figure: published numbers beside what is computed and measured.

The published numbers are `vitlab.config.published`. Computed numbers are computed when the rows
are made, by the cost counter or from the published ones. Measured numbers are those of docs/results.md, and name its section.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from vitlab.config.hardware import EFFICIENCY, core_days, hardware_called
from vitlab.config.model import variant
from vitlab.config.overrides import Overrides, StartFacts
from vitlab.config.published import (
    AVERAGE_5,
    FIGURE_4_IMAGES,
    FIGURE_4_MODELS,
    IMAGENET,
    IMAGENET21K,
    IMAGENET_YEARS,
    JFT,
    MASKED_B16,
    MEAN_9,
    MODELS_9,
    OBJECTNET,
    PAPER,
    PAPER_V1,
    PUBLISHED,
    TABLE_1,
    TABLE_2,
    TABLE_2_V1,
    TABLE_5,
    TABLE_6,
    TABLE_7,
    TABLE_8,
    TABLE_9,
    TRANSFER_DATASETS,
    UPSTREAM,
    Published,
    ScalingRow,
    Score,
    TransferRow,
)
from vitlab.config.vit import Pool, PositionKind, PositionPlace, ViTConfig
from vitlab.models.cost import cost
from vitlab.recipes import paper as recipes
from vitlab.recipes.rules import plain_preprocess
from vitlab.recipes.table import recipe

if TYPE_CHECKING:
    pass

Number = float | int | Score
Cell = Number | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A number of docs/results.md, as it is printed there, and the section that has it."""

    value: float
    section: str
    deviation: float | None = None

    def __str__(self) -> str:
        return f"{self.value:g}" if self.deviation is None else f"{self.value:.1f} ± {self.deviation:.1f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """A row of an item: what it is about, numbers by name in three groups, and the command that makes them."""

    about: Mapping[str, str]
    published: Mapping[str, Cell] = field(default_factory=dict)
    computed: Mapping[str, Cell] = field(default_factory=dict)
    measured: Mapping[str, Measured | None] = field(default_factory=dict)
    command: str = ""


Rows = Callable[[], Iterator[PaperRow]]


# --- what is computed ---------------------------------------------------------------------------------------------------------


def _size(name: str, *, image_size: int | None = None) -> dict[str, Cell]:
    spent = cost(variant(name, image_size=image_size))
    return {"parameters, M": round(spent.parameters / 1e6, 2), "GMACs": round(spent.macs / 1e9, 2)}


def _tenths(value: float | None) -> Score | None:
    """A number that is printed with one decimal."""
    return None if value is None else Score(value=value, digits=1)


def _average(scores: Mapping[str, Score]) -> float:
    return sum(scores[name].value for name in AVERAGE_5) / len(AVERAGE_5)


def _pretrain(model: str, data: str, *, epochs: int | None = None) -> str:
    name = {IMAGENET: "imagenet-scratch", IMAGENET21K: "imagenet21k", JFT: "jft"}[data]
    folder = {IMAGENET: "imagenet", IMAGENET21K: "imagenet21k", JFT: "jft"}[data]
    return f"vitlab pretrain {folder} --recipe {name} --model {model}" + (f" --epochs {epochs}" if epochs else "")


# --- the rows of the tables ---------------------------------------------------------------------------------------------------


def table_1() -> Iterator[PaperRow]:
    patches = {"ViT-B": ("16", "32"), "ViT-L": ("16", "32"), "ViT-H": ("14",)}
    for row in TABLE_1:
        for patch in patches[row.name]:
            name = f"{row.name}/{patch}"
            config = variant(name)
            assert isinstance(config, ViTConfig)
            shape = {"layers": config.depth, "width": config.width, "MLP width": config.mlp_width, "heads": config.heads}
            yield PaperRow(
                about={"model": name},
                published={
                    "layers": row.layers,
                    "width": row.width,
                    "MLP width": row.mlp_width,
                    "heads": row.heads,
                    "parameters, M": row.parameters,
                },
                computed={**shape, "parameters, M": round(cost(config).parameters / 1e6, 2)},
                command=f"vitlab describe {name}",
            )


def _table_2_rows(rows: Sequence[TransferRow]) -> Iterator[PaperRow]:
    core = hardware_called("TPUv3")
    for row in rows:
        vit = row.model.startswith("ViT")
        run = recipe({JFT: "jft", IMAGENET21K: "imagenet21k"}[row.trained_on], Overrides(model=row.model)) if vit else None
        images = 0 if run is None else run.train.steps * run.data.loader.batch_size
        spent = cost(variant(row.model)).training_exaflops(images)
        days = core_days(spent, core)
        assert row.core_days is not None
        yield PaperRow(
            about={"model": row.model, "trained on": row.trained_on},
            published={name: row.scores.get(name) for name in (*TRANSFER_DATASETS, "VTAB")} | {"TPUv3-core-days": row.core_days},
            computed=_size(row.model)
            | {
                "exaFLOPs": round(spent) if vit else None,
                "TPUv3-core-days": round(days) if vit else None,
                "difference, %": round(100 * (days / row.core_days - 1), 1) if vit else None,
                "efficiency as published": round(EFFICIENCY * days / row.core_days, 3) if vit else None,
            },
            command=_pretrain(row.model, row.trained_on) if vit else f"vitlab describe {row.model}",
        )


def table_2() -> Iterator[PaperRow]:
    return _table_2_rows(TABLE_2)


def table_2_v1() -> Iterator[PaperRow]:
    return _table_2_rows(TABLE_2_V1)


def table_3() -> Iterator[PaperRow]:
    data = {"jft": JFT, "imagenet21k": IMAGENET21K, "imagenet-scratch": IMAGENET}
    for name, rows in recipes.TABLE_3.items():
        for row in rows:
            for model in row.models:
                run = recipe(name, Overrides(model=model))
                images = run.train.steps * run.data.loader.batch_size
                yield PaperRow(
                    about={"model": model, "trained on": data[name]},
                    published={
                        "epochs": " / ".join(map(str, row.epochs)),
                        "lr": row.lr,
                        "decay": row.schedule,
                        "weight decay": row.weight_decay,
                        "dropout": row.dropout,
                    },
                    computed={
                        "steps": run.train.steps,
                        "lr": run.train.optimizer.lr,
                        "weight decay": run.train.optimizer.weight_decay,
                        "exaFLOPs": round(cost(variant(model)).training_exaflops(images), 1),
                    },
                    command=_pretrain(model, data[name]),
                )


_SPELLED = {"cifar10": "cifar10:cifar-10-batches-bin", "cifar100": "cifar100:cifar-100-binary"}


def table_4() -> Iterator[PaperRow]:
    model = variant("ViT-B/16")
    start = StartFacts(path="b16.npz", model=model, preprocess=plain_preprocess(model, margin=1.0, interpolation="tf-bilinear"))
    for name, row in recipes.TABLE_4.items():
        run = recipe(name, start=start)
        tried = recipes.sweep_lrs(name, model, batch=run.data.loader.batch_size)
        yield PaperRow(
            about={"dataset": row.data.dataset},
            published={"steps": row.steps, "lr": " ".join(map(str, row.lrs)), "held out, %": 100 * row.dev},
            computed={
                "steps": run.train.steps,
                "lr of a ViT": " ".join(f"{lr:g}" for lr in tried),
                "epochs": round(run.train.steps * run.data.loader.batch_size / row.data.images, 1),
                "pixels": run.model.image_size[0],
            },
            command=f"vitlab finetune {_SPELLED.get(row.data.dataset, row.data.dataset)} --recipe {name} --from b16.npz --sweep",
        )


PETS = "DeiT-Ti on Oxford-IIIT Pets: fine-tuned, linear probe, from scratch"


def table_5() -> Iterator[PaperRow]:
    nothing: dict[str, Measured | None] = {"Pets": None}
    for row in TABLE_5:
        yield PaperRow(
            about={"model": row.model, "trained on": row.trained_on},
            published={name: row.scores.get(name) for name in TRANSFER_DATASETS},
            computed=_size(row.model, image_size=_whole(row.model, 384)),
            measured=nothing,
            command=_pretrain(row.model, row.trained_on),
        )
    yield PaperRow(
        about={"model": "ViT-Ti/16 (DeiT), 160 px", "trained on": IMAGENET},
        published=dict.fromkeys(TRANSFER_DATASETS),
        computed=_size("ViT-Ti/16", image_size=160),
        measured={"Pets": Measured(value=88.77, section=PETS)},
        command="vitlab finetune pets.zip --from deit_tiny.npz --image-size 128",
    )


def _whole(model: str, pixels: int) -> int:
    """The image size nearest to this that whole patches make: 378 px in place of 384 for a patch of 14."""
    config = variant(model)
    step = config.step[0] if isinstance(config, ViTConfig) else 1
    return round(pixels / step) * step


def table_6() -> Iterator[PaperRow]:
    for row in TABLE_6:
        found = cost(variant(row.model)).training_exaflops(row.epochs * recipes.JFT.images)
        yield PaperRow(
            about={"model": row.model, "epochs": str(row.epochs)},
            published={**row.scores, "exaFLOPs": row.exaflops},
            computed={"exaFLOPs": round(found, 1), "difference, %": round(100 * (found / row.exaflops - 1), 1) + 0.0},
            command=_pretrain(row.model, JFT, epochs=row.epochs),
        )


def table_7() -> Iterator[PaperRow]:
    for row in TABLE_7:
        yield PaperRow(
            about={"model": row.model, "optimizer": row.optimizer},
            published={**row.scores, "average": row.average},
            computed={"average": round(_average(row.scores), 2)},
            command=_pretrain(row.model, JFT),
        )


POSITIONS = "Position embeddings: Table 8 in miniature"
_LETTERS: dict[tuple[PositionKind, PositionPlace], tuple[float, float]] = {  # mean and deviation in that section
    ("none", "stem"): (23.7, 0.3),
    ("learned-1d", "stem"): (32.1, 7.1),
    ("learned-1d", "every"): (35.7, 2.4),
    ("learned-1d", "shared"): (33.4, 7.6),
    ("learned-2d", "stem"): (28.1, 3.4),
    ("learned-2d", "every"): (33.2, 0.6),
    ("learned-2d", "shared"): (27.2, 2.3),
    ("relative", "stem"): (25.9, 3.6),
    ("relative", "every"): (24.5, 3.5),
    ("relative", "shared"): (26.0, 3.0),
}


def table_8() -> Iterator[PaperRow]:
    for (kind, place), (mean, deviation) in _LETTERS.items():
        yield PaperRow(
            about={"positions": kind, "added at": place},
            published={"ImageNet, 5-shot": TABLE_8.get((kind, place))},
            measured={"letters": Measured(value=mean, deviation=deviation, section=POSITIONS)},
            command="vitlab study positions",
        )


FEW_SHOT = "Few-shot transfer of a DeiT-Ti"
_NAMES_9 = tuple(f"{model}, {data}" for model, data in MODELS_9)


def table_9() -> Iterator[PaperRow]:
    command = "vitlab evaluate model.safetensors --vtab vtab"
    for task, (group, scores) in TABLE_9.items():
        probe = Measured(value=85.45, section=FEW_SHOT) if task == "Pets" else None
        yield PaperRow(
            about={"task": task, "group": group},
            published=dict(zip(_NAMES_9, map(_tenths, scores), strict=True)),
            measured={"DeiT-Ti, linear probe": probe},
            command=command,
        )
    yield PaperRow(
        about={"task": "mean", "group": "all"},
        published=dict(zip(_NAMES_9, map(_tenths, MEAN_9), strict=True)),
        measured={"DeiT-Ti, linear probe": None},
        command=command,
    )


def _group_means(group: str) -> tuple[float, ...]:
    """The mean of each model of Table 9 over the tasks of a group."""
    chosen = [scores for of, scores in TABLE_9.values() if group in (of, "all")]
    return tuple(sum(column) / len(column) for column in zip(*chosen, strict=True))


# --- the rows of the figures --------------------------------------------------------------------------------------------------


def figure_2() -> Iterator[PaperRow]:
    means = {group: _group_means(group) for group in ("natural", "specialized", "structured", "all")}
    for place, (model, data) in enumerate(MODELS_9):
        (row,) = (row for row in TABLE_2 if (row.model, row.trained_on) == (model, data))
        yield PaperRow(
            about={"model": model, "trained on": data},
            published={"mean of 19 tasks": row.scores["VTAB"]},
            computed={group: round(values[place], 1) for group, values in means.items()},
            command="vitlab evaluate model.safetensors --vtab vtab",
        )


def figure_3() -> Iterator[PaperRow]:
    for model in dict.fromkeys(row.model for row in TABLE_5):
        scores = {row.trained_on: row.scores["ImageNet"] for row in TABLE_5 if row.model == model}
        yield PaperRow(
            about={"model": model},
            published={data: scores.get(data) for data in (IMAGENET, IMAGENET21K, JFT)},
            computed=_size(model),
            command=_pretrain(model, IMAGENET21K),
        )


SCALING = "Figures 3 to 5 in miniature: `study scaling`"
SHAPE = "Figures 8, 9 and 13 in miniature: `study shape`"


def figure_4() -> Iterator[PaperRow]:
    largest = FIGURE_4_IMAGES[-1]
    for model in FIGURE_4_MODELS:
        yield PaperRow(
            about={"model": model},
            computed=_size(model) | {"exaFLOPs of 7 epochs of all": round(cost(variant(model)).training_exaflops(7 * largest), 1)},
            command=_pretrain(model, JFT),
        )


def figure_5() -> Iterator[PaperRow]:
    for row in TABLE_6:
        equal = None if row.model.startswith(("ViT", "R50+")) else vit_compute_at(row.average)
        yield PaperRow(
            about={"family": family_6(row), "model": row.model, "epochs": str(row.epochs)},
            published={"exaFLOPs": row.exaflops, "ImageNet": row.scores["ImageNet"]},
            computed={
                "exaFLOPs": round(cost(variant(row.model)).training_exaflops(row.epochs * recipes.JFT.images), 1),
                "average of 5": round(row.average, 2),
                "exaFLOPs of a ViT as good": None if equal is None else round(equal),
                "times the ViT's": None if equal is None else round(row.exaflops / equal, 1),
            },
            command=_pretrain(row.model, JFT, epochs=row.epochs),
        )


def family_6(row: ScalingRow) -> str:
    return "hybrid" if row.model.startswith("R50+") else "ResNet (BiT)" if row.model.startswith("BiT") else "ViT"


def vit_compute_at(average: float) -> float | None:
    """ExaFLOPs at which the ViTs of Table 6 reach an average of the five datasets, log-linear between the best of them.

    None outside their range.
    """
    best: list[ScalingRow] = []
    for row in sorted((row for row in TABLE_6 if row.model.startswith("ViT")), key=lambda row: row.exaflops):
        if not best or row.average > best[-1].average:
            best.append(row)
    for low, high in pairwise(best):
        if low.average <= average <= high.average:
            part = (average - low.average) / (high.average - low.average)
            return math.exp(math.log(low.exaflops) * (1 - part) + math.log(high.exaflops) * part)
    return None


def figure_8() -> Iterator[PaperRow]:
    base = ViTConfig(width=1024, depth=8, heads=16, mlp_width=2048, patch_size=(32, 32))  # app. D.2
    doubled = {
        "base: 8 layers, width 1024, MLP 2048, patch 32": base,
        "16 layers": replace(base, depth=16),
        "width 2048": replace(base, width=2048),
        "MLP width 4096": replace(base, mlp_width=4096),
        "patch 16": replace(base, patch_size=(16, 16)),
    }
    least = cost(base).macs
    for name, config in doubled.items():
        spent = cost(config)
        yield PaperRow(
            about={"model": name},
            computed={
                "parameters, M": round(spent.parameters / 1e6, 2),
                "GMACs": round(spent.macs / 1e9, 2),
                "compute": round(spent.macs / least, 2),
            },
        )


def figure_9() -> Iterator[PaperRow]:
    pools: tuple[tuple[str, Pool], ...] = (("class token", "token"), ("mean of the patches", "mean"))
    for name, pool in pools:
        spent = cost(variant("ViT-B/16", pool=pool))
        yield PaperRow(
            about={"head reads": name},
            computed={"parameters, M": round(spent.parameters / 1e6, 3), "GMACs": round(spent.macs / 1e9, 3)},
        )


_CORE = 16 * 2**30  # bytes of memory of a TPUv3 core
SIDES = (64, 128, 224, 384, 512)


def figure_12() -> Iterator[PaperRow]:
    for model in ("BiT-R50x1", "BiT-R50x2", "ViT-B/32", "ViT-L/32", "ViT-B/16", "ViT-L/16", "ViT-H/14", "BiT-R152x4"):
        batches = {}
        for side in SIDES:
            plain = variant(model)
            sized = replace(plain, image_size=(side, side), pad=True) if isinstance(plain, ViTConfig) else plain
            one, two = (cost(sized, image_size=side).inference_bytes(batch=batch) for batch in (1, 2))
            batches[f"batch at {side} px"] = int((_CORE - one) // (two - one)) + 1
        yield PaperRow(about={"model": model}, computed=batches, command=f"vitlab study compare {model} --speed")


def figure_13() -> Iterator[PaperRow]:
    for patch in (32, 16):
        plain = variant(f"ViT-B/{patch}")
        assert isinstance(plain, ViTConfig)
        for name, config in ((f"ViT-B/{patch}", plain), (f"Axial-ViT-B/{patch}", replace(plain, attention="axial"))):
            spent = cost(config)
            yield PaperRow(
                about={"model": name},
                computed={"parameters, M": round(spent.parameters / 1e6, 2), "GMACs": round(spent.macs / 1e9, 2)},
            )


FIGURES = "Figures at high resolution"
_DISTANCES = (61, 39, 38, 59, 66, 64, 74, 69, 82, 90, 94, 104)


def figure_11() -> Iterator[PaperRow]:
    for layer, pixels in enumerate(_DISTANCES):
        yield PaperRow(
            about={"layer": str(layer)},
            measured={"DeiT-Ti/16, pixels": Measured(value=pixels, section=FIGURES)},
            command="vitlab inspect model.safetensors images --figure distance --out figures",
        )


# --- the rows of the other items ----------------------------------------------------------------------------------------------


def objectnet() -> Iterator[PaperRow]:
    yield PaperRow(
        about={"model": "ViT-H/14", "trained on": JFT},
        published={name: _tenths(value) for name, value in OBJECTNET.items()},
        computed=_size("ViT-H/14"),
        command="vitlab evaluate h14.safetensors objectnet --mapping objectnet.json",
    )


def self_supervision() -> Iterator[PaperRow]:
    b16 = {row.trained_on: row.scores["ImageNet"].value for row in TABLE_5 if row.model == "ViT-B/16"}
    ways = (
        ("masked patch prediction", MASKED_B16, "vitlab pretrain images:unlabelled --recipe masked --model ViT-B/16"),
        ("none: from scratch", b16[IMAGENET], _pretrain("ViT-B/16", IMAGENET)),
        ("supervised, ImageNet-21k", b16[IMAGENET21K], _pretrain("ViT-B/16", IMAGENET21K)),
    )
    for name, top1, command in ways:
        yield PaperRow(
            about={"pre-training": name},
            published={"ImageNet": Score(value=top1, digits=1 if top1 == MASKED_B16 else 2)},
            computed={"minus masked": round(top1 - MASKED_B16, 2)},
            command=command,
        )


def upstream() -> Iterator[PaperRow]:
    for data, scores in UPSTREAM.items():
        for model, top1 in scores.items():
            yield PaperRow(
                about={"model": model, "trained on": data},
                published={"top-1 before fine-tuning": Score(value=top1)},
                computed=_size(model),
                command=_pretrain(model, data),
            )


FAMILIES = "Other architecture families: Swin, ConvNeXt, EfficientNet, LSTM and RNN"
_SPEEDS_HERE = {"Swin-T": 16.4, "ConvNeXt-T": 20.3, "Swin-S": 9.8, "ConvNeXt-S": 12.1}  # images/s in that section, 224 px


def transformers_or_cnns() -> Iterator[PaperRow]:
    for (name, side), quoted in PUBLISHED.items():
        first = next((row for row in quoted if row.images_per_sec_a100 is not None), None)
        if first is None:
            continue
        family, _, size = name.partition("-")
        other = PUBLISHED.get((f"Swin-{size}", side), ()) if family == "ConvNeXt" else ()
        speed = _SPEEDS_HERE.get(name) if side == 224 else None
        top1 = {row.trained_on: row.top1 for row in quoted if row.source == first.source}
        yield PaperRow(
            about={"model": name, "pixels": str(side)},
            published={
                "GMACs": _tenths(first.gmacs),
                "ImageNet-1k": _tenths(top1.get(IMAGENET)),
                "ImageNet-21k": _tenths(top1.get(f"{IMAGENET21K}, then 1k")),
                "images/s, V100": _tenths(first.images_per_sec),
                "images/s, A100": _tenths(first.images_per_sec_a100),
            },
            computed={
                "GMACs": round(cost(variant(name, image_size=side)).macs / 1e9, 1),
                "faster than Swin, V100, %": _gain(first, other, "images_per_sec"),
                "faster than Swin, A100, %": _gain(first, other, "images_per_sec_a100"),
            },
            measured={"images/s": None if speed is None else Measured(value=speed, section=FAMILIES)},
            command=f"vitlab study compare {name} --image-size {side} --speed",
        )


def _gain(row: Published, others: Sequence[Published], name: str) -> Cell:
    """By how many percent a speed is above that of another model."""
    mine, theirs = getattr(row, name), next((getattr(other, name) for other in others), None)
    return None if mine is None or theirs is None else round(100 * (mine / theirs - 1))


_YEARS: tuple[tuple[int, str, int], ...] = (  # of publication; name and image size in `PUBLISHED`
    (2019, "EfficientNet-B7", 600),
    (2020, "EfficientNet-L2", 800),
    (2021, "Swin-L", 384),
    (2022, "ConvNeXt-XL", 384),
)


def imagenet_years() -> Iterator[PaperRow]:
    found: list[tuple[int, str, float, int | None, str]] = [
        (year, name, max(row.top1 for row in PUBLISHED[name, side]), side, PUBLISHED[name, side][0].source)
        for year, name, side in _YEARS
    ]
    found += [
        (2019, "BiT-R152x4", TABLE_2[3].scores["ImageNet"].value, 480, f"{PAPER}, Table 2"),
        (2020, "ViT-H/14", TABLE_2_V1[0].scores["ImageNet"].value, 518, f"{PAPER_V1}, Table 2"),
        (2021, "ViT-H/14", TABLE_2[0].scores["ImageNet"].value, 518, f"{PAPER}, Table 2"),
    ]
    found += [(entry.year, entry.model, entry.top1, None, entry.source) for entry in IMAGENET_YEARS]
    for year, name, top1, side, source in sorted(found, key=lambda entry: (entry[0], entry[2])):
        yield PaperRow(
            about={"year": str(year), "model": name, "kind": _kind(name), "source": source},
            published={"ImageNet": top1},
            computed={"points above 2012": round(top1 - IMAGENET_YEARS[0].top1, 1)}
            | (dict.fromkeys(("parameters, M", "GMACs")) if side is None else _size(name, image_size=side)),
            command="" if side is None else f"vitlab describe {name} --image-size {side}",
        )


def _kind(name: str) -> str:
    if name.startswith("CoAtNet"):
        return "both"
    return "Transformer" if name.startswith(("ViT", "Swin")) else "CNN"
