"""Every architecture family as one row, and the factory: from a config to a model.

To add an architecture, write its config (`vitlab/config/x.py`, no torch) and its model (`vitlab/models/x.py`), then add the config
to `vitlab.config.model.ModelConfig` and a row here. A model is an `nn.Module` with:

- `model(images_BCHW, record=None)`: logits (B, classes), or features if `num_classes` is 0; a segmenter's are (B, classes, H, W),
  and a grid detector gives boxes and logits (B, cells, 4 + classes);
- `model.features(images_BCHW, record=None)`: what the head sees, (B, feature_width);
- `model.config`, `model.head` (None without classes), and `model.recompute` (activation checkpointing; a ViT's encoder has it).

`tests/models/test_contract.py` checks this for every family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import EfficientNetConfig
from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.model import ModelConfig
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.segmenter import SegmenterConfig
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import ViTConfig
from vitlab.models import convnext, efficientnet, recurrent, resnet, stems, swin, vit
from vitlab.models.convnext import ConvNeXt, init_convnext
from vitlab.models.efficientnet import EfficientNet, init_efficientnet
from vitlab.models.grid_detector import GridDetector, init_grid_detector
from vitlab.models.init import Draw
from vitlab.models.recurrent import Recurrent, init_recurrent
from vitlab.models.resnet import ResNet, init_resnet
from vitlab.models.segmenter import Segmenter, init_segmenter
from vitlab.models.swin import Swin, fit_windows, init_swin
from vitlab.models.vit import ViT, init_vit

Model = ViT | ResNet | Swin | ConvNeXt | EfficientNet | Recurrent | Segmenter | GridDetector


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An architecture: its config class, its model class, and what building and training need to know of it.

    `initialise` gives every parameter its initial value. `refit` fits a state dict in place from one config to another, if weights
    depend on the image size, and returns notes. `layers` are patterns of the names of parameters inside a layer: the
    groups are the layer's numbers, which count up from the images to the head; a parameter that matches a shorter pattern, such as
    a stage's downsampling, belongs to the first layer of its stage. `hidden` are patterns of the names of weights between input and
    output, which Muon updates; AdamW updates all others. `sharded` are the modules that FSDP gathers one at a time.
    """

    config: type[ModelConfig]
    model: Callable[[Any], Model]
    initialise: Callable[[Any, Draw], None]
    layers: tuple[str, ...]
    hidden: tuple[str, ...]
    sharded: tuple[type[nn.Module], ...]
    refit: Callable[[dict[str, Tensor], Any, Any], list[str]] | None = None


_STAGED = (r"stages\.\d+\.blocks\.\d+\.(?:attention|mlp)\.",)
_ON_BACKBONE = (
    r"backbone\.encoder\.blocks\.(\d+)\.",
    r"backbone\.position\.bias(?:_mlps)?\.(\d+)",
    r"backbone\.stages\.(\d+)\.",
)
FAMILIES = (
    Family(
        config=ViTConfig,
        model=ViT,
        initialise=init_vit,
        layers=(r"encoder\.blocks\.(\d+)\.", r"position\.bias\.(\d+)", r"position\.bias_mlps\.(\d+)\."),
        hidden=(r"encoder\.blocks\.", r"early\.stages\.(?!0\.0\.)"),
        sharded=(vit.Block, stems.Unit),
    ),
    Family(
        config=ResNetConfig,
        model=ResNet,
        initialise=init_resnet,
        layers=(r"stages\.(\d+)\.",),
        hidden=(),
        sharded=(resnet.Unit,),
    ),
    Family(
        config=SwinConfig,
        model=Swin,
        initialise=init_swin,
        layers=(r"stages\.(\d+)\.blocks\.(\d+)\.", r"stages\.(\d+)\.merge\."),
        hidden=_STAGED,
        sharded=(swin.Block,),
        refit=fit_windows,
    ),
    Family(
        config=ConvNeXtConfig,
        model=ConvNeXt,
        initialise=init_convnext,
        layers=(r"stages\.(\d+)\.blocks\.(\d+)\.", r"stages\.(\d+)\.halved\."),
        hidden=_STAGED,
        sharded=(convnext.Block,),
    ),
    Family(
        config=EfficientNetConfig,
        model=EfficientNet,
        initialise=init_efficientnet,
        layers=(r"stages\.(\d+)\.",),
        hidden=(),
        sharded=(efficientnet.Unit,),
    ),
    Family(
        config=RecurrentConfig,
        model=Recurrent,
        initialise=init_recurrent,
        layers=(r"layers\.(\d+)\.",),
        hidden=(),
        sharded=(recurrent.Layer,),
    ),
    Family(
        config=SegmenterConfig,
        model=Segmenter,
        initialise=init_segmenter,
        layers=_ON_BACKBONE,
        hidden=(r"backbone\.encoder\.blocks\.", r"backbone\.stages\.\d+\.blocks\.\d+\.(?:attention|mlp)\.", r"head\.blocks\."),
        sharded=(vit.Block, swin.Block, convnext.Block, stems.Unit),
    ),
    Family(
        config=GridDetectorConfig,
        model=GridDetector,
        initialise=init_grid_detector,
        layers=_ON_BACKBONE,
        hidden=(r"backbone\.encoder\.blocks\.", r"backbone\.stages\.\d+\.blocks\.\d+\.(?:attention|mlp)\."),
        sharded=(vit.Block, swin.Block, convnext.Block, stems.Unit),
    ),
)


def family_of(config: ModelConfig) -> Family:
    """The row of a config."""
    return next(family for family in FAMILIES if family.config is type(config))


def build(config: ModelConfig, *, seed: int = 0, device: str | torch.device | None = None) -> Model:
    """The model of a config with its authors' initial values, which depend on `seed` alone.

    `device` is torch's default device if not given: `with torch.device("meta"): build(config)` gives shapes without values, as
    `device="meta"` does.
    """
    device = torch.get_default_device() if device is None else torch.device(device)
    model = build_on_meta(config)
    if device.type == "meta":
        return model.to("meta")
    _allocate(model, device)
    with torch.no_grad():
        family_of(config).initialise(model, Draw(seed))
    return model


def build_on_meta(config: ModelConfig) -> Model:
    """The model without values: parameters on the meta device, to be filled by `load_state_dict(..., assign=True)`.

    Buffers that no file holds, such as sine and cosine positions, have their values.
    """
    with torch.device("meta"):
        return family_of(config).model(config)


def _allocate(model: nn.Module, device: torch.device) -> None:
    """Give parameters and buffers memory on a device; buffers that have values keep them."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = torch.empty_like(parameter, device=device)
            setattr(module, name, nn.Parameter(empty, requires_grad=parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device=device) if buffer.is_meta else buffer.to(device))


def layer_ids(config: ModelConfig, names: Iterable[str]) -> tuple[dict[str, int], int]:
    """The layer of each parameter of a model, and the number of layers between the embedding and the head.

    `names` are the model's parameters in their order. The embedding is 0, layers count from 1, and the head and what else comes
    after the last layer have one more than the last layer.
    """
    patterns = [re.compile(pattern) for pattern in family_of(config).layers]
    places = {name: _place(name, patterns) for name in names}
    order = {place: number for number, place in enumerate(sorted({place for place in places.values() if place}), start=1)}
    layers, outside = dict[str, int](), 0
    for name, place in places.items():
        layers[name] = order[place] if place else outside
        outside = len(order) + 1 if place else outside  # models register their modules from the images to the head
    return layers, len(order)


def is_hidden(config: ModelConfig, name: str) -> bool:
    """Whether the parameter of that name is between input and output: Muon is for these."""
    return any(re.match(pattern, name) for pattern in family_of(config).hidden)


def _place(name: str, patterns: list[re.Pattern[str]]) -> tuple[int, ...]:
    """The numbers of a parameter's layer; empty outside of layers."""
    for pattern in patterns:
        if found := pattern.match(name):
            numbers = tuple(int(number) for number in found.groups())
            return numbers + (0,) * (patterns[0].groups - len(numbers))
    return ()
