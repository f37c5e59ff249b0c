"""Named tensors <-> one .safetensors file.

The bytes are the safetensors library's, which a test holds us to; they are written here because the library neither waits for
the disk nor heeds the umask, and read here because what was checked and what is read must be the same open file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import torch

from vitlab.checkpoint.files.atomic import replacing
from vitlab.checkpoint.files.safetensors_header import Entry, Header, encode_header, read_header
from vitlab.checkpoint.files.sniff import open_regular
from vitlab.errors import CheckpointError

Check = Callable[[Path], None]
"""Called with the finished but not yet renamed file; what it raises keeps the old file in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """A .safetensors file whose header has been checked."""

    path: Path
    header: Header
    file: BufferedReader

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, read into memory of their own: changing the file later does not change them."""
        self.file.seek(self.header.data_start)
        return {name: self._read(name, entry) for name, entry in self.header.entries.items()}

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, likewise."""
        entry = self.header.entries[name]
        self.file.seek(self.header.data_start + entry.start)
        return self._read(name, entry)

    def shapes(self) -> dict[str, torch.Tensor]:
        """All tensors without their values, on the meta device."""
        return {name: torch.empty(entry.shape, dtype=entry.dtype, device="meta") for name, entry in self.header.entries.items()}

    def _read(self, name: str, entry: Entry) -> torch.Tensor:
        try:
            flat = torch.empty(entry.end - entry.start, dtype=torch.uint8)
        except RuntimeError as error:  # torch's word for out of memory
            raise CheckpointError(f"{self.path}: no memory for {name}, {entry.end - entry.start:,} bytes") from error
        if self.file.readinto(flat.numpy().data) != flat.numel():
            raise CheckpointError(f"{self.path} was cut short while it was read, in {name}")
        return flat.view(entry.dtype).reshape(entry.shape)


@contextmanager
def open_safetensors(path: Path) -> Iterator[OpenFile]:
    """The file with its header checked; its tensors are read when asked for."""
    with open_regular(path) as file:
        yield OpenFile(path=path, header=read_header(file, path), file=file)


def write_safetensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], *, check: Check | None = None
) -> None:
    """Write the tensors, each with its own dtype, atomically; `metadata` is text that travels in the header."""
    header = encode_header(tensors, metadata)
    write_encoded(path, header, tensors, check=check)


def write_encoded(path: Path, header: Header, tensors: Mapping[str, torch.Tensor], *, check: Check | None = None) -> None:
    """Write tensors under a header made by `encode_header` for them."""
    needed = header.data_start + sum(entry.end - entry.start for entry in header.entries.values())
    with replacing(path, needed=needed) as file:
        file.write(len(header.text).to_bytes(8, "little"))
        file.write(header.text)
        for name in header.entries:
            file.write(flat_bytes(tensors[name]))
        if check is not None:
            file.flush()
            check(Path(file.name))


def flat_bytes(tensor: torch.Tensor) -> memoryview:
    """The values of a tensor in order, as bytes; without a copy where it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
