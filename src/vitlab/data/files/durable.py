"""Small writes that survive a power cut, and what is said where a disk is full."""

from __future__ import annotations

import errno
import os
import shutil
from io import FileIO
from pathlib import Path

from vitlab.errors import DataError

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""What the system calls a disk, a quota or a file that can grow no more."""


def write_all(file: FileIO, data: bytes) -> None:
    """Append all of it. The file has no buffer, so a full disk is heard of here and not once more when it is closed."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def write_text(path: Path, text: str) -> None:
    """A small text file, whole or not at all, and on disk when this returns."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """A small file, whole or not at all, and on disk when this returns."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as fault:
        partial.unlink(missing_ok=True)
        raise unwritable(path, fault) from fault


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unwritable(path: Path, fault: OSError) -> DataError:
    """The error of a file that could not be written, with the room that is left where that is why."""
    if fault.errno not in FULL:
        return DataError(f"{path} cannot be written: {fault.strerror}")
    free = shutil.disk_usage(path.parent).free
    return DataError(
        f"no room for {path.name} in {path.parent}: {free:,} bytes are free",
        hint="make room and run this again: it goes on from where it stopped",
    )
