"""A folder of images is missing, empty, unreadable or not what it should be: one error at the start lists everything."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from tests.data.containers import as_folder, pile
from tests.data.test_folder import refusal
from tests.faults.limits import as_nobody
from vitlab.data.opening import open_dataset
from vitlab.data.readers.folder import open_folder
from vitlab.errors import DataError


def test_a_folder_that_does_not_exist_is_refused_with_what_may_be_meant(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError, match=r"does not exist") as caught:
        open_dataset(tmp_path / "imgaes")
    assert caught.value.hint == "did you mean images?"


def test_a_file_that_does_not_exist_is_not_taken_for_synthetic_data() -> None:
    with pytest.raises(DataError, match=r"nothere.zip does not exist") as caught:
        open_dataset("nothere.zip")
    assert "did you mean" not in (caught.value.hint or "")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert "holds no image" in refusal(tmp_path)
    with pytest.raises(DataError) as caught:
        open_dataset(tmp_path)
    assert ".tif" in (caught.value.hint or "")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").touch()
    assert "holds no image (1 file left out that are not images: 1 .txt)" in refusal(tmp_path)


@pytest.mark.parametrize("names", [["a/1.jpg", "a/2.jpg"], ["around/a/1.jpg"], ["train/a/1.jpg", "val/a/2.jpg"]])
def test_a_single_class_is_refused(tmp_path: Path, names: list[str]) -> None:
    assert "is the only class" in refusal(as_folder(tmp_path, dict.fromkeys(names, b"")))


def test_images_without_class_folders_are_refused_and_can_be_had_without_labels(tmp_path: Path) -> None:
    as_folder(tmp_path, {"1.jpg": b"1", "2.jpg": b"2"})
    assert "2 images and no class folders" in refusal(tmp_path)
    dataset = open_dataset(f"images:{tmp_path}", split="all")
    assert (dataset.labels, len(dataset), dataset.read(1).label) == ((), 2, None)


def test_classes_missing_in_a_split_are_all_listed(tmp_path: Path) -> None:
    files = {"train/a/1.jpg": b"", "train/b/1.jpg": b"", "train/c/1.jpg": b"", "val/a/1.jpg": b"", "val/d/1.jpg": b""}
    message = refusal(as_folder(tmp_path, files))
    for missing in ("val/b", "val/c", "train/d"):
        assert f"{missing}: this class has no image in this split" in message
    assert "3 faults" in message


def test_everything_that_is_wrong_is_in_one_error(tmp_path: Path) -> None:
    as_folder(tmp_path, pile(start="train/") | pile(start="val/", classes=2) | {"train/stray.jpg": b""})
    (tmp_path / "train" / "class-0" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (tmp_path / "train" / "class-0" / "itself.jpg").symlink_to(tmp_path / "train" / "class-0" / "itself.jpg")
    (tmp_path / "train" / "class-1" / "round").symlink_to(tmp_path / "train")
    os.mkfifo(tmp_path / "train" / "class-2" / "pipe.jpg")
    message = refusal(tmp_path)
    assert "6 faults" in message
    for place, reason in (
        ("train/stray.jpg", "outside any class folder"),
        ("train/class-0/gone.jpg", "a link that leads nowhere"),
        ("train/class-0/itself.jpg", "a link that leads nowhere"),
        ("train/class-1/round", "already read (train)"),
        ("train/class-2/pipe.jpg", "not a regular file"),
        ("val/class-2", "this class has no image in this split"),
    ):
        assert f"{place}: " in message
        assert reason in message


def test_more_than_ten_faults_are_counted_and_ten_listed(tmp_path: Path) -> None:
    as_folder(tmp_path, pile())
    for number in range(25):
        (tmp_path / "class-0" / f"gone-{number}.jpg").symlink_to("nowhere")
    message = refusal(tmp_path)
    assert "25 faults" in message
    assert message.count("leads nowhere") == 10
    assert message.endswith("and 15 more")


@pytest.mark.parametrize("name", ["two\nlines", "tab\there", "bell\a", "line\u2028end"])
def test_a_class_whose_name_is_not_one_line_of_text_is_refused(tmp_path: Path, name: str) -> None:
    assert "may not contain line ends" in refusal(as_folder(tmp_path, pile() | {f"{name}/1.jpg": b""}))


def test_a_class_whose_name_is_not_even_text_is_refused(tmp_path: Path) -> None:
    as_folder(tmp_path, pile())
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)  # noqa: PTH102
    with open(folder + b"/1.jpg", "wb"):  # noqa: PTH123
        pass
    message = refusal(tmp_path)
    assert "undecodable byte" in message
    message.encode()  # and it can be printed


def test_two_spellings_of_one_name_are_refused(tmp_path: Path) -> None:
    files = pile() | {"caf\u00e9/1.jpg": b"", "cafe\u0301/1.jpg": b""}
    assert "spelled in two Unicode forms" in refusal(as_folder(tmp_path, files))


def test_files_of_any_name_are_read_and_shown_on_one_line(tmp_path: Path) -> None:
    names = ["new\nline.jpg", "ünï—码 ✓.jpg", "'quote\".jpg", " space .jpg", "-rf.jpg", "a\\b.jpg"]
    files = {f"{label}/{name}": name.encode() for label in "ab" for name in names}
    dataset = open_folder(as_folder(tmp_path, files))
    assert {dataset.read(index).content for index in range(len(dataset))} == {name.encode() for name in names}
    folder = os.fsencode(tmp_path) + b"/a"
    with open(folder + b"/raw\xff\xfe.jpg", "wb") as file:  # noqa: PTH123
        file.write(b"raw")
    dataset = open_folder(tmp_path)
    assert b"raw" in [dataset.read(index).content for index in range(len(dataset))]
    assert pickle.loads(pickle.dumps(dataset)).fingerprint() == dataset.fingerprint()


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_folder(tmp_path, pile())
    (tmp_path / "class-1" / "003.jpg").chmod(0)
    monkeypatch.chdir(tmp_path)
    assert "1 fault: class-1/003.jpg: may not be read" in as_nobody(lambda: refusal(Path()))
    (tmp_path / "class-1" / "003.jpg").chmod(0o644)
    (tmp_path / "class-2").chmod(0)
    assert "class-2: a folder that cannot be read (Permission denied)" in as_nobody(lambda: refusal(Path()))
    (tmp_path / "class-2").chmod(0o755)
