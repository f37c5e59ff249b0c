"""What a run will take, before it is begun: counted where it can be counted, measured where it must be.

The time of an update is measured on random images of the run's size, by a few real updates of the real model with random
values; where a whole batch would take too long, by fewer images, and scaled. Reading the data is timed on the data itself.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch

from vitlab.checkpoints import describe
from vitlab.config.data import SplitRule
from vitlab.config.overrides import DataFacts, Machine, StartFacts
from vitlab.config.run import RunConfig
from vitlab.config.train import mean_area
from vitlab.data.batch import Batch
from vitlab.data.dataset import PARTS, Dataset, ListedDataset
from vitlab.data.decode import decode
from vitlab.data.opening import open_dataset
from vitlab.data.synthetic.dataset import SyntheticDataset
from vitlab.data.workers.memory import memory_available
from vitlab.errors import DataError
from vitlab.models.cost import Cost, cost
from vitlab.training.distributed import World, ranks_around, shares
from vitlab.training.state import assemble, training_loader
from vitlab.training.trainer import Stepper

# What a recipe needs to know before a run begins: of the images, of the checkpoint, of this machine. Nothing is decided here.

_LOOKED_AT = 16  # images, for their size and colour


def survey(spec: str, *, rule: SplitRule | None = None) -> DataFacts:
    """The facts of the data that `spec` names.

    The number of images to learn from is exact where the data declares its parts; where they are made by `rule`, it is what
    the shares come to, since to divide them every image would have to be read.
    """
    rule = rule or SplitRule()
    whole = open_dataset(spec, split="all", rule=rule)
    if isinstance(whole, SyntheticDataset):
        train = len(open_dataset(spec, split="train", rule=rule))
        parts: tuple[str, ...] = ("train", *(["val"] if rule.val else []), *(["test"] if rule.test else []))
    else:
        assert isinstance(whole, ListedDataset)
        train, parts = _divided(whole, rule, spec)
    channels, side = _looks(whole)
    return DataFacts(
        dataset=spec,
        images=max(train, 1),
        classes=len(whole.labels),
        channels=channels,
        side=side,
        multi_label=whole.multi_label,
        imbalance=_imbalance(whole),
        splits=parts,
    )


def _divided(whole: ListedDataset, rule: SplitRule, spec: str) -> tuple[int, tuple[str, ...]]:
    """How many images are for training, and which parts there are."""
    counts = {part: int(np.count_nonzero(whole.parts == number)) for number, part in enumerate(PARTS)}
    declared = {part for part, count in counts.items() if count}
    if declared and "train" not in declared:
        raise DataError(f"{spec} has no train part: it declares {' and '.join(sorted(declared))}")
    made = {"val"} if declared and "val" not in declared else set() if declared else {"val", "test"}
    shares = {"val": rule.val, "test": rule.test}
    pool = counts["train"] if declared else len(whole)
    held = sum(shares[part] for part in made)
    present = {"train"} | declared | {part for part in made if shares[part]}
    return round(pool * (1 - held)), tuple(part for part in PARTS if part in present)


def _looks(dataset: Dataset) -> tuple[int, int]:
    """Channels (1 where all images looked at are grey, else 3) and the median of their shorter sides in pixels."""
    colours, sides = [], []
    for index in np.unique(np.linspace(0, len(dataset) - 1, _LOOKED_AT).astype(int)).tolist():
        sample = dataset[index]
        try:
            image_HWC = decode(sample.content, name=sample.name) if isinstance(sample.content, bytes) else sample.content
        except DataError:
            continue  # one that cannot be read is told when its turn comes
        sides.append(min(image_HWC.shape[:2]))
        colours.append(_has_colour(image_HWC))
    if not sides:
        raise DataError(f"none of {_LOOKED_AT} images could be read", hint="`vitlab data check` lists what is wrong")
    return (3 if any(colours) else 1), round(statistics.median(sides))


def _has_colour(image_HWC: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bool:
    """Whether channels differ anywhere by more than what compression does."""
    if image_HWC.shape[2] < 3:
        return False
    rgb = image_HWC[..., :3].astype(np.int16)
    return bool((rgb.max(axis=2) - rgb.min(axis=2)).max() > 8)


def _imbalance(dataset: Dataset) -> float:
    """The largest class over the smallest that has an image at all."""
    if isinstance(dataset, SyntheticDataset) or not dataset.labels:
        return 1.0
    counts = np.bincount([code for index in range(len(dataset)) for code in _codes(dataset.label(index))])
    present = counts[counts > 0]
    return float(present.max() / present.min()) if present.size else 1.0


def _codes(label: int | tuple[int, ...] | None) -> Iterable[int]:
    return () if label is None else label if isinstance(label, tuple) else (label,)


def start_facts(path: str) -> StartFacts:
    """What the checkpoint at a path, or at `hub:owner/name`, holds, from its headers."""
    said = describe(path)
    return StartFacts(path=path, model=said.config, preprocess=said.preprocess)


def this_machine() -> Machine:
    """The cores this process may use, and whether there is an accelerator."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return Machine(cores=cores, accelerator=torch.cuda.is_available())


_PATIENCE = 6.0  # seconds that measuring may take, about
_UPDATES = 3
_FIRST = 1  # images of the first update, which counts only where there is no time for more
_READ = 16  # images read from the data


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run in numbers. Times in seconds, None where it was not measured, for the reason in `notes`.

    `macs` are multiply-adds of one image forward; `exaflops` of the whole run by the paper's rule of 6 operations for each
    (Table 6). `ranks` processes share the work; `rank_parameters` is how many numbers each holds of the model: all of them unless
    the strategy is `fsdp`. `memory_bytes` is the estimate for one process: weights, gradients, optimiser, average and activations
    for `micro_batch` images, `memory_free` what there is. `checkpoint_bytes` is what one checkpoint takes on the disk.
    `step_seconds` is one update, measured with `measured_images` and scaled, on average where images grow; `read_seconds` a
    process's share of a batch, read by one process. Times are without the exchange between processes.
    `seconds` is all updates with reading beside them; looking at held-out images is not counted.
    """

    steps: int
    epochs: float
    images: int
    batch_size: int
    micro_batch: int
    parameters: int
    ranks: int
    rank_parameters: int
    macs: int
    exaflops: float
    memory_bytes: int
    memory_free: int
    checkpoint_bytes: int
    step_seconds: float | None
    read_seconds: float | None
    seconds: float | None
    measured_images: int
    notes: tuple[str, ...] = ()


def plan(run: RunConfig, *, data: DataFacts | None = None, ranks: int | None = None) -> Plan:
    """What the run will take on this machine; `data` are its images' facts where they are known already.

    `ranks` is among how many processes it will be shared out: under torchrun, without being told, as many as it started.
    """
    facts = data or survey(run.data.dataset, rule=run.data.rule)
    ranks = ranks or ranks_around()
    counted = _Needs(run, cost(run.model), ranks)
    batch = run.data.loader.batch_size
    own = -(-batch // ranks)
    rows = min(run.train.micro_batch or own, own)
    here = World(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    free = _free(here)
    whole = open_dataset(run.data.dataset, split="all", rule=run.data.rule)
    notes = list[str]()
    if run.train.strategy == "fsdp" and ranks == 1:
        notes.append("strategy='fsdp' shares the model out among the processes of torchrun, and here is one")
    needed = counted.memory(rows)
    if needed > free:
        fits = counted.fitting(own, free)
        advice = f"a micro-batch of {fits} would fit" if fits else "not even one image at a time fits"
        notes.append(f"about {needed / 2**30:.1f} GiB are needed and {free / 2**30:.1f} are free: {advice}")
    step_seconds, measured = None, 0
    alone = _Needs(run, counted.cost, 1)  # the measuring is done by one process, with the whole model
    if alone.memory(min(rows, _FIRST)) > free:
        notes.append("the time of an update was not measured, since the model does not fit into memory")
    else:
        step_seconds, measured = _measure(run, whole, here, batch=own, most=max(1, min(rows, alone.fitting(own, free))))
        step_seconds *= mean_area(run.train.growth)
        if measured < own and measured <= _FIRST:
            notes.append("the time of an update is that of a single image times the batch: rather too long")
    read_seconds = _read(run, whole, here, batch=own)
    seconds = None if step_seconds is None else run.train.steps * _together(run, here, step_seconds, read_seconds)
    return Plan(
        steps=run.train.steps,
        epochs=run.train.steps * batch / facts.images,
        images=facts.images,
        batch_size=batch,
        micro_batch=rows,
        parameters=counted.cost.parameters,
        ranks=ranks,
        rank_parameters=counted.held,
        macs=counted.cost.macs,
        exaflops=6 * counted.cost.macs * mean_area(run.train.growth) * run.train.steps * batch / 1e18,
        memory_bytes=needed,
        memory_free=free,
        checkpoint_bytes=counted.cost.weight_bytes() * (1 + _slots(run) + bool(run.train.average.decay)),
        step_seconds=step_seconds,
        read_seconds=read_seconds,
        seconds=seconds,
        measured_images=measured,
        notes=tuple(notes),
    )


def _slots(run: RunConfig) -> int:
    return 2 if run.train.optimizer.kind == "adamw" else 1


class _Needs:
    """The memory of one process: its own part of the model where there are parts, and the activations of its images."""

    def __init__(self, run: RunConfig, counted: Cost, ranks: int) -> None:
        self.run = run
        self.cost = counted
        self.held, self.gathered = counted.parameters, 0
        if run.train.strategy == "fsdp" and ranks > 1:
            parts = shares(run.model, run.train.precision, ranks=ranks)
            self.held, self.gathered = parts.parameters, parts.gathered

    def memory(self, rows: int) -> int:
        """Bytes to train with that many images at a time."""
        wide = 2 if self.run.train.precision == "bfloat16" else 4
        copies = 2 + _slots(self.run) + bool(self.run.train.average.decay)  # weights, gradients, slots, average
        return self.held * copies * 4 + (self.gathered + self.cost.training_copies + rows * self.cost.training_kept) * wide

    def fitting(self, rows: int, free: int) -> int:
        """The largest number of images at a time, halving from `rows`, that the estimate says fits, 0 for none."""
        while rows and self.memory(rows) > free:
            rows //= 2
        return rows


def _free(here: World) -> int:
    return int(torch.cuda.mem_get_info(here.device)[0]) if here.device.type == "cuda" else memory_available()


def _measure(run: RunConfig, dataset: Dataset, here: World, *, batch: int, most: int) -> tuple[float, int]:
    """Seconds of a whole batch's update, and by how many images that was measured."""
    alone = replace(run, start=None, train=replace(run.train, strategy="single", micro_batch=0, growth=()))
    players = assemble(alone, dataset, here, None)
    stepper = Stepper(players.model, players.optimizers, players.task, alone.train, here)

    def update(rows: int, step: int) -> float:
        batch = _images(run, dataset, rows, step)
        began = time.perf_counter()
        stepper.update(batch, step=step, batch_size=rows, rate=1e-6)
        return time.perf_counter() - began

    first = min(_FIRST, most)
    cold = update(first, 0)
    if cold > _PATIENCE:
        return cold * batch / first, first
    small = update(first, 1)
    # Several images at once are never slower than one by one, so this keeps to the time.
    rows = max(first, min(most, int(_PATIENCE / _UPDATES / max(small, 1e-6) * first)))
    large = statistics.median(update(rows, 2 + turn) for turn in range(_UPDATES))
    if rows == first:
        return large * batch / rows, rows
    # An update costs something once, whatever the batch, and something for each image.
    each = max(0.0, (large - small) / (rows - first))
    return large + each * (batch - rows), rows


def _images(run: RunConfig, dataset: Dataset, rows: int, seed: int) -> Batch:
    """Random images of the run's size, with labels of its kind."""
    rng = np.random.default_rng(seed)
    images_BHWC = rng.integers(0, 256, (rows, *run.model.image_size, run.model.channels), np.uint8)
    classes = max(len(dataset.labels), 1)
    labels_B = rng.integers(0, classes, rows)
    labels = np.eye(classes, dtype=np.float32)[labels_B] if dataset.multi_label else labels_B
    return Batch(images_BHWC=images_BHWC, labels=labels, index_B=np.arange(rows), epoch=0, position=rows, failed=())


def _read(run: RunConfig, dataset: Dataset, here: World, *, batch: int) -> float:
    """Seconds for one process to read and augment a batch, by a few images of the data itself."""
    rows = min(batch, _READ)
    few = replace(run.data.loader, batch_size=rows, workers=0, repeats=1, cache="none", corrupt="skip", corrupt_budget=0.99)
    loader = training_loader(replace(run, data=replace(run.data, loader=few)), dataset, here)
    with loader, loader.batches() as stream:
        next(stream)
        began = time.perf_counter()
        next(stream)
        return (time.perf_counter() - began) * batch / rows


def _together(run: RunConfig, here: World, step: float, read: float) -> float:
    """Seconds from one update to the next: beside an accelerator the slower of both; on a processor both want the same cores."""
    workers = run.data.loader.workers
    if workers == 0:
        return step + read
    if here.device.type != "cpu":
        return max(step, read / workers)
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return step + read / min(workers, cores)
