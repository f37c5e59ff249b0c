"""VTAB-1k by a linear probe: 19 tasks, 800 images to learn from, 200 to choose by, all of the test part to judge by.

The paper's Table 9 fine-tunes the whole model on those 1,000 images; a probe leaves it as it is and learns a linear rule on
its features. It takes seconds after the features, and says less about tasks far from what the model was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.evaluation import EvaluateConfig, VtabConfig
from vitlab.data.batch import Failure
from vitlab.data.catalog.sets import find_set
from vitlab.data.dataset import PARTS, UNDECLARED, ListedDataset
from vitlab.data.opening import open_dataset
from vitlab.data.readers.hdf5 import has_camelyon, open_camelyon
from vitlab.data.readers.retinopathy import has_retinopathy, open_retinopathy
from vitlab.data.readers.tfrecord import open_dmlab
from vitlab.data.readers.vtab import has_lists, open_clevr, open_dsprites, open_kitti, open_lists, open_norb
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError, VitlabError
from vitlab.evaluation.features import Features, FeatureStore, features_of, model_key
from vitlab.evaluation.probe import Probe, probe
from vitlab.io.names import printable
from vitlab.io.progress import ProgressCallback, silent

# Which images of a set VTAB trains on, chooses by and tests on.
#
# VTAB takes the first 800 of its train part, the first 200 of its val part and all of its test part in the order of TensorFlow
# Datasets, which is by a hash of each example's key and can be had from its record files only. Here the order is by the hash of
# each image's content: as good a shuffle, the same on every machine and in every container, but other images. The published
# choice comes with lists (`vitlab.data.readers.vtab`) or a file of indices (`read_splits`).

Indices = NDArray[np.int64]
Entries = Sequence[int | str]

SPLIT_KEYS = ("train800", "val200", "test")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Divided:
    """The images of each part, by their numbers in the whole set, and `how` they were chosen."""

    train: Indices
    val: Indices
    test: Indices
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainShare:
    """The official train and test parts; `percent` of train stays train and the rest is val, where no val is declared.

    `test` names the part that is tested on: CLEVR's own test images have no scenes, and its val is taken. `halve_test` makes
    val of the first half of the official test part (small NORB, whose train part has other objects than its test part).
    """

    percent: int
    test: Literal["test", "val"] = "test"
    halve_test: bool = False

    def parts(self, dataset: ListedDataset, order: Indices) -> tuple[Indices, Indices, Indices]:
        """Train, val and test, each in `order`."""
        train, val, test = (order[dataset.parts[order] == part] for part in (TRAIN, VAL, TEST))
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
class WholeShares:
    """No official parts: `train` percent, then `val` percent, and the rest is test; parts that are declared are taken."""

    train: int
    val: int

    def parts(self, dataset: ListedDataset, order: Indices) -> tuple[Indices, Indices, Indices]:
        """Train, val and test, each in `order`."""
        if np.any(dataset.parts != UNDECLARED):
            return TrainShare(percent=100 * self.train // (self.train + self.val)).parts(dataset, order)
        first = self.train * len(order) // 100
        second = (self.train + self.val) * len(order) // 100
        return order[:first], order[first:second], order[second:]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThirtyEach:
    """Thirty images of each class to train on, as is usual for Caltech-101, `percent` of which stay train; the rest is test."""

    percent: int
    each: int = 30

    def parts(self, dataset: ListedDataset, order: Indices) -> tuple[Indices, Indices, Indices]:
        """Train, val and test, each in `order`."""
        if np.any(dataset.parts != UNDECLARED):
            return TrainShare(percent=self.percent).parts(dataset, order)
        codes = dataset.table.codes[order]
        taken = np.zeros(len(order), np.bool_)
        for code, name in enumerate(dataset.labels):
            of_class = np.flatnonzero(codes == code)
            if len(of_class) <= self.each:
                raise DataError(f"{printable(name)} has {len(of_class)} images, which leaves none to test on after {self.each}")
            taken[of_class[: self.each]] = True
        trained, test = order[taken], order[~taken]
        kept = self.percent * len(trained) // 100
        return trained[:kept], trained[kept:], test


Division = TrainShare | WholeShares | ThirtyEach


def divide(dataset: ListedDataset, division: Division, config: VtabConfig) -> Divided:
    """The division of a set by VTAB's rule, in the order of the hash of content."""
    order = hash_order(dataset)
    train, val, test = division.parts(dataset, order)
    for name, part, wanted in (("train", train, config.train), ("val", val, config.val), ("test", test, 1)):
        if len(part) < wanted:
            raise DataError(f"the {name} part has {len(part):,} images, and {wanted:,} are taken of it")
    kept = len(test) if config.test is None else config.test
    return Divided(train=train[: config.train], val=val[: config.val], test=np.sort(test[:kept]), how="by the hash of content")


def divide_by_lists(dataset: ListedDataset, config: VtabConfig) -> Divided:
    """The parts that the lists of VTAB-1k declare, as they are; the test part cut where fewer are asked for."""
    parts = [np.flatnonzero(dataset.parts == part).astype(np.int64) for part in (TRAIN, VAL, TEST)]
    return Divided(train=parts[0], val=parts[1], test=_cut(parts[2], dataset, config), how="published lists")


def read_splits(path: Path, names: Mapping[str, str]) -> dict[str, dict[str, Entries]]:
    """The parts of each task from a JSON file: {"Pets": {"train800": [...], "val200": [...], "test": [...]}, ...}.

    An image is its number in the set as it is published, or the end of its path. `names` gives, for each name by which a task
    may be called, in lower case, its own.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{printable(str(path))} is no JSON file that can be read") from error
    if not isinstance(told, dict):
        raise DataError(f"{printable(str(path))} holds no object of tasks")
    found: dict[str, dict[str, Entries]] = {}
    for called, parts in told.items():
        where = f"{printable(str(path))}, {printable(called)}"
        task = names.get(called.lower())
        if task is None:
            raise DataError(f"{where}: VTAB has no such task", hint=f"tasks are {', '.join(dict.fromkeys(names.values()))}")
        if task in found:
            raise DataError(f"{where}: the task is there twice, under two names")
        if not isinstance(parts, dict) or not {"train800", "val200"} <= set(parts) <= set(SPLIT_KEYS):
            raise DataError(f"{where} must hold train800, val200 and perhaps test")
        for key, entries in parts.items():
            plain = isinstance(entries, list) and all(type(entry) in (int, str) for entry in entries)
            if not plain or not entries:
                raise DataError(f"{where}.{key} must be a list of numbers or of paths of images")
        found[task] = parts
    return found


def divide_by_file(dataset: ListedDataset, division: Division, parts: Mapping[str, Entries], config: VtabConfig) -> Divided:
    """The parts that a split file lists; the test part by VTAB's rule where it lists none. Parts may not share an image."""
    finder = _Finder(dataset)
    train, val = finder.find(parts["train800"], "train800"), finder.find(parts["val200"], "val200")
    how = "split file"
    if "test" in parts:
        test = finder.find(parts["test"], "test")
    else:
        test = division.parts(dataset, hash_order(dataset))[2]
        how = "split file, test by the hash of content" if np.all(dataset.parts == UNDECLARED) else "split file, official test"
    for one, other, names in (
        (train, val, "train800 and val200"),
        (train, test, "train800 and test"),
        (val, test, "val200 and test"),
    ):
        shared = np.intersect1d(one, other)
        if len(shared):
            raise DataError(f"{names} share {len(shared):,} images, the first {printable(dataset.name(int(shared[0])))}")
    return Divided(train=train, val=val, test=_cut(np.sort(test), dataset, config), how=how)


def hash_order(dataset: ListedDataset) -> Indices:
    """The images' numbers in the order of the hash of their content; copies of an image stay in the order they have."""
    digests = np.ascontiguousarray(dataset.digests())
    return np.argsort(digests.view(f"S{digests.shape[1]}")[:, 0], kind="stable").astype(np.int64)


def _cut(test: Indices, dataset: ListedDataset, config: VtabConfig) -> Indices:
    if config.test is None or config.test >= len(test):
        return test
    return np.sort(test[hash_order(dataset.take(test))[: config.test]])


def _declared(part: Indices, name: str, dataset: ListedDataset) -> None:
    if not len(part):
        declared = [PARTS[code] for code in sorted(set(dataset.parts.tolist()) - {UNDECLARED})]
        has = f"declares {' and '.join(declared)}" if declared else "declares no part"
        raise DataError(f"the data {has}, and VTAB takes its official {name} part")


class _Finder:
    """Images by their number or by the end of their path."""

    def __init__(self, dataset: ListedDataset) -> None:
        self._source = dataset
        self._by_name: dict[str, list[int]] | None = None

    def find(self, entries: Entries, part: str) -> Indices:
        found = [self._one(entry, part) for entry in entries]
        if len(set(found)) != len(found):
            twice = next(entry for place, entry in enumerate(entries) if found[place] in found[:place])
            raise DataError(f"{part} lists {printable(str(twice))} twice")
        return np.array(found, np.int64)

    def _one(self, entry: int | str, part: str) -> int:
        if isinstance(entry, int):
            if not 0 <= entry < len(self._source):
                raise DataError(f"{part} lists image {entry:,} of {len(self._source):,}")
            return entry
        if self._by_name is None:
            self._by_name = {}
            for index in range(len(self._source)):
                self._by_name.setdefault(self._source.name(index).rpartition("/")[2], []).append(index)
        last = entry.rpartition("/")[2]
        matching = [index for index in self._by_name.get(last, ()) if f"/{self._source.name(index)}".endswith(f"/{entry}")]
        if len(matching) != 1:
            raise DataError(f"{part} lists {printable(entry)}, which is the path of {len(matching)} images")
        return matching[0]


# The 19 tasks of VTAB: their groups, where their images are found, how they are divided, and what the paper reached.

Group = Literal["natural", "specialized", "structured"]
GROUPS: tuple[Group, ...] = ("natural", "specialized", "structured")

PAPER_COLUMNS = ("H/14 JFT", "L/16 JFT", "L/16 I21k")
"""The models of Table 9, in the order of `Task.paper`."""

_ENDINGS = ("", ".zip", ".npz", ".csv", ".parquet", ".tar", ".tar.gz")


@dataclass(frozen=True, slots=True)
class Task:
    """One of the 19.

    `set` is the name of its data in the catalogue, and `listed` that of its folder in the VTAB-1k that is passed around; both
    are looked for. `paper` is Table 9: accuracy in percent of ViT-H/14 and ViT-L/16 pre-trained on JFT, and of ViT-L/16
    pre-trained on ImageNet-21k, each fine-tuned.
    """

    name: str
    group: Group
    set: str
    listed: str
    classes: int
    division: Division
    paper: tuple[float, float, float]

    def find(self, root: Path) -> Path | None:
        """Where its data is under `root`, or None."""
        if has_lists(root / self.listed):
            return root / self.listed
        places = [root / f"{name}{ending}" for name in (self.set, self.listed) for ending in _ENDINGS]
        return next((place for place in places if place.exists()), None)

    def open(self, place: Path) -> ListedDataset:
        """The whole set, from where it was found; DataError where it has other classes than the task."""
        if has_lists(place):
            return open_lists(place, classes=self.classes)
        dataset = _READERS[self.name](place) if self.name in _READERS else _any_form(self.set, place)
        if len(dataset.labels) != self.classes:
            raise DataError(f"{place} has {len(dataset.labels):,} classes, and {self.name} has {self.classes}")
        return dataset


def _any_form(name: str, place: Path) -> ListedDataset:
    """A set as the catalogue brings it, or in any form that is read: class folders, a zip, a list, an .npz, Parquet."""
    spelling = find_set(name).spelling
    spec = str(place)
    if spelling is not None and place.is_dir():
        arranged = spelling.format(folder=place)
        kind, colon, rest = arranged.partition(":")
        if Path(rest if colon and "/" not in kind else arranged).exists():
            spec = arranged
    dataset = open_dataset(spec, split="all")
    assert isinstance(dataset, ListedDataset)
    return dataset


def _camelyon(place: Path) -> ListedDataset:
    return open_camelyon(place) if place.is_dir() and has_camelyon(place) else _any_form("pcam", place)


def _retinopathy(place: Path) -> ListedDataset:
    return open_retinopathy(place) if place.is_dir() and has_retinopathy(place) else _any_form("retinopathy", place)


# Tasks whose set is read from its own published files; the others come in any form.
_READERS: dict[str, Callable[[Path], ListedDataset]] = {
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

_OFFICIAL = TrainShare(percent=100)
_CLEVR = TrainShare(percent=90, test="val")
_NORB = TrainShare(percent=100, halve_test=True)
_SPRITES = WholeShares(train=80, val=10)
_SATELLITE = WholeShares(train=60, val=20)

# In the order of Table 9. Divisions are those of VTAB's own code; only the order of examples is another.
TASKS: tuple[Task, ...] = (
    Task("Caltech101", "natural", "caltech101", "caltech101", 102, ThirtyEach(percent=90), (95.3, 95.4, 90.8)),
    Task("CIFAR-100", "natural", "cifar100", "cifar", 100, TrainShare(percent=90), (85.5, 81.9, 84.1)),
    Task("DTD", "natural", "dtd", "dtd", 47, _OFFICIAL, (75.2, 74.3, 74.1)),
    Task("Flowers102", "natural", "flowers102", "oxford_flowers102", 102, _OFFICIAL, (99.7, 99.7, 99.3)),
    Task("Pets", "natural", "pets", "oxford_iiit_pet", 37, TrainShare(percent=80), (97.2, 96.7, 92.7)),
    Task("Sun397", "natural", "sun397", "sun397", 397, WholeShares(train=70, val=10), (65.0, 63.5, 61.0)),
    Task("SVHN", "natural", "svhn", "svhn", 10, TrainShare(percent=90), (88.9, 87.4, 80.9)),
    Task("Camelyon", "specialized", "pcam", "patch_camelyon", 2, _OFFICIAL, (83.3, 83.6, 82.5)),
    Task("EuroSAT", "specialized", "eurosat", "eurosat", 10, _SATELLITE, (96.7, 96.5, 95.6)),
    Task("Resisc45", "specialized", "resisc45", "resisc45", 45, _SATELLITE, (91.4, 89.7, 85.2)),
    Task("Retinopathy", "specialized", "retinopathy", "diabetic_retinopathy", 5, _OFFICIAL, (76.6, 77.1, 75.3)),
    Task("Clevr-Count", "structured", "clevr", "clevr_count", 8, _CLEVR, (91.7, 86.4, 70.3)),
    Task("Clevr-Dist", "structured", "clevr", "clevr_dist", 6, _CLEVR, (63.8, 63.1, 56.1)),
    Task("DMLab", "structured", "dmlab", "dmlab", 6, _OFFICIAL, (53.1, 49.7, 41.9)),
    Task("dSpr-Loc", "structured", "dsprites", "dsprites_loc", 16, _SPRITES, (79.4, 74.5, 74.7)),
    Task("dSpr-Ori", "structured", "dsprites", "dsprites_ori", 16, _SPRITES, (63.3, 60.5, 64.9)),
    Task("KITTI-Dist", "structured", "kitti", "kitti", 4, WholeShares(train=80, val=10), (84.5, 82.2, 79.9)),
    Task("sNORB-Azim", "structured", "smallnorb", "smallnorb_azi", 18, _NORB, (33.2, 36.2, 30.5)),
    Task("sNORB-Elev", "structured", "smallnorb", "smallnorb_ele", 9, _NORB, (51.2, 51.1, 41.7)),
)


SPLITS_NAME = "vtab-splits.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What was reached on one task. `counts` are images of train, val and test; `how` says who chose them."""

    task: Task
    place: Path
    counts: tuple[int, int, int]
    how: str
    probe: Probe
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """0 to 1."""
        return self.probe.accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean accuracy (0 to 1) over `found` of `of` tasks, and the paper's, in percent, over the same ones.

    It is the benchmark's number only where `complete`.
    """

    name: str
    found: int
    of: int
    accuracy: float | None
    paper: tuple[float, float, float] | None

    @property
    def complete(self) -> bool:
        """Whether every task of the group was done."""
        return self.found == self.of


@dataclass(frozen=True, slots=True, kw_only=True)
class Vtab:
    """The tasks that were done, those whose data is not there with where it was looked for, and those that failed with why."""

    results: tuple[TaskResult, ...]
    missing: tuple[tuple[Task, str], ...]
    failed: tuple[tuple[Task, str], ...]

    def means(self) -> tuple[Mean, ...]:
        """Of each group, and of all 19."""
        groups = [(name, [task for task in TASKS if task.group == name]) for name in GROUPS]
        return tuple(self._mean(name, tasks) for name, tasks in [*groups, ("all", list(TASKS))])

    def _mean(self, name: str, tasks: list[Task]) -> Mean:
        found = [result for result in self.results if result.task in tasks]
        if not found:
            return Mean(name=name, found=0, of=len(tasks), accuracy=None, paper=None)
        columns = list(zip(*(result.task.paper for result in found), strict=True))
        return Mean(
            name=name,
            found=len(found),
            of=len(tasks),
            accuracy=sum(result.accuracy for result in found) / len(found),
            paper=(_mean(columns[0]), _mean(columns[1]), _mean(columns[2])),
        )


def vtab(
    checkpoint: Checkpoint,
    root: Path,
    config: VtabConfig = VtabConfig(),  # noqa: B008 (a frozen value)
    *,
    splits: Path | None = None,
    reading: EvaluateConfig = EvaluateConfig(),  # noqa: B008
    cache: bool = True,
    tell: ProgressCallback = silent,
) -> Vtab:
    """Do every task whose data lies under `root`: a folder (or file) for each set, by the catalogue's name or VTAB-1k's.

    `splits` is a JSON file of the images of each part, `root/vtab-splits.json` unless given. A task that cannot be done does
    not stop the others.
    """
    if not root.is_dir():
        raise DataError(f"there is no folder {root}", hint="it holds a folder for each data set: vitlab data list names them")
    chosen = _splits(root, splits)
    store = FeatureStore(model_key(checkpoint)) if cache else None
    results, missing, failed = [], [], []
    for task in TASKS:
        place = task.find(root)
        if place is None:
            missing.append((task, f"{' and '.join(f'no {name}' for name in dict.fromkeys((task.set, task.listed)))} in {root}"))
            continue
        try:
            job = _Job(checkpoint=checkpoint, config=config, reading=reading, store=store, tell=tell)
            results.append(_done(task, place, chosen.get(task.name), job))
        except VitlabError as error:
            failed.append((task, str(error)))
    if not results:
        first = f"; {failed[0][0].name}: {failed[0][1]}" if failed else ""
        raise DataError(
            f"none of the 19 tasks of VTAB can be done from {root}{first}",
            hint="give the data set in its published form, or as class folders"
            if failed
            else "name a data set's folder as `vitlab data list` does, or as in VTAB-1k (pets or oxford_iiit_pet)",
        )
    return Vtab(results=tuple(results), missing=tuple(missing), failed=tuple(failed))


def as_vtab_sees(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint fed with whole images squashed to its size, as in VTAB's own code: what counts may be at the border."""
    return replace(checkpoint, preprocess=replace(checkpoint.preprocess, resize="squash"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    checkpoint: Checkpoint
    config: VtabConfig
    reading: EvaluateConfig
    store: FeatureStore | None
    tell: ProgressCallback


def _done(task: Task, place: Path, chosen: Mapping[str, Entries] | None, job: _Job) -> TaskResult:
    job.tell(f"{task.name}, opening", 0, None)
    dataset = task.open(place)
    divided: Divided
    if chosen is not None:
        divided = divide_by_file(dataset, task.division, chosen, job.config)
    elif has_lists(place):
        divided = divide_by_lists(dataset, job.config)
    else:
        divided = divide(dataset, task.division, job.config)
    parts: list[Features] = []
    for name, indices in (("train", divided.train), ("val", divided.val), ("test", divided.test)):
        parts.append(
            features_of(
                job.checkpoint,
                dataset.take(indices),
                config=job.reading,
                store=job.store,
                what=f"{task.name}, {name}",
                tell=job.tell,
            )
        )
    train, val, test = parts
    fitted = probe(train, val, test, job.config.probe, told=lambda fits, _: job.tell(f"{task.name}, fits", fits, None))
    return TaskResult(
        task=task,
        place=place,
        counts=(train.asked, val.asked, test.asked),
        how=divided.how,
        probe=fitted,
        failures=tuple(failure for part in parts for failure in part.failures),
        notes=tuple(dict.fromkeys((*dataset.notes, *(note for part in parts for note in part.notes)))),
    )


def _splits(root: Path, given: Path | None) -> dict[str, dict[str, Entries]]:
    path = root / SPLITS_NAME if given is None else given
    if given is None and not path.exists():
        return {}
    names: dict[str, str] = {}
    for task in TASKS:
        for called in (task.name, task.listed, task.set):
            names.setdefault(called.lower(), task.name)
    for shared in [task.set for task in TASKS if sum(other.set == task.set for other in TASKS) > 1]:
        names.pop(shared, None)  # clevr means two tasks
    return read_splits(path, names)


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)
