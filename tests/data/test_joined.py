"""Joined datasets, with their own or soft labels, and the training batches of them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.data.containers import as_folder, as_zip, pile
from vitlab.config.data import LoaderConfig, SplitRule
from vitlab.data.batch import Pipeline
from vitlab.data.dataset import ImageDataset, RawSample, SoftLabels
from vitlab.data.loader import Loader
from vitlab.data.opening import open_dataset
from vitlab.data.readers.joined import JoinedEntry, Taken, names_digest, open_joined, open_member, write_joined
from vitlab.errors import DataError

WHOLE = SplitRule(val=0.0, test=0.0)
CLASSES = ("class-0", "class-1", "class-2")
SOFT = SoftLabels(
    codes_NK=np.array([[1, 2], [0, 1], [2, 0]], np.int32), probabilities_NK=np.array([[0.75, 0.25], [0.5, 0.5], [1, 0]], np.float32)
)


def entry(dataset: str, **other: object) -> JoinedEntry:
    made = JoinedEntry(dataset=dataset, **other)  # type: ignore[arg-type]
    return JoinedEntry(dataset=dataset, names=names_digest(open_member(made)), **other)  # type: ignore[arg-type]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Nine labelled images of a zip, there twice, and three of a folder of five with soft labels."""
    as_zip(tmp_path / "known.zip", pile(images=3))
    as_folder(tmp_path / "web", {f"some/{number}.jpg": f"web {number}".encode() for number in range(5)})
    path = tmp_path / "study" / "images.json"
    known, web = entry(str(tmp_path / "known.zip"), times=2), entry(f"images:{tmp_path / 'web'}")
    write_joined(path, CLASSES, [(known, None), (web, Taken(rows=np.array([4, 0, 2]), labels=SOFT))])
    return path


def test_images_and_labels_of_all_datasets_come_one_after_the_other(written: Path) -> None:
    dataset = pickle.loads(pickle.dumps(open_dataset(f"joined:{written}", split="train", rule=WHOLE)))
    assert len(dataset) == 2 * 9 + 3
    assert dataset.labels == CLASSES
    assert dataset.read(0).content == dataset.read(9).content == b"image  0 0"
    assert [dataset.read(index).content for index in (18, 19, 20)] == [b"web 4", b"web 0", b"web 2"]
    assert [dataset.label(index) for index in (0, 8, 18, 19, 20)] == [0, 2, 1, 0, 2]
    assert dataset.name(18).endswith("web/some/4.jpg")
    assert len(dataset.digests()) == 21
    assert dataset.soft.targets(np.array([18, 19, 20, 8]), 3).tolist() == [[0, 0.75, 0.25], [0.5, 0.5, 0], [0, 0, 1], [0, 0, 1]]


def test_soft_labels_go_along_when_images_are_taken_and_change_the_fingerprint(written: Path) -> None:
    dataset = open_joined(written)
    assert dataset.soft is not None
    some = dataset.take(np.array([20, 18]))
    assert some.soft is not None
    assert some.soft.targets(np.array([1]), 3).tolist() == [[0, 0.75, 0.25]]
    hard = ImageDataset(
        contents=dataset.contents, rows=dataset.rows, table=dataset.table, labels=dataset.labels, splits=dataset.splits
    )
    assert hard.fingerprint() != dataset.fingerprint()


def test_hard_labels_make_an_ordinary_dataset(written: Path, tmp_path: Path) -> None:
    web = entry(f"images:{tmp_path / 'web'}")
    labels = SoftLabels(codes_NK=SOFT.codes_NK[:, :1], probabilities_NK=np.ones((3, 1), np.float32))
    write_joined(written, CLASSES, [(entry(str(tmp_path / "known.zip")), None), (web, Taken(rows=np.arange(3), labels=labels))])
    dataset = open_joined(written)
    assert dataset.soft is None
    assert dataset.table.codes.tolist()[-3:] == [1, 0, 2]


def test_classes_are_matched_by_name(written: Path, tmp_path: Path) -> None:
    write_joined(written, CLASSES[::-1], [(entry(str(tmp_path / "known.zip")), Taken(rows=np.array([0, 8])))])
    assert open_joined(written).table.codes.tolist() == [2, 0]
    write_joined(written, ("class-0", "other"), [(entry(str(tmp_path / "known.zip")), None)])
    with pytest.raises(DataError, match="class-1"):
        open_joined(written)


def test_a_dataset_that_has_other_images_since_is_refused(written: Path, tmp_path: Path) -> None:
    as_folder(tmp_path / "web", {"some/2b.jpg": b"new"})
    with pytest.raises(DataError, match="other images than when"):
        open_joined(written)


def test_files_that_join_nothing_or_lie_are_refused(written: Path, tmp_path: Path) -> None:
    whole = json.loads(written.read_text())
    labels = written.with_name(whole["sources"][1]["labels"])
    for arrays, why in (
        ({"rows": np.array([5])}, "not among the 5"),
        ({"rows": np.array([-1])}, "not among the 5"),
        ({"rows": np.array([0]), "codes": np.array([[0, 3]]), "shares": np.array([[0.5, 0.5]])}, "outside 0 to 2"),
        ({"rows": np.array([0]), "codes": np.array([[0, 1]]), "shares": np.array([[0.5, 0.6]])}, "add up to 1"),
        ({"rows": np.array([0]), "codes": np.array([[0, 1]]), "shares": np.array([[np.nan, 1]])}, "add up to 1"),
        ({"rows": np.array([0, 1]), "codes": np.array([[0, 1]]), "shares": np.array([[0.5, 0.5]])}, "codes and shares"),
    ):
        np.savez(labels, allow_pickle=False, **arrays)
        with pytest.raises(DataError, match=why):
            open_joined(written)
    for text in ("", "[]", "{}", json.dumps({**whole, "joined": 2}), json.dumps({**whole, "sources": []})):
        written.write_text(text)
        with pytest.raises(DataError, match=r"does not join|not a readable JSON"):
            open_joined(written)
    written.write_text(json.dumps({**whole, "sources": [{"source": f"joined:{written}"}]}))
    with pytest.raises(DataError, match="joined already"):
        open_joined(written)


class Grey:
    """A view that needs no image."""

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        return np.full((2, 2, 3), 128, np.uint8)


def test_a_training_batch_holds_the_soft_labels_of_its_images_and_an_evaluation_batch_their_likeliest_class(
    written: Path,
) -> None:
    dataset = open_joined(written)
    assert dataset.soft is not None
    config = LoaderConfig(batch_size=21, workers=0)
    with Loader(dataset, Pipeline(transform=Grey(), shape=(2, 2, 3)), config=config, train=True) as loader:
        batch = next(iter(loader))
    assert batch.labels.shape == (21, 3)
    assert np.array_equal(batch.labels, dataset.soft.targets(batch.index_B, 3))
    with Loader(dataset, Pipeline(transform=Grey(), shape=(2, 2, 3)), config=config, train=False) as loader:
        assert next(iter(loader)).labels.tolist() == dataset.table.codes.tolist()


def test_classes_are_drawn_alike_by_their_likeliest_class(written: Path) -> None:
    dataset = open_joined(written).take(np.array([0, 3, 4, 5, 20]))  # one of class 0, three of class 1, one of class 2
    config = LoaderConfig(batch_size=300, workers=0, balance=1.0)
    with Loader(dataset, Pipeline(transform=Grey(), shape=(2, 2, 3)), config=config, train=True) as loader:
        likeliest = next(iter(loader)).labels.argmax(1)
    assert np.bincount(likeliest, minlength=3).min() > 70
