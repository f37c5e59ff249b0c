"""What the files in shards mean: samples of a picture and its label, or class folders, or pictures without labels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.data.files.names import Names, shown
from vitlab.data.files.pictures import LeftOut, is_hidden, is_picture
from vitlab.data.kinds.folder import class_folders
from vitlab.data.kinds.naming import Cell, classes_beside, name_labels
from vitlab.data.kinds.offenders import Offenders
from vitlab.data.kinds.shard_paths import shard_paths
from vitlab.data.listed import UNDECLARED, ListedSource
from vitlab.data.shards import LABEL_SUFFIXES, ShardContents, shard_index
from vitlab.data.split import parts_of_files
from vitlab.errors import DataError

_JSON_KEYS = ("label", "labels", "cls", "class", "class_name")


def open_shards(pattern: str, *, label_column: str | None = None) -> ListedSource:
    """The pictures of tar shards named by a path, folder, glob or braces, in the order of shards and members.

    Labels come from `key.cls` (a number or a name), else `key.json` (its field `label_column`, else label, labels, cls or
    class), else `key.txt`; `classes.txt` beside the first shard names the classes. Without such members, pictures in folders
    are labelled by their folder, and others have no label. Shards named after train, val or test are those parts.
    """
    paths = shard_paths(pattern, ending=".tar")
    contents = ShardContents([shard_index(path) for path in paths])
    offenders, left_out = Offenders(pattern), _not_files(contents)
    part_of = parts_of_files(paths, offenders)
    endings = LABEL_SUFFIXES if label_column is None else (".json",)
    samples = list(_samples(contents, endings, left_out, offenders))
    if not samples:
        raise DataError(f"{shown(pattern)} holds no picture" + "".join(f" ({note})" for note in left_out.notes()))
    if label_column is None and all(label is None for _, label in samples):
        names = Names(name for _, name in contents.names())
        if all("/" in names[picture] for picture, _ in samples):
            whole = class_folders(contents, names, where=pattern, offenders=offenders, left_out=_not_files(contents))
            told = _parts(contents, whole.rows, part_of)
            return whole if UNDECLARED in told else replace(whole, parts=told)

    cells = [_cell(contents, label, label_column, offenders) for _, label in samples]
    if label_column is not None and all(cell is None for cell in cells):
        offenders.refuse()
        raise DataError(f"{shown(pattern)}: no member .json has a field {label_column!r}")
    rows = np.array([picture for picture, _ in samples], np.int64)
    parts = _parts(contents, rows, part_of)
    labels, table, notes = name_labels(
        cells,
        lambda number: contents.name(samples[number][0]),
        offenders,
        classes=classes_beside(paths[0]),
        parts=parts,
    )
    offenders.refuse(hint="a sample is a picture and a label that have the same name before the first dot")
    texts = sum(label is not None and contents.name(label).endswith(".txt") for _, label in samples)
    if len(labels) == len(samples) == texts > 2:
        raise DataError(
            f"{shown(pattern)}: no two of its {texts:,} .txt members agree: they are captions, not labels",
            hint="a label goes in a member .cls",
        )
    return ListedSource(contents=contents, rows=rows, table=table, labels=labels, parts=parts, notes=(*notes, *left_out.notes()))


def _not_files(contents: ShardContents) -> LeftOut:
    left_out = LeftOut()
    for shard in contents.shards:
        for kind, count in shard.ignored.items():
            left_out.add(kind, f"{kind}s, which are not followed", count=count)
    return left_out


def _samples(
    contents: ShardContents, endings: Sequence[str], left_out: LeftOut, offenders: Offenders
) -> Iterator[tuple[int, int | None]]:
    """(row of the picture, row of the label) of each sample: neighbours whose names are equal up to the first dot."""
    key: tuple[int, str] | None = None
    members: dict[str, int] = {}
    seen: set[tuple[int, str]] = set()
    for row, (shard, name) in enumerate(contents.names()):
        if is_hidden(name):
            left_out.add(name)
            continue
        folder, slash, file = name.rpartition("/")
        stem, dot, ending = file.partition(".")
        here = (shard, folder + slash + stem)
        if here != key:
            yield from _sample(members, contents, endings, left_out, offenders)
            if here in seen:
                offenders.add(contents.name(row), "its sample stands in two places of the shard")
            key, members = here, {}
            seen.add(here)
        if members.setdefault(dot + ending.lower(), row) != row:
            offenders.add(contents.name(row), "given twice")
    yield from _sample(members, contents, endings, left_out, offenders)


def _sample(
    members: dict[str, int], contents: ShardContents, endings: Sequence[str], left_out: LeftOut, offenders: Offenders
) -> Iterator[tuple[int, int | None]]:
    pictures = [ending for ending in members if is_picture(f"x{ending}")]
    plain = [ending for ending in pictures if ending.count(".") == 1] or pictures
    label = next((ending for ending in endings if ending in members), None)
    for ending in members:
        if ending != label and ending not in plain[:1]:
            left_out.add(ending, ending or "without an ending")
    if len(plain) > 1:
        offenders.add(contents.name(members[plain[0]]), f"its sample has {len(plain)} pictures ({', '.join(plain)})")
    elif plain:
        yield members[plain[0]], members[label] if label else None
    elif label:
        left_out.add(label, "labels without a picture")


def _cell(contents: ShardContents, row: int | None, field: str | None, offenders: Offenders) -> Cell:
    if row is None:
        return None
    name, text = contents.name(row), contents.text(row)
    if not name.endswith(".json"):
        return text.strip()
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        offenders.add(name, "is no JSON of at most 64 KiB")
        return None
    keys = _JSON_KEYS if field is None else (field,)
    value = next((record[key] for key in keys if key in record), None) if isinstance(record, dict) else record
    words = value if isinstance(value, list) else [value]
    if value is not None and any(isinstance(word, bool) or not isinstance(word, str | int) for word in words):
        offenders.add(name, "its label is no name, whole number or list of them")
        return None
    return value if value is None or isinstance(value, str | int | list) else None


def _parts(contents: ShardContents, rows: NDArray[np.int64], part_of: Mapping[Path, int]) -> NDArray[np.int8]:
    return np.array([part_of[contents.shard_of(row)] for row in rows.tolist()], np.int8)
