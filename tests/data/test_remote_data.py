"""A dataset at an address is the dataset on disk: the same images, labels, order and fingerprint, by ranges."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from tests.data.containers import as_csv, as_folder, as_tar, as_zip, pile
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError, StorageError
from vitlab.io import remote
from vitlab.io.address import Address


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """An empty folder in fsspec's memory, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    yield "memory://data"
    if system.exists("/data"):
        system.rm("/data", recursive=True)


def put(root: Path, place: str) -> None:
    """Copy a folder from disk."""
    system = fsspec.filesystem("memory")
    for file in root.rglob("*"):
        if file.is_file():
            system.pipe_file(f"{place}/{file.relative_to(root)}", file.read_bytes())


def opened(spec: str | Path, split: str = "all") -> ImageDataset:
    dataset = open_dataset(spec, split=split)  # type: ignore[arg-type]
    assert isinstance(dataset, ImageDataset)
    return dataset


def same(one: ImageDataset, other: ImageDataset) -> None:
    assert one.fingerprint() == other.fingerprint()
    assert one.labels == other.labels
    assert np.array_equal(one.splits, other.splits)
    assert [one.read(index).content for index in range(len(one))] == [other.read(index).content for index in range(len(other))]


def wds(start: int, count: int) -> dict[str, bytes]:
    """Samples in the WebDataset layout, with bodies of several sizes."""
    files = {}
    for number in range(start, start + count):
        files[f"{number:04d}.jpg"] = f"image {number} ".encode() * (number % 7 * 300 + 1)
        files[f"{number:04d}.cls"] = str(number % 3).encode()
    return files


def parquet(path: Path, files: dict[str, bytes]) -> Path:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images = [{"bytes": content, "path": name} for name, content in files.items() if name.endswith(".jpg")]
    table = pyarrow.table({"image": images, "label": [number % 3 for number in range(len(images))]})
    parquet.write_table(table, path, row_group_size=5)
    return path


def test_class_folders_are_the_same_at_an_address(place: str, tmp_path: Path) -> None:
    root = as_folder(tmp_path / "pile", {**pile(start="train/"), **pile(start="val/", images=4)})
    put(root, place)
    same(opened(place), opened(root))
    same(opened(f"images:{place}"), opened(f"images:{root}"))
    same(opened(place, "val"), opened(root, "val"))


def test_a_list_of_images_is_the_same_at_an_address(place: str, tmp_path: Path) -> None:
    root = as_folder(tmp_path / "pile", pile(images=3))
    as_csv(root / "labels.csv", [("path", "label"), *((name, name[6]) for name in pile(images=3))])
    put(root, place)
    same(opened(place), opened(root))
    same(opened(f"{place}/labels.csv"), opened(root / "labels.csv"))


@pytest.mark.parametrize("method", [0, 8])
def test_a_zip_is_the_same_at_an_address(place: str, tmp_path: Path, method: int) -> None:
    root = tmp_path / "zip"
    root.mkdir()
    as_zip(root / "pile.zip", pile(), method=method)
    put(root, place)
    same(opened(f"{place}/pile.zip"), opened(root / "pile.zip"))


def test_shards_are_the_same_at_an_address_as_a_folder_a_glob_and_braces(place: str, tmp_path: Path) -> None:
    root = tmp_path / "shards"
    root.mkdir()
    for number in range(3):
        as_tar(root / f"train-{number:03d}.tar", wds(20 * number, 20))
    as_tar(root / "val-000.tar", wds(100, 9))
    (root / "classes.txt").write_text("a\nb\nc\n")
    put(root, place)
    same(opened(place), opened(root))
    same(opened(f"{place}/train-*.tar"), opened(f"{root}/train-*.tar"))
    same(opened(f"{place}/train-{{000..002}}.tar"), opened(f"{root}/train-{{000..002}}.tar"))
    same(opened(f"shards:{place}/val-000.tar::{place}/train-001.tar"), opened(f"{root}/val-000.tar::{root}/train-001.tar"))


def test_parquet_is_the_same_at_an_address(place: str, tmp_path: Path) -> None:
    root = tmp_path / "parquet"
    root.mkdir()
    parquet(root / "train-000.parquet", wds(0, 12))
    parquet(root / "train-001.parquet", wds(50, 7))
    put(root, place)
    same(opened(place), opened(root))
    pickled: ImageDataset = pickle.loads(pickle.dumps(opened(place)))
    same(pickled, opened(root))


def test_what_the_record_of_a_run_needs_is_known_without_reading_an_image(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "shards"
    root.mkdir()
    as_tar(root / "train-000.tar", wds(0, 20))
    put(root, place)
    dataset = opened(place)
    monkeypatch.setattr(remote, "read_range", None)
    versions = dataset.contents.versions(dataset.rows)  # type: ignore[attr-defined]
    assert len({bytes(row) for row in versions}) == len(dataset)


def test_a_shard_that_changes_while_it_is_read_is_refused(place: str, tmp_path: Path) -> None:
    root = tmp_path / "shards"
    root.mkdir()
    as_tar(root / "train-000.tar", wds(0, 20))
    put(root, place)
    dataset = opened(place)
    as_tar(root / "train-000.tar", wds(3, 20))
    put(root, place)
    with pytest.raises(DataError, match="has changed since it was opened"):
        dataset.read(0)


@pytest.mark.parametrize("kind", ["cifar10", "npz", "masks", "mnist"])
def test_a_reader_that_needs_a_disk_says_so(place: str, kind: str) -> None:
    with pytest.raises(DataError, match=f"{kind} is not read from an address") as caught:
        opened(f"{kind}:{place}/x")
    assert "shards" in str(caught.value.hint)


def test_nothing_at_an_address_is_one_sentence(place: str) -> None:
    for spec in (place, f"{place}/x.tar", f"shards:{place}/x.tar", f"folder:{place}", f"{place}/x-*.tar"):
        with pytest.raises(DataError, match=r"memory://data") as caught:
            opened(spec)
        assert not isinstance(caught.value, StorageError)


@pytest.mark.parametrize("limit", ["0", "1"])
def test_images_that_are_expected_are_read_in_other_threads(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setenv("VITLAB_REMOTE_CACHE", limit)  # exact ranges, or a block of all
    root = tmp_path / "shards"
    root.mkdir()
    as_tar(root / "train-000.tar", wds(0, 20))
    put(root, place)
    dataset = opened(place)
    threads: list[str] = []
    plain = remote.read_range

    def read_range(address: Address, offset: int, length: int, *, begun: None) -> bytes:
        threads.append(threading.current_thread().name)
        return plain(address, offset, length)

    monkeypatch.setattr(remote, "read_range", read_range)
    dataset.expect([3, 4])
    assert [dataset.read(index).content for index in (3, 4, 5)] == [wds(0, 20)[f"{number:04d}.jpg"] for number in (3, 4, 5)]
    assert [name.startswith("remote") for name in sorted(threads)] == ([True] if limit == "1" else [False, True, True])
