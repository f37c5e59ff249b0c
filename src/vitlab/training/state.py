"""From a run's config to everything that takes part in it: images, model, optimisers, task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from vitlab.checkpoints import describe, load
from vitlab.checkpoints.checkpoint import check_state
from vitlab.checkpoints.native import Facts
from vitlab.config.data import Split
from vitlab.config.model import ViTConfig
from vitlab.config.run import RunConfig
from vitlab.config.serialize import Json, to_json
from vitlab.config.swin import SwinConfig
from vitlab.config.train import Average
from vitlab.data.dataset import Dataset
from vitlab.data.loader import Loader
from vitlab.data.opening import open_dataset
from vitlab.data.sampler import Share
from vitlab.data.transforms import evaluation_feed, training_feed
from vitlab.errors import ConfigError, TrainingError
from vitlab.io.trial import REMEDY
from vitlab.models.bfloat16 import bfloat16_trouble
from vitlab.models.efficientnet import BatchNorm
from vitlab.models.families import Model, build, skeleton
from vitlab.models.masked import MaskedViT
from vitlab.models.vit import ViT
from vitlab.training.distributed import World, shared_out
from vitlab.training.optim import averaging_decay, freeze, optimizers, restore_optimizer
from vitlab.training.run_folder import Snapshot
from vitlab.training.tasks import BothHeads, Classify, PredictMasked, Task

# Polyak averaging: a moving average of the weights, kept in float32 beside the model.
#
# BatchNorm's running statistics are averaged too, as the authors of EfficientNet do: they belong to the averaged weights.


class Averaged:
    """The running average of all that a model's state dict holds, by name; `update` after each step, `state` to read or save it."""

    def __init__(self, model: nn.Module, config: Average) -> None:
        self.config = config
        self.state: dict[str, Tensor] = {
            name: tensor.detach().to(torch.float32, copy=True) for name, tensor in model.state_dict().items()
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved average."""
        for name, average in self.state.items():
            saved = state[name].to(average.device)
            if isinstance(average, DTensor):  # each rank takes its rows of what all have read
                saved = distribute_tensor(saved, average.device_mesh, average.placements, src_data_rank=None)
            average.copy_(saved)

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move the average towards the weights after update number `step`, counted from 0."""
        weight = 1 - averaging_decay(step, self.config)
        now = model.state_dict()
        for in_parts in (True, False):  # torch moves tensors of one kind together
            names = [name for name, average in self.state.items() if isinstance(average, DTensor) == in_parts]
            if names:
                current: list[Tensor] = [now[name].detach().to(torch.float32) for name in names]
                torch._foreach_lerp_([self.state[name] for name in names], current, weight)


@dataclass(slots=True, kw_only=True)
class TrainState:
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


def training_loader(run: RunConfig, dataset: Dataset, world: World) -> Loader:
    """The endless stream of training batches, this rank's share of them."""
    feed = training_feed(run.data.augment, channels=run.model.channels, limits=run.data.limits)
    return Loader(dataset, feed, config=run.data.loader, train=True, share=Share(rank=world.rank, ranks=world.ranks))


def evaluation_loader(run: RunConfig, dataset: Dataset, world: World) -> Loader:
    """The held-out images once, this rank's share of them."""
    feed = evaluation_feed(run.preprocess, limits=run.data.limits)
    batch = max(run.data.loader.batch_size, world.ranks)
    while 0 < len(dataset) % batch < world.ranks:  # a rank without images would leave the others waiting for its layers
        batch += 1
    config = replace(run.data.loader, batch_size=batch, repeats=1, balance=0.0, class_weights=None)
    return Loader(dataset, feed, config=config, train=False, share=Share(rank=world.rank, ranks=world.ranks))


def open_part(run: RunConfig, split: Split) -> Dataset:
    """One part of the run's images."""
    return open_dataset(run.data.dataset, split=split, rule=run.data.rule)


def assemble(run: RunConfig, dataset: Dataset, world: World, restored: Snapshot | None) -> TrainState:
    """Model, optimisers and task, as they were in `restored` or as the run begins."""
    _check_classes(run, dataset)
    if run.train.precision == "bfloat16" and world.device.type == "cpu" and (trouble := bfloat16_trouble()):
        raise TrainingError(f"precision='bfloat16' cannot be used here: {trouble}", hint=f"{REMEDY}, or precision='float32'")
    bare, notes = _model(run, dataset, restored)
    # FSDP brings one layer after the other to the device as it cuts it up: the whole may be too large for it.
    place = torch.device("cpu") if run.train.strategy == "fsdp" else world.device
    bare.to(place)
    if isinstance(bare, ViT):
        bare.lean = True  # what no one reads needs no gradient either
        bare.any_size = bare.any_size or bool(run.train.growth)
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
        labels=dataset.labels if run.train.masked is None and dataset.labels else None,
        recipe=_recipe(run),
        notes=notes,
    )
    task = _task(run, dataset, world)
    return TrainState(bare=bare, whole=whole, model=shared, optimizers=made, task=task, average=average, facts=facts, notes=notes)


def _recipe(run: RunConfig) -> dict[str, Json]:
    data = to_json(run)
    assert isinstance(data, dict)
    return data


def _check_classes(run: RunConfig, dataset: Dataset) -> None:
    if run.train.masked is not None:
        return
    if not dataset.labels:
        raise ConfigError(f"{run.data.dataset} has no labels to learn", hint="masked patch prediction learns without labels")
    if len(dataset.labels) != run.model.num_classes:
        raise ConfigError(f"the data has {len(dataset.labels)} classes and the model {run.model.num_classes}")
    if dataset.multi_label and run.train.loss != "sigmoid":
        raise ConfigError("images with several labels need loss='sigmoid'")


def _model(run: RunConfig, dataset: Dataset, restored: Snapshot | None) -> tuple[Model, tuple[str, ...]]:
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
        new_head=_needs_new_head(run, dataset),
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


def _needs_new_head(run: RunConfig, dataset: Dataset) -> bool:
    """A head of the same number of classes stays only where it is of the same classes, and has no layer that the run leaves out."""
    assert run.start is not None
    said = describe(run.start)
    hidden = {config.representation_width for config in (said.config, run.model) if isinstance(config, ViTConfig)}
    return run.train.masked is None and (len(hidden) > 1 or said.labels != dataset.labels)


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


def _task(run: RunConfig, dataset: Dataset, world: World) -> Task:
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
    if teacher is not None and teacher.labels is not None and teacher.labels != dataset.labels:
        raise ConfigError("the teacher's classes are not the data's, in name or order")
    return Classify(
        config=config,
        augment=run.data.augment,
        preprocess=run.preprocess,
        classes=run.model.num_classes,
        dtype=torch.float32,
        weight_C=_class_weights(dataset) if config.balanced_loss else None,
        teacher=None if teacher is None else teacher.model.to(world.device),
        teacher_preprocess=None if teacher is None else teacher.preprocess,
    )


def _class_weights(dataset: Dataset) -> Tensor:
    """Inverse frequencies, such that the mean weight of a image is 1."""
    counts = np.zeros(len(dataset.labels))
    for index in range(len(dataset)):
        label = dataset.label(index)
        counts[list(label) if isinstance(label, tuple) else label] += 1
    present = counts > 0
    weights = np.where(present, counts.sum() / np.maximum(counts, 1) / max(present.sum(), 1), 0.0)
    return torch.from_numpy(weights).float()


# BatchNorm's running statistics in training: they follow only updates that are applied, and are the same on every rank.
#
# A training pass moves them as a side effect. A pass that memory cut short, or an update that was not finite and so not applied, must
# leave no trace; and ranks, each of which normalises by its own part of the batch, share what they saw by taking the mean.


class Statistics:
    """The running statistics of a model, none for most; `keep` before an update, then `restore` or `share`."""

    def __init__(self, model: nn.Module) -> None:
        self.norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
        self.kept: Sequence[Tensor] = []

    @property
    def buffers(self) -> list[Tensor]:
        """Means and variances as they are now."""
        return [buffer for norm in self.norms for buffer in (norm.running_mean, norm.running_var)]

    @torch.no_grad()
    def keep(self) -> None:
        """Remember them as they are."""
        self.kept = [buffer.clone() for buffer in self.buffers]

    @torch.no_grad()
    def restore(self) -> None:
        """Put back what `keep` remembered."""
        for buffer, kept in zip(self.buffers, self.kept, strict=True):
            buffer.copy_(kept)

    @torch.no_grad()
    def share(self, world: World) -> None:
        """Give every rank the mean of all ranks', in one exchange."""
        if not self.norms or world.ranks == 1:
            return
        buffers = self.buffers
        together = world.sum(torch.cat(buffers)) / world.ranks
        for buffer, part in zip(buffers, torch.split(together, [len(buffer) for buffer in buffers]), strict=True):
            buffer.copy_(part)
