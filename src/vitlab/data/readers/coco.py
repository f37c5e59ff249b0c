"""COCO's files: their JSON, checked before anything is made of it, and the masks in it; `boxes.py` takes the boxes.

{"images": [{"id": 1, "file_name": "a.jpg", "height": 480, "width": 640}], "categories": [{"id": 18, "name": "dog"}],
"annotations": [{"id": 7, "image_id": 1, "category_id": 18, "bbox": [x, y, width, height], "iscrowd": 0, "segmentation": ...}]}

The file is read whole, up to a limit. A wrong type, an id that occurs twice or that nothing has, and a number that is not finite
are faults, which one error lists. What lies outside of an image or is empty is not checked here.

    data/annotations/instances_train2017.json   data/train2017/a.jpg
    data/annotations/panoptic_val2017.json      data/annotations/panoptic_val2017/a.png   data/val2017/a.jpg
    data/train/_annotations.coco.json           data/train/a.jpg

A file's own name or its folder says the split. Of an instances file, the classes of masks are `background` and the categories; a
pixel of two objects belongs to the smaller one, and the region of a crowd is ignored. Of a panoptic file, the classes are the
categories; a pixel's segment has the number R + 256 G + 65,536 B, and 0, no segment, is ignored, as is a crowd.
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
    unusable_name,
)
from vitlab.data.readers.folder import LeftOut, Place
from vitlab.data.split import split_named
from vitlab.errors import DataError
from vitlab.io.digests import DIGEST_BYTES, Digests, digest
from vitlab.io.display import printable
from vitlab.io.files import as_text

MOST_BYTES = 2**30
"""Of a COCO file; COCO's own largest has 470 MB."""

_REPAIR = "a COCO file has images, categories and annotations; export it again with the tool that made it"
_LARGEST_SIDE = 10**6  # pixels
_LARGEST_ID = 2**53  # beyond, JSON numbers are not exact everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class CocoImage:
    """An image: its path relative to the folder of images, and its size in pixels, 0 where the file does not give it."""

    id: int
    file_name: str
    height: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CocoAnnotation:
    """An object: its image, the index of its category, and its box (x, y, width, height) in pixels, None if it has none.

    `area` is that of its outline in pixels, None if the file does not give it. `crowd` marks a region of many objects.
    `segmentation` is as in the file, unchecked: polygons, run lengths or None.
    """

    id: int
    image_id: int
    category: int
    box: tuple[float, float, float, float] | None
    area: float | None
    crowd: bool
    segmentation: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CocoInstances:
    """The images by id in the file's order, the names of the categories by rising id, and the annotations in the file's order."""

    images: Mapping[int, CocoImage]
    categories: tuple[str, ...]
    annotations: tuple[CocoAnnotation, ...]

    def by_image(self) -> dict[int, list[CocoAnnotation]]:
        """The annotations of each image; an empty list for an image without any."""
        found: dict[int, list[CocoAnnotation]] = {id_: [] for id_ in self.images}
        for annotation in self.annotations:
            found[annotation.image_id].append(annotation)
        return found


def coco_object(content: bytes, where: str) -> dict[str, Any]:
    """The JSON object of a COCO file of any kind; DataError if it is too large, no JSON, or not an object."""
    if len(content) > MOST_BYTES:
        raise DataError(f"{printable(where)} has {len(content):,} bytes; a COCO file may have {MOST_BYTES:,}")
    try:
        found = json.loads(as_text(content, where), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{printable(where)} is not JSON: {printable(str(error)[:100])}", hint=_REPAIR) from error
    if not isinstance(found, dict):
        raise DataError(f"{printable(where)} must be a JSON object", hint=_REPAIR)
    return found


def is_coco(content: bytes) -> bool:
    """Whether the first bytes of a JSON file look like COCO's; only names of keys are compared."""
    head = content[: 2**16]
    return head.lstrip()[:1] == b"{" and any(key in head for key in (b'"images"', b'"annotations"', b'"categories"'))


def read_instances(content: bytes, where: str, *, faults: Faults | None = None) -> CocoInstances:
    """The images, categories and annotations of an instances file, in the bytes `content` of the file called `where`.

    One error lists everything that is wrong; with `faults`, it is collected there, and what is wrong is left out.
    """
    own = Faults(where) if faults is None else faults
    data = coco_object(content, where)
    images = coco_images(data, where, own)
    categories = coco_categories(data, where, own)
    numbers = {id_: number for number, id_ in enumerate(categories)}
    annotations = tuple(_annotations(data, where, images, numbers, own))
    if faults is None:
        own.raise_any(hint=_REPAIR)
    return CocoInstances(images=images, categories=tuple(categories.values()), annotations=annotations)


def coco_images(data: Mapping[str, Any], where: str, faults: Faults) -> dict[int, CocoImage]:
    """The images of a COCO object by their ids."""
    found: dict[int, CocoImage] = {}
    names: set[str] = set()
    for place, record in _records(data, "images", where, faults):
        id_, name = _id(record.get("id")), record.get("file_name")
        sides = [record.get(side, 0) for side in ("height", "width")]
        if id_ is None or id_ in found:
            faults.add(place, f"the id {record.get('id')!r} is not a whole number" if id_ is None else f"the id {id_} occurs twice")
        elif not isinstance(name, str) or not _is_inside(name):
            faults.add(place, f"file_name must be a path inside the folder of images, not {printable(str(name)[:100])!r}")
        elif any(not _is_whole(side) or not 0 <= side <= _LARGEST_SIDE for side in sides):
            faults.add(place, f"height and width must be whole numbers of pixels, not {sides[0]!r} and {sides[1]!r}")
        elif name in names:
            faults.add(place, f"the file {printable(name)} occurs twice")
        else:
            names.add(name)
            found[id_] = CocoImage(id=id_, file_name=name, height=sides[0], width=sides[1])
    return found


def coco_categories(data: Mapping[str, Any], where: str, faults: Faults) -> dict[int, str]:
    """The names of the categories of a COCO object by rising id."""
    found: dict[int, str] = {}
    for place, record in _records(data, "categories", where, faults):
        id_, name = _id(record.get("id")), record.get("name")
        if id_ is None or id_ in found:
            faults.add(place, f"the id {record.get('id')!r} is not a whole number" if id_ is None else f"the id {id_} occurs twice")
        elif not isinstance(name, str):
            faults.add(place, f"the name must be text, not {printable(str(name)[:100])}")
        elif reason := unusable_name(name):
            faults.add(place, reason)
        elif name in found.values():
            faults.add(place, f"the name {printable(name)} occurs twice")
        else:
            found[id_] = name
    return dict(sorted(found.items()))


def _annotations(
    data: Mapping[str, Any], where: str, images: Mapping[int, CocoImage], numbers: Mapping[int, int], faults: Faults
) -> Iterator[CocoAnnotation]:
    seen: set[int] = set()
    for place, record in _records(data, "annotations", where, faults):
        id_, image, category = (_id(record.get(key)) for key in ("id", "image_id", "category_id"))
        box, crowd = record.get("bbox"), record.get("iscrowd", 0)
        if id_ is None or id_ in seen:
            faults.add(place, f"the id {record.get('id')!r} is not a whole number" if id_ is None else f"the id {id_} occurs twice")
        elif image not in images:
            faults.add(place, f"no image has the id {record.get('image_id')!r}")
        elif category not in numbers:
            faults.add(place, f"no category has the id {record.get('category_id')!r}")
        elif box is not None and (not isinstance(box, list) or len(box) != 4 or not all(map(_is_finite, box))):
            faults.add(place, f"bbox must be four finite numbers x, y, width, height, not {printable(str(box)[:100])}")
        elif (area := record.get("area")) is not None and (not _is_finite(area) or area < 0):
            faults.add(place, f"area must be a number of pixels, not {printable(str(area)[:100])}")
        elif crowd not in (0, 1):
            faults.add(place, f"iscrowd must be 0 or 1, not {printable(str(crowd)[:100])}")
        else:
            seen.add(id_)
            assert image is not None
            assert category is not None
            yield CocoAnnotation(
                id=id_,
                image_id=image,
                category=numbers[category],
                box=None if box is None else (float(box[0]), float(box[1]), float(box[2]), float(box[3])),
                area=None if area is None else float(area),
                crowd=bool(crowd),
                segmentation=record.get("segmentation"),
            )


def _records(data: Mapping[str, Any], key: str, where: str, faults: Faults) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a list, each with its place for messages."""
    records = data.get(key)
    if not isinstance(records, list):
        raise DataError(f"{printable(where)} has no list of {key}", hint=_REPAIR)
    for number, record in enumerate(records):
        if isinstance(record, dict):
            yield f"{key}[{number}]", record
        else:
            faults.add(f"{key}[{number}]", "is not a JSON object")


def _is_inside(name: str) -> bool:
    """Whether a path stays inside the folder it is relative to."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return bool(parts) and "\0" not in name and ".." not in parts and not parts[0].startswith("/") and ":" not in parts[0]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _id(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_ID else None


def _is_finite(value: object) -> bool:
    """Whether a value is a number of a size that a place in an image can have; not so NaN and infinity."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST_ID


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not a number in JSON")


# --- masks: polygons and run lengths of an instances file, coloured PNGs of a panoptic file -----------------------------------

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


# --- masks as run lengths and polygons ---------------------------------------------------------------------------------------

# Run lengths, plain or as text, go down the columns, from left to right: the number of pixels outside, then inside, then
# outside, and so on. A polygon becomes the pixels that COCO's own program gives it. Axes: H W pixels, P points.

Inside = NDArray[np.bool_]

_FINE = 5  # points of an outline for each pixel's side
_MOST_POINTS = 20_000_000  # of one polygon's outline: 4 million pixels of its length


def run_lengths(inside_HW: Inside) -> dict[str, Any]:
    """A mask as COCO's uncompressed run lengths."""
    flat = np.asarray(inside_HW).ravel(order="F")
    changes = np.flatnonzero(np.diff(flat.astype(np.int8))) + 1
    counts = np.diff([0, *changes.tolist(), len(flat)]).tolist()
    return {"size": list(inside_HW.shape), "counts": [0, *counts] if len(flat) and flat[0] else counts}


def from_run_lengths(rle: dict[str, Any]) -> Inside:
    """The mask that run lengths describe, plain or as text; DataError if they do not fill their size."""
    size, counts = rle.get("size"), rle.get("counts")
    if not isinstance(size, list) or len(size) != 2 or not all(isinstance(side, int) and 0 < side < 2**31 for side in size):
        raise DataError(f"the size of run lengths must be height and width, not {str(size)[:50]}")
    numbers = decoded_counts(counts) if isinstance(counts, str) else counts
    if not isinstance(numbers, list) or not all(type(number) is int and 0 <= number < 2**53 for number in numbers):
        raise DataError("the counts of run lengths must be whole numbers of at least 0, or COCO's text of them")
    height, width = size
    if (total := sum(numbers)) != height * width:
        raise DataError(f"run lengths of {total:,} pixels do not fill {height}x{width}")
    flat = np.repeat(np.arange(len(numbers)) % 2 == 1, numbers)
    return flat.reshape((height, width), order="F")


def decoded_counts(text: str) -> list[int]:
    """The counts in COCO's text: five bits a letter, the last letter of a number without its sixth; from the third number on,
    each is the difference to the last but one before it."""
    counts: list[int] = []
    value = shift = 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64 or shift > 60:
            raise DataError(f"the text of run lengths has {letter!r}, which COCO does not write there")
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            if bits & 16:
                value -= 1 << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    if shift:
        raise DataError("the text of run lengths ends inside of a number")
    return counts


def polygon_inside(points: NDArray[np.float64], size: tuple[int, int]) -> Inside:
    """The pixels of an image of (height, width) `size` inside a polygon of (x, y) `points`, (P, 2); parts outside are cut off.

    The outline is drawn on a grid five times as fine, as COCO does; each column changes where the outline crosses its middle.
    """
    height, width = size
    fine_P2 = np.trunc(points * _FINE + 0.5).astype(np.int64)
    x_P, y_P = np.append(fine_P2[:, 0], fine_P2[0, 0]), np.append(fine_P2[:, 1], fine_P2[0, 1])
    longest_P = np.maximum(np.abs(np.diff(x_P)), np.abs(np.diff(y_P)))
    if int(longest_P.sum()) + len(points) > _MOST_POINTS:
        raise DataError(f"a polygon has an outline of {int(longest_P.sum()) // _FINE:,} pixels, which is too long")
    u, v = _outline(x_P, y_P, longest_P)
    crosses = np.flatnonzero(u[1:] != u[:-1])
    column = np.minimum(u[crosses], u[crosses + 1])
    middle = (column % _FINE == _FINE // 2) & (column >= 0) & (column < width * _FINE)
    row = np.clip((np.minimum(v[crosses], v[crosses + 1])[middle] + 2) // _FINE, 0, height)
    places = column[middle] // _FINE * height + row
    changes = np.bincount(places[places < height * width], minlength=height * width)
    inside_HW: Inside = (np.cumsum(changes) % 2 == 1).reshape((height, width), order="F")
    return inside_HW


def _outline(
    x_P: NDArray[np.int64], y_P: NDArray[np.int64], longest_P: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every point of the closed outline, from corner to corner: whole steps along the longer axis of each edge."""
    edge = np.repeat(np.arange(len(longest_P)), longest_P + 1)
    first = np.cumsum(longest_P + 1) - (longest_P + 1)
    step = np.arange(len(edge)) - first[edge]
    dx_P, dy_P = np.diff(x_P), np.diff(y_P)
    flat_P = np.abs(dx_P) >= np.abs(dy_P)
    back_P = np.where(flat_P, dx_P < 0, dy_P < 0)  # such an edge is walked from its end, so that both directions give one line
    start_x_P, start_y_P = np.where(back_P, x_P[1:], x_P[:-1]), np.where(back_P, y_P[1:], y_P[:-1])
    rise_P = np.where(back_P, -1, 1) * np.where(flat_P, dy_P, dx_P) / np.maximum(longest_P, 1)
    along = np.where(back_P[edge], longest_P[edge] - step, step)
    begin = np.where(flat_P, start_y_P, start_x_P)[edge]
    across = np.trunc(begin + rise_P[edge] * along + 0.5).astype(np.int64)
    along = along + np.where(flat_P, start_x_P, start_y_P)[edge]
    flat = flat_P[edge]
    return np.where(flat, along, across), np.where(flat, across, along)
