"""A cache of arrays in the user's cache folder, valid until the file they were made from changes."""

from __future__ import annotations

import os
import tempfile
import time
from hashlib import blake2b
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from vitlab.io.address import Address, Place

Arrays = dict[str, NDArray[np.generic]]


def cache_folder() -> Path:
    """The cache folder: $XDG_CACHE_HOME/vitlab, else ~/.cache/vitlab."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitlab"


def stamp_of(status: os.stat_result) -> tuple[int, int, int]:
    """What changes when a file changes: its size, and the times (ns) of the last change of content and of any change."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def settled(stamp: tuple[int, int, int]) -> bool:
    """Whether a file was last changed long enough ago (2 s) that another change would change its times."""
    return time.time_ns() - max(stamp[1:]) > 2_000_000_000


def recall(kind: str, path: Place) -> Arrays | None:
    """The cached arrays about `path`, or None if there are none or they are damaged."""
    try:
        with _file(kind, path).open("rb") as file:  # numpy does not close a damaged file
            stored = np.load(file, allow_pickle=False)
            return {name: stored[name] for name in stored.files} if isinstance(stored, NpzFile) else None
    except (OSError, ValueError, EOFError, KeyError, BadZipFile):
        return None


def remember(kind: str, path: Place, arrays: Arrays) -> None:
    """Cache arrays about `path`, atomically.

    If the cache cannot be written (a full disk, no permission), nothing is cached and the work is done again next time.
    """
    file = _file(kind, path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=file.parent, prefix=".partial-")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as out:
            np.savez(out, allow_pickle=False, **arrays)
        os.replace(partial, file)  # noqa: PTH105
    except OSError:
        Path(partial).unlink(missing_ok=True)


def _file(kind: str, path: Place) -> Path:
    place = str(path).encode() if isinstance(path, Address) else os.fsencode(path.absolute())
    key = blake2b(place, digest_size=16).hexdigest()
    return cache_folder() / kind / f"{key}.npz"
