"""Images with boxes, which give each object a class: COCO's JSON, VOC's XML, or a CSV list, beside the images or in boxes.json.

    data/annotations/instances_train2017.json  data/train2017/a.jpg   COCO; also a JSON file in the folder, or in train/, val/, ...
    data/Annotations/a.xml                     data/JPEGImages/a.jpg  VOC, with ImageSets/Main/train.txt and val.txt if there are
    data/boxes.csv                             data/train/a.jpg       columns path, class, x0, y0, x1, y1 (or xmin, ymin, ...)
    data/boxes.json    {"images": "pets.zip", "boxes": "dense.zip/boxes.csv", "classes": ["cat head", "dog head"]}

Boxes are in pixels of the image, left, top, right and bottom from its upper left corner; COCO's and VOC's own spellings are
translated. An image of COCO or VOC without objects is part of the data; in a CSV it has one row with a path and nothing else.
`classes.txt`, or the "classes" of boxes.json, name the classes and their order; else COCO's categories do, or all names, sorted.
A folder may be a zip, and what boxes.json names may be anywhere, relative to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NoReturn
from xml.parsers import expat

import numpy as np

from vitlab.data.batch import areas
from vitlab.data.dataset import SPLITS, UNDECLARED, Boxes, Faults, ImageBoxes, ImageDataset, LabelTable, listed, unusable_name
from vitlab.data.readers import coco
from vitlab.data.readers.folder import LeftOut, Place, read_settings
from vitlab.data.readers.manifest import CLASSES_NAME, LABEL_COLUMNS, PATH_COLUMNS, SPLIT_COLUMNS, csv_records, known_column
from vitlab.data.split import split_named
from vitlab.errors import DataError
from vitlab.io.display import printable
from vitlab.io.files import LIST_FILE, as_text

BOXES_JSON = "boxes.json"
_SETTINGS = ("images", "boxes", "classes")
_LISTS = ("boxes.csv", "boxes.tsv", "annotations.csv", "_annotations.csv")
_LIST_ENDINGS = (".csv", ".tsv")
_VOC_IMAGES = frozenset({"jpegimages", "images"})  # without one of them, XML files may be about anything
_COCO_NAMES = re.compile(r"(?:^|/)(?:annotations/instances_[^/]+|_annotations\.coco|instances_[^/]+|annotations)\.json$")
_AROUND = frozenset({"jpegimages", "images", "annotations", "xmls"})  # folders that an image or its XML lie in, and not both
_VOC_LISTS = "ImageSets/Main"
_SPELLINGS = (  # of the four edges in a CSV: left, top, right, bottom
    ("x0", "y0", "x1", "y1"),
    ("xmin", "ymin", "xmax", "ymax"),
    ("x1", "y1", "x2", "y2"),
    ("left", "top", "right", "bottom"),
)
_MOST_CLASSES = 100_000
_LARGEST = 10**6  # pixels
_REPAIR = "each box needs an image that exists, a known class and four numbers; `vitlab data check` lists everything"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    name: str
    corners: tuple[float, float, float, float]
    ignored: bool = False
    area: float | None = None


@dataclass(slots=True, kw_only=True)
class _Annotated:
    """An image as an annotation names it: where the annotation is, the image's path, its split, size and objects."""

    place: str
    path: str
    split: int = UNDECLARED
    size: tuple[int, int] = (0, 0)
    objects: list[_Object] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The annotated images of some files; `classes` if they name all, `listed_splits` if lists say which images are used."""

    images: Sequence[_Annotated]
    classes: Sequence[str] | None = None
    listed_splits: bool = False


def has_boxes(names: Iterable[str]) -> bool:
    """Whether these paths are those of images and boxes in one of the layouts."""
    found, described, folders = False, False, set[str]()
    for name in names:
        path = PurePosixPath(name)
        parts = {part.casefold() for part in path.parts[:-1]}
        found = found or path.name in ("boxes.csv", "boxes.tsv", "_annotations.csv") or _COCO_NAMES.search(name) is not None
        described = described or ("annotations" in parts and path.suffix.lower() == ".xml")
        folders |= parts
    return found or (described and not folders.isdisjoint(_VOC_IMAGES))


def holds_boxes(path: Path) -> bool:
    """Whether a folder, zip, list or JSON file holds boxes; of a folder, only splits and annotations are looked into."""
    if path.is_file():
        return _is_file_of_boxes(path)
    if not path.is_dir():
        return False
    inside = [path, *(entry for entry in path.iterdir() if split_named(entry.name) is not None and entry.is_dir())]
    known = (place / name for place in inside for name in (*_LISTS, BOXES_JSON, "_annotations.coco.json"))
    if any(_is_file_of_boxes(file) for file in known if file.is_file()):
        return True
    for place in inside:
        folders = {entry.name.casefold(): entry for entry in place.iterdir() if entry.is_dir()}
        if (below := folders.get("annotations")) is None:
            continue
        if next(below.glob("instances_*.json"), None):
            return True
        if not _VOC_IMAGES.isdisjoint(folders) and any(next(below.glob(pattern), None) for pattern in ("*.xml", "xmls/*.xml")):
            return True
    return any(coco.is_coco(_head(file)) for file in sorted(path.glob("*.json"))[:10])


def _is_file_of_boxes(path: Path) -> bool:
    ending = path.suffix.lower()
    if ending == ".json":
        return path.name == BOXES_JSON or coco.is_coco(_head(path))
    if ending in _LIST_ENDINGS:
        words = re.split(r"[,;\t]", _head(path).decode("utf-8", "replace").split("\n", 1)[0].casefold())
        return _edges([word.strip().strip('"') for word in words]) is not None
    if ending == ".zip":
        return has_boxes(Place.open(path, Faults(str(path)), LeftOut()).names)
    return False


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(2**16)


def open_boxes(path: Path, *, faults: Faults | None = None) -> ImageDataset:
    """The images at `path` with their boxes; one error lists everything that is wrong."""
    faults, left_out = Faults(str(path)) if faults is None else faults, LeftOut()
    settings_file = path if path.name == BOXES_JSON else path / BOXES_JSON
    settings = _settings(settings_file) if settings_file.is_file() else {}
    if "images" in settings:
        images = Place.open(settings_file.parent / str(settings["images"]), faults, left_out)
        found = _read_named(settings_file.parent, str(settings["boxes"]), faults)
    else:
        alone = path.is_file() and path.suffix.lower() in (*_LIST_ENDINGS, ".json") and not settings
        images = Place.open(settings_file.parent if settings else path.parent if alone else path, faults, left_out)
        files = [path.name] if alone else _annotation_files(images)
        found = _read_files(images, files, faults)
        for name in (*files, *images.files(CLASSES_NAME), *images.files(BOXES_JSON)):
            left_out.used(name)
        for name in images.files(".txt") if found.listed_splits else ():
            left_out.used(name)
    return _assembled(images, found, settings, faults, left_out, where=str(path))


def _settings(path: Path) -> dict[str, object]:
    """The settings of boxes.json."""
    found = read_settings(path, _SETTINGS)
    if ("images" in found) != ("boxes" in found) or any(not isinstance(found.get(key, ""), str) for key in ("images", "boxes")):
        raise DataError(f"{path} needs the paths of both images and boxes, or neither", hint="neither: they are beside it")
    return found


def _annotation_files(place: Place) -> list[str]:
    """The files in a place that hold boxes: lists, COCO's JSON or VOC's XML."""
    if lists := [name for name in (*place.files(".csv"), *place.files(".tsv")) if PurePosixPath(name).name in _LISTS]:
        return lists
    documents = [name for name in place.files(".json") if PurePosixPath(name).name != BOXES_JSON]
    if known := [name for name in documents if _COCO_NAMES.search(name)]:
        instances = [name for name in known if "instances" in PurePosixPath(name).name]
        return instances or known
    if other := [name for name in documents if "/" not in name.partition("/")[2]]:
        return other
    return [name for name in place.files(".xml") if any(part.casefold() in _AROUND for part in PurePosixPath(name).parts[:-1])]


def _read_named(root: Path, name: str, faults: Faults) -> _Found:
    """The boxes that boxes.json names: a list or COCO file, also inside a zip, or a folder or zip of XML files."""
    whole, left_out = root / name, LeftOut()
    if whole.is_file() and whole.suffix.lower() != ".zip":
        return _read_files(_files_only(whole.parent), [whole.name], faults)
    if whole.exists():
        place = Place.open(whole, faults, left_out)
        return _read_files(place, _annotation_files(place) or place.files(".xml"), faults)
    archive, zipped, inside = name.partition(".zip/")
    if not zipped or not (root / f"{archive}.zip").is_file():
        raise DataError(f"{printable(str(whole))} does not exist")
    return _read_files(Place.open(root / f"{archive}.zip", faults, left_out), [inside], faults)


def _files_only(folder: Path) -> Place:
    """A folder of which only files are read by their names, so that it is not searched for images."""
    from vitlab.data.readers.folder import DiskContents
    from vitlab.io.files import Names

    return Place(contents=DiskContents(folder, Names(())), names=[], rows=[], path=folder)


def _read_files(place: Place, names: Sequence[str], faults: Faults) -> _Found:
    """The annotated images of these files, all of one kind."""
    if not names:
        raise DataError(
            f"{printable(str(place.path))} holds no boxes",
            hint="boxes.csv, COCO's annotations/instances_*.json, or Annotations/*.xml",
        )
    ending = PurePosixPath(names[0]).suffix.lower()
    if ending == ".xml":
        return _read_voc(place, names, faults)
    if ending == ".json":
        return _read_coco(place, names, faults)
    lists = [_read_list(place, name, faults) for name in names]
    return _Found(images=[image for images in lists for image in images])


def _read_coco(place: Place, names: Sequence[str], faults: Faults) -> _Found:
    images: list[_Annotated] = []
    classes: tuple[str, ...] | None = None
    for name in names:
        data = coco.read_instances(place.read(name, most=coco.MOST_BYTES), f"{place.path}/{name}", faults=faults)
        if classes is not None and data.categories != classes:
            faults.add(name, f"has other categories than {names[0]}")
            continue
        classes = data.categories
        split = _split_in(PurePosixPath(re.sub(r"\d", "", name)).stem.replace("_", "/").split("/"))
        for id_, objects in data.by_image().items():
            image = data.images[id_]
            found = [
                _Object(name=classes[one.category], corners=_corners(one.box), ignored=one.crowd, area=one.area)
                for one in objects
                if one.box is not None
            ]
            one = _Annotated(place=name, path=image.file_name, split=split, size=(image.height, image.width), objects=found)
            images.append(one)
    return _Found(images=images, classes=classes)


def _corners(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    left, top, width, height = box
    return left, top, left + width, top + height


def _read_voc(place: Place, names: Sequence[str], faults: Faults) -> _Found:
    images = []
    for name in names:
        try:
            data = read_voc(place.read(name, most=_MOST_XML_BYTES), name)
        except DataError as error:
            faults.add(name, error.message)
            continue
        found = [_Object(name=one.name, corners=one.corners, ignored=one.difficult) for one in data.objects]
        images.append(_Annotated(place=name, path=_common(name), size=data.size, objects=found))
    splits = {}
    for split, word in enumerate(SPLITS):
        for line in (place.text(f"{_VOC_LISTS}/{word}.txt") or "").splitlines():
            if line.strip():
                splits[line.split()[0]] = split
    for image in images:
        image.split = splits.get(PurePosixPath(image.path).name, UNDECLARED)
    return _Found(images=images, listed_splits=bool(splits))


def _common(name: str) -> str:
    """What the paths of an image and of its XML file have in common: no ending, and no folder that only one of them lies in."""
    *folders, last = PurePosixPath(name).parts
    return "/".join((*(part for part in folders if part.casefold() not in _AROUND), PurePosixPath(last).stem))


def _read_list(place: Place, name: str, faults: Faults) -> list[_Annotated]:
    """The images of a CSV list, in the order of their first rows."""
    where = f"{place.path}/{name}"
    records = csv_records(as_text(place.read(name, most=LIST_FILE), where), faults, where)
    columns = list(dict.fromkeys(key for _, record in records for key in record))
    path_column, class_column = known_column(columns, PATH_COLUMNS), known_column(columns, LABEL_COLUMNS)
    edges, split_column = _edges([column.casefold() for column in columns]), known_column(columns, SPLIT_COLUMNS)
    if path_column is None or class_column is None or edges is None:
        raise DataError(
            f"{printable(where)} needs columns of paths, classes and four edges, and has {listed(columns, most=10) or 'none'}",
            hint="path, class, x0, y0, x1, y1",
        )
    spelled = {column.casefold(): column for column in reversed(columns)}
    folder = f"{parent}/" if (parent := PurePosixPath(name).parent.as_posix()) != "." else ""
    images: dict[str, _Annotated] = {}
    for line, record in records:
        path, label = str(record[path_column]), str(record[class_column])
        here = f"line {line} ({printable(path)})"
        if not path:
            faults.add(f"line {line}", f"no path in column {path_column}")
            continue
        image = images.setdefault(path, _Annotated(place=here, path=f"{folder}{path}"))
        if split_column is not None and (word := str(record[split_column])):
            split = split_named(word)
            if split is None or image.split not in (UNDECLARED, split):
                faults.add(here, f"split {printable(word)!r} is not train, val or test, or not that of the image's other rows")
            else:
                image.split = split
        cells = [str(record[spelled[edge]]) for edge in edges]
        if not label and not any(cells):
            continue  # an image without objects
        numbers = [_number(cell) for cell in cells]
        if None in numbers or not label:
            faults.add(here, "no class" if not label else f"{', '.join(edges)} must be numbers of pixels, not {listed(cells)}")
            continue
        left, top, right, bottom = (number for number in numbers if number is not None)
        image.objects.append(_Object(name=label, corners=(left, top, right, bottom)))
    return list(images.values())


def _edges(columns: Sequence[str]) -> tuple[str, str, str, str] | None:
    return next((spelling for spelling in _SPELLINGS if set(spelling) <= set(columns)), None)


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if abs(value) <= _LARGEST else None


def _assembled(
    images: Place, found: _Found, settings: Mapping[str, object], faults: Faults, left_out: LeftOut, *, where: str
) -> ImageDataset:
    """The dataset of the annotated images that exist; what is missing or unknown is a fault."""
    classes = _classes(settings, images, found, faults)
    code_of = {name: code for code, name in enumerate(classes)}
    rows = list(_located(images, found.images, faults))
    kept: dict[int, tuple[_Annotated, ImageBoxes]] = {}
    for row, one in rows:
        if row in kept:
            faults.add(one.place, f"the boxes of {printable(one.path)} are given twice")
            continue
        known = [thing for thing in one.objects if thing.name in code_of]
        for thing in one.objects:
            if thing.name not in code_of:
                faults.add(one.place, f"no class is called {printable(thing.name)!r}")
        corners_M4 = np.array([thing.corners for thing in known], np.float64).reshape(-1, 4)
        given = [np.nan if thing.area is None else thing.area for thing in known]
        boxes = ImageBoxes(
            corners_M4=corners_M4,
            areas_M=np.where(np.isnan(given), areas(corners_M4), given),
            codes_M=np.array([code_of[thing.name] for thing in known], np.int32),
            ignored_M=np.array([thing.ignored for thing in known], np.bool_),
            size=one.size,
        )
        kept[row] = (one, boxes)
    faults.raise_any(hint=_REPAIR)
    joined = Boxes.joined([kept[row][1] for row in sorted(kept)])
    if not len(joined.codes_M):
        raise DataError(f"{printable(where)} holds no image with a box", hint=_REPAIR)
    splits = [_split_of(kept[row][0], images.names[row]) for row in sorted(kept)]
    undeclared = UNDECLARED in splits and not found.listed_splits
    return ImageDataset(
        contents=images.contents,
        rows=np.array(sorted(kept), np.int64),
        table=LabelTable.unknown(len(kept)),
        labels=tuple(classes),
        splits=np.array([UNDECLARED if undeclared else split for split in splits], np.int8),
        notes=(*_notes(joined, images, kept), *left_out.notes()),
        boxes=joined,
    )


def _classes(settings: Mapping[str, object], images: Place, found: _Found, faults: Faults) -> Sequence[str]:
    """The names of the classes, in order."""
    given, source = settings.get("classes"), BOXES_JSON
    if given is None and (text := images.text(CLASSES_NAME)) is not None:
        given, source = [line.strip() for line in text.splitlines() if line.strip()], CLASSES_NAME
    if given is None:
        named = found.classes or sorted({thing.name for image in found.images for thing in image.objects})
    elif isinstance(given, list) and all(isinstance(name, str) for name in given) and len(set(given)) == len(given) > 0:
        named = given
    else:
        raise DataError(f"the classes of {source} must be a list of different names")
    if len(named) > _MOST_CLASSES:
        raise DataError(f"there are {len(named):,} classes; the limit is {_MOST_CLASSES:,}")
    for name in named:
        if reason := unusable_name(name):
            faults.add(f"class {printable(name)!r}", reason)
    return named


def _located(place: Place, annotated: Sequence[_Annotated], faults: Faults) -> Iterator[tuple[int, _Annotated]]:
    """The row of each annotated image that exists; one that does not is a fault."""
    exact = {place.names[row]: row for row in place.rows}
    tops = {name.partition("/")[0] for name in exact if "/" in name}
    around = f"{tops.pop()}/" if len(tops) == 1 else ""  # a folder around everything, as in many archives
    by_common: dict[str, int | None] = {}
    if any(PurePosixPath(one.place).suffix.lower() == ".xml" for one in annotated):
        for name, at in exact.items():
            by_common[_common(name)] = None if _common(name) in by_common else at
    missing = 0
    for one in annotated:
        beside = PurePosixPath(one.place).parent.as_posix()
        named = PurePosixPath(one.place).stem.removeprefix("instances_")
        starts = ["", around, "images/", f"{around}images/", f"{beside}/", f"{named}/", f"{around}{named}/"]
        starts += [] if one.split == UNDECLARED else [f"{SPLITS[one.split]}/"]
        row = next((exact[start + one.path] for start in starts if start + one.path in exact), by_common.get(one.path))
        if row is not None:
            yield row, one
            continue
        missing += 1
        faults.add(one.place, f"no image called {printable(one.path)}")
    if missing == len(annotated) > 0:
        raise DataError(
            f"none of the {missing:,} images that the boxes name is in {printable(str(place.path))}, such as {annotated[0].path}",
            hint="put the images beside the boxes, or name both in boxes.json",
        )


def _split_of(one: _Annotated, name: str) -> int:
    return _split_in(name.split("/")[:-1]) if one.split == UNDECLARED else one.split


def _split_in(words: Iterable[str]) -> int:
    """The split that one of the words names."""
    return next((split for word in words if (split := split_named(re.sub(r"\d", "", word))) is not None), UNDECLARED)


def _notes(boxes: Boxes, images: Place, kept: Mapping[int, object]) -> Iterator[str]:
    empty = np.flatnonzero(areas(boxes.corners_M4) <= 0)
    if len(empty):
        first = sorted(kept)[int(np.searchsorted(boxes.starts_N1, empty[0], side="right")) - 1]
        yield f"{len(empty):,} boxes have no area and are left out, the first of {printable(images.names[first])}"
    if without := int((np.diff(boxes.starts_N1) == 0).sum()):
        yield f"{without:,} of {len(boxes):,} images have no box"


# --- VOC's XML: only elements and text are read; a file with a document type or entities is refused ---------------------------
#
#     <annotation><size><width>500</width><height>375</height></size>
#       <object><name>dog</name><difficult>0</difficult>
#         <bndbox><xmin>49</xmin><ymin>241</ymin><xmax>196</xmax><ymax>372</ymax></bndbox></object></annotation>
#
# Pixels count from 1, and a box includes its last pixel: its left edge is xmin - 1, its right edge xmax.

_MOST_XML_BYTES = 2**22
"""Of one file: thousands of objects."""

_DEEPEST = 16
_MOST_ELEMENTS = 200_000
_OBJECT, _SIDES = "annotation/object", ("xmin", "ymin", "xmax", "ymax")


@dataclass(frozen=True, slots=True, kw_only=True)
class VocObject:
    """An object: its class, left, top, right and bottom in pixels from the upper left corner, and whether it is `difficult`."""

    name: str
    corners: tuple[float, float, float, float]
    difficult: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VocImage:
    """The objects of an image, and its (height, width), (0, 0) if the file does not give it."""

    size: tuple[int, int]
    objects: tuple[VocObject, ...]


class _Refused(Exception):  # noqa: N818 (raised and caught here alone)
    """Why a file is refused, from inside the parser."""


class _Reader:
    """Collects the text of elements by their path, and ends an object at its end tag."""

    def __init__(self) -> None:
        self._path: list[str] = []
        self._text: list[str] = []
        self._elements = 0
        self._object: dict[str, str] = {}
        self.size: dict[str, str] = {}
        self.objects: list[dict[str, str]] = []
        self.root = ""

    def parse(self, content: bytes) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = self._refuse_declaration
        parser.Parse(content, True)

    def _refuse_declaration(self, *_: object) -> NoReturn:
        raise _Refused("it declares a document type or entities, which an annotation does not need")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        self._path.append(name)
        self._text.clear()
        self.root = self.root or name
        if len(self._path) > _DEEPEST or self._elements > _MOST_ELEMENTS:
            raise _Refused(f"it has elements deeper than {_DEEPEST} or more than {_MOST_ELEMENTS:,} of them")
        if "/".join(self._path) == _OBJECT:
            self._object = {}

    def _end(self, name: str) -> None:
        path, text = "/".join(self._path), "".join(self._text).strip()
        self._text.clear()
        self._path.pop()
        if path == _OBJECT:
            self.objects.append(self._object)
        elif path.startswith(f"{_OBJECT}/") and path.count("/") <= 3:
            self._object.setdefault(path.removeprefix(f"{_OBJECT}/"), text)  # parts of an object have boxes of their own
        elif path.startswith("annotation/size/"):
            self.size.setdefault(name, text)


def read_voc(content: bytes, where: str) -> VocImage:
    """The objects of the image that the bytes of one XML file describe; DataError says what is wrong with it."""
    try:
        if len(content) > _MOST_XML_BYTES:
            raise _Refused(f"it has {len(content):,} bytes; the limit is {_MOST_XML_BYTES:,}")
        reader = _Reader()
        reader.parse(content)
        if reader.root != "annotation":
            raise _Refused(f"its root is <{printable(reader.root[:40])}>, not <annotation>")
        height, width = (_side(reader.size.get(side, "0"), side) for side in ("height", "width"))
        return VocImage(size=(height, width), objects=tuple(map(_object, reader.objects)))
    except (expat.ExpatError, UnicodeError, ValueError, LookupError) as error:  # the last three: of unknown encodings
        raise DataError(f"{printable(where)} is not XML: {printable(str(error)[:100])}") from error
    except _Refused as refused:
        raise DataError(f"{printable(where)} is no annotation: {refused}") from refused


def _object(found: dict[str, str]) -> VocObject:
    name = found.get("name", "")
    if not name:
        raise _Refused("an object has no name")
    left, top, right, bottom = (_edge(found.get(f"bndbox/{side}", ""), side, name) for side in _SIDES)
    if (difficult := found.get("difficult", "0")) not in ("0", "1"):
        raise _Refused(f"difficult is {printable(difficult[:40])!r}, not 0 or 1")
    return VocObject(name=name, corners=(left - 1, top - 1, right, bottom), difficult=difficult == "1")


def _edge(text: str, side: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= _LARGEST:
        raise _Refused(f"{side} of the object {printable(name[:40])} is {printable(text[:40])!r}, not a number of pixels")
    return value


def _side(text: str, side: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 7:
        raise _Refused(f"the {side} of the image is {printable(text[:40])!r}, not a number of pixels")
    return int(text)
