"""Published numbers of the models: accuracy on ImageNet, multiply-adds, speed on a GPU; each with its source.

The tables of the paper itself are in `vitlab.config.paper_tables`. `published_accuracies` finds the numbers of both that belong
beside an accuracy measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from vitlab.config.model import ModelConfig
from vitlab.config.paper_tables import IMAGENET, IMAGENET21K, PAPER, TABLE_2, TABLE_5, UPSTREAM, UPSTREAM_SOURCE, Score
from vitlab.config.vit import Position, ViTConfig


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
