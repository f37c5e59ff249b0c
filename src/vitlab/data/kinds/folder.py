"""Pictures in class folders (`root/<class>/...`, or `root/train/<class>/...` and so on), on disk or in an archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitlab.data.files.disk import DiskContents, walk_pictures
from vitlab.data.files.names import Names, shown
from vitlab.data.files.pictures import LeftOut, picture_rows
from vitlab.data.kinds.offenders import Offenders
from vitlab.data.labels import UNKNOWN, LabelTable, look_alikes, unusable_name
from vitlab.data.listed import PARTS, UNDECLARED, Contents, ListedSource
from vitlab.data.split import TEST, part_called
from vitlab.errors import DataError

_REPAIR = "repair these and start again; a CSV with columns path, label and split says it in another way"
_NO_CLASS = "/"  # no folder can be called that


def open_folder(root: Path) -> ListedSource:
    """The pictures of a folder on disk; one error lists everything that is wrong with it."""
    offenders, left_out = Offenders(str(root)), LeftOut()
    names, folders = walk_pictures(root, offenders, left_out)
    return class_folders(DiskContents(root, names), names, where=str(root), offenders=offenders, left_out=left_out, folders=folders)


def open_unlabelled(root: Path) -> ListedSource:
    """Every picture under a folder, without labels; folders called train, val and test, where there are only these, are parts."""
    offenders, left_out = Offenders(str(root)), LeftOut()
    names, _ = walk_pictures(root, offenders, left_out)
    offenders.refuse(hint=_REPAIR)
    if len(names) == 0:
        raise _nothing(str(root), left_out)
    told = [part_called(name.split("/")[0]) if "/" in name else None for name in names]
    parts = np.array([UNDECLARED if None in told or part is None else part for part in told], np.int8)
    return ListedSource(
        contents=DiskContents(root, names),
        rows=np.arange(len(names), dtype=np.int64),
        table=LabelTable.unknown(len(names)),
        labels=(),
        parts=parts,
        notes=left_out.notes(),
    )


def class_folders(
    contents: Contents,
    names: Names,
    *,
    where: str,
    offenders: Offenders,
    left_out: LeftOut,
    folders: Sequence[str] = (),
) -> ListedSource:
    """A source of the pictures among `names`, labelled by their folders; `folders` are those known to exist, empty or not.

    Classes are the folders' names sorted by code point, and pictures are in the order of class, then path. A folder that
    stands alone around everything is passed through. Parts declared by folders must have the same classes, except that `test`
    may hold pictures and no class folders at all: they have no labels then, as in a competition.
    """
    rows = picture_rows(names, left_out)
    paths = [names[row].split("/") for row in rows]
    if not paths:
        offenders.refuse(hint=_REPAIR)
        raise _nothing(where, left_out)
    around = _wrapping(paths)
    inner = [path[len(around) :] for path in paths]
    declared = _declares_parts(inner, offenders)
    depth = 1 if declared else 0
    nameless = _without_classes(inner) if declared else None

    part_of = {top: part for top in {path[0] for path in inner} if (part := part_called(top)) is not None}
    kept: list[tuple[str, str, int, int]] = []  # class, path, row, part
    for row, path in zip(rows, inner, strict=True):
        if nameless is not None and path[0] == nameless:
            kept.append((_NO_CLASS, "/".join(path), row, TEST))
            continue
        if len(path) < depth + 2:
            offenders.add("/".join(around + path), "a picture outside any class folder")
            continue
        kept.append((path[depth], "/".join(path), row, part_of[path[0]] if declared else UNDECLARED))
    kept.sort()
    classes = list(dict.fromkeys(name for name, _, _, _ in kept if name != _NO_CLASS))
    _check_classes(classes, {(part, name) for name, _, _, part in kept if name != _NO_CLASS}, offenders)
    _check_empty(folders, around, depth, kept_folders={"/".join(path[: depth + 1]) for path in inner}, offenders=offenders)
    if len(classes) == 1 and not offenders:
        offenders.add(classes[0], "is the only class: a classifier needs two")
    if not classes and not declared:
        raise DataError(
            f"{where} holds {len(paths):,} pictures and no class folders",
            hint=f"put each class in a folder of its own; or, to use pictures without labels, say pictures:{where}",
        )
    offenders.refuse(hint=_REPAIR)

    code_of = {name: code for code, name in enumerate(classes)} | {_NO_CLASS: UNKNOWN}
    notes = [f"the folder {shown('/'.join(around))} is taken as the root"] if around else []
    if nameless is not None:
        notes.append(f"{shown(nameless)} has no class folders: its pictures have no labels")
    return ListedSource(
        contents=contents,
        rows=np.array([row for _, _, row, _ in kept], np.int64),
        table=LabelTable(codes=np.array([code_of[name] for name, _, _, _ in kept], np.int32)),
        labels=tuple(classes),
        parts=np.array([part for _, _, _, part in kept], np.int8),
        notes=(*notes, *left_out.notes()),
    )


def _without_classes(paths: Sequence[Sequence[str]]) -> str | None:
    """The folder of the test pictures where none of them is in a class folder."""
    tops = {top for top in {path[0] for path in paths} if part_called(top) == TEST}
    tests = [path for path in paths if path[0] in tops]
    return tests[0][0] if tests and all(len(path) == 2 for path in tests) and len(tests) < len(paths) else None


def _wrapping(paths: Sequence[Sequence[str]]) -> list[str]:
    """The folders around everything that hold only one folder and no picture, from the outside in."""
    around: list[str] = []
    while True:
        depth = len(around)
        first = paths[0][depth]
        alone = all(len(path) > depth + 2 and path[depth] == first for path in paths)
        if not alone or part_called(first) is not None:
            return around
        around.append(first)


def _declares_parts(paths: Sequence[Sequence[str]], offenders: Offenders) -> bool:
    """Whether the outermost folders are parts (train, val, test) and not classes."""
    tops = Counter(path[0] for path in paths if len(path) > 1)
    # A part holds folders; a class that happens to be called `train` holds pictures.
    named = {top: part for top in tops if (part := part_called(top)) is not None}
    nested = [top for top in named if all(len(path) > 2 for path in paths if path[0] == top)]
    if not tops or not named:
        return False
    if len(named) == len(tops):
        for part in range(len(PARTS)):
            twins = [top for top, which in named.items() if which == part]
            if len(twins) > 1:
                offenders.add(" and ".join(twins), f"both say {PARTS[part]}")
        return True
    for top in sorted(set(tops) - set(named)) if nested else ():
        offenders.add(top, f"stands beside {nested[0]}, which looks like a part and not like a class")
    return False


def _check_classes(classes: Sequence[str], found: set[tuple[int, str]], offenders: Offenders) -> None:
    for name in classes:
        if reason := unusable_name(name):
            offenders.add(name, reason)
    for first, second in look_alikes(classes):
        offenders.add(first, f"is spelled in two ways of Unicode ({first!a} and {second!a})")
    for part in sorted({part for part, _ in found} - {UNDECLARED}):
        for name in classes:
            if (part, name) not in found:
                offenders.add(f"{PARTS[part]}/{name}", "this class has no picture in this part")


def _check_empty(
    folders: Sequence[str], around: Sequence[str], depth: int, *, kept_folders: set[str], offenders: Offenders
) -> None:
    """A class folder in which nothing is found is more likely a mistake than a wish."""
    start = "".join(f"{name}/" for name in around)
    for folder in sorted(folders):
        inside = folder.removeprefix(start)
        if folder.startswith(start) and inside.count("/") == depth and inside not in kept_folders:
            if depth and part_called(inside.split("/")[0]) is None:
                continue  # beside the parts, not in one
            offenders.add(folder, "a class folder without a picture")


def _nothing(where: str, left_out: LeftOut) -> DataError:
    found = left_out.notes()
    return DataError(
        f"{shown(where)} holds no picture" + (f" ({found[0]})" if found else ""),
        hint="a folder of pictures is <folder>/<class>/<picture>, with .jpg, .png, .webp, .bmp or .gif files",
    )
