"""VTAB-1k by a linear probe: 19 tasks, 800 images to train on, 200 to choose by, and the whole test split to evaluate on.

The paper's Table 9 fine-tunes the whole model on those 1,000 images; a probe leaves the model as it is and fits a linear
classifier to its features. It takes seconds once the features are extracted, and says less about tasks far from the model's
pre-training.

VTAB takes the first 800 images of its train split, the first 200 of its val split and its whole test split in the order of
TensorFlow Datasets, which is by a hash of each sample's key and available only from its record files. Here the order is by the hash
of each image's content: as good a shuffle, the same on every machine and in every container, but other images. The published choice
comes with lists (`vitlab.data.readers.vtab`) or a file of indices (`read_splits`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.evaluation import EvaluateConfig, VtabConfig
from vitlab.config.published import TABLE_9, VtabGroup
from vitlab.config.serialize import Json
from vitlab.data.batch import Failure
from vitlab.data.catalog.sets import find_set
from vitlab.data.dataset import SPLITS, UNDECLARED, ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.data.readers.array_files import has_camelyon, open_camelyon
from vitlab.data.readers.tfrecord import open_dmlab
from vitlab.data.readers.vtab import (
    has_lists,
    has_retinopathy,
    open_clevr,
    open_dsprites,
    open_kitti,
    open_lists,
    open_norb,
    open_retinopathy,
)
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError, VitlabError
from vitlab.evaluation.evaluation import engine_for
from vitlab.evaluation.features import Features, FeatureStore, extract_features, model_key
from vitlab.evaluation.frozen import Probe, percent, probe
from vitlab.inference.backends import evaluating
from vitlab.inference.engine import Engine
from vitlab.io.display import Block, Displayed, ProgressCallback, printable, silent
from vitlab.io.files import LIST_FILE, read_bytes

Indices = NDArray[np.int64]
Entries = Sequence[int | str]

SPLIT_KEYS = ("train800", "val200", "test")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VtabSplits:
    """The images of each split, by their indices in the whole dataset, and `how` they were chosen."""

    train: Indices
    val: Indices
    test: Indices
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficialSplits:
    """The official train and test splits; `percent` of train stays train and the rest is val, if no val split is declared.

    `test` names the split to test on: CLEVR's own test images have no scenes, so its val split is used. `halve_test` makes val of
    the first half of the official test split (small NORB, whose train split has other objects than its test split).
    """

    percent: int
    test: Literal["test", "val"] = "test"
    halve_test: bool = False

    def split(self, dataset: ImageDataset, order: Indices) -> tuple[Indices, Indices, Indices]:
        """Train, val and test, each in `order`."""
        train, val, test = (order[dataset.splits[order] == part] for part in (TRAIN, VAL, TEST))
        if self.test == "val" and len(val) and not len(test):
            val, test = val[:0], val
        _declared(train, "train", dataset)
        _declared(test, self.test, dataset)
        if self.halve_test:
            half = len(test) // 2
            return train, test[:half], test[half:]
        if len(val) or self.percent == 100:
            _declared(val, "val", dataset)
            return train, val, test
        kept = self.percent * len(train) // 100
        return train[:kept], train[kept:], test


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentSplits:
    """No official splits: `train` percent, then `val` percent, and the rest is test; declared splits are used if there are any."""

    train: int
    val: int

    def split(self, dataset: ImageDataset, order: Indices) -> tuple[Indices, Indices, Indices]:
        """Train, val and test, each in `order`."""
        if np.any(dataset.splits != UNDECLARED):
            return OfficialSplits(percent=100 * self.train // (self.train + self.val)).split(dataset, order)
        first = self.train * len(order) // 100
        second = (self.train + self.val) * len(order) // 100
        return order[:first], order[first:second], order[second:]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThirtyPerClass:
    """Thirty training images per class, as is usual for Caltech-101, of which `percent` stay train; the rest is test."""

    percent: int
    each: int = 30

    def split(self, dataset: ImageDataset, order: Indices) -> tuple[Indices, Indices, Indices]:
        """Train, val and test, each in `order`."""
        if np.any(dataset.splits != UNDECLARED):
            return OfficialSplits(percent=self.percent).split(dataset, order)
        codes = dataset.table.codes[order]
        taken = np.zeros(len(order), np.bool_)
        for code, name in enumerate(dataset.labels):
            of_class = np.flatnonzero(codes == code)
            if len(of_class) <= self.each:
                raise DataError(f"{printable(name)} has {len(of_class)} images, which leaves none for test after {self.each}")
            taken[of_class[: self.each]] = True
        trained, test = order[taken], order[~taken]
        kept = self.percent * len(trained) // 100
        return trained[:kept], trained[kept:], test


Division = OfficialSplits | PercentSplits | ThirtyPerClass


def divide(dataset: ImageDataset, division: Division, config: VtabConfig) -> VtabSplits:
    """Split a dataset by VTAB's rule, in the order of the hash of content."""
    order = hash_order(dataset)
    train, val, test = division.split(dataset, order)
    for name, part, wanted in (("train", train, config.train), ("val", val, config.val), ("test", test, 1)):
        if len(part) < wanted:
            raise DataError(f"the {name} split has {len(part):,} images, and VTAB takes {wanted:,} of it")
    kept = len(test) if config.test is None else config.test
    return VtabSplits(train=train[: config.train], val=val[: config.val], test=np.sort(test[:kept]), how="by the hash of content")


def divide_by_lists(dataset: ImageDataset, config: VtabConfig) -> VtabSplits:
    """The splits that the lists of VTAB-1k declare; the test split is cut if fewer images are asked for."""
    parts = [np.flatnonzero(dataset.splits == part).astype(np.int64) for part in (TRAIN, VAL, TEST)]
    return VtabSplits(train=parts[0], val=parts[1], test=_cut(parts[2], dataset, config), how="published lists")


def read_splits(path: Path, names: Mapping[str, str]) -> dict[str, dict[str, Entries]]:
    """The splits of each task from a JSON file: {"Pets": {"train800": [...], "val200": [...], "test": [...]}, ...}.

    An image is its index in the published dataset, or the end of its path. `names` maps every name of a task, in lower case, to the
    task's own.
    """
    try:
        found_tasks = json.loads(read_bytes(path, most=LIST_FILE))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{printable(str(path))} cannot be read as JSON") from error
    if not isinstance(found_tasks, dict):
        raise DataError(f"{printable(str(path))} is not a JSON object of tasks")
    found: dict[str, dict[str, Entries]] = {}
    for called, parts in found_tasks.items():
        where = f"{printable(str(path))}, {printable(called)}"
        task = names.get(called.lower())
        if task is None:
            raise DataError(f"{where}: VTAB has no such task", hint=f"tasks are {', '.join(dict.fromkeys(names.values()))}")
        if task in found:
            raise DataError(f"{where}: the task appears twice, under two names")
        if not isinstance(parts, dict) or not {"train800", "val200"} <= set(parts) <= set(SPLIT_KEYS):
            raise DataError(f"{where} must have train800, val200 and optionally test")
        for key, entries in parts.items():
            plain = isinstance(entries, list) and all(type(entry) in (int, str) for entry in entries)
            if not plain or not entries:
                raise DataError(f"{where}.{key} must be a list of indices or of paths of images")
        found[task] = parts
    return found


def divide_by_file(dataset: ImageDataset, division: Division, parts: Mapping[str, Entries], config: VtabConfig) -> VtabSplits:
    """The splits that a file lists; the test split by VTAB's rule if it lists none. Splits must not share an image."""
    finder = _Finder(dataset)
    train, val = finder.find(parts["train800"], "train800"), finder.find(parts["val200"], "val200")
    how = "split file"
    if "test" in parts:
        test = finder.find(parts["test"], "test")
    else:
        test = division.split(dataset, hash_order(dataset))[2]
        how = "split file, test by the hash of content" if np.all(dataset.splits == UNDECLARED) else "split file, official test"
    for one, other, names in (
        (train, val, "train800 and val200"),
        (train, test, "train800 and test"),
        (val, test, "val200 and test"),
    ):
        shared = np.intersect1d(one, other)
        if len(shared):
            raise DataError(f"{names} share {len(shared):,} images, the first {printable(dataset.name(int(shared[0])))}")
    return VtabSplits(train=train, val=val, test=_cut(np.sort(test), dataset, config), how=how)


def hash_order(dataset: ImageDataset) -> Indices:
    """The images' indices in the order of the hash of their content; copies of an image keep their order."""
    digests = np.ascontiguousarray(dataset.digests())
    return np.argsort(digests.view(f"S{digests.shape[1]}")[:, 0], kind="stable").astype(np.int64)


def _cut(test: Indices, dataset: ImageDataset, config: VtabConfig) -> Indices:
    if config.test is None or config.test >= len(test):
        return test
    return np.sort(test[hash_order(dataset.take(test))[: config.test]])


def _declared(part: Indices, name: str, dataset: ImageDataset) -> None:
    if not len(part):
        declared = [SPLITS[code] for code in sorted(set(dataset.splits.tolist()) - {UNDECLARED})]
        has = f"declares {' and '.join(declared)}" if declared else "declares no split"
        raise DataError(f"the data {has}, and VTAB takes its official {name} split")


class _Finder:
    """Finds images by their index or by the end of their path."""

    def __init__(self, dataset: ImageDataset) -> None:
        self._dataset = dataset
        self._by_name: dict[str, list[int]] | None = None

    def find(self, entries: Entries, part: str) -> Indices:
        found = [self._one(entry, part) for entry in entries]
        if len(set(found)) != len(found):
            twice = next(entry for place, entry in enumerate(entries) if found[place] in found[:place])
            raise DataError(f"{part} lists {printable(str(twice))} twice")
        return np.array(found, np.int64)

    def _one(self, entry: int | str, part: str) -> int:
        if isinstance(entry, int):
            if not 0 <= entry < len(self._dataset):
                raise DataError(f"{part} lists image {entry:,} of {len(self._dataset):,}")
            return entry
        if self._by_name is None:
            self._by_name = {}
            for index in range(len(self._dataset)):
                self._by_name.setdefault(self._dataset.name(index).rpartition("/")[2], []).append(index)
        last = entry.rpartition("/")[2]
        matching = [index for index in self._by_name.get(last, ()) if f"/{self._dataset.name(index)}".endswith(f"/{entry}")]
        if len(matching) != 1:
            raise DataError(f"{part} lists {printable(entry)}, which matches {len(matching)} images")
        return matching[0]


GROUPS: tuple[VtabGroup, ...] = ("natural", "specialized", "structured")

PAPER_COLUMNS = ("H/14 JFT", "L/16 JFT", "L/16 I21k")
"""The models of Table 9, in the order of `VtabTask.paper`."""

_ENDINGS = ("", ".zip", ".npz", ".csv", ".parquet", ".tar", ".tar.gz")


@dataclass(frozen=True, slots=True)
class VtabTask:
    """One of the 19 tasks.

    `set` is the name of its dataset in the catalog, and `listed` that of its folder in the published VTAB-1k; both are
    searched for.
    """

    name: str
    set: str
    listed: str
    classes: int
    division: Division

    @property
    def group(self) -> VtabGroup:
        """The group of tasks that it belongs to."""
        return TABLE_9[self.name][0]

    @property
    def paper(self) -> tuple[float, float, float]:
        """Table 9: accuracy in percent of ViT-H/14 and ViT-L/16 from JFT, and of ViT-L/16 from ImageNet-21k, each fine-tuned."""
        return TABLE_9[self.name][1]

    def find(self, root: Path) -> Path | None:
        """Where its data is under `root`, or None."""
        if has_lists(root / self.listed):
            return root / self.listed
        places = [root / f"{name}{ending}" for name in (self.set, self.listed) for ending in _ENDINGS]
        return next((place for place in places if place.exists()), None)

    def open(self, place: Path) -> ImageDataset:
        """The whole dataset, from where it was found; DataError if it has other classes than the task."""
        if has_lists(place):
            return open_lists(place, classes=self.classes)
        dataset = _READERS[self.name](place) if self.name in _READERS else _any_form(self.set, place)
        if len(dataset.labels) != self.classes:
            raise DataError(f"{place} has {len(dataset.labels):,} classes, and {self.name} has {self.classes}")
        return dataset


def _any_form(name: str, place: Path) -> ImageDataset:
    """A dataset as the catalog downloads it, or in any form vitlab reads: class folders, a zip, a list, an .npz, Parquet."""
    spelling = find_set(name).spelling
    spec = str(place)
    if spelling is not None and place.is_dir():
        arranged = spelling.format(folder=place)
        kind, colon, rest = arranged.partition(":")
        if Path(rest if colon and "/" not in kind else arranged).exists():
            spec = arranged
    dataset = open_dataset(spec, split="all")
    assert isinstance(dataset, ImageDataset)
    return dataset


def _camelyon(place: Path) -> ImageDataset:
    return open_camelyon(place) if place.is_dir() and has_camelyon(place) else _any_form("pcam", place)


def _retinopathy(place: Path) -> ImageDataset:
    return open_retinopathy(place) if place.is_dir() and has_retinopathy(place) else _any_form("retinopathy", place)


# Tasks whose published files need their own reader.
_READERS: dict[str, Callable[[Path], ImageDataset]] = {
    "Camelyon": _camelyon,
    "Retinopathy": _retinopathy,
    "Clevr-Count": partial(open_clevr, task="count"),
    "Clevr-Dist": partial(open_clevr, task="distance"),
    "DMLab": open_dmlab,
    "dSpr-Loc": partial(open_dsprites, task="x"),
    "dSpr-Ori": partial(open_dsprites, task="orientation"),
    "KITTI-Dist": open_kitti,
    "sNORB-Azim": partial(open_norb, task="azimuth"),
    "sNORB-Elev": partial(open_norb, task="elevation"),
}

_OFFICIAL = OfficialSplits(percent=100)
_CLEVR = OfficialSplits(percent=90, test="val")
_NORB = OfficialSplits(percent=100, halve_test=True)
_SPRITES = PercentSplits(train=80, val=10)
_SATELLITE = PercentSplits(train=60, val=20)

# In the order of Table 9. Splits are those of VTAB's code; only the order of samples differs.
TASKS: tuple[VtabTask, ...] = (
    VtabTask("Caltech101", "caltech101", "caltech101", 102, ThirtyPerClass(percent=90)),
    VtabTask("CIFAR-100", "cifar100", "cifar", 100, OfficialSplits(percent=90)),
    VtabTask("DTD", "dtd", "dtd", 47, _OFFICIAL),
    VtabTask("Flowers102", "flowers102", "oxford_flowers102", 102, _OFFICIAL),
    VtabTask("Pets", "pets", "oxford_iiit_pet", 37, OfficialSplits(percent=80)),
    VtabTask("Sun397", "sun397", "sun397", 397, PercentSplits(train=70, val=10)),
    VtabTask("SVHN", "svhn", "svhn", 10, OfficialSplits(percent=90)),
    VtabTask("Camelyon", "pcam", "patch_camelyon", 2, _OFFICIAL),
    VtabTask("EuroSAT", "eurosat", "eurosat", 10, _SATELLITE),
    VtabTask("Resisc45", "resisc45", "resisc45", 45, _SATELLITE),
    VtabTask("Retinopathy", "retinopathy", "diabetic_retinopathy", 5, _OFFICIAL),
    VtabTask("Clevr-Count", "clevr", "clevr_count", 8, _CLEVR),
    VtabTask("Clevr-Dist", "clevr", "clevr_dist", 6, _CLEVR),
    VtabTask("DMLab", "dmlab", "dmlab", 6, _OFFICIAL),
    VtabTask("dSpr-Loc", "dsprites", "dsprites_loc", 16, _SPRITES),
    VtabTask("dSpr-Ori", "dsprites", "dsprites_ori", 16, _SPRITES),
    VtabTask("KITTI-Dist", "kitti", "kitti", 4, PercentSplits(train=80, val=10)),
    VtabTask("sNORB-Azim", "smallnorb", "smallnorb_azi", 18, _NORB),
    VtabTask("sNORB-Elev", "smallnorb", "smallnorb_ele", 9, _NORB),
)


SPLITS_NAME = "vtab-splits.json"
PROTOCOL = "a linear probe on frozen features from 800 + 200 images of each task; the paper's Table 9 fine-tunes the models on them"


@dataclass(frozen=True, slots=True, kw_only=True)
class VtabTaskResult:
    """The result of one task. `counts` are images of train, val and test; `how` says how they were chosen.

    `finetuned` is the accuracy, 0 to 1, of the model fine-tuned on train and val, if that was done too.
    """

    task: VtabTask
    place: Path
    counts: tuple[int, int, int]
    how: str
    probe: Probe
    finetuned: float | None = None
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """From 0 to 1."""
        return self.probe.accuracy

    def to_json(self) -> dict[str, Json]:
        """Everything but the weights of the probe."""
        return {
            "task": self.task.name,
            "group": self.task.group,
            "place": str(self.place),
            "images_chosen": self.how,
            "train": self.counts[0],
            "val": self.counts[1],
            "test": self.counts[2],
            "paper": dict(zip(PAPER_COLUMNS, self.task.paper, strict=True)),
            "unreadable": [{"name": failure.name, "reason": failure.reason} for failure in self.failures],
            "notes": list(self.notes),
            "finetuned": self.finetuned,
            **self.probe.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean accuracy (from 0 to 1) over `found` of `total` tasks, and the paper's, in percent, over the same ones.

    It is the benchmark's number only if it is `complete`. `finetuned` is None unless all of the found were fine-tuned.
    """

    name: str
    found: int
    total: int
    accuracy: float | None
    paper: tuple[float, float, float] | None
    finetuned: float | None = None

    @property
    def complete(self) -> bool:
        """Whether every task of the group was evaluated."""
        return self.found == self.total

    def to_json(self) -> dict[str, Json]:
        """`complete` says whether this is the benchmark's mean; `paper` is over the same tasks."""
        return {
            "group": self.name,
            "complete": self.complete,
            "tasks": self.found,
            "total": self.total,
            "accuracy": self.accuracy,
            "finetuned": self.finetuned,
            "paper": None if self.paper is None else dict(zip(PAPER_COLUMNS, self.paper, strict=True)),
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Vtab(Displayed):
    """The tasks that were evaluated, those whose data is missing (and where it was searched), and those that failed (and why)."""

    results: tuple[VtabTaskResult, ...]
    missing: tuple[tuple[VtabTask, str], ...]
    failed: tuple[tuple[VtabTask, str], ...]

    def means(self) -> tuple[Mean, ...]:
        """Of each group, and of all 19."""
        groups = [(name, [task for task in TASKS if task.group == name]) for name in GROUPS]
        return tuple(self._mean(name, tasks) for name, tasks in [*groups, ("all", list(TASKS))])

    def _mean(self, name: str, tasks: list[VtabTask]) -> Mean:
        found = [result for result in self.results if result.task in tasks]
        if not found:
            return Mean(name=name, found=0, total=len(tasks), accuracy=None, paper=None)
        columns = list(zip(*(result.task.paper for result in found), strict=True))
        tuned = [result.finetuned for result in found if result.finetuned is not None]
        return Mean(
            name=name,
            found=len(found),
            total=len(tasks),
            accuracy=sum(result.accuracy for result in found) / len(found),
            paper=(_mean(columns[0]), _mean(columns[1]), _mean(columns[2])),
            finetuned=sum(tuned) / len(tuned) if len(tuned) == len(found) else None,
        )

    def to_json(self) -> dict[str, Json]:
        """Every result, what is missing, and the means, as plain values."""
        return {
            "protocol": PROTOCOL,
            "tasks": [result.to_json() for result in self.results],
            "missing": [{"task": task.name, "group": task.group, "why": why} for task, why in self.missing],
            "failed": [{"task": task.name, "group": task.group, "why": why} for task, why in self.failed],
            "means": [mean.to_json() for mean in self.means()],
        }

    def tables(self) -> Iterator[Block]:
        """A row for each of the 19 tasks, evaluated or not, and for the means, beside the paper's Table 9."""
        evaluated = {result.task.name: result for result in self.results}
        failed = {task.name for task, _ in self.failed}
        rows: list[dict[str, Json]] = []
        for task in TASKS:
            result = evaluated.get(task.name)
            how = "failed" if task.name in failed else "missing" if result is None else result.how
            accuracy = None if result is None else result.accuracy
            test = "-" if result is None else f"{result.counts[2]:,}"
            rows.append(_row(task.name, task.group, accuracy, task.paper, test=test, how=how))
            if self.finetuned:
                rows[-1] = _with_finetuned(rows[-1], None if result is None else result.finetuned)
        for mean in self.means():
            how = f"all {mean.total} tasks" if mean.complete else f"PARTIAL: {mean.found} of {mean.total} tasks"
            rows.append(_row("mean", mean.name, mean.accuracy, mean.paper or (None, None, None), test="", how=how))
            if self.finetuned:
                rows[-1] = _with_finetuned(rows[-1], mean.finetuned)
        yield rows

    @property
    def finetuned(self) -> bool:
        """Whether models were fine-tuned on the tasks, too."""
        return any(result.finetuned is not None for result in self.results)

    def notes(self) -> Iterator[str]:
        """What a reader of the table must know, a sentence each."""
        yield PROTOCOL
        if any(result.how.startswith("by") for result in self.results):
            yield "images chosen by the hash of content are not the published ones: give lists or vtab-splits.json"
        for result in self.results:
            yield from (f"{result.task.name}: {line}" for line in result.notes)
            if not result.probe.classifier.converged:
                gradient = result.probe.classifier.gradient
                yield f"{result.task.name}: the probe has not converged (gradient {gradient:.1e})"
        yield from (f"failed: {task.name}: {why}" for task, why in self.failed)
        if self.missing:
            yield f"missing: {', '.join(task.name for task, _ in self.missing)} ({len(self.missing)} of {len(TASKS)} tasks)"


def _row(name: str, group: str, accuracy: float | None, paper: Sequence[float | None], *, test: str, how: str) -> dict[str, Json]:
    columns = {column: "-" if value is None else f"{value:.1f}" for column, value in zip(PAPER_COLUMNS, paper, strict=True)}
    shown = "-" if accuracy is None else percent(accuracy)
    return {"task": name, "group": group, "accuracy": shown, **columns, "test": test, "images_chosen": how}


def _with_finetuned(row: dict[str, Json], accuracy: float | None) -> dict[str, Json]:
    """The row with one more column after the probe's accuracy."""
    shown = "-" if accuracy is None else percent(accuracy)
    made: dict[str, Json] = {}
    for name, value in row.items():
        made[name] = value
        if name == "accuracy":
            made["fine-tuned"] = shown
    return made


def vtab(
    checkpoint: Checkpoint,
    root: Path,
    config: VtabConfig = VtabConfig(),  # noqa: B008 (a frozen value)
    *,
    splits: Path | None = None,
    reading: EvaluateConfig = EvaluateConfig(),  # noqa: B008
    cache: bool = True,
    progress: ProgressCallback = silent,
) -> Vtab:
    """Evaluate every task whose data is under `root`: a folder (or file) for each dataset, by the catalog's name or VTAB-1k's.

    `splits` is a JSON file of the images of each split, `root/vtab-splits.json` unless given. A task that fails does not stop the
    others.
    """
    if not root.is_dir():
        raise DataError(f"there is no folder {root}", hint="it holds a folder for each dataset, by the names of vitlab data list")
    chosen = chosen_splits(root, splits)
    store = FeatureStore(model_key(checkpoint)) if cache else None
    results, missing, failed = [], [], []
    with evaluating(checkpoint.model):
        engine = engine_for(checkpoint, reading)
        job = _Job(checkpoint=checkpoint, config=config, reading=reading, store=store, engine=engine, progress=progress)
        for task in TASKS:
            place = task.find(root)
            if place is None:
                absent = " and ".join(f"no {name}" for name in dict.fromkeys((task.set, task.listed)))
                missing.append((task, f"{absent} in {root}"))
                continue
            try:
                results.append(_evaluate_task(task, place, chosen.get(task.name), job))
            except VitlabError as error:
                failed.append((task, str(error)))
    if not results:
        first = f"; {failed[0][0].name}: {failed[0][1]}" if failed else ""
        raise DataError(
            f"none of the 19 VTAB tasks can be evaluated from {root}{first}",
            hint="give the dataset in its published form, or as class folders"
            if failed
            else "name a dataset's folder as `vitlab data list` does, or as in VTAB-1k (pets or oxford_iiit_pet)",
        )
    return Vtab(results=tuple(results), missing=tuple(missing), failed=tuple(failed))


def with_vtab_preprocess(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with whole images squashed to its input size, as in VTAB's code: what matters may be at the border."""
    return replace(checkpoint, preprocess=replace(checkpoint.preprocess, resize="squash"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    checkpoint: Checkpoint
    config: VtabConfig
    reading: EvaluateConfig
    store: FeatureStore | None
    engine: Engine
    progress: ProgressCallback


def open_task(
    task: VtabTask, place: Path, chosen: Mapping[str, Entries] | None, config: VtabConfig
) -> tuple[ImageDataset, VtabSplits]:
    """The whole dataset of a task and its splits: those of a file, of published lists, or by VTAB's rule."""
    dataset = task.open(place)
    if chosen is not None:
        return dataset, divide_by_file(dataset, task.division, chosen, config)
    if has_lists(place):
        return dataset, divide_by_lists(dataset, config)
    return dataset, divide(dataset, task.division, config)


def _evaluate_task(task: VtabTask, place: Path, chosen: Mapping[str, Entries] | None, job: _Job) -> VtabTaskResult:
    job.progress(f"{task.name}, opening", 0, None)
    dataset, divided = open_task(task, place, chosen, job.config)
    parts: list[Features] = []
    for name, indices in (("train", divided.train), ("val", divided.val), ("test", divided.test)):
        parts.append(
            extract_features(
                job.checkpoint,
                dataset.take(indices),
                config=job.reading,
                store=job.store,
                engine=job.engine,
                description=f"{task.name}, {name}",
                progress=job.progress,
            )
        )
    train, val, test = parts
    fitted = probe(train, val, test, job.config.probe, progress=lambda fits, _: job.progress(f"{task.name}, fits", fits, None))
    return VtabTaskResult(
        task=task,
        place=place,
        counts=(train.total, val.total, test.total),
        how=divided.how,
        probe=fitted,
        failures=tuple(failure for part in parts for failure in part.failures),
        notes=tuple(dict.fromkeys((*dataset.notes, *(note for part in parts for note in part.notes)))),
    )


def chosen_splits(root: Path, given: Path | None) -> dict[str, dict[str, Entries]]:
    """The images of each split that a file names, by task: `given`, or `root/vtab-splits.json` if it exists."""
    path = root / SPLITS_NAME if given is None else given
    if given is None and not path.exists():
        return {}
    names: dict[str, str] = {}
    for task in TASKS:
        for called in (task.name, task.listed, task.set):
            names.setdefault(called.lower(), task.name)
    for shared in [task.set for task in TASKS if sum(other.set == task.set for other in TASKS) > 1]:
        names.pop(shared, None)  # clevr is two tasks
    return read_splits(path, names)


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)
