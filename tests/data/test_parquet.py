"""Parquet as on the Hugging Face hub: rows, class names and splits are read as they were written."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from vitlab.config.data import Split
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NAMES = ["cat", "ant", "bee"]
CLASS_LABEL = {"names": NAMES, "_type": "ClassLabel"}


def table(
    count: int = 20,
    *,
    first: int = 0,
    labels: list[Any] | None = None,
    features: dict[str, Any] | None = None,
    more: dict[str, Any] | None = None,
) -> Any:
    """Images `image i` with the labels i modulo 3, in the hub's layout."""
    numbers = range(first, first + count)
    images = [{"bytes": f"image {number}".encode(), "path": f"{number}.jpg"} for number in numbers]
    columns: dict[str, Any] = {"image": pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()}))}
    columns["label"] = pa.array([number % 3 for number in numbers] if labels is None else labels)
    found = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}} if features is None else features
    made = pa.table(columns | (more or {}))
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": found}})})


def opened(spec: str | Path, split: Split = "all", *, label_column: str | None = None) -> ImageDataset:
    dataset = open_dataset(spec, split=split, label_column=label_column)
    assert isinstance(dataset, ImageDataset)
    return dataset


def labels_of(dataset: ImageDataset) -> list[object]:
    return [dataset.label(index) for index in range(len(dataset))]


def test_rows_come_with_their_bytes_labels_and_class_names_in_any_order(tmp_path: Path) -> None:
    pq.write_table(table(100), tmp_path / "it.parquet", row_group_size=7)
    dataset = opened(tmp_path / "it.parquet")
    assert dataset.labels == tuple(NAMES)
    for index in (99, 0, 50, 7, 6, 99):
        assert dataset.read(index).content == f"image {index}".encode()
        assert dataset.read(index).label == index % 3
    assert dataset.read(50).name.endswith("it.parquet, row 50")
    again = pickle.loads(pickle.dumps(dataset))
    assert again.read(31).content == b"image 31"
    assert len(pickle.dumps(dataset)) < 10_000


def test_files_named_after_splits_are_these_splits(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, first, count in (
        ("train-00000-of-00002", 0, 20),
        ("train-00001-of-00002", 20, 20),
        ("validation-00000-of-00001", 40, 5),
        ("test-00000-of-00001", 45, 6),
    ):
        pq.write_table(table(count, first=first), tmp_path / "data" / f"{name}.parquet")
    assert [len(opened(tmp_path, split)) for split in ("train", "val", "test")] == [40, 5, 6]
    assert opened(tmp_path, "test").read(0).content == b"image 45"
    assert opened(tmp_path, "test").name(0).endswith("test-00000-of-00001.parquet, row 0")
    assert len(opened(f"parquet:{tmp_path}/data/train-*.parquet")) == 40


def test_without_splits_in_the_names_images_are_divided_by_content(tmp_path: Path) -> None:
    pq.write_table(table(300), tmp_path / "it.parquet", row_group_size=50)
    parts = [opened(tmp_path / "it.parquet", split) for split in ("train", "val", "test")]
    assert sum(map(len, parts)) == 300
    assert len({dataset.fingerprint() for dataset in parts}) == 3


@pytest.mark.parametrize(
    ("labels", "features", "classes", "first"),
    [
        (None, {}, ("0", "1", "2"), 0),
        (["cow", "ant"] * 10, {}, ("ant", "cow"), 1),
        ([[0, 2], []] * 10, {"label": {"feature": CLASS_LABEL, "_type": "Sequence"}}, tuple(NAMES), (0, 2)),
        ([[0, 2], []] * 10, {"label": {"feature": CLASS_LABEL, "_type": "List"}}, tuple(NAMES), (0, 2)),
        ([-1] * 20, None, tuple(NAMES), None),
    ],
)
def test_every_kind_of_label_is_understood(
    tmp_path: Path, labels: list[Any] | None, features: dict[str, Any] | None, classes: tuple[str, ...], first: object
) -> None:
    pq.write_table(table(labels=labels, features=features), tmp_path / "it.parquet")
    dataset = opened(tmp_path / "it.parquet")
    assert (dataset.labels, dataset.label(0)) == (classes, first)


def test_one_of_several_columns_of_labels_is_chosen_by_name(tmp_path: Path) -> None:
    features = {
        "fine": {"names": NAMES, "_type": "ClassLabel"},
        "coarse": {"names": ["pet", "pest"], "_type": "ClassLabel"},
    }
    more = {"fine": pa.array([number % 3 for number in range(20)]), "coarse": pa.array([number % 2 for number in range(20)])}
    pq.write_table(table(features=features, more=more).drop_columns(["label"]), tmp_path / "it.parquet")
    with pytest.raises(DataError, match=r"several columns of class labels: fine, coarse"):
        opened(tmp_path / "it.parquet")
    assert labels_of(opened(tmp_path / "it.parquet", label_column="coarse")) == [0, 1] * 10
    with pytest.raises(DataError, match=r"no column 'other', only image, fine, coarse"):
        opened(tmp_path / "it.parquet", label_column="other")


def test_reading_holds_few_groups_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitlab.data.readers.parquet._HELD", 2000)
    pq.write_table(table(1000), tmp_path / "it.parquet", row_group_size=50)
    dataset = opened(tmp_path / "it.parquet")
    for index in range(0, 1000, 13):
        assert dataset.read(index).content == f"image {index}".encode()
    assert len(dataset.contents._held) < 4  # type: ignore[attr-defined]


def test_a_child_of_a_fork_reads_for_itself(tmp_path: Path) -> None:
    pq.write_table(table(100), tmp_path / "it.parquet", row_group_size=10)
    script = (
        "import os, sys\nfrom vitlab.data.opening import open_dataset\n"
        "source = open_dataset(sys.argv[1], split='all')\nsource.read(0)\nchild = os.fork()\n"
        "assert source.read(95).content == b'image 95'\nassert source.read(3).content == b'image 3'\n"
        "assert source.contents._process == os.getpid()\n"
        "if child:\n    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\nos._exit(0)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "it.parquet")]
    processes.run(command)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table(), tmp_path / "it.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"need pyarrow") as caught:
        opened(tmp_path / "it.parquet")
    assert caught.value.hint == "pip install 'vitlab[parquet]'"


def test_what_is_no_table_of_images_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "it.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"is not a Parquet file"):
        opened(path)
    pq.write_table(pa.table({"label": [1, 2]}), path)
    with pytest.raises(DataError, match=r"has no column of images \(bytes\), only label"):
        opened(path)
    pq.write_table(pa.table({"a": [b"x"], "b": [b"y"]}), path)
    with pytest.raises(DataError, match=r"several columns of bytes: a, b"):
        opened(path)
    pq.write_table(table(0), path)
    with pytest.raises(DataError, match=r"holds no row"):
        opened(path)
    pq.write_table(table(labels=[0.5] * 20, features={}), path)
    with pytest.raises(DataError, match=r"20 faults: .*row 0: its label is not a name"):
        opened(path)
    pq.write_table(table(labels=[0, 7] * 10), path)
    with pytest.raises(DataError, match=r"10 faults: .*row 1: label 7 is outside 0 to 2"):
        opened(path)


def test_damage_is_refused_and_nothing_else_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "it.parquet"
    pq.write_table(table(200), path, row_group_size=50)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 41):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            dataset = opened(path)
            for index in range(0, len(dataset), 20):
                dataset.read(index)
        except DataError:
            refused += 1
    assert refused > 20


def test_a_row_without_bytes_is_named_when_it_is_read(tmp_path: Path) -> None:
    images = pa.array([{"bytes": None, "path": "a.jpg"}, {"bytes": b"b", "path": "b.jpg"}])
    pq.write_table(pa.table({"image": images, "label": ["a", "b"]}), tmp_path / "it.parquet")
    dataset = opened(tmp_path / "it.parquet")
    assert dataset.read(1).content == b"b"
    with pytest.raises(DataError, match=r"row 0 holds no image data"):
        dataset.read(0)


def test_files_of_other_columns_or_that_change_are_refused(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    dataset = opened(tmp_path / "a.parquet")
    pq.write_table(table(first=20).drop_columns(["label"]), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b.parquet has other columns than"):
        opened(f"parquet:{tmp_path}")
    pq.write_table(table(21), tmp_path / "a.parquet")
    os.utime(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"has changed since it was opened"):
        dataset.read(0)
