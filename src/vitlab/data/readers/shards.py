"""Tar shards in the WebDataset layout (`key.jpg` beside `key.cls` or `key.json`), or with class folders, or without labels.

The index of a shard is made once and cached until the shard changes; images are then read by offset, in any order. Members are
data: no .pkl, .pyd or .pth is interpreted, no program is run. A shard at an address (s3://...) is read by ranges.
"""

from __future__ import annotations

import glob
import json
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import UNDECLARED, Faults, ImageDataset
from vitlab.data.readers.folder import LeftOut, class_folders, is_array, is_hidden, is_image
from vitlab.data.readers.manifest import Cell, classes_beside, name_labels
from vitlab.data.split import splits_of_files
from vitlab.errors import DataError
from vitlab.io.address import Address, Place, address_of, is_address
from vitlab.io.archive_limits import READ_IN_PLACE
from vitlab.io.cache import Arrays, recall, remember
from vitlab.io.digests import REMOTE_READS, Digests, remembered_digests, version_digests
from vitlab.io.display import printable
from vitlab.io.files import Names, PositionedFile, open_handle, settled, stamp_of
from vitlab.io.machine import prefetched
from vitlab.io.remote import RemoteFile, expect, files_below, fraction_kept, info, is_file, matches, read_range
from vitlab.io.tar import FileStream, TarStream, WindowStream, tar_members

LABEL_SUFFIXES = (".cls", ".json", ".txt")

_VERSION = 1
_LARGEST_TEXT = 64 * 1024  # bytes of a member that may hold a label
_MOST_OPEN = 256  # files; if there are more shards, each read opens its shard


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardIndex:
    """The files of one shard: their names, offsets and sizes, and the text of those that may hold a label."""

    path: Place
    stamp: tuple[int, int, int]
    names: Names
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    texts: Names
    ignored: Counter[str]


def shard_index(path: Place) -> ShardIndex:
    """The index of a tar file, from the cache if the file has not changed, else from its headers."""
    if isinstance(path, Address):
        return _remote_index(path)
    try:
        handle = open_handle(path)
    except OSError as error:
        raise DataError(f"{printable(str(path))} cannot be read: {error.strerror}") from error
    try:
        stamp = stamp_of(os.fstat(handle))
        stored = recall("shards", path)
        if stored is not None and (index := _restored(path, stamp, stored)) is not None:
            return index
        index = _made(path, stamp, FileStream(handle), os.pread(handle, 6, 0))
    finally:
        os.close(handle)
    if settled(stamp):
        _remember(index)
    return index


def _remote_index(path: Address) -> ShardIndex:
    found = info(path)
    if found is None:
        raise DataError(f"{path} is a folder, not a tar file")
    stored = recall("shards", path)
    if stored is not None and (index := _restored(path, found.stamp, stored)) is not None:
        return index
    read = partial(read_range, path)  # not through the cache of blocks: the index itself is cached
    index = _made(path, found.stamp, WindowStream(read, found.size), read(0, min(6, found.size)))
    _remember(index)
    return index


def _made(path: Place, stamp: tuple[int, int, int], stream: TarStream, head: bytes) -> ShardIndex:
    if head[:2] == b"\x1f\x8b" or head[:3] == b"BZh" or head == b"\xfd7zXZ\0" or head[:4] == b"\x28\xb5\x2f\xfd":
        raise DataError(
            f"{printable(str(path))} is compressed, so its images cannot be read by offset",
            hint="decompress it to a plain .tar; images are compressed already",
        )
    names: list[str] = []
    places: list[tuple[int, int]] = []
    texts: list[str] = []
    ignored: Counter[str] = Counter()
    for member in tar_members(stream, path, READ_IN_PLACE):
        if member.kind == "folder":
            continue
        if member.kind != "file":
            ignored[member.kind] += 1
            continue
        text = ""
        if member.name.endswith(LABEL_SUFFIXES) and member.size <= _LARGEST_TEXT:
            text = stream.read(member.size).decode("utf-8", "replace")
        names.append(member.name)
        places.append((member.offset, member.size))
        texts.append(text)
    table = np.array(places, np.int64).reshape(-1, 2)
    return ShardIndex(
        path=path,
        stamp=stamp,
        names=Names(names),
        offsets=table[:, 0].copy(),
        sizes=table[:, 1].copy(),
        texts=Names(texts),
        ignored=ignored,
    )


def _remember(index: ShardIndex) -> None:
    names, name_ends = index.names.buffers()
    texts, text_ends = index.texts.buffers()
    ignored = json.dumps(index.ignored).encode()
    arrays: Arrays = {
        "stamp": np.array([_VERSION, *index.stamp], np.int64),
        "names": np.frombuffer(names, np.uint8),
        "name_ends": name_ends,
        "texts": np.frombuffer(texts, np.uint8),
        "text_ends": text_ends,
        "offsets": index.offsets,
        "sizes": index.sizes,
        "ignored": np.frombuffer(ignored, np.uint8),
    }
    remember("shards", index.path, arrays)


def _restored(path: Place, stamp: tuple[int, int, int], stored: Arrays) -> ShardIndex | None:
    """The cached index, or None if the file has changed or the index cannot be read."""
    if not np.array_equal(stored.get("stamp", ()), [_VERSION, *stamp]):
        return None
    try:
        return ShardIndex(
            path=path,
            stamp=stamp,
            names=Names.from_buffers(stored["names"].tobytes(), stored["name_ends"].astype(np.int64)),
            offsets=stored["offsets"].astype(np.int64),
            sizes=stored["sizes"].astype(np.int64),
            texts=Names.from_buffers(stored["texts"].tobytes(), stored["text_ends"].astype(np.int64)),
            ignored=Counter(json.loads(stored["ignored"].tobytes())),
        )
    except (KeyError, ValueError):
        return None


class ShardContents:
    """The files of several shards, numbered consecutively, each read by one call."""

    def __init__(self, shards: Sequence[ShardIndex]) -> None:
        self._starts = [0, *accumulate(len(shard.names) for shard in shards)]
        self.shards = list(shards)
        keep_open = len(shards) <= _MOST_OPEN
        sizes = [shard.stamp[0] for shard in shards if isinstance(shard.path, Address)]
        kept = fraction_kept(sum(sizes)) if sizes else 1.0
        self._files = [
            RemoteFile(shard.path, shard.stamp, blocks=kept == 1, kept=kept)
            if isinstance(shard.path, Address)
            else PositionedFile(shard.path, shard.stamp, keep_open=keep_open)
            for shard in shards
        ]

    def __len__(self) -> int:
        return self._starts[-1]

    def names(self) -> Iterator[tuple[int, str]]:
        """(number of the shard, name) of each file, in order."""
        for number, shard in enumerate(self.shards):
            for name in shard.names:
                yield number, name

    def name(self, row: int) -> str:
        """`shard.tar/name`"""
        number, inside = self._place(row)
        return f"{self.shards[number].path}/{self.shards[number].names[inside]}"

    def shard_of(self, row: int) -> Place:
        """The shard of this row."""
        return self.shards[self._place(row)[0]].path

    def text(self, row: int) -> str:
        """The text of a member that may hold a label; empty for others."""
        number, inside = self._place(row)
        return self.shards[number].texts[inside]

    def read(self, row: int) -> bytes:
        """The file's bytes."""
        number, inside = self._place(row)
        shard = self.shards[number]
        offset, size = int(shard.offsets[inside]), int(shard.sizes[inside])
        data = self._files[number].read(offset, size)
        if len(data) < size:
            raise DataError(f"{printable(self.name(row))} is cut off: {shard.path} ends at offset {offset + len(data):,}")
        return data

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each file's content, shard by shard."""
        result = np.zeros((len(rows), 16), np.uint8)
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(which).tolist():
            shard, first = self.shards[number], self._starts[number]
            here = which == number

            def read(inside: int, first: int = first) -> bytes:
                return self.read(first + inside)

            result[here] = remembered_digests(read, rows[here] - first, path=shard.path, stamp=shard.stamp, sizes=shard.sizes)
        return result

    def versions(self, rows: NDArray[np.int64]) -> Digests | None:
        """16 bytes for each file that change when its shard or its place in it changes; None on disk, where files are read."""
        if not any(isinstance(shard.path, Address) for shard in self.shards):
            return None
        places = [self._place(row) for row in rows.tolist()]
        stamps = np.array([self.shards[number].stamp[1] for number, _ in places], np.int64)
        offsets = np.array([self.shards[number].offsets[inside] for number, inside in places], np.int64)
        sizes = np.array([self.shards[number].sizes[inside] for number, inside in places], np.int64)
        return version_digests(stamps, offsets, sizes)

    def expect(self, rows: Sequence[int]) -> None:
        """Begin to read these files from the server; on disk, this does nothing."""
        ranges = []
        for row in rows:
            number, inside = self._place(row)
            file, shard = self._files[number], self.shards[number]
            if isinstance(file, RemoteFile):
                ranges.append((file, int(shard.offsets[inside]), int(shard.sizes[inside])))
        expect(ranges)

    def _place(self, row: int) -> tuple[int, int]:
        number = bisect_right(self._starts, row) - 1
        return number, row - self._starts[number]


_MOST = 100_000
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?=//)|pipe:")


def shard_indices(paths: Sequence[Place]) -> list[ShardIndex]:
    """The indices of all shards; those on servers are read several at a time."""
    if not any(isinstance(path, Address) for path in paths):
        return [shard_index(path) for path in paths]
    with closing(prefetched(shard_index, paths, threads=REMOTE_READS, depth=2 * REMOTE_READS)) as indices:
        return list(indices)


def shard_paths(pattern: str, *, ending: str) -> list[Place]:
    """The files of a pattern: a path, a folder, a glob, braces, or several of these joined by `::`.

    They come in the pattern's order, those of a folder or a glob sorted by code point. `data/train-{000..012}.tar` counts with
    leading zeros, `{a,b}` lists. A folder means all files below it with this `ending`. Pieces may be addresses (s3://, gs://,
    az://, http(s)://, hf://); others are refused: no program is run.
    """
    faults = Faults(pattern)
    found: list[Place] = []
    for piece in pattern.split("::"):
        if (address := _ADDRESS.match(piece)) and not is_address(piece):
            raise DataError(
                f"{printable(piece)} is not read: {address.group()} would run a program or is not an address that vitlab reads",
                hint="give a path, or an address that begins with s3://, gs://, az://, http://, https:// or hf://",
            )
        for spelled in _braced(piece, pattern):
            if is_address(spelled):
                there = _at_address(address_of(spelled), ending)
                if not there:
                    faults.add(spelled, f"no such file, and no file with the ending {ending} below it")
                found.extend(there)
                continue
            path = Path(spelled).expanduser()
            if path.is_dir():
                inside: list[Path] = sorted(path.rglob(f"*{ending}"), key=str)
            elif path.is_file():
                inside = [path]
            else:
                inside = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207
            if not inside:
                faults.add(spelled, f"no file with the ending {ending} in it" if path.is_dir() else "no such file")
            found.extend(inside)
    seen: set[Place] = set()
    for place in found:
        resolved = place if isinstance(place, Address) else place.resolve()
        if resolved in seen:
            faults.add(str(place), "named twice")
        elif isinstance(place, Path) and not place.is_file():
            faults.add(str(place), "not a regular file")
        seen.add(resolved)
    faults.raise_any(hint="give shards as a path, a folder, a glob or braces: 'train-{000..012}.tar'")
    return found


def _at_address(address: Address, ending: str) -> list[Place]:
    """The files that an address names: itself, those below a folder, or those that a glob matches."""
    if any(mark in address.path for mark in ("*[" if address.scheme.startswith("http") else "*?[")):
        return list(matches(address))
    if is_file(address):
        return [address]
    return [address / name for name in files_below(address) if name.endswith(ending)]


def _braced(text: str, pattern: str) -> list[str]:
    spelled = [text]
    while (braces := _BRACES.search(spelled[0])) is not None:
        choices = list(_choices(braces.group(1), pattern))
        if len(choices) * len(spelled) > _MOST:
            raise DataError(f"{printable(pattern)} names more than {_MOST:,} shards")
        spelled = [_BRACES.sub(lambda _, word=word: word, name, count=1) for name in spelled for word in choices]  # type: ignore[misc]
    return spelled


def _choices(inside: str, pattern: str) -> Iterator[str]:
    for word in inside.split(","):
        counted = _RANGE.fullmatch(word)
        if counted is None:
            yield word
            continue
        first, last = counted.groups()
        if int(last) < int(first) or int(last) - int(first) >= _MOST:
            raise DataError(f"{printable(pattern)}: {{{word}}} counts from {first} to {last}")
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{width}d}"


_JSON_KEYS = ("label", "labels", "cls", "class", "class_name")


def open_shards(pattern: str, *, label_column: str | None = None) -> ImageDataset:
    """The images of tar shards given by a path, folder, glob or braces, in the order of shards and members.

    Labels come from `key.cls` (a number or a name), else `key.json` (its field `label_column`, else label, labels, cls or
    class), else `key.txt`; `classes.txt` beside the first shard holds the class names. Without such members, images in folders
    are labelled by their folder, and others have no label. Shards named after train, val or test belong to these splits.
    """
    paths = shard_paths(pattern, ending=".tar")
    contents = ShardContents(shard_indices(paths))
    faults, left_out = Faults(pattern), _not_files(contents)
    split_of = splits_of_files(paths, faults)
    endings = LABEL_SUFFIXES if label_column is None else (".json",)
    samples = list(_samples(contents, endings, left_out, faults))
    if not samples:
        raise DataError(f"{printable(pattern)} holds no image" + "".join(f" ({note})" for note in left_out.notes()))
    if label_column is None and all(label is None for _, label in samples):
        names = Names(name for _, name in contents.names())
        if all("/" in names[image] for image, _ in samples):
            whole = class_folders(contents, names, where=pattern, faults=faults, left_out=_not_files(contents))
            named = _splits(contents, whole.rows, split_of)
            return whole if UNDECLARED in named else replace(whole, splits=named)

    cells = [_cell(contents, label, label_column, faults) for _, label in samples]
    if label_column is not None and all(cell is None for cell in cells):
        faults.raise_any()
        raise DataError(f"{printable(pattern)}: no member .json has a field {label_column!r}")
    rows = np.array([image for image, _ in samples], np.int64)
    splits = _splits(contents, rows, split_of)
    labels, table, notes = name_labels(
        cells,
        lambda number: contents.name(samples[number][0]),
        faults,
        classes=classes_beside(paths[0]),
        splits=splits,
    )
    faults.raise_any(hint="the image and the label of a sample have the same name up to the first dot")
    texts = sum(label is not None and contents.name(label).endswith(".txt") for _, label in samples)
    if len(labels) == len(samples) == texts > 2:
        raise DataError(
            f"{printable(pattern)}: no two of its {texts:,} .txt members agree: they are captions, not labels",
            hint="store labels as members .cls",
        )
    return ImageDataset(contents=contents, rows=rows, table=table, labels=labels, splits=splits, notes=(*notes, *left_out.notes()))


def _not_files(contents: ShardContents) -> LeftOut:
    left_out = LeftOut()
    for shard in contents.shards:
        for kind, count in shard.ignored.items():
            left_out.add(kind, f"{kind}s, which are not followed", count=count)
    return left_out


def _samples(
    contents: ShardContents, endings: Sequence[str], left_out: LeftOut, faults: Faults
) -> Iterator[tuple[int, int | None]]:
    """(row of the image, row of the label) of each sample: neighbours whose names are equal up to the first dot."""
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
            yield from _sample(members, contents, endings, left_out, faults)
            if here in seen:
                faults.add(contents.name(row), "its sample is in two places of the shard")
            key, members = here, {}
            seen.add(here)
        if members.setdefault(dot + ending.lower(), row) != row:
            faults.add(contents.name(row), "given twice")
    yield from _sample(members, contents, endings, left_out, faults)


def _sample(
    members: dict[str, int], contents: ShardContents, endings: Sequence[str], left_out: LeftOut, faults: Faults
) -> Iterator[tuple[int, int | None]]:
    images = [ending for ending in members if is_image(f"x{ending}")]
    images = [ending for ending in images if not is_array(ending)] or images  # an array beside an image belongs to it
    plain = [ending for ending in images if ending.count(".") == 1] or images
    label = next((ending for ending in endings if ending in members), None)
    for ending in members:
        if ending != label and ending not in plain[:1]:
            left_out.add(ending, ending or "without an ending")
    if len(plain) > 1:
        faults.add(contents.name(members[plain[0]]), f"its sample has {len(plain)} images ({', '.join(plain)})")
    elif plain:
        yield members[plain[0]], members[label] if label else None
    elif label:
        left_out.add(label, "labels without an image")


def _cell(contents: ShardContents, row: int | None, field: str | None, faults: Faults) -> Cell:
    if row is None:
        return None
    name, text = contents.name(row), contents.text(row)
    if not name.endswith(".json"):
        return text.strip()
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        faults.add(name, "is not JSON of at most 64 KiB")
        return None
    keys = _JSON_KEYS if field is None else (field,)
    value = next((record[key] for key in keys if key in record), None) if isinstance(record, dict) else record
    words = value if isinstance(value, list) else [value]
    if value is not None and any(isinstance(word, bool) or not isinstance(word, str | int) for word in words):
        faults.add(name, "its label is not a name, a whole number or a list of them")
        return None
    return value if value is None or isinstance(value, str | int | list) else None


def _splits(contents: ShardContents, rows: NDArray[np.int64], split_of: Mapping[Place, int]) -> NDArray[np.int8]:
    return np.array([split_of[contents.shard_of(row)] for row in rows.tolist()], np.int8)
