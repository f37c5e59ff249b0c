"""One tar shard, written so that the same pictures give the same bytes: no times, no owners, no order but the caller's."""

from __future__ import annotations

import hashlib
import os
import tarfile
from io import FileIO
from pathlib import Path
from types import TracebackType

from vitlab.data.files.durable import sync_folder, unwritable, write_all
from vitlab.errors import DataError

_BLOCK = 512
RECORD = 20 * _BLOCK  # tar ends its archives on a multiple of this


def member_bytes(size: int) -> int:
    """How many bytes a file of `size` bytes takes in a tar archive."""
    return _BLOCK + -(-size // _BLOCK) * _BLOCK


class ShardWriter:
    """Writes members to `.NAME.partial`, which becomes `path` when the block ends well, durably, and vanishes when it does not.

    After the block, `bytes` and `sha256` say what was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self.sha256 = ""
        self._sum = hashlib.sha256()
        self._partial = path.with_name(f".{path.name}.partial")
        self._file: FileIO | None = None

    def __enter__(self) -> ShardWriter:
        try:
            self._file = self._partial.open("wb", buffering=0)
        except OSError as error:
            raise DataError(f"{self._partial} cannot be written: {error.strerror}") from error
        return self

    def add(self, name: str, content: bytes) -> None:
        """Append a file; `name` has at most 100 ASCII letters, and its mode is that of a plain file."""
        member = tarfile.TarInfo(name)
        member.size = len(content)
        member.mode = 0o644
        self._write(member.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict"))
        self._write(content + bytes(-len(content) % _BLOCK))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._file is not None
        try:
            if kind is None:
                self._write(bytes(2 * _BLOCK))
                self._write(bytes(-self.bytes % RECORD))
                self.sha256 = self._sum.hexdigest()
                os.fsync(self._file.fileno())
                self._partial.replace(self.path)
                sync_folder(self.path.parent)
        except OSError as fault:
            raise unwritable(self.path, fault) from fault
        finally:
            self._file.close()
            self._partial.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        try:
            write_all(self._file, data)
        except OSError as fault:
            raise unwritable(self.path, fault) from fault
        self._sum.update(data)
        self.bytes += len(data)
