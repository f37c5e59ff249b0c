"""What no honest archive holds: names that lead out of it, and content a thousand times its size."""

from __future__ import annotations

import re
from pathlib import Path

from vitlab.config.source import ArchiveLimits
from vitlab.data.files.names import shown
from vitlab.errors import DataError

_SMALL = 16 * 2**20  # bytes; below that no ratio hurts
_PLAIN = re.compile(r"(?:[\w-][\w .-]*/)*[\w-][\w .-]*", re.ASCII)
_DRIVE = re.compile(r"[A-Za-z]:")
_LONGEST = 4096  # bytes of a path on Linux


def checked_name(name: str, archive: Path) -> str:
    """A member's name without its idle parts (`./a//b` is `a/b`).

    DataError where it is empty, absolute, climbs out of the archive or cannot be a path.
    """
    if len(name) < 256 and _PLAIN.fullmatch(name):
        return name  # nearly all are, and there may be a million
    parts = name.replace("\\", "/").split("/")
    reason = None
    if not name:
        reason = "an empty name"
    elif parts[0] == "" or _DRIVE.match(name):
        reason = "an absolute path"
    elif ".." in parts:
        reason = "a path that climbs out of the archive"
    elif "\0" in name or "\\" in name:
        reason = "a name with a letter that no path may hold"
    elif len(name.encode("utf-8", "surrogateescape")) > _LONGEST:
        reason = f"a name of more than {_LONGEST:,} bytes"
    if reason:
        raise DataError(f"{archive} is refused: '{shown(name[:200])}' is {reason}")
    return "/".join(part for part in parts if part not in ("", "."))


def check_ratio(content: int, archive: int, limits: ArchiveLimits, path: Path) -> None:
    """DataError where `content` bytes out of `archive` bytes are more than pictures can have been packed to."""
    if content > _SMALL and content > limits.ratio * archive:
        raise DataError(
            f"{path} is refused: {archive:,} bytes claim to unpack to {content:,}; the limit is {limits.ratio:g} times (ratio)"
        )
