"""Class folders: their images in order, and one error with everything that is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.data.containers import as_folder, as_tar, as_zip, pile
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.data.readers.folder import DiskContents, open_folder, open_unlabelled
from vitlab.data.readers.recognise import open_zip
from vitlab.errors import DataError


def test_a_dataset_gives_each_file_its_bytes_name_and_folder_in_the_order_of_class_and_path(tmp_path: Path) -> None:
    files = {"b/2.png": b"two", "b/10.JPG": b"ten", "b/deep/er/1.webp": b"one", "a/x.jpeg": b"x", "é/y.gif": b"y"}
    dataset = open_folder(as_folder(tmp_path, files))
    assert dataset.labels == ("a", "b", "é")
    found = [(dataset.read(index).name, dataset.read(index).content, dataset.read(index).label) for index in range(len(dataset))]
    order = ["a/x.jpeg", "b/10.JPG", "b/2.png", "b/deep/er/1.webp", "é/y.gif"]
    assert found == [(str(tmp_path / name), files[name], "abé".index(name[0])) for name in order]
    assert [dataset.label(index) for index in range(5)] == [label for _, _, label in found]
    assert not dataset.multi_label


@pytest.mark.parametrize("index", [-1, 60])
def test_an_index_outside_is_an_index_error(tmp_path: Path, index: int) -> None:
    dataset = open_folder(as_folder(tmp_path, pile()))
    for ask in (dataset.read, dataset.label):
        with pytest.raises(IndexError):
            ask(index)


def test_debris_and_other_files_are_left_out_and_counted(tmp_path: Path) -> None:
    debris = [".DS_Store", "Thumbs.db", "desktop.ini", "notes.txt", "._000.jpg", "model.pkl", "README"]
    files = pile() | {f"class-0/{name}": b"" for name in debris} | {".git/x.jpg": b"", "__MACOSX/class-0/._000.jpg": b""}
    for dataset in (open_folder(as_folder(tmp_path / "folder", files)), open_zip(as_zip(tmp_path / "it.zip", files))):
        assert len(dataset) == 60
        [note] = dataset.notes
        assert "left out" in note
        assert "hidden" in note
        assert "1 .txt" in note
        assert "1 .pkl" in note


def test_the_fingerprint_changes_with_content_label_and_order_and_not_with_the_place(tmp_path: Path) -> None:
    files = pile()
    fingerprint = open_folder(as_folder(tmp_path / "a", files)).fingerprint()
    assert open_folder(as_folder(tmp_path / "b", files)).fingerprint() == fingerprint
    moved = {name.replace("class-2/000", "class-1/zzz"): content for name, content in files.items()}
    changed = {**files, "class-1/004.jpg": b"other"}
    renamed = {name.replace("class-0", "class-x"): content for name, content in files.items()}
    fewer = dict(list(files.items())[:-1])
    others = [open_folder(as_folder(tmp_path / str(n), pile_)) for n, pile_ in enumerate((moved, changed, renamed, fewer))]
    assert len({fingerprint, *(dataset.fingerprint() for dataset in others)}) == 5


def test_a_fingerprint_that_was_remembered_follows_a_file_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.setattr("vitlab.data.readers.folder.WORTH_REMEMBERING", 1)
    files = pile()
    dataset = open_folder(as_folder(tmp_path, files))
    for name in files:
        os.utime(tmp_path / name, (1_000_000_000, 1_000_000_000))
    monkeypatch.setattr("vitlab.io.files.time.time_ns", lambda: 2**63 - 1)  # long after
    first = dataset.fingerprint()
    assert list(own_cache.rglob("*.npz"))
    reads: list[int] = []
    read = DiskContents.read

    def counted(self: DiskContents, row: int) -> bytes:
        reads.append(row)
        return read(self, row)

    monkeypatch.setattr(DiskContents, "read", counted)
    assert dataset.fingerprint() == first
    assert reads == []
    (tmp_path / "class-1/003.jpg").write_bytes(b"IMAGE  1 3")  # as many bytes
    os.utime(tmp_path / "class-1/003.jpg", (1_000_000_000, 1_000_000_000))
    assert dataset.fingerprint() != first
    assert len(reads) == 1


def test_damage_to_what_was_remembered_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr("vitlab.data.readers.folder.WORTH_REMEMBERING", 1)
    monkeypatch.setattr("vitlab.io.files.time.time_ns", lambda: 2**63 - 1)
    dataset = open_folder(as_folder(tmp_path, pile()))
    first = dataset.fingerprint()
    [kept] = own_cache.rglob("*.npz")
    whole = kept.read_bytes()
    for damaged in (b"", whole[:100], whole[:-1], bytes(len(whole)), whole[:300] + b"\xff" + whole[301:]):
        kept.write_bytes(damaged)
        assert dataset.fingerprint() == first


def test_a_file_that_goes_away_is_named_when_it_is_read(tmp_path: Path) -> None:
    dataset = open_folder(as_folder(tmp_path, pile()))
    (tmp_path / "class-0" / "000.jpg").unlink()
    with pytest.raises(DataError, match=r"class-0/000.jpg cannot be read"):
        dataset.read(0)
    with pytest.raises(DataError, match=r"class-0/000.jpg cannot be read"):
        dataset.fingerprint()


def test_linked_files_and_classes_are_followed(tmp_path: Path) -> None:
    as_folder(tmp_path / "store", pile())
    for label in range(3):
        (tmp_path / "view" / f"class-{label}").mkdir(parents=True)
        for file in (tmp_path / "store" / f"class-{label}").iterdir():
            (tmp_path / "view" / f"class-{label}" / file.name).symlink_to(file)
    (tmp_path / "links").mkdir()
    for label in range(3):
        (tmp_path / "links" / f"class-{label}").symlink_to(tmp_path / "store" / f"class-{label}")
    prints = {open_folder(tmp_path / name).fingerprint() for name in ("store", "view", "links")}
    assert len(prints) == 1


# which folders are parts


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    files = {"car/1.jpg": b"1", "bus/1.jpg": b"2", "train/1.jpg": b"3"}
    assert open_folder(as_folder(tmp_path, files)).labels == ("bus", "car", "train")


def refusal(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_dataset(root, split="all")
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_folder_beside_the_splits_that_holds_images_is_refused(tmp_path: Path) -> None:
    files = pile(start="train/") | pile(start="val/") | {"extra/1.jpg": b""}
    assert "extra: is beside train, which looks like a split" in refusal(as_folder(tmp_path, files))


def test_a_folder_beside_the_splits_without_images_is_left_alone(tmp_path: Path) -> None:
    files = pile(start="train/") | pile(start="val/") | {"annotations/list.xml": b"", "LICENSE": b""}
    assert len(open_dataset(as_folder(tmp_path, files), split="all")) == 120


def test_two_folders_that_say_the_same_split_are_refused(tmp_path: Path) -> None:
    assert "both mean val" in refusal(as_folder(tmp_path, pile(start="val/") | pile(start="valid/")))


def test_splits_that_hold_no_class_folders_are_refused_as_classes(tmp_path: Path) -> None:
    assert "outside any class folder" in refusal(as_folder(tmp_path, {"train/1.jpg": b"", "val/2.jpg": b""}))


def test_test_images_may_have_no_classes(tmp_path: Path) -> None:
    folder = as_folder(tmp_path, pile(start="train/") | {f"test/{number}.jpg": b"%d" % number for number in range(7)})
    test = open_dataset(folder, split="test")
    assert [test.label(index) for index in range(len(test))] == [None] * 7
    assert len(open_dataset(folder, split="train+val")) == 60
    assert isinstance(test, ImageDataset)
    assert "its images have no labels" in test.notes[0]


def test_images_without_labels_keep_declared_splits(tmp_path: Path) -> None:
    files = {f"train/{number}.jpg": b"%d" % number for number in range(5)} | {"val/deep/1.jpg": b"v"}
    folder = as_folder(tmp_path, files)
    assert len(open_dataset(f"images:{folder}", split="train")) == 5
    assert len(open_dataset(f"images:{folder}", split="val")) == 1
    assert len(open_unlabelled(as_folder(folder, {"other.jpg": b""}))) == 7


def test_a_folder_alone_around_everything_is_passed_through_and_said(tmp_path: Path) -> None:
    files = {f"pets/v1/{name}": content for name, content in pile().items()}
    for dataset in (
        open_folder(as_folder(tmp_path / "folder", files)),
        open_zip(as_zip(tmp_path / "it.zip", files)),
        open_dataset(as_tar(tmp_path / "it.tar", files), split="all"),
    ):
        assert isinstance(dataset, ImageDataset)
        assert dataset.labels == ("class-0", "class-1", "class-2")
        assert "the folder pets/v1 is used as the root" in dataset.notes


def test_an_empty_class_folder_is_named_and_left_out(tmp_path: Path) -> None:
    as_folder(tmp_path, {f"{label}/{number}.jpg": b"image" for label in ("a", "b") for number in range(3)})
    (tmp_path / "nothing").mkdir()
    dataset = open_dataset(tmp_path, split="all")
    assert dataset.labels == ("a", "b")
    assert isinstance(dataset, ImageDataset)
    assert "class folders without an image are left out: nothing" in dataset.notes
