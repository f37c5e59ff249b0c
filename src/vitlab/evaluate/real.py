"""ImageNet-ReaL and its like: files that say of each picture which classes are really right, none or several.

Read are the authors' `real.json` (a list with one entry for each validation picture, in the order of their numbers), a JSON
object (picture -> classes), and CSV or TSV with a column of files and one of labels, parted by spaces, | or ;.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vitlab.config.check import did_you_mean
from vitlab.data.files.names import shown
from vitlab.data.files.zips import ZipContents, read_zip_index
from vitlab.data.kinds.naming import as_text, read_bytes
from vitlab.errors import DataError

_FILES = ("path", "file", "file_name", "filename", "image", "image_path", "filepath", "name")
_LABELS = ("real_labels", "real", "labels", "label")
_NUMBER = re.compile(r"_(\d{8})\.\w+$")  # ILSVRC2012_val_00000293.JPEG


def read_real(path: str, pictures: Sequence[str], names: Sequence[str] | None, *, classes: int) -> tuple[tuple[int, ...], ...]:
    """The classes that are right for each of the pictures, in their order; empty for a picture that has none.

    `path` may also name a file inside a zip: `data.zip/labels.csv`. Pictures are found by the end of their paths. Classes are
    numbers of the model's, or names among `names`. A picture that the file does not know is refused.
    """
    content = _content(path)
    text = as_text(content, path)
    table: Mapping[str, object] | list[object] = _json(text, path) if path.lower().endswith(".json") else _csv(text, path)
    if isinstance(table, list):
        found: Iterator[object] = _by_number(table, pictures, path)
    else:
        found = _by_name(table, pictures, path)
    counts = Counter(names or ())
    place_of = {name: place for place, name in enumerate(names or ()) if counts[name] == 1}
    return tuple(
        tuple(_place(word, place_of, classes, f"{shown(path)}: {shown(picture)}") for word in _words(value, path))
        for picture, value in zip(pictures, found, strict=True)
    )


def _content(path: str) -> bytes:
    at = path.lower().find(".zip/")
    if at < 0 or Path(path).exists():
        return read_bytes(Path(path))
    contents = ZipContents(read_zip_index(Path(path[: at + 4])))
    inside = path[at + 5 :]
    row = next((row for row, name in enumerate(contents.index.names) if name == inside), None)
    if row is None:
        raise DataError(f"{shown(path[: at + 4])} holds no file {shown(inside)}")
    return contents.read(row)


def _json(text: str, path: str) -> dict[str, object] | list[object]:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{shown(path)} is no JSON: {error}") from error
    if not isinstance(table, dict | list):
        raise DataError(f"{shown(path)} is neither a JSON object nor a list", hint='{"picture": [class, ...]}')
    return table


def _csv(text: str, path: str) -> dict[str, object]:
    header = text.split("\n", 1)[0]
    mark = next((mark for mark in ",\t;" if mark in header), ",")
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    table: dict[str, object] = {}
    try:
        fields = {field.strip().casefold(): field for field in reader.fieldnames or () if field}
        file = next((fields[name] for name in _FILES if name in fields), None)
        column = next((fields[name] for name in _LABELS if name in fields), None)
        if file is None or column is None:
            raise DataError(
                f"{shown(path)} has the columns {', '.join(map(shown, fields)) or 'of no header'}",
                hint=f"call one of them {_FILES[1]} and another {_LABELS[0]}",
            )
        for record in reader:
            name, value = record[file], record[column]
            if name in table:
                raise DataError(f"{shown(path)}, line {reader.line_num}: {shown(name)} is there twice")
            table[name] = _parted(value or "")
    except csv.Error as error:
        raise DataError(f"{shown(path)}, line {reader.line_num}, is no CSV: {error}") from error
    return table


def _parted(cell: str) -> list[str]:
    """Classes parted by | or ;, and by spaces too where they are numbers."""
    mark = r"[\s|;]" if re.fullmatch(r"[\d\s|;]*", cell) else r"[|;]"
    return [word.strip() for word in re.split(mark, cell) if word.strip()]


def _by_number(table: list[object], pictures: Sequence[str], path: str) -> Iterator[object]:
    for picture in pictures:
        number = _NUMBER.search(picture)
        if number is None or not 1 <= int(number[1]) <= len(table):
            raise DataError(
                f"{shown(path)} is a list by the numbers of pictures, and {shown(picture)} has none from 1 to {len(table):,}",
                hint="numbers are the eight digits of ILSVRC2012_val_00000001.JPEG; or give an object: picture -> classes",
            )
        yield table[int(number[1]) - 1]


def _by_name(table: Mapping[str, object], pictures: Sequence[str], path: str) -> Iterator[object]:
    unknown = [picture for picture in pictures if _key(table, picture) is None]
    if unknown:
        raise DataError(
            f"{shown(path)} does not know {len(unknown):,} of {len(pictures):,} pictures, the first {shown(unknown[0])}",
            hint="a picture without a right class is in it with no class",
        )
    for picture in pictures:
        yield table[_key(table, picture) or ""]


def _key(table: Mapping[str, object], picture: str) -> str | None:
    """The longest end of the picture's path that the table has."""
    parts = picture.split("/")
    return next((key for start in range(len(parts)) if (key := "/".join(parts[start:])) in table), None)


def _words(value: object, path: str) -> list[object]:
    words = value if isinstance(value, list) else [value]
    if not all(isinstance(word, str | int) and not isinstance(word, bool) for word in words):
        raise DataError(f"{shown(path)} holds {shown(str(value)[:80])} where classes should be")
    return words


def _place(word: object, place_of: Mapping[str, int], classes: int, where: str) -> int:
    name = str(word)
    if name in place_of:
        return place_of[name]
    if not re.fullmatch(r"\d{1,9}", name):
        raise DataError(
            f"{where}: {shown(name)} names no class of the model, or more than one", hint=did_you_mean(name, list(place_of))
        )
    if int(name) >= classes:
        raise DataError(f"{where}: class {name}, and the model has 0 to {classes - 1}")
    return int(name)
