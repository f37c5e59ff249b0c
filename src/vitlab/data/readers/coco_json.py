"""COCO's JSON: images, categories and annotations, checked before anything is made of them.

    {"images": [{"id": 1, "file_name": "a.jpg", "height": 480, "width": 640}],
     "categories": [{"id": 18, "name": "dog"}],
     "annotations": [{"id": 7, "image_id": 1, "category_id": 18, "bbox": [x, y, width, height], "iscrowd": 0, "segmentation": ...}]}

The file is read whole, up to a limit. A wrong type, an id that occurs twice or that nothing has, and a number that is not finite
are faults, which one error lists. What lies outside of an image or is empty is not checked here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from vitlab.data.dataset import Faults, unusable_name
from vitlab.errors import DataError
from vitlab.io.files import as_text
from vitlab.io.names import printable

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
