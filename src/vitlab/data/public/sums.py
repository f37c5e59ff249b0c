"""Checksums of downloaded files: as published, or as the first download of a file recorded them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from vitlab.data.care.progress import Tell, silent
from vitlab.errors import DataError

_CHUNK = 2**20


def sum_of(path: Path, algorithm: str, *, tell: Tell = silent) -> str:
    """The checksum of a file in hexadecimal digits; `algorithm` is sha256 or md5."""
    made = hashlib.new(algorithm, usedforsecurity=algorithm != "md5")
    total, done = path.stat().st_size, 0
    what = f"verifying {path.name.removeprefix('.').removesuffix('.partial')}"
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            made.update(chunk)
            done += len(chunk)
            tell(what, done, total)
    return made.hexdigest()


def fault_of(path: Path, checksum: str | None, *, size: int | None, tell: Tell = silent) -> str | None:
    """What is wrong with a file, in words; None where its bytes are the ones they should be.

    `checksum` is `sha256:...` or `md5:...`; None asks for the size alone.
    """
    found = path.stat().st_size
    if size is not None and found != size:
        return f"it has {found:,} bytes, and should have {size:,}"
    if checksum is None:
        return None
    algorithm, _, digest = checksum.partition(":")
    seen = sum_of(path, algorithm, tell=tell)
    return None if seen == digest else f"its {algorithm} is {seen}, and should be {digest}"


def recorded(target: Path) -> str | None:
    """The checksum that the first download of a file without a published one left beside it."""
    note = _note(target)
    if not note.is_file():
        return None
    word = note.read_text(encoding="utf-8", errors="replace").partition(" ")[0].strip()
    if not re.fullmatch(r"[0-9a-f]{64}", word):
        raise DataError(f"{note} holds no SHA-256", hint="remove it, and the next download will be taken as it comes")
    return f"sha256:{word}"


def record(target: Path, digest: str) -> None:
    """Keep a file's SHA-256 beside it, in the form of `sha256sum`, so that later downloads are held to it."""
    _note(target).write_text(f"{digest}  {target.name}\n", encoding="utf-8")


def _note(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")
