"""From a run's config to everything that takes part in it: pictures, model, optimisers, task."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.checkpoint import describe, load
from vitlab.checkpoint.match import check_state
from vitlab.checkpoint.native import Facts
from vitlab.config.model import ViTConfig
from vitlab.config.run import RunConfig
from vitlab.config.source import Split
from vitlab.config.swin import SwinConfig
from vitlab.config.text import Json, to_json
from vitlab.data.feed import evaluation_feed, training_feed
from vitlab.data.loader import Loader
from vitlab.data.order import Share
from vitlab.data.source import Source, open_source
from vitlab.errors import ConfigError, TrainingError
from vitlab.model.assemble import Model, build, skeleton
from vitlab.model.bfloat16 import bfloat16_trouble
from vitlab.model.masked import MaskedViT
from vitlab.model.trial import REMEDY
from vitlab.model.vit import ViT
from vitlab.train.average import Averaged
from vitlab.train.distributed import World
from vitlab.train.optim import freeze, optimizers, restore_optimizer
from vitlab.train.parallel import shared_out
from vitlab.train.processor import back_by_hand
from vitlab.train.snapshot import Snapshot
from vitlab.train.task import BothHeads, Classify, PredictMasked, Task


@dataclass(slots=True, kw_only=True)
class Players:
    """All that takes part in a run. `bare` is the model that is kept, `whole` has what only training needs beside it, and `model`
    is what the step calls, its work shared among ranks."""

    bare: Model
    whole: nn.Module
    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    task: Task
    average: Averaged | None
    facts: Facts
    notes: tuple[str, ...]


def training_loader(run: RunConfig, source: Source, world: World) -> Loader:
    """The endless stream of training batches, this rank's share of them."""
    feed = training_feed(run.data.augment, channels=run.model.channels, limits=run.data.limits)
    return Loader(source, feed, config=run.data.loader, train=True, share=Share(rank=world.rank, ranks=world.ranks))


def evaluation_loader(run: RunConfig, source: Source, world: World) -> Loader:
    """The held-out pictures once, this rank's share of them."""
    feed = evaluation_feed(run.preprocess, limits=run.data.limits)
    batch = max(run.data.loader.batch_size, world.ranks)
    while 0 < len(source) % batch < world.ranks:  # a rank without pictures would leave the others waiting for its layers
        batch += 1
    config = replace(run.data.loader, batch_size=batch, repeats=1, balance=0.0, class_weights=None)
    return Loader(source, feed, config=config, train=False, share=Share(rank=world.rank, ranks=world.ranks))


def open_part(run: RunConfig, split: Split) -> Source:
    """One part of the run's pictures."""
    return open_source(run.data.source, split=split, rule=run.data.rule)


def assemble(run: RunConfig, source: Source, world: World, restored: Snapshot | None) -> Players:
    """Model, optimisers and task, as they were in `restored` or as the run begins."""
    _check_classes(run, source)
    if run.train.precision == "bfloat16" and world.device.type == "cpu" and (trouble := bfloat16_trouble()):
        raise TrainingError(f"precision='bfloat16' cannot be used here: {trouble}", hint=f"{REMEDY}, or precision='float32'")
    bare, notes = _model(run, source, restored)
    # FSDP brings one layer after the other to the device as it cuts it up: the whole may be too large for it.
    place = torch.device("cpu") if run.train.strategy == "fsdp" else world.device
    bare.to(place)
    if isinstance(bare, ViT):
        bare.lean = True  # what no one reads needs no gradient either
        bare.any_size = bare.any_size or bool(run.train.growth)
    if place.type == "cpu" and run.train.strategy != "fsdp" and run.train.precision == "float32" and not run.train.compile:
        back_by_hand(bare)
    (bare.encoder if isinstance(bare, ViT) else bare).recompute = run.train.recompute
    whole = _for_training(bare, run, restored).to(place)
    freeze(whole, run.train)
    whole.train()
    if run.train.compile:
        whole.compile()
    shared = shared_out(whole, run.train.strategy, run.train.precision, world)
    made = optimizers(whole, run.train.optimizer)
    average = Averaged(bare, run.train.average) if run.train.average.decay else None
    if restored is not None:
        restore_optimizer(whole, made, restored.optimizer)
        if average is not None and restored.average is not None:
            average.restore(restored.average)
    facts = Facts(
        config=run.model,
        preprocess=run.preprocess,
        labels=source.labels if run.train.masked is None and source.labels else None,
        recipe=_recipe(run),
        notes=notes,
    )
    task = _task(run, source, world)
    return Players(bare=bare, whole=whole, model=shared, optimizers=made, task=task, average=average, facts=facts, notes=notes)


def _recipe(run: RunConfig) -> dict[str, Json]:
    data = to_json(run)
    assert isinstance(data, dict)
    return data


def _check_classes(run: RunConfig, source: Source) -> None:
    if run.train.masked is not None:
        return
    if not source.labels:
        raise ConfigError(f"{run.data.source} has no labels to learn", hint="masked patch prediction learns without labels")
    if len(source.labels) != run.model.num_classes:
        raise ConfigError(f"the data has {len(source.labels)} classes and the model {run.model.num_classes}")
    if source.multi_label and run.train.loss != "sigmoid":
        raise ConfigError("pictures with several labels need loss='sigmoid'")


def _model(run: RunConfig, source: Source, restored: Snapshot | None) -> tuple[Model, tuple[str, ...]]:
    if restored is not None:
        check_state(restored.model, run.model, where="the run's last checkpoint")
        model = skeleton(run.model)
        model.load_state_dict(restored.model, strict=True, assign=True)
        return model, restored.facts.notes
    if run.start is None:
        return build(run.model, seed=run.train.seed), ()
    start = load(
        run.start,
        num_classes=run.model.num_classes,
        new_head=_needs_new_head(run, source),
        image_size=run.model.image_size,
        patch_size=run.model.patch_size if isinstance(run.model, ViTConfig) else None,
        channels=run.model.channels,
        interpolation=run.model.numerics.resize if isinstance(run.model, ViTConfig) else None,
        dynamic_size=run.model.dynamic_size if isinstance(run.model, ViTConfig) else None,
        window=run.model.window if isinstance(run.model, SwinConfig) else None,
    )
    model = skeleton(run.model)
    model.load_state_dict(start.model.state_dict(), strict=True, assign=True)
    return model, (f"begins with {run.start}", *start.notes)


def _needs_new_head(run: RunConfig, source: Source) -> bool:
    """A head of the same number of classes stays only where it is of the same classes, and has no layer that the run leaves out."""
    assert run.start is not None
    said = describe(run.start)
    hidden = {config.representation_width for config in (said.config, run.model) if isinstance(config, ViTConfig)}
    return run.train.masked is None and (len(hidden) > 1 or said.labels != source.labels)


def _for_training(bare: Model, run: RunConfig, restored: Snapshot | None) -> nn.Module:
    """The model with what only this task needs around it."""
    if run.train.masked is not None:
        return _with_masked_head(bare, run, restored)
    if run.train.distill is not None and isinstance(bare, ViT) and bare.distill_head is not None:
        return BothHeads(bare)
    return bare


def _with_masked_head(bare: Model, run: RunConfig, restored: Snapshot | None) -> MaskedViT:
    if not isinstance(bare, ViT):
        raise ConfigError("masked patch prediction needs a ViT")
    assert run.train.masked is not None
    whole = MaskedViT(bare, run.train.masked.target)
    generator = torch.Generator().manual_seed(run.train.seed)
    with torch.no_grad():
        whole.mask_token.normal_(0, 0.02, generator=generator)
        whole.predict.weight.normal_(0, 0.02, generator=generator)
        whole.predict.bias.zero_()
        for name, tensor in (restored.extra if restored is not None else {}).items():
            whole.get_parameter(name).copy_(tensor)
    return whole


def _task(run: RunConfig, source: Source, world: World) -> Task:
    config = run.train
    if config.masked is not None:
        assert isinstance(run.model, ViTConfig)
        grid = run.model.grid
        return PredictMasked(
            config=config.masked,
            preprocess=run.preprocess,
            patches=grid[0] * grid[1],
            step=run.model.step,
            dtype=torch.float32,
            rank=world.rank,
            ranks=world.ranks,
        )
    teacher = None if config.distill is None else load(config.distill.teacher, image_size=run.model.image_size)
    if teacher is not None and teacher.config.num_classes != run.model.num_classes:
        raise ConfigError(f"the teacher has {teacher.config.num_classes} classes and the student {run.model.num_classes}")
    if teacher is not None and teacher.labels is not None and teacher.labels != source.labels:
        raise ConfigError("the teacher's classes are not the data's, in name or order")
    return Classify(
        config=config,
        augment=run.data.augment,
        preprocess=run.preprocess,
        classes=run.model.num_classes,
        dtype=torch.float32,
        weight_C=_class_weights(source) if config.balanced_loss else None,
        teacher=None if teacher is None else teacher.model.to(world.device),
        teacher_preprocess=None if teacher is None else teacher.preprocess,
    )


def _class_weights(source: Source) -> Tensor:
    """Inverse frequencies, such that the mean weight of a picture is 1."""
    counts = np.zeros(len(source.labels))
    for index in range(len(source)):
        label = source.label(index)
        counts[list(label) if isinstance(label, tuple) else label] += 1
    present = counts > 0
    weights = np.where(present, counts.sum() / np.maximum(counts, 1) / max(present.sum(), 1), 0.0)
    return torch.from_numpy(weights).float()
