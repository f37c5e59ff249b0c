"""Manifests: lists of images and labels as CSV, TSV or JSON Lines, on disk or inside a zip archive.

`name_labels` turns the labels of any list (names, numbers, several) into indices of classes.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import (
    UNDECLARED,
    UNKNOWN,
    Contents,
    Faults,
    ImageDataset,
    LabelTable,
    listed,
    look_alikes,
    unusable_name,
)
from vitlab.data.readers.folder import DiskContents, RemoteContents, unreadable
from vitlab.data.split import TEST, split_named
from vitlab.errors import DataError
from vitlab.io.address import Address, Place
from vitlab.io.display import printable
from vitlab.io.files import LIST_FILE, SMALL_FILE, Names, as_text, read_bytes, read_text
from vitlab.io.remote import is_file, read_all
from vitlab.io.zip import ZipContents

Cell = str | int | Sequence[str | int] | None
"""The label of a row: one class, several, or None."""

_NUMBER = re.compile(r"-?\d{1,9}(\.0)?")  # spreadsheets write 3 as 3.0
CLASSES_NAME = "classes.txt"
_MOST_CLASSES = 100_000


def name_labels(
    cells: Sequence[Cell],
    place: Callable[[int], str],
    faults: Faults,
    *,
    classes: Sequence[str] | None = None,
    splits: NDArray[np.int8],
) -> tuple[tuple[str, ...], LabelTable, tuple[str, ...]]:
    """Class names, the label of each image, and notes. Labels that make no sense are faults; `place(row)` names the row.

    If all labels are numbers, they are indices: of `classes`, if given, else of 0, 1, 2, ... up to the largest. Otherwise they
    are names: of `classes`, if given, else the classes are all names, sorted by code point. If `classes` are numbers themselves,
    a label is their name. Images whose declared split is test may lack a label, as in a competition; others may only if no image
    has one.
    """
    several = any(isinstance(cell, Sequence) and not isinstance(cell, str) for cell in cells)
    rows = [_words(cell) for cell in cells]
    if not any(rows):
        return tuple(classes or ()), LabelTable.unknown(len(rows)), ()
    words = set(chain.from_iterable(rows))
    numbers = all(_NUMBER.fullmatch(word) for word in words)
    names = list(classes) if classes is not None else _found(words, numbers=numbers, faults=faults)
    by_number = numbers and (classes is None or not words <= set(classes))

    place_of = {name: code for code, name in enumerate(names)}
    codes = {word: _index(word, len(names)) if by_number else place_of.get(word, UNKNOWN) for word in words}
    for number, row in enumerate(rows):
        for word in row:
            if codes[word] == UNKNOWN:
                faults.add(place(number), _wrong(word, names, by_number=by_number))
        if not row and not several and splits[number] != TEST:
            faults.add(place(number), "no label")
    if not by_number:
        _check_duplicates(words, names, faults)
    for name in names:
        if reason := unusable_name(name):
            faults.add(f"class {printable(name)!r}", reason)
    for first, second in look_alikes(names):
        faults.add(f"class {printable(first)!r}", f"is spelled in two Unicode forms ({first!a} and {second!a})")
    if len(names) == 1 and not several:
        faults.add(f"class {names[0]}", "is the only class: a classifier needs two")

    used = {codes[word] for word in words}
    unused = [name for code, name in enumerate(names) if code not in used]
    notes = (f"{len(unused):,} of {len(names):,} classes have no image: {listed(unused)}",) if unused else ()
    if several:
        return tuple(names), LabelTable.several([[codes[word] for word in row] for row in rows]), notes
    first_words = [codes[row[0]] if row else UNKNOWN for row in rows]
    return tuple(names), LabelTable(codes=np.array(first_words, np.int32)), notes


def read_classes(data: bytes, where: str) -> list[str]:
    """The class names of a `classes.txt`: one per line, in the order of their indices."""
    return [line.strip() for line in as_text(data, where).split("\n") if line.strip()]


def classes_beside(path: Place) -> list[str] | None:
    """The class names of the `classes.txt` in the same folder, or None if there is none."""
    file = path.parent / CLASSES_NAME
    if isinstance(file, Address):
        return read_classes(read_all(file, most=SMALL_FILE), str(file)) if is_file(file) else None
    return read_classes(read_bytes(file), str(file)) if file.is_file() else None


def _words(cell: Cell) -> list[str]:
    if cell is None:
        return []
    if isinstance(cell, str | int):
        cell = [cell]
    return [text for word in cell if (text := str(word).strip())]


def _found(words: set[str], *, numbers: bool, faults: Faults) -> list[str]:
    if not numbers:
        return sorted(words)
    largest = max(int(float(word)) for word in words)
    if largest >= _MOST_CLASSES:
        faults.add(f"label {largest}", f"is too large for the index of a class: the limit is {_MOST_CLASSES:,}")
        return [str(number) for number in sorted({int(float(word)) for word in words})]
    return [str(number) for number in range(largest + 1)]


def _index(word: str, count: int) -> int:
    number = int(float(word))
    return number if 0 <= number < count else UNKNOWN


def _wrong(word: str, names: Sequence[str], *, by_number: bool) -> str:
    if by_number:
        return f"label {word} is outside 0 to {len(names) - 1}"
    return f"no class is called '{printable(word)}'"


def _check_duplicates(words: set[str], names: Sequence[str], faults: Faults) -> None:
    """A name of two classes is ambiguous as a label; such classes can be given by index."""
    counts = Counter(names)
    for name in sorted(word for word in words if counts[word] > 1):
        faults.add(f"class {printable(name)!r}", "is the name of two classes: label by number instead")


MANIFEST_NAMES = tuple(f"{stem}.{ending}" for stem in ("labels", "manifest", "metadata") for ending in ("csv", "tsv", "jsonl"))
"""Files that are recognised as the manifest of a folder or an archive."""

PATH_COLUMNS = ("path", "file", "file_name", "filename", "image", "image_path", "filepath")
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "category", "target", "tags")
SPLIT_COLUMNS = ("split", "part", "subset")
_SEPARATORS = "|;"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    line: int
    path: str
    cell: Cell
    split: int


def open_remote_manifest(path: Address, contents: RemoteContents, *, label_column: str | None = None) -> ImageDataset:
    """The images of a manifest on a server; `contents` are all files below its folder, to which paths are relative."""
    faults = Faults(str(path))
    text = as_text(read_all(path, most=LIST_FILE), str(path))
    rows = _read_rows(text, path.name, label_column, faults, where=str(path))
    row_of = {name: row for row, name in enumerate(contents.names)}

    def find(name: str) -> tuple[str, str | None]:
        for candidate in (name, f"images/{name}"):
            if candidate in row_of:
                return candidate, None
        return name, f"no such file below {path.parent}"

    found = _located(rows, find, faults)
    numbers = np.array([row_of.get(name, 0) for name in found], np.int64)
    return _assembled(contents, numbers, rows, classes_beside(path), faults)


def open_manifest(path: Path, *, label_column: str | None = None) -> ImageDataset:
    """The images of a manifest on disk; paths are relative to it (or to `images/` beside it), or absolute."""
    faults = Faults(str(path))
    rows = _read_rows(read_text(path, most=LIST_FILE), path.name, label_column, faults, where=str(path))
    folder = path.parent

    def find(name: str) -> tuple[str, str | None]:
        if "://" in name:
            return name, "an address; images are read from disk only"
        for candidate in (name, f"images/{name}"):
            reason = unreadable(os.path.join(folder, candidate))  # noqa: PTH118 (as it is opened later)
            if reason is None:
                return candidate, None
        return name, unreadable(os.path.join(folder, name))  # noqa: PTH118

    found = _located(rows, find, faults)
    names = Names(found if not faults else ())  # refused below; a wrong path may not even be text
    contents = DiskContents(folder, names)
    return _assembled(contents, np.arange(len(rows), dtype=np.int64), rows, classes_beside(path), faults)


def open_zip_manifest(contents: ZipContents, member: str, *, label_column: str | None = None) -> ImageDataset:
    """The images of the manifest `member` of a zip archive; paths are relative to it, or to `images/` beside it."""
    where = f"{contents.index.path}/{member}"
    faults = Faults(where)
    row_of = {name: row for row, name in enumerate(contents.index.names)}
    rows = _read_rows(as_text(contents.read(row_of[member]), where), member, label_column, faults, where=where)
    folder = member.rpartition("/")[0]
    start = f"{folder}/" if folder else ""

    def find(name: str) -> tuple[str, str | None]:
        for candidate in (f"{start}{name}", f"{start}images/{name}"):
            if candidate in row_of:
                return candidate, None
        return name, "no such file in the archive"

    found = _located(rows, find, faults)
    listed = row_of.get(f"{start}{CLASSES_NAME}")
    classes = None if listed is None else read_classes(contents.read(listed), where)
    numbers = np.array([row_of.get(name, 0) for name in found], np.int64)
    return _assembled(contents, numbers, rows, classes, faults)


def _assembled(
    contents: Contents, numbers: NDArray[np.int64], rows: Sequence[_Row], classes: Sequence[str] | None, faults: Faults
) -> ImageDataset:
    cells = [row.cell for row in rows]
    splits = np.array([row.split for row in rows], np.int8)
    labels, table, notes = name_labels(cells, lambda number: _place(rows[number]), faults, classes=classes, splits=splits)
    if len(set(splits.tolist())) > 1 and UNDECLARED in splits:
        for row in rows:
            if row.split == UNDECLARED:
                faults.add(_place(row), "no split, although other rows have one")
    faults.raise_any(hint="every row needs a readable path and a label; a column `split` says train, val or test")
    return ImageDataset(contents=contents, rows=numbers, table=table, labels=labels, splits=splits, notes=notes)


def _located(rows: Sequence[_Row], find: Callable[[str], tuple[str, str | None]], faults: Faults) -> list[str]:
    """The file of each row; missing files and files that are listed twice are faults."""
    first: dict[str, _Row] = {}
    found = []
    for row in rows:
        name, reason = find(row.path)
        if reason is not None:
            faults.add(_place(row), reason)
        elif first.setdefault(name, row) is not row:
            faults.add(_place(row), f"listed already in line {first[name].line} (put several labels into one column `labels`)")
        found.append(name)
    return found


def _place(row: _Row) -> str:
    return f"line {row.line} ({row.path})"


def _read_rows(text: str, name: str, label_column: str | None, faults: Faults, *, where: str) -> list[_Row]:
    suffix = PurePosixPath(name).suffix.lower()
    records = _json_records(text, faults) if suffix in (".jsonl", ".ndjson") else csv_records(text, faults, where)
    if not records:
        faults.raise_any(hint="a manifest is a CSV with a header line, or has one JSON object per line")
        raise DataError(f"{printable(where)} lists no image")
    columns = list(dict.fromkeys(key for _, record in records for key in record))
    path_column = known_column(columns, PATH_COLUMNS)
    if path_column is None:
        raise DataError(
            f"{printable(where)} has no column of paths, only {', '.join(map(printable, columns[:10]))}",
            hint=f"call it {PATH_COLUMNS[0]}, {PATH_COLUMNS[1]} or {PATH_COLUMNS[2]}",
        )
    if label_column is not None and label_column not in columns:
        raise DataError(f"{printable(where)} has no column {label_column!r}, only {', '.join(map(printable, columns[:10]))}")
    chosen = label_column or known_column(columns, LABEL_COLUMNS)
    split_column = known_column(columns, SPLIT_COLUMNS)

    rows = []
    split_up = _splitter(chosen, [record.get(chosen) for _, record in records]) if chosen else None
    for line, record in records:
        path = record.get(path_column)
        if not isinstance(path, str) or not path:
            faults.add(f"line {line}", f"no path in column {path_column}")
            continue
        split = UNDECLARED
        cell = record.get(chosen) if chosen else None
        if split_column and (word := record.get(split_column)) not in (None, ""):
            called = split_named(str(word))
            if called is None:
                faults.add(f"line {line} ({path})", f"split '{printable(str(word))}' is not train, val or test")
            split = UNDECLARED if called is None else called
        if not _is_cell(cell):
            faults.add(f"line {line} ({path})", f"a label is a name, a whole number or a list of them, not {cell!r}")
            cell = None
        rows.append(_Row(line=line, path=path, cell=split_up(cell) if split_up else cell, split=split))
    return rows


def csv_records(text: str, faults: Faults, where: str) -> list[tuple[int, Mapping[str, object]]]:
    """(line, column -> text) of each row; the separator is the one with which the header has a column of paths."""
    header = text.split("\n", 1)[0]
    separator = next(
        (mark for mark in ",;\t" if known_column([word.strip().strip('"') for word in header.split(mark)], PATH_COLUMNS)), ","
    )
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    records: list[tuple[int, Mapping[str, object]]] = []
    try:
        fields = [field.strip() for field in reader.fieldnames or ()]
        reader.fieldnames = fields
        if twice := next((field for field in fields if fields.count(field) > 1), None):
            raise DataError(f"{printable(where)} has two columns called {printable(twice)!r}")
        for record in reader:
            if None in record or None in record.values():
                faults.add(f"line {reader.line_num}", f"does not have {len(fields)} columns like the header")
            else:
                records.append((reader.line_num, {key: value.strip() for key, value in record.items()}))
    except csv.Error as error:
        raise DataError(f"{printable(where)}, line {reader.line_num}, is not CSV: {error}") from error
    return records


def _json_records(text: str, faults: Faults) -> list[tuple[int, Mapping[str, object]]]:
    records: list[tuple[int, Mapping[str, object]]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            faults.add(f"line {number}", f"is not JSON ({printable(str(error))})")
            continue
        if isinstance(record, dict):
            records.append((number, record))
        else:
            faults.add(f"line {number}", "is not a JSON object")
    return records


def known_column(columns: Sequence[str], known: Sequence[str]) -> str | None:
    """The first of the `known` names that is a column, as it is spelled there, or None."""
    folded = {column.casefold(): column for column in reversed(columns)}
    return next((folded[name] for name in known if name in folded), None)


def _is_cell(value: object) -> TypeGuard[Cell]:
    words = value if isinstance(value, list) else [value]
    plain = all(isinstance(word, str | int) and not isinstance(word, bool) for word in words)
    return value is None or plain


def _splitter(column: str, cells: Sequence[object]) -> Callable[[Cell], Cell]:
    """A function that splits a cell into labels: columns called `labels` or `tags` hold several, others hold one.

    Several labels are separated by | or ;, or by spaces if they are all numbers.
    """
    if not column.casefold().endswith(("labels", "tags")):
        return lambda cell: cell
    texts = [cell for cell in cells if isinstance(cell, str)]
    spaced = not any(mark in text for text in texts for mark in _SEPARATORS) and all(
        word.isdigit() for text in texts for word in text.split()
    )

    def split_up(cell: Cell) -> Cell:
        if not isinstance(cell, str):
            return [cell] if isinstance(cell, int) else cell or []
        return cell.split() if spaced else cell.replace(_SEPARATORS[1], _SEPARATORS[0]).split(_SEPARATORS[0])

    return split_up
