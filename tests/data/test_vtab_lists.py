"""Datasets that are lists of files: Kaggle's retinopathy and VTAB-1k."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.containers import as_folder
from vitlab.data.decode import decode
from vitlab.data.opening import open_dataset
from vitlab.data.readers.vtab import encoded_fundus, open_lists, open_retinopathy
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError
from vitlab.io.digests import digest


def retinopathy(root: Path) -> None:
    (root / "trainLabels.csv").write_text("image,level\n10_left,0\n10_right,2\n13_left,4\n")
    (root / "retinopathy_solution.csv").write_text("image,level,Usage\n1_left,1,Private\n1_right,3,Public\n")
    as_folder(root, {f"train/{name}.jpeg": photograph(name) for name in ("10_left", "10_right", "13_left")})
    as_folder(root, {f"test/{name}.jpeg": photograph(name) for name in ("1_left", "1_right")})


def photograph(name: str) -> bytes:
    pixels = np.random.default_rng(list(name.encode())).integers(0, 256, (40, 60, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_kaggle_lists_give_levels_and_splits(tmp_path: Path) -> None:
    retinopathy(tmp_path)
    dataset = open_retinopathy(tmp_path)
    assert dataset.table.codes.tolist() == [0, 2, 4, 1, 3]
    assert dataset.splits.tolist() == [TRAIN, TRAIN, TRAIN, TEST, VAL]
    assert dataset.name(3) == str(tmp_path / "test" / "1_left.jpeg")


def test_eyes_are_seen_made_comparable_and_known_by_that(tmp_path: Path) -> None:
    retinopathy(tmp_path)
    dataset = pickle.loads(pickle.dumps(open_retinopathy(tmp_path)))
    plain = decode(photograph("1_left"), name="1_left")
    assert dataset.read(3).content == encoded_fundus(plain)
    digests = {row.tobytes() for row in dataset.digests()}
    photographs = {digest(photograph(name)) for name in ("10_left", "10_right", "13_left", "1_left", "1_right")}
    assert len(digests) == 5
    assert not digests & photographs, "features of the photographs as they are must not be taken for those of the discs"
    assert len(open_dataset(str(tmp_path), split="train")) == 3


def test_a_photograph_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    retinopathy(tmp_path)
    (tmp_path / "test" / "1_left.jpeg").write_bytes(b"no image")
    with pytest.raises(DataError, match="1_left"):
        open_retinopathy(tmp_path)[3]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("trainLabels.csv", "image,stage\na,1\n", "columns image and level"),
        ("trainLabels.csv", "image,level\n10_left,x\n", "columns image and level"),
        ("trainLabels.csv", "image,level\n10_left,5\n", "class 5"),
        ("trainLabels.csv", "image,level\n99_left,1\n", "no such file"),
        ("retinopathy_solution.csv", "image,level,Usage\n1_left,1,Other\n", "neither Public nor Private"),
        ("retinopathy_solution.csv", "image,level\n1_left,1\n", "neither Public nor Private"),
    ],
)
def test_other_lists_are_refused(tmp_path: Path, name: str, content: str, why: str) -> None:
    retinopathy(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=why):
        open_retinopathy(tmp_path)


def lists(root: Path) -> None:
    for name, count in (("train800", 4), ("val200", 2), ("test", 5)):
        paths = [f"images/{name}/{number}.jpg" for number in range(count)]
        as_folder(root, {path: path.encode() for path in paths})
        (root / f"{name}.txt").write_text("".join(f"{path} {number % 3}\n" for number, path in enumerate(paths)))


def test_lists_give_splits_and_classes(tmp_path: Path) -> None:
    lists(tmp_path)
    dataset = open_lists(tmp_path, classes=3)
    assert dataset.splits.tolist() == [TRAIN] * 4 + [VAL] * 2 + [TEST] * 5
    assert dataset.table.codes.tolist() == [0, 1, 2, 0, 0, 1, 0, 1, 2, 0, 1]
    assert dataset.read(4).content == b"images/val200/0.jpg"
    assert len(dataset.labels) == 3


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("val200.txt", "images/val200/0.jpg\n", "line 1"),
        ("val200.txt", "images/val200/0.jpg cat\n", "line 1"),
        ("val200.txt", "images/val200/0.jpg 3\n", "class 3 is outside 0 to 2"),
        ("test.txt", "images/test/9.jpg 1\n", "no such file"),
        ("test.txt", None, r"test\.txt cannot be read"),
    ],
)
def test_broken_lists_are_named(tmp_path: Path, name: str, content: str | None, why: str) -> None:
    lists(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=why):
        open_lists(tmp_path, classes=3)
