"""Safe unpacking of downloaded archives (zip, tar, tar.gz, tar.bz2) and of single .gz files."""

from __future__ import annotations

import bz2
import gzip
import os
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from vitlab.errors import DataError
from vitlab.io.archive_limits import MOST_INFLATED, ArchiveLimits, check_ratio
from vitlab.io.atomic import DISK_FULL
from vitlab.io.cache import cache_folder
from vitlab.io.display import printable
from vitlab.io.files import open_regular, stamp_of
from vitlab.io.tar import BLOCK, FileStream, TarStream, tar_members
from vitlab.io.zip import ZipContents, read_zip_index

_CHUNK = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """The number of unpacked files and their bytes."""

    files: int
    bytes: int


def extract(archive: Path, target: Path, limits: ArchiveLimits | None = None) -> Extracted:
    """Unpack a zip, tar, tar.gz or tar.bz2 archive, recognised by its content, into the new folder `target`.

    Only regular files and folders are written, with default modes. A name that leads out of the folder, a link, a device, a
    duplicate file, a damaged member or an exceeded limit refuses the whole archive; `target` then does not exist.
    """
    limits = limits or ArchiveLimits()
    if not archive.is_file():
        raise DataError(f"{archive} does not exist")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} exists already", hint="remove it, or choose another folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.parent / f".{target.name}.partial-{secrets.token_hex(8)}"
        partial.mkdir()
    except OSError as error:
        raise DataError(f"{target} cannot be created: {error.strerror}") from error
    try:
        done = _write_all(_files(archive, limits), partial, archive, limits)
        partial.replace(target)
    except OSError as error:
        free = shutil.disk_usage(target.parent).free
        raise DataError(f"{archive} cannot be unpacked: {error.strerror or error} ({free:,} bytes are free)") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return done


def _write_all(files: Iterable[tuple[str, Iterator[bytes]]], folder: Path, archive: Path, limits: ArchiveLimits) -> Extracted:
    """Write each file below `folder`, counting the bytes that are really written."""
    count = written = 0
    for name, chunks in files:
        file = folder / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise DataError(f"{archive} is refused: it holds {printable(name)} twice, or as a file and a folder") from error
        with os.fdopen(handle, "wb") as out:
            for chunk in chunks:
                written += len(chunk)
                if written > limits.total_bytes:
                    limit = limits.total_bytes
                    raise DataError(f"{archive} is refused: it unpacks to more than {limit:,} bytes, the limit (total_bytes)")
                out.write(chunk)
        count += 1
    if count == 0:
        raise DataError(f"{archive} holds no file")
    return Extracted(files=count, bytes=written)


def _files(archive: Path, limits: ArchiveLimits) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The name and the bytes of each file of the archive, in its order."""
    with open_regular(archive, error=DataError) as file:
        head = file.read(BLOCK)
        file.seek(0)
        if head[:4] in (b"PK\3\4", b"PK\5\6"):
            yield from _zip_files(archive, limits)
        elif head[:3] == b"\x1f\x8b\x08":
            with gzip.open(file) as unpacked:
                yield from _tar_files(_UnpackedStream(unpacked, archive, limits), archive, limits)
        elif head[:3] == b"BZh":
            with bz2.open(file) as unpacked:
                yield from _tar_files(_UnpackedStream(unpacked, archive, limits), archive, limits)
        elif head[257:262] == b"ustar" or archive.suffix == ".tar":
            yield from _tar_files(FileStream(file.fileno()), archive, limits)
        else:
            raise DataError(f"{archive} is not a zip, tar, tar.gz or tar.bz2 archive")


def _zip_files(archive: Path, limits: ArchiveLimits) -> Iterator[tuple[str, Iterator[bytes]]]:
    index = read_zip_index(archive, limits)
    for kind, count in index.ignored.items():
        raise DataError(f"{archive} is refused: it holds {count:,} members that are a {kind}")
    total = int(index.sizes.sum())
    if total > limits.total_bytes:
        raise DataError(f"{archive} unpacks to {total:,} bytes; the limit is {limits.total_bytes:,} (total_bytes)")
    contents = ZipContents(index)
    for row, name in enumerate(index.names):
        yield name, contents.stream(row)


def _tar_files(stream: TarStream, archive: Path, limits: ArchiveLimits) -> Iterator[tuple[str, Iterator[bytes]]]:
    for member in tar_members(stream, archive, limits):
        if member.kind in ("link", "device"):
            raise DataError(f"{archive} is refused: {printable(member.name)} is a {member.kind}")
        if member.kind == "file":
            yield member.name, _chunks(stream, member.size)


def _chunks(stream: TarStream, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := stream.read(min(size, _CHUNK))):
        size -= len(chunk)
        yield chunk


class _UnpackedStream:
    """A compressed file as a decompressed stream, limited in its compression ratio."""

    def __init__(self, file: gzip.GzipFile | bz2.BZ2File, archive: Path, limits: ArchiveLimits) -> None:
        self._file = file
        self._archive = archive
        self._limits = limits
        self._size = archive.stat().st_size
        self.position = 0

    def read(self, count: int) -> bytes:
        """The next bytes, fewer only at the end."""
        try:
            data = self._file.read(count)
        except (EOFError, gzip.BadGzipFile, zlib.error, OSError) as error:
            raise DataError(f"{self._archive} is damaged or cut off after {self.position:,} unpacked bytes: {error}") from error
        self.position += len(data)
        check_ratio(self.position, self._size, self._limits, self._archive)
        return data

    def advance(self, offset: int) -> None:
        """Skip to a later offset."""
        while self.position < offset and self.read(min(offset - self.position, _CHUNK)):
            pass


_LIMITS = ArchiveLimits(ratio=MOST_INFLATED)  # constant labels compress as far as deflate can


def unpacked(path: Path, limits: ArchiveLimits = _LIMITS) -> Path:
    """The path of the unpacked content of a `.gz` file in the cache folder, unpacked on the first call or after a change.

    A gzip stream cannot be read from the middle. The unpacked file may be deleted at any time.
    """
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
            former.unlink()  # of an older version, or of a killed process
        handle, partial = tempfile.mkstemp(dir=folder, prefix=".partial-")
    except OSError as error:
        raise DataError(
            f"{printable(str(folder))} cannot be written: {error.strerror}", hint=f"set XDG_CACHE_HOME, {by_hand}"
        ) from error
    try:
        with os.fdopen(handle, "wb") as out:
            _copy(path, status.st_size, out.fileno(), limits)
        os.replace(partial, target)  # noqa: PTH105
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise DataError(f"{printable(str(path))} cannot be unpacked: {error.strerror or error}") from error
        free = shutil.disk_usage(folder).free
        raise DataError(
            f"the disk is too full to unpack {printable(path.name)} into {printable(str(folder))}: {free:,} bytes are free",
            hint=f"set XDG_CACHE_HOME to a larger disk, {by_hand}",
        ) from error
    finally:
        Path(partial).unlink(missing_ok=True)
    return target


def _copy(path: Path, size: int, out: int, limits: ArchiveLimits) -> None:
    """Unpack into an open file, counting the bytes."""
    done = 0
    with open_regular(path, error=DataError) as file, gzip.open(file) as packed:
        while True:
            try:
                chunk = packed.read(_CHUNK)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(f"{printable(str(path))} is damaged or cut off after {done:,} unpacked bytes: {error}") from error
            if not chunk:
                return
            done += len(chunk)
            check_ratio(done, size, limits, path)
            if done > limits.total_bytes:
                raise DataError(
                    f"{printable(str(path))} unpacks to more than {limits.total_bytes:,} bytes, the limit (total_bytes)"
                )
            view = memoryview(chunk)
            while view:
                view = view[os.write(out, view) :]
