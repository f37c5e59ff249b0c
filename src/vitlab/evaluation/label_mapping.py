"""Which classes of the model are correct for which class of the data: by name, by a mapping file, or per image (ReaL labels)."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitlab.config.class_names import aliases, plain
from vitlab.data.dataset import align_labels
from vitlab.errors import DataError, did_you_mean
from vitlab.io.display import printable
from vitlab.io.files import LIST_FILE, as_text, read_bytes
from vitlab.io.zip import ZipContents, read_zip_index


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Which prediction counts as correct.

    `labels` are the classes of the data, `names` those of the model. `correct` lists, for each class of the data, the classes of
    the model that count: one of the same meaning, several if a mapping says so, none if its images are left out.
    """

    labels: tuple[str, ...]
    correct: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def one_to_one(self) -> bool:
        """Whether exactly one class of the model is correct for each class of the data."""
        return all(len(classes) == 1 for classes in self.correct)

    @property
    def is_subset(self) -> bool:
        """Whether the data has only some of the model's classes."""
        return self.one_to_one and len(self.labels) < len(self.names)


def match_by_name(data: Sequence[str], model: Sequence[str] | None, *, classes: int, subset: bool = False) -> Targets:
    """Match classes by name; refuses, with the differences, if data and model do not have the same classes.

    `model` are the names of the model's `classes`. If it has none, the data's names are assumed if their number is right, with a
    note. `subset` accepts data with only some of the model's classes, in any order.
    """
    if not data:
        raise DataError("the data has no labels to evaluate by", hint="vitlab predict classifies images without labels")
    if model is None:
        if len(data) != classes:
            raise DataError(
                f"the data has {len(data):,} classes and the model {classes:,}, and the checkpoint does not name them",
                hint="give the `labels`: a file, one per line",
            )
        note = f"the checkpoint has no labels: its {classes:,} classes are assumed to be the data's, in the data's order"
        return Targets(labels=tuple(data), correct=tuple((place,) for place in range(classes)), names=tuple(data), notes=(note,))
    known_as = aliases(model)
    if known_as is not None and tuple(data) != tuple(model):
        found = [known_as.get(plain(label), []) for label in data]
        in_order = len(data) == len(model)
        if in_order and not any(found):
            note = (
                f"the checkpoint names no classes itself: its {classes:,} classes are taken to be the data's, in the data's order"
            )
            return Targets(
                labels=tuple(data), correct=tuple((place,) for place in range(classes)), names=tuple(data), notes=(note,)
            )
        if in_order and all(place in places for place, places in enumerate(found)):
            spelled = list(model)
        else:
            spelled = [model[places[0]] if len(places) == 1 else label for label, places in zip(data, found, strict=True)]
        return replace(_aligned(spelled, model, subset=subset), labels=tuple(data))
    return _aligned(data, model, subset=subset)


def _aligned(data: Sequence[str], model: Sequence[str], *, subset: bool) -> Targets:
    """Each class of the data is the model's class of the same name."""
    try:
        places = align_labels(data, model, reorder=subset)
    except DataError as error:
        known = set(data) <= set(model)
        hint = "`subset=True` matches classes by name, in any order, also if the data has only some" if known else error.hint
        raise DataError(error.message, hint=hint) from error
    note = f"the data has {len(data):,} of the model's {len(model):,} classes" if len(data) < len(model) else ""
    moved = "classes are matched by name: data and model order them differently" if list(places) != sorted(places) else ""
    return Targets(
        labels=tuple(data),
        correct=tuple((place,) for place in places),
        names=tuple(model),
        notes=tuple(text for text in (note, moved) if text),
    )


def match_by_file(path: Path, data: Sequence[str], model: Sequence[str] | None, *, classes: int) -> Targets:
    """Targets from a JSON object: class of the data -> list of the model's classes, by name or number (as for ObjectNet).

    It must contain every class of the data. An empty list leaves the images of a class out, with a note.
    """
    try:
        table = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{printable(str(path))} is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise DataError(
            f"{printable(str(path))} is not a JSON object", hint='a mapping is {"class of the data": ["class of the model", ...]}'
        )
    if missing := [label for label in data if label not in table]:
        raise DataError(
            f"{printable(str(path))} does not map {_listed(missing)}",
            hint="map a class to [] to leave its images out" if len(missing) < len(data) else "are these the data's classes?",
        )
    place_of = {name: place for place, name in enumerate(model or ())}
    twice = {name for name in model or () if list(model or ()).count(name) > 1} if len(place_of) < len(model or ()) else set()
    correct = tuple(
        tuple(_place(word, label, place_of, twice, classes, path) for word in _words(table[label], label, path)) for label in data
    )
    if not any(correct):
        raise DataError(f"{printable(str(path))} maps every class of the data to nothing")
    notes = []
    if empty := [label for label, places in zip(data, correct, strict=True) if not places]:
        notes.append(f"{len(empty):,} classes map to nothing; their images are left out: {_listed(empty)}")
    if unused := [label for label in table if label not in set(data)]:
        notes.append(f"{len(unused):,} classes of the mapping are not in the data: {_listed(unused)}")
    names = tuple(model) if model is not None else tuple(map(str, range(classes)))
    return Targets(labels=tuple(data), correct=correct, names=names, notes=tuple(notes))


def _words(value: object, label: str, path: Path) -> list[object]:
    words = value if isinstance(value, list) else [value]
    if not all(isinstance(word, str | int) and not isinstance(word, bool) for word in words):
        raise DataError(
            f"{printable(str(path))} maps {printable(label)} to {printable(str(value)[:80])}, not to classes by name or number"
        )
    return words


def _place(word: object, label: str, place_of: dict[str, int], twice: set[str], classes: int, path: Path) -> int:
    where = f"{printable(str(path))} maps {printable(label)} to"
    if isinstance(word, int):
        if not 0 <= word < classes:
            raise DataError(f"{where} class {word}, and the model has 0 to {classes - 1}")
        return word
    name = str(word)
    if not place_of:
        raise DataError(f"{where} {printable(name)}, and the checkpoint has no labels", hint="use numbers, or give the `labels`")
    if name in twice:
        raise DataError(f"{where} {printable(name)}, which is the name of two classes", hint="use the class's number")
    if name not in place_of:
        raise DataError(f"{where} {printable(name)}, which is not a class of the model", hint=did_you_mean(name, list(place_of)))
    return place_of[name]


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(printable(name) for name in names[:5])
    return text + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


_FILES = ("path", "file", "file_name", "filename", "image", "image_path", "filepath", "name")
_LABELS = ("real_labels", "real", "labels", "label")
_NUMBER = re.compile(r"_(\d{8})\.\w+$")  # ILSVRC2012_val_00000293.JPEG


def read_real(path: str, images: Sequence[str], names: Sequence[str] | None, *, classes: int) -> tuple[tuple[int, ...], ...]:
    """ReaL labels: the correct classes of each image, in the order of `images`; empty for an image that has none.

    Three kinds of file are read: the authors' `real.json` (a list with one entry per validation image, in the order of their
    numbers), a JSON object (image -> classes), and CSV or TSV with a column of files and one of labels, separated by spaces, | or
    ;. `path` may also name a file inside a zip: `data.zip/labels.csv`. Images are found by the end of their paths. Classes are
    numbers of the model's classes, or names among `names`. An image that the file does not know is refused.
    """
    content = _content(path)
    text = as_text(content, path)
    table: Mapping[str, object] | list[object] = _json(text, path) if path.lower().endswith(".json") else _csv(text, path)
    if isinstance(table, list):
        found: Iterator[object] = _by_number(table, images, path)
    else:
        found = _by_name(table, images, path)
    counts = Counter(names or ())
    place_of = {name: place for place, name in enumerate(names or ()) if counts[name] == 1}
    return tuple(
        tuple(_real_place(word, place_of, classes, f"{printable(path)}: {printable(image)}") for word in _real_words(value, path))
        for image, value in zip(images, found, strict=True)
    )


def _content(path: str) -> bytes:
    at = path.lower().find(".zip/")
    if at < 0 or Path(path).exists():
        return read_bytes(path, most=LIST_FILE)
    contents = ZipContents(read_zip_index(Path(path[: at + 4])))
    inside = path[at + 5 :]
    row = next((row for row, name in enumerate(contents.index.names) if name == inside), None)
    if row is None:
        raise DataError(f"{printable(path[: at + 4])} has no file {printable(inside)}")
    return contents.read(row)


def _json(text: str, path: str) -> dict[str, object] | list[object]:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{printable(path)} is not JSON: {error}") from error
    if not isinstance(table, dict | list):
        raise DataError(f"{printable(path)} is neither a JSON object nor a JSON list", hint='{"image": [class, ...]}')
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
                f"{printable(path)} has the columns {', '.join(map(printable, fields)) or 'of no header'}",
                hint=f"call one of them {_FILES[1]} and another {_LABELS[0]}",
            )
        for record in reader:
            name, value = record[file], record[column]
            if name in table:
                raise DataError(f"{printable(path)}, line {reader.line_num}: {printable(name)} is there twice")
            table[name] = _separated(value or "")
    except csv.Error as error:
        raise DataError(f"{printable(path)}, line {reader.line_num}, is not CSV: {error}") from error
    return table


def _separated(cell: str) -> list[str]:
    """Classes separated by | or ;, and also by spaces if they are numbers."""
    mark = r"[\s|;]" if re.fullmatch(r"[\d\s|;]*", cell) else r"[|;]"
    return [word.strip() for word in re.split(mark, cell) if word.strip()]


def _by_number(table: list[object], images: Sequence[str], path: str) -> Iterator[object]:
    for image in images:
        number = _NUMBER.search(image)
        if number is None or not 1 <= int(number[1]) <= len(table):
            raise DataError(
                f"{printable(path)} is a list by the numbers of images, and {printable(image)} has none from 1 to {len(table):,}",
                hint="numbers are the eight digits of ILSVRC2012_val_00000001.JPEG; or give an object: image -> classes",
            )
        yield table[int(number[1]) - 1]


def _by_name(table: Mapping[str, object], images: Sequence[str], path: str) -> Iterator[object]:
    unknown = [image for image in images if _key(table, image) is None]
    if unknown:
        raise DataError(
            f"{printable(path)} does not know {len(unknown):,} of {len(images):,} images, the first {printable(unknown[0])}",
            hint="list an image without a correct class with no class",
        )
    for image in images:
        yield table[_key(table, image) or ""]


def _key(table: Mapping[str, object], image: str) -> str | None:
    """The longest end of the image's path that the table has."""
    parts = image.split("/")
    return next((key for start in range(len(parts)) if (key := "/".join(parts[start:])) in table), None)


def _real_words(value: object, path: str) -> list[object]:
    words = value if isinstance(value, list) else [value]
    if not all(isinstance(word, str | int) and not isinstance(word, bool) for word in words):
        raise DataError(f"{printable(path)} holds {printable(str(value)[:80])} where classes should be")
    return words


def _real_place(word: object, place_of: Mapping[str, int], classes: int, where: str) -> int:
    name = str(word)
    if name in place_of:
        return place_of[name]
    if not re.fullmatch(r"\d{1,9}", name):
        raise DataError(
            f"{where}: {printable(name)} is not a class of the model, or the name of more than one",
            hint=did_you_mean(name, list(place_of)),
        )
    if int(name) >= classes:
        raise DataError(f"{where}: class {name}, and the model has 0 to {classes - 1}")
    return int(name)
