"""Object detection on a grid: each cell says how likely each class is, and where its object ends (FCOS, Tian et al. 2019).

Axes: B batch, D width of the features, E width of the head, G x J cells, N = G J cells in reading order, C classes, 4 the edges:
left, top, right, bottom.

What every detector finds is one tensor: objects (B, N, 4 + K), the edges of each box as fractions of the image, then class logits.
A grid detector gives them itself: K classes, each with a probability of its own (sigmoid). The tokens of a YOLOS have one class
more, the last, for "no object" (softmax).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config.grid_detector import NORM_GROUPS, GridDetectorConfig
from vitlab.config.model import ModelConfig
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError
from vitlab.models.backbone import HIDDEN, LAYERS, SHARDED, GridModel, init_backbone
from vitlab.models.model import Draw, Family, init_norm, zero
from vitlab.models.record import Record
from vitlab.models.vit import ViT

_FARTHEST = 8.0  # of the logarithm of a distance in cells: no edge is e^8 cells away
_NEAR = math.log(2.0)  # the same at the start


class Normed(nn.Module):
    """A convolution, a GroupNorm and a GELU."""

    def __init__(self, convolution: nn.Conv2d | nn.ConvTranspose2d) -> None:
        super().__init__()
        self.convolution = convolution
        self.norm = nn.GroupNorm(NORM_GROUPS, convolution.out_channels)

    def forward(self, x_BEGJ: Tensor) -> Tensor:
        return F.gelu(self.norm(self.convolution(x_BEGJ)))


class GridHead(nn.Module):
    """Features (B, D, G, J) to class logits (B, C, G', J') and logarithms of the distances to edges in cells (B, 4, G', J')."""

    def __init__(self, config: GridDetectorConfig) -> None:
        super().__init__()
        width = config.head_width
        self.num_classes = config.num_classes
        self.project = nn.Conv2d(config.feature_width, width, 1)
        self.finer = nn.ModuleList(
            Normed(nn.ConvTranspose2d(width, width, 2, stride=2)) for _ in range(int(math.log2(config.upsample)))
        )
        self.tower = nn.ModuleList(Normed(nn.Conv2d(width, width, 3, padding=1)) for _ in range(config.head_depth))
        self.classes = nn.Conv2d(width, config.num_classes, 1)
        self.edges = nn.Conv2d(width, 4, 1)

    def forward(self, features_BDGJ: Tensor) -> tuple[Tensor, Tensor]:
        x_BEGJ: Tensor = self.project(features_BDGJ)
        for layer in (*self.finer, *self.tower):
            x_BEGJ = layer(x_BEGJ)
        return self.classes(x_BEGJ), self.edges(x_BEGJ)


class GridDetector(GridModel):
    """Normalised images (B, channels, H, W) to objects (B, N, 4 + C), one a cell: the edges of its box, then the class logits.

    Edges are fractions of the image, left, top, right, bottom; a box may reach over the image's.
    """

    def __init__(self, config: GridDetectorConfig) -> None:
        super().__init__(config.backbone, config.chosen)
        self.config: GridDetectorConfig = config
        self.head: GridHead = GridHead(config)

    def forward(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """The box and the class logits of each cell, (B, N, 4 + C)."""
        return self.objects(self.grid_features(images_BCHW, record), images_BCHW.shape[-2:])

    def objects(self, features_BDGJ: Tensor, image_size: Sequence[int]) -> Tensor:
        """The box and the class logits of each cell of images of that (height, width), from what the head sees."""
        classes_BCGJ, edges_B4GJ = self.head(features_BDGJ)
        cell_2, centres_2GJ = cell_places(self.config, classes_BCGJ, image_size)
        away_B4GJ = edges_B4GJ.clamp(max=_FARTHEST).exp()
        left_top_B2GJ = centres_2GJ - away_B4GJ[:, :2] * cell_2[:, None, None]
        right_bottom_B2GJ = centres_2GJ + away_B4GJ[:, 2:] * cell_2[:, None, None]
        return torch.cat([left_top_B2GJ, right_bottom_B2GJ, classes_BCGJ], dim=1).flatten(2).transpose(1, 2)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """The objects of images of the model's own size, from what `forward_features` gives."""
        return features if pre_logits else self.objects(features, self.config.image_size)

    def reset_classifier(self, num_classes: int) -> None:
        """Refused: the classes of a detector are chosen when it is built."""
        raise ConfigError("the head of a detector cannot be replaced", hint="build one with another num_classes")


def cell_places(config: GridDetectorConfig, like_BCGJ: Tensor, image_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(across, down) of one cell, (2,), and of the centres of all, (2, G, J), as fractions of an image of (height, width)."""
    (down, across), finer = config.step, config.upsample
    cell_2 = torch.tensor([across / finer / image_size[1], down / finer / image_size[0]]).to(like_BCGJ)
    rows_G = torch.arange(like_BCGJ.shape[2], device=like_BCGJ.device, dtype=like_BCGJ.dtype) + 0.5
    columns_J = torch.arange(like_BCGJ.shape[3], device=like_BCGJ.device, dtype=like_BCGJ.dtype) + 0.5
    down_GJ, across_GJ = torch.meshgrid(rows_G, columns_J, indexing="ij")
    return cell_2, torch.stack([across_GJ, down_GJ]) * cell_2[:, None, None]


def init_grid_detector(model: GridDetector, draw: Draw) -> None:
    """The backbone as its authors initialise it; convolutions LeCun-normal; at first no cell sees an object."""
    init_backbone(model.backbone, draw)
    for module in model.head.modules():
        match module:
            case nn.Conv2d() | nn.ConvTranspose2d():
                draw.lecun_normal(module.weight)
                zero(module.bias)
            case nn.GroupNorm():
                init_norm(module)
            case _:
                pass
    for layer, bias in ((model.head.classes, model.config.head_bias), (model.head.edges, _NEAR)):
        draw.normal(layer.weight, 0.01)
        assert layer.bias is not None
        layer.bias.fill_(bias)


FAMILY = Family(
    model=GridDetector,
    initialise=init_grid_detector,
    layers=LAYERS,
    hidden=HIDDEN,
    sharded=SHARDED,
)


# --- what every detector finds, as one tensor ---------------------------------------------------------------------------------


class TokenObjects(nn.Module):
    """A YOLOS that gives what its tokens detect as objects. Under DDP and FSDP it is this module that is called."""

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, images_BCHW: Tensor) -> Tensor:
        logits_BNC, boxes_BN4 = self.vit.detect(images_BCHW)
        centre_BN2, half_BN2 = boxes_BN4[..., :2], boxes_BN4[..., 2:] / 2
        return torch.cat([centre_BN2 - half_BN2, centre_BN2 + half_BN2, logits_BNC], dim=-1)


def as_objects(model: nn.Module) -> nn.Module:
    """A module from normalised images to objects, with the detector's own weights."""
    if isinstance(model, ViT):
        return TokenObjects(model)
    assert isinstance(model, GridDetector | TokenObjects), "no other model detects"
    return model


def of_tokens(config: ModelConfig) -> bool:
    """Whether the objects are those of detection tokens."""
    return isinstance(config, ViTConfig)


def class_scores(objects_BNX: Tensor, *, tokens: bool) -> Tensor:
    """The probability of each class, (B, N, C), from objects."""
    logits_BNC = objects_BNX[..., 4:].float()
    return logits_BNC.softmax(-1)[..., :-1] if tokens else logits_BNC.sigmoid()
