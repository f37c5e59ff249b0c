"""Object detection on the grid of a backbone's features, without anchors: the config and the cost. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from vitlab.config.backbone import BackboneConfig, OnBackbone, headless
from vitlab.config.cost_counter import CostCounter, cells
from vitlab.config.serialize import Json
from vitlab.errors import LARGEST_WIDTH, MOST_LAYERS, ConfigError, at_least, pair

DetectorKind = Literal["grid", "tokens"]
"""A detector: one object a cell of the grid, or one a detection token (YOLOS)."""

NORM_GROUPS = 8
RARE = -math.log(99.0)
"""Bias of the class logits at the start: a cell shows an object of a class with probability 0.01 (RetinaNet, Lin et al. 2017)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridDetectorConfig(OnBackbone):
    """A model that finds objects: a `backbone` whose features lie on a grid, and a head on each cell (FCOS, Tian et al. 2019).

    The features are projected to `head_width`, the grid is made `upsample` times finer along each side (a power of two), and
    `head_depth` convolutions of 3x3 look at its neighbourhood. Each cell then says how likely each class is, and how far the
    edges of the object are that it belongs to. `layers` chooses the features, as a segmenter's. `image_size` and `channels` are
    the backbone's too. `head_bias` is the class logits' at the start.
    """

    family: ClassVar[str] = "grid-detector"
    title: ClassVar[str] = "a grid detector"
    names: ClassVar[tuple[str, ...]] = ()

    backbone: BackboneConfig
    num_classes: int
    image_size: tuple[int, int]
    channels: int = 3
    layers: tuple[int, ...] = ()
    upsample: int = 2
    head_width: int = 128
    head_depth: int = 2
    head_bias: float = RARE

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        at_least("num_classes", self.num_classes, 1)
        at_least("head_depth", self.head_depth, 1, MOST_LAYERS)
        at_least("head_width", self.head_width, NORM_GROUPS, LARGEST_WIDTH)
        if self.head_width % NORM_GROUPS:
            raise ConfigError(f"head_width={self.head_width} must be a multiple of {NORM_GROUPS}")
        if self.upsample not in (1, 2, 4, 8):
            raise ConfigError(f"upsample={self.upsample} must be 1, 2, 4 or 8")
        object.__setattr__(self, "backbone", headless(self.backbone, self.image_size, self.channels))
        self.check_layers()

    @property
    def cells(self) -> tuple[int, int]:
        """Cells (down, across) that look for objects at `image_size`."""
        down, across = self.grid
        return down * self.upsample, across * self.upsample

    @property
    def block_count(self) -> int:
        """Layers of the backbone and of the head."""
        return self.backbone.block_count + self.head_depth

    @classmethod
    def from_name(cls, name: str, image_size: tuple[int, int] | None) -> GridDetectorConfig | None:
        """None: a detector is made from its backbone's config."""
        return None

    @property
    def name(self) -> str | None:
        """`ViT-Ti/16, grid detector`: to read, not to build from; None for a backbone without a name."""
        return None if self.backbone.name is None else f"{self.backbone.name}, grid detector"

    def facts(self) -> dict[str, Json]:
        """What `vitlab describe` shows first."""
        return {
            "task": "detect",
            "image_size": list(self.image_size),
            "channels": self.channels,
            "cells": list(self.cells),
            "layers": list(self.chosen),
            "feature_width": self.feature_width,
            "head_width": self.head_width,
            "head_depth": self.head_depth,
            "num_classes": self.num_classes,
            "backbone": {"family": self.backbone.family, "name": self.backbone.name, **self.backbone.facts()},
        }

    def count(self, counter: CostCounter) -> None:
        """Add a forward pass of one image: the backbone, and the head on its grid and on the finer ones."""
        self.backbone.count(counter)
        width, size = self.head_width, self.grid
        counter.conv(cells(size), self.feature_width, width, 1)
        counter.kept += cells(size) * (self.feature_width + width)
        for _ in range(int(math.log2(self.upsample))):
            # A transposed convolution of stride 2: each of its four cells sees one cell before.
            counter.parameters += 4 * width * width + width
            size = (2 * size[0], 2 * size[1])
            counter.macs += cells(size) * width * width
            counter.activations += cells(size) * width
            counter.norms(width)
            counter.kept += 3 * cells(size) * width
        for _ in range(self.head_depth):
            counter.conv(cells(size), width, width, 3)
            counter.padded(size, size, width * width, 3)
            counter.norms(width)
            counter.kept += 3 * cells(size) * width
        for outputs in (self.num_classes, 4):
            counter.conv(cells(size), width, outputs, 1)
            counter.kept += 2 * cells(size) * outputs
        counter.alive(cells(self.image_size) * self.channels + cells(size) * (3 * width + self.num_classes + 4))
