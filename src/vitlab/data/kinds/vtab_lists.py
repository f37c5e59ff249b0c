"""VTAB-1k as it is passed around: pictures, and train800.txt, val200.txt and test.txt that list them with their class.

These lists hold the published choice of 800 and 200 pictures, which no other form of the data does.
"""

from __future__ import annotations

from pathlib import Path

from vitlab.data.files.names import shown
from vitlab.data.kinds.files import FileRow, from_files
from vitlab.data.listed import ListedSource
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError

LISTS = (("train800.txt", TRAIN), ("val200.txt", VAL), ("test.txt", TEST))


def has_lists(folder: Path) -> bool:
    """Whether the folder holds such lists."""
    return (folder / LISTS[0][0]).is_file()


def open_lists(folder: Path, *, classes: int) -> ListedSource:
    """The pictures of the three lists, in their order; each line is a path and the number of a class, parted by a space."""
    rows = []
    for name, part in LISTS:
        file = folder / name
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{shown(str(file))} cannot be read", hint="a task needs train800.txt, val200.txt and test.txt"
            ) from error
        for number, line in enumerate(lines, start=1):
            path, _, code = line.strip().rpartition(" ")
            if not line.strip():
                continue
            if not path or not code.isascii() or not code.isdigit():
                raise DataError(f"{shown(str(file))}, line {number}, is no path and the number of a class: {shown(line[:80])}")
            rows.append(FileRow(path=path, code=int(code), part=part))
    return from_files(folder, rows, tuple(f"class {number}" for number in range(classes)), where=str(folder))
