"""Splits: declared ones as they are, others by the hash of each image's content."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.containers import as_csv, as_folder, as_tar, as_zip, pile
from vitlab.config.data import Split, SplitRule
from vitlab.data.dataset import ImageDataset, LabelTable
from vitlab.data.opening import open_dataset
from vitlab.data.split import TEST, TRAIN, VAL, assign_splits
from vitlab.errors import ConfigError, DataError
from vitlab.io.digests import Digests, as_numbers

RULE = SplitRule(val=0.2, test=0.1)

contents = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=40, max_size=120)
"""(class, content) of images; contents are few, so that there are copies, also in two classes."""


def digests_of(numbers: list[int]) -> Digests:
    joined = b"".join(blake2b(str(number).encode(), digest_size=16).digest() for number in numbers)
    return np.frombuffer(joined, np.uint8).reshape(-1, 16)


def parts_of(images: list[tuple[int, int]], rule: SplitRule = RULE) -> np.ndarray:
    table = LabelTable(codes=np.array([label for label, _ in images], np.int32))
    return assign_splits(digests_of([content for _, content in images]), table, rule, labels=("a", "b", "c"), where="it")


def ordinary(classes: int = 3, images: int = 30) -> list[tuple[int, int]]:
    return [(label, 1000 * label + number) for label in range(classes) for number in range(images)]


def names_of(dataset: object) -> set[str]:
    assert isinstance(dataset, ImageDataset)
    return {Path(dataset.name(index)).name + Path(dataset.name(index)).parent.name for index in range(len(dataset))}


@settings(deadline=None, max_examples=60)
@given(contents)
def test_copies_of_an_image_are_always_in_one_split(more: list[tuple[int, int]]) -> None:
    images = ordinary() + more
    parts = parts_of(images)
    seen: dict[int, int] = {}
    for (_, content), part in zip(images, parts.tolist(), strict=True):
        assert seen.setdefault(content, part) == part


@settings(deadline=None, max_examples=60)
@given(contents)
def test_every_class_has_images_in_every_part(more: list[tuple[int, int]]) -> None:
    images = ordinary() + more
    parts = parts_of(images)
    for label in range(3):
        assert {part for (of, _), part in zip(images, parts.tolist(), strict=True) if of == label} == {TRAIN, VAL, TEST}


@settings(deadline=None, max_examples=60)
@given(st.integers(100, 200), st.integers(1, 300))
def test_adding_images_to_a_class_moves_no_other(before: int, added: int) -> None:
    few, many = [(0, number) for number in range(before)], [(0, number) for number in range(before + added)]
    assert np.array_equal(parts_of(few), parts_of(many)[:before])


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 10_000), min_size=3, max_size=12, unique=True), st.integers(10_001, 20_000))
def test_in_the_smallest_classes_at_most_one_image_a_split_moves_when_one_is_added(few: list[int], new: int) -> None:
    before = parts_of([(0, content) for content in few])
    after = parts_of([(0, content) for content in [*few, new]])[: len(few)]
    for part in (VAL, TEST):
        assert np.count_nonzero((before == part) & (after != part)) <= 1


def test_an_image_of_two_classes_goes_where_either_sends_it() -> None:
    order = np.argsort(as_numbers(digests_of(list(range(400))))).tolist()
    numbers = as_numbers(digests_of(order))
    shared = order[int(np.searchsorted(numbers, 0.15))]  # by its hash in val; in a class of three it is the lowest: test
    last = order[-2:]
    small = [(0, shared), (0, last[0]), (0, last[1])]
    large = [(1, number) for number in order[:-2]]
    parts = parts_of([*small, *large])
    assert parts[:3].tolist() == [TEST, VAL, TRAIN]
    assert parts[3 + order.index(shared)] == TEST


def test_the_shares_of_many_images_are_those_of_the_rule_in_every_class() -> None:
    count = 4000
    parts = parts_of(ordinary(images=count)).reshape(3, count)
    for part, share in ((VAL, 0.2), (TEST, 0.1)):
        deviation = (count * share * (1 - share)) ** 0.5
        assert np.all(np.abs(np.sum(parts == part, axis=1) - count * share) < 5 * deviation)


def test_the_split_of_an_image_is_the_side_of_the_threshold_its_hash_is_on() -> None:
    numbers = as_numbers(digests_of(list(range(500))))
    parts = parts_of([(0, number) for number in range(500)])
    assert np.array_equal(parts, np.where(numbers < 0.1, TEST, np.where(numbers < 0.1 + 0.2, VAL, TRAIN)))


def test_classes_with_fewer_images_than_splits_are_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"2 faults: b: has 2 different images, which leaves none for .*; c: has 1 "):
        parts_of([(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (2, 6), (2, 6)])


def test_a_class_of_three_images_has_one_in_each_part() -> None:
    assert sorted(parts_of([(0, 1), (0, 2), (0, 3)]).tolist()) == [TRAIN, VAL, TEST]


@pytest.mark.parametrize("shares", [{"val": 0.6, "test": 0.4}, {"val": -0.1}, {"val": 1.0}])
def test_shares_that_leave_nothing_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        SplitRule(**shares)


def test_a_folder_a_zip_a_tar_and_a_list_of_the_same_images_have_the_same_splits_and_fingerprints(tmp_path: Path) -> None:
    files = pile(images=40)
    folder = as_folder(tmp_path / "folder", files)
    rows = [("path", "label"), *((f"folder/{name}", name.split("/")[0]) for name in sorted(files))]
    spellings = [
        folder,
        as_zip(tmp_path / "images.zip", files),
        as_zip(tmp_path / "wrapped.zip", {f"around/{name}": content for name, content in files.items()}),
        as_tar(tmp_path / "images.tar", files),
        as_csv(tmp_path / "list.csv", rows),
    ]
    for split in ("train", "val", "test"):
        datasets = [open_dataset(spelling, split=split) for spelling in spellings]
        assert len({dataset.fingerprint() for dataset in datasets}) == 1
        assert len({tuple(dataset.labels) for dataset in datasets}) == 1
        assert len({tuple(sorted(names_of(dataset))) for dataset in datasets}) == 1


def test_train_val_and_test_are_disjoint_and_together_everything(tmp_path: Path) -> None:
    folder = as_folder(tmp_path, pile(images=30))
    parts = [names_of(open_dataset(folder, split=split)) for split in ("train", "val", "test")]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 90
    assert names_of(open_dataset(folder, split="all")) == set().union(*parts)
    assert names_of(open_dataset(folder, split="train+val")) == parts[0] | parts[1]


def test_a_val_that_is_not_declared_is_held_out_of_train_and_never_of_test(tmp_path: Path) -> None:
    folder = as_folder(tmp_path, pile(start="train/") | pile(start="test/", images=5))
    datasets = {split: open_dataset(folder, split=split) for split in ("train", "val", "train+val", "test")}
    assert len(datasets["train"]) + len(datasets["val"]) == len(datasets["train+val"]) == 60
    assert len(datasets["test"]) == 15
    assert len(open_dataset(folder, split="train", rule=SplitRule(val=0))) == 60
    with pytest.raises(DataError, match=r"has no val split: it declares train and test"):
        open_dataset(folder, split="val", rule=SplitRule(val=0))


@pytest.mark.parametrize("name", ["val", "valid", "validation", "VAL", "dev"])
def test_declared_splits_are_taken_as_they_are_whatever_the_rule(tmp_path: Path, name: str) -> None:
    folder = as_folder(tmp_path, pile(start="train/") | pile(start=f"{name}/", images=3))
    assert len(open_dataset(folder, split="train", rule=SplitRule(val=0.5))) == 60
    assert len(open_dataset(folder, split="val", rule=SplitRule(val=0.5))) == 9
    with pytest.raises(DataError, match=r"no test split: it declares train and val"):
        open_dataset(folder, split="test")


def test_a_fraction_of_nothing_makes_no_part(tmp_path: Path) -> None:
    folder = as_folder(tmp_path, pile())
    assert len(open_dataset(folder, rule=SplitRule(val=0, test=0))) == 60
    with pytest.raises(DataError, match=r"no test split"):
        open_dataset(folder, split="test", rule=SplitRule(test=0))


def test_a_split_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train, val, train\+val, test, all"):
        open_dataset(tmp_path, split="trian")  # type: ignore[arg-type]


def test_everything_is_opened_without_reading_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = as_folder(tmp_path, pile(start="train/") | pile(start="val/"))
    monkeypatch.setattr("vitlab.data.readers.folder.DiskContents.read", lambda *_: pytest.fail("an image was read"))
    splits: list[Split] = ["train", "val", "train+val", "all"]
    assert [len(open_dataset(folder, split=split)) for split in splits] == [60, 60, 120, 120]
