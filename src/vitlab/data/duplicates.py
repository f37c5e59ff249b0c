"""Near duplicates: images that were recompressed, resized, brightened, slightly cropped, recoloured or mirrored.

Each image becomes a grey thumbnail of 32 x 32 pixels. Its 64-bit hash holds the signs of the 64 lowest frequencies of the
thumbnail (the DCT without its mean), which do not depend on brightness and contrast. Hashes are compared in bands of bits, so
that no image is compared with all others. An image is also looked up with its weakest bits flipped, because small changes flip
these. The thumbnails of images that share a band are then compared.

Axes: N images, P pairs, F frequencies, H height, W width of a thumbnail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.decode import as_rgb
from vitlab.io.display import ProgressCallback, silent

SIDE = 32
"""Pixels of a thumbnail's side; smaller images have too little detail to be compared."""

# On 7,349 Pets and 60,000 CIFAR-10 images, pairs above these three were inspected: all but a few are the same photograph.
LEAST_LIKENESS = 0.9  # correlation of the thumbnails
LEAST_DETAIL = 0.6  # ... of their fine detail, which a blur removes: two landscapes may agree in everything else
LEAST_CENTRES = {
    5: 0.85,
    8: 0.75,
}  # ... of their centres, so many pixels from the edges: two images in one frame agree in everything else

_FLAT = 4.0  # grey levels; a lower standard deviation means an empty image, which resembles any other
_MANY = 200_000  # images; above this, bands are longer
_MOST_MET = 2048  # images that one is compared with in a band
_MOST_LIKELY = 24  # ... of which so many are compared by their pixels, since a thousand copies need not all be compared
_MOST_DIFFERENT = 18  # bits of 64
_LEAST_COARSE = 0.85  # correlation of the 64 frequencies: a weaker test than that of the thumbnails, and 16 times as fast
_BLOCK = 4096
_PIXEL_BLOCK = 256  # pairs whose pixels fit into a core's cache

Thumbnails = NDArray[np.uint8]
"""(N, 32, 32)"""
Pairs = NDArray[np.int64]
"""(P, 2), the smaller number first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearPair:
    """Two images by number, the smaller first; `likeness` is the correlation of their thumbnails, up to 1."""

    first: int
    second: int
    likeness: float
    mirrored: bool


def thumbnail(image_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image as 32 x 32 grey pixels, each the mean of what it covers, whatever the aspect ratio."""
    pixels = image_HWC[:, :, 0] if image_HWC.shape[2] == 1 else as_rgb(image_HWC)
    grey = Image.fromarray(np.ascontiguousarray(pixels)).convert("L")
    return np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BOX))


def is_flat(thumb_NHW: Thumbnails) -> NDArray[np.bool_]:
    """Whether a thumbnail is of nearly one colour, (N,)."""
    flat: NDArray[np.bool_] = thumb_NHW.reshape(len(thumb_NHW), -1).std(axis=1) < _FLAT
    return flat


def near_pairs(thumb_NHW: Thumbnails, *, progress: ProgressCallback = silent) -> list[NearPair]:
    """All pairs of thumbnails that look nearly the same, directly or mirrored. Remove flat ones first."""
    weight_NF = _frequencies(thumb_NHW)
    found: dict[tuple[int, int], NearPair] = {}
    steps = 2 * len(_bands(len(thumb_NHW)))
    for mirrored in (False, True):
        asked_NF = weight_NF * _MIRROR_F if mirrored else weight_NF
        met: list[Pairs] = []
        for number, band in enumerate(_bands(len(thumb_NHW))):
            progress("comparing images", number + mirrored * steps // 2, steps)
            met.extend(_meetings(weight_NF, asked_NF, band))
        likely_P2 = _likely(weight_NF, asked_NF, _unique(met))
        for pair in _compared(thumb_NHW, likely_P2, mirrored=mirrored):
            found.setdefault((pair.first, pair.second), pair)
    progress("comparing images", steps, steps)
    return [found[key] for key in sorted(found)]


def _cosines(count: int) -> NDArray[np.float32]:
    """The first `count` rows of the DCT-II of 32 numbers, each of length 1."""
    place, frequency = np.arange(SIDE), np.arange(count)[:, None]
    rows = np.cos(np.pi * frequency * (2 * place + 1) / (2 * SIDE))
    unit: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


# The 64 lowest frequencies (down, across), the mean left out, in the order of their sum.
_LOWEST = sorted(((down, across) for down in range(12) for across in range(12)), key=lambda pair: (sum(pair), pair))[1:65]
_DOWN, _ACROSS = np.array(_LOWEST).T
_COSINES = _cosines(12)
# Mirrored, an image's odd frequencies across change their sign, and nothing else does.
_MIRROR_F = np.where(_ACROSS % 2 == 1, -1, 1).astype(np.float32)


def _frequencies(thumb_NHW: Thumbnails) -> NDArray[np.float32]:
    made_NF = np.empty((len(thumb_NHW), len(_LOWEST)), np.float32)
    for start in range(0, len(thumb_NHW), _BLOCK):
        block = slice(start, start + _BLOCK)
        made_NF[block] = (_COSINES @ thumb_NHW[block].astype(np.float32) @ _COSINES.T)[:, _DOWN, _ACROSS]
    return made_NF


@dataclass(frozen=True, slots=True, kw_only=True)
class _Band:
    """Some of the 64 bits. Two images meet if they agree in these, except for up to `flips` of their `weak` weakest bits."""

    bits: NDArray[np.int64]
    weak: int
    flips: int

    def probes(self) -> list[tuple[int, ...]]:
        """The weakest bits that are flipped at each look-up."""
        return [chosen for count in range(self.flips + 1) for chosen in combinations(range(self.weak), count)]


def _bands(count: int) -> list[_Band]:
    """Bands for `count` images, long enough for few accidental matches: four of 16 bits, or three of 21."""
    number, weak, flips = (4, 6, 2) if count < _MANY else (3, 8, 3)
    return [_Band(bits=np.arange(start, 64 // number * number, number), weak=weak, flips=flips) for start in range(number)]


def _meetings(weight_NF: NDArray[np.float32], asked_NF: NDArray[np.float32], band: _Band) -> Iterator[Pairs]:
    """Pairs whose hashes agree in a band, except for weak bits, and are similar as a whole."""
    value_B = 1 << np.arange(len(band.bits), dtype=np.int64)
    key_N = (weight_NF[:, band.bits] > 0) @ value_B
    hash_N, asked_hash_N = _hashes(weight_NF), _hashes(asked_NF)
    order_N = np.argsort(key_N, kind="stable")
    # Where each of the 2^bits keys begins among the sorted ones: a look-up is then two reads, and no search.
    begin = np.searchsorted(key_N[order_N], np.arange((1 << len(band.bits)) + 1))
    for start in range(0, len(asked_NF), _BLOCK):
        part = asked_NF[start : start + _BLOCK, band.bits]
        own = (part > 0) @ value_B
        weakest = np.argsort(np.abs(part), axis=1)[:, : band.weak]
        left_over = np.full(len(part), _MOST_MET)
        met, apart = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.uint8)]
        for chosen in band.probes():
            wanted = own.copy()
            for place in chosen:
                wanted ^= value_B[weakest[:, place]]
            counts = np.minimum(begin[wanted + 1] - begin[wanted], left_over)
            left_over -= counts
            first = np.repeat(np.arange(start, start + len(part)), counts)
            offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            second = order_N[np.repeat(begin[wanted], counts) + offsets]
            bits = np.bitwise_count(asked_hash_N[first] ^ hash_N[second])
            near = (first != second) & (bits <= _MOST_DIFFERENT)
            met.append(np.stack([first[near], second[near]], axis=1))
            apart.append(bits[near])
        yield np.sort(_closest(np.concatenate(met), np.concatenate(apart)), axis=1)


def _closest(pairs_P2: Pairs, apart_P: NDArray[np.uint8]) -> Pairs:
    """The most similar pairs of each first image, up to a number."""
    order_P = np.lexsort((apart_P, pairs_P2[:, 0]))
    ordered = pairs_P2[order_P]
    begins = np.flatnonzero(np.diff(ordered[:, 0], prepend=-1))
    rank_P = np.arange(len(ordered)) - np.repeat(begins, np.diff(begins, append=len(ordered)))
    return ordered[rank_P < _MOST_LIKELY]


def _hashes(weight_NF: NDArray[np.float32]) -> NDArray[np.uint64]:
    return np.packbits(weight_NF > 0, axis=1).view(np.uint64)[:, 0]


def _unique(pairs: list[Pairs]) -> Pairs:
    joined = np.concatenate(pairs) if pairs else np.zeros((0, 2), np.int64)
    if not len(joined):
        return joined
    most = int(joined.max()) + 1
    codes = np.unique(joined[:, 0] * most + joined[:, 1])
    return np.stack(np.divmod(codes, most), axis=1)


def _likely(weight_NF: NDArray[np.float32], asked_NF: NDArray[np.float32], pairs_P2: Pairs) -> Pairs:
    """The pairs whose 64 frequencies correlate."""
    length_N = np.maximum(np.linalg.norm(weight_NF, axis=1), 1e-6)
    kept = []
    for start in range(0, len(pairs_P2), _BLOCK):
        block = pairs_P2[start : start + _BLOCK]
        first, second = block.T
        product = np.einsum("pf,pf->p", asked_NF[first], weight_NF[second])
        kept.append(block[product >= _LEAST_COARSE * length_N[first] * length_N[second]])
    return np.concatenate(kept) if kept else pairs_P2


def _compared(thumb_NHW: Thumbnails, pairs_P2: Pairs, *, mirrored: bool) -> Iterator[NearPair]:
    for start in range(0, len(pairs_P2), _PIXEL_BLOCK):
        block = pairs_P2[start : start + _PIXEL_BLOCK]
        first = thumb_NHW[block[:, 0]].astype(np.float32)
        second = thumb_NHW[block[:, 1]].astype(np.float32)
        if mirrored:
            second = second[:, :, ::-1]
        likeness = _correlation(first, second)
        detail = _correlation(first - _blurred(first), second - _blurred(second))
        alike = (likeness >= LEAST_LIKENESS) & (detail >= LEAST_DETAIL)
        for edge, least in LEAST_CENTRES.items():
            inside = [side[:, edge:-edge, edge:-edge] for side in (first, second)]
            empty = np.logical_and(*(side.std(axis=(1, 2)) < _FLAT for side in inside))
            alike &= empty | (_correlation(*inside) >= least)
        for place in np.flatnonzero(alike):
            one, other = block[place].tolist()
            yield NearPair(first=one, second=other, likeness=min(1.0, float(likeness[place])), mirrored=mirrored)


def _correlation(first_PHW: NDArray[np.float32], second_PHW: NDArray[np.float32]) -> NDArray[np.float32]:
    flat = [side.reshape(len(side), -1) for side in (first_PHW, second_PHW)]
    first, second = (side - side.mean(axis=1, keepdims=True) for side in flat)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    likeness: NDArray[np.float32] = np.einsum("pf,pf->p", first, second) / np.maximum(norms, 1e-6)
    return likeness


def _blurred(image_PHW: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each pixel averaged with its neighbours up to two away, by 1 4 6 4 1."""
    padded = np.pad(image_PHW, ((0, 0), (2, 2), (2, 2)), mode="edge")
    blurred = np.zeros_like(image_PHW)
    for down, row in enumerate(_BLUR):
        for across, column in enumerate(_BLUR):
            blurred += row * column * padded[:, down : down + SIDE, across : across + SIDE]
    return blurred


_BLUR = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
