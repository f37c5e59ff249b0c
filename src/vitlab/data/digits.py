"""The built-in dataset of real images: 1,797 handwritten digits of 8 x 8 pixels, shipped with the package (digits.npz).

They are the test split of the UCI dataset "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998); digits.txt
has its source and licence.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import SPLITS, ImageDataset, LabelTable
from vitlab.errors import choice
from vitlab.io.digests import Digests, digest_all

HoldOut = Literal["content", "writers"]

_WHITE = 16  # a pixel is the number of inked cells among 4 x 4
_TEST_FRACTION = 0.25
# The data seems to be one filled-in form after the other: labels run 0, 1, ..., 9 three times, and again at 0, 130, 256, ...,
# 1157, 1287, 1415, 1667. The writers are not recorded: the lengths suggest 14 forms, the description says 13 writers, so one
# of them may have filled in two.
_LAST_FORMS = 1287


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DigitsContents:
    """The pixels of all digits, uint8 [images, 8, 8, 1], from 0 (paper) to 255 (ink)."""

    pixels: NDArray[np.uint8]

    def name(self, row: int) -> str:
        """The number of the digit in the UCI file."""
        return f"digits/{row:04d}"

    def read(self, row: int) -> NDArray[np.uint8]:
        """Its pixels, [8, 8, 1]."""
        read: NDArray[np.uint8] = self.pixels[row]
        return read

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each row's pixels."""
        return digest_all(self.read, rows)


def open_digits(*, hold_out: HoldOut = "content") -> ImageDataset:
    """All digits in the order of the UCI file, each declared `train` or `test`.

    `hold_out` defines the test split, the same on every machine. `content`: the quarter of each digit whose pixels have the lowest
    hash (450 images; writers are in both splits). `writers`: the last four forms (510 images; harder), whose writers are most
    likely not in train. Forms are recognised by how the labels repeat, because the data does not name the writers.
    """
    choice("hold_out", hold_out, HoldOut)
    pixels, codes = _read()
    contents = DigitsContents(pixels=pixels)
    rows = np.arange(len(codes))
    splits = np.full(len(codes), SPLITS.index("train"), np.int8)
    if hold_out == "writers":
        splits[_LAST_FORMS:] = SPLITS.index("test")
    else:
        digests = contents.digests(rows)
        for code in range(10):
            members = rows[codes == code]
            # By the end of the hash, because a `val` that is held out of train goes by its beginning.
            by_hash = members[np.lexsort(digests[members].T)]
            splits[by_hash[: round(len(members) * _TEST_FRACTION)]] = SPLITS.index("test")
    return ImageDataset(
        contents=contents,
        rows=rows,
        table=LabelTable(codes=codes),
        labels=tuple(str(code) for code in range(10)),
        splits=splits,
    )


def _read() -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Pixels [images, 8, 8, 1] from 0 to 255, and labels."""
    with resources.files("vitlab.data").joinpath("digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        cells, codes = arrays["pixels"], arrays["labels"]
    return np.rint(cells * (255 / _WHITE)).astype(np.uint8)[..., None], codes.astype(np.int32)
