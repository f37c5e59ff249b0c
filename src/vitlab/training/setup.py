"""What a run has before its first step: the loaders of its batches, its model, its task and its state.

`create_state` makes the state from a config: from scratch, from a start checkpoint or from a snapshot of the same run.

`fit_head` fits a linear head to frozen features before the first step (linear probing, then fine-tuning: Kumar et al. 2022). It is
multinomial logistic regression on the features of the training split, as evaluation preprocesses its images; its regularisation is
chosen on a tenth of them. With 0 steps this is the whole training; with more, fine-tuning starts from it, and the features are not
distorted by a head that knows nothing yet. Axes: N images, D width of the features, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.checkpoints import describe, load
from vitlab.checkpoints.checkpoint import check_state
from vitlab.checkpoints.native import HeaderFacts
from vitlab.config.backbone import OnBackbone
from vitlab.config.data import named_classes
from vitlab.config.evaluation import ProbeConfig
from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.run import RunConfig
from vitlab.config.segmenter import SegmenterConfig
from vitlab.config.serialize import Json, to_json
from vitlab.config.vit import ViTConfig
from vitlab.data.dataset import Dataset, ImageDataset
from vitlab.data.dense import (
    evaluation_pipeline_with_boxes,
    evaluation_pipeline_with_masks,
    training_pipeline_with_boxes,
    training_pipeline_with_masks,
)
from vitlab.data.loader import Loader
from vitlab.data.sampler import Share
from vitlab.data.transforms import evaluation_pipeline, native_evaluation_pipeline, native_training_pipeline, training_pipeline
from vitlab.errors import ConfigError, TrainingError
from vitlab.evaluation.features import Features
from vitlab.evaluation.frozen import Linear, choose_strength, fit, select
from vitlab.io.machine import REMEDY
from vitlab.models.backbone import GridModel
from vitlab.models.device import announces_amx, bfloat16_trouble
from vitlab.models.families import build, build_on_meta
from vitlab.models.flexible import FlexibleSegmenter, FlexibleViT
from vitlab.models.grid_detector import TokenObjects
from vitlab.models.masked import MaskedViT
from vitlab.models.model import Model
from vitlab.models.packing import PackedViT
from vitlab.models.segmenter import Segmenter
from vitlab.models.vit import ViT
from vitlab.training.distributed import World, parallelise
from vitlab.training.lora import add_lora, averaged_factors, restore_lora
from vitlab.training.optim import create_optimizers, freeze, restore_optimizers
from vitlab.training.step import AveragedWeights, Progress, RunningStatistics, Snapshot, TrainState, training_share
from vitlab.training.tasks import BothHeads, Classify, Detect, LogitsAndFeatures, PredictMasked, Segment, Task


def training_loader(run: RunConfig, dataset: Dataset, world: World) -> Loader:
    """The endless stream of this rank's training batches."""
    channels, scale = run.model.channels, run.preprocess.pixel_scale
    if run.task == "segment":
        pipeline = training_pipeline_with_masks(run.data.augment, channels=channels, limits=run.data.limits, scale=scale)
    elif run.task == "detect":
        pipeline = training_pipeline_with_boxes(run.data.augment, channels=channels, limits=run.data.limits, scale=scale)
    elif run.preprocess.resize == "native":
        patch = _patch_of(run)
        pipeline = native_training_pipeline(run.data.augment, patch, channels=channels, limits=run.data.limits, pixel_scale=scale)
    else:
        pipeline = training_pipeline(run.data.augment, channels=channels, limits=run.data.limits, scale=scale)
    return Loader(dataset, pipeline, config=run.data.loader, train=True, share=training_share(run, world))


def _patch_of(run: RunConfig) -> tuple[int, int]:
    assert isinstance(run.model, ViTConfig), "the run's config refuses others"
    return run.model.patch_size


def evaluation_loader(run: RunConfig, dataset: Dataset, world: World) -> Loader:
    """This rank's part of the evaluation split, once."""
    if run.task == "segment":
        pipeline = evaluation_pipeline_with_masks(run.preprocess, limits=run.data.limits)
    elif run.task == "detect":
        pipeline = evaluation_pipeline_with_boxes(run.preprocess, limits=run.data.limits)
    elif run.preprocess.resize == "native":
        pipeline = native_evaluation_pipeline(run.preprocess, _patch_of(run), limits=run.data.limits)
    else:
        pipeline = evaluation_pipeline(run.preprocess, limits=run.data.limits)
    batch = max(run.data.loader.batch_size, world.ranks)
    while 0 < len(dataset) % batch < world.ranks:  # under FSDP every rank needs images in every batch, or the others wait for it
        batch += 1
    config = replace(run.data.loader, batch_size=batch, repeats=1, balance=0.0, class_weights=None)
    return Loader(dataset, pipeline, config=config, train=False, share=Share(rank=world.rank, ranks=world.ranks))


def create_state(
    run: RunConfig, dataset: Dataset, world: World, snapshot: Snapshot | None = None, head: FittedHead | None = None
) -> TrainState:
    """The state at the start of a run, with a fitted `head` if there is one, or as it was in `snapshot`.

    `dataset` is the training split.
    """
    _check_classes(run, dataset)
    half = run.train.precision == "bfloat16" and world.device.type == "cpu"
    if half and announces_amx() and (trouble := bfloat16_trouble()):
        raise TrainingError(f"`precision=bfloat16` does not work here: {trouble}", hint=f"{REMEDY}, or `precision=float32`")
    core, notes = create_model(run, dataset, snapshot)
    if head is not None:
        head.put_into(core)
        notes = (*(note.removesuffix(", all zeros") for note in notes), f"head fitted to the features of {head.images:,} images")
    # FSDP moves one layer after the other to the device as it shards it: the whole model may be too large for the device.
    place = torch.device("cpu") if run.train.strategy == "fsdp" else world.device
    core.to(place)
    if run.train.lora is not None:
        add_lora(core, run.train.lora, seed=run.train.seed)
        if snapshot is not None:
            restore_lora(core, snapshot.extra)
    if isinstance(core, ViT):
        core.skip_unused_tokens = True  # outputs that nobody reads need no gradient
        core.any_size = core.any_size or bool(run.train.progressive_resizing)
    core.recompute = run.train.recompute
    unwrapped = _with_training_weights(core, run, snapshot).to(place)
    freeze(unwrapped, run.train)
    unwrapped.train()
    if run.train.compile:
        unwrapped.compile()
    model = parallelise(unwrapped, run.train.strategy, run.train.precision, world, offload=run.train.offload)
    state = TrainState(
        run=run,
        world=world,
        model=model,
        unwrapped=unwrapped,
        core=core,
        task=_create_task(run, dataset, world),
        optimizers=create_optimizers(unwrapped, run.train.optimizer),
        average=AveragedWeights(core, run.train.average, trained_only=run.train.lora is not None)
        if run.train.average.decay
        else None,
        statistics=RunningStatistics(unwrapped),
        facts=HeaderFacts(
            config=run.model,
            preprocess=run.preprocess,
            labels=dataset.labels if run.train.masked is None and dataset.labels else None,
            recipe=_recipe(run),
            notes=notes,
        ),
        progress=Progress(seed=run.train.seed) if snapshot is None else snapshot.progress,
    )
    if snapshot is not None:
        restore_optimizers(unwrapped, state.optimizers, snapshot.optimizer)
        if state.average is not None and snapshot.average is not None:
            state.average.restore(snapshot.average if run.train.lora is None else averaged_factors(snapshot.extra))
    return state


def _recipe(run: RunConfig) -> dict[str, Json]:
    data = to_json(run)
    assert isinstance(data, dict)
    return data


def _check_classes(run: RunConfig, dataset: Dataset) -> None:
    if run.train.masked is not None:
        return
    if not dataset.labels:
        raise ConfigError(f"{run.data.dataset} has no labels", hint="masked patch prediction needs none: vitlab pretrain")
    if isinstance(dataset, ImageDataset):
        _check_targets(run, dataset)
    if len(dataset.labels) != (classes := named_classes(run.model)):
        raise ConfigError(f"the dataset has {len(dataset.labels)} classes, but the model has {classes}")
    if dataset.multi_label and run.train.loss != "sigmoid":
        raise ConfigError("images with several labels need loss='sigmoid'")


def _check_targets(run: RunConfig, dataset: ImageDataset) -> None:
    """The data gives classes to what the model gives them to."""
    masks, boxes = dataset.masks is not None, dataset.boxes is not None
    if masks and run.task != "segment":
        raise ConfigError(f"{run.data.dataset} gives each pixel a class, and this model does not", hint="task='segment'")
    if boxes and run.task != "detect":
        raise ConfigError(f"{run.data.dataset} gives each object a box, and this model does not", hint="task='detect'")
    if run.task == "segment" and not masks:
        raise ConfigError(f"{run.data.dataset} has no masks, and this model gives each pixel a class", hint="use `task=classify`")
    if run.task == "detect" and not boxes:
        raise ConfigError(f"{run.data.dataset} has no boxes, and this model finds objects", hint="use `task=classify`")


def create_model(run: RunConfig, dataset: Dataset, snapshot: Snapshot | None = None) -> tuple[Model, tuple[str, ...]]:
    """The model from scratch, from its start checkpoint or as it was in `snapshot`, and notes on how it was made."""
    if snapshot is not None:
        check_state(snapshot.model, run.model, where="the run's last checkpoint")
        model = build_on_meta(run.model)
        model.load_state_dict(snapshot.model, strict=True, assign=True)
        return model, snapshot.facts.notes
    if run.start is None:
        return build(run.model, seed=run.train.seed), ()
    if isinstance(run.model, SegmenterConfig | GridDetectorConfig):
        return _on_backbone_from(run, run.model, dataset)
    if run.task == "detect":
        assert isinstance(run.model, ViTConfig)
        return _tokens_from(run, run.model, dataset)
    start = load(
        run.start,
        num_classes=run.model.num_classes,
        new_head=_needs_new_head(run, dataset),
        image_size=run.model.image_size,
        channels=run.model.channels,
        preprocess=run.preprocess,
        **run.model.fit_options,
    )
    model = build_on_meta(run.model)
    model.load_state_dict(start.model.state_dict(), strict=True, assign=True)
    return model, (f"starts from {run.start}", *start.notes)


def _on_backbone_from(
    run: RunConfig, config: SegmenterConfig | GridDetectorConfig, dataset: Dataset
) -> tuple[Model, tuple[str, ...]]:
    """The model of the start checkpoint if it is one for the same classes, else a new head on the checkpoint's features."""
    assert run.start is not None
    start = load(run.start, image_size=config.image_size, channels=config.channels, **config.fit_options)
    notes = (f"starts from {run.start}", *start.notes)
    model, state = build(config, seed=run.train.seed), start.model.state_dict()
    assert isinstance(model, GridModel)
    if isinstance(start.config, OnBackbone):
        if start.config == config and start.labels == dataset.labels:
            model.load_state_dict(state, strict=True, assign=True)
            return model, notes
        state = {name.removeprefix("backbone."): tensor for name, tensor in state.items() if name.startswith("backbone.")}
    wanted = model.backbone.state_dict()
    if missing := [name for name, tensor in wanted.items() if name not in state or state[name].shape != tensor.shape]:
        raise ConfigError(
            f"{run.start} is not the backbone of {config.title}: {', '.join(missing[:5])} differ",
            hint="finetune makes a config for it",
        )
    model.backbone.load_state_dict({name: state[name].contiguous() for name in wanted}, strict=True, assign=True)
    unused = sorted({name.partition(".")[0] for name in state if name not in wanted})
    left_out = (f"of the checkpoint these parts are not used: {', '.join(unused)}",) if unused else ()
    head = f"{config.decoder} decoder" if isinstance(config, SegmenterConfig) else "detection head"
    return model, (*notes, *left_out, f"new {head} of {config.num_classes} classes")


def _tokens_from(run: RunConfig, config: ViTConfig, dataset: Dataset) -> tuple[Model, tuple[str, ...]]:
    """A YOLOS from the start checkpoint: a YOLOS, with new layers where the classes differ, or a ViT, which gets detection tokens.

    The tokens and their positions stand between the other prefix tokens and the patches.
    """
    assert run.start is not None
    start = load(run.start, image_size=config.image_size, channels=config.channels, **config.fit_options)
    model, state = build(config, seed=run.train.seed), start.model.state_dict()
    before = start.config
    assert isinstance(before, ViTConfig)
    own = model.state_dict()
    if before.register_tokens != config.register_tokens:
        table = "position.table"
        placed, count = own[table].shape[1] - state[table].shape[1], config.prefix_tokens - config.register_tokens
        assert placed == config.register_tokens, (
            "a ViT without registers, whose position table has rows for class tokens and patches"
        )
        new = own[table][:, count : count + placed]
        state[table] = torch.cat([state[table][:, :count], new, state[table][:, count:]], dim=1)
    same = before.detection_classes == config.detection_classes and start.labels == dataset.labels
    kept = {
        name: tensor
        for name, tensor in state.items()
        if name in own and own[name].shape == tensor.shape and (same or not name.startswith("detection.classes.2."))
    }
    fresh = sorted({".".join(name.split(".")[:2]) for name in own if name not in kept})
    model.load_state_dict({**own, **{name: tensor.contiguous() for name, tensor in kept.items()}}, strict=True, assign=True)
    notes = (f"new: {', '.join(fresh)}",) if fresh else ()
    return model, (f"starts from {run.start}", *start.notes, *notes)


def _needs_new_head(run: RunConfig, dataset: Dataset) -> bool:
    """A head stays only if its classes are the dataset's, and the run has the same layer before it."""
    assert run.start is not None
    described = describe(run.start)
    hidden = {config.representation_width for config in (described.config, run.model) if isinstance(config, ViTConfig)}
    return run.train.masked is None and (len(hidden) > 1 or described.labels != dataset.labels)


def _with_training_weights(core: Model, run: RunConfig, snapshot: Snapshot | None) -> nn.Module:
    """The model inside what only this task needs."""
    if run.train.masked is not None:
        return _with_masked_head(core, run, snapshot)
    both = run.train.distill is not None and isinstance(core, ViT) and core.distill_head is not None
    if run.preprocess.resize == "native":
        assert isinstance(core, ViT), "the run's config refuses others"
        return PackedViT(core)
    if run.train.patch_sizes and isinstance(core, Segmenter):
        return FlexibleSegmenter(core, run.train.patch_sizes)
    if run.train.patch_sizes:
        assert isinstance(core, ViT), "the run's config refuses others"
        return FlexibleViT(core, run.train.patch_sizes, both=both)
    if both:
        assert isinstance(core, ViT)
        return BothHeads(core)
    if run.train.lwf:
        assert isinstance(core, ViT), "the run's config refuses others"
        return LogitsAndFeatures(core)
    if isinstance(core, ViT) and core.detection is not None:
        return TokenObjects(core)
    return core


def _with_masked_head(core: Model, run: RunConfig, snapshot: Snapshot | None) -> MaskedViT:
    if not isinstance(core, ViT):
        raise ConfigError("masked patch prediction needs a ViT")
    assert run.train.masked is not None
    model = MaskedViT(core, run.train.masked.target)
    generator = torch.Generator().manual_seed(run.train.seed)
    with torch.no_grad():
        model.mask_token.normal_(0, 0.02, generator=generator)
        model.predict.weight.normal_(0, 0.02, generator=generator)
        model.predict.bias.zero_()
        for name, tensor in (snapshot.extra if snapshot is not None else {}).items():
            model.get_parameter(name).copy_(tensor)
    return model


def _create_task(run: RunConfig, dataset: Dataset, world: World) -> Task:
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
            seed=config.seed,
            batch_size=run.data.loader.batch_size,
            share=training_share(run, world),
        )
    if isinstance(run.model, GridDetectorConfig) or run.task == "detect":
        assert isinstance(run.model, GridDetectorConfig | ViTConfig)
        return Detect(model=run.model, preprocess=run.preprocess, dtype=torch.float32)
    if run.task == "segment":
        return Segment(config=config, preprocess=run.preprocess, classes=run.model.num_classes, dtype=torch.float32)
    teacher = None if config.distill is None else load(config.distill.teacher, image_size=run.model.image_size)
    if teacher is not None and teacher.config.num_classes != run.model.num_classes:
        raise ConfigError(f"the teacher has {teacher.config.num_classes} classes, but the student has {run.model.num_classes}")
    if teacher is not None and teacher.labels is not None and teacher.labels != dataset.labels:
        raise ConfigError("the teacher's classes differ from the dataset's, in name or order")
    return Classify(
        config=config,
        augment=run.data.augment,
        preprocess=run.preprocess,
        classes=run.model.num_classes,
        dtype=torch.float32,
        weight_C=_class_weights(dataset) if config.balanced_loss else None,
        teacher=None if teacher is None else teacher.model.to(world.device),
        before=_before(run, world) if config.lwf else None,
        teacher_preprocess=None if teacher is None else teacher.preprocess,
    )


def _before(run: RunConfig, world: World) -> ViT:
    """The start checkpoint as it is, with its own head, for images of the run's sizes."""
    assert run.start is not None
    start = load(run.start, image_size=run.model.image_size, channels=run.model.channels, **run.model.fit_options)
    if not isinstance(start.model, ViT) or start.model.head is None or start.model.distill_head is not None:
        raise ConfigError(f"train.lwf keeps the classes of the start checkpoint, and {run.start} has none", hint="train.lwf=0")
    start.model.any_size = True
    return start.model.eval().requires_grad_(False).to(world.device)


def _class_weights(dataset: Dataset) -> Tensor:
    """Inverse class frequencies, scaled so that the mean weight of an image is 1."""
    counts = np.zeros(len(dataset.labels))
    for index in range(len(dataset)):
        label = dataset.label(index)
        counts[list(label) if isinstance(label, tuple) else label] += 1
    present = counts > 0
    weights = np.where(present, counts.sum() / np.maximum(counts, 1) / max(present.sum(), 1), 0.0)
    return torch.from_numpy(weights).float()


# --- a linear head fitted to frozen features before the first step ------------------------------------------------------------

_SEARCH = ProbeConfig(l2_low=1e-2, l2_high=1e4, per_decade=2, tolerance=1e-4, most_steps=500)
_LEAST = 20  # images: below, there are too few to hold some out, and the strength is fixed
_FIXED_L2 = 1.0
_HELD_OUT = 10  # one image of so many chooses the strength
_STREAM = 204  # a random stream of the run's seed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedHead:
    """The weights of a head: logits are features @ weight.T + bias.

    `accuracy` is that on the held-out tenth before the last fit, which uses all `images`; None if they were too few.
    """

    weight_CD: Tensor
    bias_C: Tensor
    l2: float
    accuracy: float | None
    images: int

    def put_into(self, model: Model) -> None:
        """Set the model's head. A distilled ViT averages two heads, and both get it: it was fitted to the mean of their inputs."""
        heads = [model.head, model.distill_head if isinstance(model, ViT) else None]
        with torch.no_grad():
            for head in heads:
                if head is not None:
                    assert isinstance(head, nn.Linear)
                    head.weight.copy_(self.weight_CD)
                    head.bias.copy_(self.bias_C)


def fit_head(features_ND: NDArray[np.float32], labels_N: NDArray[np.int64], *, names: tuple[str, ...], seed: int) -> FittedHead:
    """Choose the strength on a tenth of the images, then fit all of them with it."""
    order_N = np.arange(len(labels_N))
    whole = Features(features_ND=features_ND, labels_N=labels_N, indices_N=order_N, names=names)
    accuracy, l2, near = None, _FIXED_L2, None
    if len(whole) >= _LEAST:
        held_N = np.zeros(len(whole), np.bool_)
        held_N[np.random.default_rng([seed, _STREAM]).permutation(len(whole))[: len(whole) // _HELD_OUT]] = True
        near, tried = choose_strength(select(whole, ~held_N), select(whole, held_N), _SEARCH)
        l2, accuracy = near.l2, dict(tried)[near.l2]
    linear = fit(whole, classes=len(names), l2=l2, config=_SEARCH, start=near)
    weight_CD, bias_C = as_head(linear)
    return FittedHead(weight_CD=weight_CD, bias_C=bias_C, l2=l2, accuracy=accuracy, images=len(whole))


def as_head(linear: Linear) -> tuple[Tensor, Tensor]:
    """The weight (C, D) and bias (C,) of the linear layer that gives the same logits from features that are not whitened."""
    weights_DC = linear.weights_DK / linear.deviation_D[:, None]
    bias_C = linear.bias_K - linear.mean_D @ weights_DC
    return torch.from_numpy(weights_DC.T.astype(np.float32)), torch.from_numpy(bias_C.astype(np.float32))
