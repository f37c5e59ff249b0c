"""Masks of COCO files: the polygons and run lengths of an instances file, or the coloured PNGs of a panoptic file.

    data/annotations/instances_train2017.json   data/train2017/a.jpg
    data/annotations/panoptic_val2017.json      data/annotations/panoptic_val2017/a.png   data/val2017/a.jpg
    data/train/_annotations.coco.json           data/train/a.jpg

A file's own name or its folder says the split. Of an instances file, the classes are `background` and the categories; a pixel of
two objects belongs to the smaller one, and the region of a crowd is ignored. Of a panoptic file, the classes are the categories; a
pixel's segment has the number R + 256 G + 65,536 B, and 0, no segment, is ignored, as is a crowd.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import DecodeLimits
from vitlab.config.segmenter import MOST_CLASSES
from vitlab.data.dataset import (
    IGNORED,
    UNDECLARED,
    Contents,
    Faults,
    ImageDataset,
    LabelTable,
    Masks,
    check_mask_size,
    listed,
)
from vitlab.data.readers.coco_json import (
    MOST_BYTES,
    CocoImage,
    coco_categories,
    coco_images,
    coco_object,
    is_coco,
    read_instances,
)
from vitlab.data.readers.folder import LeftOut
from vitlab.data.readers.place import Place
from vitlab.data.run_lengths import from_run_lengths, polygon_inside
from vitlab.data.split import split_named
from vitlab.errors import DataError
from vitlab.io.digests import DIGEST_BYTES, Digests, digest
from vitlab.io.names import printable

Kind = Literal["instances", "panoptic"]
Shape = tuple[int, bool, Any]
"""The class of an object, whether it is a crowd, and its polygons or run lengths."""

_BACKGROUND = "background"
_ANNOTATIONS = "annotations"


# --- a mask -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapesMask:
    """The objects of an image before they are drawn: `shapes` is JSON of a list of Shape; `declared` is the size in the file."""

    name: str
    shapes: bytes
    declared: tuple[int, int]
    background: int

    def classes(self, size: tuple[int, ...], *, limits: DecodeLimits) -> NDArray[np.uint8]:
        """The class of each pixel, as in RawMask."""
        height, width = size[:2]
        if all(self.declared):
            check_mask_size(self.name, self.declared, size)
        classes_HW = np.full((height, width), self.background, np.uint8)
        objects: list[tuple[int, int, NDArray[np.bool_]]] = []
        for code, crowd, shape in json.loads(self.shapes):
            try:
                inside_HW = shape_inside(shape, (height, width))
            except DataError as error:
                raise DataError(f"{self.name}: {error.message}", hint=error.hint) from error
            objects.append((height * width + 1 if crowd else int(inside_HW.sum()), IGNORED if crowd else code, inside_HW))
        for _, code, inside_HW in sorted(objects, key=lambda one: -one[0]):  # the smallest last, so that it is on top
            classes_HW[inside_HW] = code
        return classes_HW


def shape_inside(shape: Any, size: tuple[int, int]) -> NDArray[np.bool_]:
    """The pixels of an image of (height, width) `size` inside a COCO `segmentation`: run lengths, or polygons joined."""
    if isinstance(shape, dict):
        if isinstance(own := shape.get("size"), list) and len(own) == 2:
            check_mask_size("of an object", tuple(own), size)
        return from_run_lengths(shape)
    if not isinstance(shape, list) or not shape:
        raise DataError("an object has no segmentation", hint="segmentation needs polygons or run lengths of every object")
    inside_HW = np.zeros(size, np.bool_)
    for polygon in shape:
        inside_HW |= polygon_inside(_points(polygon, size), size)
    return inside_HW


def _points(polygon: Any, size: tuple[int, int]) -> NDArray[np.float64]:
    """The corners of a polygon, (P, 2); DataError unless it has three, some inside the image and none far from it."""
    numbers = polygon if isinstance(polygon, list) else []
    if len(numbers) < 6 or len(numbers) % 2 or not all(type(number) in (int, float) for number in numbers):
        raise DataError("a polygon must be a list x1, y1, x2, y2, ... of three points or more")
    points = np.array(numbers, np.float64).reshape(-1, 2)
    height, width = size
    low, high = points.min(0), points.max(0)
    if (high < 0).any() or low[0] > width or low[1] > height:
        raise DataError(
            f"a polygon lies outside of its image of {height}x{width}", hint="was it drawn on an image of another size?"
        )
    if (np.abs(points) > 2 * max(height, width)).any():
        raise DataError(f"a polygon leaves its image of {height}x{width} by more than its size")
    return points


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PanopticMask:
    """A panoptic PNG before decoding: `segments` is JSON of the class of each segment's number, IGNORED of a crowd."""

    name: str
    content: bytes
    segments: bytes

    def classes(self, size: tuple[int, ...], *, limits: DecodeLimits) -> NDArray[np.uint8]:
        """The class of each pixel, as in RawMask."""
        from vitlab.data.decode import check, decode  # opening a dataset needs no Pillow

        header = check(self.content, name=self.name, limits=limits)
        if header.format != "png":
            raise DataError(f"the mask {self.name} is a {header.format} file, whose colours are not exact", hint="save it as PNG")
        check_mask_size(self.name, (header.height, header.width), size)  # before it is decoded: it may be large
        red_HW, green_HW, blue_HW = (
            decode(self.content, name=self.name, limits=limits, channels=3).astype(np.uint32).transpose(2, 0, 1)
        )
        numbers_HW = red_HW + 256 * green_HW + 65_536 * blue_HW
        class_of = {0: IGNORED, **{int(number): code for number, code in json.loads(self.segments).items()}}
        found, place_HW = np.unique(numbers_HW, return_inverse=True)
        if odd := [number for number in found.tolist() if number not in class_of]:
            raise DataError(
                f"the mask {self.name} has the segment {', '.join(map(str, odd[:5]))}, which its list of segments does not have",
                hint="the PNG and the JSON belong to different versions of the data, or the PNG was changed by a program",
            )
        codes = np.array([class_of[number] for number in found.tolist()], np.uint8)
        return codes[place_HW].reshape(numbers_HW.shape)


# --- all masks of a dataset ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapesMasks:
    """The objects of each image, as in ShapesMask."""

    names: Sequence[str]
    shapes: Sequence[bytes]
    declared: Sequence[tuple[int, int]]
    background: int

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> ShapesMask:
        """The mask of an image, before it is drawn."""
        return ShapesMask(
            name=self.names[index], shapes=self.shapes[index], declared=self.declared[index], background=self.background
        )

    def digests(self, indices: NDArray[np.int64]) -> Digests:
        """The hash of each image's objects."""
        return _digests([self.shapes[index] for index in indices.tolist()])

    def meaning(self) -> bytes:
        """That the objects are drawn, and on which class."""
        return f"shapes on {self.background}".encode()

    def take(self, indices: NDArray[np.int64]) -> ShapesMasks:
        """The masks of these images, in this order."""
        chosen = indices.tolist()
        return replace(
            self,
            names=[self.names[index] for index in chosen],
            shapes=[self.shapes[index] for index in chosen],
            declared=[self.declared[index] for index in chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PanopticMasks:
    """The PNG of each image, number `rows` of `contents`, and the class of each of its segments, as in PanopticMask."""

    contents: Contents
    rows: NDArray[np.int64]
    segments: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> PanopticMask:
        """The mask of an image, before decoding."""
        row = int(self.rows[index])
        content = self.contents.read(row)
        assert isinstance(content, bytes), "masks are image files"
        return PanopticMask(name=self.contents.name(row), content=content, segments=self.segments[index])

    def digests(self, indices: NDArray[np.int64]) -> Digests:
        """The hash of each PNG and its segments."""
        return self.contents.digests(self.rows[indices]) ^ _digests([self.segments[index] for index in indices.tolist()])

    def meaning(self) -> bytes:
        """That the masks are panoptic."""
        return b"panoptic"

    def take(self, indices: NDArray[np.int64]) -> PanopticMasks:
        """The masks of these images, in this order."""
        return replace(self, rows=self.rows[indices], segments=[self.segments[index] for index in indices.tolist()])


def _digests(contents: Sequence[bytes]) -> Digests:
    return np.frombuffer(b"".join(map(digest, contents)), np.uint8).reshape(len(contents), DIGEST_BYTES)


# --- the reader ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    """A COCO file: its path inside the data, its bytes, its kind, and the split that its name or folder says."""

    name: str
    content: bytes
    kind: Kind
    split: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A sample: the rows of its image and its PNG (-1 without one), its split, the size in the file, and its JSON."""

    row: int
    mask_row: int
    name: str
    split: int
    declared: tuple[int, int]
    described: bytes


class _Files:
    """The images of a folder or zip by the last part of their names."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._rows: dict[str, list[int]] = {}
        for row in place.rows:
            self._rows.setdefault(place.names[row].rpartition("/")[2], []).append(row)

    def find(self, name: str, one: _List, *, of_masks: bool) -> list[int]:
        """The images that a list can mean by `name`: those beside it, else of its split, else all.

        Masks are in a folder with the list's name, or whose name begins with panoptic; images are in others.
        """
        name = name.replace("\\", "/").removeprefix("./")
        json_path = PurePosixPath(one.name)

        def holds_masks(path: PurePosixPath) -> bool:
            return any(part == json_path.stem or part.startswith("panoptic") for part in path.parts[:-1])

        paths = {row: PurePosixPath(self.place.names[row]) for row in self._rows.get(name.rpartition("/")[2], [])}
        fits = [row for row, path in paths.items() if f"/{path}".endswith(f"/{name}") and holds_masks(path) == of_masks]
        beside = [row for row in fits if paths[row] == json_path.parent / name]
        of_split = [row for row in fits if _split_in(str(paths[row].parent)) == one.split]
        return beside or of_split or fits


def has_coco_masks(root: Path) -> bool:
    """Whether a folder has a COCO file where one belongs, with masks in it."""
    patterns = ("*.json", f"{_ANNOTATIONS}/*.json", "*/_annotations.coco.json")
    return any(_kind_of_file(path) is not None for pattern in patterns for path in root.glob(pattern))


def zip_has_coco_masks(path: Path) -> bool:
    """Whether a zip has a COCO file with masks in it."""
    return any(True for _ in _lists(Place.open(path, Faults(str(path)), LeftOut())))


def _kind_of_file(path: Path) -> Kind | None:
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        return None
    with path.open("rb") as file:
        head = file.read(2**16)
        return _kind(head + file.read()) if is_coco(head) else None


def open_coco_masks(path: Path, *, images: Path | None = None, faults: Faults | None = None) -> ImageDataset:
    """The images that COCO files describe, with their masks: `path` is one file, or a folder or zip with one a split.

    `images` is the folder or zip of the images; by default they are searched in the folder, or beside the file.
    """
    own, left_out = Faults(str(path)) if faults is None else faults, LeftOut()
    if path.suffix.lower() == ".json":
        root = path.parent.parent if path.parent.name == _ANNOTATIONS else path.parent
        place = Place.open(root, own, left_out)
        lists = list(_lists(place, only=path.relative_to(root).as_posix()))
    else:
        place = Place.open(path, own, left_out)
        lists = list(_lists(place))
    image_files = place if images is None else Place.open(images, own, left_out)
    if not lists:
        raise DataError(
            f"{printable(str(path))} has no COCO file with masks",
            hint="instances need a `segmentation`, panoptic files `segments_info`; task='detect' takes boxes",
        )
    kind: Kind = "panoptic" if any(one.kind == "panoptic" for one in lists) else "instances"
    chosen = [one for one in lists if one.kind == kind]
    labels, found = _samples(chosen, _Files(place), _Files(image_files), own)
    own.raise_any(hint="correct the files that the list names, or take them out of it")
    if not found:
        raise DataError(f"{printable(str(path))} describes no image that is there")
    for one in chosen:
        left_out.used(one.name)
    notes = [f"masks are those of {listed([one.name for one in chosen])}"]
    if unused := [one.name for one in lists if one.kind != kind]:
        notes.append(f"{listed(unused)}: not used, since panoptic files give every pixel a class")
    undeclared = any(one.split == UNDECLARED for one in found)
    return ImageDataset(
        contents=image_files.contents,
        rows=np.array([one.row for one in found], np.int64),
        table=LabelTable.unknown(len(found)),
        labels=labels,
        splits=np.array([UNDECLARED if undeclared else one.split for one in found], np.int8),
        notes=(*notes, *left_out.notes()),
        masks=_masks(kind, found, place, labels),
    )


def _masks(kind: Kind, found: Sequence[_Found], place: Place, labels: Sequence[str]) -> Masks:
    if kind == "panoptic":
        rows = np.array([one.mask_row for one in found], np.int64)
        return PanopticMasks(contents=place.contents, rows=rows, segments=[one.described for one in found])
    return ShapesMasks(
        names=[one.name for one in found],
        shapes=[one.described for one in found],
        declared=[one.declared for one in found],
        background=labels.index(_BACKGROUND),
    )


def _lists(place: Place, *, only: str | None = None) -> Iterator[_List]:
    """The COCO files with masks; captions, keypoints and boxes alone are none."""
    for name in place.files(".json") if only is None else [only]:
        content = place.read(name, most=MOST_BYTES)
        if not is_coco(content):
            if only is not None:
                coco_object(content, name)
                raise DataError(f"{printable(name)} is not a COCO file: it has no images, categories and annotations")
            continue
        if (kind := _kind(content)) is not None:
            yield _List(name=name, content=content, kind=kind, split=_split_in(name))


def _kind(content: bytes) -> Kind | None:
    if b'"segments_info"' in content:
        return "panoptic"
    return "instances" if b'"segmentation"' in content and b'"keypoints"' not in content else None


def _split_in(name: str) -> int:
    """The split that a word of a path names, its last part first: train of instances_train2017.json."""
    for part in reversed(PurePosixPath(name).parts):
        for word in re.findall(r"[a-z]+", part.removesuffix(".json").casefold()):
            if (split := split_named(word)) is not None:
                return split
    return UNDECLARED


def _samples(lists: Sequence[_List], files: _Files, image_files: _Files, faults: Faults) -> tuple[tuple[str, ...], list[_Found]]:
    """The classes, and all samples of all lists in the order of their images' paths."""
    labels: tuple[str, ...] | None = None
    found: dict[int, _Found] = {}
    listed_in: dict[int, str] = {}
    for one in lists:
        own, samples = (
            _panoptic(one, files, image_files, faults) if one.kind == "panoptic" else _instances(one, image_files, faults)
        )
        if labels is not None and own != labels:
            raise DataError(
                f"{printable(one.name)} has other categories than {printable(lists[0].name)}", hint="give one of the files as data"
            )
        labels = own
        for sample in samples:
            if sample.row in found:
                raise DataError(
                    f"{printable(listed_in[sample.row])} and {printable(one.name)} both describe {printable(sample.name)}",
                    hint="give one of the files as data",
                )
            found[sample.row], listed_in[sample.row] = sample, one.name
    assert labels is not None
    if not 2 <= len(labels) <= MOST_CLASSES:
        raise DataError(f"{printable(lists[0].name)} has {len(labels)} classes; there must be from 2 to {MOST_CLASSES}")
    return labels, [found[row] for row in sorted(found)]


def _instances(one: _List, image_files: _Files, faults: Faults) -> tuple[tuple[str, ...], list[_Found]]:
    """The classes and samples of an instances file."""
    data = read_instances(one.content, one.name, faults=faults)
    around = _BACKGROUND not in data.categories
    labels = (_BACKGROUND, *data.categories) if around else data.categories
    samples = []
    for image_id, objects in data.by_image().items():
        image = data.images[image_id]
        if (row := _image_row(image, one, image_files, faults)) is None:
            continue
        shapes: list[Shape] = [(int(around) + found.category, found.crowd, found.segmentation) for found in objects]
        samples.append(_sample(image, one, image_files, row, -1, json.dumps(shapes, separators=(",", ":"))))
    return labels, samples


def _panoptic(one: _List, files: _Files, image_files: _Files, faults: Faults) -> tuple[tuple[str, ...], list[_Found]]:
    """The classes and samples of a panoptic file."""
    data = coco_object(one.content, one.name)
    images, categories = coco_images(data, one.name, faults), coco_categories(data, one.name, faults)
    codes = {id_: code for code, id_ in enumerate(categories)}
    samples, without = [], dict(images)
    records = data.get("annotations")
    if not isinstance(records, list):
        raise DataError(f"{printable(one.name)} has no list of annotations")
    for number, record in enumerate(records):
        where, fields = f"annotations[{number}]", record if isinstance(record, dict) else {}
        image_id = fields.get("image_id")
        image = images.get(image_id) if type(image_id) is int else None
        if image is None or without.pop(image.id, None) is None:
            faults.add(where, f"no image has the id {image_id!r}" if image is None else f"the image {image_id} has two masks")
            continue
        segments = _segments(fields.get("segments_info"), codes, where, faults)
        mask_row = _mask_row(fields.get("file_name"), image, one, files, faults)
        row = _image_row(image, one, image_files, faults)
        if segments is not None and mask_row is not None and row is not None:
            samples.append(_sample(image, one, image_files, row, mask_row, json.dumps(segments, separators=(",", ":"))))
    for image in without.values():
        faults.add(image.file_name, "has no mask")
    return tuple(categories.values()), samples


def _segments(given: Any, codes: Mapping[int, int], where: str, faults: Faults) -> dict[str, int] | None:
    """The class of each segment's number, or None if the list of segments is wrong."""
    found: dict[str, int] = {}
    for record in given if isinstance(given, list) else [None]:
        fields = record if isinstance(record, dict) else {}
        number, category = fields.get("id"), fields.get("category_id")
        if type(number) is not int or not 0 < number < 2**24 or str(number) in found:
            faults.add(where, "segments_info must be a list of segments, each with an id of its own from 1 to 16,777,215")
            return None
        if type(category) is not int or category not in codes:
            faults.add(where, f"no category has the id {category!r}")
            return None
        found[str(number)] = IGNORED if fields.get("iscrowd") == 1 else codes[category]
    return found


def _image_row(image: CocoImage, one: _List, image_files: _Files, faults: Faults) -> int | None:
    rows = image_files.find(image.file_name, one, of_masks=False)
    if len(rows) != 1:
        faults.add(image.file_name, f"is an image of {printable(one.name)}, but {_where(rows)}")
    return rows[0] if len(rows) == 1 else None


def _mask_row(name: Any, image: CocoImage, one: _List, files: _Files, faults: Faults) -> int | None:
    rows = files.find(name, one, of_masks=True) if isinstance(name, str) else []
    if len(rows) != 1:
        faults.add(image.file_name, f"its mask {printable(str(name)[:100])} {_where(rows)}")
    return rows[0] if len(rows) == 1 else None


def _where(rows: Sequence[int]) -> str:
    return "is in no folder of the data" if not rows else f"is in {len(rows)} folders"


def _sample(image: CocoImage, one: _List, image_files: _Files, row: int, mask_row: int, described: str) -> _Found:
    names, contents = image_files.place.names, image_files.place.contents
    return _Found(
        row=row,
        mask_row=mask_row,
        name=contents.name(row),
        split=one.split if one.split != UNDECLARED else _split_in(str(PurePosixPath(names[row]).parent)),
        declared=(image.height, image.width),
        described=described.encode(),
    )
