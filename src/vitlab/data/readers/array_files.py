"""Images in array files: one .npz, CIFAR's binary records, idx files (MNIST, Fashion-MNIST, KMNIST), SVHN's .mat files, HDF5.

Each file gives a block: consecutive images, as pixels of one shape or as encoded images end to end. HDF5 needs h5py
(`vitlab[hdf5]`); its images are read one at a time.

Axes: N images, H height, W width, C channels.
"""

from __future__ import annotations

import math
import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import SPLITS, UNDECLARED, ImageDataset, LabelTable, listed
from vitlab.data.readers.manifest import read_classes
from vitlab.data.split import TEST, TRAIN, VAL, split_named
from vitlab.errors import DataError
from vitlab.io.archive import unpacked
from vitlab.io.archive_limits import GZIP, MOST_INFLATED, inflated
from vitlab.io.arrays import LARGEST_IN_MEMORY, MatArray, NpzArray, mat_arrays, open_npz, read_mat_array
from vitlab.io.digests import DIGEST_BYTES, Content, Digests, digest_all, remembered_digests
from vitlab.io.display import printable
from vitlab.io.files import map_bytes, open_regular, read_bytes, stamp_of
from vitlab.io.optional import optional_import

Layout = Literal["HW", "HWC", "CHW", "CWH"]
Pixels = NDArray[np.uint8]

_TO_HWC = {"HWC": (0, 1, 2), "CHW": (1, 2, 0), "CWH": (2, 1, 0)}


class Block(Protocol):
    """Consecutive images of one file."""

    @property
    def where(self) -> str:
        """The file, for messages."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> Content:
        """One image."""
        ...

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each of these images."""
        ...


class PixelBlock:
    """Images of one shape. `load` returns them as an array, (images, ...); each process that reads calls it once.

    The array is not pickled; forked processes share its memory.
    """

    def __init__(self, where: str, count: int, load: Callable[[], Pixels], *, shape: tuple[int, ...], layout: Layout) -> None:
        self.where = where
        self._count = count
        self._load = load
        self._shape = shape
        self._layout = layout
        self._array: Pixels | None = None

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> Pixels:
        """Pixels (H, W, C), a copy."""
        if self._array is None:
            self._array = self._load()
        image: Pixels = self._array[index].reshape(self._shape)
        if self._layout == "HW":
            return np.array(image[:, :, None])
        return np.array(image.transpose(_TO_HWC[self._layout]), order="C")

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each image."""
        return digest_all(self.read, rows)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_array": None}


class EncodedBlock:
    """Encoded images end to end: image i is the bytes from `ends[i]` to `ends[i + 1]`."""

    def __init__(self, where: str, ends: NDArray[np.int64], load: Callable[[], Pixels]) -> None:
        self.where = where
        self._ends = ends
        self._load = load
        self._bytes: Pixels | None = None

    def __len__(self) -> int:
        return len(self._ends) - 1

    def read(self, index: int) -> bytes:
        """The encoded image."""
        if self._bytes is None:
            self._bytes = self._load()
        return self._bytes[self._ends[index] : self._ends[index + 1]].tobytes()

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each image."""
        return digest_all(self.read, rows)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_bytes": None}


class BlockContents:
    """Several blocks, numbered consecutively."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = list(blocks)
        self._starts = [0, *accumulate(map(len, blocks))]

    def name(self, row: int) -> str:
        """`file, image 7`, counted from 0 in each file."""
        number = bisect_right(self._starts, row) - 1
        return f"{self._blocks[number].where}, image {row - self._starts[number]}"

    def read(self, row: int) -> Content:
        """The image."""
        number = bisect_right(self._starts, row) - 1
        try:
            return self._blocks[number].read(row - self._starts[number])
        except OSError as error:
            raise DataError(f"{printable(self.name(row))} cannot be read: {error.strerror}") from error

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each image, block by block; some blocks cache theirs."""
        found = np.empty((len(rows), DIGEST_BYTES), np.uint8)
        number_of = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(number_of).tolist():
            places = np.flatnonzero(number_of == number)
            block = self._blocks[number]
            try:
                found[places] = block.digests(rows[places] - self._starts[number])
            except OSError as error:
                raise DataError(f"{printable(block.where)} cannot be read: {error.strerror}") from error
        return found


def from_blocks(
    blocks: Sequence[Block], codes: Sequence[NDArray[np.integer]], splits: Sequence[int], labels: Sequence[str]
) -> ImageDataset:
    """A dataset of blocks, each of one split, with the class of each image; DataError if a label has no class."""
    for block, of_block in zip(blocks, codes, strict=True):
        check_codes(of_block, len(block), len(labels), block.where)
    joined = np.concatenate([np.asarray(of_block, np.int32) for of_block in codes])
    return ImageDataset(
        contents=BlockContents(blocks),
        rows=np.arange(len(joined), dtype=np.int64),
        table=LabelTable(codes=joined),
        labels=tuple(labels),
        splits=np.repeat(np.array(splits, np.int8), [len(block) for block in blocks]),
    )


def check_codes(codes: NDArray[np.integer], images: int, classes: int, where: str) -> None:
    """DataError if there are not as many labels as images, or if a label is outside the classes."""
    if len(codes) != images:
        raise DataError(f"{printable(where)}: {images:,} images and {len(codes):,} labels")
    wrong = np.flatnonzero((codes < 0) | (codes >= classes))
    if len(wrong):
        raise DataError(
            f"{printable(where)}: {len(wrong):,} labels are outside 0 to {classes - 1};"
            f" the first is {codes[wrong[0]]}, of image {wrong[0]:,}"
        )


def find_file(root: Path, names: Sequence[str]) -> Path | None:
    """The first of these names that is a file in `root` or in a folder of `root`, as archives unpack."""
    for pattern in ("", "*/"):
        for name in names:
            if found := next(iter(sorted(root.glob(pattern + name))), None):
                return found
    return None


# --- a dataset in one .npz ---------------------------------------------------------------------------------------------------

_HINT = (
    "a pack holds jpeg, offsets and labels; or images (N, H, W[, C]) of uint8 and labels;"
    " or the same per split, as train_images and train_labels or x_train and y_train; and classes, if they have names"
)
_MOST_CLASSES = 100_000


def open_npz_pack(path: Path) -> ImageDataset:
    """The images of an .npz pack. The header of each array is checked before the array is read."""
    arrays = open_npz(path)
    for array in arrays.values():
        if array.fortran:
            raise DataError(f"{printable(array.where)} is in Fortran order", hint="save it with numpy.ascontiguousarray")
    if "jpeg" in arrays:
        blocks: list[Block] = [_encoded(arrays, path)]
        labels = [_needed(arrays, "labels", path)]
        splits = _declared(arrays, len(blocks[0]), path)
    elif "images" in arrays:
        blocks = [_pixels(arrays["images"])]
        labels = [_needed(arrays, "labels", path)]
        splits = _declared(arrays, len(blocks[0]), path)
    else:
        found = _by_split(arrays)
        if not found:
            raise DataError(f"{printable(str(path))} holds {listed(list(arrays))}, which is not a pack", hint=_HINT)
        blocks = [_pixels(images) for _, images, _ in found]
        labels = [of_split for _, _, of_split in found]
        splits = np.repeat(np.array([split for split, _, _ in found], np.int8), [len(block) for block in blocks])
    table = _table(blocks, labels)
    names = _classes(arrays, table, path)
    check_codes(table.codes, len(table.codes), len(names), str(path))
    return ImageDataset(
        contents=BlockContents(blocks),
        rows=np.arange(len(table), dtype=np.int64),
        table=table,
        labels=names,
        splits=splits,
    )


def _needed(arrays: Mapping[str, NpzArray], name: str, path: Path) -> NpzArray:
    if name not in arrays:
        raise DataError(f"{printable(str(path))} has no array called {name}, only {listed(list(arrays))}", hint=_HINT)
    return arrays[name]


def _by_split(arrays: Mapping[str, NpzArray]) -> list[tuple[int, NpzArray, NpzArray]]:
    """(split, images, labels) of arrays named after a split, as in MedMNIST and Keras."""
    found = []
    for split, name in enumerate(SPLITS):
        for images, labels in ((f"{name}_images", f"{name}_labels"), (f"x_{name}", f"y_{name}")):
            if images in arrays and labels in arrays:
                found.append((split, arrays[images], arrays[labels]))
    return found


class _Bytes:
    """Loads an array as bytes, (images, ...). A class, so that it can be pickled."""

    def __init__(self, array: NpzArray) -> None:
        self._array = array

    def __call__(self) -> Pixels:
        return self._array.load().view(np.uint8)


def _encoded(arrays: Mapping[str, NpzArray], path: Path) -> EncodedBlock:
    jpeg, offsets = arrays["jpeg"], _needed(arrays, "offsets", path)
    if jpeg.dtype != "|u1" or len(jpeg.shape) != 1:
        raise DataError(f"{printable(jpeg.where)} must be bytes end to end (uint8, one axis), not {jpeg.dtype} {jpeg.shape}")
    ends = _whole(offsets).astype(np.int64)
    if len(ends) < 2 or ends[0] != 0 or ends[-1] != jpeg.shape[0] or np.any(np.diff(ends) < 0):
        raise DataError(f"{printable(offsets.where)} must rise from 0 to the {jpeg.shape[0]:,} bytes of jpeg")
    return EncodedBlock(jpeg.where, ends, _Bytes(jpeg))


def _pixels(images: NpzArray) -> PixelBlock:
    shape = images.shape
    if images.dtype != "|u1":
        raise DataError(f"{printable(images.where)} is {images.dtype}; pixels must be uint8, 0 to 255", hint=_HINT)
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3, 4)):
        raise DataError(f"{printable(images.where)} is {shape}; images are (N, H, W) or (N, H, W, C) of 1, 3 or 4 channels")
    if 0 in shape:
        raise DataError(f"{printable(images.where)} is {shape}: it holds no image")
    layout: Layout = "HW" if len(shape) == 3 else "HWC"
    return PixelBlock(images.where, shape[0], _Bytes(images), shape=shape[1:], layout=layout)


def _whole(array: NpzArray) -> NDArray[np.integer]:
    """A small array of whole numbers, read."""
    values = np.asarray(array.load())
    if values.dtype.kind not in "iub":
        raise DataError(f"{printable(array.where)} is {array.dtype}, but must be whole numbers")
    return values.astype(np.int64)


def _table(blocks: list[Block], labels: list[NpzArray]) -> LabelTable:
    """(N,) or (N, 1) is one class per image; (N, K) of 0 and 1 is K classes, of which an image may have several."""
    rows = []
    for block, array in zip(blocks, labels, strict=True):
        values = _whole(array)
        if len(values) != len(block):
            raise DataError(f"{printable(array.where)}: {len(block):,} images and {len(values):,} labels")
        rows.append(values.reshape(-1) if values.ndim == 2 and values.shape[1] == 1 else values)
    if {values.ndim for values in rows} == {1}:
        return LabelTable(codes=np.concatenate(rows).astype(np.int32))
    widths = {values.shape[1:] for values in rows}
    if len(widths) != 1 or rows[0].ndim != 2 or any(np.any((values < 0) | (values > 1)) for values in rows):
        raise DataError(f"{printable(labels[0].where)} must be (N,) classes, or (N, K) zeros and ones")
    return LabelTable.several(np.flatnonzero(row).tolist() for values in rows for row in values)


def _classes(arrays: Mapping[str, NpzArray], table: LabelTable, path: Path) -> tuple[str, ...]:
    if "classes" in arrays:
        names = np.asarray(arrays["classes"].load())
        if names.dtype.kind != "U" or names.ndim != 1:
            raise DataError(f"{printable(arrays['classes'].where)} must be names, one per class")
        return tuple(str(name) for name in names)
    count = int(table.codes.max(initial=-1)) + 1
    labels = next((array for name, array in arrays.items() if name in ("labels", "train_labels")), None)
    if table.multi_label and labels is not None:
        count = labels.shape[1]
    if not 2 <= count <= _MOST_CLASSES:
        raise DataError(f"{printable(str(path))} has labels up to {count - 1}: {count} classes", hint=_HINT)
    return tuple(str(code) for code in range(count))


def _declared(arrays: Mapping[str, NpzArray], count: int, path: Path) -> NDArray[np.int8]:
    """Splits from `train` (True for train, False for test) or from `split` (names); without either, none is declared."""
    if "train" in arrays:
        values = np.asarray(arrays["train"].load())
        if values.dtype.kind != "b" or values.shape != (count,):
            raise DataError(f"{printable(arrays['train'].where)} must be True or False for each image")
        return np.where(values, np.int8(TRAIN), np.int8(TEST))
    if "split" in arrays:
        words = np.asarray(arrays["split"].load())
        splits = [split_named(str(word)) for word in words.reshape(-1)]
        if words.dtype.kind != "U" or len(splits) != count or None in splits:
            raise DataError(f"{printable(arrays['split'].where)} must be train, val or test for each image")
        return np.array(splits, np.int8)
    return np.full(count, UNDECLARED, np.int8)


# --- CIFAR, MNIST and SVHN ---------------------------------------------------------------------------------------------------

CifarReader = Literal["cifar10", "cifar100", "cifar100-coarse"]

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_PIXELS = 3 * 32 * 32


def open_cifar(root: Path, reader: CifarReader) -> ImageDataset:
    """CIFAR from its binary files: records of label bytes and 3,072 pixels. Coarse labels are CIFAR-100's 20 superclasses.

    `root` is the folder of the files, or the one around it.
    """
    hundred = reader != "cifar10"
    labels: Sequence[str] = CIFAR10_CLASSES
    if hundred:
        which = "coarse" if reader == "cifar100-coarse" else "fine"
        names = find_file(root, [f"{which}_label_names.txt"])
        if names is None:
            raise DataError(f"{root} holds no {which}_label_names.txt", hint="it is part of the binary version of CIFAR-100")
        labels = read_classes(read_bytes(names), str(names))
    train = ["train.bin"] if hundred else [f"data_batch_{number}.bin" for number in range(1, 6)]
    test = ["test.bin"] if hundred else ["test_batch.bin"]
    blocks, codes, splits = [], [], []
    missing = []
    for name, split in [(name, TRAIN) for name in train] + [(name, TEST) for name in test]:
        path = find_file(root, [name])
        if path is None:
            missing.append(name)
            continue
        block, of_block = _cifar_opened(path, label_bytes=2 if hundred else 1, column=1 if reader == "cifar100" else 0)
        blocks.append(block)
        codes.append(of_block)
        splits.append(split)
    if missing:
        pickled = find_file(root, ["train", "data_batch_1"])
        raise DataError(
            f"{root} lacks {', '.join(missing)}",
            hint="this is the Python version, which is pickled and never read; take the binary version" if pickled else None,
        )
    return from_blocks(blocks, codes, splits, labels)


def _cifar_opened(path: Path, *, label_bytes: int, column: int) -> tuple[PixelBlock, Pixels]:
    stamp = stamp_of(path.stat())
    record = label_bytes + _PIXELS
    count, rest = divmod(stamp[0], record)
    if rest or not count:
        raise DataError(f"{path} has {stamp[0]:,} bytes, which is not a multiple of its records of {record:,}")
    load = partial(_cifar_load, path, stamp, label_bytes)
    codes = map_bytes(path, stamp, 0, stamp[0]).reshape(-1, record)[:, column].copy()
    return PixelBlock(str(path), count, load, shape=(3, 32, 32), layout="CHW"), codes


def _cifar_load(path: Path, stamp: tuple[int, int, int], label_bytes: int) -> Pixels:
    records = map_bytes(path, stamp, 0, stamp[0]).reshape(-1, label_bytes + _PIXELS)
    return np.asarray(records)[:, label_bytes:]


IDX_CLASSES: dict[str, tuple[str, ...]] = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
    "kmnist": ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
}  # fmt: skip

_CHUNK = 2**20


def open_idx(root: Path, reader: str) -> ImageDataset:
    """The images of `train-images-idx3-ubyte[.gz]` and `t10k-...` in a folder, with the class names of `reader`."""
    blocks, codes, splits = [], [], []
    for stem, split in (("train", TRAIN), ("t10k", TEST)):
        images, labels = _idx_file(root, stem, "images", 3), _idx_file(root, stem, "labels", 1)
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            raise DataError(f"{root}: {stem} has {'labels' if images is None else 'images'} only")
        (count, height, width), load = _idx_opened(images, axes=3)
        (_,), load_labels = _idx_opened(labels, axes=1)
        blocks.append(PixelBlock(str(images), count, load, shape=(height, width), layout="HW"))
        codes.append(load_labels())
        splits.append(split)
    if not blocks:
        raise DataError(f"{root} holds no train-images-idx3-ubyte or t10k-images-idx3-ubyte, with or without .gz")
    return from_blocks(blocks, codes, splits, IDX_CLASSES[reader])


def _idx_file(root: Path, stem: str, what: str, axes: int) -> Path | None:
    plain = [f"{stem}-{what}-idx{axes}-ubyte", f"{stem}-{what}.idx{axes}-ubyte"]
    return find_file(root, [name + ending for name in plain for ending in ("", ".gz")])


def _idx_opened(path: Path, *, axes: int) -> tuple[tuple[int, ...], partial[Pixels]]:
    """The shape in the header, checked against the size of the file, and a function that loads the bytes."""
    stamp = stamp_of(path.stat())
    length = 4 + 4 * axes
    with open_regular(path, error=DataError) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        header = next(_inflated(path, length), b"") if packed else file.read(length)
    if len(header) < length or header[:4] != bytes((0, 0, 8, axes)):
        raise DataError(f"{printable(str(path))} is not an idx file of bytes with {axes} axes")
    shape = tuple(np.frombuffer(header, ">u4", axes, offset=4).tolist())
    size = math.prod(shape)
    if packed:
        if size > min(LARGEST_IN_MEMORY, stamp[0] * MOST_INFLATED):
            raise DataError(f"{printable(str(path))}: its {stamp[0]:,} bytes cannot hold the {size:,} its header claims")
        return shape, partial(_load_packed, path, stamp, shape)
    if stamp[0] != length + size:
        raise DataError(f"{printable(str(path))} has {stamp[0]:,} bytes; by its header it should have {length + size:,}")
    return shape, partial(_load_plain, path, stamp, shape)


def _load_plain(path: Path, stamp: tuple[int, int, int], shape: tuple[int, ...]) -> Pixels:
    return map_bytes(path, stamp, 4 + 4 * len(shape), math.prod(shape)).reshape(shape)


def _load_packed(path: Path, stamp: tuple[int, int, int], shape: tuple[int, ...]) -> Pixels:
    if stamp_of(path.stat())[:2] != stamp[:2]:
        raise DataError(f"{printable(str(path))} has changed since it was opened", hint="start again")
    wanted = 4 + 4 * len(shape) + math.prod(shape)
    result = np.empty(wanted, np.uint8)
    filled = 0
    for chunk in _inflated(path, _CHUNK):
        if filled + len(chunk) > wanted:
            raise DataError(f"{printable(str(path))} holds more than the {wanted:,} bytes its header says")
        result[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
    if filled != wanted:
        raise DataError(f"{printable(str(path))} is cut off: it holds {filled:,} of {wanted:,} bytes")
    return result[4 + 4 * len(shape) :].reshape(shape)


def _inflated(path: Path, most: int) -> Iterator[bytes]:
    """The decompressed bytes of a gzip file, at most `most` at a time."""
    try:
        with open_regular(path, error=DataError) as file:
            yield from inflated(iter(partial(file.read, _CHUNK), b""), wrapping=GZIP, most=most)
    except zlib.error as error:
        raise DataError(f"{printable(str(path))} is damaged or cut off: {error}") from error


def open_svhn(root: Path) -> ImageDataset:
    """SVHN's cropped digits: `train_32x32.mat` and `test_32x32.mat`. Their label 10 is the digit 0; classes are the digits."""
    blocks, codes, splits = [], [], []
    for name, split in (("train_32x32.mat", TRAIN), ("test_32x32.mat", TEST)):
        path = find_file(root, [name])
        if path is None:
            continue
        arrays = {array.name: array for array in mat_arrays(path)}
        if "X" not in arrays or "y" not in arrays:
            raise DataError(f"{printable(str(path))} holds {', '.join(map(printable, arrays)) or 'no array'}, but SVHN has X and y")
        x, y = arrays["X"], arrays["y"]
        if len(x.shape) != 4 or x.shape[2] != 3 or x.dtype[1:] != "u1":
            raise DataError(f"{printable(str(path))}: X is {x.shape} of {x.dtype}, but SVHN has (32, 32, 3, images) bytes")
        height, width, channels, count = x.shape
        load = partial(_svhn_load, x, stamp_of(path.stat()))
        blocks.append(PixelBlock(str(path), count, load, shape=(channels, width, height), layout="CWH"))
        codes.append(_digits(y, path))
        splits.append(split)
    if not blocks:
        raise DataError(f"{root} holds no train_32x32.mat and no test_32x32.mat")
    return from_blocks(blocks, codes, splits, tuple("0123456789"))


def _digits(y: MatArray, path: Path) -> NDArray[np.int64]:
    values = read_mat_array(y)
    if not np.all(np.isin(values, np.arange(1, 11))):
        raise DataError(f"{printable(str(path))}: labels y must be whole numbers from 1 to 10")
    return values.astype(np.int64) % 10


def _svhn_load(x: MatArray, stamp: tuple[int, int, int]) -> Pixels:
    if stamp_of(x.path.stat())[:2] != stamp[:2]:
        raise DataError(f"{printable(str(x.path))} has changed since it was opened", hint="start again")
    # MATLAB's first axis varies fastest, so the last one, over images, varies slowest and each image is contiguous.
    return read_mat_array(x).view(np.uint8).reshape(x.shape[3], -1)


# --- HDF5 files, and PatchCamelyon, which is published so --------------------------------------------------------------------

_LARGEST_IMAGE = 256 * 2**20  # bytes of an image or of a chunk, which is read at once
_HELD = 64 * 2**20  # bytes of chunks kept in memory, in each process
_MOST_NUMBERS = 2**27
_BROKEN = (OSError, KeyError, RuntimeError, ValueError, TypeError)  # the errors of h5py for damaged files


class Hdf5Block:
    """Images of one array, (N, H, W, C) of bytes. `where` is the user's name of the file; `path` is the file that is read.

    Each process opens the file itself, because h5py must not be used across a fork.
    """

    def __init__(self, path: Path, array: str, *, where: str) -> None:
        self.where = where
        self._path, self._array = path, array
        self._stamp = stamp_of(path.stat())
        self._process = -1
        self._data: Any = None
        shape = self._opened().shape
        if len(shape) != 4 or shape[3] not in (1, 3, 4) or 0 in shape[1:] or int(np.prod(shape[1:])) > _LARGEST_IMAGE:
            raise DataError(f"{printable(where)}: {array} is {shape}, but must be (images, height, width, channels)")
        self._count, self._shape = int(shape[0]), tuple(map(int, shape[1:]))

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> Pixels:
        """Pixels (H, W, C)."""
        try:
            return np.ascontiguousarray(self._opened()[index], np.uint8)
        except _BROKEN as error:
            raise DataError(f"{printable(self.where)}: image {index:,} cannot be read: {printable(str(error))}") from error

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each image, cached until the file changes."""
        sizes = np.full(self._count, int(np.prod(self._shape)), np.int64)
        return remembered_digests(self.read, rows, path=self._path, stamp=self._stamp, sizes=sizes)

    def _opened(self) -> Any:
        if self._data is None or self._process != os.getpid():
            if stamp_of(self._path.stat())[:2] != self._stamp[:2]:
                raise DataError(f"{printable(self.where)} has changed since it was opened", hint="start again")
            self._data = _hdf5_array(self._path, self._array, where=self.where)
            self._process = os.getpid()
        return self._data

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_data": None, "_process": -1}


def read_numbers(path: Path, array: str, *, where: str) -> NDArray[np.int64]:
    """A small array of bytes, flat."""
    data = _hdf5_array(path, array, where=where)
    if data.size > _MOST_NUMBERS:
        raise DataError(f"{printable(where)}: {array} has {data.size:,} values; the limit is {_MOST_NUMBERS:,}")
    try:
        return np.asarray(data[()]).reshape(-1).astype(np.int64)
    except _BROKEN as error:
        raise DataError(f"{printable(where)}: {array} cannot be read: {printable(str(error))}") from error


def _hdf5_array(path: Path, name: str, *, where: str) -> Any:
    """The array of bytes called `name`; its file stays open as long as the array exists. Links to other files are refused."""
    h5py = _h5py()
    open_regular(path, error=DataError).close()  # h5py would wait for a pipe
    try:
        file = h5py.File(path, "r", rdcc_nbytes=_HELD)
        data = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    except _BROKEN as error:
        raise DataError(f"{printable(where)} is not an HDF5 file with an array {name}: {printable(str(error))}") from error
    if not isinstance(data, h5py.Dataset) or data.is_virtual or data.external:
        raise DataError(f"{printable(where)} holds no array {name} of its own")
    if data.dtype != np.uint8:
        raise DataError(f"{printable(where)}: {name} is {data.dtype}, but must be bytes (uint8)")
    if data.chunks is not None and int(np.prod(data.chunks)) > _LARGEST_IMAGE:
        raise DataError(f"{printable(where)}: {name} is in chunks of {data.chunks}, which are too large")
    return data


def _h5py() -> ModuleType:
    module: ModuleType = optional_import("h5py", purpose="HDF5 files", error=DataError)
    return module


CAMELYON_CLASSES = ("no tumour", "tumour")  # in the middle 32x32 pixels of a patch

_CAMELYON = "camelyonpatch_level_2_split"
_CAMELYON_SPLITS = (("train", TRAIN), ("valid", VAL), ("test", TEST))


def has_camelyon(folder: Path) -> bool:
    """Whether the folder holds the images of a split."""
    return any(_camelyon_file(folder, word, "x") is not None for word, _ in _CAMELYON_SPLITS)


def open_camelyon(folder: Path) -> ImageDataset:
    """PatchCamelyon's patches of train, valid and test, as far as they exist, in the order of the files.

    The files are read as downloaded (`.h5.gz`, unpacked once into the cache folder) or unpacked (`.h5`).
    """
    blocks, codes, splits = [], [], []
    for word, split in _CAMELYON_SPLITS:
        images, labels = _camelyon_file(folder, word, "x"), _camelyon_file(folder, word, "y")
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            kind = "x" if images is None else "y"
            raise DataError(f"{printable(str(folder))} holds no {_CAMELYON}_{word}_{kind}.h5, or .h5.gz")
        blocks.append(Hdf5Block(_unpacked(images), "x", where=str(images)))
        codes.append(read_numbers(_unpacked(labels), "y", where=str(labels)))  # (N, 1, 1, 1)
        splits.append(split)
    if not blocks:
        raise DataError(f"{printable(str(folder))} holds no {_CAMELYON}_train_x.h5, or .h5.gz")
    return from_blocks(blocks, codes, splits, CAMELYON_CLASSES)


def _camelyon_file(folder: Path, word: str, kind: str) -> Path | None:
    name = f"{_CAMELYON}_{word}_{kind}.h5"
    return find_file(folder, [name, f"{name}.gz"])


def _unpacked(file: Path) -> Path:
    return unpacked(file) if file.suffix == ".gz" else file
