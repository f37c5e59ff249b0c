"""From what a file says of a picture's class (a name, a number, several) to labels: indices in a list of class names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.data.files.names import shown
from vitlab.data.kinds.offenders import Offenders
from vitlab.data.labels import UNKNOWN, LabelTable, look_alikes, unusable_name
from vitlab.data.listed import listed_shortly
from vitlab.data.split import TEST
from vitlab.errors import DataError

Cell = str | int | Sequence[str | int] | None
"""One class, several, or None where nothing is said."""

_NUMBER = re.compile(r"-?\d{1,9}(\.0)?")  # spreadsheets make 3.0 of 3
CLASSES_NAME = "classes.txt"
_MOST_CLASSES = 100_000


def name_labels(
    cells: Sequence[Cell],
    place: Callable[[int], str],
    offenders: Offenders,
    *,
    classes: Sequence[str] | None = None,
    parts: NDArray[np.int8],
) -> tuple[tuple[str, ...], LabelTable, tuple[str, ...]]:
    """Class names, the label of each picture, and notes; what cannot be understood is an offender at `place` of its number.

    Labels that are all numbers are indices: in `classes` where that list is given, else in 0, 1, 2, ... up to the largest.
    Other labels are names: of `classes`, else the classes are all the names there are, sorted by code point. Where `classes`
    are themselves numbers, a label is taken as their name. Pictures whose declared part (`parts`) is test may lack a label, as in
    a competition; others only where none of them has one.
    """
    several = any(isinstance(cell, Sequence) and not isinstance(cell, str) for cell in cells)
    rows = [_words(cell) for cell in cells]
    if not any(rows):
        return tuple(classes or ()), LabelTable.unknown(len(rows)), ()
    words = set(chain.from_iterable(rows))
    numbers = all(_NUMBER.fullmatch(word) for word in words)
    names = list(classes) if classes is not None else _found(words, numbers=numbers, offenders=offenders)
    by_number = numbers and (classes is None or not words <= set(classes))

    place_of = {name: code for code, name in enumerate(names)}
    codes = {word: _index(word, len(names)) if by_number else place_of.get(word, UNKNOWN) for word in words}
    for number, row in enumerate(rows):
        for word in row:
            if codes[word] == UNKNOWN:
                offenders.add(place(number), _wrong(word, names, by_number=by_number))
        if not row and not several and parts[number] != TEST:
            offenders.add(place(number), "no label")
    if not by_number:
        _refuse_twins(words, names, offenders)
    for name in names:
        if reason := unusable_name(name):
            offenders.add(f"class {shown(name)!r}", reason)
    for first, second in look_alikes(names):
        offenders.add(f"class {shown(first)!r}", f"is spelled in two ways of Unicode ({first!a} and {second!a})")
    if len(names) == 1 and not several:
        offenders.add(f"class {names[0]}", "is the only one: a classifier needs two")

    used = {codes[word] for word in words}
    unused = [name for code, name in enumerate(names) if code not in used]
    notes = (f"{len(unused):,} of {len(names):,} classes have no picture: {listed_shortly(unused)}",) if unused else ()
    if several:
        return tuple(names), LabelTable.several([[codes[word] for word in row] for row in rows]), notes
    first_words = [codes[row[0]] if row else UNKNOWN for row in rows]
    return tuple(names), LabelTable(codes=np.array(first_words, np.int32)), notes


def read_classes(data: bytes, where: str) -> list[str]:
    """The class names of a `classes.txt`: one a line, in the order of their indices."""
    return [line.strip() for line in as_text(data, where).split("\n") if line.strip()]


def classes_beside(path: Path) -> list[str] | None:
    """The class names of the `classes.txt` in the same folder, or None where there is none."""
    file = path.parent / CLASSES_NAME
    return read_classes(read_bytes(file), str(file)) if file.is_file() else None


def read_bytes(path: Path) -> bytes:
    """A whole small file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{shown(str(path))} cannot be read: {error.strerror}") from error


def as_text(data: bytes, where: str) -> str:
    """UTF-8, with or without the mark some programs put at its start."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{shown(where)} is no UTF-8 text (byte {error.start:,})", hint="save it as UTF-8") from error


def _words(cell: Cell) -> list[str]:
    if cell is None:
        return []
    if isinstance(cell, str | int):
        cell = [cell]
    return [text for word in cell if (text := str(word).strip())]


def _found(words: set[str], *, numbers: bool, offenders: Offenders) -> list[str]:
    if not numbers:
        return sorted(words)
    largest = max(int(float(word)) for word in words)
    if largest >= _MOST_CLASSES:
        offenders.add(f"label {largest}", f"is no index of a class: at most {_MOST_CLASSES:,} are numbered without names")
        return [str(number) for number in sorted({int(float(word)) for word in words})]
    return [str(number) for number in range(largest + 1)]


def _index(word: str, count: int) -> int:
    number = int(float(word))
    return number if 0 <= number < count else UNKNOWN


def _wrong(word: str, names: Sequence[str], *, by_number: bool) -> str:
    if by_number:
        return f"label {word} is outside 0 to {len(names) - 1}"
    return f"no class is called '{shown(word)}'"


def _refuse_twins(words: set[str], names: Sequence[str], offenders: Offenders) -> None:
    """A name that two classes share tells neither; as indices such classes are fine."""
    counts = Counter(names)
    for name in sorted(word for word in words if counts[word] > 1):
        offenders.add(f"class {shown(name)!r}", "is the name of two classes: label by number instead")
