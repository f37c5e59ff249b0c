"""Which pictures of a set VTAB trains on, chooses by and tests on.

VTAB takes the first 800 of its train part, the first 200 of its val part and all of its test part in the order of TensorFlow
Datasets, which is by a hash of each example's key and can be had from its record files only. Here the order is by the hash of
each picture's content: as good a shuffle, the same on every machine and in every container, but other pictures. The published
choice comes with lists (`vitlab.data.kinds.vtab_lists`) or a file of indices (`read_splits`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.config.transfer import VtabConfig
from vitlab.data.files.names import shown
from vitlab.data.listed import PARTS, UNDECLARED, ListedSource
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError

Indices = NDArray[np.int64]
Entries = Sequence[int | str]

SPLIT_KEYS = ("train800", "val200", "test")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Divided:
    """The pictures of each part, by their numbers in the whole set, and `how` they were chosen."""

    train: Indices
    val: Indices
    test: Indices
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainShare:
    """The official train and test parts; `percent` of train stays train and the rest is val, where no val is declared.

    `test` names the part that is tested on: CLEVR's own test pictures have no scenes, and its val is taken. `halve_test` makes
    val of the first half of the official test part (small NORB, whose train part has other objects than its test part).
    """

    percent: int
    test: Literal["test", "val"] = "test"
    halve_test: bool = False

    def parts(self, source: ListedSource, order: Indices) -> tuple[Indices, Indices, Indices]:
        """Train, val and test, each in `order`."""
        train, val, test = (order[source.parts[order] == part] for part in (TRAIN, VAL, TEST))
        if self.test == "val" and len(val) and not len(test):
            val, test = val[:0], val
        _declared(train, "train", source)
        _declared(test, self.test, source)
        if self.halve_test:
            half = len(test) // 2
            return train, test[:half], test[half:]
        if len(val) or self.percent == 100:
            _declared(val, "val", source)
            return train, val, test
        kept = self.percent * len(train) // 100
        return train[:kept], train[kept:], test


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeShares:
    """No official parts: `train` percent, then `val` percent, and the rest is test; parts that are declared are taken."""

    train: int
    val: int

    def parts(self, source: ListedSource, order: Indices) -> tuple[Indices, Indices, Indices]:
        """Train, val and test, each in `order`."""
        if np.any(source.parts != UNDECLARED):
            return TrainShare(percent=100 * self.train // (self.train + self.val)).parts(source, order)
        first = self.train * len(order) // 100
        second = (self.train + self.val) * len(order) // 100
        return order[:first], order[first:second], order[second:]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThirtyEach:
    """Thirty pictures of each class to train on, as is usual for Caltech-101, `percent` of which stay train; the rest is test."""

    percent: int
    each: int = 30

    def parts(self, source: ListedSource, order: Indices) -> tuple[Indices, Indices, Indices]:
        """Train, val and test, each in `order`."""
        if np.any(source.parts != UNDECLARED):
            return TrainShare(percent=self.percent).parts(source, order)
        codes = source.table.codes[order]
        taken = np.zeros(len(order), np.bool_)
        for code, name in enumerate(source.labels):
            of_class = np.flatnonzero(codes == code)
            if len(of_class) <= self.each:
                raise DataError(f"{shown(name)} has {len(of_class)} pictures, which leaves none to test on after {self.each}")
            taken[of_class[: self.each]] = True
        trained, test = order[taken], order[~taken]
        kept = self.percent * len(trained) // 100
        return trained[:kept], trained[kept:], test


Division = TrainShare | WholeShares | ThirtyEach


def divide(source: ListedSource, division: Division, config: VtabConfig) -> Divided:
    """The division of a set by VTAB's rule, in the order of the hash of content."""
    order = hash_order(source)
    train, val, test = division.parts(source, order)
    for name, part, wanted in (("train", train, config.train), ("val", val, config.val), ("test", test, 1)):
        if len(part) < wanted:
            raise DataError(f"the {name} part has {len(part):,} pictures, and {wanted:,} are taken of it")
    kept = len(test) if config.test is None else config.test
    return Divided(train=train[: config.train], val=val[: config.val], test=np.sort(test[:kept]), how="by the hash of content")


def divide_by_lists(source: ListedSource, config: VtabConfig) -> Divided:
    """The parts that the lists of VTAB-1k declare, as they are; the test part cut where fewer are asked for."""
    parts = [np.flatnonzero(source.parts == part).astype(np.int64) for part in (TRAIN, VAL, TEST)]
    return Divided(train=parts[0], val=parts[1], test=_cut(parts[2], source, config), how="published lists")


def read_splits(path: Path, names: Mapping[str, str]) -> dict[str, dict[str, Entries]]:
    """The parts of each task from a JSON file: {"Pets": {"train800": [...], "val200": [...], "test": [...]}, ...}.

    A picture is its number in the set as it is published, or the end of its path. `names` gives, for each name by which a task
    may be called, in lower case, its own.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{shown(str(path))} is no JSON file that can be read") from error
    if not isinstance(told, dict):
        raise DataError(f"{shown(str(path))} holds no object of tasks")
    found: dict[str, dict[str, Entries]] = {}
    for called, parts in told.items():
        where = f"{shown(str(path))}, {shown(called)}"
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
                raise DataError(f"{where}.{key} must be a list of numbers or of paths of pictures")
        found[task] = parts
    return found


def divide_by_file(source: ListedSource, division: Division, parts: Mapping[str, Entries], config: VtabConfig) -> Divided:
    """The parts that a split file lists; the test part by VTAB's rule where it lists none. Parts may not share a picture."""
    finder = _Finder(source)
    train, val = finder.find(parts["train800"], "train800"), finder.find(parts["val200"], "val200")
    how = "split file"
    if "test" in parts:
        test = finder.find(parts["test"], "test")
    else:
        test = division.parts(source, hash_order(source))[2]
        how = "split file, test by the hash of content" if np.all(source.parts == UNDECLARED) else "split file, official test"
    for one, other, names in (
        (train, val, "train800 and val200"),
        (train, test, "train800 and test"),
        (val, test, "val200 and test"),
    ):
        shared = np.intersect1d(one, other)
        if len(shared):
            raise DataError(f"{names} share {len(shared):,} pictures, the first {shown(source.name(int(shared[0])))}")
    return Divided(train=train, val=val, test=_cut(np.sort(test), source, config), how=how)


def hash_order(source: ListedSource) -> Indices:
    """The pictures' numbers in the order of the hash of their content; copies of a picture stay in the order they have."""
    digests = np.ascontiguousarray(source.digests())
    return np.argsort(digests.view(f"S{digests.shape[1]}")[:, 0], kind="stable").astype(np.int64)


def _cut(test: Indices, source: ListedSource, config: VtabConfig) -> Indices:
    if config.test is None or config.test >= len(test):
        return test
    return np.sort(test[hash_order(source.take(test))[: config.test]])


def _declared(part: Indices, name: str, source: ListedSource) -> None:
    if not len(part):
        declared = [PARTS[code] for code in sorted(set(source.parts.tolist()) - {UNDECLARED})]
        has = f"declares {' and '.join(declared)}" if declared else "declares no part"
        raise DataError(f"the data {has}, and VTAB takes its official {name} part")


class _Finder:
    """Pictures by their number or by the end of their path."""

    def __init__(self, source: ListedSource) -> None:
        self._source = source
        self._by_name: dict[str, list[int]] | None = None

    def find(self, entries: Entries, part: str) -> Indices:
        found = [self._one(entry, part) for entry in entries]
        if len(set(found)) != len(found):
            twice = next(entry for place, entry in enumerate(entries) if found[place] in found[:place])
            raise DataError(f"{part} lists {shown(str(twice))} twice")
        return np.array(found, np.int64)

    def _one(self, entry: int | str, part: str) -> int:
        if isinstance(entry, int):
            if not 0 <= entry < len(self._source):
                raise DataError(f"{part} lists picture {entry:,} of {len(self._source):,}")
            return entry
        if self._by_name is None:
            self._by_name = {}
            for index in range(len(self._source)):
                self._by_name.setdefault(self._source.name(index).rpartition("/")[2], []).append(index)
        last = entry.rpartition("/")[2]
        matching = [index for index in self._by_name.get(last, ()) if f"/{self._source.name(index)}".endswith(f"/{entry}")]
        if len(matching) != 1:
            raise DataError(f"{part} lists {shown(entry)}, which is the path of {len(matching)} pictures")
        return matching[0]
