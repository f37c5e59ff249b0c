"""Files of a folder as contents: walked once, read by name, hashed once for as long as they stay the same."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.config.source import READ_IN_PLACE
from vitlab.data.files.cache import recall, remember, settled, stamp_of
from vitlab.data.files.digests import DIGEST_BYTES, WORTH_REMEMBERING, Digests, digest_all
from vitlab.data.files.names import Names, shown
from vitlab.data.files.pictures import LeftOut, is_hidden, is_picture
from vitlab.data.kinds.offenders import Offenders
from vitlab.errors import DataError


def walk_pictures(root: Path, offenders: Offenders, left_out: LeftOut) -> tuple[Names, list[str]]:
    """The paths, relative to `root` and sorted, of every picture under it, and of every folder; links are followed.

    A picture that cannot be read, is no ordinary file or leads nowhere is an offender; so is a folder that is reached twice,
    whether a link leads in a circle or to a folder of its own.
    """
    found: list[str] = []
    folders: list[str] = []
    seen: dict[tuple[int, int], str] = {}
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            status = os.stat(root / folder)  # noqa: PTH116
            entries = list(os.scandir(root / folder))
        except OSError as error:
            offenders.add(folder or ".", f"a folder that cannot be read ({error.strerror})")
            continue
        first = seen.setdefault((status.st_dev, status.st_ino), folder)
        if first != folder:
            offenders.add(folder, f"a link to a folder that is already read ({shown(first or '.')})")
            continue
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if is_hidden(entry.name):
                left_out.add(entry.name)
            elif os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():  # noqa: PTH112
                waiting.append(name)
                folders.append(name)
            elif not is_picture(entry.name):
                left_out.add(entry.name)
            elif (reason := unreadable(entry.path)) is not None:
                offenders.add(name, reason)
            else:
                found.append(name)
    return Names(sorted(found)), folders


def unreadable(path: str) -> str | None:
    """Why this is not a file that can be read, or None where it is."""
    if os.path.isfile(path):  # noqa: PTH113 (asked a million times)
        return None if os.access(path, os.R_OK) else "may not be read (permission denied)"
    if os.path.isdir(path):  # noqa: PTH112
        return "a folder, where a file is meant"
    if not os.path.lexists(path):
        return "no such file"
    return "a link that leads nowhere" if os.path.islink(path) else "no ordinary file"  # noqa: PTH114


class DiskContents:
    """Files by name under a folder; a name may also be an absolute path."""

    def __init__(self, root: Path, names: Names) -> None:
        self._root = str(root)
        self._names = names

    def name(self, row: int) -> str:
        """The file's path."""
        return os.path.join(self._root, self._names[row])  # noqa: PTH118 (a Path costs ten times as much)

    def read(self, row: int) -> bytes:
        """The file's bytes; DataError where it has gone, cannot be read or is larger than a picture may be."""
        path = self.name(row)
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                size = os.fstat(file.fileno()).st_size
                if size > READ_IN_PLACE.entry_bytes:
                    limit = READ_IN_PLACE.entry_bytes
                    raise DataError(f"{shown(path)} has {size:,} bytes; a picture may have {limit:,} (entry_bytes)")
                return file.read()
        except OSError as error:
            raise DataError(f"{shown(path)} cannot be read: {error.strerror}") from error

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each file's content; remembered for files whose size and times have not changed."""
        try:
            stamps = [stamp_of(os.stat(self.name(int(row)))) for row in rows]  # noqa: PTH116
        except OSError as error:
            raise DataError(f"{shown(str(error.filename))} cannot be read: {error.strerror}") from error
        if sum(stamp[0] for stamp in stamps) < WORTH_REMEMBERING:
            return digest_all(self.read, rows)
        known = _recalled(Path(self._root))
        keys = [_key(self._names[int(row)], stamp) for row, stamp in zip(rows, stamps, strict=True)]
        fresh = [index for index, key in enumerate(keys) if key not in known]
        if fresh:
            made = digest_all(self.read, rows[fresh])
            values = dict(zip(fresh, (value.tobytes() for value in made), strict=True))
            lasting = {keys[index]: value for index, value in values.items() if settled(stamps[index])}
            pairs = b"".join(key + value for key, value in (known | lasting).items())
            remember("digests", Path(self._root), {"pairs": np.frombuffer(pairs, np.uint8).reshape(-1, 2 * DIGEST_BYTES)})
            known |= {keys[index]: value for index, value in values.items()}
        return np.frombuffer(b"".join(known[key] for key in keys), np.uint8).reshape(-1, DIGEST_BYTES)


def _key(name: str, stamp: tuple[int, int, int]) -> bytes:
    return blake2b(os.fsencode(name) + b"\0" + repr(stamp).encode(), digest_size=DIGEST_BYTES).digest()


def _recalled(root: Path) -> dict[bytes, bytes]:
    stored = (recall("digests", root) or {}).get("pairs")
    if stored is None or stored.dtype != np.uint8 or stored.shape[1:] != (2 * DIGEST_BYTES,):
        return {}
    return {pair[:DIGEST_BYTES].tobytes(): pair[DIGEST_BYTES:].tobytes() for pair in stored}
