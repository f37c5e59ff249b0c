"""Recipes by name: `recipe("finetune-pets", Overrides(steps=500), data=..., start=...)` is a complete run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vitlab.config.data import with_resize
from vitlab.config.model import flexible_vit, task_of
from vitlab.config.overrides import DataFacts, Machine, Overrides, RunFacts, StartFacts, with_execution
from vitlab.config.run import RunConfig
from vitlab.config.train import PatchSizes, common_size
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError, did_you_mean
from vitlab.recipes.own import detect_folder, finetune_folder, quickstart, quickstart_finetune, segment_folder, small_data
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
from vitlab.recipes.rules import COLOURS, for_channels, with_patch_size

RECIPES: dict[str, Callable[[RunFacts, Overrides], RunConfig]] = {
    "quickstart": quickstart,
    "quickstart-finetune": quickstart_finetune,
    "finetune-folder": finetune_folder,
    "small-data": small_data,
    "segment-folder": segment_folder,
    "detect-folder": detect_folder,
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

_LARGER = 1.5  # times the recipe's own image size, for whole patches of every size
_WITH_PRESET = ("augreg-i1k", "augreg-i21k", "finetune-folder", "small-data")


def recipe(
    name: str,
    overrides: Overrides | None = None,
    *,
    data: DataFacts | None = None,
    start: StartFacts | None = None,
    machine: Machine | None = None,
) -> RunConfig:
    """The run of that name for this data, checkpoint and machine, with these overrides; change more with `dataclasses.replace`.

    `vitlab.training.plan` finds the facts: `survey` of a dataset, `start_facts` of a checkpoint, `this_machine`. Without data, a
    published recipe is for the published dataset.
    """
    if name not in RECIPES:
        raise ConfigError(f"no recipe called {name!r}", hint=did_you_mean(name, list(RECIPES)) or f"one of {', '.join(RECIPES)}")
    overrides = overrides or Overrides()
    if overrides.preset is not None and name not in _WITH_PRESET:
        raise ConfigError(f"{name} has its own augmentation, no preset", hint=f"presets are for {', '.join(_WITH_PRESET)}")
    if data is not None and overrides.channels is not None and name != "masked":
        if data.channels not in (*COLOURS, overrides.channels):
            raise ConfigError(f"the images have {data.channels} channels and not {overrides.channels}", hint="leave `channels` out")
        data = replace(data, channels=overrides.channels)
    if start is not None and overrides.patch_size is not None:
        start = replace(start, model=with_patch_size(start.model, overrides.patch_size))
    facts = RunFacts(data=data, start=start, machine=machine or Machine())
    for option in ("decoder", "layers", "dice"):
        if getattr(overrides, option) is not None and name != "segment-folder":
            raise ConfigError(f"`{option}` is for segmentation, and {name} does something else", hint="use `task=segment`")
    if start is not None and task_of(start.model) == "detect" and name != "detect-folder":
        raise ConfigError(
            f"{start.path} is an object detector: it finds boxes, and {name} does not learn that",
            hint="use `task=detect`, or start from a classifier",
        )
    if overrides.detector is not None and name != "detect-folder":
        raise ConfigError(f"`detector` is for detection, and {name} does something else", hint="use `task=detect`")
    if data is not None and name != "masked":
        _check_task(name, data)
    run = RECIPES[name](facts, overrides)
    if overrides.patch_sizes and overrides.image_size is None and (vit := flexible_vit(run.model)) is not None:
        run = RECIPES[name](facts, replace(overrides, image_size=_for_every_patch(vit, overrides.patch_sizes)))
    if overrides.resize is not None:
        if overrides.resize == "fit":
            raise ConfigError("resize='fit' is for detectors", hint="short-side, squash, pad or native")
        run = replace(run, preprocess=with_resize(run.preprocess, overrides.resize))
    return with_execution(for_channels(run, data, overrides), overrides)


def _for_every_patch(model: ViTConfig, sizes: PatchSizes) -> tuple[int, int]:
    """The image size nearest to the recipe's that has whole patches of every size."""
    size = common_size(model.image_size, (model.patch_size, *sizes), stride=1 if model.before is None else model.before.stride)
    if max(size) > _LARGER * max(model.image_size):
        raise ConfigError(
            f"only images of {size[0]}x{size[1]} have whole patches of all {len(sizes)} patch_sizes",
            hint="choose sizes that divide one image size: 8,12,16,24 for 144, 10,12,15,20,24,30 for 240; or give `image_size`",
        )
    return size


def _check_task(name: str, data: DataFacts) -> None:
    """Refuse data that gives classes to something else than the recipe learns them of: images, pixels, objects."""
    if data.masks and name != "segment-folder":
        raise ConfigError(f"{data.dataset} gives each pixel a class, and {name} does not learn that", hint="use `task=segment`")
    if data.boxes and name != "detect-folder":
        raise ConfigError(f"{data.dataset} gives each object a box, and {name} does not learn that", hint="use `task=detect`")
    if name == "segment-folder" and not data.masks:
        raise ConfigError(
            f"{data.dataset} has no masks",
            hint="put them into masks/ beside images/, or list them in masks.json; `task=classify` needs none",
        )
    if name == "detect-folder" and not data.boxes:
        raise ConfigError(
            f"{data.dataset} has no boxes", hint="give boxes.csv, COCO's JSON or VOC's XML; `task=classify` needs none"
        )
