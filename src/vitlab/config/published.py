"""Published numbers of the models: accuracy on ImageNet, multiply-adds, speed on a GPU; each with its source."""

from __future__ import annotations

from dataclasses import dataclass

from vitlab.config.model import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A row of a published table: top-1 accuracy on ImageNet's validation split in percent, and the training data.

    `gmacs` is in billions, as printed; `images_per_sec` is on one V100 GPU. None if the table has no such column.
    """

    top1: float
    trained_on: str
    source: str
    gmacs: float | None = None
    images_per_sec: float | None = None


_SWIN = "Liu et al. 2021, Swin Transformer, Table 1"
_CONVNEXT = "Liu et al. 2022, A ConvNet for the 2020s, Table 1"
_VIT = "Dosovitskiy et al. 2021, Table 5"
_AUGREG = "google-research/vision_transformer, README: AugReg, best at this size"
_DEIT = "Touvron et al. 2021, Table 5"
_EFFICIENT = "Tan and Le 2019, Table 2"
_NOISY = "Xie et al. 2020, Table 2"


_1K, _21K = "ImageNet-1k", "ImageNet-21k, then 1k"


def _both(one: float | None, more: float | None, gmacs: float, images_per_sec: float | None, source: str) -> tuple[Published, ...]:
    """Rows of one model after ImageNet-1k alone and after ImageNet-21k."""
    scores = ((one, _1K), (more, _21K))
    return tuple(
        Published(top1=top1, trained_on=data, source=source, gmacs=gmacs, images_per_sec=images_per_sec)
        for top1, data in scores
        if top1
    )


def _one(
    top1: float, trained_on: str, source: str, *, gmacs: float | None = None, images_per_sec: float | None = None
) -> tuple[Published, ...]:
    return (Published(top1=top1, trained_on=trained_on, source=source, gmacs=gmacs, images_per_sec=images_per_sec),)


# (name, image size) -> the rows that are quoted. Speeds are those of the ConvNeXt paper, which measured both families alike.
PUBLISHED: dict[tuple[str, int], tuple[Published, ...]] = {
    ("Swin-T", 224): _both(81.3, None, 4.5, 757.9, _SWIN),
    ("Swin-S", 224): _both(83.0, None, 8.7, 436.7, _SWIN),
    ("Swin-B", 224): _both(83.5, 85.2, 15.4, 286.6, _SWIN),
    ("Swin-B", 384): _both(84.5, 86.4, 47.1, 85.1, _SWIN),
    ("Swin-L", 224): _both(None, 86.3, 34.5, 145.0, _SWIN),
    ("Swin-L", 384): _both(None, 87.3, 103.9, 46.0, _SWIN),
    ("ConvNeXt-T", 224): _both(82.1, 82.9, 4.5, 774.7, _CONVNEXT),
    ("ConvNeXt-T", 384): _both(None, 84.1, 13.1, None, _CONVNEXT),
    ("ConvNeXt-S", 224): _both(83.1, 84.6, 8.7, 447.1, _CONVNEXT),
    ("ConvNeXt-S", 384): _both(None, 85.8, 25.5, None, _CONVNEXT),
    ("ConvNeXt-B", 224): _both(83.8, 85.8, 15.4, 292.1, _CONVNEXT),
    ("ConvNeXt-B", 384): _both(85.1, 86.8, 45.1, 95.7, _CONVNEXT),
    ("ConvNeXt-L", 224): _both(84.3, 86.6, 34.4, 146.8, _CONVNEXT),
    ("ConvNeXt-L", 384): _both(85.5, 87.5, 101.0, 50.4, _CONVNEXT),
    ("ConvNeXt-XL", 224): _both(None, 87.0, 60.9, 89.3, _CONVNEXT),
    ("ConvNeXt-XL", 384): _both(None, 87.8, 179.0, 30.2, _CONVNEXT),
    ("ViT-B/16", 384): _one(83.97, _21K, _VIT),
    ("ViT-B/32", 384): _one(81.28, _21K, _VIT),
    ("ViT-L/16", 384): _one(85.15, _21K, _VIT),
    ("ViT-L/32", 384): _one(80.99, _21K, _VIT),
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
