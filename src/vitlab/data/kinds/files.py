"""A source of files that some list names, each with its class and part."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitlab.data.files.disk import DiskContents, unreadable
from vitlab.data.files.names import Names
from vitlab.data.kinds.offenders import Offenders
from vitlab.data.labels import LabelTable
from vitlab.data.listed import UNDECLARED, ListedSource


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """A picture's path relative to its set's folder, its class, and the part it is declared to be of."""

    path: str
    code: int
    part: int = UNDECLARED


def from_files(
    root: Path, rows: Sequence[FileRow], labels: Sequence[str], *, where: str, notes: Sequence[str] = ()
) -> ListedSource:
    """The files of these rows under `root`, in their order; one error names those that are not there."""
    offenders = Offenders(where)
    for row in rows:
        reason = unreadable(os.path.join(root, row.path))  # noqa: PTH118 (asked a hundred thousand times)
        if reason is not None:
            offenders.add(row.path, reason)
        elif not 0 <= row.code < len(labels):
            offenders.add(row.path, f"class {row.code} is outside 0 to {len(labels) - 1}")
    if not rows:
        offenders.add(".", "lists no picture")
    offenders.refuse()
    return ListedSource(
        contents=DiskContents(root, Names(row.path for row in rows)),
        rows=np.arange(len(rows), dtype=np.int64),
        table=LabelTable(codes=np.array([row.code for row in rows], np.int32)),
        labels=tuple(labels),
        parts=np.array([row.part for row in rows], np.int8),
        notes=tuple(notes),
    )
