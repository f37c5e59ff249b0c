"""Which classes of the model are right for which class of the data: by name, in part, or by a mapping file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitlab.config.check import did_you_mean
from vitlab.data.files.names import shown
from vitlab.data.labels import align_labels
from vitlab.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What counts as right.

    `labels` are the classes of the data; `right` are, for each of them, the classes of the model that count: one of the same
    meaning, several where a mapping says so, none where its pictures are left out. `names` are the model's classes.
    """

    labels: tuple[str, ...]
    right: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def one_each(self) -> bool:
        """Whether exactly one class of the model is right for each class of the data."""
        return all(len(classes) == 1 for classes in self.right)

    @property
    def in_part(self) -> bool:
        """Whether the data has some of the model's classes only."""
        return self.one_each and len(self.labels) < len(self.names)


def match_by_name(data: Sequence[str], model: Sequence[str] | None, *, classes: int, subset: bool = False) -> Targets:
    """The same class for each class; refuses, with what differs, where data and model do not mean the same.

    `model` are the names of its `classes`; where it has none, the data's are taken for them if they are as many, and that is
    said. `subset` lets the data hold some of the model's classes, in any order.
    """
    if not data:
        raise DataError("the data has no labels to evaluate by", hint="vitlab predict answers for pictures without labels")
    if model is None:
        if len(data) != classes:
            raise DataError(
                f"the data has {len(data):,} classes and the model {classes:,}, and the checkpoint does not say which they are",
                hint="give it its labels: --labels FILE, one a line",
            )
        note = f"the checkpoint has no labels: its {classes:,} classes are taken to be the data's, in the data's order"
        return Targets(labels=tuple(data), right=tuple((place,) for place in range(classes)), names=tuple(data), notes=(note,))
    try:
        places = align_labels(data, model, reorder=subset)
    except DataError as error:
        known = set(data) <= set(model)
        hint = "--subset matches classes by name, in any order and also where the data has a part of them" if known else error.hint
        raise DataError(error.message, hint=hint) from error
    note = f"the data has {len(data):,} of the model's {len(model):,} classes" if len(data) < len(model) else ""
    moved = "classes are matched by name: data and model order them differently" if list(places) != sorted(places) else ""
    return Targets(
        labels=tuple(data),
        right=tuple((place,) for place in places),
        names=tuple(model),
        notes=tuple(text for text in (note, moved) if text),
    )


def match_by_file(path: Path, data: Sequence[str], model: Sequence[str] | None, *, classes: int) -> Targets:
    """Targets from a JSON object: class of the data -> list of the model's classes, by name or number (as for ObjectNet).

    Every class of the data must be there. An empty list leaves its pictures out; that is counted and said.
    """
    try:
        table = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{shown(str(path))} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{shown(str(path))} is no JSON: {error}") from error
    if not isinstance(table, dict):
        raise DataError(
            f"{shown(str(path))} is no JSON object", hint='a mapping is {"class of the data": ["class of the model", ...]}'
        )
    if missing := [label for label in data if label not in table]:
        raise DataError(
            f"{shown(str(path))} does not map {_listed(missing)}",
            hint="map a class to [] to leave its pictures out" if len(missing) < len(data) else "are these the data's classes?",
        )
    place_of = {name: place for place, name in enumerate(model or ())}
    twice = {name for name in model or () if list(model or ()).count(name) > 1} if len(place_of) < len(model or ()) else set()
    right = tuple(
        tuple(_place(word, label, place_of, twice, classes, path) for word in _words(table[label], label, path)) for label in data
    )
    if not any(right):
        raise DataError(f"{shown(str(path))} maps every class of the data to nothing")
    notes = []
    if empty := [label for label, places in zip(data, right, strict=True) if not places]:
        notes.append(f"{len(empty):,} classes are mapped to nothing, and their pictures left out: {_listed(empty)}")
    if unused := [label for label in table if label not in set(data)]:
        notes.append(f"{len(unused):,} classes of the mapping are not in the data: {_listed(unused)}")
    names = tuple(model) if model is not None else tuple(map(str, range(classes)))
    return Targets(labels=tuple(data), right=right, names=names, notes=tuple(notes))


def _words(value: object, label: str, path: Path) -> list[object]:
    words = value if isinstance(value, list) else [value]
    if not all(isinstance(word, str | int) and not isinstance(word, bool) for word in words):
        raise DataError(f"{shown(str(path))} maps {shown(label)} to {shown(str(value)[:80])}, not to names or numbers of classes")
    return words


def _place(word: object, label: str, place_of: dict[str, int], twice: set[str], classes: int, path: Path) -> int:
    where = f"{shown(str(path))} maps {shown(label)} to"
    if isinstance(word, int):
        if not 0 <= word < classes:
            raise DataError(f"{where} class {word}, and the model has 0 to {classes - 1}")
        return word
    name = str(word)
    if not place_of:
        raise DataError(f"{where} {shown(name)}, and the checkpoint has no labels", hint="use numbers, or give --labels FILE")
    if name in twice:
        raise DataError(f"{where} {shown(name)}, which is the name of two classes", hint="use the class's number")
    if name not in place_of:
        raise DataError(f"{where} {shown(name)}, which is no class of the model", hint=did_you_mean(name, list(place_of)))
    return place_of[name]


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(shown(name) for name in names[:5])
    return text + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
