"""An index finds what is nearest, whatever its format, and refuses what is not one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.inference import small
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError
from vitlab.inference import Engine, Predictor
from vitlab.inference.search_index import ENDINGS, Index, embed, new_index

Features = NDArray[np.float32]
CLASSES = ("cat", "dog", "owl")


def filled(path: Path, features_ND: Features, *, multi_label: bool = False) -> Index:
    with new_index(path, classes=CLASSES, multi_label=multi_label, digest="d" * 64, made_by="model.safetensors") as index:
        for row, features_D in enumerate(features_ND):
            label = tuple(code for code in range(3) if row >> code & 1) if multi_label else None if row == 1 else row % 3
            index.add(f"{row}.jpg", label, features_D)
    return Index(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_nearest_are_those_of_the_largest_cosine(tmp_path: Path, ending: str) -> None:
    rng = np.random.default_rng(0)
    features_ND = rng.normal(size=(20_000, 8)).astype(np.float32)  # more than one block
    query_D = rng.normal(size=8).astype(np.float32)
    index = filled(tmp_path / f"index{ending}", features_ND)
    cosine_N = features_ND @ query_D / np.linalg.norm(features_ND, axis=1) / np.linalg.norm(query_D)
    best = np.argsort(-cosine_N)[:7]
    found = index.nearest(query_D, 7)
    assert [item.name for item in found] == [f"{row}.jpg" for row in best]
    assert [item.label for item in found] == [CLASSES[row % 3] if row != 1 else None for row in best]
    np.testing.assert_allclose([item.similarity for item in found], cosine_N[best], rtol=1e-4)
    assert (len(index), index.width, index.digest, index.made_by) == (20_000, 8, "d" * 64, "model.safetensors")


@pytest.mark.parametrize("ending", ENDINGS)
def test_of_equals_the_first_comes_first_and_all_are_given_where_there_are_fewer(tmp_path: Path, ending: str) -> None:
    index = filled(tmp_path / f"index{ending}", np.ones((4, 3), np.float32))
    assert [item.name for item in index.nearest(np.ones(3, np.float32), 9)] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    with pytest.raises(DataError, match="features of width 3, not 4"):
        index.nearest(np.ones(4, np.float32), 1)
    assert index.nearest(np.zeros(3, np.float32), 1)[0].similarity == 0  # no direction, and no division by zero


@pytest.mark.parametrize("ending", ENDINGS)
def test_several_labels_are_kept(tmp_path: Path, ending: str) -> None:
    index = filled(tmp_path / f"index{ending}", np.eye(4, dtype=np.float32), multi_label=True)
    assert index.nearest(np.eye(4, dtype=np.float32)[3], 1)[0].label == "cat|dog"


def test_a_plain_numpy_reader_understands_the_npz(tmp_path: Path) -> None:
    filled(tmp_path / "index.npz", np.eye(4, dtype=np.float32))
    with np.load(tmp_path / "index.npz") as arrays:
        assert arrays["names"].tolist() == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
        assert arrays["labels"].tolist() == [0, -1, 2, 0]
        assert arrays["features"].dtype == np.float32


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_index_that_fails_on_the_way_does_not_appear(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"index{ending}"

    def failing(rows: int) -> None:
        with new_index(path, classes=(), multi_label=False, digest="", made_by="") as index:
            for _ in range(rows):
                index.add("a", None, np.ones(3, np.float32))
            raise ZeroDivisionError

    for rows in (0, 1, 10_000):
        with pytest.raises(ZeroDivisionError):
            failing(rows)
    with pytest.raises(DataError, match="no index to write"), new_index(path, classes=(), multi_label=False, digest="", made_by=""):
        pass
    assert list(tmp_path.iterdir()) == []


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match="neither"),
        new_index(tmp_path / "a.txt", classes=(), multi_label=False, digest="", made_by=""),
    ):
        pass


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "junk.npz").write_bytes(b"junk")
    (tmp_path / "junk.parquet").write_bytes(b"junk")
    np.savez(tmp_path / "other.npz", features=np.eye(3))
    np.savez(tmp_path / "pickle.npz", features=np.array([object()]), allow_pickle=True)
    parts: Any = {
        "labels": np.zeros(3, np.int64),
        "classes": np.array(["a"]),
        "checkpoint": np.array("d"),
        "made_by": np.array("m"),
    }
    np.savez(tmp_path / "short.npz", features=np.eye(3, dtype=np.float32), names=np.array(["a"]), allow_pickle=False, **parts)
    for name in ("junk.npz", "junk.parquet", "other.npz", "pickle.npz", "short.npz"):
        with pytest.raises(DataError, match="not a search index"):
            Index(tmp_path / name)


@pytest.mark.parametrize("ending", ENDINGS)
def test_embedding_a_source_keeps_names_labels_and_features_and_leaves_out_what_cannot_be_read(tmp_path: Path, ending: str) -> None:
    cats, dogs = small.photos(tmp_path / "data" / "cat", 5), small.photos(tmp_path / "data" / "dog", 5, start=5)
    cats[2].write_bytes(b"junk")
    predictor = Predictor(small.checkpoint(), batch_size=3)
    out = tmp_path / f"out{ending}"
    unreadable = embed(predictor.engine, open_dataset(tmp_path / "data", split="all"), out, made_by="here")
    assert [failure.name for failure in unreadable] == [str(cats[2])]
    index = Index(out)
    assert (len(index), index.digest) == (9, predictor.features_digest)
    for path, label in ((cats[0], "cat"), (dogs[3], "dog")):
        (query,) = predictor([path], features=True)
        assert query.features is not None
        best = index.nearest(query.features, 1)[0]
        assert (best.name, best.label) == (str(path), label)
        assert best.similarity == pytest.approx(1, abs=1e-5)


def test_embedding_generated_images_works_too(tmp_path: Path) -> None:
    dataset = open_dataset("synthetic:kind=strokes,classes=3,samples_per_class=2,image_size=32", split="train")
    assert embed(Engine(small.checkpoint()), dataset, tmp_path / "out.npz", made_by="here") == ()
    assert len(Index(tmp_path / "out.npz")) == 6
