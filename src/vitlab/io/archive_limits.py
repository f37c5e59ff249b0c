"""What an archive may hold, and what no honest archive does."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitlab.errors import DataError, at_least
from vitlab.io.names import printable

_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """What a zip or tar archive may ask of the machine before it is refused, each limit named when it is met.

    `entries` is the number of files and folders in it; `entry_bytes` the size of one file once unpacked; `total_bytes` that
    of all of them, where they are unpacked to disk; `ratio` is how many times larger than the archive its content may be,
    asked only beyond 16 MiB: images hardly shrink, bombs shrink a thousand times.
    """

    entries: int = 500_000
    entry_bytes: int = 16 * _GIB
    total_bytes: int = 256 * _GIB
    ratio: float = 100.0

    def __post_init__(self) -> None:
        at_least("entries", self.entries, 1)
        at_least("entry_bytes", self.entry_bytes, 1)
        at_least("total_bytes", self.total_bytes, 1)
        at_least("ratio", self.ratio, 1)


READ_IN_PLACE = ArchiveLimits(entries=2_000_000, entry_bytes=256 * _MIB)
"""For archives that are read where they are: ImageNet in one file fits, and no single image fills the memory."""


# What no honest archive holds: names that lead out of it, and content a thousand times its size.

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
        raise DataError(f"{archive} is refused: '{printable(name[:200])}' is {reason}")
    return "/".join(part for part in parts if part not in ("", "."))


def check_ratio(content: int, archive: int, limits: ArchiveLimits, path: Path) -> None:
    """DataError where `content` bytes out of `archive` bytes are more than images can have been packed to."""
    if content > _SMALL and content > limits.ratio * archive:
        raise DataError(
            f"{path} is refused: {archive:,} bytes claim to unpack to {content:,}; the limit is {limits.ratio:g} times (ratio)"
        )


# Deflated bytes unpacked a little at a time, so that nothing can unpack to more than was asked for.

MOST_INFLATED = 1032
"""Times: the most that deflate can unpack one byte to, so that a header that claims more lies."""

RAW, ZLIB, GZIP = -15, 15, 31


def inflated(chunks: Iterator[bytes], *, wrapping: int, most: int) -> Iterator[bytes]:
    """The unpacked bytes of a stream, at most `most` at a time; zlib.error where it is damaged or does not end.

    `wrapping` is RAW, ZLIB or GZIP. What follows the end of the stream is not looked at.
    """
    inflate = zlib.decompressobj(wrapping)
    for chunk in chunks:
        packed = chunk
        while not inflate.eof:
            data = inflate.decompress(packed, most)
            packed = inflate.unconsumed_tail
            if data:
                yield data
            if not packed and len(data) < most:
                break
        if inflate.eof:
            return
    raise zlib.error("the compressed stream does not end")
