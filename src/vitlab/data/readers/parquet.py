"""Parquet files of images, as on the Hugging Face hub; needs pyarrow (`vitlab[parquet]`).

An image is a struct {bytes, path} or bytes; the class names are in the metadata of the schema.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import Faults, ImageDataset
from vitlab.data.readers.manifest import Cell, name_labels
from vitlab.data.readers.shards import shard_paths
from vitlab.data.split import splits_of_files
from vitlab.errors import DataError
from vitlab.io.address import Address, Place
from vitlab.io.digests import Digests, digest_all, version_digests
from vitlab.io.display import printable
from vitlab.io.files import stamp_of
from vitlab.io.optional import optional_import
from vitlab.io.remote import RemoteFile, RemoteStream, Stamp, info

_HELD = 256 * 2**20  # bytes of row groups kept in memory, in each process
_LARGEST_GROUP = 2 * 2**30
_MOST_ROWS = 2**27


def open_parquet(pattern: str, *, label_column: str | None = None) -> ImageDataset:
    """The images of Parquet files given by a path, folder, glob or braces, in the order of files and rows.

    Labels are in `label_column`, else in the only column of class labels, else in `label` or `labels`. Reading decodes a row
    group at a time and keeps a few of them in memory; tar shards are faster for reading in random order.
    """
    pq = _pyarrow_parquet()
    paths = shard_paths(pattern, ending=".parquet")
    faults = Faults(pattern)
    split_of = splits_of_files(paths, faults)
    faults.raise_any()
    files = [_opened(pq, path) for path in paths]
    image = _image_column(files[0], pattern)
    features = _features(files[0])
    label = _label_column(files[0].schema_arrow.names, features, image, label_column, pattern)
    cells: list[Cell] = []
    for path, file in zip(paths, files, strict=True):
        if file.schema_arrow.names != files[0].schema_arrow.names:
            raise DataError(f"{printable(str(path))} has other columns than {printable(str(paths[0]))}")
        count = _rows(file, path)
        groups = range(file.metadata.num_row_groups) if label is not None else ()
        cells.extend(cell for group in groups for cell in _values(file, group, str(label), path))
        cells.extend([None] * (count if label is None else 0))
    contents = ParquetContents(paths, [_stamp(path) for path in paths], files, image)
    if not cells:
        raise DataError(f"{printable(pattern)} holds no row")
    classes = _class_names(features.get(label or ""))
    wrong = [number for number, cell in enumerate(cells) if not _is_label(cell)]
    for number in wrong:
        faults.add(contents.name(number), f"its label is not a name, a whole number or a list of them: {cells[number]!r}")
    faults.raise_any()
    unknown: list[Cell] = [None if cell == -1 else cell for cell in cells]  # the hub's value for an unknown label
    splits = np.repeat(np.array([split_of[path] for path in paths], np.int8), [file.metadata.num_rows for file in files])
    labels, table, notes = name_labels(unknown, contents.name, faults, classes=classes, splits=splits)
    faults.raise_any()
    rows = np.arange(len(cells), dtype=np.int64)
    return ImageDataset(contents=contents, rows=rows, table=table, labels=labels, splits=splits, notes=notes)


class ParquetContents:
    """Rows of several Parquet files; each process opens the files itself, because pyarrow must not be used across a fork."""

    def __init__(self, paths: Sequence[Place], stamps: Sequence[Stamp], files: Sequence[Any], column: str) -> None:
        self._paths, self._stamps, self._column = list(paths), list(stamps), column
        groups = [
            (number, group, file.metadata.row_group(group).num_rows)
            for number, file in enumerate(files)
            for group in range(file.metadata.num_row_groups)
        ]
        for number, group, _ in groups:
            size = files[number].metadata.row_group(group).total_byte_size
            if size > _LARGEST_GROUP:
                raise DataError(
                    f"{printable(str(paths[number]))}: row group {group} has {size:,} bytes; the limit is {_LARGEST_GROUP:,}"
                )
        self._groups = [(number, group) for number, group, _ in groups]
        self._starts = [0, *accumulate(count for _, _, count in groups)]
        self._first_rows = [0, *accumulate(file.metadata.num_rows for file in files)]
        self._process = -1
        self._files: dict[int, Any] = {}
        self._held: OrderedDict[int, Any] = OrderedDict()

    def name(self, row: int) -> str:
        """`file.parquet, row 7`, counted from 0 in each file."""
        place = bisect_right(self._starts, row) - 1
        number = self._groups[place][0]
        return f"{self._paths[number]}, row {row - self._first_rows[number]}"

    def read(self, row: int) -> bytes:
        """The encoded image."""
        place = bisect_right(self._starts, row) - 1
        value = self._group(place)[row - self._starts[place]]
        if value.is_valid and isinstance(value, Mapping):
            value = value["bytes"]  # the path is ignored
        data = value.as_py()
        if not isinstance(data, bytes):
            raise DataError(
                f"{printable(self.name(row))} holds no image data",
                hint="the images are stored elsewhere; download the version with embedded images",
            )
        return data

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each image, group by group."""
        chunks = [digest_all(self.read, rows[start : start + 64]) for start in range(0, len(rows), 64)]
        return np.concatenate(chunks) if chunks else np.zeros((0, 16), np.uint8)

    def versions(self, rows: NDArray[np.int64]) -> Digests | None:
        """16 bytes for each image that change when its file changes; None on disk, where images are read."""
        if not any(isinstance(path, Address) for path in self._paths):
            return None
        numbers = [bisect_right(self._first_rows, row) - 1 for row in rows.tolist()]
        stamps = np.array([self._stamps[number][1] for number in numbers], np.int64)
        inside = rows - np.array([self._first_rows[number] for number in numbers], np.int64)
        return version_digests(stamps, inside, np.zeros_like(rows))

    def _group(self, place: int) -> Any:
        """The image column of one row group, from memory if it was read recently."""
        if self._process != os.getpid():
            self._process, self._files, self._held = os.getpid(), {}, OrderedDict()
        if place in self._held:
            self._held.move_to_end(place)
            return self._held[place]
        number, group = self._groups[place]
        if number not in self._files:
            path = self._paths[number]
            if _stamp(path)[:2] != self._stamps[number][:2]:
                raise DataError(f"{printable(str(path))} has changed since it was opened", hint="start again")
            self._files[number] = _opened(_pyarrow_parquet(), path)
        column = _column(self._files[number], group, self._column, self._paths[number])
        self._held[place] = column
        while len(self._held) > 1 and sum(held.nbytes for held in self._held.values()) > _HELD:
            self._held.popitem(last=False)
        return column

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_process": -1, "_files": {}, "_held": OrderedDict()}


def _pyarrow_parquet() -> ModuleType:
    module: ModuleType = optional_import("pyarrow.parquet", purpose="Parquet files", error=DataError)
    return module


def _errors() -> tuple[type[Exception], ...]:
    """The errors of pyarrow for a damaged or unsupported file."""
    import pyarrow

    return (OSError, ValueError, pyarrow.ArrowException)


def _stamp(path: Place) -> Stamp:
    if not isinstance(path, Address):
        return stamp_of(path.stat())
    found = info(path)
    if found is None:
        raise DataError(f"{path} is a folder, not a Parquet file")
    return found.stamp


def _opened(pq: ModuleType, path: Place) -> Any:
    place = RemoteStream(RemoteFile(path, _stamp(path))) if isinstance(path, Address) else path
    try:
        return pq.ParquetFile(place, memory_map=False, pre_buffer=False)
    except _errors() as error:
        raise DataError(f"{printable(str(path))} is not a Parquet file: {printable(str(error).splitlines()[0])}") from error


def _rows(file: Any, path: Place) -> int:
    """The number of rows; DataError if the file contradicts itself."""
    stated = int(file.metadata.num_rows)
    groups = [int(file.metadata.row_group(group).num_rows) for group in range(file.metadata.num_row_groups)]
    if min(groups, default=0) < 0 or sum(groups) != stated or stated > _MOST_ROWS:
        raise DataError(
            f"{printable(str(path))} claims {stated:,} rows, and {sum(groups):,} in its groups; the limit is {_MOST_ROWS:,}"
        )
    return stated


def _column(file: Any, group: int, name: str, path: Place) -> Any:
    """One column of one row group."""
    try:
        column = file.read_row_group(group, [name], use_threads=False)[name].combine_chunks()
    except _errors() as error:
        reason = printable(str(error).splitlines()[0])
        raise DataError(f"{printable(str(path))}: row group {group} is damaged: {reason}") from error
    if len(column) != file.metadata.row_group(group).num_rows:
        raise DataError(f"{printable(str(path))}: row group {group} is damaged: it has {len(column):,} rows")
    return column


def _values(file: Any, group: int, name: str, path: Place) -> list[Any]:
    """One column of one row group, as Python values."""
    column = _column(file, group, name, path)
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise DataError(f"{printable(str(path))}: column {printable(name)} is not text in row group {group}") from error
    return values


def _features(file: Any) -> Mapping[str, Any]:
    """The hub's description of each column; empty if there is none."""
    try:
        metadata = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
        features = metadata["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def _image_column(file: Any, pattern: str) -> str:
    import pyarrow.types as types

    found = []
    for field in file.schema_arrow:
        inner = field.type
        if types.is_struct(inner) and inner.get_field_index("bytes") >= 0:
            inner = inner.field("bytes").type
        if types.is_binary(inner) or types.is_large_binary(inner):
            found.append(field.name)
    if not found:
        raise DataError(
            f"{printable(pattern)} has no column of images (bytes), only {', '.join(map(printable, file.schema_arrow.names))}"
        )
    if len(found) > 1 and "image" not in found:
        raise DataError(
            f"{printable(pattern)} has several columns of bytes: {', '.join(map(printable, found))}", hint="name one of them image"
        )
    return "image" if "image" in found else str(found[0])


def _label_column(columns: Sequence[str], features: Mapping[str, Any], image: str, asked: str | None, pattern: str) -> str | None:
    if asked is not None:
        if asked not in columns:
            raise DataError(f"{printable(pattern)} has no column {asked!r}, only {', '.join(map(printable, columns))}")
        return asked
    named = [column for column in columns if column != image and _class_names(features.get(column)) is not None]
    if len(named) > 1 and "label" not in named:
        raise DataError(
            f"{printable(pattern)} has several columns of class labels: {', '.join(map(printable, named))}",
            hint="choose one (label_column)",
        )
    if named:
        return "label" if "label" in named else named[0]
    return next((column for column in ("label", "labels", "class", "cls") if column in columns), None)


def _class_names(feature: Any) -> list[str] | None:
    """The names of a class label, or of a list of them."""
    while isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        feature = feature.get("feature")
    if isinstance(feature, list) and len(feature) == 1:
        feature = feature[0]
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return None
    names = feature.get("names")
    return [str(name) for name in names] if isinstance(names, list) else None


def _is_label(cell: object) -> bool:
    words = cell if isinstance(cell, list) else [cell]
    return cell is None or all(isinstance(word, str | int) and not isinstance(word, bool) for word in words)
