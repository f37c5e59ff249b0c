"""ReaL labels are found for every image, or the file is refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from vitlab.errors import DataError
from vitlab.evaluation.label_mapping import read_real

IMAGES = [
    "data/val/ILSVRC2012_val_00000003.JPEG",
    "data/val/ILSVRC2012_val_00000001.JPEG",
    "data/val/ILSVRC2012_val_00000002.JPEG",
]
NAMES = ("tench", "goldfish", "great white shark", "crane", "crane")


def real(path: Path | str, images: list[str] = IMAGES) -> tuple[tuple[int, ...], ...]:
    return read_real(str(path), images, NAMES, classes=5)


def test_the_authors_list_goes_by_the_numbers_in_file_names(tmp_path: Path) -> None:
    file = tmp_path / "real.json"
    file.write_text(json.dumps([[1], [], [0, 4]]))
    assert real(file) == ((0, 4), (1,), ())


def test_an_object_goes_by_the_end_of_the_path(tmp_path: Path) -> None:
    file = tmp_path / "real.json"
    names = ["ILSVRC2012_val_00000001.JPEG", "val/ILSVRC2012_val_00000002.JPEG", IMAGES[0]]
    file.write_text(json.dumps({names[0]: ["goldfish", 2], names[1]: [], names[2]: 0}))
    assert real(file) == ((0,), (1, 2), ())


@pytest.mark.parametrize(
    "text",
    [
        "file,label,real_labels\n{0},9,0 1\n{1},9,\n{2},9,3|4\n",
        "path\treal\n{0}\t0;1\n{1}\t\n{2}\t 3 4 \n",
        "\ufefffile,real_labels\r\n{0},tench|goldfish\r\n{1},\r\n{2},3;4\r\n",
    ],
)
def test_a_table_parts_several_classes_and_takes_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(text.format(*(Path(name).name for name in IMAGES)), encoding="utf-8")
    assert real(file) == ((0, 1), (), (3, 4))


def test_a_file_inside_a_zip_is_read_there(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("in/real.csv", "file,real_labels\n" + "".join(f"{Path(name).name},1\n" for name in IMAGES))
    assert real(f"{tmp_path}/data.zip/in/real.csv") == ((1,), (1,), (1,))
    with pytest.raises(DataError, match="has no file"):
        real(f"{tmp_path}/data.zip/real.csv")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.json", "[[0]]", "has none from 1 to 1"),
        ("a.json", "3", "neither a JSON object nor a JSON list"),
        ("a.json", "{", "not JSON"),
        ("a.json", '{"ILSVRC2012_val_00000001.JPEG": [0]}', "does not know 2 of 3 images"),
        ("a.json", "[[0.5], [], []]", "where classes should be"),
        ("a.csv", "a,b\n1,2\n", "has the columns a, b"),
        ("a.csv", "", "columns of no header"),
        ("a.csv", "file,real\nx.jpg,0\nx.jpg,0\n", "twice"),
        ("a.csv", "file,real\n" + "".join(f"{name},5\n" for name in IMAGES), "class 5, and the model has 0 to 4"),
        ("a.csv", "file,real\n" + "".join(f"{name},crane\n" for name in IMAGES), "the name of more than one"),
        ("a.csv", "file,real\n" + "".join(f"{name},gold\n" for name in IMAGES), "gold is not a class"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=complaint):
        real(tmp_path / name)


def test_images_without_numbers_need_an_object(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("[[0], [1]]")
    with pytest.raises(DataError, match=r"cat\.jpg has none"):
        real(tmp_path / "real.json", ["cat.jpg"])
    with pytest.raises(DataError, match="cannot be read"):
        real(tmp_path / "nowhere.csv")
