"""PatchCamelyon's own HDF5 files, packed and unpacked, in miniature."""

from __future__ import annotations

import gzip
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from vitlab.data.opening import open_dataset
from vitlab.data.readers.array_files import CAMELYON_CLASSES, has_camelyon, open_camelyon
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError
from vitlab.io.cache import cache_folder

h5py = pytest.importorskip("h5py", reason="needs vitlab[hdf5]")

STEM = "camelyonpatch_level_2_split"
COUNTS = (("train", 12), ("valid", 5), ("test", 7))


def patches(word: str, count: int) -> NDArray[np.uint8]:
    return np.random.default_rng(len(word)).integers(0, 256, (count, 12, 12, 3), np.uint8)


def written(path: Path, name: str, values: NDArray[np.generic], **how: object) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=values, **how)
    return path


@pytest.fixture
def camelyon(tmp_path: Path) -> Path:
    """As downloaded and unpacked, but for the size; labels are (N, 1, 1, 1)."""
    for word, count in COUNTS:
        written(tmp_path / f"{STEM}_{word}_x.h5", "x", patches(word, count))
        written(tmp_path / f"{STEM}_{word}_y.h5", "y", (np.arange(count) % 2).astype(np.uint8).reshape(-1, 1, 1, 1))
    return tmp_path


def pack(folder: Path) -> None:
    for file in list(folder.glob("*.h5")):
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chunks", [None, (4, 6, 6, 3)])
def test_patches_labels_and_splits_are_read(camelyon: Path, packed: bool, chunks: tuple[int, ...] | None) -> None:
    written(camelyon / f"{STEM}_valid_x.h5", "x", patches("valid", 5), chunks=chunks, compression="gzip" if chunks else None)
    if packed:
        pack(camelyon)
    dataset = open_camelyon(camelyon)
    assert dataset.labels == CAMELYON_CLASSES
    assert dataset.splits.tolist() == [TRAIN] * 12 + [VAL] * 5 + [TEST] * 7
    assert dataset.table.codes.tolist() == [0, 1] * 6 + [0, 1, 0, 1, 0] + [0, 1, 0, 1, 0, 1, 0]
    again = pickle.loads(pickle.dumps(dataset))
    everything = np.concatenate([patches(word, count) for word, count in COUNTS])
    for index in (0, 11, 12, 16, 17, 23):
        assert np.array_equal(again.read(index).content, everything[index])
    assert "image 4" in dataset.name(16)
    assert str(camelyon) in dataset.name(16), "named by the file the user has, not by where it was unpacked"


def test_packed_and_unpacked_are_the_same_data(camelyon: Path, tmp_path: Path) -> None:
    before = open_camelyon(camelyon).fingerprint()
    pack(camelyon)
    assert open_camelyon(camelyon).fingerprint() == before


def test_the_folder_is_known_by_its_files(camelyon: Path) -> None:
    assert has_camelyon(camelyon)
    assert len(open_dataset(str(camelyon), split="train")) == 12
    assert len(open_dataset(f"pcam:{camelyon}", split="all")) == 24


def test_a_packed_file_is_unpacked_once_and_again_only_when_it_changes(camelyon: Path) -> None:
    pack(camelyon)
    open_camelyon(camelyon)
    kept = {file: file.stat().st_mtime_ns for file in (cache_folder() / "unpacked").rglob("*.h5")}
    assert len(kept) >= 6
    open_camelyon(camelyon)
    assert kept == {file: file.stat().st_mtime_ns for file in (cache_folder() / "unpacked").rglob("*.h5")}
    other = written(camelyon / "other.h5", "x", patches("other", 12))
    (camelyon / f"{STEM}_train_x.h5.gz").write_bytes(gzip.compress(other.read_bytes()))
    assert np.array_equal(open_camelyon(camelyon).read(3).content, patches("other", 12)[3])
    assert len(list((cache_folder() / "unpacked").rglob("*.h5"))) == len(kept), "what it was before is not kept"


@pytest.mark.parametrize("damage", ["cut", "flip", "text"])
def test_a_packed_file_that_is_damaged_is_refused_and_leaves_nothing(camelyon: Path, damage: str) -> None:
    pack(camelyon)
    file = camelyon / f"{STEM}_train_x.h5.gz"
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[-6] ^= 1  # of the checksum
    file.write_bytes({"cut": bytes(content[:-20]), "flip": bytes(content), "text": b"not packed"}[damage])
    with pytest.raises(DataError, match=r"train_x.*damaged or cut off"):
        open_camelyon(camelyon)
    assert not list((cache_folder() / "unpacked").rglob("*train_x.h5"))
    assert not list((cache_folder() / "unpacked").rglob(".partial*"))


def test_without_h5py_the_error_says_what_to_install(camelyon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match="need h5py") as caught:
        open_camelyon(camelyon)
    assert caught.value.hint == "pip install 'vitlab[hdf5]'"


def test_files_that_are_missing_are_named(camelyon: Path) -> None:
    (camelyon / f"{STEM}_valid_y.h5").unlink()
    with pytest.raises(DataError, match="no camelyonpatch_level_2_split_valid_y"):
        open_camelyon(camelyon)
    with pytest.raises(DataError, match="no camelyonpatch_level_2_split_train_x"):
        open_camelyon(camelyon / "nowhere")


def test_files_that_lie_are_refused(camelyon: Path) -> None:
    images, labels = camelyon / f"{STEM}_train_x.h5", camelyon / f"{STEM}_train_y.h5"
    good = images.read_bytes()
    for values, why in (
        (np.zeros((12, 4, 4), np.uint8), "but must be"),
        (np.zeros((12, 4, 4, 2), np.uint8), "but must be"),
        (np.zeros((12, 4, 4, 3), np.float32), "float32, but must be bytes"),
        (np.zeros((11, 4, 4, 3), np.uint8), "11 images and 12 labels"),
    ):
        written(images, "x", values)
        with pytest.raises(DataError, match=why):
            open_camelyon(camelyon)
    written(images, "z", patches("train", 12))
    with pytest.raises(DataError, match="array x"):
        open_camelyon(camelyon)
    images.write_bytes(good[: len(good) // 2])
    with pytest.raises(DataError, match="not an HDF5 file"):
        open_camelyon(camelyon)
    images.write_bytes(good)
    written(labels, "y", np.full(12, 2, np.uint8))
    with pytest.raises(DataError, match="outside 0 to 1"):
        open_camelyon(camelyon)


def test_images_of_other_files_are_never_followed(camelyon: Path) -> None:
    images = camelyon / f"{STEM}_train_x.h5"
    elsewhere = written(camelyon / "elsewhere.h5", "x", patches("train", 12))
    with h5py.File(images, "w") as file:
        file["x"] = h5py.ExternalLink(str(elsewhere), "/x")
    with pytest.raises(DataError, match="no array x of its own"):
        open_camelyon(camelyon)
    layout = h5py.VirtualLayout(shape=(12, 12, 12, 3), dtype=np.uint8)
    layout[:] = h5py.VirtualSource(str(elsewhere), "x", shape=(12, 12, 12, 3))
    with h5py.File(images, "w") as file:
        file.create_virtual_dataset("x", layout)
    with pytest.raises(DataError, match="no array x of its own"):
        open_camelyon(camelyon)
    with h5py.File(images, "w") as file:
        file.create_dataset("x", (12, 12, 12, 3), np.uint8, external=[(str(camelyon / "secret"), 0, h5py.h5f.UNLIMITED)])
    with pytest.raises(DataError, match="no array x of its own"):
        open_camelyon(camelyon)


def test_a_file_that_changes_while_it_is_read_is_refused(camelyon: Path) -> None:
    dataset = open_camelyon(camelyon)
    dataset = pickle.loads(pickle.dumps(dataset))
    written(camelyon / f"{STEM}_train_x.h5", "x", np.zeros((40, 12, 12, 3), np.uint8))
    with pytest.raises(DataError, match="has changed"):
        dataset.read(0)
