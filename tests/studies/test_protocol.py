"""The images of a study: nested subsets, held-out classes, one pack for all runs of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from vitlab.config.data import Split
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import ConfigError, DataError
from vitlab.studies.protocol import PackPlan, few, prepare, subset

SPLITS: tuple[Split, ...] = ("train", "val", "test")


def write_data(path: Path, *, classes: int = 5, each: int = 12, colour: bool = True) -> Path:
    """Random images of 10 x 14 pixels, whose first pixel is their class."""
    rng = np.random.default_rng(0)
    arrays: dict[str, NDArray[np.generic]] = {}
    for split, share in (("train", 1.0), ("val", 0.5), ("test", 0.5)):
        labels = np.repeat(np.arange(classes), int(each * share))
        images = rng.integers(0, 256, (len(labels), 10, 14, 3) if colour else (len(labels), 10, 14), np.uint8)
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    np.savez(path, allow_pickle=False, classes=np.array([f"class {code}" for code in range(classes)]), **arrays)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "five.npz")


def names(spec: str) -> set[str]:
    opened = open_dataset(spec, split="train")
    assert isinstance(opened, ImageDataset)
    return {opened.name(index) for index in range(len(opened))}


def test_a_smaller_subset_is_part_of_a_larger_one_and_another_seed_draws_another(tmp_path: Path, data: Path) -> None:
    images = prepare(tmp_path, PackPlan(data=str(data), side=8))
    small, large, other = (subset(images, count=count, seed=seed) for count, seed in ((6, 0), (20, 0), (6, 1)))
    assert names(small.dataset) < names(large.dataset) < names(images.pretrain.dataset)
    assert names(other.dataset) != names(small.dataset)
    for split in ("val", "test"):
        assert len(open_dataset(small.dataset, split=split)) == len(open_dataset(images.pretrain.dataset, split=split))
    with pytest.raises(ConfigError, match="37 images to pre-train on are more than the 36"):
        subset(images, count=37, seed=0)


def test_the_classes_to_transfer_to_are_held_out_of_pretraining(tmp_path: Path, data: Path) -> None:
    images = prepare(tmp_path, PackPlan(data=str(data), side=8, each=3))
    labels = [open_dataset(facts.dataset, split="all").labels for facts in (images.pretrain, images.transfer)]
    assert labels == [("class 0", "class 1", "class 2"), ("class 3", "class 4")]
    assert len(open_dataset(images.transfer.dataset, split="train")) == 2 * 3
    taken = few(images, shots=2, seed=0)
    opened = open_dataset(taken.dataset, split="train")
    assert [opened.label(index) for index in range(taken.images)] == [0, 0, 1, 1]


def test_every_image_of_the_packs_has_the_size_and_the_channels_of_the_data(tmp_path: Path, data: Path) -> None:
    grey = write_data(tmp_path / "grey.npz", colour=False)
    images = prepare(tmp_path / "out", PackPlan(data=str(grey), transfer=str(data), side=8, test=7))
    assert images.pretrain.channels == images.transfer.channels == 1
    for facts in (images.pretrain, images.transfer):
        opened = open_dataset(facts.dataset, split="test")
        assert {np.asarray(opened.read(index).content).shape for index in range(len(opened))} == {(8, 8, 1)}
        assert len(opened) == 7
    assert images.transfer.classes == 5


def test_packs_are_written_once_and_those_of_another_plan_are_refused(tmp_path: Path, data: Path) -> None:
    plan = PackPlan(data=str(data), side=8)
    first = prepare(tmp_path, plan)
    written = (tmp_path / "data" / "pretrain.npz").stat().st_mtime_ns
    assert prepare(tmp_path, plan) == first
    assert (tmp_path / "data" / "pretrain.npz").stat().st_mtime_ns == written
    with pytest.raises(DataError, match="other data or another budget"):
        prepare(tmp_path, PackPlan(data=str(data), side=16))


def test_data_without_a_test_split_is_tested_on_its_val_split(tmp_path: Path, data: Path) -> None:
    with np.load(data) as file:
        arrays = {name: file[name] for name in file.files if not name.startswith("test")}
    np.savez(tmp_path / "two.npz", allow_pickle=False, **arrays)
    images = prepare(tmp_path / "out", PackPlan(data=str(tmp_path / "two.npz"), side=8))
    assert {split: len(open_dataset(images.pretrain.dataset, split=split)) > 0 for split in SPLITS} == dict.fromkeys(SPLITS, True)
    assert len(open_dataset(images.pretrain.dataset, split="test")) == 3 * 6


def test_too_few_classes_to_hold_some_out_are_refused_with_what_helps(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="3 classes, too few") as refused:
        prepare(tmp_path / "out", PackPlan(data=str(write_data(tmp_path / "three.npz", classes=3))))
    assert refused.value.hint == "name another dataset with `transfer`"
    with pytest.raises(ConfigError, match="transfer needs data"):
        PackPlan(transfer="digits")
