"""Kaggle's Diabetic Retinopathy Detection: trainLabels.csv, retinopathy_solution.csv, and the photographs.

Each photograph of an eye's background is normalised when it is read, as the winner of the competition did (Graham 2015,
"btgraham-300") and as VTAB uses it: the eye is scaled to a radius of 300 pixels, its local average colour is subtracted and
replaced by mid-grey, and only the inner 90 % of the disc is kept. This removes differences of size, colour and light between
cameras. Steps, constants and roundings are those of TensorFlow Datasets, which uses OpenCV; single pixels differ by a level or
two, because OpenCV scales and blurs in fixed point and draws its circle by its own rule.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.dataset import Contents, ImageDataset
from vitlab.data.decode import decode
from vitlab.data.readers.blocks import find_file
from vitlab.data.readers.folder import FileRow, from_files
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError
from vitlab.io.digests import DIGEST_BYTES, Content, Digests
from vitlab.io.display import printable
from vitlab.io.files import LIST_FILE, read_text

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]

RADIUS = 300
"""The radius of an eye after scaling, in pixels."""

_KEPT = 0.9  # of the radius
_GREY = 128
_GAIN = 4
_QUALITY = 72


def normalised_fundus(image_HWC: Pixels, *, radius: int = RADIUS) -> Pixels:
    """A photograph (uint8 RGB) normalised to at most 1.8 x `radius` pixels per side, grey outside the disc."""
    height, width, _ = image_HWC.shape
    scale = radius / estimated_radius(image_HWC)
    size = max(1, round(height * scale)), max(1, round(width * scale))
    sigma = radius / 30
    reach = _reach(sigma)
    kept = int(radius * _KEPT)
    # Only the disc, and as much around it as the blur needs, is scaled and blurred.
    top, bottom = _span(size[0], kept + reach)
    left, right = _span(size[1], kept + reach)
    scaled_HWC = _scaled(image_HWC, scale, (top, bottom, left, right))
    even_HWC = _evened(scaled_HWC, sigma)  # only pixels outside the disc need more than the box
    centre_y, centre_x = size[0] // 2 - top, size[1] // 2 - left
    y_H1 = np.arange(bottom - top)[:, None] - centre_y
    x_1W = np.arange(right - left)[None, :] - centre_x
    even_HWC[y_H1**2 + x_1W**2 > kept**2] = _GREY
    rows = slice(max(centre_y - kept, 0), centre_y + kept)
    columns = slice(max(centre_x - kept, 0), centre_x + kept)
    return np.ascontiguousarray(even_HWC[rows, columns])


def encoded_fundus(image_HWC: Pixels) -> bytes:
    """The normalised photograph as a JPEG file of quality 72, as in TensorFlow Datasets."""
    out = io.BytesIO()
    Image.fromarray(normalised_fundus(image_HWC)).save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()


def estimated_radius(image_HWC: Pixels) -> float:
    """Half the number of pixels of the middle row that are brighter than a tenth of its mean; half the height if it is black."""
    brightness_W = image_HWC[image_HWC.shape[0] // 2].sum(axis=1, dtype=np.int64)
    radius = float(np.count_nonzero(brightness_W > brightness_W.mean() / 10)) / 2
    return radius if radius >= 1 else image_HWC.shape[0] / 2


def _reach(sigma: float) -> int:
    """The radius of the blur's kernel in pixels: OpenCV's choice for bytes, three sigmas."""
    return (round(6 * sigma + 1) | 1) // 2


def _span(length: int, half: int) -> tuple[int, int]:
    """(first, last + 1) of the pixels within `half` of an axis's middle."""
    return max(0, length // 2 - half), min(length, length // 2 + half)


def _scaled(image_HWC: Pixels, scale: float, box: tuple[int, int, int, int]) -> Floats:
    """The box (top, bottom, left, right) of the scaled image, by bilinear interpolation, rounded to whole levels."""
    top, bottom, left, right = box
    above_H, down_H = _between(image_HWC.shape[0], scale, top, bottom)
    before_W, across_W = _between(image_HWC.shape[1], scale, left, right)
    below_H, after_W = np.minimum(above_H + 1, image_HWC.shape[0] - 1), np.minimum(before_W + 1, image_HWC.shape[1] - 1)
    down_H11, across_W1 = down_H[:, None, None], across_W[:, None]
    upper_HWC, lower_HWC = image_HWC[above_H], image_HWC[below_H]
    upper_HWC = upper_HWC[:, before_W] * (1 - across_W1) + upper_HWC[:, after_W] * across_W1
    lower_HWC = lower_HWC[:, before_W] * (1 - across_W1) + lower_HWC[:, after_W] * across_W1
    found: Floats = np.rint(upper_HWC * (1 - down_H11) + lower_HWC * down_H11)
    return found


def _between(length: int, scale: float, first: int, last: int) -> tuple[NDArray[np.intp], Floats]:
    """For pixels `first` to `last` of a scaled axis: the input pixel before each, and the distance from it, 0 to 1."""
    place = (np.arange(first, last) + 0.5) / scale - 0.5
    place = np.clip(place, 0, length - 1)
    before = np.floor(place).astype(np.intp)
    return before, (place - before).astype(np.float32)


def _evened(image_HWC: Floats, sigma: float) -> Pixels:
    """Four times the difference from the local average, plus mid-grey; the image is mirrored at its borders."""
    height, width, channels = image_HWC.shape
    down_HH, across_WW = _blur(height, sigma), _blur(width, sigma)
    blurred_HWC = (down_HH @ image_HWC.reshape(height, -1)).reshape(height, width, channels)
    blurred_HCW = blurred_HWC.transpose(0, 2, 1).reshape(-1, width) @ across_WW.T
    blurred_HWC = blurred_HCW.reshape(height, channels, width).transpose(0, 2, 1)
    even_HWC: Floats = _GAIN * (image_HWC - np.rint(blurred_HWC)) + _GREY
    return np.clip(even_HWC, 0, 255).astype(np.uint8)


@lru_cache(maxsize=16)
def _blur(length: int, sigma: float) -> Floats:
    """(length, length): the matrix of a Gaussian blur; borders are mirrored without repeating the border pixel."""
    offset_R = np.arange(-_reach(sigma), _reach(sigma) + 1)
    weight_R = np.exp(-0.5 * (offset_R / sigma) ** 2)
    weight_R /= weight_R.sum()
    period = max(1, 2 * (length - 1))
    place_LR = (np.arange(length)[:, None] + offset_R) % period
    place_LR = np.where(place_LR >= length, period - place_LR, place_LR)
    matrix_LL = np.zeros((length, length))
    np.add.at(matrix_LL, (np.arange(length)[:, None], place_LR), weight_R)
    return matrix_LL.astype(np.float32)


STAGES = ("none", "mild", "moderate", "severe", "proliferative")

_SPLITS = {"Public": VAL, "Private": TEST}  # how TensorFlow Datasets, and VTAB, split Kaggle's test set
_NORMALISATION = b"btgraham-300"


class EyeContents:
    """Photographs that are normalised when they are read."""

    def __init__(self, photographs: Contents) -> None:
        self._photographs = photographs

    def name(self, row: int) -> str:
        """The photograph's path."""
        return self._photographs.name(row)

    def read(self, row: int) -> Content:
        """The normalised photograph, as a JPEG file."""
        content, name = self._photographs.read(row), self.name(row)
        return encoded_fundus(decode(content, name=name) if isinstance(content, bytes) else content)

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """Hashes of the photographs and of the name of the normalisation, which need not be done for this."""
        made = (
            blake2b(_NORMALISATION + row.tobytes(), digest_size=DIGEST_BYTES).digest() for row in self._photographs.digests(rows)
        )
        return np.frombuffer(b"".join(made), np.uint8).reshape(len(rows), DIGEST_BYTES)


def has_retinopathy(folder: Path) -> bool:
    """Whether the folder holds Kaggle's lists."""
    return find_file(folder, ["trainLabels.csv"]) is not None


def open_retinopathy(folder: Path) -> ImageDataset:
    """The images `train/*.jpeg` and `test/*.jpeg` beside the lists, in the order of the lists."""
    train, solution = find_file(folder, ["trainLabels.csv"]), find_file(folder, ["retinopathy_solution.csv"])
    if train is None or solution is None:
        missing = "trainLabels.csv" if train is None else "retinopathy_solution.csv"
        raise DataError(f"{printable(str(folder))} holds no {missing}", hint="both lists are on the competition's page")
    rows = [FileRow(path=f"train/{name}.jpeg", code=level, split=TRAIN) for name, level, _ in _read(train)]
    for name, level, usage in _read(solution):
        if usage not in _SPLITS:
            raise DataError(
                f"{printable(str(solution))}: Usage of {printable(name)} is {printable(usage)!r}, neither Public nor Private"
            )
        rows.append(FileRow(path=f"test/{name}.jpeg", code=level, split=_SPLITS[usage]))
    dataset = from_files(train.parent, rows, STAGES, where=str(folder))
    return replace(dataset, contents=EyeContents(dataset.contents))


def _read(path: Path) -> Iterator[tuple[str, int, str]]:
    """Image, level and usage (may be empty) of each row."""
    text = read_text(path, most=LIST_FILE)
    try:
        for row in csv.DictReader(io.StringIO(text, newline="")):
            yield row["image"], int(row["level"]), row.get("Usage") or ""
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{printable(str(path))} is not a CSV with columns image and level") from error
