"""CIFAR-10 and CIFAR-100 in their binary version: records of label bytes and 3,072 pixels, red, green, blue."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from vitlab.data.files.blocks import PixelBlock, Pixels, find_file, from_blocks, map_bytes
from vitlab.data.files.cache import stamp_of
from vitlab.data.kinds.naming import read_bytes, read_classes
from vitlab.data.listed import ListedSource
from vitlab.data.split import TEST, TRAIN
from vitlab.errors import DataError

CifarKind = Literal["cifar10", "cifar100", "cifar100-coarse"]

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_PIXELS = 3 * 32 * 32


def open_cifar(root: Path, kind: CifarKind) -> ListedSource:
    """The pictures of the binary files in a folder, or in the folder they unpack to; coarse are CIFAR-100's 20 superclasses."""
    hundred = kind != "cifar10"
    labels: Sequence[str] = CIFAR10_CLASSES
    if hundred:
        which = "coarse" if kind == "cifar100-coarse" else "fine"
        names = find_file(root, [f"{which}_label_names.txt"])
        if names is None:
            raise DataError(f"{root} holds no {which}_label_names.txt", hint="it comes with the binary version of CIFAR-100")
        labels = read_classes(read_bytes(names), str(names))
    train = ["train.bin"] if hundred else [f"data_batch_{number}.bin" for number in range(1, 6)]
    test = ["test.bin"] if hundred else ["test_batch.bin"]
    blocks, codes, parts = [], [], []
    missing = []
    for name, part in [(name, TRAIN) for name in train] + [(name, TEST) for name in test]:
        path = find_file(root, [name])
        if path is None:
            missing.append(name)
            continue
        block, of_block = _opened(path, label_bytes=2 if hundred else 1, column=1 if kind == "cifar100" else 0)
        blocks.append(block)
        codes.append(of_block)
        parts.append(part)
    if missing:
        pickled = find_file(root, ["train", "data_batch_1"])
        raise DataError(
            f"{root} lacks {', '.join(missing)}",
            hint="this is the Python version, which is pickled and never read; take the binary version" if pickled else None,
        )
    return from_blocks(blocks, codes, parts, labels)


def _opened(path: Path, *, label_bytes: int, column: int) -> tuple[PixelBlock, Pixels]:
    stamp = stamp_of(path.stat())
    record = label_bytes + _PIXELS
    count, rest = divmod(stamp[0], record)
    if rest or not count:
        raise DataError(f"{path} has {stamp[0]:,} bytes, which is no number of records of {record:,}")
    load = partial(_load, path, stamp, label_bytes)
    codes = map_bytes(path, stamp, 0, stamp[0]).reshape(-1, record)[:, column].copy()
    return PixelBlock(str(path), count, load, shape=(3, 32, 32), layout="CHW"), codes


def _load(path: Path, stamp: tuple[int, int, int], label_bytes: int) -> Pixels:
    records = map_bytes(path, stamp, 0, stamp[0]).reshape(-1, label_bytes + _PIXELS)
    return np.asarray(records)[:, label_bytes:]
