"""A compressed file that is read here and there, unpacked once into the user's cache folder.

Nothing can be read from the middle of a gzip stream. So it is unpacked to disk a little at a time, its checksum verified, and
what comes out is kept until the compressed file changes. It may be removed at any time, and is then made again.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import zlib
from hashlib import blake2b
from pathlib import Path

from vitlab.config.source import ArchiveLimits
from vitlab.data.files.archive_names import check_ratio
from vitlab.data.files.cache import cache_folder, stamp_of
from vitlab.data.files.durable import FULL
from vitlab.data.files.inflate import MOST_INFLATED
from vitlab.data.files.names import shown
from vitlab.errors import DataError

_CHUNK = 2**20
_LIMITS = ArchiveLimits(ratio=MOST_INFLATED)  # constant labels shrink as far as deflate goes


def unpacked(path: Path, limits: ArchiveLimits = _LIMITS) -> Path:
    """Where the content of `path`, a `.gz` file, lies unpacked: made on the first call, or after the file has changed."""
    status = path.stat()
    place = blake2b(os.fsencode(path.absolute()), digest_size=16).hexdigest()
    version = blake2b(repr(stamp_of(status)[:2]).encode(), digest_size=8).hexdigest()
    folder = cache_folder() / "unpacked" / place
    target = folder / f"{version}-{path.name.removesuffix('.gz')}"
    if target.is_file():
        return target
    by_hand = f"or unpack it yourself: gunzip --keep {path}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for former in folder.iterdir():
            former.unlink()  # of a file that has changed since, or of work that was killed
        handle, partial = tempfile.mkstemp(dir=folder, prefix=".partial-")
    except OSError as error:
        raise DataError(
            f"{shown(str(folder))} cannot be written: {error.strerror}", hint=f"set XDG_CACHE_HOME, {by_hand}"
        ) from error
    try:
        with os.fdopen(handle, "wb") as out:
            _copy(path, status.st_size, out.fileno(), limits)
        os.replace(partial, target)  # noqa: PTH105
    except OSError as error:
        if error.errno not in FULL:
            raise DataError(f"{shown(str(path))} cannot be unpacked: {error.strerror or error}") from error
        free = shutil.disk_usage(folder).free
        raise DataError(
            f"no room to unpack {shown(path.name)} into {shown(str(folder))}: {free:,} bytes are free",
            hint=f"set XDG_CACHE_HOME to a larger disk, {by_hand}",
        ) from error
    finally:
        Path(partial).unlink(missing_ok=True)
    return target


def _copy(path: Path, size: int, out: int, limits: ArchiveLimits) -> None:
    """Unpack into an open file, counting what really comes out."""
    done = 0
    with gzip.open(path) as packed:
        while True:
            try:
                chunk = packed.read(_CHUNK)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(f"{shown(str(path))} is damaged or cut off after {done:,} unpacked bytes: {error}") from error
            if not chunk:
                return
            done += len(chunk)
            check_ratio(done, size, limits, path)
            if done > limits.total_bytes:
                raise DataError(f"{shown(str(path))} unpacks to more than {limits.total_bytes:,} bytes, the limit (total_bytes)")
            view = memoryview(chunk)
            while view:
                view = view[os.write(out, view) :]
