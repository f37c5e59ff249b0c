"""KITTI's object pictures as they are published, for VTAB's task: how far ahead is the closest vehicle?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitlab.data.files.blocks import find_file
from vitlab.data.files.names import shown
from vitlab.data.kinds.files import FileRow, from_files
from vitlab.data.kinds.vtab_labels import KITTI_CLASSES, kitti_class
from vitlab.data.listed import UNDECLARED, ListedSource
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError

_PERCENT = 10  # of the drives, for val and for test
_SEED = 123


def open_kitti(folder: Path) -> ListedSource:
    """The labelled pictures in the order of their numbers; `folder` holds `training`, or what the archives were unpacked to.

    Where the development kit's `mapping/train_rand.txt` and `train_mapping.txt` lie there too, parts are declared by drive as
    TensorFlow Datasets does (and so VTAB): no drive is in two of them. Without it no part is declared.
    """
    labels = _folder(folder, "label_2", "*.txt")
    pictures = _folder(folder, "image_2", "*.png")
    part_of = _parts(folder)
    rows = []
    for file in sorted(labels.glob("*.txt")):
        try:
            code = kitti_class(line for line in file.read_text(encoding="ascii").splitlines() if line.strip())
        except (OSError, ValueError, IndexError) as error:
            raise DataError(f"{shown(str(file))} is no label file of KITTI") from error
        rows.append(FileRow(path=f"{file.stem}.png", code=code, part=_part_of(file, part_of)))
    notes = () if part_of else ("without mapping/ of the development kit pictures of one drive can be in two parts",)
    return from_files(pictures, rows, KITTI_CLASSES, where=str(folder), notes=notes)


def _folder(folder: Path, name: str, pattern: str) -> Path:
    for place in (f"training/{name}", f"*/training/{name}", name):
        for found in sorted(folder.glob(place)):
            if next(found.glob(pattern), None) is not None:
                return found
    raise DataError(
        f"{shown(str(folder))} holds no training/{name} with {pattern} files", hint="unpack KITTI's object archives there"
    )


def _part_of(file: Path, part_of: list[int]) -> int:
    if not part_of:
        return UNDECLARED
    if not file.stem.isdigit() or int(file.stem) >= len(part_of):
        raise DataError(f"the development kit maps {len(part_of):,} pictures, and {shown(file.name)} is none of them")
    return part_of[int(file.stem)]


def _parts(folder: Path) -> list[int]:
    """The part of each picture by its number; empty where there is no development kit."""
    order = find_file(folder, ["mapping/train_rand.txt", "devkit_object/mapping/train_rand.txt"])
    frames = find_file(folder, ["mapping/train_mapping.txt", "devkit_object/mapping/train_mapping.txt"])
    if order is None or frames is None:
        return []
    try:
        lines = frames.read_text(encoding="ascii").splitlines()
        # Picture i is frame order[i] of the mapping, counted from 1; its line is date, drive, frame.
        numbers = [int(word) - 1 for word in order.read_text(encoding="ascii").split(",")]
        if min(numbers) < 0:
            raise ValueError("lines are counted from 1")
        drive_of = [lines[number].split(" ")[1] for number in numbers]
    except (OSError, ValueError, IndexError) as error:
        raise DataError(f"{shown(str(order.parent))} does not map pictures to drives as KITTI's development kit does") from error
    # TensorFlow Datasets draws drives by numpy's old generator, which is frozen for good: the same seed, the same drives.
    drives = sorted(set(drive_of))
    share = max(1, _PERCENT * len(drives) // 100)
    if len(drives) < 3:
        raise DataError(f"{shown(str(order.parent))} knows {len(drives)} drives, which cannot be divided in three")
    draw = np.random.RandomState(_SEED)
    test = set(draw.choice(drives, share, replace=False).tolist())
    val = set(draw.choice(sorted(set(drives) - test), share, replace=False).tolist())
    return [TEST if drive in test else VAL if drive in val else TRAIN for drive in drive_of]
