"""Complete runs by name: `recipe("finetune-pets", Wish(data=..., start=...))`. What a run is for, its function says."""

from __future__ import annotations

from collections.abc import Callable

from vitlab.config.overrides import Wish
from vitlab.config.run import RunConfig
from vitlab.errors import ConfigError, did_you_mean
from vitlab.recipes.own import finetune_folder, quickstart, quickstart_finetune, small_data
from vitlab.recipes.paper import (
    augreg_i1k,
    augreg_i21k,
    finetune_cifar10,
    finetune_cifar100,
    finetune_flowers,
    finetune_imagenet,
    finetune_imagenet_table2,
    finetune_pets,
    finetune_vtab,
    imagenet21k,
    imagenet_scratch,
    jft,
    masked,
    s16_i1k,
)

RECIPES: dict[str, Callable[[Wish], RunConfig]] = {
    "quickstart": quickstart,
    "quickstart-finetune": quickstart_finetune,
    "finetune-folder": finetune_folder,
    "small-data": small_data,
    "imagenet-scratch": imagenet_scratch,
    "imagenet21k": imagenet21k,
    "jft": jft,
    "masked": masked,
    "augreg-i1k": augreg_i1k,
    "augreg-i21k": augreg_i21k,
    "s16-i1k": s16_i1k,
    "finetune-imagenet": finetune_imagenet,
    "finetune-imagenet-table2": finetune_imagenet_table2,
    "finetune-cifar10": finetune_cifar10,
    "finetune-cifar100": finetune_cifar100,
    "finetune-pets": finetune_pets,
    "finetune-flowers": finetune_flowers,
    "finetune-vtab": finetune_vtab,
}

_WITH_PRESET = ("augreg-i1k", "augreg-i21k", "finetune-folder", "small-data")


def recipe(name: str, wish: Wish | None = None) -> RunConfig:
    """The run of that name, for the data, checkpoint and machine of the wish; vary it further with `dataclasses.replace`.

    `recipe("quickstart")` needs no wish. The published recipes without data are for the published set.
    """
    if name not in RECIPES:
        raise ConfigError(f"no recipe called {name!r}", hint=did_you_mean(name, list(RECIPES)) or f"one of {', '.join(RECIPES)}")
    wish = wish or Wish()
    if wish.preset is not None and name not in _WITH_PRESET:
        raise ConfigError(f"{name} has its own augmentation, no preset", hint=f"presets are for {', '.join(_WITH_PRESET)}")
    return RECIPES[name](wish)
