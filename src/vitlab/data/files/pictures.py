"""Which names in a folder or an archive are pictures, and what is left out and counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from vitlab.data.files.names import shown

# Every name that says "picture", whether or not the decoder takes it: a refused picture is heard of, a skipped one is not.
PICTURE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".ppm", ".pgm"}
)
_HIDDEN = re.compile(r"(?:^|/)(?:\.|(?:thumbs\.db|desktop\.ini|__macosx)(?:/|$))", re.IGNORECASE)


def is_picture(name: str) -> bool:
    """Whether the name's ending is a picture's, in either case."""
    dot = name.rfind(".")
    return dot > 0 and name[dot:].lower() in PICTURE_SUFFIXES


def is_hidden(name: str) -> bool:
    """Whether a file or one of its folders is hidden, or the debris of a desktop (.DS_Store, Thumbs.db, __MACOSX/)."""
    return _HIDDEN.search(name) is not None


class LeftOut:
    """Counts the files of a source that are not used, to say so once: nothing is skipped in silence."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, name: str, reason: str | None = None, *, count: int = 1) -> None:
        """Count files under `reason`, or as hidden, or under their ending."""
        suffix = PurePosixPath(name).suffix.lower()
        self._counts[reason or ("hidden" if is_hidden(name) else suffix or "without an ending")] += count

    def notes(self) -> tuple[str, ...]:
        """One sentence, or no sentence where nothing was left out."""
        if not self._counts:
            return ()
        kinds = ", ".join(f"{count:,} {shown(kind)}" for kind, count in self._counts.most_common())
        return (f"{self._counts.total():,} files left out that are no pictures: {kinds}",)


def picture_rows(names: Iterable[str], left_out: LeftOut) -> list[int]:
    """The numbers of the names that are pictures; the others are counted."""
    rows = []
    for row, name in enumerate(names):
        if is_picture(name) and not is_hidden(name):
            rows.append(row)
        else:
            left_out.add(name)
    return rows
