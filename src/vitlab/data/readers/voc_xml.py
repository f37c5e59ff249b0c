"""VOC's XML: the objects of one image. Only elements and text are read; a file with a document type or entities is refused.

    <annotation><size><width>500</width><height>375</height></size>
      <object><name>dog</name><difficult>0</difficult>
        <bndbox><xmin>49</xmin><ymin>241</ymin><xmax>196</xmax><ymax>372</ymax></bndbox></object></annotation>

Pixels count from 1, and a box includes its last pixel: its left edge is xmin - 1, its right edge xmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn
from xml.parsers import expat

from vitlab.errors import DataError
from vitlab.io.names import printable

MOST_BYTES = 2**22
"""Of one file: thousands of objects."""

_DEEPEST = 16
_MOST_ELEMENTS = 200_000
_LARGEST = 10**6  # pixels
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
        if len(content) > MOST_BYTES:
            raise _Refused(f"it has {len(content):,} bytes; the limit is {MOST_BYTES:,}")
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
    left, top, right, bottom = (_number(found.get(f"bndbox/{side}", ""), side, name) for side in _SIDES)
    if (difficult := found.get("difficult", "0")) not in ("0", "1"):
        raise _Refused(f"difficult is {printable(difficult[:40])!r}, not 0 or 1")
    return VocObject(name=name, corners=(left - 1, top - 1, right, bottom), difficult=difficult == "1")


def _number(text: str, side: str, name: str) -> float:
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
