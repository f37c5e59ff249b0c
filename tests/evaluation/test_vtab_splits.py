"""Who decides which images a VTAB task trains on, chooses by and tests on: VTAB's rules, in an order anybody can have."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.containers import as_folder, as_zip, pile
from vitlab.config.evaluation import VtabConfig
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.vtab import (
    Division,
    OfficialSplits,
    PercentSplits,
    ThirtyPerClass,
    VtabSplits,
    divide,
    divide_by_file,
    divide_by_lists,
    hash_order,
    read_splits,
)

CONFIG = VtabConfig(train=8, val=4)


def opened(place: Path) -> ImageDataset:
    dataset = open_dataset(place, split="all")
    assert isinstance(dataset, ImageDataset)
    return dataset


def parted(root: Path, *parts: str, images: int = 20) -> ImageDataset:
    """Three classes, so many images each, in parts; or in none."""
    files = {name: content for part in parts or ("",) for name, content in pile(images=images, start=part and f"{part}/").items()}
    return opened(as_folder(root, files))


def disjoint(divided: VtabSplits) -> bool:
    joined = np.concatenate([divided.train, divided.val, divided.test])
    return len(np.unique(joined)) == len(joined)


def test_official_splits_are_kept_and_val_is_the_rest_of_train(tmp_path: Path) -> None:
    dataset = parted(tmp_path, "train", "test")
    train, val, test = OfficialSplits(percent=90).split(dataset, hash_order(dataset))
    assert (len(train), len(val), len(test)) == (54, 6, 60)
    assert set(dataset.splits[train]) == set(dataset.splits[val]) == {TRAIN}
    assert set(dataset.splits[test]) == {TEST}
    divided = divide(dataset, OfficialSplits(percent=90), CONFIG)
    assert (len(divided.train), len(divided.val), len(divided.test)) == (8, 4, 60)
    assert np.array_equal(divided.train, train[:8])
    assert np.array_equal(divided.val, val[:4])
    assert disjoint(divided)


def test_three_official_splits_are_used_as_they_are(tmp_path: Path) -> None:
    dataset = parted(tmp_path, "train", "val", "test")
    for percent in (90, 100):
        train, val, test = OfficialSplits(percent=percent).split(dataset, hash_order(dataset))
        assert [set(dataset.splits[part]) for part in (train, val, test)] == [{TRAIN}, {VAL}, {TEST}]


def test_clevr_is_tested_on_its_val_part(tmp_path: Path) -> None:
    dataset = parted(tmp_path, "train", "val")
    train, val, test = OfficialSplits(percent=90, test="val").split(dataset, hash_order(dataset))
    assert (len(train), len(val), len(test)) == (54, 6, 60)
    assert set(dataset.splits[test]) == {VAL}


def test_norb_chooses_by_half_of_its_test_part(tmp_path: Path) -> None:
    dataset = parted(tmp_path, "train", "test")
    train, val, test = OfficialSplits(percent=100, halve_test=True).split(dataset, hash_order(dataset))
    assert (len(train), len(val), len(test)) == (60, 30, 30)
    assert set(dataset.splits[val]) == set(dataset.splits[test]) == {TEST}


def test_a_set_without_parts_is_divided_by_shares(tmp_path: Path) -> None:
    dataset = parted(tmp_path)
    train, val, test = PercentSplits(train=60, val=20).split(dataset, hash_order(dataset))
    assert (len(train), len(val), len(test)) == (36, 12, 12)
    assert sorted([*train, *val, *test]) == list(range(60))


def test_parts_that_are_declared_come_before_shares(tmp_path: Path) -> None:
    dataset = parted(tmp_path, "train", "test")
    train, val, test = PercentSplits(train=60, val=20).split(dataset, hash_order(dataset))
    assert (len(train), len(val), len(test)) == (45, 15, 60)
    assert set(dataset.splits[test]) == {TEST}


def test_thirty_of_each_class_and_the_others_to_test(tmp_path: Path) -> None:
    dataset = parted(tmp_path, images=35)
    train, val, test = ThirtyPerClass(percent=90).split(dataset, hash_order(dataset))
    assert (len(train), len(val), len(test)) == (81, 9, 15)
    assert np.bincount(dataset.table.codes[test]).tolist() == [5, 5, 5]


def test_a_class_of_thirty_leaves_nothing_to_test(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="class-0 has 30 images"):
        divide(parted(tmp_path, images=30), ThirtyPerClass(percent=90), CONFIG)


@pytest.mark.parametrize(
    ("parts", "division", "why"),
    [
        ((), OfficialSplits(percent=90), "declares no split, and VTAB takes its official train"),
        (("train", "val"), OfficialSplits(percent=90), "declares train and val, and VTAB takes its official test"),
        (("train", "test"), OfficialSplits(percent=100), "VTAB takes its official val"),
        (("train", "test"), OfficialSplits(percent=90, test="val"), None),
    ],
)
def test_missing_official_splits_are_not_made_up(
    tmp_path: Path, parts: tuple[str, ...], division: Division, why: str | None
) -> None:
    dataset = parted(tmp_path, *parts)
    if why is None:
        assert len(divide(dataset, division, CONFIG).test) == 60
        return
    with pytest.raises(DataError, match=why):
        divide(dataset, division, CONFIG)


def test_a_split_that_is_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the train split has 54 images, and VTAB takes 800"):
        divide(parted(tmp_path, "train", "test"), OfficialSplits(percent=90), VtabConfig())


def test_the_choice_depends_on_content_alone(tmp_path: Path) -> None:
    files = pile()
    one = opened(as_folder(tmp_path / "one", files))
    other = opened(as_zip(tmp_path / "other.zip", {name.replace("class-0", "zebra"): content for name, content in files.items()}))
    chosen = [
        {dataset.read(int(index)).content for index in part}
        for dataset in (one, other)
        for part in (lambda d: (d.train, d.val, d.test))(divide(dataset, PercentSplits(train=60, val=20), CONFIG))
    ]
    assert chosen[:3] == chosen[3:]
    assert len(chosen[0]) == 8


def test_the_classes_are_mixed_in_that_order(tmp_path: Path) -> None:
    dataset = parted(tmp_path, images=100)
    assert np.bincount(dataset.table.codes[hash_order(dataset)[:150]]).min() > 30


def test_fewer_test_images_are_some_of_all(tmp_path: Path) -> None:
    dataset = parted(tmp_path, "train", "test")
    all_of_them = divide(dataset, OfficialSplits(percent=90), CONFIG)
    some = divide(dataset, OfficialSplits(percent=90), VtabConfig(train=8, val=4, test=10))
    assert len(some.test) == 10
    assert set(some.test) < set(all_of_them.test)
    assert np.array_equal(some.train, all_of_them.train)


def test_lists_are_taken_as_they_are(tmp_path: Path) -> None:
    dataset = parted(tmp_path, "train", "val", "test")
    divided = divide_by_lists(dataset, VtabConfig())
    assert [set(dataset.splits[part]) for part in (divided.train, divided.val, divided.test)] == [{TRAIN}, {VAL}, {TEST}]
    assert divided.how == "published lists"
    assert len(divide_by_lists(dataset, VtabConfig(test=7)).test) == 7


NAMES = {"pets": "Pets", "oxford_iiit_pet": "Pets", "dtd": "DTD"}


def test_a_split_file_decides_by_number_or_by_path(tmp_path: Path) -> None:
    dataset = parted(tmp_path / "data", "train", "test")
    named = ["class-1/003.jpg", "train/class-2/004.jpg"]
    (tmp_path / "s.json").write_text(json.dumps({"PETS": {"train800": [23, 21, 60], "val200": ["test/" + named[0], named[1]]}}))
    parts = read_splits(tmp_path / "s.json", NAMES)["Pets"]
    with pytest.raises(DataError, match="val200 and test share 1"):
        divide_by_file(dataset, OfficialSplits(percent=80), parts, CONFIG)
    divided = divide_by_file(dataset, OfficialSplits(percent=80), {**parts, "val200": ["train/" + named[0], named[1]]}, CONFIG)
    assert divided.train.tolist() == [23, 21, 60]
    assert [dataset.name(int(index)).endswith(name) for index, name in zip(divided.val, named, strict=True)] == [True, True]
    assert set(dataset.splits[divided.test]) == {TEST}
    assert divided.how == "split file, official test"
    whole = divide_by_file(dataset, OfficialSplits(percent=80), {"train800": [0], "val200": [1], "test": [2, 7]}, CONFIG)
    assert (whole.test.tolist(), whole.how) == ([2, 7], "split file")


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"train800": [1, 1], "val200": [2]}, "train800 lists 1 twice"),
        ({"train800": [1], "val200": [60]}, "val200 lists image 60 of 60"),
        ({"train800": [-1], "val200": [2]}, "image -1"),
        ({"train800": [1], "val200": [1]}, "train800 and val200 share 1"),
        ({"train800": ["nothing.jpg"], "val200": [1]}, "nothing.jpg, which matches 0"),
        ({"train800": ["003.jpg"], "val200": [1]}, "003.jpg, which matches 3"),
        ({"train800": ["0/003.jpg"], "val200": [1]}, "matches 0"),
    ],
)
def test_a_split_that_cannot_be_is_refused(tmp_path: Path, parts: dict[str, list[int | str]], why: str) -> None:
    with pytest.raises(DataError, match=why):
        divide_by_file(parted(tmp_path), PercentSplits(train=60, val=20), parts, CONFIG)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "not a JSON object of tasks"),
        ('{"cars": {"train800": [1], "val200": [2]}}', "no such task"),
        ('{"pets": {"train800": [1]}}', "must have train800, val200"),
        ('{"pets": {"train800": [1], "val200": [2], "val": [3]}}', "must have train800, val200"),
        ('{"pets": [1]}', "must have"),
        ('{"pets": {"train800": 1, "val200": [2]}}', "train800 must be a list"),
        ('{"pets": {"train800": [1.5], "val200": [2]}}', "train800 must be a list"),
        ('{"pets": {"train800": [true], "val200": [2]}}', "train800 must be a list"),
        ('{"pets": {"train800": [], "val200": [2]}}', "train800 must be a list"),
        ('{"pets": {"train800": [1], "val200": [2]}, "oxford_iiit_pet": {"train800": [1], "val200": [2]}}', "appears twice"),
    ],
)
def test_a_file_that_is_no_split_file_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "vtab-splits.json").write_text(text)
    with pytest.raises(DataError, match=why):
        read_splits(tmp_path / "vtab-splits.json", NAMES)


@pytest.mark.parametrize(("field", "value"), [("train", 0), ("val", 0), ("test", 0)])
def test_nonsense_is_refused_at_birth(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=field):
        VtabConfig(**{field: value})  # type: ignore[arg-type]
