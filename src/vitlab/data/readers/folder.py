"""Images in class folders (`root/<class>/...`, or `root/train/<class>/...` and so on) and files about them, on disk or in a zip."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from vitlab.data.dataset import (
    SPLITS,
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
from vitlab.data.split import TEST, split_named
from vitlab.errors import DataError, did_you_mean
from vitlab.io.address import Address
from vitlab.io.archive_limits import READ_IN_PLACE
from vitlab.io.cache import recall, remember
from vitlab.io.digests import DIGEST_BYTES, REMOTE_READS, WORTH_REMEMBERING, Digests, digest_all, version_digests
from vitlab.io.display import printable
from vitlab.io.files import Names, as_text, read_bytes, settled, stamp_of
from vitlab.io.remote import Info, RemoteFile, expect, fraction_kept
from vitlab.io.zip import ZipContents, read_zip_index

# Every ending of an image, also of formats that the decoder does not support: an error is better than a silently skipped image.
_IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".ppm", ".pgm"}
    | {".npy", ".dcm", ".dicom"}
)
_HIDDEN = re.compile(r"(?:^|/)(?:\.|(?:thumbs\.db|desktop\.ini|__macosx)(?:/|$))", re.IGNORECASE)


def is_image(name: str) -> bool:
    """Whether the name ends like that of an image, in upper or lower case."""
    dot = name.rfind(".")
    return dot > 0 and name[dot:].lower() in _IMAGE_SUFFIXES


def is_array(name: str) -> bool:
    """Whether the name ends like that of a NumPy array, which is an image only if no other image has the same name."""
    return name.lower().endswith(".npy")


def _beside(names: Names | Sequence[str]) -> set[str]:
    """The arrays among the names that belong to an image: cat.npy where cat.jpg is."""
    arrays = [name for name in names if is_array(name)]
    stems = {name[: name.rfind(".")] for name in names if is_image(name) and not is_array(name)} if arrays else set()
    return {name for name in arrays if name[: name.rfind(".")] in stems}


def is_hidden(name: str) -> bool:
    """Whether a file or one of its folders is hidden or a system file (.DS_Store, Thumbs.db, __MACOSX/)."""
    return _HIDDEN.search(name) is not None


class LeftOut:
    """Counts the files of a dataset that are not used, so that one note reports them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, name: str, reason: str | None = None, *, count: int = 1) -> None:
        """Count files under `reason`, else as hidden, else under their ending."""
        suffix = PurePosixPath(name).suffix.lower()
        self._counts[reason or ("hidden" if is_hidden(name) else suffix or "without an ending")] += count

    def used(self, name: str) -> None:
        """A file that was counted is used after all: a list, or names of classes."""
        self.add(name, count=-1)

    def notes(self) -> tuple[str, ...]:
        """One sentence, or none if nothing was left out."""
        counts = +self._counts  # those above 0
        if not counts:
            return ()
        kinds = ", ".join(f"{count:,} {printable(kind)}" for kind, count in counts.most_common())
        files = "1 file" if counts.total() == 1 else f"{counts.total():,} files"
        return (f"{files} left out that are not images: {kinds}",)


def image_rows(names: Names, left_out: LeftOut) -> list[int]:
    """The rows of the names that are images; the others are counted."""
    rows, beside = [], _beside(names)
    for row, name in enumerate(names):
        if is_image(name) and not is_hidden(name) and name not in beside:
            rows.append(row)
        else:
            left_out.add(name)
    return rows


def walk_images(root: Path, faults: Faults, left_out: LeftOut) -> tuple[Names, list[str]]:
    """The sorted paths, relative to `root`, of all images below it, and those of all folders. Links are followed.

    An image that cannot be read is a fault, and so is a folder that is reached twice through links.
    """
    found: list[str] = []
    folders: list[str] = []
    seen: dict[tuple[int, int], str] = {}
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            status = os.stat(root / folder)  # noqa: PTH116
            entries = list(os.scandir(root / folder))
        except OSError as error:
            faults.add(folder or ".", f"a folder that cannot be read ({error.strerror})")
            continue
        first = seen.setdefault((status.st_dev, status.st_ino), folder)
        if first != folder:
            faults.add(folder, f"a link to a folder that is already read ({printable(first or '.')})")
            continue
        beside = _beside([entry.name for entry in entries])
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if is_hidden(entry.name):
                left_out.add(entry.name)
            elif os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():  # noqa: PTH112
                waiting.append(name)
                folders.append(name)
            elif not is_image(entry.name) or entry.name in beside:
                left_out.add(entry.name)
            elif (reason := unreadable(entry.path)) is not None:
                faults.add(name, reason)
            else:
                found.append(name)
    return Names(sorted(found)), folders


def unreadable(path: str) -> str | None:
    """Why this is not a readable file, or None if it is."""
    if os.path.isfile(path):  # noqa: PTH113 (asked a million times)
        return None if os.access(path, os.R_OK) else "may not be read (permission denied)"
    if os.path.isdir(path):  # noqa: PTH112
        return "a folder instead of a file"
    if not os.path.lexists(path):
        return "no such file"
    return "a link that leads nowhere" if os.path.islink(path) else "not a regular file"  # noqa: PTH114


class DiskContents:
    """Files of a folder; a name may also be an absolute path."""

    def __init__(self, root: Path, names: Names) -> None:
        self._root = str(root)
        self._names = names

    def name(self, row: int) -> str:
        """The file's path."""
        return os.path.join(self._root, self._names[row])  # noqa: PTH118 (a Path costs ten times as much)

    def read(self, row: int) -> bytes:
        """The file's bytes; DataError if it is missing, unreadable or too large for an image."""
        return read_bytes(self.name(row), most=READ_IN_PLACE.entry_bytes)

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each file's content, cached for files whose size and times have not changed."""
        try:
            stamps = [stamp_of(os.stat(self.name(int(row)))) for row in rows]  # noqa: PTH116
        except OSError as error:
            raise DataError(f"{printable(str(error.filename))} cannot be read: {error.strerror}") from error
        if sum(stamp[0] for stamp in stamps) < WORTH_REMEMBERING:
            return digest_all(self.read, rows)
        known = _recalled(Path(self._root))
        keys = [_key(self._names[int(row)], stamp) for row, stamp in zip(rows, stamps, strict=True)]
        fresh = [index for index, key in enumerate(keys) if key not in known]
        if fresh:
            made = digest_all(self.read, rows[fresh])
            values = dict(zip(fresh, (value.tobytes() for value in made), strict=True))
            lasting = {keys[index]: value for index, value in values.items() if settled(stamps[index])}
            pairs = b"".join(key + value for key, value in (known | lasting).items())
            remember("digests", Path(self._root), {"pairs": np.frombuffer(pairs, np.uint8).reshape(-1, 2 * DIGEST_BYTES)})
            known |= {keys[index]: value for index, value in values.items()}
        return np.frombuffer(b"".join(known[key] for key in keys), np.uint8).reshape(-1, DIGEST_BYTES)


class RemoteContents:
    """Files below a folder on a server, each read by one request."""

    def __init__(self, root: Address, files: Mapping[str, Info]) -> None:
        self.names = Names(files)
        self._root = root
        self._stamps_N3 = np.array([info.stamp for info in files.values()], np.int64).reshape(-1, 3)
        self._kept = fraction_kept(int(self._stamps_N3[:, 0].sum()))

    def name(self, row: int) -> str:
        """The file's address."""
        return str(self._root / self.names[row])

    def read(self, row: int) -> bytes:
        """The file's bytes; DataError if it is too large for an image."""
        file, size = self._file(row)
        if size > READ_IN_PLACE.entry_bytes:
            raise DataError(f"{self.name(row)} has {size:,} bytes; the limit is {READ_IN_PLACE.entry_bytes:,}")
        return file.read(0, size)

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each file's content; every file is read."""
        return digest_all(self.read, rows, threads=REMOTE_READS)

    def versions(self, rows: NDArray[np.int64]) -> Digests | None:
        """16 bytes for each file that change when it changes; nothing is read."""
        return version_digests(self._stamps_N3[rows, 1], np.zeros_like(rows), self._stamps_N3[rows, 0])

    def expect(self, rows: Sequence[int]) -> None:
        """Begin to read these files."""
        files = [self._file(row) for row in rows]
        expect([(file, 0, size) for file, size in files if size <= READ_IN_PLACE.entry_bytes])

    def _file(self, row: int) -> tuple[RemoteFile, int]:
        size, version, other = self._stamps_N3[row].tolist()
        return RemoteFile(self._root / self.names[row], (size, version, other), check=False, kept=self._kept), size


def _key(name: str, stamp: tuple[int, int, int]) -> bytes:
    return blake2b(os.fsencode(name) + b"\0" + repr(stamp).encode(), digest_size=DIGEST_BYTES).digest()


def _recalled(root: Path) -> dict[bytes, bytes]:
    stored = (recall("digests", root) or {}).get("pairs")
    if stored is None or stored.dtype != np.uint8 or stored.shape[1:] != (2 * DIGEST_BYTES,):
        return {}
    return {pair[:DIGEST_BYTES].tobytes(): pair[DIGEST_BYTES:].tobytes() for pair in stored}


_REPAIR = "repair these and try again, or describe the images by a CSV with columns path, label and split"
_NO_CLASS = "/"  # no folder has this name


def open_remote_folder(root: Address, files: Mapping[str, Info], *, labelled: bool) -> ImageDataset:
    """The images among the files below a folder on a server, labelled by class folders, or without labels."""
    contents = RemoteContents(root, files)
    if labelled:
        return class_folders(contents, contents.names, where=str(root), faults=Faults(str(root)), left_out=LeftOut())
    left_out = LeftOut()
    rows = np.array(image_rows(contents.names, left_out), np.int64)
    return _unlabelled(contents, rows, [contents.names[row] for row in rows.tolist()], str(root), left_out)


def open_folder(root: Path) -> ImageDataset:
    """The images of a folder of class folders; one error lists everything that is wrong with it."""
    faults, left_out = Faults(str(root)), LeftOut()
    names, folders = walk_images(root, faults, left_out)
    return class_folders(DiskContents(root, names), names, where=str(root), faults=faults, left_out=left_out, folders=folders)


def open_unlabelled(root: Path) -> ImageDataset:
    """All images below a folder, without labels. If its only folders are train, val and test, they are splits."""
    faults, left_out = Faults(str(root)), LeftOut()
    names, _ = walk_images(root, faults, left_out)
    faults.raise_any(hint=_REPAIR)
    return _unlabelled(DiskContents(root, names), np.arange(len(names), dtype=np.int64), list(names), str(root), left_out)


def _unlabelled(contents: Contents, rows: NDArray[np.int64], names: Sequence[str], where: str, left_out: LeftOut) -> ImageDataset:
    if len(names) == 0:
        raise _nothing(where, left_out)
    named = [split_named(name.split("/")[0]) if "/" in name else None for name in names]
    splits = np.array([UNDECLARED if None in named or split is None else split for split in named], np.int8)
    return ImageDataset(
        contents=contents,
        rows=rows,
        table=LabelTable.unknown(len(names)),
        labels=(),
        splits=splits,
        notes=left_out.notes(),
    )


def class_folders(
    contents: Contents,
    names: Names,
    *,
    where: str,
    faults: Faults,
    left_out: LeftOut,
    folders: Sequence[str] = (),
) -> ImageDataset:
    """The images among `names`, labelled by their folders; `folders` are all existing folders, also empty ones.

    Classes are the folders' names, sorted by code point; images are ordered by class, then path. A single folder around everything
    is skipped. If folders declare splits, all splits must have the same classes; only `test` may hold images without class
    folders, as in a competition, which then have no labels.
    """
    rows = image_rows(names, left_out)
    paths = [names[row].split("/") for row in rows]
    if not paths:
        faults.raise_any(hint=_REPAIR)
        raise _nothing(where, left_out)
    around = _wrapping(paths)
    inner = [path[len(around) :] for path in paths]
    declared = _declares_splits(inner, faults)
    depth = 1 if declared else 0
    nameless = _without_classes(inner) if declared else None

    split_of = {top: split for top in {path[0] for path in inner} if (split := split_named(top)) is not None}
    kept: list[tuple[str, str, int, int]] = []  # class, path, row, split
    for row, path in zip(rows, inner, strict=True):
        if nameless is not None and path[0] == nameless:
            kept.append((_NO_CLASS, "/".join(path), row, TEST))
            continue
        if len(path) < depth + 2:
            faults.add("/".join(around + path), "an image outside any class folder")
            continue
        kept.append((path[depth], "/".join(path), row, split_of[path[0]] if declared else UNDECLARED))
    kept.sort()
    classes = list(dict.fromkeys(name for name, _, _, _ in kept if name != _NO_CLASS))
    _check_classes(classes, {(split, name) for name, _, _, split in kept if name != _NO_CLASS}, faults)
    empty = _empty_classes(folders, around, depth, kept_folders={"/".join(path[: depth + 1]) for path in inner})
    if len(classes) == 1 and not faults:
        faults.add(classes[0], "is the only class: a classifier needs two")
    if not classes and not declared:
        raise DataError(
            f"{where} holds {len(paths):,} images and no class folders",
            hint=f"put each class in its own folder; for images without labels, give images:{where}",
        )
    faults.raise_any(hint=_REPAIR)

    code_of = {name: code for code, name in enumerate(classes)} | {_NO_CLASS: UNKNOWN}
    notes = [f"the folder {printable('/'.join(around))} is used as the root"] if around else []
    if empty:
        notes.append(f"class folders without an image are left out: {listed(empty)}")
    if nameless is not None:
        notes.append(f"{printable(nameless)} has no class folders: its images have no labels")
    return ImageDataset(
        contents=contents,
        rows=np.array([row for _, _, row, _ in kept], np.int64),
        table=LabelTable(codes=np.array([code_of[name] for name, _, _, _ in kept], np.int32)),
        labels=tuple(classes),
        splits=np.array([split for _, _, _, split in kept], np.int8),
        notes=(*notes, *left_out.notes()),
    )


def _without_classes(paths: Sequence[Sequence[str]]) -> str | None:
    """The folder of the test images, if none of them is in a class folder."""
    tops = {top for top in {path[0] for path in paths} if split_named(top) == TEST}
    tests = [path for path in paths if path[0] in tops]
    return tests[0][0] if tests and all(len(path) == 2 for path in tests) and len(tests) < len(paths) else None


def _wrapping(paths: Sequence[Sequence[str]]) -> list[str]:
    """The folders, from the outside in, that hold a single folder and no image."""
    around: list[str] = []
    while True:
        depth = len(around)
        first = paths[0][depth]
        alone = all(len(path) > depth + 2 and path[depth] == first for path in paths)
        if not alone or split_named(first) is not None:
            return around
        around.append(first)


def _declares_splits(paths: Sequence[Sequence[str]], faults: Faults) -> bool:
    """Whether the outermost folders are splits (train, val, test) and not classes."""
    tops = Counter(path[0] for path in paths if len(path) > 1)
    # A split holds folders; a class that is called `train` holds images.
    named = {top: split for top in tops if (split := split_named(top)) is not None}
    nested = [top for top in named if all(len(path) > 2 for path in paths if path[0] == top)]
    if not tops or not named:
        return False
    if len(named) == len(tops):
        for split in range(len(SPLITS)):
            same = [top for top, which in named.items() if which == split]
            if len(same) > 1:
                faults.add(" and ".join(same), f"both mean {SPLITS[split]}")
        return True
    for top in sorted(set(tops) - set(named)) if nested else ():
        faults.add(top, f"is beside {nested[0]}, which looks like a split and not like a class")
    return False


def _check_classes(classes: Sequence[str], found: set[tuple[int, str]], faults: Faults) -> None:
    for name in classes:
        if reason := unusable_name(name):
            faults.add(name, reason)
    for first, second in look_alikes(classes):
        faults.add(first, f"is spelled in two Unicode forms ({first!a} and {second!a})")
    for split in sorted({split for split, _ in found} - {UNDECLARED}):
        for name in classes:
            if (split, name) not in found:
                faults.add(f"{SPLITS[split]}/{name}", "this class has no image in this split")


def _empty_classes(folders: Sequence[str], around: Sequence[str], depth: int, *, kept_folders: set[str]) -> list[str]:
    """The class folders without an image."""
    found = []
    start = "".join(f"{name}/" for name in around)
    for folder in sorted(folders):
        inside = folder.removeprefix(start)
        if folder.startswith(start) and inside.count("/") == depth and inside not in kept_folders:
            if depth and split_named(inside.split("/")[0]) is None:
                continue  # beside the splits, not inside one
            found.append(folder)
    return found


def _nothing(where: str, left_out: LeftOut) -> DataError:
    found = left_out.notes()
    return DataError(
        f"{printable(where)} holds no image" + (f" ({found[0]})" if found else ""),
        hint="images are expected at <folder>/<class>/<image>, as .jpg, .png, .webp, .bmp, .gif, .tif, .npy or .dcm files",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """An image of a list: its path relative to the dataset's folder, its class, and its declared split."""

    path: str
    code: int
    split: int = UNDECLARED


def from_files(
    root: Path, rows: Sequence[FileRow], labels: Sequence[str], *, where: str, notes: Sequence[str] = ()
) -> ImageDataset:
    """The files of these rows below `root`, in their order; one error names the missing ones."""
    faults = Faults(where)
    for row in rows:
        reason = unreadable(os.path.join(root, row.path))  # noqa: PTH118 (asked a hundred thousand times)
        if reason is not None:
            faults.add(row.path, reason)
        elif not 0 <= row.code < len(labels):
            faults.add(row.path, f"class {row.code} is outside 0 to {len(labels) - 1}")
    if not rows:
        faults.add(".", "lists no image")
    faults.raise_any()
    return ImageDataset(
        contents=DiskContents(root, Names(row.path for row in rows)),
        rows=np.arange(len(rows), dtype=np.int64),
        table=LabelTable(codes=np.array([row.code for row in rows], np.int32)),
        labels=tuple(labels),
        splits=np.array([row.split for row in rows], np.int8),
        notes=tuple(notes),
    )


# --- files about images: masks, lists and boxes ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """The files of a folder or of a zip archive: `rows` of the images among them."""

    contents: Contents
    names: Sequence[str]
    rows: Sequence[int]
    path: Path

    @classmethod
    def open(cls, path: Path, faults: Faults, left_out: LeftOut) -> Place:
        """A folder, searched for images, or a zip."""
        if path.is_dir():
            names, _ = walk_images(path, faults, left_out)
            return cls(contents=DiskContents(path, names), names=list(names), rows=range(len(names)), path=path)
        if not path.exists():
            raise DataError(f"{printable(str(path))} does not exist")
        contents = ZipContents(read_zip_index(path))
        rows = image_rows(contents.index.names, left_out)
        return cls(contents=contents, names=list(contents.index.names), rows=rows, path=path)

    def text(self, name: str) -> str | None:
        """The text of the file of that name, or None; in a zip it may lie inside a single folder around everything."""
        where = f"{self.path}/{name}"
        if self.path.is_dir():
            return as_text(read_bytes(self.path / name), where) if (self.path / name).is_file() else None
        found = [row for row, member in enumerate(self.names) if member == name or member.partition("/")[2] == name]
        return as_text(self._member(found[0]), where) if len(found) == 1 else None

    def files(self, ending: str) -> list[str]:
        """The sorted paths of all files with this ending, upper or lower case, that are not hidden."""
        if self.path.is_dir():
            found = (
                (Path(folder) / name).relative_to(self.path).as_posix()
                for folder, _, names in os.walk(self.path)
                for name in names
                if name.lower().endswith(ending)
            )
        else:
            found = (name for name in self.names if name.lower().endswith(ending))
        return sorted(name for name in found if not is_hidden(name))

    def read(self, name: str, *, most: int) -> bytes:
        """The bytes of the file that `files` names; DataError if it has more than `most`."""
        if self.path.is_dir():
            return read_bytes(self.path / name, most=most)
        content = self._member(self.names.index(name))
        if len(content) > most:
            raise DataError(f"{printable(f'{self.path}/{name}')} has {len(content):,} bytes; the limit is {most:,}")
        return content

    def _member(self, row: int) -> bytes:
        content = self.contents.read(row)
        assert isinstance(content, bytes), "a member of a zip is bytes"
        return content


def read_settings(path: Path, names: Sequence[str]) -> dict[str, object]:
    """The settings of masks.json or boxes.json: a JSON object with some of these names; `classes` is None if it is not there."""
    try:
        found = json.loads(as_text(read_bytes(path), str(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {str(error)[:100]}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} must be a JSON object with {', '.join(names)}")
    for key in found:
        if key not in names:
            raise DataError(f"{path} has no setting {printable(str(key))}", hint=did_you_mean(str(key), list(names)))
    return {"classes": None, **found}
