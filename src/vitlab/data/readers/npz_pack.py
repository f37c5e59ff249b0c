"""A dataset in one .npz: encoded images end to end, or pixels, with their labels and splits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import SPLITS, UNDECLARED, ImageDataset, LabelTable, listed
from vitlab.data.readers.blocks import Block, BlockContents, EncodedBlock, Layout, PixelBlock, Pixels, check_codes
from vitlab.data.split import TEST, TRAIN, split_named
from vitlab.errors import DataError
from vitlab.io.arrays import NpzArray, open_npz
from vitlab.io.display import printable

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
