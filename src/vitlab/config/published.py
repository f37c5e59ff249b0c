"""Published numbers: the paper's tables, and accuracy on ImageNet, multiply-adds and speed of other papers; each with its source.

Accuracies are top-1 in percent. Tables 3 and 4 of the paper, the settings of the runs, are in `vitlab.recipes.paper`. `vitlab
paper` shows all of them, and `published_accuracies` finds those that belong beside an accuracy measured here. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from vitlab.config.model import ModelConfig
from vitlab.config.vit import Position, PositionKind, PositionPlace, ViTConfig

# --- the paper, table by table: "An Image is Worth 16x16 Words", arXiv:2010.11929 --------------------------------------------

PAPER = "Dosovitskiy et al. 2021, arXiv:2010.11929v2"
PAPER_V1 = "Dosovitskiy et al. 2020, arXiv:2010.11929v1"

IMAGENET, IMAGENET21K, JFT = "ImageNet-1k", "ImageNet-21k", "JFT-300M"
TRANSFER_DATASETS = ("ImageNet", "ReaL", "CIFAR-10", "CIFAR-100", "Pets", "Flowers")
"""The columns of Tables 5 and 6; Table 2 has VTAB too. ReaL is ImageNet's validation split with reassessed labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A printed number with `digits` decimals, its standard deviation, and the second number where two are printed."""

    value: float
    deviation: float | None = None
    second: float | None = None
    digits: int = 2

    def __str__(self) -> str:
        more = "" if self.second is None else f" / {self.second:.{self.digits}f}"
        spread = "" if self.deviation is None else f" ± {self.deviation:.{self.digits}f}"
        return f"{self.value:.{self.digits}f}{more}{spread}"


def _score(word: str) -> Score:
    value, _, deviation = word.partition("±")
    first, _, second = value.partition("/")
    return Score(
        value=float(first),
        deviation=float(deviation) if deviation else None,
        second=float(second) if second else None,
        digits=len(first.partition(".")[2]),
    )


def _scores(names: tuple[str, ...], line: str) -> dict[str, Score]:
    """The numbers of a printed line by column; `-` is an empty cell."""
    return {name: _score(word) for name, word in zip(names, line.split(), strict=True) if word != "-"}


# --- Table 1: sizes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """A row of Table 1; `parameters` in millions."""

    name: str
    layers: int
    width: int
    mlp_width: int
    heads: int
    parameters: int


TABLE_1: tuple[SizeRow, ...] = (
    SizeRow(name="ViT-B", layers=12, width=768, mlp_width=3072, heads=12, parameters=86),
    SizeRow(name="ViT-L", layers=24, width=1024, mlp_width=4096, heads=16, parameters=307),
    SizeRow(name="ViT-H", layers=32, width=1280, mlp_width=5120, heads=16, parameters=632),
)


# --- Tables 2 and 5: transfer -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRow:
    """A model after fine-tuning: accuracy by dataset, what it was pre-trained on, and TPUv3-core-days where they are printed."""

    model: str
    trained_on: str
    scores: Mapping[str, Score]
    core_days: int | None = None


_TABLE_2 = (*TRANSFER_DATASETS, "VTAB")
_SEMI = "ImageNet-1k and JFT-300M without labels"


def _table_2(model: str, trained_on: str, core_days: int, line: str) -> TransferRow:
    return TransferRow(model=model, trained_on=trained_on, core_days=core_days, scores=_scores(_TABLE_2, line))


# Fine-tuned at 512 px (H/14: 518) on ImageNet, with averaged weights, and at 384 px elsewhere; ± over three fine-tuning runs.
TABLE_2: tuple[TransferRow, ...] = (
    _table_2("ViT-H/14", JFT, 2500, "88.55±.04 90.72±.05 99.50±.06 94.55±.04 97.56±.03 99.68±.02 77.63±.23"),
    _table_2("ViT-L/16", JFT, 680, "87.76±.03 90.54±.03 99.42±.03 93.90±.05 97.32±.11 99.74±.00 76.28±.46"),
    _table_2("ViT-L/16", IMAGENET21K, 230, "85.30±.02 88.62±.05 99.15±.03 93.25±.05 94.67±.15 99.61±.02 72.72±.21"),
    _table_2("BiT-R152x4", JFT, 9900, "87.54±.02 90.54 99.37±.06 93.51±.08 96.62±.23 99.63±.03 76.29±1.70"),
    _table_2("EfficientNet-L2", _SEMI, 12300, "88.4/88.5 90.55 - - - - -"),
)

TABLE_2_V1: tuple[TransferRow, ...] = (  # October 2020
    _table_2("ViT-H/14", JFT, 2500, "88.36 90.77 99.50±.06 94.55±.04 97.56±.03 99.68±.02 77.16±.29"),
    _table_2("ViT-L/16", JFT, 680, "87.61±.03 90.24±.03 99.42±.03 93.90±.05 97.32±.11 99.74±.00 75.91±.18"),
    _table_2("BiT-R152x4", JFT, 9900, "87.54±.02 90.54 99.37±.06 93.51±.08 96.62±.23 99.63±.03 76.29±1.70"),
    _table_2("EfficientNet-L2", _SEMI, 12300, "88.4/88.5 90.55 - - - - -"),
)

_MODELS_5 = ("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32", "ViT-H/14")
_PRINTED_5: dict[str, dict[str, str]] = {  # pre-training data -> dataset -> a number for each of the models above
    IMAGENET: {
        "CIFAR-10": "98.13 97.77 97.86 97.94 -",
        "CIFAR-100": "87.13 86.31 86.35 87.07 -",
        "ImageNet": "77.91 73.38 76.53 71.16 -",
        "ReaL": "83.57 79.56 82.19 77.83 -",
        "Flowers": "89.49 85.43 89.66 86.36 -",
        "Pets": "93.81 92.04 93.64 91.35 -",
    },
    IMAGENET21K: {
        "CIFAR-10": "98.95 98.79 99.16 99.13 99.27",
        "CIFAR-100": "91.67 91.97 93.44 93.04 93.82",
        "ImageNet": "83.97 81.28 85.15 80.99 85.13",
        "ReaL": "88.35 86.63 88.40 85.65 88.70",
        "Flowers": "99.38 99.11 99.61 99.19 99.51",
        "Pets": "94.43 93.02 94.73 93.09 94.82",
    },
    JFT: {
        "CIFAR-10": "99.00 98.61 99.38 99.19 99.50",
        "CIFAR-100": "91.87 90.49 94.04 92.52 94.55",
        "ImageNet": "84.15 80.73 87.12 84.37 88.04",
        "ReaL": "88.85 86.27 89.99 88.28 90.33",
        "Flowers": "99.56 99.27 99.56 99.45 99.68",
        "Pets": "95.80 93.40 97.11 95.83 97.56",
    },
}


def _table_5() -> tuple[TransferRow, ...]:
    rows = []
    for data, lines in _PRINTED_5.items():
        columns = {name: _scores(_MODELS_5, line) for name, line in lines.items()}
        for model in _MODELS_5:
            scores = {name: columns[name][model] for name in TRANSFER_DATASETS if model in columns[name]}
            if scores:
                rows.append(TransferRow(model=model, trained_on=data, scores=scores))
    return tuple(rows)


# Fine-tuned at 384 px, without averaged weights; the numbers behind Figure 3.
TABLE_5: tuple[TransferRow, ...] = _table_5()


# --- Tables 6 and 7: scaling --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """A model pre-trained on JFT-300M for `epochs`, then fine-tuned; `exaflops` are those of pre-training, as printed."""

    model: str
    epochs: int
    scores: Mapping[str, Score]
    exaflops: int

    @property
    def average(self) -> float:
        """The mean over ImageNet, CIFAR-10, CIFAR-100, Pets and Flowers: the first axis of Figure 5."""
        return sum(self.scores[name].value for name in AVERAGE_5) / len(AVERAGE_5)


AVERAGE_5 = ("ImageNet", "CIFAR-10", "CIFAR-100", "Pets", "Flowers")


def _table_6(model: str, epochs: int, line: str, exaflops: int) -> ScalingRow:
    return ScalingRow(model=model, epochs=epochs, scores=_scores(TRANSFER_DATASETS, line), exaflops=exaflops)


# The numbers behind Figure 5.
TABLE_6: tuple[ScalingRow, ...] = (
    _table_6("ViT-B/32", 7, "80.73 86.27 98.61 90.49 93.40 99.27", 55),
    _table_6("ViT-B/16", 7, "84.15 88.85 99.00 91.87 95.80 99.56", 224),
    _table_6("ViT-L/32", 7, "84.37 88.28 99.19 92.52 95.83 99.45", 196),
    _table_6("ViT-L/16", 7, "86.30 89.43 99.38 93.46 96.81 99.66", 783),
    _table_6("ViT-L/16", 14, "87.12 89.99 99.38 94.04 97.11 99.56", 1567),
    _table_6("ViT-H/14", 14, "88.08 90.36 99.50 94.71 97.11 99.71", 4262),
    _table_6("BiT-R50x1", 7, "77.54 84.56 97.67 86.07 91.11 94.26", 50),
    _table_6("BiT-R50x2", 7, "82.12 87.94 98.29 89.20 93.43 97.02", 199),
    _table_6("BiT-R101x1", 7, "80.67 87.07 98.48 89.17 94.08 95.95", 96),
    _table_6("BiT-R152x1", 7, "81.88 87.96 98.82 90.22 94.17 96.94", 141),
    _table_6("BiT-R152x2", 7, "84.97 89.69 99.06 92.05 95.37 98.62", 563),
    _table_6("BiT-R152x2", 14, "85.56 89.89 99.24 91.92 95.75 98.75", 1126),
    _table_6("BiT-R200x3", 14, "87.22 90.15 99.34 93.53 96.32 99.04", 3306),
    _table_6("R50+ViT-B/32", 7, "84.90 89.15 99.01 92.24 95.75 99.46", 106),
    _table_6("R50+ViT-B/16", 7, "85.58 89.65 99.14 92.63 96.65 99.40", 274),
    _table_6("R50+ViT-L/32", 7, "85.68 89.04 99.24 92.93 96.97 99.43", 246),
    _table_6("R50+ViT-L/16", 7, "86.60 89.72 99.18 93.64 97.03 99.40", 859),
    _table_6("R50+ViT-L/16", 14, "87.12 89.76 99.31 93.89 97.36 99.11", 1668),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRow:
    """A row of Table 7: a ResNet pre-trained on JFT-300M with Adam or SGD, fine-tuned; `average` as printed."""

    model: str
    optimizer: Literal["Adam", "SGD"]
    scores: Mapping[str, Score]
    average: float


def _of_table_6(model: str, epochs: int) -> Mapping[str, Score]:
    """The accuracies of a model of Table 6 on the datasets of Table 7, which repeats its Adam runs."""
    (row,) = (row for row in TABLE_6 if (row.model, row.epochs) == (model, epochs))
    return {name: row.scores[name] for name in AVERAGE_5}


TABLE_7: tuple[OptimizerRow, ...] = (
    OptimizerRow(model="BiT-R50x1", optimizer="Adam", scores=_of_table_6("BiT-R50x1", 7), average=89.33),
    OptimizerRow(model="BiT-R50x1", optimizer="SGD", scores=_scores(AVERAGE_5, "78.24 97.46 85.17 91.00 92.06"), average=88.79),
    OptimizerRow(model="BiT-R152x2", optimizer="Adam", scores=_of_table_6("BiT-R152x2", 7), average=94.01),
    OptimizerRow(model="BiT-R152x2", optimizer="SGD", scores=_scores(AVERAGE_5, "84.37 99.07 91.06 94.79 99.32"), average=93.72),
)


# --- Table 8: position embeddings ---------------------------------------------------------------------------------------------

# ImageNet, 5-shot linear, ViT-B/16, in percent. The paper leaves the other cells empty.
TABLE_8: dict[tuple[PositionKind, PositionPlace], float] = {
    ("none", "stem"): 61.382,
    ("learned-1d", "stem"): 64.206,
    ("learned-1d", "every"): 63.964,
    ("learned-1d", "shared"): 64.292,
    ("learned-2d", "stem"): 64.001,
    ("learned-2d", "every"): 64.046,
    ("learned-2d", "shared"): 64.022,
    ("relative", "stem"): 64.032,
}


# --- Table 9: VTAB-1k ---------------------------------------------------------------------------------------------------------

VtabGroup = Literal["natural", "specialized", "structured"]
MODELS_9: tuple[tuple[str, str], ...] = (("ViT-H/14", JFT), ("ViT-L/16", JFT), ("ViT-L/16", IMAGENET21K))
"""The models of Table 9 and their pre-training data, in the order of `TABLE_9`."""

TABLE_9: dict[str, tuple[VtabGroup, tuple[float, float, float]]] = {
    "Caltech101": ("natural", (95.3, 95.4, 90.8)),
    "CIFAR-100": ("natural", (85.5, 81.9, 84.1)),
    "DTD": ("natural", (75.2, 74.3, 74.1)),
    "Flowers102": ("natural", (99.7, 99.7, 99.3)),
    "Pets": ("natural", (97.2, 96.7, 92.7)),
    "Sun397": ("natural", (65.0, 63.5, 61.0)),
    "SVHN": ("natural", (88.9, 87.4, 80.9)),
    "Camelyon": ("specialized", (83.3, 83.6, 82.5)),
    "EuroSAT": ("specialized", (96.7, 96.5, 95.6)),
    "Resisc45": ("specialized", (91.4, 89.7, 85.2)),
    "Retinopathy": ("specialized", (76.6, 77.1, 75.3)),
    "Clevr-Count": ("structured", (91.7, 86.4, 70.3)),
    "Clevr-Dist": ("structured", (63.8, 63.1, 56.1)),
    "DMLab": ("structured", (53.1, 49.7, 41.9)),
    "dSpr-Loc": ("structured", (79.4, 74.5, 74.7)),
    "dSpr-Ori": ("structured", (63.3, 60.5, 64.9)),
    "KITTI-Dist": ("structured", (84.5, 82.2, 79.9)),
    "sNORB-Azim": ("structured", (33.2, 36.2, 30.5)),
    "sNORB-Elev": ("structured", (51.2, 51.1, 41.7)),
}
MEAN_9 = (77.6, 76.3, 72.7)
"""The mean over the tasks, as printed."""


# --- numbers of the text ------------------------------------------------------------------------------------------------------

OBJECTNET = {"top-1": 61.7, "top-5": 82.1}
"""App. D.9: ViT-H/14 of Table 2 on ObjectNet."""

MASKED_B16 = 79.9
"""Section 4.6: ViT-B/16 pre-trained by masked patch prediction, fine-tuned on ImageNet; +2 over scratch, -4 to supervised."""

UPSTREAM: dict[str, dict[str, float]] = {  # pre-training data -> model -> top-1 on its validation images, at 224 px
    IMAGENET21K: {"ViT-B/16": 47.88, "ViT-B/32": 44.04, "ViT-L/16": 49.90, "ViT-L/32": 45.42, "ViT-H/14": 49.06},
    IMAGENET: {"ViT-B/32": 69.19, "ViT-B/16": 74.79, "ViT-L/32": 66.90, "ViT-L/16": 72.59},
}
UPSTREAM_SOURCE = "the authors' answer, google-research/vision_transformer, issue 62"


@dataclass(frozen=True, slots=True, kw_only=True)
class YearRow:
    """A model that led ImageNet's validation split in its year: top-1 in percent, as its publication prints it."""

    year: int
    model: str
    top1: float
    source: str


IMAGENET_YEARS: tuple[YearRow, ...] = (  # those that vitlab does not build; the others are in Table 2 and PUBLISHED
    YearRow(year=2012, model="AlexNet, 7 networks", top1=63.3, source="Krizhevsky et al. 2012, Table 2"),
    YearRow(year=2014, model="VGG-19", top1=75.6, source="Simonyan and Zisserman 2015, Table 5"),
    YearRow(year=2015, model="ResNet-152", top1=80.62, source="He et al. 2016, Table 4"),
    YearRow(year=2016, model="ResNeXt-101", top1=80.9, source="Xie et al. 2017, Table 5"),
    YearRow(year=2017, model="NASNet-A", top1=82.7, source="Zoph et al. 2018, Table 2"),
    YearRow(year=2018, model="AmoebaNet-A", top1=83.9, source="Real et al. 2019, Table 2"),
    YearRow(year=2018, model="ResNeXt-101 32x48d, Instagram", top1=85.4, source="Mahajan et al. 2018, abstract"),
    YearRow(year=2019, model="FixResNeXt-101 32x48d", top1=86.4, source="Touvron et al. 2019, abstract"),
    YearRow(year=2021, model="ViT-G/14", top1=90.45, source="Zhai et al. 2021, abstract"),
    YearRow(year=2021, model="CoAtNet-7", top1=90.88, source="Dai et al. 2021, abstract"),
)

FIGURE_4_MODELS = ("ViT-b/32", "ViT-B/32", "ViT-L/32", "ViT-L/16", "BiT-R50x1", "BiT-R152x2")
FIGURE_4_IMAGES = (9_000_000, 30_000_000, 90_000_000, 303_000_000)
"""Section 4.3: random subsets of JFT-300M, and all of it."""


# --- other papers, and what belongs beside an accuracy measured here ---------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A row of a published table: top-1 accuracy on ImageNet's validation split in percent, and the training data.

    `gmacs` is in billions, as printed; `images_per_sec` is on one V100 GPU, `images_per_sec_a100` on one A100. None if the source
    has no such column.
    """

    top1: float
    trained_on: str
    source: str
    gmacs: float | None = None
    images_per_sec: float | None = None
    images_per_sec_a100: float | None = None


_SWIN = "Liu et al. 2021, Swin Transformer, Table 1"
_CONVNEXT = "Liu et al. 2022, A ConvNet for the 2020s, Table 1"
_CONVNEXT_README = "facebookresearch/ConvNeXt, README: ImageNet-22k, then 1k"
_VIT = "Dosovitskiy et al. 2021, Table 5"
_AUGREG = "google-research/vision_transformer, README: AugReg, best at this size"
_DEIT = "Touvron et al. 2021, Table 5"
_EFFICIENT = "Tan and Le 2019, Table 2"
_NOISY = "Xie et al. 2020, Table 2"


_1K, _21K = IMAGENET, f"{IMAGENET21K}, then 1k"


def _both(
    one: float | None, more: float | None, gmacs: float, images_per_sec: float | None, a100: float | None, source: str
) -> tuple[Published, ...]:
    """Rows of one model after ImageNet-1k alone and after ImageNet-21k."""
    scores = ((one, _1K), (more, _21K))
    return tuple(
        Published(top1=top1, trained_on=data, source=source, gmacs=gmacs, images_per_sec=images_per_sec, images_per_sec_a100=a100)
        for top1, data in scores
        if top1
    )


def _readme(top1: float, gmacs: float) -> tuple[Published, ...]:
    """A ConvNeXt after ImageNet-21k that is not in its paper."""
    return _one(top1, _21K, _CONVNEXT_README, gmacs=gmacs)


def _vit(model: str) -> tuple[Published, ...]:
    """A ViT of Table 5 after ImageNet-21k."""
    (row,) = (row for row in TABLE_5 if (row.model, row.trained_on) == (model, IMAGENET21K))
    return _one(row.scores["ImageNet"].value, _21K, _VIT)


def _one(
    top1: float, trained_on: str, source: str, *, gmacs: float | None = None, images_per_sec: float | None = None
) -> tuple[Published, ...]:
    return (Published(top1=top1, trained_on=trained_on, source=source, gmacs=gmacs, images_per_sec=images_per_sec),)


# (name, image size) -> the rows that are quoted. Speeds on a V100 are those of the ConvNeXt paper, which measured both families
# alike; those on an A100 are from the talk's slide "Transformers or CNNs?".
PUBLISHED: dict[tuple[str, int], tuple[Published, ...]] = {
    ("Swin-T", 224): _both(81.3, None, 4.5, 757.9, 1325.6, _SWIN),
    ("Swin-S", 224): _both(83.0, None, 8.7, 436.7, 857.3, _SWIN),
    ("Swin-B", 224): _both(83.5, 85.2, 15.4, 286.6, 662.8, _SWIN),
    ("Swin-B", 384): _both(84.5, 86.4, 47.1, 85.1, 242.5, _SWIN),
    ("Swin-L", 224): _both(None, 86.3, 34.5, 145.0, 435.9, _SWIN),
    ("Swin-L", 384): _both(None, 87.3, 103.9, 46.0, 157.9, _SWIN),
    ("ConvNeXt-T", 224): (*_both(82.1, None, 4.5, 774.7, 1943.5, _CONVNEXT), *_readme(82.9, 4.5)),
    ("ConvNeXt-T", 384): _readme(84.1, 13.1),
    ("ConvNeXt-S", 224): (*_both(83.1, None, 8.7, 447.1, 1275.3, _CONVNEXT), *_readme(84.6, 8.7)),
    ("ConvNeXt-S", 384): _readme(85.8, 25.5),
    ("ConvNeXt-B", 224): _both(83.8, 85.8, 15.4, 292.1, 969.0, _CONVNEXT),
    ("ConvNeXt-B", 384): _both(85.1, 86.8, 45.0, 95.7, 336.6, _CONVNEXT),
    ("ConvNeXt-L", 224): _both(84.3, 86.6, 34.4, 146.8, 611.5, _CONVNEXT),
    ("ConvNeXt-L", 384): _both(85.5, 87.5, 101.0, 50.4, 211.4, _CONVNEXT),
    ("ConvNeXt-XL", 224): _both(None, 87.0, 60.9, 89.3, 424.4, _CONVNEXT),
    ("ConvNeXt-XL", 384): _both(None, 87.8, 179.0, 30.2, 147.4, _CONVNEXT),
    ("ViT-B/16", 384): _vit("ViT-B/16"),
    ("ViT-B/32", 384): _vit("ViT-B/32"),
    ("ViT-L/16", 384): _vit("ViT-L/16"),
    ("ViT-L/32", 384): _vit("ViT-L/32"),
    ("ViT-Ti/16", 384): _one(78.22, _21K, _AUGREG),
    ("ViT-S/32", 384): _one(79.58, _21K, _AUGREG),
    ("ViT-S/16", 384): _one(83.73, _21K, _AUGREG),
    ("R+ViT-Ti/16", 384): _one(75.40, _21K, _AUGREG),
    ("R26+ViT-S/32", 384): _one(83.85, _21K, _AUGREG),
    ("R50+ViT-L/32", 384): _one(85.99, _21K, _AUGREG),
    ("ViT-Ti/16", 224): _one(72.2, _1K, _DEIT),
    ("ViT-S/16", 224): _one(79.8, _1K, _DEIT, images_per_sec=978.5),
    ("ViT-B/16", 224): _one(81.8, _1K, _DEIT, images_per_sec=302.1),
    ("EfficientNet-B0", 224): _one(77.1, _1K, _EFFICIENT, gmacs=0.39),
    ("EfficientNet-B1", 240): _one(79.1, _1K, _EFFICIENT, gmacs=0.70),
    ("EfficientNet-B2", 260): _one(80.1, _1K, _EFFICIENT, gmacs=1.0),
    ("EfficientNet-B3", 300): _one(81.6, _1K, _EFFICIENT, gmacs=1.8),
    ("EfficientNet-B4", 380): _one(82.9, _1K, _EFFICIENT, gmacs=4.2),
    ("EfficientNet-B5", 456): _one(83.6, _1K, _EFFICIENT, gmacs=9.9),
    ("EfficientNet-B6", 528): _one(84.0, _1K, _EFFICIENT, gmacs=19.0),
    ("EfficientNet-B7", 600): _one(84.3, _1K, _EFFICIENT, gmacs=37.0),
    ("EfficientNet-L2", 800): _one(88.4, "ImageNet-1k and 300 M images without labels", _NOISY),
}


def published(config: ModelConfig) -> tuple[Published, ...]:
    """The published rows of this model at its image size; empty if there are none."""
    name, (height, width) = config.name, config.image_size
    return () if name is None or height != width else PUBLISHED.get((name, height), ())


# --- beside an accuracy measured here -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAccuracy:
    """An accuracy in percent that somebody published for this model on this dataset."""

    dataset: str
    model: str
    trained_on: str
    percent: float
    deviation: float | None = None
    source: str

    def row(self) -> dict[str, str]:
        """A row of the table that stands below a measured accuracy."""
        spread = "" if self.deviation is None else f" ± {self.deviation:g}"
        shown = f"{self.percent:g}{spread} %"
        return {"published": shown, "dataset": self.dataset, "trained_on": self.trained_on, "source": self.source}


_NAMED: dict[str, tuple[str, int]] = {  # the name of data -> the paper's name of the dataset, and its number of classes
    **dict.fromkeys(("imagenet", "imagenet-1k", "imagenet1k", "imagenet2012", "ilsvrc2012"), ("ImageNet", 1000)),
    **dict.fromkeys(("cifar10", "cifar-10"), ("CIFAR-10", 10)),
    **dict.fromkeys(("cifar100", "cifar-100"), ("CIFAR-100", 100)),
    **dict.fromkeys(("pets", "oxford-pets", "oxford-iiit-pet", "oxford-iiit-pets"), ("Pets", 37)),
    **dict.fromkeys(("flowers", "flowers102", "oxford-flowers", "oxford-flowers102"), ("Flowers", 102)),
}


def dataset_of_the_paper(data: str, classes: int) -> str | None:
    """The paper's name of a dataset, or None unless the name of the data and its number of classes leave no doubt.

    The name is the reader (`cifar10:PATH`), the last part of the path without its ending, or the folder that this is in.
    """
    reader, colon, rest = data.partition(":")
    path = PurePath(rest if colon else data)
    for word in ((reader,) if colon else ()) + (path.name.partition(".")[0], path.parent.name):
        name, count = _NAMED.get(word.casefold().replace("_", "-"), (None, 0))
        if name is not None:
            return name if count == classes else None
    return None


def published_accuracies(
    model: ModelConfig, data: str, *, real: bool = False, upstream: bool = False
) -> tuple[PublishedAccuracy, ...]:
    """What was published for this model on this data; empty unless both are recognised for certain by their names.

    First Table 2, then Table 5, then, for ImageNet, the other sources at the model's image size. `real` adds ReaL accuracies.
    `upstream` is for a model trained on the data from scratch: then it is the accuracy of pre-training at 224 px.
    """
    dataset = dataset_of_the_paper(data, model.num_classes)
    if dataset is None or model.name is None or not _as_in_the_paper(model):
        return ()
    if upstream:
        scores = UPSTREAM[IMAGENET] if dataset == "ImageNet" else {}
        return tuple(
            PublishedAccuracy(dataset=dataset, model=name, trained_on=IMAGENET, percent=percent, source=UPSTREAM_SOURCE)
            for name, percent in scores.items()
            if name == model.name
        )
    names = (dataset, "ReaL") if real and dataset == "ImageNet" else (dataset,)
    found = [entry for name in names for entry in _of_the_paper(model.name, name)]
    if dataset == "ImageNet":
        found += [
            PublishedAccuracy(dataset=dataset, model=model.name, trained_on=row.trained_on, percent=row.top1, source=row.source)
            for row in published(model)
            if row.source != _VIT
        ]
    return tuple(found)


def published_vtab(model: ModelConfig) -> tuple[PublishedAccuracy, ...]:
    """The mean over VTAB's 19 tasks that was published for this model, fine-tuned on each."""
    return () if model.name is None or not _as_in_the_paper(model) else tuple(_of_the_paper(model.name, "VTAB"))


def _as_in_the_paper(model: ModelConfig) -> bool:
    """Whether a ViT has the class token, positions and attention of the paper, which are not part of its name."""
    if not isinstance(model, ViTConfig):
        return True
    plain = model.pool == "token" and model.attention == "global" and model.position == Position()
    return plain and not model.distill_token and not model.register_tokens


def _of_the_paper(model: str, dataset: str) -> Iterator[PublishedAccuracy]:
    """The accuracies of a model on a dataset in Tables 2 and 5."""
    for table, rows in (("Table 2", TABLE_2), ("Table 5, 384 px", TABLE_5)):
        for row in rows:
            score: Score | None = row.scores.get(dataset)
            if row.model == model and score is not None:
                yield PublishedAccuracy(
                    dataset=dataset,
                    model=model,
                    trained_on=row.trained_on,
                    percent=score.value,
                    deviation=score.deviation,
                    source=f"{PAPER}, {table}",
                )
