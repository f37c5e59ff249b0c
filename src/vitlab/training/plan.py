"""Before a run: facts about the dataset, the start checkpoint and the machine, and a plan of what the run will take.

What can be counted is counted; time is measured, by a few real steps on random images and by reading a few images of the dataset.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from vitlab.checkpoints import describe
from vitlab.config.data import PixelScale, SplitRule
from vitlab.config.model import ModelConfig, with_patches
from vitlab.config.overrides import DataFacts, Machine, StartFacts
from vitlab.config.run import RunConfig
from vitlab.config.train import mean_area
from vitlab.config.vit import ViTConfig
from vitlab.data.batch import Batch, BatchBoxes
from vitlab.data.dataset import SPLITS, Dataset, ImageDataset, Label, RawSample
from vitlab.data.decode import Pixels, decode, fit_channels, format_of
from vitlab.data.opening import open_dataset
from vitlab.data.synthetic import SyntheticDataset
from vitlab.data.transforms import budget_of, to_rows
from vitlab.errors import DataError
from vitlab.inference.packed import plain_backend
from vitlab.io.machine import memory_available
from vitlab.models.attention_variants import keeps_weights
from vitlab.models.cost import Cost, cost
from vitlab.models.device import has_fast_bfloat16, resolve_device
from vitlab.models.families import build, build_on_meta
from vitlab.models.vit import tokens_read
from vitlab.training.distributed import World, shard_size, world_size
from vitlab.training.lora import adapted_weights, add_lora, spared_activations
from vitlab.training.optim import freeze
from vitlab.training.setup import create_state, training_loader
from vitlab.training.step import update

_INSPECTED = 16  # images read to learn their size and color
_LEAST_STD = 0.01  # of a channel that is the same everywhere
_SECONDS = 6.0  # that measuring may take, about
_PATIENCE = 4  # times as long may the first step take, in which memory is allocated, before it is the only one
_REPEATS = 3
_FIRST = 1  # images of the first step, which counts only if there is no time for more
_READ = 16  # images read from the dataset to measure the time of reading
_FORWARD = 16  # images of a forward pass whose time is measured
_FIT_SECONDS = 3e-7  # to fit a head, for each image x feature x class: some hundred steps of L-BFGS in float64


def survey(
    spec: str,
    *,
    rule: SplitRule | None = None,
    dataset: Dataset | None = None,
    channels: int | None = None,
    scale: PixelScale = "full",
) -> DataFacts:
    """The facts of the dataset that `spec` names; `dataset` is the whole of it (split `all`), if it is open already.

    `channels` are those that the images are read with, if not their own, and `scale` is that of images of more than 8 bits.

    The number of training images is exact if the data declares its splits. If `rule` makes them, it is an estimate: the exact
    number would need every image to be read.
    """
    rule = rule or SplitRule()
    whole = open_dataset(spec, split="all", rule=rule) if dataset is None else dataset
    if isinstance(whole, SyntheticDataset):
        train = len(open_dataset(spec, split="train", rule=rule))
        splits: tuple[str, ...] = ("train", *(["val"] if rule.val else []), *(["test"] if rule.test else []))
    else:
        assert isinstance(whole, ImageDataset)
        train, splits = _count_splits(whole, rule, spec)
    inspected = _inspect(whole, channels, scale)
    return DataFacts(
        dataset=spec,
        images=max(train, 1),
        classes=len(whole.labels),
        channels=inspected.channels,
        side=inspected.side,
        multi_label=whole.multi_label,
        imbalance=_imbalance(whole),
        splits=splits,
        mean=inspected.mean,
        std=inspected.std,
        masks=isinstance(whole, ImageDataset) and whole.masks is not None,
        boxes=isinstance(whole, ImageDataset) and whole.boxes is not None,
        deep=inspected.deep,
        dark=inspected.dark,
    )


def _count_splits(whole: ImageDataset, rule: SplitRule, spec: str) -> tuple[int, tuple[str, ...]]:
    """The number of training images, and the splits that exist."""
    counts = {split: int(np.count_nonzero(whole.splits == number)) for number, split in enumerate(SPLITS)}
    declared = {split for split, count in counts.items() if count}
    if declared and "train" not in declared:
        raise DataError(f"{spec} has no train split, only {' and '.join(sorted(declared))}")
    made = {"val"} if declared and "val" not in declared else set() if declared else {"val", "test"}
    fractions = {"val": rule.val, "test": rule.test}
    pool = counts["train"] if declared else len(whole)
    held_out = sum(fractions[split] for split in made)
    present = {"train"} | declared | {split for split in made if fractions[split]}
    return round(pool * (1 - held_out)), tuple(split for split in SPLITS if split in present)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inspected:
    """What some images of a dataset show: their channels, median shorter side, and mean and std of other channels than RGB.

    `deep` and `dark` are those of `DataFacts`.
    """

    channels: int
    side: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    deep: bool = False
    dark: bool = False


_ONLY_8_BITS = ("jpeg", "webp", "bmp", "gif")
_DARK = 64  # levels of 8 bits: a quarter of them


def _depth(content: bytes | Pixels, name: str) -> tuple[bool, bool]:
    """Whether an image that can be read has more than 8 bits, so that its scale matters, and is almost black at the full scale."""
    if not isinstance(content, bytes) or format_of(content) in _ONLY_8_BITS:
        return False, False
    full_HWC = decode(content, name=name, channels=None, scale="full")
    deep = not np.array_equal(full_HWC, decode(content, name=name, channels=None, scale="percentile"))
    return deep, deep and int(full_HWC.max()) < _DARK


def _inspect(dataset: Dataset, channels: int | None, scale: PixelScale) -> _Inspected:
    """Channels are as asked, or 1 if all inspected images are grey, 3 if they are colour, else the number that all of them have."""
    wanted = channels if channels not in (1, 3, 4) else None
    colors, images, refused = [], list[tuple[str, Pixels]](), list[DataError]()
    depths = list[tuple[bool, bool]]()
    for index in np.unique(np.linspace(0, len(dataset) - 1, _INSPECTED).astype(int)).tolist():
        raw = dataset.read(index)
        try:
            content = raw.content
            image_HWC = (
                decode(content, name=raw.name, channels=wanted, scale=scale)
                if isinstance(content, bytes)
                else content
                if wanted is None
                else fit_channels(content, wanted, name=raw.name)
            )
        except DataError as error:
            refused.append(error)
            continue  # the loader reports it when its turn comes
        images.append((raw.name, image_HWC))
        colors.append(_has_color(image_HWC))
        depths.append(_depth(content, raw.name))
    if not images and wanted is not None:
        raise refused[0]
    if not images:
        tried = f"none of the {len(refused):,} images that were tried can be read"
        raise DataError(f"{tried}; {refused[0].message}", hint="run `vitlab data check` to list what is wrong")
    side = round(statistics.median(min(image_HWC.shape[:2]) for _, image_HWC in images))
    found = _same_channels(images)
    deep, dark = any(each for each, _ in depths), all(each for _, each in depths)
    if found in (1, 3, 4):
        return _Inspected(channels=channels or (3 if any(colors) else 1), side=side, deep=deep, dark=dark)
    pixels_NC = np.concatenate([_sampled(image_HWC) for _, image_HWC in images]).astype(np.float64) / 255
    std_C = np.maximum(pixels_NC.std(axis=0), _LEAST_STD)
    return _Inspected(
        channels=found,
        side=side,
        mean=tuple(round(float(value), 4) for value in pixels_NC.mean(axis=0)),
        std=tuple(round(float(value), 4) for value in std_C),
        deep=deep,
        dark=dark,
    )


def _same_channels(images: Sequence[tuple[str, Pixels]]) -> int:
    """The channels that all images have; DataError names an image of each number. Grey and colour count as the same."""
    named: dict[int, str] = {}
    for name, image_HWC in images:
        stored = image_HWC.shape[2]
        named.setdefault(3 if stored in (1, 3, 4) else stored, name)
    if len(named) > 1:
        words = ", ".join(f"{name} has {'1 or 3' if stored == 3 else stored}" for stored, name in sorted(named.items()))
        raise DataError(
            f"the images have different numbers of channels: {words}",
            hint="remove those that do not belong, or give `channels` to skip them",
        )
    return next(iter(named))


def _sampled(image_HWC: Pixels) -> Pixels:
    """At most about 10,000 pixels of an image, evenly, [pixels, C]."""
    step = max(1, round(math.sqrt(image_HWC.shape[0] * image_HWC.shape[1] / 10_000)))
    sampled_HWC = image_HWC[::step, ::step]
    return sampled_HWC.reshape(-1, image_HWC.shape[2])


def _has_color(image_HWC: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bool:
    """Whether channels differ anywhere by more than compression explains."""
    if image_HWC.shape[2] < 3:
        return False
    rgb = image_HWC[..., :3].astype(np.int16)
    return bool((rgb.max(axis=2) - rgb.min(axis=2)).max() > 8)


def _imbalance(dataset: Dataset) -> float:
    """The size of the largest class divided by that of the smallest class that is not empty."""
    if isinstance(dataset, SyntheticDataset) or not dataset.labels:
        return 1.0
    counts = np.bincount([number for index in range(len(dataset)) for number in _classes(dataset.label(index))])
    present = counts[counts > 0]
    return float(present.max() / present.min()) if present.size else 1.0


def _classes(label: int | tuple[int, ...] | None) -> Iterable[int]:
    return () if label is None else label if isinstance(label, tuple) else (label,)


def start_facts(path: str) -> StartFacts:
    """The facts of the checkpoint at a path, or at `hub:owner/name`, from its header."""
    described = describe(path)
    return StartFacts(path=path, model=described.config, preprocess=described.preprocess)


def this_machine() -> Machine:
    """The cores this process may use, whether there is a GPU, and whether the CPU has bfloat16 instructions."""
    gpu = torch.cuda.is_available()
    return Machine(cores=_cores(), accelerator=gpu, bfloat16=not gpu and has_fast_bfloat16())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run takes. Times in seconds, None if they were not measured; `notes` says why.

    `macs` are the multiply-adds of one image forward; `exaflops` those of the whole run, by the paper's rule of 6 operations for
    each (Table 6). `trainable` counts the parameters that train. `ranks` processes share the work; each holds `rank_parameters` of
    the model, all of them unless the strategy is `fsdp`. `memory_bytes` is the estimate for one process: weights, gradients,
    optimizer, average, and the activations of `micro_batch` images, at the busiest moment of a step; `memory_free` is what the
    machine has. `host_bytes` of host memory come on top with `offload="cpu"`. `checkpoint_bytes` is the size of one checkpoint on
    disk.
    `step_seconds` is the time of one step, measured with `measured_images` and scaled; with progressive resizing or several patch
    sizes, the mean.
    `read_seconds` is the time in which one process reads its part of a batch. Communication between processes is not included.
    `head_seconds` is the time of the features and the fit of a fitted head, 0 without one.
    `seconds` is the time of the head and of all steps with data loading, without evaluation.
    """

    steps: int
    epochs: float
    images: int
    batch_size: int
    micro_batch: int
    parameters: int
    trainable: int
    ranks: int
    rank_parameters: int
    macs: int
    exaflops: float
    memory_bytes: int
    memory_free: int
    checkpoint_bytes: int
    step_seconds: float | None
    read_seconds: float | None
    head_seconds: float | None
    seconds: float | None
    measured_images: int
    host_bytes: int = 0
    notes: tuple[str, ...] = ()


def plan(
    run: RunConfig,
    *,
    data: DataFacts | None = None,
    dataset: Dataset | None = None,
    device: str | torch.device = "auto",
    ranks: int | None = None,
) -> Plan:
    """What the run takes on this machine.

    `data` are the facts of its dataset and `dataset` is the whole dataset (split `all`), if they are known already; with `data`
    alone the dataset is not opened, and the time of reading it stays unknown. `ranks` is the number of processes; by default, as
    many as torchrun started.
    """
    if dataset is None and data is None:
        dataset = open_dataset(run.data.dataset, split="all", rule=run.data.rule)
    facts = data or survey(run.data.dataset, rule=run.data.rule, dataset=dataset)
    whole = Absent(facts) if dataset is None else dataset
    ranks = ranks or world_size()
    here = World(device=resolve_device(device))
    batch = run.data.loader.batch_size
    own = -(-batch // ranks)
    rows = min(run.train.micro_batch or own, own)
    memory, free, notes = Memory(run, cost(run.model), ranks, device=here.device), free_memory(here.device), list[str]()
    if run.train.strategy == "fsdp" and ranks == 1:
        notes.append("strategy='fsdp' needs more than one process; launch with torchrun")
    needed = memory.needed(rows)
    if run.train.lora is not None:
        notes.append(memory.spared(rows))
    if needed > free:
        fits = memory.largest(own, free)
        advice = f"a micro-batch of {fits:,} fits" if fits else "even one image at a time is too much"
        notes.append(f"the run needs about {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free: {advice}")
    step_seconds, measured = None, 0
    alone = Memory(run, memory.cost, 1, device=here.device)  # one process measures, with the whole model
    if alone.needed(min(rows, _FIRST)) > free:
        notes.append("the time of a step was not measured: the model does not fit into memory")
    else:
        step_seconds, measured = _measure_step(run, whole, here, batch=own, most=max(1, min(rows, alone.largest(own, free))))
        step_seconds *= mean_work(run)
        if measured < own and measured <= _FIRST:
            notes.append(
                f"the time of a step is extrapolated to {own:,} images from one with a single image: the real one is shorter"
            )
        elif measured < rows:
            notes.append(
                f"the time of a step is extrapolated to {own:,} images from one step with 1 image and one with {measured:,}"
            )
    read_seconds = None if dataset is None else _measure_reading(run, dataset, here, batch=own)
    if read_seconds is None:
        notes.append(f"the time of reading images is not included: {facts.dataset} is described, not opened")
    head_seconds: float | None = 0.0
    seconds = None if step_seconds is None else run.train.steps * _step_with_reading(run, here, step_seconds, read_seconds or 0.0)
    if run.train.head == "fitted":
        head_seconds = None if seconds is None else _measure_head(run, whole, here, ranks, facts.images, read_seconds or 0.0, rows)
    if seconds is not None and head_seconds is not None:
        seconds += head_seconds
    return Plan(
        steps=run.train.steps,
        epochs=run.train.steps * batch / facts.images,
        images=facts.images,
        batch_size=batch,
        micro_batch=rows,
        parameters=memory.cost.parameters,
        trainable=memory.trained,
        ranks=ranks,
        rank_parameters=memory.held,
        macs=memory.cost.macs,
        exaflops=memory.cost.training_exaflops(mean_work(run) * run.train.steps * batch),
        memory_bytes=needed,
        memory_free=free,
        checkpoint_bytes=memory.checkpoint_bytes,
        step_seconds=step_seconds,
        read_seconds=read_seconds,
        head_seconds=head_seconds,
        seconds=seconds,
        measured_images=measured,
        host_bytes=memory.parts(rows).host,
        notes=tuple(notes),
    )


def mean_work(run: RunConfig) -> float:
    """The mean work of a step over that of a step with images and patches of the model's own size."""
    return mean_area(run.train.progressive_resizing) * mean_macs(run, run.model) / cost(run.model).macs


def mean_macs(run: RunConfig, model: ModelConfig) -> float:
    """Multiply-adds of an image in a forward pass of a step, on average over the patch sizes that are drawn."""
    models = [with_patches(model, size) for size in run.train.patch_sizes] or [model]
    return sum(cost(one).macs for one in models) / len(models)


def _slots(run: RunConfig) -> int:
    """Tensors that the optimizer keeps per parameter."""
    return 2 if run.train.optimizer.kind == "adamw" else 1


@dataclass(frozen=True, slots=True)
class Absent:
    """Stands for a dataset that is described and not there: it has classes and no images."""

    facts: DataFacts

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.facts.classes)))

    @property
    def multi_label(self) -> bool:
        return self.facts.multi_label

    def __len__(self) -> int:
        return self.facts.images

    def read(self, index: int) -> RawSample:
        raise AssertionError("a described dataset has no images to read")

    def label(self, index: int) -> Label:
        raise AssertionError("a described dataset has no labels to read")

    def fingerprint(self) -> str:
        raise AssertionError("a described dataset has no fingerprint")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Bytes of one process, part by part, at its busiest moment. `gathered` are whole layers that FSDP collects from other ranks.

    `host` is what `offload="cpu"` keeps in host memory, beside the rest on the device.
    """

    weights: int
    gradients: int
    optimizer: int
    average: int
    gathered: int
    activations: int
    host: int = 0

    @property
    def total(self) -> int:
        """Bytes on the device."""
        return self.weights + self.gradients + self.optimizer + self.average + self.gathered + self.activations


class Memory:
    """Estimates the memory of one process: its part of the model, and the activations of its images.

    Under FSDP the busiest moment is the start of the backward pass, when all activations are kept, or its end, when all gradients
    are there; in both, two layers are gathered, and one layer's gradients are being summed over ranks. With several micro-batches
    the gradients stay from one to the next. With DDP they stay from step to step.

    `device` is where it trains: attention keeps more on a CPU in bfloat16 than the fused kernels of a GPU do.
    """

    def __init__(self, run: RunConfig, cost: Cost, ranks: int, *, device: str | torch.device = "cuda") -> None:
        self.run = run
        self.cost = cost
        self.ranks = ranks
        self.sharded = run.train.strategy == "fsdp" and ranks > 1
        self.held, self.gathered, self.layer = cost.parameters, 0, 0
        if self.sharded:
            size = shard_size(run.model, run.train.precision, ranks=ranks)
            self.held, self.gathered, self.layer = size.parameters, size.gathered, size.layer
        # gloo, by which CPUs talk, works in copies that are no tensors: of the layer that is gathered and of the gradients that are
        # summed, which may be on their way at once (measured: 256 MiB for 256 MiB, each).
        self.sent = self.layer * (4 + self._wide) if torch.device(device).type == "cpu" else 0
        self.trained, self.copies = self.held, cost.training_copies
        self.kept, self.kept_last, self.images = cost.training_kept, 0, 0
        if isinstance(run.model, ViTConfig):
            half, tokens = run.train.precision == "bfloat16", run.model.trained_tokens
            weights = run.model.heads * tokens**2 * keeps_weights(tokens, bfloat16=half, device=torch.device(device))
            kept = kept_activations(run.model, weights, recompute=run.train.recompute)
            self.kept, self.kept_last = (kept.start, kept.end) if self.sharded else (kept.most, 0)
            self.images = run.model.channels * math.prod(run.model.image_size) if self.sharded else 0
        self.factors = self.adapted = 0
        if run.train.lora is not None:
            model = build_on_meta(run.model)
            add_lora(model, run.train.lora, seed=0)
            freeze(model, run.train)
            self.adapted = adapted_weights(model)
            self.factors = sum(parameter.numel() for parameter in model.parameters()) - self.held
            self.trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
            self.kept -= spared_activations(run.model, run.train.lora)
            self.copies += self.adapted  # each pass merges updates and weights

    def parts(self, rows: int) -> MemoryParts:
        """Bytes to train with that many images at a time."""
        wide = self._wide
        trained = self.trained * 4  # weights, gradients, the optimizer's slots and the average are float32
        gradients, activations = trained, (self.copies + rows * self.kept) * wide + rows * self.images * 4
        if self.sharded:
            gradients, activations = self._busiest(rows, trained, activations, wide)
        gradients += self.sent
        weights, optimizer = (self.held + self.factors) * 4, trained * _slots(self.run)
        average = trained * bool(self.run.train.average.decay)
        host = 0
        if self.sharded and self.run.train.offload == "cpu":
            host = weights + trained + optimizer + average
            gradients, activations = self._summing + self.sent, (self.copies + rows * self.kept) * wide + rows * self.images * 4
            weights = optimizer = average = 0
        return MemoryParts(
            weights=weights,
            gradients=gradients,
            optimizer=optimizer,
            average=average,
            gathered=self.gathered * wide,
            activations=activations,
            host=host,
        )

    @property
    def _wide(self) -> int:
        """Bytes of a number of the activations, and of a gathered layer."""
        return 2 if self.run.train.precision == "bfloat16" else 4

    @property
    def _summing(self) -> int:
        """Bytes of one layer's gradients while they are summed over ranks: as they are sent, and this rank's part of the sum."""
        return 4 * self.layer + 4 * self._part

    @property
    def _part(self) -> int:
        """Numbers of one rank's part of the largest layer."""
        return -(-self.layer // self.ranks)

    def _busiest(self, rows: int, gradients: int, activations: int, wide: int) -> tuple[int, int]:
        """Bytes of gradients and activations under FSDP at the busier end of the backward pass.

        Near its end this is the last layer but one: the gradients of two layers are not there yet.
        """
        if rows < -(-self.run.data.loader.batch_size // self.ranks):
            return gradients + self._summing, activations
        last = (self.copies + rows * self.kept_last) * wide + rows * self.images * 4
        late = max(0, gradients - 2 * 4 * self._part) + 4 * self.layer
        return (self._summing, activations) if activations + self._summing > late + last else (late, last)

    def spared(self, rows: int) -> str:
        """What LoRA saves beside a run that trains every weight, in a sentence."""
        whole = Memory(replace(self.run, train=replace(self.run.train, lora=None)), self.cost, 1)
        needed = [f"{memory.needed(rows) / 2**20:,.0f} MiB" for memory in (self, whole)]
        return (
            f"lora trains {self.trained:,} of {self.held + self.factors:,} parameters: about {needed[0]} of memory"
            f" instead of {needed[1]} for all weights"
        )

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of one checkpoint on disk: weights, the optimizer's slots and the average of the whole model.

        With LoRA the slots are those of what trains, and the frozen weights and the factors, with their average, come on top.
        """
        average = bool(self.run.train.average.decay)
        if self.run.train.lora is None:
            return self.cost.weight_bytes() * (1 + _slots(self.run) + average)
        numbers = self.adapted + self.factors + self.trained * (_slots(self.run) + average)
        return self.cost.weight_bytes() * (1 + average) + 4 * numbers

    def needed(self, rows: int) -> int:
        """Bytes to train with that many images at a time, in sum."""
        return self.parts(rows).total

    def most(self, room: int) -> int:
        """The largest number of images at a time for which so many bytes are enough; 0 for none."""
        if self.needed(1) > room:
            return 0
        low, high = 1, 2
        while self.needed(high) <= room:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.needed(middle) <= room else (low, middle)
        return low

    def largest(self, rows: int, free: int) -> int:
        """The largest number of images at a time that fits, halving from `rows`; 0 for none."""
        while rows and self.needed(rows) > free:
            rows //= 2
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Numbers of one image that are alive in the backward pass of a ViT: near its `start`, and near its `end`.

    `most` are those that the forward pass keeps if every layer keeps all tokens.
    """

    start: int
    end: int
    most: int


def kept_activations(model: ViTConfig, weights: int, *, recompute: bool) -> Kept:
    """What training keeps of one image; `weights` are those of attention in a layer, where no fused kernel is used.

    The backward pass is busiest inside the MLP of the last layer that has all tokens: the gradient of the hidden units is there
    beside what is still kept. That is the last but one where the head reads the class token alone, since the last layer then
    computes nothing for the others, and what it kept is free again. With `recompute` the layers keep their inputs, and one of
    them has the rest while its turn lasts.
    """
    whole, two, one = (_cost_of_depth(model, depth).training_kept for depth in (model.depth, 2, 1))
    layer, tokens = two - one, model.trained_tokens
    outside = whole - model.depth * layer
    layer += weights
    other = tokens * model.width if recompute else layer
    before = outside - 2 * tokens * model.width  # of the embedding; the last norm has had its turn
    backward = tokens * (model.mlp_width * (2 if model.mlp.gated else 1) + model.width)
    full = max(1, model.depth - (tokens_read(model) is not None))
    return Kept(
        start=before + (full - 1) * other + layer + backward,
        end=before + layer + backward,
        most=outside + model.depth * other + (layer if recompute else 0),
    )


def _cost_of_depth(model: ViTConfig, depth: int) -> Cost:
    return cost(model if depth == model.depth else replace(model, depth=depth))


def free_memory(device: str | torch.device = "auto") -> int:
    """Bytes that are free on the device."""
    found = resolve_device(device)
    return int(torch.cuda.mem_get_info(found)[0]) if found.type == "cuda" else memory_available()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds for one image of `image_size`: to read it, forward through the model, and as part of a training step."""

    image_size: tuple[int, int]
    read: float
    forward: float
    step: float


def measure_speed(run: RunConfig, dataset: Dataset, *, device: str | torch.device, seconds: float) -> Speed:
    """Measure steps and forward passes on random images of the run's size, and read a few images; takes about `seconds`."""
    here, batch = World(device=resolve_device(device)), run.data.loader.batch_size
    step, _ = _measure_step(run, dataset, here, batch=batch, most=batch, seconds=seconds)
    read = _step_with_reading(run, here, 0.0, _measure_reading(run, dataset, here, batch=batch))
    forward = _measure_forward(run, dataset, here, rows=min(batch, _FORWARD))
    return Speed(image_size=run.model.image_size, read=read / batch, forward=forward, step=step / batch)


def _measure_forward(run: RunConfig, dataset: Dataset, here: World, *, rows: int) -> float:
    """Seconds for one image forward through the model, measured with a batch of `rows`."""
    backend = plain_backend(build(run.model), run.preprocess, device=here.device)
    images_BHWC = random_batch(run, dataset, rows, seed=0).images_BHWC

    def timed() -> float:
        began = time.perf_counter()
        backend.run(images_BHWC, features=True)
        return time.perf_counter() - began

    timed()
    return statistics.median(timed() for _ in range(_REPEATS)) / len(images_BHWC)


def fit_seconds(model: ModelConfig, images: int) -> float:
    """Seconds to fit a head to the features of so many images, estimated."""
    return _FIT_SECONDS * images * model.feature_width * model.num_classes


def _measure_head(run: RunConfig, dataset: Dataset, here: World, ranks: int, images: int, read: float, rows: int) -> float:
    """Seconds of a fitted head: every rank reads its part of the images and runs the model over them, then the head is fitted.

    `read` are the seconds in which one process reads its part of a batch.
    """
    images = min(run.train.head_images or images, images)
    read /= -(-run.data.loader.batch_size // ranks)
    forward = _measure_forward(run, dataset, here, rows=min(rows, _FORWARD))
    return -(-images // ranks) * _step_with_reading(run, here, forward, read) + fit_seconds(run.model, images)


def _measure_step(
    run: RunConfig, dataset: Dataset, here: World, *, batch: int, most: int, seconds: float | None = None
) -> tuple[float, int]:
    """Seconds of a step with a whole batch, and the number of images that it was measured with."""
    seconds = _SECONDS if seconds is None else seconds
    alone = replace(
        run,
        start=run.start if run.train.lwf else None,
        train=replace(
            run.train,
            head="zero",
            steps=max(run.train.steps, 1),
            strategy="single",
            offload="none",
            micro_batch=0,
            progressive_resizing=(),
            patch_sizes=(),
        ),
    )
    state = create_state(alone, dataset, here)

    def timed(rows: int) -> float:
        images = random_batch(run, dataset, rows, seed=state.step)
        began = time.perf_counter()
        update(state, images, epoch_length=rows)
        return time.perf_counter() - began

    first = min(_FIRST, most)
    cold = timed(first)
    if cold > _PATIENCE * seconds:
        return cold * batch / first, first
    small = timed(first)
    # Several images at once are never slower than one by one, so this keeps to the time; a second image tells the fixed cost.
    rows = max(min(2, most, batch), min(most, int(seconds / _REPEATS / max(small, 1e-6) * first)))
    large = statistics.median(timed(rows) for _ in range(_REPEATS if small * rows < seconds else 1))
    if rows == first:
        return large * batch / rows, rows
    # A step has a fixed cost and a cost per image. A fixed cost above three quarters is the noise of a busy machine.
    each = (large - small) / (rows - first)
    each = each if each * rows > large / 4 else large / rows
    return large + each * (batch - rows), rows


def random_batch(run: RunConfig, dataset: Dataset, rows: int, *, seed: int) -> Batch:
    """Random images of the run's size, with random labels, masks or boxes."""
    rng = np.random.default_rng(seed)
    images_BHWC = rng.integers(0, 256, (rows, *run.model.image_size, run.model.channels), np.uint8)
    if run.preprocess.resize == "native" and isinstance(run.model, ViTConfig):
        patch = run.model.patch_size
        images_BHWC = np.stack([to_rows(image, patch, budget_of(run.model.image_size, patch)) for image in images_BHWC])
    classes = max(len(dataset.labels), 1)
    labels_B = rng.integers(0, classes, rows)
    labels = np.eye(classes, dtype=np.float32)[labels_B] if dataset.multi_label else labels_B
    masks_BHW = rng.integers(0, classes, images_BHWC.shape[:3], np.uint8) if run.task == "segment" else None
    boxes_BM6: BatchBoxes | None = None
    if run.task == "detect":
        boxes_BM6 = np.broadcast_to(np.array([0, 0.25, 0.25, 0.75, 0.75, 0], np.float32), (rows, 3, 6)).copy()
    return Batch(
        images_BHWC=images_BHWC,
        labels=labels,
        index_B=np.arange(rows),
        epoch=0,
        position=rows,
        masks_BHW=masks_BHW,
        boxes_BM6=boxes_BM6,
    )


def _measure_reading(run: RunConfig, dataset: Dataset, here: World, *, batch: int) -> float:
    """Seconds in which one process reads and augments a batch, measured with a few images of the dataset."""
    rows = min(batch, _READ)
    few = replace(run.data.loader, batch_size=rows, workers=0, repeats=1, cache="none", corrupt="skip", corrupt_budget=0.99)
    loader = training_loader(replace(run, data=replace(run.data, loader=few)), dataset, here)
    with loader, loader.batches() as stream:
        next(stream)
        began = time.perf_counter()
        next(stream)
        return (time.perf_counter() - began) * batch / rows


def _step_with_reading(run: RunConfig, here: World, step: float, read: float) -> float:
    """Seconds from one step to the next: on a GPU the slower of step and reading; on a CPU both need the same cores."""
    workers = run.data.loader.workers
    if workers == 0:
        return step + read
    if here.device.type != "cpu":
        return max(step, read / workers)
    return step + read / min(workers, _cores())
