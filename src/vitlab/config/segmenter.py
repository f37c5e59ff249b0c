"""Semantic segmentation on the features of a ViT, Swin Transformer or ConvNeXt: the config and the cost. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitlab.config.backbone import BackboneConfig, OnBackbone, headless
from vitlab.config.cost_counter import CostCounter, cells
from vitlab.config.serialize import Json
from vitlab.config.vit import ViTConfig
from vitlab.errors import LARGEST_WIDTH, MOST_LAYERS, ConfigError, at_least, choice, pair

Decoder = Literal["linear", "mask-transformer"]

MOST_CLASSES = 250
"""A mask holds one byte a pixel, and some values mean "ignore" and "unknown"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmenterConfig(OnBackbone):
    """A model that gives each pixel a class: a `backbone` whose features lie on a grid, and a decoder.

    `decoder`: `linear` is one dense layer on the features of each patch. `mask-transformer` (Segmenter, Strudel et al. 2021) puts
    one learned token a class beside the patches, runs `decoder_depth` more layers of `decoder_heads` heads, and compares each patch
    with each class by their scalar product. The logits of the grid are interpolated to the image's pixels.
    `layers` chooses the features: the encoder's layers of a ViT, the stages of the others, by number from 0, the last one among
    them; several are put side by side. Empty takes the last layer of a ViT and all stages of the others.
    `image_size` and `channels` are the backbone's too. The backbone has no head and no attention pool.
    """

    family: ClassVar[str] = "segmenter"
    title: ClassVar[str] = "a segmenter"
    names: ClassVar[tuple[str, ...]] = ()

    backbone: BackboneConfig
    num_classes: int
    image_size: tuple[int, int]
    channels: int = 3
    decoder: Decoder = "linear"
    decoder_depth: int = 2
    decoder_heads: int = 3
    layers: tuple[int, ...] = ()
    head_bias: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        choice("decoder", self.decoder, Decoder)
        at_least("num_classes", self.num_classes, 2, MOST_CLASSES)
        at_least("decoder_depth", self.decoder_depth, 1, MOST_LAYERS)
        at_least("decoder_heads", self.decoder_heads, 1, LARGEST_WIDTH)
        object.__setattr__(self, "backbone", headless(self.backbone, self.image_size, self.channels))
        self.check_layers()
        if self.decoder == "mask-transformer" and self.decoder_width % self.decoder_heads:
            raise ConfigError(f"the decoder's width {self.decoder_width} is not a multiple of decoder_heads={self.decoder_heads}")

    @property
    def decoder_width(self) -> int:
        """Width of the mask transformer: that of a ViT backbone, or of the last chosen stage."""
        return self.backbone.width if isinstance(self.backbone, ViTConfig) else self.backbone.widths[self.chosen[-1]]

    @property
    def block_count(self) -> int:
        """Layers of the backbone and of the decoder."""
        return self.backbone.block_count + (self.decoder_depth if self.decoder == "mask-transformer" else 0)

    @classmethod
    def from_name(cls, name: str, image_size: tuple[int, int] | None) -> SegmenterConfig | None:
        """None: a segmenter is made from its backbone's config."""
        return None

    @property
    def name(self) -> str | None:
        """`ViT-Ti/16, linear decoder`: to read, not to build from; None for a backbone without a name."""
        return None if self.backbone.name is None else f"{self.backbone.name}, {self.decoder} decoder"

    def facts(self) -> dict[str, Json]:
        """What `vitlab describe` shows first."""
        return {
            "task": "segment",
            "image_size": list(self.image_size),
            "channels": self.channels,
            "grid": list(self.grid),
            "decoder": self.decoder,
            "layers": list(self.chosen),
            "feature_width": self.feature_width,
            "num_classes": self.num_classes,
            "backbone": {"family": self.backbone.family, "name": self.backbone.name, **self.backbone.facts()},
        }

    def count(self, counter: CostCounter) -> None:
        """Add a forward pass of one image: the backbone, the decoder, and the interpolated logits as kept numbers."""
        self.backbone.count(counter)
        places, classes, width = cells(self.grid), self.num_classes, self.decoder_width
        if self.decoder == "linear":
            counter.dense(places, self.feature_width, classes)
            counter.kept += places * self.feature_width
        else:
            self._count_transformer(counter, places, classes, width)
        pixels = cells(self.image_size) * classes
        counter.kept += pixels
        counter.alive(cells(self.image_size) * self.channels + places * (self.feature_width + classes) + pixels)

    def _count_transformer(self, counter: CostCounter, places: int, classes: int, width: int) -> None:
        tokens = places + classes
        counter.dense(places, self.feature_width, width)
        counter.parameters += classes * width
        for _ in range(self.decoder_depth):
            counter.norms(width, width)
            counter.dense(tokens, width, 3 * width)
            counter.macs += 2 * tokens**2 * width
            counter.dense(tokens, width, width)
            counter.dense(tokens, width, 4 * width)
            counter.dense(tokens, 4 * width, width)
            counter.kept += tokens * 16 * width
        counter.norms(width)
        counter.dense(places, width, width, bias=False)
        counter.dense(classes, width, width, bias=False)
        counter.macs += places * classes * width
        counter.norms(classes)
        counter.kept += tokens * 4 * width
