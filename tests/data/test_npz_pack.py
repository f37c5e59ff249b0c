"""Datasets in one .npz: what was saved is read, mapped and not copied; false headers are refused before allocation."""

from __future__ import annotations

import os
import pickle
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import processes
from tests.conftest import real_data
from vitlab.config.data import Split, SplitRule
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError
from vitlab.io.arrays import open_npz

RNG = np.random.default_rng(0)
ENCODED = [RNG.bytes(int(size)) for size in RNG.integers(1, 300, 30)]


def opened(path: Path, split: Split = "all") -> ImageDataset:
    dataset = open_dataset(path, split=split, rule=SplitRule(val=0))
    assert isinstance(dataset, ImageDataset)
    return dataset


def labels_of(dataset: ImageDataset) -> list[object]:
    return [dataset.label(index) for index in range(len(dataset))]


def pack(**changes: Any) -> dict[str, Any]:
    """The arrays of a pack of encoded images."""
    arrays: dict[str, Any] = {
        "jpeg": np.frombuffer(b"".join(ENCODED), np.uint8),
        "offsets": np.cumsum([0, *map(len, ENCODED)]),
        "labels": np.arange(30, dtype=np.int16) % 3,
        "train": np.arange(30) < 20,
        "classes": np.array(["ant", "bee", "cat"]),
    }
    return {name: value for name, value in (arrays | changes).items() if value is not None}


def saved(path: Path, arrays: dict[str, Any], *, packed: bool = False) -> Path:
    (np.savez_compressed if packed else np.savez)(path, **arrays)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_encoded_images_are_those_that_were_put_end_to_end(tmp_path: Path, packed: bool) -> None:
    dataset = opened(saved(tmp_path / "it.npz", pack(), packed=packed))
    assert [dataset.read(index).content for index in range(30)] == ENCODED
    assert labels_of(dataset) == [index % 3 for index in range(30)]
    assert dataset.labels == ("ant", "bee", "cat")
    assert [len(opened(tmp_path / "it.npz", split)) for split in ("train", "test")] == [20, 10]
    again = pickle.loads(pickle.dumps(dataset))
    assert [again.read(index).content for index in range(30)] == ENCODED


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", [(12, 5, 7), (12, 5, 7, 1), (12, 5, 7, 3), (12, 5, 7, 4)])
def test_pixels_are_those_that_were_saved(tmp_path: Path, packed: bool, shape: tuple[int, ...]) -> None:
    images = RNG.integers(0, 256, shape, np.uint8)
    path = saved(tmp_path / "it.npz", {"images": images, "labels": np.arange(12) % 4}, packed=packed)
    dataset = opened(path)
    expected = images[..., None] if len(shape) == 3 else images
    assert np.array_equal(np.stack([dataset.read(index).content for index in range(12)]), expected)
    assert dataset.labels == ("0", "1", "2", "3")
    again = pickle.loads(pickle.dumps(dataset))
    assert np.array_equal(again.read(7).content, expected[7])


def test_the_pixels_of_a_pack_stay_at_home_when_it_is_pickled(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (500, 32, 32, 3), np.uint8)
    dataset = opened(saved(tmp_path / "it.npz", {"images": images, "labels": np.arange(500) % 4}))
    dataset.read(0)
    assert len(pickle.dumps(dataset)) < 20_000


@pytest.mark.parametrize("names", [("{}_images", "{}_labels"), ("x_{}", "y_{}")])
def test_packs_with_arrays_by_split_have_these_splits(tmp_path: Path, names: tuple[str, str]) -> None:
    arrays: dict[str, Any] = {}
    parts: list[Split] = ["train", "val", "test"]
    for number, part in enumerate(parts):
        arrays[names[0].format(part)] = np.full((6 - number, 4, 4), number, np.uint8)
        arrays[names[1].format(part)] = (np.arange(6 - number) % 2)[:, None]
    path = saved(tmp_path / "it.npz", arrays)
    for number, part in enumerate(parts):
        dataset = opened(path, part)
        assert labels_of(dataset) == [index % 2 for index in range(6 - number)]
        assert np.all(dataset.read(0).content == np.full((4, 4, 1), number))


def test_the_same_values_in_another_shape_are_other_images(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (6, 2, 8), np.uint8)
    prints = [
        opened(
            saved(tmp_path / f"{height}.npz", {"images": images.reshape(6, height, -1), "labels": np.arange(6) % 2})
        ).fingerprint()
        for height in (2, 4, 8)
    ]
    assert len(set(prints)) == 3


def test_a_table_of_zeros_and_ones_makes_a_multi_label_dataset(tmp_path: Path) -> None:
    labels = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]])
    dataset = opened(saved(tmp_path / "it.npz", {"images": np.zeros((3, 4, 4), np.uint8), "labels": labels}))
    assert (dataset.labels, dataset.multi_label) == (("0", "1", "2"), True)
    assert labels_of(dataset) == [(0, 2), (), (1,)]


def test_splits_can_be_named(tmp_path: Path) -> None:
    path = saved(tmp_path / "it.npz", pack(train=None, split=np.array(["train"] * 10 + ["val"] * 15 + ["test"] * 5)))
    assert [len(opened(path, split)) for split in ("train", "val", "test")] == [10, 15, 5]
    undeclared = saved(tmp_path / "other.npz", pack(train=None))
    assert sum(len(open_dataset(undeclared, split=split)) for split in ("train", "val", "test")) == 30


# faults


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"labels": np.array([object()] * 30)}, "holds Python objects, which are pickled and never read"),
        ({"labels": np.zeros(30, [("a", "i4"), ("b", "O")])}, "is not a plain array"),
        ({"labels": np.zeros(30, [("a", "i4"), ("b", "i4")])}, "is not a plain array"),
        ({"labels": np.zeros(30, "M8[ns]")}, "is not a plain array"),
        ({"labels": None}, "no array called labels"),
        ({"offsets": None}, "no array called offsets"),
        ({"labels": np.arange(29) % 3}, "30 images and 29 labels"),
        ({"labels": np.arange(30)}, "27 labels are outside 0 to 2; the first is 3, of image 3"),
        ({"labels": np.arange(30) - 1}, "labels are outside 0 to 2; the first is -1"),
        ({"labels": np.arange(30) / 2}, "but must be whole numbers"),
        ({"classes": None, "labels": np.full(30, 10**6)}, "1000001 classes"),
        ({"classes": None, "labels": np.zeros(30, int)}, "1 classes"),
        ({"classes": np.arange(3)}, "must be names"),
        ({"train": np.arange(30)}, "must be True or False"),
        ({"train": np.ones(29, bool)}, "must be True or False"),
        ({"train": None, "split": np.array(["train"] * 29 + ["trian"])}, "must be train, val or test"),
        ({"jpeg": np.zeros(10, np.float32)}, "must be bytes end to end"),
        ({"offsets": np.arange(31)}, "must rise from 0 to"),
        ({"offsets": np.cumsum([0, *map(len, ENCODED)])[::-1]}, "must rise from 0 to"),
        ({"offsets": np.array([-5] + [10] * 30)}, "must rise from 0 to"),
        ({"jpeg": None}, "holds offsets, labels, train, classes, which is not a pack"),
        ({"jpeg": None, "images": np.zeros((30, 4, 4, 3), np.float32)}, "pixels must be uint8"),
        ({"jpeg": None, "images": np.zeros((30, 3, 4, 4), np.uint8)[..., :2]}, "of 1, 3 or 4 channels"),
        ({"jpeg": None, "images": np.asfortranarray(np.zeros((30, 4, 4), np.uint8))}, "Fortran order"),
        ({"jpeg": None, "images": np.zeros((30, 0, 4), np.uint8)}, "holds no image"),
        ({"jpeg": None, "images": np.zeros(30, np.uint8)}, r"images are \(N, H, W\)"),
    ],
)
def test_a_pack_that_is_none_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        opened(saved(tmp_path / "it.npz", pack(**changes)))


class Boom:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def test_a_pickle_in_a_pack_is_never_opened(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = tmp_path / "it.npz"
    np.savez(path, allow_pickle=True, **pack(labels=np.array([Boom(marker)] * 30)))
    with pytest.raises(DataError, match=r"pickled and never read"):
        opened(path)
    path.write_bytes(b"")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", pickle.dumps(Boom(marker)))
    with pytest.raises(DataError, match=r"is not a plain array"):
        opened(path)
    assert not marker.exists()


def header(descr: str, shape: str) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("descr", "shape"),
    [
        ("'|u1'", "(1000000000000,)"),
        ("'<f8'", "(1000000, 1000000)"),
        ("'|u1'", "(9223372036854775807, 9223372036854775807)"),
        ("'|V2147483647'", "(1000,)"),
        ("'|u1'", "(-1,)"),
        ("'<U0'", "(100,)"),
        ("'|u1'", "(101,)"),
        ("'|u1'", "(99,)"),
    ],
)
def test_a_header_that_claims_what_the_file_does_not_hold_is_refused(tmp_path: Path, method: int, descr: str, shape: str) -> None:
    path = tmp_path / "it.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("images.npy", header(descr, shape) + bytes(100))
    with pytest.raises(DataError, match=r"claims .* bytes and has|is not a plain array"):
        open_npz(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x03\x00" + bytes(100),
        b"\x93NUMPY\x01\x00\xff\xff" + b"x" * 70_000,
        header("__import__('os').system('true')", "(1,)"),
        header("[('a', '<f4'), ('a', '<f4')]", "(1,)"),
        header("'|u1'", "(" * 60 + ")" * 60)[:128],
        header("'nonsense'", "(1,)"),
        header("'|u1'", "(1 2,)"),
        header("'<i3'", "(1,)"),
    ],
)
def test_a_header_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "it.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", content)
    with pytest.raises(DataError, match=r"is not a plain array"):
        open_npz(path)


def test_a_bomb_is_refused_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("images.npy", "w", force_zip64=True) as file:
        file.write(header("'|u1'", f"({2**28},)"))
        for _ in range(2**8):
            file.write(bytes(2**20))
    assert path.stat().st_size < 400_000
    script = (
        "import sys, resource\nfrom pathlib import Path\nfrom vitlab.errors import DataError\n"
        "from vitlab.io.arrays import open_npz\n"
        "before = int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
        "try:\n    open_npz(Path(sys.argv[1]))\nexcept DataError as error:\n    print(error.message)\n"
        "print(int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) - before)\n"
    )
    done = processes.run([sys.executable, "-c", script, str(path)])
    message, grown = done.stdout.splitlines()
    assert "(ratio)" in message
    assert int(grown) < 20_000  # kB


def test_a_changed_byte_of_the_pixels_is_noticed_at_the_start(tmp_path: Path) -> None:
    path = saved(tmp_path / "it.npz", pack())
    data = bytearray(path.read_bytes())
    place = data.index(b"".join(ENCODED)[100:120])
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"checksum .*does not match"):
        opened(path)


def test_weights_are_no_pack(tmp_path: Path) -> None:
    path = saved(tmp_path / "weights.npz", {f"layer{number}/kernel": np.zeros((3, 3)) for number in range(20)})
    with pytest.raises(DataError, match=r"layer4/kernel and 15 more, which is not a pack"):
        opened(path)


@pytest.mark.data
def test_cifar10_as_jpeg_has_its_official_splits() -> None:
    path = real_data() / "cifar10_jpeg.npz"
    train, test = open_dataset(path, split="train+val"), open_dataset(path, split="test")
    assert (len(train), len(test)) == (50_000, 10_000)
    assert train.labels[0] == "airplane"
    assert np.bincount([test.label(index) for index in range(10_000)]).tolist() == [1000] * 10  # type: ignore[arg-type]
    content = train.read(12_345).content
    assert isinstance(content, bytes)
    assert content[:2] == b"\xff\xd8"
    assert content[-2:] == b"\xff\xd9"
