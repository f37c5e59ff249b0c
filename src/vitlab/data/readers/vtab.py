"""Readers of VTAB's tasks, each as it is published: VTAB-1k's lists, CLEVR, dSprites, KITTI, small NORB, and Diabetic Retinopathy.

Axes: N images, H height, W width, C channels.
"""

from __future__ import annotations

import csv
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.dataset import UNDECLARED, Contents, ImageDataset, LabelTable
from vitlab.data.decode import decode
from vitlab.data.readers.array_files import PixelBlock, Pixels, check_codes, find_file, from_blocks
from vitlab.data.readers.folder import FileRow, from_files
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError
from vitlab.io.archive_limits import GZIP, MOST_INFLATED, ArchiveLimits, inflated
from vitlab.io.arrays import LARGEST_IN_MEMORY, NpzArray, open_npz
from vitlab.io.digests import DIGEST_BYTES, Content, Digests, remembered_digests
from vitlab.io.display import printable
from vitlab.io.files import LIST_FILE, open_regular, read_bytes, read_text, stamp_of

LISTS = (("train800.txt", TRAIN), ("val200.txt", VAL), ("test.txt", TEST))


def has_lists(folder: Path) -> bool:
    """Whether the folder holds VTAB-1k's lists: train800.txt, val200.txt and test.txt."""
    return (folder / LISTS[0][0]).is_file()


def open_lists(folder: Path, *, classes: int) -> ImageDataset:
    """The images of VTAB-1k's three lists, in their order; each line is a path, a space and the number of a class.

    Only these lists hold the published choice of 800 and 200 images.
    """
    rows = []
    for name, split in LISTS:
        file = folder / name
        try:
            lines = read_text(file, most=LIST_FILE).splitlines()
        except DataError as error:
            raise DataError(
                f"{printable(str(file))} cannot be read", hint="a task needs train800.txt, val200.txt and test.txt"
            ) from error
        for number, line in enumerate(lines, start=1):
            path, _, code = line.strip().rpartition(" ")
            if not line.strip():
                continue
            if not path or not code.isascii() or not code.isdigit():
                raise DataError(
                    f"{printable(str(file))}, line {number}, is not a path and the number of a class: {printable(line[:80])}"
                )
            rows.append(FileRow(path=path, code=int(code), split=split))
    return from_files(folder, rows, tuple(f"class {number}" for number in range(classes)), where=str(folder))


KITTI_CLASSES = ("up to 8 m", "8 to 20 m", "over 20 m", "no vehicle")
CLEVR_DISTANCES = ("up to 8", "8 to 8.5", "8.5 to 9", "9 to 9.5", "9.5 to 10", "over 10")
CLEVR_FEWEST, CLEVR_MOST = 3, 10
CLEVR_COUNTS = tuple(f"{count} objects" for count in range(CLEVR_FEWEST, CLEVR_MOST + 1))

_KITTI_METRES = (-100.0, 8.0, 20.0, 999.0)
_NO_VEHICLE = 1000.0
_VEHICLES = ("Car", "Van", "Truck")
_CLEVR_DEPTHS = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)


def bin_of(value: float, thresholds: Sequence[float]) -> int:
    """The last of the thresholds that the value exceeds."""
    return max(place for place, threshold in enumerate(thresholds) if threshold < value)


def kitti_class(lines: Iterable[str]) -> int:
    """The class of an image by the distance of the closest vehicle ahead, from the lines of a label file.

    A line is type, truncated, occluded, alpha, box (4), height, width, length, x, y, z, rotation; z is in metres.
    ValueError or IndexError if a line is malformed.
    """
    objects = (line.split() for line in lines)
    ahead = min((float(words[13]) for words in objects if words[0] in _VEHICLES), default=_NO_VEHICLE)
    return bin_of(ahead, _KITTI_METRES)


def clevr_distance(depths: Iterable[float]) -> int:
    """The bin of the closest object's depth; ValueError without an object."""
    return bin_of(min(depths), _CLEVR_DEPTHS)


ClevrTask = Literal["count", "distance"]


def open_clevr(folder: Path, task: ClevrTask) -> ImageDataset:
    """CLEVR's images with published scenes (`train` and `val`), in the order of the scenes.

    The class is the number of objects, or VTAB's bin of the distance to the closest one. `folder` is CLEVR_v1.0, or the folder
    around it.
    """
    scenes = {split: find_scenes(folder, word) for word, split in (("train", TRAIN), ("val", VAL))}
    for split, name in ((TRAIN, "train"), (VAL, "val")):
        if scenes[split] is None:
            raise DataError(
                f"{printable(str(folder))} holds no scenes/CLEVR_{name}_scenes.json", hint="unpack CLEVR_v1.0.zip there"
            )
    root = next(path for path in scenes.values() if path is not None).parent.parent
    rows = []
    for split, word in ((TRAIN, "train"), (VAL, "val")):
        path = scenes[split]
        assert path is not None
        for name, depths in read_scenes(path):
            code = len(depths) - CLEVR_FEWEST if task == "count" else clevr_distance(depths)
            rows.append(FileRow(path=f"images/{word}/{name}", code=code, split=split))
    labels = CLEVR_COUNTS if task == "count" else CLEVR_DISTANCES
    return from_files(root, rows, labels, where=str(folder))


def find_scenes(folder: Path, split: str) -> Path | None:
    """The file of scenes of a split, or None."""
    name = f"scenes/CLEVR_{split}_scenes.json"
    return find_file(folder, [name, f"CLEVR_v1.0/{name}"])


def read_scenes(path: Path) -> Iterator[tuple[str, list[float]]]:
    """The image of each scene, and the depths of its objects."""
    try:
        for scene in json.loads(read_bytes(path, most=LIST_FILE))["scenes"]:
            depths = [float(thing["pixel_coords"][2]) for thing in scene["objects"]]
            if not depths:
                raise ValueError("a scene without an object")
            yield str(scene["image_filename"]), depths
    except (DataError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DataError(f"{printable(str(path))} holds no scenes of CLEVR") from error


SpritesTask = Literal["x", "orientation"]

_NAME = "dsprites_*.npz"
# The images are nearly empty: the published file unpacks to more than a hundred times its size. An eighth of that is kept.
_LIMITS = ArchiveLimits(entries=100, entry_bytes=LARGEST_IN_MEMORY, total_bytes=2 * LARGEST_IN_MEMORY, ratio=MOST_INFLATED)
_COLUMN: dict[SpritesTask, tuple[int, int]] = {"orientation": (3, 40), "x": (4, 32)}  # column, number of values
_BINS = 16


def open_dsprites(path: Path, task: SpritesTask) -> ImageDataset:
    """dSprites from its .npz, in the order of the file, which declares no splits; `path` is the file or its folder.

    The class is VTAB's: the horizontal position or the orientation, in 16 bins.
    """
    file = path if path.is_file() else next(iter(sorted([*path.glob(_NAME), *path.glob(f"*/{_NAME}")])), None)
    if file is None:
        raise DataError(f"{printable(str(path))} holds no {_NAME}")
    # `metadata` holds pickled objects and is ignored.
    arrays = open_npz(file, only=("imgs", "latents_classes"), limits=_LIMITS)
    if set(arrays) != {"imgs", "latents_classes"}:
        raise DataError(f"{printable(str(file))} has no imgs or latents_classes, as dSprites has")
    images, latents = arrays["imgs"], arrays["latents_classes"]
    if len(images.shape) != 3 or np.dtype(images.dtype) != np.uint8 or latents.shape != (images.shape[0], 6):
        raise DataError(
            f"{printable(str(file))}: imgs is {images.shape} of {images.dtype} and latents_classes {latents.shape};"
            " dSprites has (images, height, width) of bytes and (images, 6)"
        )
    column, values = _COLUMN[task]
    latent_N = latents.load()[:, column].astype(np.int64)
    check_codes(latent_N, images.shape[0], values, str(file))
    # floor(latent / (values / bins)), in whole numbers
    codes = (latent_N * _BINS // values).astype(np.int32)
    return ImageDataset(
        contents=Sprites(images),
        rows=np.arange(len(codes), dtype=np.int64),
        table=LabelTable(codes=codes),
        labels=tuple(f"{task} {number + 1} of {_BINS}" for number in range(_BINS)),
        splits=np.full(len(codes), UNDECLARED, np.int8),
    )


class Sprites:
    """Black and white images of one size, held as one bit per pixel (3 GB become 380 MB) and loaded on first use."""

    def __init__(self, images: NpzArray) -> None:
        self._images = images
        self._packed_NB: Pixels | None = None

    def name(self, row: int) -> str:
        """The file and the image's number in it."""
        return f"{self._images.contents.index.path}, image {row}"

    def read(self, row: int) -> Pixels:
        """Pixels (H, W, 1), 0 and 255."""
        height, width = self._images.shape[1:]
        bits = np.unpackbits(self._unpacked()[row], count=height * width)
        return (bits * np.uint8(255)).reshape(height, width, 1)

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each image, cached until the file changes."""
        index, (count, height, width) = self._images.contents.index, self._images.shape
        sizes = np.full(count, height * width, np.int64)
        self._unpacked()  # once, before several threads need it
        return remembered_digests(self.read, rows, path=index.path, stamp=index.stamp, sizes=sizes)

    def _unpacked(self) -> Pixels:
        if self._packed_NB is None:
            self._packed_NB = _packed(self._images)
        return self._packed_NB

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_packed_NB": None}


def _packed(images: NpzArray) -> Pixels:
    """All images, one bit per pixel (N, bytes of an image); the array is streamed, and never in memory as a whole."""
    count, height, width = images.shape
    size = height * width
    packed_NB = np.empty((count, -(-size // 8)), np.uint8)
    row, held, header = 0, b"", images.header
    for chunk in images.contents.stream(images.row):
        data = held + chunk
        data, header = data[header:], max(0, header - len(data))
        whole = len(data) // size
        if whole:
            pixels = np.frombuffer(data, np.uint8, whole * size).reshape(whole, size)
            if pixels.max() > 1:
                raise DataError(f"{printable(images.where)} holds {pixels.max()}, but dSprites has zeros and ones")
            packed_NB[row : row + whole] = np.packbits(pixels, axis=1)
            row += whole
        held = data[whole * size :]
    assert row == count, "the array is as large as its header says"
    return packed_NB


_PERCENT = 10  # of the drives, for val and for test
_SEED = 123


def open_kitti(folder: Path) -> ImageDataset:
    """KITTI's labelled images in the order of their numbers; the class is VTAB's: how far ahead the closest vehicle is.

    `folder` holds `training`, or the unpacked archives. With the development kit's `mapping/train_rand.txt` and
    `train_mapping.txt`, splits are declared by drive, as in TensorFlow Datasets and VTAB, so that no drive is in two splits.
    Without it, no split is declared.
    """
    labels = _folder(folder, "label_2", "*.txt")
    images = _folder(folder, "image_2", "*.png")
    split_of = _splits(folder)
    rows = []
    for file in sorted(labels.glob("*.txt")):
        try:
            code = kitti_class(line for line in read_text(file).splitlines() if line.strip())
        except (DataError, ValueError, IndexError) as error:
            raise DataError(f"{printable(str(file))} is not a label file of KITTI") from error
        rows.append(FileRow(path=f"{file.stem}.png", code=code, split=_split_of(file, split_of)))
    notes = () if split_of else ("without mapping/ of the development kit, images of one drive can be in two splits",)
    return from_files(images, rows, KITTI_CLASSES, where=str(folder), notes=notes)


def _folder(folder: Path, name: str, pattern: str) -> Path:
    for place in (f"training/{name}", f"*/training/{name}", name):
        for found in sorted(folder.glob(place)):
            if next(found.glob(pattern), None) is not None:
                return found
    raise DataError(
        f"{printable(str(folder))} holds no training/{name} with {pattern} files", hint="unpack KITTI's object archives there"
    )


def _split_of(file: Path, split_of: list[int]) -> int:
    if not split_of:
        return UNDECLARED
    if not file.stem.isdigit() or int(file.stem) >= len(split_of):
        raise DataError(f"the development kit maps {len(split_of):,} images, but {printable(file.name)} is not among them")
    return split_of[int(file.stem)]


def _splits(folder: Path) -> list[int]:
    """The split of each image by its number; empty without the development kit."""
    order = find_file(folder, ["mapping/train_rand.txt", "devkit_object/mapping/train_rand.txt"])
    frames = find_file(folder, ["mapping/train_mapping.txt", "devkit_object/mapping/train_mapping.txt"])
    if order is None or frames is None:
        return []
    try:
        lines = read_text(frames).splitlines()
        # Image i is frame order[i] of the mapping, counted from 1; its line is date, drive, frame.
        numbers = [int(word) - 1 for word in read_text(order).split(",")]
        if min(numbers) < 0:
            raise ValueError("lines are counted from 1")
        drive_of = [lines[number].split(" ")[1] for number in numbers]
    except (DataError, ValueError, IndexError) as error:
        raise DataError(f"{printable(str(order.parent))} does not map images to drives as KITTI's development kit does") from error
    # TensorFlow Datasets draws drives by numpy's legacy generator, which never changes: the same seed gives the same drives.
    drives = sorted(set(drive_of))
    held_out = max(1, _PERCENT * len(drives) // 100)
    if len(drives) < 3:
        raise DataError(f"{printable(str(order.parent))} knows {len(drives)} drives, which are too few for three splits")
    draw = np.random.RandomState(_SEED)
    test = set(draw.choice(drives, held_out, replace=False).tolist())
    val = set(draw.choice(sorted(set(drives) - test), held_out, replace=False).tolist())
    return [TEST if drive in test else VAL if drive in val else TRAIN for drive in drive_of]


NorbTask = Literal["azimuth", "elevation"]

AZIMUTHS = tuple(f"{20 * step} degrees around" for step in range(18))
ELEVATIONS = tuple(f"{30 + 5 * step} degrees up" for step in range(9))

_TYPES = {0x1E3D4C55: "u1", 0x1E3D4C54: "<i4"}
_ELEVATION, _AZIMUTH = 1, 2
_CHUNK = 2**20


def open_norb(folder: Path, task: NorbTask) -> ImageDataset:
    """Small NORB's images of the first camera, training then testing; the class is VTAB's: the camera's azimuth or elevation.

    The files are binary matrices, gzipped or not: the type of the values, the number of axes, the length of each axis (at least
    three are written), and the values, all little-endian (https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/). The `info` matrix
    has four columns: instance, elevation, azimuth, lighting.
    """
    blocks, codes, splits = [], [], []
    for word, split in (("training", TRAIN), ("testing", TEST)):
        images, info = _file(folder, word, "dat"), _file(folder, word, "info")
        shape = _header(images)[1]
        info_N4 = _read(info)
        if len(shape) != 4 or shape[1] != 2 or info_N4.shape != (shape[0], 4):
            raise DataError(
                f"{printable(str(images))} has the shape {shape} and its info {info_N4.shape}; small NORB has"
                " (images, 2 cameras, height, width) and (images, 4)"
            )
        load = partial(_load, images, stamp_of(images.stat()))
        blocks.append(PixelBlock(str(images), shape[0], load, shape=shape[2:], layout="HW"))
        codes.append(_codes(info_N4, task, info))
        splits.append(split)
    return from_blocks(blocks, codes, splits, AZIMUTHS if task == "azimuth" else ELEVATIONS)


def _codes(info_N4: NDArray[np.generic], task: NorbTask, where: Path) -> NDArray[np.int64]:
    if task == "elevation":
        return info_N4[:, _ELEVATION].astype(np.int64)
    twice_N = info_N4[:, _AZIMUTH].astype(np.int64)  # 0, 2, ..., 34: in steps of ten degrees
    if np.any(twice_N % 2):
        raise DataError(f"{printable(str(where))}: an azimuth is an odd multiple of ten degrees, but all are even")
    return twice_N // 2


def _file(folder: Path, split: str, kind: str) -> Path:
    for pattern in (f"*-{split}-{kind}.mat", f"*-{split}-{kind}.mat.gz"):
        found = sorted([*folder.glob(pattern), *folder.glob(f"*/{pattern}")])
        if found:
            return found[0]
    raise DataError(f"{printable(str(folder))} holds no smallnorb-...-{split}-{kind}.mat, gzipped or not")


def _chunks(path: Path, most: int) -> Iterator[bytes]:
    """The file's bytes, decompressed if needed, at most `most` at a time."""
    try:
        with open_regular(path, error=DataError) as file:
            start = file.read(2)
            file.seek(0)
            raw = iter(partial(file.read, most), b"")
            yield from inflated(raw, wrapping=GZIP, most=most) if start == b"\x1f\x8b" else raw
    except zlib.error as error:
        raise DataError(f"{printable(str(path))} is damaged or cut off: {error}") from error


def _header(path: Path) -> tuple[str, tuple[int, ...], int]:
    """Type, shape, and bytes before the values; DataError if the file cannot hold so many."""
    start = np.frombuffer(next(_chunks(path, 64), b"").ljust(64, b"\0")[:64], "<i4")
    dtype, axes = _TYPES.get(int(start[0])), int(start[1])
    if dtype is None or not 1 <= axes <= 8:
        raise DataError(f"{printable(str(path))} is not a binary matrix of NORB")
    shape = tuple(start[2 : 2 + axes].tolist())
    size, stored = math.prod(shape) * np.dtype(dtype).itemsize, path.stat().st_size
    if min(shape) < 1 or size > min(LARGEST_IN_MEMORY, stored * MOST_INFLATED):
        raise DataError(f"{printable(str(path))}: its {stored:,} bytes cannot hold the {size:,} its header claims")
    return dtype, shape, 8 + 4 * max(3, axes)


def _read(path: Path) -> NDArray[np.generic]:
    """The whole matrix."""
    dtype, shape, start = _header(path)
    raw = np.empty(math.prod(shape) * np.dtype(dtype).itemsize, np.uint8)
    filled = -start
    for chunk in _chunks(path, _CHUNK):
        piece = chunk[max(0, -filled) :] if filled < 0 else chunk
        place = max(0, filled)
        if place + len(piece) > len(raw):
            raise DataError(f"{printable(str(path))} holds more than its header says")
        raw[place : place + len(piece)] = np.frombuffer(piece, np.uint8)
        filled += len(chunk)
    if filled != len(raw):
        raise DataError(f"{printable(str(path))} is cut off: it holds {max(0, filled):,} of {len(raw):,} bytes")
    return raw.view(dtype).reshape(shape)


def _load(path: Path, stamp: tuple[int, int, int]) -> Pixels:
    if stamp_of(path.stat())[:2] != stamp[:2]:
        raise DataError(f"{printable(str(path))} has changed since it was opened", hint="start again")
    pixels_N2HW = _read(path)
    return np.ascontiguousarray(pixels_N2HW[:, 0], np.uint8)


# --- Kaggle's Diabetic Retinopathy Detection ---------------------------------------------------------------------------------

# trainLabels.csv, retinopathy_solution.csv, and the photographs. Each photograph of an eye's background is normalised when it is
# read, as the winner of the competition did (Graham 2015, "btgraham-300") and as VTAB uses it: the eye is scaled to a radius of
# 300 pixels, its local average colour is subtracted and replaced by mid-grey, and only the inner 90 % of the disc is kept. This
# removes differences of size, colour and light between cameras. Steps, constants and roundings are those of TensorFlow Datasets,
# which uses OpenCV; single pixels differ by a level or two, because OpenCV scales and blurs in fixed point and draws its circle by
# its own rule.

Floats = NDArray[np.float32]

EYE_RADIUS = 300
"""The radius of an eye after scaling, in pixels."""

_KEPT = 0.9  # of the radius
_GREY = 128
_GAIN = 4
_QUALITY = 72


def normalised_fundus(image_HWC: Pixels, *, radius: int = EYE_RADIUS) -> Pixels:
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

_USAGES = {"Public": VAL, "Private": TEST}  # how TensorFlow Datasets, and VTAB, split Kaggle's test set
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
    rows = [FileRow(path=f"train/{name}.jpeg", code=level, split=TRAIN) for name, level, _ in _levels(train)]
    for name, level, usage in _levels(solution):
        if usage not in _USAGES:
            raise DataError(
                f"{printable(str(solution))}: Usage of {printable(name)} is {printable(usage)!r}, neither Public nor Private"
            )
        rows.append(FileRow(path=f"test/{name}.jpeg", code=level, split=_USAGES[usage]))
    dataset = from_files(train.parent, rows, STAGES, where=str(folder))
    return replace(dataset, contents=EyeContents(dataset.contents))


def _levels(path: Path) -> Iterator[tuple[str, int, str]]:
    """Image, level and usage (may be empty) of each row."""
    text = read_text(path, most=LIST_FILE)
    try:
        for row in csv.DictReader(io.StringIO(text, newline="")):
            yield row["image"], int(row["level"]), row.get("Usage") or ""
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{printable(str(path))} is not a CSV with columns image and level") from error
