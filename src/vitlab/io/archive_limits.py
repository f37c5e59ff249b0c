"""Limits for zip, tar and gzip files: sizes, names and compression ratios."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from vitlab.errors import DataError, at_least
from vitlab.io.address import Place
from vitlab.io.display import printable

_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """The most that a zip or tar archive may hold; an error names the limit that was exceeded.

    `entries`: files and folders. `entry_bytes`: bytes of one unpacked file. `total_bytes`: bytes of all files, when they are
    unpacked to disk. `ratio`: unpacked bytes over packed bytes, for content above 16 MiB; images hardly shrink, while a zip
    bomb shrinks a thousand times.
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
"""For archives of images that are read in place: ImageNet in one file fits; no single image fills the memory."""

_SMALL = 16 * _MIB  # bytes below which the ratio does not matter
_PLAIN = re.compile(r"(?:[\w-][\w .-]*/)*[\w-][\w .-]*", re.ASCII)
_DRIVE = re.compile(r"[A-Za-z]:")
_LONGEST = 4096  # bytes of a path on Linux


def checked_name(name: str, archive: Place) -> str:
    """A member's name as a plain relative path (`./a//b` becomes `a/b`).

    DataError if it is empty, absolute, leads out of the archive, or cannot be a path.
    """
    if len(name) < 256 and _PLAIN.fullmatch(name):
        return name  # the fast path: nearly all of possibly a million names
    parts = name.replace("\\", "/").split("/")
    reason = None
    if not name:
        reason = "an empty name"
    elif parts[0] == "" or _DRIVE.match(name):
        reason = "an absolute path"
    elif ".." in parts:
        reason = "a path that leads out of the archive"
    elif "\0" in name or "\\" in name:
        reason = "a name with a character that paths cannot contain"
    elif len(name.encode("utf-8", "surrogateescape")) > _LONGEST:
        reason = f"a name of more than {_LONGEST:,} bytes"
    if reason:
        raise DataError(f"{archive} is refused: '{printable(name[:200])}' is {reason}")
    return "/".join(part for part in parts if part not in ("", "."))


def check_ratio(content: int, archive: int, limits: ArchiveLimits, path: Place) -> None:
    """DataError if `archive` packed bytes claim to unpack to implausibly many `content` bytes."""
    if content > _SMALL and content > limits.ratio * archive:
        raise DataError(
            f"{path} looks like a zip bomb: {archive:,} bytes would unpack to {content:,};"
            f" the limit is {limits.ratio:g} times (ratio)"
        )


MOST_INFLATED = 1032
"""The highest compression ratio of deflate. A header that claims a higher one is false."""

RAW, ZLIB, GZIP = -15, 15, 31


def inflated(chunks: Iterator[bytes], *, wrapping: int, most: int) -> Iterator[bytes]:
    """The unpacked bytes of a deflate stream, at most `most` at a time; zlib.error if it is damaged or has no end.

    `wrapping` is RAW, ZLIB or GZIP. Bytes after the end of the stream are ignored.
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
