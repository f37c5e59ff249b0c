"""Semantic segmentation on the features of a ViT, Swin Transformer or ConvNeXt: the config and the cost. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.cost_counter import CostCounter, cells
from vitlab.config.serialize import Json
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import ViTConfig
from vitlab.config.vit_parts import Pooling
from vitlab.errors import LARGEST_WIDTH, MOST_LAYERS, ConfigError, at_least, choice, pair

Decoder = Literal["linear", "mask-transformer"]
BackboneConfig = ViTConfig | SwinConfig | ConvNeXtConfig

MOST_CLASSES = 250
"""A mask holds one byte a pixel, and some values mean "ignore" and "unknown"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmenterConfig:
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
        object.__setattr__(self, "backbone", _headless(self.backbone, self.image_size, self.channels))
        if len(set(self.layers)) != len(self.layers) or list(self.layers) != sorted(self.layers):
            raise ConfigError(f"layers={self.layers} must rise, each layer once")
        if any(not 0 <= layer < self.backbone_layers for layer in self.layers):
            raise ConfigError(f"layers={self.layers} must be from 0 to {self.backbone_layers - 1}: the backbone has no others")
        if self.layers and self.layers[-1] != self.backbone_layers - 1:
            raise ConfigError(f"layers={self.layers} must end with the last layer, {self.backbone_layers - 1}")
        if self.decoder == "mask-transformer" and self.decoder_width % self.decoder_heads:
            raise ConfigError(f"the decoder's width {self.decoder_width} is not a multiple of decoder_heads={self.decoder_heads}")

    @property
    def backbone_layers(self) -> int:
        """Layers of a ViT's encoder, or stages."""
        return self.backbone.layers if isinstance(self.backbone, ViTConfig) else len(self.backbone.depths)

    @property
    def chosen(self) -> tuple[int, ...]:
        """The layers or stages whose features the decoder sees."""
        if self.layers:
            return self.layers
        return (self.backbone_layers - 1,) if isinstance(self.backbone, ViTConfig) else tuple(range(self.backbone_layers))

    @property
    def feature_width(self) -> int:
        """Length of the vector that the decoder sees of each place."""
        if isinstance(self.backbone, ViTConfig):
            return self.backbone.width * len(self.chosen)
        return sum(self.backbone.widths[stage] for stage in self.chosen)

    @property
    def decoder_width(self) -> int:
        """Width of the mask transformer: that of a ViT backbone, or of the last chosen stage."""
        return self.backbone.width if isinstance(self.backbone, ViTConfig) else self.backbone.widths[self.chosen[-1]]

    @property
    def grid(self) -> tuple[int, int]:
        """Places (down, across) of the features at `image_size`; of several stages, the finest's."""
        if isinstance(self.backbone, ViTConfig):
            return self.backbone.grid
        return self.backbone.grids[self.chosen[0]]

    @property
    def step(self) -> tuple[int, int]:
        """Pixels from one place to the next, (down, across)."""
        if isinstance(self.backbone, ViTConfig):
            return self.backbone.step
        patch = self.backbone.patch_size
        down, across = patch if isinstance(patch, tuple) else (patch, patch)
        return down << self.chosen[0], across << self.chosen[0]

    @property
    def block_count(self) -> int:
        """Layers of the backbone and of the decoder."""
        return self.backbone.block_count + (self.decoder_depth if self.decoder == "mask-transformer" else 0)

    @property
    def computed_numbers(self) -> int:
        """Numbers that the model computes when it is built and no file holds: the backbone's."""
        return self.backbone.computed_numbers

    @property
    def first_kernel(self) -> str:
        """The state-dict key of the kernel that sees the image."""
        return f"backbone.{self.backbone.first_kernel}"

    @property
    def fit_options(self) -> dict[str, Any]:
        """What `load` needs besides image size, channels and classes to fit a backbone's checkpoint to this model."""
        return self.backbone.fit_options

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


def _headless(backbone: BackboneConfig, image_size: tuple[int, int], channels: int) -> BackboneConfig:
    """The backbone without what comes after its grid of features."""
    if not isinstance(backbone, ViTConfig):
        return replace(backbone, image_size=image_size, channels=channels, num_classes=0, head_bias=0.0)
    if backbone.detection_classes:
        raise ConfigError("a segmenter's backbone has no detection heads", hint="detection_classes=0")
    if backbone.patch_dropout:
        raise ConfigError("a segmenter needs every patch", hint="patch_dropout=0 in the backbone")
    pools = backbone.pool in ("map", "token+mean")
    return replace(
        backbone,
        image_size=image_size,
        channels=channels,
        num_classes=0,
        representation_width=0,
        projection_width=0,
        head_bias=0.0,
        pool="mean" if pools else backbone.pool,
        pooling=Pooling() if pools or backbone.pooling != Pooling() else backbone.pooling,
    )
