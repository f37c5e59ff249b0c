"""open_dataset opens every format; every dataset keeps the protocol, in every process."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import processes
from tests.data.containers import as_csv, as_folder, as_tar, as_zip, pile
from tests.data.test_classic_files import cifar10, mnist, svhn
from vitlab.config.data import Split, SplitRule, SyntheticConfig
from vitlab.data.dataset import Dataset, RawSample
from vitlab.data.opening import open_dataset
from vitlab.errors import ConfigError, DataError


def folder(root: Path) -> str:
    return str(as_folder(root / "folder", pile()))


def listed(root: Path) -> str:
    as_folder(root, pile())
    return str(as_csv(root / "it.csv", [("path", "label"), *((name, name[:7]) for name in pile())]))


def classic(make: Callable[[Path], object], kind: str) -> Callable[[Path], str]:
    def made(root: Path) -> str:
        make(root)
        return f"{kind}:{root}"

    return made


def npz(root: Path) -> str:
    np.savez(root / "it.npz", images=np.arange(60 * 4, dtype=np.uint8).reshape(60, 2, 2), labels=np.arange(60) % 3)
    return str(root / "it.npz")


def parquet(root: Path) -> str:
    from tests.data.test_parquet import pq, table

    pq.write_table(table(), root / "it.parquet")
    return str(root / "it.parquet")


EVERY_KIND: dict[str, Callable[[Path], str]] = {
    "folder": folder,
    "images": lambda root: f"images:{as_folder(root, pile())}",
    "zip": lambda root: str(as_zip(root / "it.zip", pile())),
    "manifest": listed,
    "shards": lambda root: str(as_tar(root / "it.tar", pile())),
    "npz": npz,
    "mnist": classic(mnist, "mnist"),
    "cifar10": classic(cifar10, "cifar10"),
    "svhn": classic(lambda root: svhn(root, count=40), "svhn"),
    "parquet": parquet,
    "digits": lambda _: "digits",
    "synthetic": lambda _: "synthetic:classes=4,samples_per_class=5",
}


def same(first: RawSample, second: RawSample) -> bool:
    return (first.name, first.label) == (second.name, second.label) and np.array_equal(
        np.frombuffer(first.content, np.uint8) if isinstance(first.content, bytes) else first.content,
        np.frombuffer(second.content, np.uint8) if isinstance(second.content, bytes) else second.content,
    )


@pytest.fixture(params=EVERY_KIND)
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    return open_dataset(EVERY_KIND[request.param](tmp_path), split="all")


def test_every_dataset_keeps_the_protocol(dataset: Dataset) -> None:
    assert isinstance(dataset.labels, tuple)
    assert dataset.multi_label is False
    assert len(dataset) > 3
    for index in (0, len(dataset) - 1):
        sample = dataset.read(index)
        assert sample.label == dataset.label(index)
        assert isinstance(sample.name, str)
        assert sample.label is None or sample.label in range(len(dataset.labels))
        if not isinstance(sample.content, bytes):
            assert sample.content.dtype == np.uint8
            assert sample.content.ndim == 3
    assert dataset.fingerprint() == dataset.fingerprint()
    for outside in (-1, len(dataset)):
        with pytest.raises(IndexError):
            dataset.read(outside)
        with pytest.raises(IndexError):
            dataset.label(outside)


def test_every_dataset_is_the_same_after_a_journey_to_another_process(dataset: Dataset) -> None:
    dataset.read(0)  # opens its files, which do not travel
    again = pickle.loads(pickle.dumps(dataset))
    assert again.fingerprint() == dataset.fingerprint()
    for index in (len(dataset) - 1, 0, len(dataset) // 2):
        assert same(again.read(index), dataset.read(index))


def in_another_process(dataset: Dataset, index: int, answer: multiprocessing.Queue[RawSample]) -> None:
    answer.put(dataset.read(index))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_dataset_read_here_and_in_a_child_gives_the_same(tmp_path: Path, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    dataset = open_dataset(as_zip(tmp_path / "it.zip", pile()), split="all")
    here = dataset.read(7)
    answer = context.Queue()
    child = context.Process(target=in_another_process, args=(dataset, 7, answer))
    child.start()
    assert same(answer.get(timeout=processes.LIMIT), here)
    child.join(processes.LIMIT)
    assert child.exitcode == 0


def test_two_openings_give_the_same_dataset(tmp_path: Path) -> None:
    for kind, make in EVERY_KIND.items():
        root = tmp_path / kind
        root.mkdir()
        spec = make(root)
        assert open_dataset(spec).fingerprint() == open_dataset(spec).fingerprint()


def test_a_path_means_the_same_as_its_text_and_may_hold_a_colon(tmp_path: Path) -> None:
    root = as_folder(tmp_path / "a:b", pile())
    assert open_dataset(root).fingerprint() == open_dataset(str(root)).fingerprint() == open_dataset(f"folder:{root}").fingerprint()


def test_a_folder_called_like_a_built_in_set_is_reached_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_folder(tmp_path / "digits", pile())
    monkeypatch.chdir(tmp_path)
    assert len(open_dataset("digits", split="all")) == 1797
    assert len(open_dataset("./digits", split="all")) == 60


@pytest.mark.parametrize(
    ("spec", "reason", "hint"),
    [
        ("digit", "does not exist", "did you mean digits?"),
        ("cifar-10:/tmp", "no reader called 'cifar-10'", "did you mean cifar10"),
        ("imagenet:/tmp", "no reader called 'imagenet'", "readers are folder, images"),
        ("cifar10:", "has no path", "give cifar10:PATH"),
        ("", "data has no name", "a folder, digits"),
        ("a\0b", "data has no name", "a folder, digits"),
        ("ftp://example.org/x.zip", "is not an address that vitlab reads", "begins with s3://"),
        ("webdav://bucket/x.tar", "is not an address that vitlab reads", "begins with s3://"),
        ("/nowhere/at/all", "does not exist", "data is a path"),
        ("folder:/nowhere", "does not exist", ""),
        ("synthetic:clases=3", "no setting 'clases=3'", "did you mean classes?"),
        ("synthetic:classes=many", "classes=many is not a number", ""),
        ("synthetic:", "no setting", "settings are kind, classes"),
    ],
)
def test_what_names_no_data_is_refused_with_help(spec: str, reason: str, hint: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        open_dataset(spec)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("kind", ["cifar10", "svhn", "mnist", "folder", "cifar100"])
def test_a_file_where_a_folder_is_meant_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=rf"is not a folder, which {kind} needs"):
        open_dataset(f"{kind}:{tmp_path}/file")


def test_a_file_that_is_nothing_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"is not a dataset in a known format"):
        open_dataset(tmp_path / "notes.txt")


def test_what_the_system_will_not_read_is_a_data_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EVERY_KIND["cifar10"](tmp_path)

    def refused(path: Path, *_: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("vitlab.data.readers.array_files.map_bytes", refused)
    with pytest.raises(DataError, match=r"data_batch_1.bin: Permission denied"):
        open_dataset(spec)


def test_a_column_of_labels_for_data_without_columns_is_refused(tmp_path: Path) -> None:
    for spec in (folder(tmp_path), str(as_zip(tmp_path / "it.zip", pile()))):
        with pytest.raises(DataError, match=r"label_column='x' has no meaning|has no column 'x'"):
            open_dataset(spec, label_column="x")


def test_splits_of_the_synthetic_set_share_classes_and_no_image() -> None:
    config = SyntheticConfig(classes=5, samples_per_class=20)
    rule = SplitRule(val=0.1, test=0.2)
    splits: list[Split] = ["train", "val", "test", "train+val", "all"]
    datasets = {split: open_dataset("synthetic", split=split, rule=rule, synthetic=config) for split in splits}
    assert {split: len(dataset) for split, dataset in datasets.items()} == {
        "train": 100, "val": 10, "test": 20, "train+val": 110, "all": 130,
    }  # fmt: skip
    assert len({dataset.labels for dataset in datasets.values()}) == 1
    names = {split: {dataset.read(index).name for index in range(len(dataset))} for split, dataset in datasets.items()}
    assert names["train"] | names["val"] | names["test"] == names["all"]
    assert names["train"] | names["val"] == names["train+val"]
    assert not names["train"] & names["val"]
    assert not names["val"] & names["test"]
    with pytest.raises(DataError, match=r"synthetic has no val split"):
        open_dataset("synthetic", split="val", rule=SplitRule(val=0), synthetic=config)


def test_the_synthetic_set_is_configured_in_its_spelling_or_by_a_value() -> None:
    spelled = open_dataset("synthetic:kind=strokes,classes=7,samples_per_class=3,image_size=16x24,channels=3,variety=0.5,seed=9")
    config = SyntheticConfig(kind="strokes", classes=7, samples_per_class=3, image_size=(16, 24), channels=3, variety=0.5, seed=9)
    assert spelled.fingerprint() == open_dataset("synthetic", synthetic=config).fingerprint()
    old = "generated:kind=strokes,classes=7,examples=3,image_size=16x24,channels=3,variety=0.5,seed=9"  # as version 0.1 spelled it
    assert open_dataset(old).fingerprint() == spelled.fingerprint()
    with pytest.raises(ConfigError, match=r"kind='stroks'"):
        open_dataset("synthetic:kind=stroks")
    with pytest.raises(DataError, match=r"synthetic is configured"):
        open_dataset("digits", synthetic=config)


def test_opening_data_imports_neither_torch_nor_pillow(tmp_path: Path) -> None:
    spec = folder(tmp_path)
    script = (
        "import sys\nfrom vitlab.data.opening import open_dataset\n"
        f"dataset = open_dataset({spec!r})\ndataset.read(0)\n"
        "assert not {'torch', 'PIL', 'pyarrow', 'sklearn'} & set(sys.modules)\n"
    )
    processes.run([sys.executable, "-c", script])
