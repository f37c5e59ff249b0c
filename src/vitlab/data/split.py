"""Splits: train, val and test as the data declares them, else made by the hash of each image's content."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import Split, SplitRule
from vitlab.data.dataset import SPLITS, UNDECLARED, Faults, ImageDataset, LabelTable
from vitlab.errors import DataError
from vitlab.io.address import Place
from vitlab.io.digests import Digests, as_numbers

TRAIN, VAL, TEST = range(3)
SplitCodes = NDArray[np.int8]

_SPELLINGS = {
    "train": TRAIN, "training": TRAIN,
    "val": VAL, "valid": VAL, "validation": VAL, "dev": VAL,
    "test": TEST, "testing": TEST,
}  # fmt: skip
_WORD = re.compile(r"(?:^|[-_.])(" + "|".join(_SPELLINGS) + r")(?=[-_.]|$)", re.IGNORECASE)


def split_named(word: str) -> int | None:
    """The split of this name (`valid`, `validation` and `dev` mean `val`), or None."""
    return _SPELLINGS.get(word.strip().casefold())


def splits_of_files(paths: Sequence[Place], faults: Faults) -> dict[Place, int]:
    """The split in each file's name (`train-0001.tar`, `validation-00000-of-00002.parquet`, `test/0001.tar`), or -1 for all.

    If only some files are named after a split, the others are faults.
    """
    named = {path: _split_of_file(path) for path in paths}
    if set(named.values()) != {UNDECLARED}:
        for path in paths:
            if named[path] == UNDECLARED:
                faults.add(str(path), "is named after no split (train, val, test), although other files are")
    return named


def _split_of_file(path: Place) -> int:
    words = {_SPELLINGS[word.casefold()] for word in _WORD.findall(path.name)}
    if len(words) == 1:
        return words.pop()
    inside = split_named(path.parent.name)
    return UNDECLARED if inside is None or words else inside


def take_split(whole: ImageDataset, split: Split, rule: SplitRule, *, where: str) -> ImageDataset:
    """The images of one split, in the order of the whole dataset.

    Declared splits are taken as they are. A missing `val` is held out of the declared `train`. If no split is declared, `val` and
    `test` are held out of all images. `train+val` is everything that may be trained on; `all` is everything.
    `where` names the data in messages.
    """
    if split == "all":
        return whole
    declared = set(np.unique(whole.splits).tolist()) - {UNDECLARED}
    made = _made(declared, rule)
    known = declared | made if declared else made | {TRAIN}
    wanted = {SPLITS.index(name) for name in split.split("+")}
    if split == "train+val":
        wanted &= known | {TRAIN}
    if not wanted <= known:
        _refuse(split, declared, where)

    notes = []
    shared = made | {TRAIN}  # the splits that are made of one pool
    pool = np.flatnonzero(whole.splits == (TRAIN if declared else UNDECLARED))
    splits = whole.splits.copy()
    splits[pool] = TRAIN
    if wanted & shared and not shared <= wanted:  # else no image needs to be read
        held = whole.take(pool)
        fractions = SplitRule(val=rule.val if VAL in made else 0, test=rule.test if TEST in made else 0)
        splits[pool] = assign_splits(held.digests(), held.table, fractions, labels=whole.labels, where=where)
        counts = ", ".join(f"{np.count_nonzero(splits[pool] == split):,} {SPLITS[split]}" for split in sorted(shared))
        notes.append(f"{len(pool):,} images split by the hash of their content: {counts}")
    return whole.take(np.flatnonzero(np.isin(splits, list(wanted))), notes=notes)


def assign_splits(digests: Digests, table: LabelTable, rule: SplitRule, *, labels: tuple[str, ...], where: str) -> SplitCodes:
    """The split of each image by `SplitRule`; DataError if a class has fewer different images than there are splits."""
    contents, content_of = np.unique(digests, axis=0, return_inverse=True)  # sorted, so ids are in the order of the hash
    numbers = as_numbers(contents)
    strata = table.strata()
    order = np.argsort(strata, kind="stable")
    classes, starts = np.unique(strata[order], return_index=True)
    needed = {TRAIN} | ({VAL} if rule.val else set()) | ({TEST} if rule.test else set())

    ids_of = [np.unique(content_of[group]) for group in np.split(order, starts[1:])]
    split_of_content = np.zeros(len(contents), np.int8)
    for ids in ids_of:
        test, held = np.searchsorted(numbers[ids], [rule.test, rule.test + rule.val]).tolist()
        test = _between(test, bool(rule.test), len(ids) - 1 - bool(rule.val))
        held = test + _between(held - test, bool(rule.val), len(ids) - 1 - test)
        # An image of two classes goes to test before val before train, so that no image is in two splits.
        split_of_content[ids[:test]] = TEST
        split_of_content[ids[test:held]] = np.maximum(split_of_content[ids[test:held]], VAL)

    faults = Faults(where)
    for code, ids in zip(classes.tolist(), ids_of, strict=True):
        if missing := needed - set(split_of_content[ids].tolist()):
            name = labels[code] if labels and not table.multi_label and code >= 0 else "all"
            gone = " and ".join(SPLITS[split] for split in sorted(missing))
            faults.add(name, f"has {len(ids)} different {'image' if len(ids) == 1 else 'images'}, which leaves none for {gone}")
    faults.raise_any(hint="add images to these classes, or make fewer splits with `test_fraction=0` and `val_fraction=0`")
    return split_of_content[content_of]


def _between(value: int, least: int, most: int) -> int:
    return max(0, min(max(value, least), most))


def _made(declared: set[int], rule: SplitRule) -> set[int]:
    """The splits that are held out because the data does not declare them."""
    if declared:
        return {VAL} if TRAIN in declared and VAL not in declared and rule.val else set()
    return ({VAL} if rule.val else set()) | ({TEST} if rule.test else set())


def _refuse(split: Split, declared: set[int], where: str) -> None:
    if not declared:
        raise DataError(f"{where} has no {split} split, and its fraction is 0", hint=f"set the fraction of {split}")
    has = " and ".join(SPLITS[split] for split in sorted(declared))
    raise DataError(
        f"{where} has no {split} split: it declares {has}",
        hint="choose one of these, or all" if split != "val" else "choose one of these, or set the fraction of val",
    )
