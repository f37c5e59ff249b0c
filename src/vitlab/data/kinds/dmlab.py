"""DMLab frames as VTAB publishes them: TFRecord files of JPEG pictures, each with the number of its class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.data.files.blocks import from_blocks
from vitlab.data.files.cache import stamp_of
from vitlab.data.files.names import shown
from vitlab.data.files.positioned import PositionedFile
from vitlab.data.files.tfrecord import read_examples
from vitlab.data.listed import ListedSource
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError

CLASSES = tuple(f"class {number}" for number in range(6))  # close, far, very far x good and bad reward; no order is published

_PARTS = (("train", TRAIN), ("validation", VAL), ("test", TEST))


class RecordBlock:
    """Encoded pictures that lie in a file of other things: picture i is `lengths[i]` bytes from `offsets[i]`."""

    def __init__(self, path: Path, offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.where = str(path)
        self._file = PositionedFile(path, stamp_of(path.stat()), keep_open=False)
        self._offsets = offsets
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._offsets)

    def read(self, index: int) -> bytes:
        """The encoded picture."""
        return self._file.read(int(self._offsets[index]), int(self._lengths[index]))


def open_dmlab(folder: Path) -> ListedSource:
    """The frames of `dmlab-train.tfrecord*`, `-validation` and `-test`, in the order of the files."""
    blocks, codes, parts = [], [], []
    for word, part in _PARTS:
        pattern = f"dmlab-{word}.tfrecord*"
        files = sorted([*folder.glob(pattern), *folder.glob(f"*/{pattern}")])
        if not files:
            raise DataError(f"{shown(str(folder))} holds no {pattern}", hint="unpack dmlab.tar.gz there")
        for file in files:
            spans, labels = [], []
            for number, example in enumerate(read_examples(file)):
                image, label = example.spans.get("image", []), example.numbers.get("label", [])
                if len(image) != 1 or len(label) != 1:
                    raise DataError(f"{shown(str(file))}: example {number:,} has not one image and one label")
                spans.append(image[0])
                labels.append(label[0])
            places = np.array(spans, np.int64).reshape(-1, 2)
            blocks.append(RecordBlock(file, places[:, 0].copy(), places[:, 1].copy()))
            codes.append(np.array(labels, np.int64))
            parts.append(part)
    return from_blocks(blocks, codes, parts, CLASSES)
