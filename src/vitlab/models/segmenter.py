"""Semantic segmentation: the features of a backbone on their grid, a decoder, and its logits interpolated to the image's pixels.

The decoder is one dense layer a patch, or the mask transformer of Segmenter (Strudel et al. 2021).
Axes: B batch, C classes, H W pixels, G x J places of the grid, N = G J places in reading order, D width of the features, E width of
the decoder.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config.segmenter import SegmenterConfig
from vitlab.config.vit import PROFILES, ViTConfig
from vitlab.errors import ConfigError
from vitlab.models.attention_variants import AttentionContext
from vitlab.models.backbone import HIDDEN, LAYERS, SHARDED, GridModel, init_backbone
from vitlab.models.model import Draw, Family, init_head, init_norm, zero
from vitlab.models.record import Record
from vitlab.models.vit import Attention, Block, Mlp


class MaskTransformer(nn.Module):
    """Segmenter's decoder: a learned token a class beside the patches, a few layers, and a scalar product of each two."""

    def __init__(self, config: SegmenterConfig) -> None:
        super().__init__()
        width, classes = config.decoder_width, config.num_classes
        self.num_classes = classes
        layer = ViTConfig(
            width=width,
            depth=config.decoder_depth,
            heads=config.decoder_heads,
            mlp_width=4 * width,
            numerics=PROFILES["timm"],
        )
        self.project = nn.Linear(config.feature_width, width)
        self.class_tokens = nn.Parameter(torch.empty(1, classes, width))
        self.blocks = nn.ModuleList(Block(layer, number) for number in range(config.decoder_depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.patch_map = nn.Linear(width, width, bias=False)
        self.class_map = nn.Linear(width, width, bias=False)
        self.mask_norm = nn.LayerNorm(classes, eps=1e-6)

    def forward(self, features_BND: Tensor) -> Tensor:
        """Logits (B, N, C) of each place."""
        places_BNE: Tensor = self.project(features_BND)
        places = places_BNE.shape[1]
        z_BNE = torch.cat([places_BNE, self.class_tokens.expand(places_BNE.shape[0], -1, -1)], dim=1)
        for number, block in enumerate(self.blocks):
            z_BNE = block(z_BNE, AttentionContext(layer=number, grid=(1, places), prefix=0))
        z_BNE = self.norm(z_BNE)
        place_BNE = F.normalize(self.patch_map(z_BNE[:, :places]), dim=-1)
        class_BCE = F.normalize(self.class_map(z_BNE[:, places:]), dim=-1)
        logits_BNC: Tensor = self.mask_norm(place_BNE @ class_BCE.transpose(1, 2))
        return logits_BNC


class Segmenter(GridModel):
    """Normalised images (B, channels, H, W) to logits (B, C, H, W): a class for each pixel."""

    def __init__(self, config: SegmenterConfig) -> None:
        super().__init__(config.backbone, config.chosen)
        self.config: SegmenterConfig = config
        linear = config.decoder == "linear"
        self.head: nn.Linear | MaskTransformer = (
            nn.Linear(config.feature_width, config.num_classes) if linear else MaskTransformer(config)
        )

    def forward(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """Logits of each pixel, (B, C, H, W)."""
        return self.pixel_logits(self.grid_features(images_BCHW, record), images_BCHW.shape[-2:])

    def pixel_logits(self, features_BDGJ: Tensor, image_size: Sequence[int], step: tuple[int, int] | None = None) -> Tensor:
        """Logits of each pixel of images of that (height, width), from what the decoder sees at places `step` pixels apart."""
        (height, width), (down, across) = image_size, step or self.config.step
        coarse_BCGJ = self.forward_head(features_BDGJ)
        covered = (coarse_BCGJ.shape[2] * down, coarse_BCGJ.shape[3] * across)
        # A grid that covers more than the image, whose edge was filled, is interpolated to what it covers and cut.
        size = covered if covered[0] >= height and covered[1] >= width else (height, width)
        logits_BCHW = F.interpolate(coarse_BCGJ, size=size, mode="bilinear", align_corners=False)
        return logits_BCHW[:, :, :height, :width]

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of each place, (B, C, G, J), from what `forward_features` gives."""
        if pre_logits:
            return features
        logits_BNC: Tensor = self.head(features.flatten(2).transpose(1, 2))
        logits_BCGJ: Tensor = logits_BNC.transpose(1, 2).unflatten(2, tuple(features.shape[-2:]))  # type: ignore[no-untyped-call]
        return logits_BCGJ

    def reset_classifier(self, num_classes: int) -> None:
        """Refused: the classes of a segmenter are chosen when it is built."""
        raise ConfigError("the decoder of a segmenter cannot be replaced", hint="build one with another num_classes")


def init_segmenter(model: Segmenter, draw: Draw) -> None:
    """The backbone as its authors initialise it; the linear decoder zero, the mask transformer N(0, 0.02) as its authors do."""
    init_backbone(model.backbone, draw)
    if isinstance(model.head, nn.Linear):
        init_head(model.head, model.config.head_bias)
    else:
        _init_decoder(model.head, draw)


def _init_decoder(decoder: MaskTransformer, draw: Draw) -> None:
    draw.trunc_normal(decoder.class_tokens, 0.02)
    for module in decoder.modules():
        match module:
            case Attention() | Mlp():
                pass  # their dense layers follow
            case nn.Linear():
                draw.trunc_normal(module.weight, 0.02)
                zero(module.bias)
            case nn.LayerNorm():
                init_norm(module)
            case _:
                pass
    width = decoder.class_tokens.shape[-1]
    for matrix in (decoder.patch_map.weight, decoder.class_map.weight):
        draw.normal(matrix, width**-0.5)


FAMILY = Family(
    model=Segmenter,
    initialise=init_segmenter,
    layers=LAYERS,
    hidden=(*HIDDEN, r"head\.blocks\."),
    sharded=SHARDED,
)
