"""The synthetic dataset: endless labelled images drawn from formulas. An image depends on (config, class, index) only.

    image(SyntheticConfig(kind="strokes"), label=7, index=0)    # uint8 [H, W, C], the same bits everywhere

Axes: B images, H height, W width, C channels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import SyntheticConfig
from vitlab.data.dataset import MapStyle, Pixels, RawSample
from vitlab.data.random_numbers import keys
from vitlab.data.synthetic import contours, fractals, strokes
from vitlab.data.synthetic import drawing as appearance
from vitlab.errors import DataError

FORMULA_VERSION = 1
"""Increased whenever the same (config, label, index) gives another image; included in every fingerprint."""

_SAMPLE_STREAM = 1
_BLOCK_PIXELS = 1 << 16  # images are drawn in blocks of about this many pixels, which fit into a core's cache

_KINDS = {
    "contours": (contours.coverage, contours.COARSEST),
    "fractals": (fractals.coverage, fractals.COARSEST),
    "strokes": (strokes.coverage, strokes.COARSEST),
}
_MIXED = tuple(_KINDS)


def image(config: SyntheticConfig, label: int, index: int) -> NDArray[np.uint8]:
    """Image number `index` (from 0, without an end) of class `label`: uint8 [H, W, C]."""
    if not 0 <= label < config.classes:
        raise DataError(f"label {label} is not a class of this dataset: they are 0 to {config.classes - 1}")
    if index < 0:
        raise DataError(f"index {index} is negative: the images of a class start at 0")
    kind, formula = _formula(config.kind, label)
    return np.ascontiguousarray(_draw(config, kind, np.array([formula]), np.array([index]))[0])


def images(
    config: SyntheticConfig,
    labels: Sequence[int] | NDArray[np.integer],
    indices: Sequence[int] | NDArray[np.integer],
) -> NDArray[np.uint8]:
    """Many images at once, uint8 [B, H, W, C]: the same bits as one by one, but several times faster."""
    label_B, index_B = _whole("labels", labels), _whole("indices", indices)
    if len(label_B) != len(index_B):
        raise DataError(f"{len(label_B)} labels but {len(index_B)} indices: an image needs one of each")
    if label_B.size and not 0 <= label_B.min() <= label_B.max() < config.classes:
        wrong = label_B[(label_B < 0) | (label_B >= config.classes)][0]
        raise DataError(f"label {wrong} is not a class of this dataset: they are 0 to {config.classes - 1}")
    if index_B.size and index_B.min() < 0:
        raise DataError(f"index {index_B.min()} is negative: the images of a class start at 0")
    made_BHWC = np.empty((len(label_B), *config.image_size, config.channels), np.uint8)
    block = max(1, _BLOCK_PIXELS // (config.image_size[0] * config.image_size[1]))
    for kind, formula_B, member_B in _by_kind(config.kind, label_B):
        for start in range(0, len(member_B), block):
            chosen = member_B[start : start + block]
            made_BHWC[chosen] = _draw(config, kind, formula_B[chosen], index_B[chosen])
    return made_BHWC


def _draw(config: SyntheticConfig, kind: str, formula_B: NDArray[np.int64], index_B: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Images of one kind; `formula_B` is the class counted within the kind."""
    # Each kind has its own random stream, so classes of two kinds with the same number are independent.
    key_B = keys(config.seed, _SAMPLE_STREAM + _MIXED.index(kind), formula_B, index_B)
    coverage, coarsest = _KINDS[kind]
    coverage_BHW = coverage(config.seed, formula_B, key_B, config.image_size, variety=config.variety)
    return appearance.image(coverage_BHW, key_B, config.channels, coarsest=coarsest, variety=config.variety)


def _formula(kind: str, label: int) -> tuple[str, int]:
    """A class's kind, and its number within the kind."""
    return (_MIXED[label % len(_MIXED)], label // len(_MIXED)) if kind == "mixed" else (kind, label)


def _by_kind(kind: str, label_B: NDArray[np.int64]) -> list[tuple[str, NDArray[np.int64], NDArray[np.intp]]]:
    """For each kind: its name, every image's class counted within the kind, and which images are of it."""
    if kind != "mixed":
        return [(kind, label_B, np.arange(len(label_B)))]
    formula_B, turn_B = np.divmod(label_B, len(_MIXED))
    return [(name, formula_B, np.flatnonzero(turn_B == turn)) for turn, name in enumerate(_MIXED)]


def _whole(name: str, numbers: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int64]:
    given = np.asarray(numbers)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise DataError(f"{name} must be a list of whole numbers, not {given.dtype} of shape {given.shape}")
    return given.astype(np.int64)


class SyntheticDataset(MapStyle):
    """The synthetic dataset: `samples_per_class` images of each class; labels run 0, 1, 2, ..., 0, 1, 2, ..."""

    __slots__ = ("config", "labels", "transform")

    def __init__(self, config: SyntheticConfig, *, transform: Callable[[Pixels], Any] | None = None) -> None:
        self.config = config
        self.transform = transform
        formulas = (_formula(config.kind, label) for label in range(config.classes))
        self.labels = tuple(f"{kind}-{formula:05d}" for kind, formula in formulas)

    @property
    def multi_label(self) -> bool:
        """An image has one class."""
        return False

    def __len__(self) -> int:
        return self.config.classes * self.config.samples_per_class

    def read(self, index: int) -> RawSample:
        """The image, drawn when it is read."""
        label, number = self._place(index)
        return RawSample(
            name=f"synthetic/{self.labels[label]}/{number}",
            content=image(self.config, label, number),
            label=label,
        )

    def label(self, index: int) -> int:
        """The class of an image, without drawing it."""
        return self._place(index)[0]

    def images(self, indices: Sequence[int] | NDArray[np.integer]) -> NDArray[np.uint8]:
        """The images with these indices, uint8 [B, H, W, C], much faster than one by one."""
        place_B = _whole("indices", indices)
        for place in place_B:
            self._place(int(place))
        number_B, label_B = np.divmod(place_B, self.config.classes)
        return images(self.config, label_B, number_B + self.config.first)

    def fingerprint(self) -> str:
        """Hash of everything the images depend on."""
        settings = asdict(self.config)
        settings["examples"] = settings.pop("samples_per_class")  # its name when the first fingerprints were made
        content = json.dumps({"formulas": FORMULA_VERSION, **settings}, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def _place(self, index: int) -> tuple[int, int]:
        """(class, number within the class) of an image."""
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of a synthetic dataset of {len(self)}")
        number, label = divmod(index, self.config.classes)
        return label, number + self.config.first
