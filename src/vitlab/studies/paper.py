"""`vitlab paper`: every table and figure of the paper and of the talks about it, published beside what is found here.

An item is a name, its source, what vitlab reproduces and what that needs, and a function that makes its rows. The published numbers
are `vitlab.config.paper_tables` and `vitlab.config.published`. Computed numbers are computed when the rows are made, by the cost
counter or from the published ones. Measured numbers are those of docs/results.md, and name its section.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitlab.config.hardware import EFFICIENCY, core_days, hardware_called
from vitlab.config.model import variant
from vitlab.config.overrides import Overrides, StartFacts
from vitlab.config.paper_tables import (
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
    UPSTREAM_SOURCE,
    ScalingRow,
    Score,
    TransferRow,
)
from vitlab.config.published import PUBLISHED, Published
from vitlab.config.vit import Pool, PositionKind, PositionPlace, ViTConfig
from vitlab.errors import UsageError, did_you_mean
from vitlab.io.display import Block, Displayed, ProgressCallback, silent
from vitlab.models.cost import cost
from vitlab.recipes import paper as recipes
from vitlab.recipes.rules import plain_preprocess
from vitlab.recipes.table import recipe

if TYPE_CHECKING:
    from vitlab.interpretation.drawing import Axis, Line
    from vitlab.studies.explained import Explained

Number = float | int | Score
Cell = Number | str | None
State = Literal["measured in miniature", "computed", "numbers only", "drawn for any model", "as code", "run when asked"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A table or figure.

    `state` is how far vitlab reproduces it here, `here` says it in a sentence; `needs` is what the whole takes; `command` makes it.
    `absent` says which numbers are not here, because the paper draws and does not print them. `sections` are those of
    docs/results.md that have a miniature of it. A `live` item has an experiment in place of rows: it runs when the item is shown.
    """

    name: str
    title: str
    source: str
    state: State
    here: str
    needs: str
    command: str
    rows: Rows | None = None
    absent: str = ""
    sections: tuple[str, ...] = ()
    live: bool = False


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


def _table_1() -> Iterator[PaperRow]:
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


def _table_2() -> Iterator[PaperRow]:
    return _table_2_rows(TABLE_2)


def _table_2_v1() -> Iterator[PaperRow]:
    return _table_2_rows(TABLE_2_V1)


def _table_3() -> Iterator[PaperRow]:
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


def _table_4() -> Iterator[PaperRow]:
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


_PETS = "DeiT-Ti on Oxford-IIIT Pets: fine-tuned, linear probe, from scratch"


def _table_5() -> Iterator[PaperRow]:
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
        measured={"Pets": Measured(value=88.77, section=_PETS)},
        command="vitlab finetune pets.zip --from deit_tiny.npz --image-size 128",
    )


def _whole(model: str, pixels: int) -> int:
    """The image size nearest to this that whole patches make: 378 px in place of 384 for a patch of 14."""
    config = variant(model)
    step = config.step[0] if isinstance(config, ViTConfig) else 1
    return round(pixels / step) * step


def _table_6() -> Iterator[PaperRow]:
    for row in TABLE_6:
        found = cost(variant(row.model)).training_exaflops(row.epochs * recipes.JFT.images)
        yield PaperRow(
            about={"model": row.model, "epochs": str(row.epochs)},
            published={**row.scores, "exaFLOPs": row.exaflops},
            computed={"exaFLOPs": round(found, 1), "difference, %": round(100 * (found / row.exaflops - 1), 1) + 0.0},
            command=_pretrain(row.model, JFT, epochs=row.epochs),
        )


def _table_7() -> Iterator[PaperRow]:
    for row in TABLE_7:
        yield PaperRow(
            about={"model": row.model, "optimizer": row.optimizer},
            published={**row.scores, "average": row.average},
            computed={"average": round(_average(row.scores), 2)},
            command=_pretrain(row.model, JFT),
        )


_POSITIONS = "Position embeddings: Table 8 in miniature"
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


def _table_8() -> Iterator[PaperRow]:
    for (kind, place), (mean, deviation) in _LETTERS.items():
        yield PaperRow(
            about={"positions": kind, "added at": place},
            published={"ImageNet, 5-shot": TABLE_8.get((kind, place))},
            measured={"letters": Measured(value=mean, deviation=deviation, section=_POSITIONS)},
            command="vitlab study positions",
        )


_FEW_SHOT = "Few-shot transfer of a DeiT-Ti"
_NAMES_9 = tuple(f"{model}, {data}" for model, data in MODELS_9)


def _table_9() -> Iterator[PaperRow]:
    command = "vitlab evaluate model.safetensors --vtab vtab"
    for task, (group, scores) in TABLE_9.items():
        probe = Measured(value=85.45, section=_FEW_SHOT) if task == "Pets" else None
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


def _figure_2() -> Iterator[PaperRow]:
    means = {group: _group_means(group) for group in ("natural", "specialized", "structured", "all")}
    for place, (model, data) in enumerate(MODELS_9):
        (row,) = (row for row in TABLE_2 if (row.model, row.trained_on) == (model, data))
        yield PaperRow(
            about={"model": model, "trained on": data},
            published={"mean of 19 tasks": row.scores["VTAB"]},
            computed={group: round(values[place], 1) for group, values in means.items()},
            command="vitlab evaluate model.safetensors --vtab vtab",
        )


def _figure_3() -> Iterator[PaperRow]:
    for model in dict.fromkeys(row.model for row in TABLE_5):
        scores = {row.trained_on: row.scores["ImageNet"] for row in TABLE_5 if row.model == model}
        yield PaperRow(
            about={"model": model},
            published={data: scores.get(data) for data in (IMAGENET, IMAGENET21K, JFT)},
            computed=_size(model),
            command=_pretrain(model, IMAGENET21K),
        )


_SCALING = "Figures 3 to 5 in miniature: `study scaling`"
_SHAPE = "Figures 8, 9 and 13 in miniature: `study shape`"


def _figure_4() -> Iterator[PaperRow]:
    largest = FIGURE_4_IMAGES[-1]
    for model in FIGURE_4_MODELS:
        yield PaperRow(
            about={"model": model},
            computed=_size(model) | {"exaFLOPs of 7 epochs of all": round(cost(variant(model)).training_exaflops(7 * largest), 1)},
            command=_pretrain(model, JFT),
        )


def _figure_5() -> Iterator[PaperRow]:
    for row in TABLE_6:
        equal = None if row.model.startswith(("ViT", "R50+")) else vit_compute_at(row.average)
        yield PaperRow(
            about={"family": _family_6(row), "model": row.model, "epochs": str(row.epochs)},
            published={"exaFLOPs": row.exaflops, "ImageNet": row.scores["ImageNet"]},
            computed={
                "exaFLOPs": round(cost(variant(row.model)).training_exaflops(row.epochs * recipes.JFT.images), 1),
                "average of 5": round(row.average, 2),
                "exaFLOPs of a ViT as good": None if equal is None else round(equal),
                "times the ViT's": None if equal is None else round(row.exaflops / equal, 1),
            },
            command=_pretrain(row.model, JFT, epochs=row.epochs),
        )


def _family_6(row: ScalingRow) -> str:
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


def _figure_8() -> Iterator[PaperRow]:
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


def _figure_9() -> Iterator[PaperRow]:
    pools: tuple[tuple[str, Pool], ...] = (("class token", "token"), ("mean of the patches", "mean"))
    for name, pool in pools:
        spent = cost(variant("ViT-B/16", pool=pool))
        yield PaperRow(
            about={"head reads": name},
            computed={"parameters, M": round(spent.parameters / 1e6, 3), "GMACs": round(spent.macs / 1e9, 3)},
        )


_CORE = 16 * 2**30  # bytes of memory of a TPUv3 core
_SIDES = (64, 128, 224, 384, 512)


def _figure_12() -> Iterator[PaperRow]:
    for model in ("BiT-R50x1", "BiT-R50x2", "ViT-B/32", "ViT-L/32", "ViT-B/16", "ViT-L/16", "ViT-H/14", "BiT-R152x4"):
        batches = {}
        for side in _SIDES:
            plain = variant(model)
            sized = replace(plain, image_size=(side, side), pad=True) if isinstance(plain, ViTConfig) else plain
            one, two = (cost(sized, image_size=side).inference_bytes(batch=batch) for batch in (1, 2))
            batches[f"batch at {side} px"] = int((_CORE - one) // (two - one)) + 1
        yield PaperRow(about={"model": model}, computed=batches, command=f"vitlab study compare {model} --speed")


def _figure_13() -> Iterator[PaperRow]:
    for patch in (32, 16):
        plain = variant(f"ViT-B/{patch}")
        assert isinstance(plain, ViTConfig)
        for name, config in ((f"ViT-B/{patch}", plain), (f"Axial-ViT-B/{patch}", replace(plain, attention="axial"))):
            spent = cost(config)
            yield PaperRow(
                about={"model": name},
                computed={"parameters, M": round(spent.parameters / 1e6, 2), "GMACs": round(spent.macs / 1e9, 2)},
            )


_FIGURES = "Figures at high resolution"
_DISTANCES = (61, 39, 38, 59, 66, 64, 74, 69, 82, 90, 94, 104)


def _figure_11() -> Iterator[PaperRow]:
    for layer, pixels in enumerate(_DISTANCES):
        yield PaperRow(
            about={"layer": str(layer)},
            measured={"DeiT-Ti/16, pixels": Measured(value=pixels, section=_FIGURES)},
            command="vitlab inspect model.safetensors images --figure distance --out figures",
        )


# --- the rows of the other items ----------------------------------------------------------------------------------------------


def _objectnet() -> Iterator[PaperRow]:
    yield PaperRow(
        about={"model": "ViT-H/14", "trained on": JFT},
        published={name: _tenths(value) for name, value in OBJECTNET.items()},
        computed=_size("ViT-H/14"),
        command="vitlab evaluate h14.safetensors objectnet --mapping objectnet.json",
    )


def _self_supervision() -> Iterator[PaperRow]:
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


def _upstream() -> Iterator[PaperRow]:
    for data, scores in UPSTREAM.items():
        for model, top1 in scores.items():
            yield PaperRow(
                about={"model": model, "trained on": data},
                published={"top-1 before fine-tuning": Score(value=top1)},
                computed=_size(model),
                command=_pretrain(model, data),
            )


_FAMILIES = "Other architecture families: Swin, ConvNeXt, EfficientNet, LSTM and RNN"
_SPEEDS_HERE = {"Swin-T": 16.4, "ConvNeXt-T": 20.3, "Swin-S": 9.8, "ConvNeXt-S": 12.1}  # images/s in that section, 224 px


def _transformers_or_cnns() -> Iterator[PaperRow]:
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
            measured={"images/s": None if speed is None else Measured(value=speed, section=_FAMILIES)},
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


def _imagenet_years() -> Iterator[PaperRow]:
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


# --- the items ----------------------------------------------------------------------------------------------------------------

_INSPECT = "vitlab inspect model.safetensors images --figure {} --out figures"
_JFT_NEEDS = "JFT-300M, which is not public, and many TPUs"
_BARS = "the paper draws these values and does not print them"

ITEMS: tuple[Item, ...] = (
    Item(
        name="table1",
        title="Sizes of the Vision Transformer",
        source=f"{PAPER}, Table 1",
        state="computed",
        here="all sizes, by formula; the 307 M of ViT-L are those of patch 32",
        needs="nothing",
        command="vitlab describe ViT-L/32",
        rows=_table_1,
    ),
    Item(
        name="table2",
        title="Comparison with the state of the art",
        source=f"{PAPER}, Table 2",
        state="computed",
        here=f"parameters, multiply-adds, exaFLOPs, and core-days at {EFFICIENCY:g} of the peak; no model of this size was trained",
        needs=_JFT_NEEDS,
        command="vitlab finetune imagenet --recipe finetune-imagenet-table2 --from h14.safetensors",
        rows=_table_2,
    ),
    Item(
        name="table2-v1",
        title="The same in the first version, October 2020",
        source=f"{PAPER_V1}, Table 2",
        state="computed",
        here="as table2",
        needs=_JFT_NEEDS,
        command="vitlab finetune imagenet --recipe finetune-imagenet-table2 --from h14.safetensors",
        rows=_table_2_v1,
    ),
    Item(
        name="table3",
        title="Settings of pre-training",
        source=f"{PAPER}, Table 3",
        state="computed",
        here="the recipes jft, imagenet21k and imagenet-scratch; they run in miniature in the tests",
        needs="ImageNet, ImageNet-21k or JFT-300M, and accelerators",
        command="vitlab pretrain imagenet --recipe imagenet-scratch --model ViT-B/16",
        rows=_table_3,
    ),
    Item(
        name="table4",
        title="Settings of fine-tuning",
        source=f"{PAPER}, Table 4 and app. B.1.1",
        state="computed",
        here="the recipes finetune-*; they run in miniature in the tests",
        needs="the datasets and a checkpoint; both are public",
        command="vitlab finetune pets --recipe finetune-pets --from b16.npz --sweep",
        rows=_table_4,
    ),
    Item(
        name="table5",
        title="Transfer by pre-training data",
        source=f"{PAPER}, Table 5",
        state="measured in miniature",
        here="a DeiT-Ti on Pets; parameters and multiply-adds at 384 px (H/14: 378)",
        needs="the authors' public checkpoints, the datasets and an accelerator; JFT-300M is not public",
        command="vitlab finetune cifar10:cifar-10-batches-bin --recipe finetune-cifar10 --from b16.npz --sweep",
        rows=_table_5,
        sections=(_PETS,),
    ),
    Item(
        name="table6",
        title="Scaling: accuracy and compute of pre-training",
        source=f"{PAPER}, Table 6",
        state="computed",
        here="exaFLOPs of every row: 6 operations for each multiply-add (none for padding), 303 M images an epoch",
        needs=_JFT_NEEDS,
        command="vitlab pretrain jft --recipe jft --model ViT-H/14",
        rows=_table_6,
    ),
    Item(
        name="table7",
        title="ResNets pre-trained with Adam and with SGD",
        source=f"{PAPER}, Table 7",
        state="numbers only",
        here="the averages",
        needs=_JFT_NEEDS,
        command="vitlab study optimizer",
        rows=_table_7,
    ),
    Item(
        name="table8",
        title="Position embeddings",
        source=f"{PAPER}, Table 8",
        state="measured in miniature",
        here="every position embedding in a small ViT on 30,000 synthetic letters",
        needs="ImageNet and JFT-300M for the whole",
        command="vitlab study positions",
        rows=_table_8,
        sections=(_POSITIONS,),
    ),
    Item(
        name="table9",
        title="VTAB-1k task by task",
        source=f"{PAPER}, Table 9",
        state="measured in miniature",
        here="a linear probe of a DeiT-Ti on one of the 19 tasks",
        needs="VTAB's datasets, most of them public",
        command="vitlab evaluate model.safetensors --vtab vtab",
        rows=_table_9,
        sections=(_FEW_SHOT,),
    ),
    Item(
        name="figure1",
        title="The model",
        source=f"{PAPER}, Figure 1",
        state="as code",
        here="models/vit.py, with the equations' numbers",
        needs="nothing",
        command="vitlab describe ViT-B/16",
    ),
    Item(
        name="figure2",
        title="VTAB by group of tasks",
        source=f"{PAPER}, Figure 2; Tables 2 and 9",
        state="computed",
        here="the means of the groups, from Table 9",
        needs="VTAB's datasets",
        command="vitlab evaluate model.safetensors --vtab vtab",
        rows=_figure_2,
        absent=f"BiT-L, VIVI and S4L: {_BARS}",
    ),
    Item(
        name="figure3",
        title="ImageNet accuracy by pre-training data",
        source=f"{PAPER}, Figure 3; Table 5",
        state="measured in miniature",
        here="the published numbers; `study scaling` varies the pre-training images of small models",
        needs="ImageNet-21k; JFT-300M is not public",
        command="vitlab study scaling",
        rows=_figure_3,
        absent=f"the range of BiT: {_BARS}",
        sections=(_SCALING,),
    ),
    Item(
        name="figure4",
        title="Few-shot accuracy by number of pre-training images",
        source=f"{PAPER}, Figure 4",
        state="measured in miniature",
        here="cost of the models; `study scaling` varies the pre-training images of small models",
        needs=_JFT_NEEDS,
        command="vitlab study scaling",
        rows=_figure_4,
        absent=f"every accuracy: {_BARS}",
        sections=(_SCALING,),
    ),
    Item(
        name="figure5",
        title="Accuracy by compute of pre-training",
        source=f"{PAPER}, Figure 5; Table 6",
        state="measured in miniature",
        here="exaFLOPs; the average of five datasets; and how much more compute a ResNet takes than a ViT as good",
        needs=_JFT_NEEDS,
        command="vitlab study scaling",
        rows=_figure_5,
        sections=(_SCALING,),
    ),
    Item(
        name="figure6",
        title="Attention from the class token to the image",
        source=f"{PAPER}, Figure 6",
        state="drawn for any model",
        here="rollout of any ViT and image",
        needs="a checkpoint and an image",
        command=_INSPECT.format("rollout"),
    ),
    Item(
        name="figure7",
        title="Filters, similarity of positions, attention distance",
        source=f"{PAPER}, Figure 7",
        state="drawn for any model",
        here="any ViT",
        needs="a checkpoint, and images for the distance",
        command=_INSPECT.format("filters,positions,distance"),
        sections=(_FIGURES,),
    ),
    Item(
        name="figure8",
        title="Depth, width, MLP width and patch size",
        source=f"{PAPER}, Figure 8 and app. D.2",
        state="measured in miniature",
        here="cost of the base shape, and of each dimension doubled",
        needs=_JFT_NEEDS,
        command="vitlab study shape",
        rows=_figure_8,
        absent=f"every accuracy: {_BARS}",
        sections=(_SHAPE,),
    ),
    Item(
        name="figure9",
        title="Class token or mean of the patches",
        source=f"{PAPER}, Figure 9 and app. D.3",
        state="measured in miniature",
        here="cost of both; the paper finds them equally good, each with its own learning rate",
        needs=_JFT_NEEDS,
        command="vitlab study shape",
        rows=_figure_9,
        absent=f"every accuracy: {_BARS}",
        sections=(_SHAPE,),
    ),
    Item(
        name="figure10",
        title="Similarity of positions over training time and for a larger grid",
        source=f"{PAPER}, Figure 10 and app. D.4",
        state="run when asked",
        here="a small ViT on the built-in digits, each pixel a patch; `inspect --figure positions` draws any ViT",
        needs="nothing; the paper's models for the whole",
        command="vitlab paper figure10 --figure figure10.png",
        absent=f"the paper's similarities: {_BARS}",
        live=True,
    ),
    Item(
        name="figure11",
        title="Attention distance by layer",
        source=f"{PAPER}, Figure 11 and app. D.7",
        state="measured in miniature",
        here="a DeiT-Ti/16 on 128 ImageNet images",
        needs="a checkpoint and images",
        command=_INSPECT.format("distance"),
        rows=_figure_11,
        absent=f"the paper's distances: {_BARS}",
        sections=(_FIGURES,),
    ),
    Item(
        name="figure12",
        title="Speed and largest batch by image size",
        source=f"{PAPER}, Figure 12 and app. D.5",
        state="computed",
        here="largest float32 batch of prediction in the 16 GiB of a TPUv3 core, by formula",
        needs="a TPUv3",
        command="vitlab study compare ViT-B/16 BiT-R50x1 --speed",
        rows=_figure_12,
        absent=f"every speed and batch: {_BARS}",
        sections=("Cost by number of tokens",),
    ),
    Item(
        name="figure13",
        title="Axial attention",
        source=f"{PAPER}, Figure 13 and app. D.6",
        state="measured in miniature",
        here="cost of ViT-B with global and with axial attention",
        needs=_JFT_NEEDS,
        command="vitlab study shape",
        rows=_figure_13,
        absent=f"every accuracy and speed: {_BARS}",
        sections=(_SHAPE,),
    ),
    Item(
        name="figure14",
        title="More attention maps",
        source=f"{PAPER}, Figure 14 and app. D.8",
        state="drawn for any model",
        here="as figure6",
        needs="a checkpoint and images",
        command=_INSPECT.format("rollout"),
    ),
    Item(
        name="objectnet",
        title="ObjectNet",
        source=f"{PAPER}, app. D.9",
        state="numbers only",
        here="evaluation with a mapping of classes",
        needs="ObjectNet, and ViT-H/14 from JFT-300M, which is not public",
        command="vitlab evaluate h14.safetensors objectnet --mapping objectnet.json",
        rows=_objectnet,
    ),
    Item(
        name="self-supervision",
        title="Masked patch prediction against supervised pre-training",
        source=f"{PAPER}, section 4.6 and app. B.1.2; Table 5",
        state="numbers only",
        here="the recipe masked; it runs in miniature in the tests",
        needs=_JFT_NEEDS,
        command="vitlab study self-supervision",
        rows=_self_supervision,
    ),
    Item(
        name="upstream",
        title="Accuracy of pre-training, before fine-tuning",
        source=UPSTREAM_SOURCE,
        state="numbers only",
        here="the recipes imagenet21k and imagenet-scratch; they run in miniature in the tests",
        needs="ImageNet or ImageNet-21k, and accelerators",
        command="vitlab pretrain imagenet --recipe imagenet-scratch --model ViT-B/16",
        rows=_upstream,
    ),
    Item(
        name="transformers-or-cnns",
        title="Transformers or CNNs? Swin and ConvNeXt",
        source="Liu et al. 2021, Table 1; Liu et al. 2022, Table 1 (V100); the talk's slide (A100)",
        state="measured in miniature",
        here="multiply-adds, and the speed of the small models on two CPU cores",
        needs="a V100 or A100 for the published speeds",
        command="vitlab study compare --speed",
        rows=_transformers_or_cnns,
        sections=(_FAMILIES,),
    ),
    Item(
        name="imagenet-years",
        title="ImageNet top-1 over the years",
        source="a publication for each row",
        state="computed",
        here="cost of the models that vitlab has",
        needs="their training data and machines",
        command="vitlab study compare EfficientNet-B7 ViT-H/14 ConvNeXt-XL",
        rows=_imagenet_years,
    ),
    Item(
        name="receptive-field",
        title="Effective receptive field and attention distance of ViT, hybrid and CNN",
        source="the talks about the paper",
        state="run when asked",
        here="three models of full size, randomly initialised, but with 1 for GroupNorm scales that begin at 0 (else a ResNet"
        " would be its shortcuts alone); `inspect --figure receptive` draws any trained one",
        needs="nothing",
        command="vitlab paper receptive-field --figure receptive-field.png",
        live=True,
    ),
    Item(
        name="shift-equivariance",
        title="Is a shift of the image a shift of the features? Convolution and ViT",
        source="the talks about the paper",
        state="run when asked",
        here="exact errors of small models, randomly initialised",
        needs="nothing",
        command="vitlab paper shift-equivariance --figure shift-equivariance.png",
        live=True,
    ),
    Item(
        name="shuffled-patches",
        title="Shuffled patches, with and without positions",
        source="the talks about the paper",
        state="run when asked",
        here="small models trained on the built-in digits",
        needs="nothing",
        command="vitlab paper shuffled-patches --figure shuffled-patches.png",
        live=True,
    ),
    Item(
        name="gradients-through-time",
        title="Gradients through time of RNN, LSTM and attention",
        source="the talks about the paper",
        state="run when asked",
        here="one layer of each, randomly initialised",
        needs="nothing",
        command="vitlab paper gradients-through-time --figure gradients-through-time.png",
        live=True,
    ),
    Item(
        name="sequence-length",
        title="Time against the length of the sequence and the number of cores, LSTM and attention",
        source="the talks about the paper",
        state="run when asked",
        here="measured on this machine, now",
        needs="nothing",
        command="vitlab paper sequence-length --figure sequence-length.png",
        live=True,
    ),
    Item(
        name="words",
        title="Attention between words: what does it mean?",
        source="the talks about the paper",
        state="run when asked",
        here="a Transformer of two layers, trained on sentences in less than a minute",
        needs="nothing",
        command="vitlab paper words --figure words.png",
        live=True,
    ),
)


def _experiment(name: str) -> Callable[[ProgressCallback], Explained]:
    """The experiment of a live item."""
    from vitlab.studies import explained

    experiments: dict[str, Callable[[ProgressCallback], Explained]] = {
        "receptive-field": explained.receptive_field,
        "shift-equivariance": explained.shift_equivariance,
        "shuffled-patches": explained.shuffled_patches,
        "figure10": explained.positions_over_time,
        "gradients-through-time": explained.gradients_through_time,
        "sequence-length": explained.sequence_length,
        "words": explained.words,
    }
    return experiments[name]


def item_called(name: str) -> Item:
    """The item of that name; capitals, spaces and hyphens do not matter: `Table 2` is table2."""
    known = {_folded(item.name): item for item in ITEMS}
    if (found := known.get(_folded(name))) is not None:
        return found
    names = [item.name for item in ITEMS]
    raise UsageError(f"no table or figure called {name!r}", hint=did_you_mean(name, names, count=3) or f"one of {', '.join(names)}")


def _folded(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


# --- results ------------------------------------------------------------------------------------------------------------------


class PaperList(Displayed):
    """All items: what they are, what is reproduced here, what the whole needs, and the command."""

    def tables(self) -> list[Block]:
        """Two rows for each item: what it is and needs; what is here and the command."""
        rows = [{"item": item.name, "what": item.title, "state": item.state, "needs": item.needs} for item in ITEMS]
        commands = [{"item": item.name, "here": item.here, "command": item.command} for item in ITEMS]
        return [rows, commands]

    def to_json(self) -> list[dict[str, Any]]:
        """Every item without its rows."""
        return [_described(item) for item in ITEMS]


def _described(item: Item) -> dict[str, Any]:
    return {
        "item": item.name,
        "title": item.title,
        "source": item.source,
        "state": item.state,
        "here": item.here,
        "needs": item.needs,
        "absent": item.absent or None,
        "results": [f"docs/results.md: {section}" for section in item.sections],
        "command": item.command,
    }


class PaperItem(Displayed):
    """One table or figure: published, computed and measured numbers side by side. `rows` has them."""

    def __init__(self, item: Item, progress: ProgressCallback = silent) -> None:
        self.item = item
        self.rows = tuple(item.rows()) if item.rows is not None else ()
        self.explained: Explained | None = None
        if item.live:
            self.explained = _experiment(item.name)(progress)
            self.rows = tuple(PaperRow(about=about, computed=numbers) for about, numbers in self.explained.rows)

    def tables(self) -> list[Block]:
        """What the item is, its rows, and what they are made of."""
        item = self.item
        about: dict[str, Any] = {
            "item": item.title,
            "source": item.source,
            "here": f"{item.state}: {item.here}",
            "needs": item.needs,
        }
        about |= {"not printed": item.absent} if item.absent else {}
        about |= {"measured": ", ".join(f"docs/results.md: {section}" for section in item.sections)} if item.sections else {}
        about |= {"finding": self.explained.finding} if self.explained is not None else {}
        about["command"] = item.command
        return [about, [self._shown(row) for row in self.rows]] if self.rows else [about]

    def _shown(self, row: PaperRow) -> dict[str, Any]:
        shown: dict[str, Any] = dict(row.about)
        for group in ("published", "computed", "measured"):
            for name in self._columns(group):
                value = getattr(row, group).get(name)
                title = name if group == "published" or self.item.live else f"{group}: {name}"
                shown[title] = None if value is None else _text(value)
        differ = {other.command for other in self.rows} - {"", self.item.command}
        return shown | ({"command": row.command} if differ else {})

    def _columns(self, group: str) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in getattr(row, group)))

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values; a number with a deviation is an object."""
        finding = {} if self.explained is None else {"finding": self.explained.finding}
        return (
            _described(self.item)
            | finding
            | {
                "rows": [
                    {
                        **row.about,
                        "published": {name: _plain(value) for name, value in row.published.items()},
                        "computed": dict(row.computed),
                        "measured": {name: _plain(value) for name, value in row.measured.items()},
                        "command": row.command or None,
                    }
                    for row in self.rows
                ]
            }
        )

    def draw(self, path: Path) -> bytes:
        """The item as a chart, PNG or SVG by the ending of the path: lines where it is a curve, else a panel for each column."""
        from vitlab.interpretation.drawing import Style, draw_dots, draw_lines, form_of

        style = Style(form=form_of(path))
        if self.explained is not None:
            return self.explained.draw(style)
        if not self.rows:
            raise UsageError(f"{self.item.name} has no numbers to draw", hint=self.item.command)
        if self.item.name in _CHARTS:
            lines, x, y = _CHARTS[self.item.name](self.rows)
            return draw_lines(lines, x, y, style, title=self.item.title)
        rows, panels = self._panels()
        return draw_dots(rows, panels, style)

    def _panels(self) -> tuple[list[Any], list[Any]]:
        from vitlab.interpretation.drawing import DotRow, Panel

        panels = []
        groups = [group for group in ("published", "measured") if self._columns(group)] or ["computed"]
        groups += ["computed"] if self.item.name == "figure2" else []  # whose groups of tasks are means of published numbers
        for group in groups:
            for name in self._columns(group):
                cells = [getattr(row, group).get(name) for row in self.rows]
                values = [_number(cell) for cell in cells]
                if any(value is not None for value in values):
                    spread = [getattr(cell, "deviation", None) or 0.0 for cell in cells]
                    panels.append(Panel(axis=name, title=group, values=values, spread=spread))
        names = [", ".join(row.about.values()) for row in self.rows]
        kinds = [next(iter(row.about.values())) for row in self.rows]
        colours = list(dict.fromkeys(kinds))
        rows = [DotRow(name=name, group=colours.index(kind)) for name, kind in zip(names, kinds, strict=True)]
        return rows, panels


def _text(value: Cell | Measured) -> str:
    if isinstance(value, bool | str | Score | Measured):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if abs(value or 0) < 1e5 else f"{value:,.0f}"


def _plain(value: Cell | Measured) -> Any:
    if isinstance(value, Measured):
        return {"value": value.value, "deviation": value.deviation, "section": f"docs/results.md: {value.section}"}
    if isinstance(value, Score):
        more = {} if value.second is None else {"second": value.second}
        return {"value": value.value, "deviation": value.deviation, **more}
    return value


def _number(value: Cell | Measured) -> float | None:
    if isinstance(value, Score | Measured):
        return value.value
    return value if isinstance(value, int | float) else None


# --- charts -------------------------------------------------------------------------------------------------------------------

_Chart = tuple[list["Line"], "Axis", "Axis"]


def _curves(points: Sequence[tuple[str, float, float]]) -> list[Line]:
    """A line for each name, its points from left to right."""
    from vitlab.interpretation.drawing import Line

    lines = []
    for name in dict.fromkeys(name for name, _, _ in points):
        mine = sorted((x, y) for other, x, y in points if other == name)
        lines.append(Line(name=name, x=[x for x, _ in mine], y=[y for _, y in mine]))
    return lines


def _chart_data(rows: Sequence[PaperRow]) -> _Chart:
    from vitlab.interpretation.drawing import Axis

    images = {IMAGENET: recipes.IMAGENET.images, IMAGENET21K: recipes.IMAGENET21K.images, JFT: recipes.JFT.images}
    points = [
        (row.about["model"], images[data], value)
        for row in rows
        for data, score in row.published.items()
        if (value := _number(score)) is not None
    ]
    return _curves(points), Axis(name="images of pre-training", log=True), Axis(name="ImageNet top-1, %")


def _chart_compute(rows: Sequence[PaperRow]) -> _Chart:
    from vitlab.interpretation.drawing import Axis

    points = [(_family_6(row), row.exaflops, row.average) for row in TABLE_6]
    return _curves(points), Axis(name="exaFLOPs of pre-training", log=True), Axis(name="average of 5 datasets, %")


def _chart_speed(rows: Sequence[PaperRow]) -> _Chart:
    from vitlab.interpretation.drawing import Axis

    points = [
        (f"{row.about['model'].partition('-')[0]} {row.about['pixels']} px, {gpu}", gmacs, speed)
        for row in rows
        for gpu in ("A100", "V100")
        if (gmacs := _number(row.published["GMACs"])) and (speed := _number(row.published[f"images/s, {gpu}"]))
    ]
    return _curves(points), Axis(name="GMACs of one image", log=True), Axis(name="images/s", log=True)


def _chart_years(rows: Sequence[PaperRow]) -> _Chart:
    from vitlab.interpretation.drawing import Axis, Line

    points = [
        (row.about["kind"], float(row.about["year"]), value)
        for row in rows
        if (value := _number(row.published["ImageNet"])) is not None
    ]
    years = sorted({year for _, year, _ in points})
    best = [max(value for _, other, value in points if other <= year) for year in years]
    kinds = [
        Line(
            name=kind, x=[x for name, x, _ in points if name == kind], y=[y for name, _, y in points if name == kind], joined=False
        )
        for kind in dict.fromkeys(name for name, _, _ in points)
    ]
    return (
        [Line(name="best so far", x=years, y=best, dashed=True), *kinds],
        Axis(name="year", at=years),
        Axis(name="ImageNet top-1, %"),
    )


def _chart_batches(rows: Sequence[PaperRow]) -> _Chart:
    from vitlab.interpretation.drawing import Axis

    points = [
        (row.about["model"], float(side), value)
        for row in rows
        for side in _SIDES
        if (value := _number(row.computed[f"batch at {side} px"]))
    ]
    return (
        _curves(points),
        Axis(name="image size, pixels", log=True, at=_SIDES),
        Axis(name="largest batch on a TPUv3 core", log=True),
    )


_CHARTS: dict[str, Callable[[Sequence[PaperRow]], _Chart]] = {
    "figure3": _chart_data,
    "figure5": _chart_compute,
    "figure12": _chart_batches,
    "table6": _chart_compute,
    "transformers-or-cnns": _chart_speed,
    "imagenet-years": _chart_years,
}
