"""Sets that come as lists of files: Kaggle's retinopathy, and VTAB-1k as it is passed around."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.piles import as_folder
from vitlab.data.kinds.retinopathy import open_retinopathy
from vitlab.data.kinds.vtab_lists import open_lists
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError


def retinopathy(root: Path) -> None:
    (root / "trainLabels.csv").write_text("image,level\n10_left,0\n10_right,2\n13_left,4\n")
    (root / "retinopathy_solution.csv").write_text("image,level,Usage\n1_left,1,Private\n1_right,3,Public\n")
    as_folder(root, {f"train/{name}.jpeg": name.encode() for name in ("10_left", "10_right", "13_left")})
    as_folder(root, {f"test/{name}.jpeg": name.encode() for name in ("1_left", "1_right")})


def test_kaggle_lists_give_levels_and_parts(tmp_path: Path) -> None:
    retinopathy(tmp_path)
    source = open_retinopathy(tmp_path)
    assert source.table.codes.tolist() == [0, 2, 4, 1, 3]
    assert source.parts.tolist() == [TRAIN, TRAIN, TRAIN, TEST, VAL]
    assert source[3].content == b"1_left"
    assert "btgraham-300" in source.notes[0]


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


def test_lists_give_parts_and_classes(tmp_path: Path) -> None:
    lists(tmp_path)
    source = open_lists(tmp_path, classes=3)
    assert source.parts.tolist() == [TRAIN] * 4 + [VAL] * 2 + [TEST] * 5
    assert source.table.codes.tolist() == [0, 1, 2, 0, 0, 1, 0, 1, 2, 0, 1]
    assert source[4].content == b"images/val200/0.jpg"
    assert len(source.labels) == 3


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
