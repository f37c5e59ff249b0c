"""Read and write one .safetensors file.

The bytes are those of the safetensors library; a test compares them. They are written here because the library neither syncs the
file nor respects the umask, and read here because the header is checked and the tensors are read from the same open file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import BinaryIO

import torch

from vitlab.config.serialize import Json, no_constant
from vitlab.errors import CheckpointError
from vitlab.io.atomic import replacing
from vitlab.io.files import open_regular, size_of

# A file is 8 bytes of length, a JSON header with the place of each tensor, and the tensors. A header is accepted only if its
# tensors fill the rest of the file exactly, without gap or overlap.

# In the order in which the library writes them: the widest first, so that each tensor is aligned.
DTYPES: dict[str, torch.dtype] = {
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F32": torch.float32,
    "U32": torch.uint32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES: dict[torch.dtype, str] = {dtype: code for code, dtype in DTYPES.items()}
_RANK: dict[torch.dtype, int] = {dtype: place for place, dtype in enumerate(CODES)}

MAX_HEADER = 4 << 20  # bytes; the header of the largest model with 21,843 labels has less than half
MAX_TENSORS = 1 << 16
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor: its type, shape, and bytes [start, end) after the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """`text` is the header as it is in the file, with its padding; `entries` are in the order of their bytes."""

    text: bytes
    entries: dict[str, Entry]
    metadata: dict[str, str]

    @property
    def data_start(self) -> int:
        """Offset in the file of the first tensor's bytes."""
        return 8 + len(self.text)


def encode_header(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> Header:
    """The header for these tensors, ordered by type and then by name, as in the safetensors library."""
    for name, tensor in tensors.items():
        if tensor.dtype not in CODES:
            raise CheckpointError(f"{name} is of type {tensor.dtype}, which a .safetensors file cannot hold")
    order = sorted(tensors, key=lambda name: (_RANK[tensors[name].dtype], name))
    entries: dict[str, Entry] = {}
    table: dict[str, Json] = {_METADATA: dict(sorted(metadata.items()))} if metadata else {}
    start = 0
    for name in order:
        tensor = tensors[name]
        entry = Entry(dtype=tensor.dtype, shape=tuple(tensor.shape), start=start, end=start + tensor.nbytes)
        table[name] = {"dtype": CODES[entry.dtype], "shape": list(entry.shape), "data_offsets": [entry.start, entry.end]}
        entries[name] = entry
        start = entry.end
    try:
        text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        odd = error.object[max(0, error.start - 20) : error.end + 20]
        raise CheckpointError(f"a .safetensors header cannot hold the text {odd!r}: it is not whole Unicode") from error
    text += b" " * (-len(text) % 8)  # so that the data begins at a multiple of 8
    return Header(text=text, entries=entries, metadata=dict(metadata))


def read_header(file: BinaryIO, path: Path) -> Header:
    """The checked header of an open file; CheckpointError says what is wrong with it. Reads at most 4 MB."""
    size = size_of(file)
    file.seek(0)
    prefix = file.read(8)
    if len(prefix) < 8:
        raise _damaged(path, f"it has only {size} bytes")
    length = int.from_bytes(prefix, "little")
    if length > size - 8:
        raise _damaged(path, f"its header claims {length:,} bytes and the file has {size:,}")
    if length > MAX_HEADER:
        raise _damaged(path, f"its header of {length:,} bytes is longer than the {MAX_HEADER:,} allowed")
    text = file.read(length)
    if len(text) < length:
        raise _damaged(path, "it ends inside its header")
    table = _parse(text, path)
    metadata = _metadata(table.pop(_METADATA, {}), path)
    entries = {name: _entry(name, value, path) for name, value in table.items()}
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)))
    _fills(ordered, size - 8 - length, path)
    return Header(text=text, entries=ordered, metadata=metadata)


def _parse(text: bytes, path: Path) -> dict[str, Json]:
    if not text.startswith(b"{"):
        raise _damaged(path, "its header is not JSON")
    if text.count(b"{") > MAX_TENSORS:
        raise _damaged(path, f"its header lists more than {MAX_TENSORS:,} tensors")
    try:
        table = json.loads(text.rstrip(b" ").decode(), object_pairs_hook=_without_twins, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a name twice, NaN, or nested beyond reason
        raise _damaged(path, f"its header is not a JSON object: {str(error)[:120]}") from error
    assert isinstance(table, dict)  # it begins with a brace
    return table


def _without_twins(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    table = dict(pairs)
    if len(table) < len(pairs):
        twin, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twin[:60]!r} is there twice")
    return table


def _metadata(value: Json, path: Path) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _damaged(path, "its metadata is not a JSON object")
    metadata = {key: text for key, text in value.items() if isinstance(text, str)}
    if len(metadata) < len(value):
        raise _damaged(path, "its metadata holds more than text")
    return metadata


def _entry(name: str, value: Json, path: Path) -> Entry:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"tensor {name[:60]!r} needs dtype, shape and data_offsets, and nothing else")
    code, shape, offsets = value["dtype"], _counts(value["shape"]), _counts(value["data_offsets"])
    if not isinstance(code, str) or code not in DTYPES:
        raise _damaged(path, f"tensor {name[:60]!r} has the unknown type {str(code)[:40]!r}")
    if shape is None or offsets is None or len(offsets) != 2 or len(shape) > 16:
        raise _damaged(path, f"tensor {name[:60]!r} has an impossible shape or place")
    needed = prod(shape) * DTYPES[code].itemsize
    if offsets[1] - offsets[0] != needed:
        raise _damaged(path, f"tensor {name[:60]!r} of shape {list(shape)} needs {needed:,} bytes, not {offsets[1] - offsets[0]:,}")
    return Entry(dtype=DTYPES[code], shape=shape, start=offsets[0], end=offsets[1])


def _counts(value: Json) -> tuple[int, ...] | None:
    """A list of whole numbers from 0 below 2^63, or None."""
    if not isinstance(value, list):
        return None
    numbers = tuple(item for item in value if type(item) is int and 0 <= item < 1 << 63)
    return numbers if len(numbers) == len(value) else None


def _fills(entries: dict[str, Entry], size: int, path: Path) -> None:
    """Refuse tensors that do not cover [0, size) in the order of their bytes, without gap or overlap."""
    end = 0
    for name, entry in entries.items():
        if entry.start != end:
            word = "overlaps the one before it" if entry.start < end else f"leaves {entry.start - end:,} bytes unused before it"
            raise _damaged(path, f"tensor {name[:60]!r} {word}")
        end = entry.end
    if end > size:
        raise _damaged(path, f"it was cut short: its tensors need {end:,} bytes and {size:,} are there")
    if end < size:
        raise _damaged(path, f"{size - end:,} bytes follow its last tensor")


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path} is not a sound .safetensors file: {why}", hint="download or copy the file again")


Check = Callable[[Path], None]
"""Called with the finished file before it is renamed; if it raises, the old file stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """A .safetensors file whose header has been checked."""

    path: Path
    header: Header
    file: BufferedReader

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, in memory of their own: they do not change when the file does."""
        self.file.seek(self.header.data_start)
        return {name: self._read(name, entry) for name, entry in self.header.entries.items()}

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, in memory of its own."""
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
    """The open file, after its header is checked; tensors are read when they are asked for."""
    with open_regular(path) as file:
        yield OpenFile(path=path, header=read_header(file, path), file=file)


def write_safetensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], *, check: Check | None = None
) -> None:
    """Write the tensors, each with its own dtype, atomically; `metadata` is text that travels in the header."""
    header = encode_header(tensors, metadata)
    write_encoded(path, header, tensors, check=check)


def write_encoded(path: Path, header: Header, tensors: Mapping[str, torch.Tensor], *, check: Check | None = None) -> None:
    """Write tensors with the header that `encode_header` made for them."""
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
    """The values of a tensor in order, as bytes; not copied if it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
