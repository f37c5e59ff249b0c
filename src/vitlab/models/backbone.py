"""Features of a backbone on their grid: what segmenters and detectors put a decoder on.

Axes: B batch, D width of the features, G x J places of the grid, N tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.config.backbone import BackboneConfig
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.vit import ViTConfig
from vitlab.models import convnext, stems, swin, vit
from vitlab.models.convnext import ConvNeXt, init_convnext, over_channels
from vitlab.models.model import Draw, Model
from vitlab.models.position import Grid
from vitlab.models.record import Record
from vitlab.models.swin import Swin, init_swin
from vitlab.models.vit import ViT, init_vit

Backbone = ViT | Swin | ConvNeXt

# Of the row of a model on a backbone (`Family`): the parts of the backbone.
LAYERS = (r"backbone\.encoder\.blocks\.(\d+)\.", r"backbone\.position\.bias(?:_mlps)?\.(\d+)", r"backbone\.stages\.(\d+)\.")
HIDDEN = (r"backbone\.encoder\.blocks\.", r"backbone\.stages\.\d+\.blocks\.\d+\.(?:attention|mlp)\.")
SHARDED = (vit.Block, swin.Block, convnext.Block, stems.Unit)


class GridModel(Model):
    """A model on the features of `chosen` layers or stages of a backbone, which lie on a grid."""

    def __init__(self, backbone: BackboneConfig, chosen: tuple[int, ...]) -> None:
        super().__init__()
        self.chosen = chosen
        self.backbone: Backbone
        if isinstance(backbone, ViTConfig):
            self.backbone = ViT(backbone)
        else:
            self.backbone = ConvNeXt(backbone) if isinstance(backbone, ConvNeXtConfig) else Swin(backbone)

    @property
    def recompute(self) -> bool:
        """Whether the backbone computes its activations twice to save memory."""
        return self.backbone.recompute

    @recompute.setter
    def recompute(self, value: bool) -> None:
        self.backbone.recompute = value

    def features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """One vector an image, (B, D): the mean over places of what the decoder sees."""
        return self.grid_features(images_BCHW, record).mean((2, 3))

    def forward_features(self, images_BCHW: Tensor) -> Tensor:
        """timm's name of what the decoder sees: here (B, D, G, J)."""
        return self.grid_features(images_BCHW)

    def grid_features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """What the decoder sees of each place, (B, D, G, J): the features of the chosen layers or stages side by side.

        The last layer has the backbone's own last norm; earlier ones are normalised without learned parameters. Maps of coarser
        stages are interpolated to the finest chosen one.
        """
        if isinstance(self.backbone, ViT):
            grid = self.backbone.check_images(images_BCHW, record)
            return self.features_of_patches(self.backbone.embed(images_BCHW), grid, record)
        own = Record(layers=self.chosen, attention=False, maps=True)
        self.backbone.features(images_BCHW, own)
        if record is not None:
            self.backbone.features(images_BCHW, record)  # beside it: a record asks for what it wants
        *earlier, last_BDGJ = own.maps_BCHW
        maps = [_plain_norm(map_BDGJ, 1) for map_BDGJ in earlier] + [over_channels(self.backbone.norm, last_BDGJ)]
        size = maps[0].shape[-2:]
        fine = [maps[0], *(F.interpolate(m_BDGJ, size=size, mode="bilinear", align_corners=False) for m_BDGJ in maps[1:])]
        return torch.cat(fine, dim=1)

    def features_of_patches(self, patches_BND: Tensor, grid: Grid, record: Record | None = None) -> Tensor:
        """The same of a ViT from embedded patches on any grid."""
        vit, chosen = self.backbone, self.chosen
        assert isinstance(vit, ViT), "the others have no patches"
        own, prefix = (
            Record(layers=chosen[:-1], attention=False, tokens=True) if len(chosen) > 1 else None,
            vit.config.prefix_tokens,
        )
        last_BND = vit.encode(patches_BND, grid, record if own is None else own)
        if own is not None and record is not None:
            vit.encode(patches_BND, grid, record)
        last_BND = last_BND if vit.pool_norm is None else vit.pool_norm(last_BND)
        earlier = [] if own is None else [_plain_norm(z_BND, -1) for z_BND in own.tokens_BND]
        features_BND = torch.cat([z_BND[:, prefix:] for z_BND in (*earlier, last_BND)], dim=-1)
        features_BDGJ: Tensor = features_BND.transpose(1, 2).unflatten(2, grid)  # type: ignore[no-untyped-call]
        return features_BDGJ


def _plain_norm(x: Tensor, axis: int) -> Tensor:
    """A LayerNorm over one axis without scale and bias."""
    moved = x.movedim(axis, -1)
    return F.layer_norm(moved, moved.shape[-1:], eps=1e-6).movedim(-1, axis)


def init_backbone(backbone: Backbone, draw: Draw) -> None:
    """The initial values of the backbone's authors."""
    match backbone:
        case ViT():
            init_vit(backbone, draw)
        case Swin():
            init_swin(backbone, draw)
        case ConvNeXt():
            init_convnext(backbone, draw)
