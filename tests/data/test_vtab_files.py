"""The published files of VTAB's datasets, in miniature: they are read correctly, and broken ones are named."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.data.vtab_miniatures import clevr, kitti, kitti_line, matrix, norb, sprites
from vitlab.data.dataset import ImageDataset
from vitlab.data.readers.vtab import clevr_distance, kitti_class, open_clevr, open_dsprites, open_kitti, open_norb
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError


def classes_of(dataset: ImageDataset) -> list[str]:
    return [dataset.labels[code] for code in dataset.table.codes]


# dSprites


@pytest.mark.parametrize("packed", [True, False])
def test_sprites_are_white_on_black_and_their_factors_are_binned(tmp_path: Path, packed: bool) -> None:
    images = sprites(tmp_path / "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz", packed=packed)
    place = open_dsprites(tmp_path, "x")
    assert place.table.codes.tolist() == [(number % 32) // 2 for number in range(40)]
    turn = open_dsprites(tmp_path, "orientation")
    # VTAB: floor(orientation / 2.5)
    assert turn.table.codes.tolist() == [int(np.floor(np.float32(number) / np.float32(2.5))) for number in range(40)]
    assert len(turn.labels) == len(place.labels) == 16
    again = pickle.loads(pickle.dumps(turn))
    for index in (0, 7, 39):
        content = again.read(index).content
        assert isinstance(content, np.ndarray)
        assert np.array_equal(content[:, :, 0], images[index] * 255)
    assert np.array_equal(place.digests(), turn.digests())
    assert len(np.unique(place.digests(), axis=0)) == 40


def test_the_pickled_split_of_sprites_is_never_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Payload:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
            return Path.touch, (marker,)  # type: ignore[return-value]

    images, latents = np.zeros((2, 8, 8), np.uint8), np.zeros((2, 6), np.int64)
    np.savez(tmp_path / "dsprites_x.npz", imgs=images, latents_classes=latents, metadata=np.array([Payload()], dtype=object))
    assert len(open_dsprites(tmp_path, "x")) == 2
    assert not marker.exists()


def test_sprites_may_unpack_to_more_than_other_archives_may(tmp_path: Path) -> None:
    images, latents = np.zeros((5000, 64, 64), np.uint8), np.zeros((5000, 6), np.int64)
    images[:, 0, 0] = np.arange(5000) % 2
    np.savez_compressed(tmp_path / "dsprites_x.npz", imgs=images, latents_classes=latents)
    assert images.nbytes / (tmp_path / "dsprites_x.npz").stat().st_size > 150  # the published file: about 116
    assert len(np.unique(open_dsprites(tmp_path, "x").digests(), axis=0)) == 2


def test_sprites_that_are_not_black_and_white_are_refused(tmp_path: Path) -> None:
    sprites(tmp_path / "dsprites_x.npz", most=3)
    with pytest.raises(DataError, match="zeros and ones"):
        open_dsprites(tmp_path, "x").digests()


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"imgs": np.zeros((2, 8, 8), np.uint8)}, "latents_classes"),
        ({"imgs": np.zeros((2, 8, 8), np.float32), "latents_classes": np.zeros((2, 6), np.int64)}, "float|<f4"),
        ({"imgs": np.zeros((2, 8, 8), np.uint8), "latents_classes": np.zeros((3, 6), np.int64)}, r"\(3, 6\)"),
        ({"imgs": np.zeros((2, 8, 8), np.uint8), "latents_classes": np.full((2, 6), 40, np.int64)}, "outside 0 to 31"),
    ],
)
def test_other_arrays_are_no_sprites(tmp_path: Path, arrays: dict[str, NDArray[np.generic]], why: str) -> None:
    np.savez(tmp_path / "dsprites_x.npz", allow_pickle=True, **arrays)
    with pytest.raises(DataError, match=why):
        open_dsprites(tmp_path, "x")


def test_a_folder_without_sprites_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dsprites_"):
        open_dsprites(tmp_path, "x")


# small NORB


@pytest.mark.parametrize("packed", [True, False])
def test_norb_gives_the_first_camera_and_its_angles(tmp_path: Path, packed: bool) -> None:
    images = norb(tmp_path, packed=packed)
    azimuth, elevation = open_norb(tmp_path, "azimuth"), open_norb(tmp_path, "elevation")
    assert azimuth.table.codes.tolist() == [number % 18 for number in range(20)] * 2
    assert elevation.table.codes.tolist() == [number % 9 for number in range(20)] * 2
    assert (len(azimuth.labels), len(elevation.labels)) == (18, 9)
    assert azimuth.splits.tolist() == [TRAIN] * 20 + [TEST] * 20
    again = pickle.loads(pickle.dumps(azimuth))
    for index in (0, 19, 20, 39):
        content = again.read(index).content
        assert isinstance(content, np.ndarray)
        assert np.array_equal(content[:, :, 0], images["training" if index < 20 else "testing"][index % 20, 0])


def test_norb_that_is_cut_off_damaged_or_lies_is_refused(tmp_path: Path) -> None:
    norb(tmp_path, packed=False)
    (images,) = tmp_path.glob("*-training-dat.mat")
    content = images.read_bytes()
    for broken, why in (
        (content[:-1], "cut off"),
        (content + b"more", "more than its header"),
        (b"\0" * 30, "not a binary matrix"),
        (content[:10], "cannot hold|cut off|not a binary matrix"),
        (struct.pack("<6i", 0x1E3D4C55, 4, 2**30, 2, 2**10, 2**10), "cannot hold"),
        (struct.pack("<6i", 0x1E3D4C55, 4, -4, 2, 6, 8), "cannot hold"),
    ):
        images.write_bytes(broken)
        with pytest.raises(DataError, match=why):
            open_norb(tmp_path, "azimuth").digests()
    packed = gzip.compress(content)
    images.unlink()
    images.with_suffix(".mat.gz").write_bytes(packed[:-200])
    with pytest.raises(DataError, match="damaged or cut off"):
        open_norb(tmp_path, "azimuth").digests()


def test_norb_without_a_file_names_it(tmp_path: Path) -> None:
    norb(tmp_path)
    next(tmp_path.glob("*-testing-info*")).unlink()
    with pytest.raises(DataError, match="testing-info"):
        open_norb(tmp_path, "azimuth")


def test_an_azimuth_between_the_steps_is_refused(tmp_path: Path) -> None:
    norb(tmp_path)
    (facts,) = tmp_path.glob("*-training-info*")
    facts.write_bytes(gzip.compress(matrix(np.full((20, 4), 3, np.int32))))
    with pytest.raises(DataError, match="odd"):
        open_norb(tmp_path, "azimuth")
    assert open_norb(tmp_path, "elevation").table.codes[:20].tolist() == [3] * 20


# CLEVR


@pytest.mark.parametrize("around", ["", "CLEVR_v1.0", "unpacked/CLEVR_v1.0"])
def test_clevr_is_counted_and_measured(tmp_path: Path, around: str) -> None:
    clevr(tmp_path / around)
    counts, distances = open_clevr(tmp_path, "count"), open_clevr(tmp_path, "distance")
    assert classes_of(counts) == ["3 objects", "4 objects", "10 objects", "3 objects"] * 2
    assert counts.table.codes.tolist() == [0, 1, 7, 0] * 2  # VTAB: objects - 3
    assert classes_of(distances) == ["up to 8", "8 to 8.5", "9.5 to 10", "over 10"] * 2
    assert counts.splits.tolist() == [TRAIN] * 4 + [VAL] * 4
    assert (len(counts.labels), len(distances.labels)) == (8, 6)
    content = counts.read(5).content
    assert isinstance(content, bytes)
    assert content.startswith(b"val")


def test_scenes_that_are_none_are_refused(tmp_path: Path) -> None:
    clevr(tmp_path)
    scenes = tmp_path / "scenes" / "CLEVR_val_scenes.json"
    for content in ("{", "[]", '{"scenes": [{"image_filename": "a.png"}]}', '{"scenes": [{"image_filename": "a", "objects": []}]}'):
        scenes.write_text(content)
        with pytest.raises(DataError, match="CLEVR_val_scenes"):
            open_clevr(tmp_path, "count")
    scenes.unlink()
    with pytest.raises(DataError, match="CLEVR_val_scenes"):
        open_clevr(tmp_path, "count")


def test_a_scene_with_too_many_objects_and_a_missing_image_are_named(tmp_path: Path) -> None:
    clevr(tmp_path)
    (tmp_path / "images" / "val" / "CLEVR_val_000002.png").unlink()
    found = json.loads((tmp_path / "scenes" / "CLEVR_train_scenes.json").read_text())
    found["scenes"][1]["objects"] *= 3
    (tmp_path / "scenes" / "CLEVR_train_scenes.json").write_text(json.dumps(found))
    with pytest.raises(DataError, match=r"2 faults.*CLEVR_train_000001.*class 9.*CLEVR_val_000002.*no such file"):
        open_clevr(tmp_path, "count")


@pytest.mark.parametrize(("depth", "bin_"), [(0.1, 0), (8.0, 0), (8.01, 1), (8.5, 1), (9.0, 2), (9.5, 3), (10.0, 4), (10.1, 5)])
def test_a_distance_is_in_the_bin_whose_threshold_it_exceeds(depth: float, bin_: int) -> None:
    assert clevr_distance([depth + 3, depth]) == bin_


# KITTI


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([kitti_line("Car", 8.0), kitti_line("Van", 30)], 0),
        ([kitti_line("Car", 8.1)], 1),
        ([kitti_line("Truck", 46.7), kitti_line("Pedestrian", 2)], 2),
        ([kitti_line("Tram", 3), kitti_line("DontCare", -1000)], 3),
        ([], 3),
        ([kitti_line("Car", -1.2)], 0),
    ],
)
def test_the_closest_vehicle_decides(lines: list[str], code: int) -> None:
    assert kitti_class(lines) == code


def test_kitti_is_in_the_order_of_its_numbers_without_splits(tmp_path: Path) -> None:
    kitti(tmp_path)
    dataset = open_kitti(tmp_path)
    assert dataset.table.codes[:8].tolist() == [0, 0, 0, 1, 1, 1, 1, 2]
    assert set(dataset.splits.tolist()) == {-1}
    assert dataset.read(12).content == b"12"
    assert "drive" in dataset.notes[0]


def test_no_drive_is_in_two_splits_where_the_development_kit_says_which_they_are(tmp_path: Path) -> None:
    kitti(tmp_path, count=60, drives=20)
    dataset = open_kitti(tmp_path)
    drive = np.array([((7 * number) % 60) % 20 for number in range(60)])
    parts = dataset.splits
    for one in np.unique(drive):
        assert len(set(parts[drive == one].tolist())) == 1
    assert [len(set(drive[parts == part].tolist())) for part in (TRAIN, VAL, TEST)] == [16, 2, 2]
    # numpy's frozen generator, seed 123, as TensorFlow Datasets asks it
    names = np.array([f"2011_09_26_drive_{number:04d}_sync" for number in range(20)])
    expected = np.random.RandomState(123).choice(names, 2, replace=False)
    assert set(names[np.unique(drive[parts == TEST])].tolist()) == set(expected.tolist())
    assert not dataset.notes


def test_broken_kitti_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="label_2"):
        open_kitti(tmp_path)
    kitti(tmp_path, drives=5)
    mapping = tmp_path / "devkit" / "mapping" / "train_rand.txt"
    for content, why in (("1,2,x", "drives"), ("0,1,2", "drives"), ("1,2,3", "not among them"), ("1,999", "drives")):
        mapping.write_text(content)
        with pytest.raises(DataError, match=why):
            open_kitti(tmp_path)
    mapping.unlink()
    (tmp_path / "annotations" / "training" / "label_2" / "000003.txt").write_text("Car 1 2\n")
    with pytest.raises(DataError, match=r"000003\.txt"):
        open_kitti(tmp_path)
