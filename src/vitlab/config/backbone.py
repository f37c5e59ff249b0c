"""What models on the features of a backbone have in common: which layers they see, and the grid these lie on. No torch here.

A backbone is a ViT, a Swin Transformer or a ConvNeXt without its head; a segmenter and a detector put a decoder on its features.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import ViTConfig
from vitlab.config.vit_parts import Pooling
from vitlab.errors import ConfigError

BackboneConfig = ViTConfig | SwinConfig | ConvNeXtConfig


class OnBackbone:
    """A config with a `backbone`, and `layers` of it whose features are used: empty for the last of a ViT, all of the others."""

    __slots__ = ()
    backbone: BackboneConfig
    layers: tuple[int, ...]

    def check_layers(self) -> None:
        """Refuse layers that the backbone does not have, that do not rise, or that end before the last."""
        if len(set(self.layers)) != len(self.layers) or list(self.layers) != sorted(self.layers):
            raise ConfigError(f"layers={self.layers} must rise, each layer once")
        if any(not 0 <= layer < self.backbone_layers for layer in self.layers):
            raise ConfigError(f"layers={self.layers} must be from 0 to {self.backbone_layers - 1}: the backbone has no others")
        if self.layers and self.layers[-1] != self.backbone_layers - 1:
            raise ConfigError(f"layers={self.layers} must end with the last layer, {self.backbone_layers - 1}")

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


def headless(backbone: BackboneConfig, image_size: tuple[int, int], channels: int) -> BackboneConfig:
    """The backbone without what comes after its grid of features."""
    if not isinstance(backbone, ViTConfig):
        return replace(backbone, image_size=image_size, channels=channels, num_classes=0, head_bias=0.0)
    if backbone.detection_classes:
        raise ConfigError("a backbone has no detection heads", hint="detection_classes=0")
    if backbone.patch_dropout:
        raise ConfigError("the features of every patch are needed", hint="patch_dropout=0 in the backbone")
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
