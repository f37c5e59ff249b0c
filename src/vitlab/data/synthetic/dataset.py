"""The synthetic dataset: endless labelled images drawn from formulas. An image depends on (config, class, index) only.

    image(SyntheticConfig(kind="strokes"), label=7, index=0)    # uint8 [H, W, C], the same bits everywhere

Axes: B images, H height, W width, C channels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.config.data import SyntheticConfig
from vitlab.data.dataset import MapStyle, Pixels, RawSample
from vitlab.data.random_numbers import CHANCE, Choice, Choices, Floats, Keys, cosine, keys, sine, turns, words
from vitlab.data.synthetic import contours, fractals, strokes
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
    return _painted(coverage_BHW, key_B, config.channels, coarsest=coarsest, variety=config.variety)


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


# --- sharpness, colours, light and noise: the same for all classes ------------------------------------------------------------

# Brightness is from 0 (black) to 1 (white); the direction is in turns.
_SAMPLE = Choices(
    {
        "coarse": CHANCE,
        "fineness": Choice(0, 1),
        "round": CHANCE,
        "inverted": CHANCE,
        "paper": Choice(0.0, 0.35, 0.05),
        "contrast": Choice(0.5, 1.0, 0.9),
        "paper tint": Choice(-0.3, 0.3, times=3),
        "ink tint": Choice(-0.25, 0.25, times=3),
        "direction": Choice(0, 1),
        "paper slope": Choice(-0.15, 0.15, times=3),
        "ink slope": Choice(-0.15, 0.15, times=3),
        "noisy": CHANCE,
        "noise": Choice(0.03, 0.22),
    }
)
_FINEST = 0.9  # above this a blur is not visible
# Where the random words of this stage begin in a sample's sequence; those of the shape come before.
_CHOICES_AFTER = 1 << 16
_NOISE_AFTER = 1 << 32


def _painted(coverage_BHW: NDArray[np.uint8], key_B: Keys, channels: int, *, coarsest: float, variety: float) -> NDArray[np.uint8]:
    """Images [B, H, W, C] of the shapes; `coverage_BHW` is overwritten; `key_B` holds the samples' keys.

    `coarsest` is the strongest blur, as a fraction of the image's pixels along a side.
    """
    height, width = coverage_BHW.shape[1:]
    sample = _SAMPLE.draw(key_B, variety=variety, after=_CHOICES_AFTER)
    _blur(coverage_BHW, sample, coarsest)
    share_B1HW = (coverage_BHW * np.float32(1 / 255))[:, None]

    # Ink and paper always contrast; usually bright on dark; tinted in colour images.
    inverted_B1 = sample["inverted"] < 0.25
    ink_B1 = sample["paper"] + sample["contrast"] * (1 - sample["paper"])
    paper_BC = _tinted(np.where(inverted_B1, 1 - sample["paper"], sample["paper"]), sample["paper tint"], channels)
    ink_BC = _tinted(np.where(inverted_B1, 1 - ink_B1, ink_B1), sample["ink tint"], channels)
    light_BCHW = share_B1HW * _pixels(ink_BC - paper_BC) + _pixels(paper_BC)

    # Light changes in one direction, by different amounts for paper and ink.
    paper_slope_BC, ink_slope_BC = sample["paper slope"][:, :channels], sample["ink slope"][:, :channels]
    slope_BCHW = share_B1HW * _pixels(ink_slope_BC - paper_slope_BC) + _pixels(paper_slope_BC)
    light_BCHW += _plane(turns(sample["direction"]), height, width)[:, None] * slope_BCHW

    strength_B1 = (sample["noisy"] < 0.5) * sample["noise"] * sample["contrast"]
    if strength_B1.any():
        light_BCHW += _noise(key_B, light_BCHW.shape) * _pixels(strength_B1)
    light_BCHW *= 255
    light_BCHW += 0.5
    np.maximum(light_BCHW, 0, out=light_BCHW)
    np.minimum(light_BCHW, 255, out=light_BCHW)
    return light_BCHW.astype(np.uint8).transpose(0, 2, 3, 1)


def _blur(coverage_BHW: NDArray[np.uint8], sample: dict[str, Floats], coarsest: float) -> None:
    """Blur some of the shapes, as when a small image is enlarged."""
    height, width = coverage_BHW.shape[1:]
    for b in np.flatnonzero(sample["coarse"] < 0.5).tolist():
        fineness = coarsest + (_FINEST - coarsest) * float(sample["fineness"][b, 0])
        small = (max(4, round(width * fineness)), max(4, round(height * fineness)))
        enlarge = Image.Resampling.BICUBIC if sample["round"][b, 0] < 0.5 else Image.Resampling.BILINEAR
        seen = Image.fromarray(coverage_BHW[b]).resize(small, Image.Resampling.BOX).resize((width, height), enlarge)
        seen_HW = np.asarray(seen)
        # Thin lines fade when blurred, so the brightest pixel is brought back to white, within limits.
        gain = np.float32(min(255 / max(1, int(seen_HW.max())), 2.5))
        np.minimum(seen_HW * gain, 255, out=coverage_BHW[b], casting="unsafe")


def _tinted(grey_B1: Floats, tint_B3: Floats, channels: int) -> Floats:
    """One value per channel: the grey itself, or a colour around it."""
    return grey_B1 if channels == 1 else (grey_B1 + tint_B3).clip(0, 1)


def _pixels(value_BC: Floats) -> NDArray[np.float32]:
    """One value per image and channel, as [B, C, 1, 1]."""
    return value_BC.astype(np.float32)[:, :, None, None]


def _plane(way_B1: NDArray[np.int64], height: int, width: int) -> NDArray[np.float32]:
    """A gradient [B, H, W] from about -1 to 1 across each image, in its own direction."""
    down_BH = (sine(way_B1) * _even_steps(height)).astype(np.float32)
    along_BW = (cosine(way_B1) * _even_steps(width)).astype(np.float32)
    return down_BH[:, :, None] + along_BW[:, None, :]


@lru_cache(maxsize=16)
def _even_steps(count: int) -> Floats:
    """Pixel centres on a line from -1 to 1."""
    return (np.arange(count) * 2 + 1 - count) / count


def _noise(key_B: Keys, shape_BCHW: tuple[int, ...]) -> NDArray[np.float32]:
    """Noise between -1 and 1, independent in each pixel and channel, more often small than large."""
    count = int(np.prod(shape_BCHW[1:]))
    bytes_BK = words(key_B, -(-count // 4), after=_NOISE_AFTER).astype("<u8", copy=False).view(np.int8)
    sum_BK = bytes_BK[:, :count].astype(np.int16) + bytes_BK[:, count : 2 * count]  # a sum of two: small values are likelier
    return (sum_BK * np.float32(1 / 256)).reshape(shape_BCHW)
