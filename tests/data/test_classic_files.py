"""MNIST's, CIFAR's and SVHN's own files: their pixels and splits, and refusals before anything is allocated."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vitlab.config.data import Split, SplitRule
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError
from vitlab.io.arrays import mat_arrays, read_mat_array

Pixels = NDArray[np.uint8]
RNG = np.random.default_rng(0)


def random_pixels(*shape: int) -> Pixels:
    return RNG.integers(0, 256, shape, np.uint8)


def opened(spec: str | Path, split: Split = "all") -> ImageDataset:
    dataset = open_dataset(spec, split=split, rule=SplitRule(val=0))
    assert isinstance(dataset, ImageDataset)
    return dataset


def pixels_of(dataset: ImageDataset) -> Pixels:
    images = [dataset.read(index).content for index in range(len(dataset))]
    assert all(isinstance(image, np.ndarray) and image.flags.c_contiguous for image in images)
    return np.stack(images)


def labels_of(dataset: ImageDataset) -> list[object]:
    return [dataset.label(index) for index in range(len(dataset))]


# idx


def idx(array: Pixels) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist(folder: Path, *, packed: bool = True, count: int = 40) -> tuple[Pixels, NDArray[np.uint8]]:
    """All pixels and labels of a small set: train, then a quarter as many for test."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = random_pixels(count + count // 4, 28, 28), (np.arange(count + count // 4) % 10).astype(np.uint8)
    for stem, part in (("train", slice(0, count)), ("t10k", slice(count, None))):
        for name, array in ((f"{stem}-images-idx3-ubyte", pixels[part]), (f"{stem}-labels-idx1-ubyte", labels[part])):
            data = idx(array)
            (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)
    return pixels, labels


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_gives_the_pixels_and_labels_of_its_files(tmp_path: Path, packed: bool) -> None:
    pixels, labels = mnist(tmp_path / "deeper", packed=packed)
    dataset = opened(f"mnist:{tmp_path}")
    assert np.array_equal(pixels_of(dataset), pixels[..., None])
    assert labels_of(dataset) == labels.tolist()
    assert [len(opened(f"mnist:{tmp_path}", split)) for split in ("train", "test")] == [40, 10]
    again = pickle.loads(pickle.dumps(dataset))
    assert np.array_equal(pixels_of(again), pixels[..., None])
    assert len(pickle.dumps(dataset)) < 5000  # the pixels stay at home
    assert dataset.read(3).name.endswith("ubyte.gz, image 3" if packed else "ubyte, image 3")


def test_fashion_mnist_has_other_names_for_the_same_labels(tmp_path: Path) -> None:
    mnist(tmp_path)
    assert opened(f"mnist:{tmp_path}").labels == tuple("0123456789")
    assert opened(f"fashion-mnist:{tmp_path}").labels[9] == "Ankle boot"
    assert opened(f"kmnist:{tmp_path}").labels[0] == "o"
    with pytest.raises(DataError, match=r"may be MNIST, Fashion-MNIST or KMNIST"):
        opened(tmp_path)


def test_val_is_held_out_of_train_by_the_pixels(tmp_path: Path) -> None:
    mnist(tmp_path, count=400)
    parts = [open_dataset(f"mnist:{tmp_path}", split=split) for split in ("train", "val", "test")]
    assert len(parts[0]) + len(parts[1]) == 400
    assert len(parts[1]) >= 10
    assert len(parts[2]) == 100


def huge_idx(_: bytes) -> bytes:
    return gzip.compress(bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**32 - 1, 2**16, 2**16) + bytes(5000))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (huge_idx, "cannot hold the"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-1]), "is cut off: it holds"),
        (lambda data: gzip.compress(gzip.decompress(data) + b"more"), "holds more than"),
        (lambda data: data[: len(data) // 2], "damaged or cut off"),
        (lambda data: data[:100] + b"\xff\xff\xff\xff" + data[104:], "is damaged or cut off|is not an idx file"),
        (lambda _: gzip.compress(b"\0\0\x0d\x03" + bytes(100)), "is not an idx file of bytes with 3 axes"),
        (lambda _: gzip.compress(b""), "is not an idx file"),
        (lambda _: b"", "is not an idx file"),
        (lambda data: gzip.decompress(data)[:-1], r"has 31,375 bytes; by its header it should have 31,376"),
    ],
)
def test_idx_files_that_are_not_what_their_header_says_are_refused(
    tmp_path: Path, change: Callable[[bytes], bytes], reason: str
) -> None:
    mnist(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DataError, match=reason):
        opened(f"mnist:{tmp_path}")[0]


def test_labels_that_do_not_fit_the_images_or_the_classes_are_refused(tmp_path: Path) -> None:
    mnist(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx(np.zeros(39, np.uint8))))
    with pytest.raises(DataError, match=r"40 images and 39 labels"):
        opened(f"mnist:{tmp_path}")
    labels.write_bytes(gzip.compress(idx(np.array([3] * 39 + [10], np.uint8))))
    with pytest.raises(DataError, match=r"1 labels are outside 0 to 9; the first is 10, of image 39"):
        opened(f"mnist:{tmp_path}")
    labels.unlink()
    with pytest.raises(DataError, match=r"train has images only"):
        opened(f"mnist:{tmp_path}")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match=r"holds no train-images-idx3-ubyte"):
        opened(f"mnist:{tmp_path}/nothing")


# CIFAR


def cifar10(folder: Path, *, count: int = 12) -> tuple[Pixels, list[int]]:
    folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = random_pixels(6 * count, 32, 32, 3), [number % 10 for number in range(6 * count)]
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for number, name in enumerate(names):
        chosen = range(number * count, (number + 1) * count)
        records = [bytes([labels[index]]) + pixels[index].transpose(2, 0, 1).tobytes() for index in chosen]
        (folder / name).write_bytes(b"".join(records))
    return pixels, labels


def test_cifar10_gives_the_pixels_and_labels_of_its_files(tmp_path: Path) -> None:
    pixels, labels = cifar10(tmp_path / "cifar-10-batches-bin")
    for spec in (f"cifar10:{tmp_path}", tmp_path, tmp_path / "cifar-10-batches-bin"):
        dataset = opened(spec)
        assert np.array_equal(pixels_of(dataset), pixels)
        assert labels_of(dataset) == labels
    assert [len(opened(tmp_path, split)) for split in ("train", "test")] == [60, 12]
    assert dataset.labels[3] == "cat"
    assert len(pickle.dumps(dataset)) < 5000
    assert np.array_equal(pixels_of(pickle.loads(pickle.dumps(dataset))), pixels)


def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path) -> None:
    pixels = random_pixels(10, 32, 32, 3)
    for name, chosen in (("train.bin", range(8)), ("test.bin", range(8, 10))):
        records = [bytes([index % 2, index]) + pixels[index].transpose(2, 0, 1).tobytes() for index in chosen]
        (tmp_path / name).write_bytes(b"".join(records))
    (tmp_path / "fine_label_names.txt").write_text("\n".join(f"fine {number}" for number in range(100)))
    (tmp_path / "coarse_label_names.txt").write_text("\n".join(f"coarse {number}" for number in range(20)))
    fine, coarse = opened(tmp_path), opened(f"cifar100-coarse:{tmp_path}")
    assert (len(fine.labels), labels_of(fine)) == (100, list(range(10)))
    assert (len(coarse.labels), labels_of(coarse)) == (20, [0, 1] * 5)
    assert np.array_equal(pixels_of(fine), pixels)
    assert np.array_equal(pixels_of(coarse), pixels)


def test_cifar_files_that_are_cut_missing_or_wrong_are_refused(tmp_path: Path) -> None:
    cifar10(tmp_path)
    whole = (tmp_path / "data_batch_3.bin").read_bytes()
    (tmp_path / "data_batch_3.bin").write_bytes(whole[:-1])
    with pytest.raises(DataError, match=r"data_batch_3.bin has 36,875 bytes, which is not a multiple of its records"):
        opened(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(b"\x0a" + whole[1:])
    with pytest.raises(DataError, match=r"data_batch_3.bin: 1 labels are outside 0 to 9; the first is 10, of image 0"):
        opened(tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"lacks data_batch_3.bin"):
        opened(f"cifar10:{tmp_path}")


def test_the_pickled_version_of_cifar_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"not even a pickle")
    with pytest.raises(DataError, match=r"lacks data_batch_1.bin") as caught:
        opened(f"cifar10:{tmp_path}")
    assert "never read; take the binary version" in str(caught.value.hint)


def test_pixels_that_changed_since_they_were_listed_are_refused(tmp_path: Path) -> None:
    cifar10(tmp_path)
    again = pickle.loads(pickle.dumps(opened(tmp_path)))
    cifar10(tmp_path, count=13)
    with pytest.raises(DataError, match=r"has changed since it was opened"):
        again[0]


# SVHN


def element(kind: int, data: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}2I", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(name: str, shape: tuple[int, ...], values: bytes, *, kind: int, stored: int, order: str = "<") -> bytes:
    """A numeric array as MATLAB writes it: flags, shape, name, values."""
    body = element(6, struct.pack(f"{order}2I", kind, 0), order)
    body += element(5, struct.pack(f"{order}{len(shape)}i", *shape), order)
    if len(name) <= 4:
        word = (len(name) << 16) | 1
        body += struct.pack(f"{order}I", word) + name.encode().ljust(4, b"\0")
    else:
        body += element(1, name.encode(), order)
    return element(14, body + element(stored, values, order), order)


def packed(data: bytes, order: str = "<") -> bytes:
    squeezed = zlib.compress(data)
    return struct.pack(f"{order}2I", 15, len(squeezed)) + squeezed


def mat(*elements: bytes, order: str = "<") -> bytes:
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}H", 0x0100) + (b"IM" if order == "<" else b"MI")
    return header + b"".join(elements)


def svhn(folder: Path, *, squeeze: bool = True, order: str = "<", count: int = 7) -> tuple[Pixels, list[int]]:
    pixels, digits = random_pixels(2 * count, 32, 32, 3), [number % 10 for number in range(2 * count)]
    for name, part in (("train_32x32.mat", slice(0, count)), ("test_32x32.mat", slice(count, None))):
        x = np.asfortranarray(pixels[part].transpose(1, 2, 3, 0))
        y = np.array([digit or 10 for digit in digits[part]], f"{order}f8")
        elements = [
            matrix("X", x.shape, x.tobytes(order="F"), kind=9, stored=2, order=order),
            matrix("y", (count, 1), y.tobytes(), kind=6, stored=9, order=order),
        ]
        (folder / name).write_bytes(mat(*(packed(each, order) if squeeze else each for each in elements), order=order))
    return pixels, digits


@pytest.mark.parametrize("squeeze", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
def test_svhn_gives_the_pixels_of_its_files_and_ten_is_zero(tmp_path: Path, squeeze: bool, order: str) -> None:
    pixels, digits = svhn(tmp_path, squeeze=squeeze, order=order)
    dataset = opened(tmp_path)
    assert np.array_equal(pixels_of(dataset), pixels)
    assert labels_of(dataset) == digits
    assert dataset.labels == tuple("0123456789")
    assert [len(opened(tmp_path, split)) for split in ("train", "test")] == [7, 7]
    assert np.array_equal(pixels_of(pickle.loads(pickle.dumps(dataset))), pixels)
    assert len(pickle.dumps(dataset)) < 5000


@pytest.mark.peer
@pytest.mark.parametrize("squeeze", [True, False])
def test_arrays_are_read_as_scipy_writes_them(tmp_path: Path, squeeze: bool) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    arrays: dict[str, Any] = {
        "X": random_pixels(4, 3, 2, 5),
        "y": np.arange(5.0)[:, None],
        "a_longer_name": np.arange(6, dtype=np.int16).reshape(2, 3),
        "one": np.array([[7]], np.uint8),
        "empty": np.zeros((0, 3)),
        "text": "not a number",
        "cell": np.array([1, "a"], object),
        "struct": {"inside": np.arange(3)},
        "complex": np.array([[1 + 2j]]),
    }
    memory = io.BytesIO()
    savemat(memory, arrays, do_compression=squeeze)
    path = tmp_path / "it.mat"
    path.write_bytes(memory.getvalue())
    found = {array.name: read_mat_array(array).reshape(array.shape, order="F") for array in mat_arrays(path)}
    assert set(found) == {"X", "y", "a_longer_name", "one", "empty"}
    for name, values in found.items():
        assert np.array_equal(values, arrays[name])


@pytest.mark.parametrize("squeeze", [True, False])
@pytest.mark.parametrize(
    "shape", [(32, 32, 3, 10**9), (2**31 - 1,) * 4, (32, 32, 3, 8), (32, 32, 3, 6), (-32, -32, 3, 7), (1,) * 33]
)
def test_a_mat_array_that_claims_more_than_the_file_holds_is_refused_before_allocation(
    tmp_path: Path, squeeze: bool, shape: tuple[int, ...]
) -> None:
    svhn(tmp_path)
    x = matrix("X", shape, bytes(32 * 32 * 3 * 7), kind=9, stored=2)
    (tmp_path / "train_32x32.mat").write_bytes(mat(packed(x) if squeeze else x))
    with pytest.raises(DataError, match=r"claims \S+ values|an unknown type|a header has"):
        opened(tmp_path)


def test_a_compressed_array_that_ends_too_soon_is_refused_when_it_is_read(tmp_path: Path) -> None:
    svhn(tmp_path)
    whole = (tmp_path / "train_32x32.mat").read_bytes()
    x = matrix("X", (32, 32, 3, 7), bytes(32 * 32 * 3 * 7), kind=9, stored=2)
    y_element = whole[128 + 8 + struct.unpack("<2I", whole[128:136])[1] :]
    (tmp_path / "train_32x32.mat").write_bytes(mat(packed(x[:-5000]), y_element))
    dataset = opened(tmp_path)
    with pytest.raises(DataError, match=r"fewer values than it says"):
        dataset.read(0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"MATLAB 7.3 MAT-file".ljust(200), r"MATLAB 7.3 \(HDF5\), which is not supported"),
        (b"\x89HDF\r\n\x1a\n" + bytes(200), "MATLAB 7.3 .HDF5., which is not supported"),
        (b"", "is not a MATLAB file"),
        (bytes(500), "is not a MATLAB file"),
        (mat(matrix("Z", (1, 1), b"\1", kind=9, stored=2)), "holds Z, but SVHN has X and y"),
        (mat(struct.pack("<2I", 15, 1000) + b"short"), "is cut off: its element at offset 128"),
        (mat(struct.pack("<2I", 15, 8) + b"no zlib!"), "is damaged: Error"),
        (mat(matrix("X", (1, 1), b"\1", kind=9, stored=99)), "unknown type"),
        (mat(), "holds no array"),
    ],
)
def test_what_is_no_svhn_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "train_32x32.mat").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        opened(tmp_path)


@pytest.mark.parametrize("value", [0.0, 11.0, 1.5, float("nan")])
def test_svhn_labels_that_are_no_digits_are_refused(tmp_path: Path, value: float) -> None:
    svhn(tmp_path)
    x = matrix("X", (32, 32, 3, 1), bytes(3072), kind=9, stored=2)
    y = matrix("y", (1, 1), np.array([value]).tobytes(), kind=6, stored=9)
    (tmp_path / "train_32x32.mat").write_bytes(mat(x, y))
    with pytest.raises(DataError, match=r"whole numbers from 1 to 10"):
        opened(tmp_path)


def test_no_changed_byte_of_a_mat_header_raises_anything_else(tmp_path: Path) -> None:
    svhn(tmp_path, squeeze=False, count=1)
    path = tmp_path / "train_32x32.mat"
    whole = path.read_bytes()
    for place in range(120, 128 + 72):
        for flip in (0x01, 0x80, 0xFF):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
            try:
                pixels_of(opened(tmp_path))
            except DataError:
                continue
