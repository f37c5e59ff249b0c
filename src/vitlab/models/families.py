"""From a config to its model: the row of every architecture family, and the factory.

To add an architecture, write its config (`vitlab/config/x.py`, no torch; `vitlab.config.model` says what it has) and, in a file of
the same name, its model and its row (`vitlab/models/x.py`; `vitlab.models.model` says what they have). Then add the config to
`vitlab.config.model.ModelConfig`, which lists all families.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from vitlab.config.model import MODEL_CONFIGS, ModelConfig
from vitlab.models.model import Draw, Family, Model


def _row(config: type[ModelConfig]) -> Family:
    """`FAMILY` of the file in models/ that is called as the config's file in config/."""
    family = import_module(config.__module__.replace(".config.", ".models.")).FAMILY
    assert isinstance(family, Family)
    return family


FAMILIES: dict[type[ModelConfig], Family] = {config: _row(config) for config in MODEL_CONFIGS}


def family_of(config: ModelConfig) -> Family:
    """The row of a config."""
    return FAMILIES[type(config)]


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
    with torch.device("meta"), _WithoutDraws():
        return family_of(config).model(config)


class _WithoutDraws(TorchFunctionMode):
    """Leaves out what torch's layers draw as they are made: on the meta device it gives nothing and takes most of the time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is nn.init.kaiming_uniform_ or func is nn.init.uniform_:
            tensor = args[0] if args else named["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **named)


def _allocate(model: nn.Module, device: torch.device) -> None:
    """Give parameters and buffers memory on a device; buffers that have values keep them."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
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
