"""Read any weights file or folder: `read_file` recognises the container by its content and gives named tensors."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from numpy.lib import format as npy

from vitlab.checkpoints.containers.safetensors_file import OpenFile, open_safetensors, read_header
from vitlab.checkpoints.containers.torch_file import MAX_RATIO, check_torch_zip, is_torch_zip, read_torch_legacy, read_torch_zip
from vitlab.config.serialize import Json, parsed
from vitlab.errors import CheckpointError, DataError
from vitlab.io.archive_limits import ArchiveLimits
from vitlab.io.arrays import is_npz, npz_arrays
from vitlab.io.atomic import replacing
from vitlab.io.files import is_folder, open_regular, size_of
from vitlab.io.zip import ZipContents, read_zip_index

Container = Literal["safetensors", "zip", "torch-legacy", "json"]

_TORCH_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa85019")  # the pickled number that starts every file of torch before 1.6

# First bytes of files that people give by mistake -> what the file is, and what to do.
_MISTAKEN: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the weights", "fetch the weights with `git lfs pull`"),
    (b"\x1f\x8b", "is compressed with gzip", "unpack it first: gunzip"),
    (b"BZh", "is compressed with bzip2", "unpack it first: bunzip2"),
    (b"\xfd7zXZ\x00", "is compressed with xz", "unpack it first: unxz"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd", "unpack it first: unzstd"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive", "unpack it first"),
    (b"\x89HDF\r\n\x1a\n", "is an HDF5 file (Keras)", "save the weights as .npz or .safetensors where it came from"),
    (b"\x93NUMPY", "is a single NumPy array, not a checkpoint", "a checkpoint is an .npz of named arrays"),
    (b"GGUF", "is a GGUF file", "give the .safetensors it was made from"),
    (b"<!doctype html", "is a web page, not weights", "the download went wrong: fetch the file itself"),
    (b"<html", "is a web page, not weights", "the download went wrong: fetch the file itself"),
    (b"<?xml", "is an XML text, not weights", "the download went wrong: fetch the file itself"),
    (b"\x89png", "is an image", "give a weights file"),
    (b"\xff\xd8\xff", "is an image", "give a weights file"),
)

READABLE = "vitlab reads .safetensors, .npz, torch's .pt/.pth/.bin (weights only) and Hugging Face folders"


def container_of(file: BinaryIO, path: Path) -> Container:
    """The container of an open weights file; CheckpointError says what an unsupported file is."""
    file.seek(0)
    head = file.read(512)
    file.seek(0)
    if not head:
        raise CheckpointError(f"{path} is empty", hint="writing or downloading it was interrupted: get it again")
    if head[4:9] == b"\0\0\0\0{":  # a length below 4 GB, then the header; first, since a length may look like another format
        return "safetensors"
    folded = head.lstrip().lower()
    for beginning, what, hint in _MISTAKEN:
        if head.startswith(beginning) or folded.startswith(beginning):
            raise CheckpointError(f"{path} {what}", hint=hint)
    if head[257:262] == b"ustar":
        raise CheckpointError(f"{path} is a tar archive", hint="unpack it first, and give the weights file in it")
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith(b"\x80"):
        if _TORCH_MAGIC in head[:32]:
            return "torch-legacy"
        raise CheckpointError(
            f"{path} is a Python pickle, which can run any code, so it is not opened",
            hint="save the weights as .safetensors where it came from",
        )
    if folded.startswith(b"{"):
        return "json"
    if head[8:9] == b"{":  # with an impossible length: the reader refuses it and names the format
        return "safetensors"
    raise CheckpointError(f"{path} is not a weights file that vitlab knows, or its beginning is damaged", hint=READABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile:
    """The content of a file or folder, with its own names and dtypes.

    `tensors` are on the CPU, contiguous, each with memory of its own; or all on the meta device, if only the headers were read.
    `metadata` is the text of a safetensors header, else empty. `sidecar` is the parsed config.json and `preprocessor` the
    preprocessor_config.json of the same folder, if there is one. `notes` says what was chosen or ignored.
    """

    path: Path
    tensors: dict[str, torch.Tensor]
    metadata: dict[str, str]
    sidecar: dict[str, Json] | None = None
    preprocessor: dict[str, Json] | None = None
    notes: tuple[str, ...] = ()


MAX_TEXT = 8 << 20  # bytes of a JSON file
_ZIP_LIMITS = ArchiveLimits(entries=20_000, entry_bytes=1 << 40, ratio=MAX_RATIO)
CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
_PREFERRED = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
_ENDINGS = (".safetensors", ".npz", ".pt", ".pth", ".bin")


def weights_in(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The weights file of a folder, and a note if others are ignored; several files of equal rank are refused."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    except OSError as error:
        raise CheckpointError(f"cannot read the folder {folder}: {error.strerror}") from error
    found = [name for name in _PREFERRED if name in names]
    if found:
        passed = f"read {found[0]}; ignored {', '.join(found[1:])}"
        return folder / found[0], (passed,) if len(found) > 1 else ()
    others = [name for name in names if name.endswith(_ENDINGS) and not name.startswith(".")]
    if not others:
        raise CheckpointError(f"the folder {folder} holds no weights", hint=f"a weights file is called {', '.join(_PREFERRED)}")
    if len(others) > 1:
        shown = ", ".join(others[:6]) + (", ..." if len(others) > 6 else "")
        raise CheckpointError(f"the folder {folder} holds several weights files ({shown})", hint="give the path of one of them")
    return folder / others[0], ()


def with_sidecars(raw: RawFile, folder: Path, *, asked: bool) -> RawFile:
    """The same with config.json and preprocessor_config.json of the folder, if they exist.

    One that is not a JSON object is an error if the folder itself was `asked` for; beside a file that was given, it is ignored with
    a note.
    """
    read: dict[str, dict[str, Json] | None] = {CONFIG: None, PREPROCESSOR: None}
    notes = raw.notes
    for name in read:
        if not (folder / name).is_file():
            continue
        try:
            read[name] = read_json(folder / name)
        except CheckpointError as error:
            if asked:
                raise
            notes = (*notes, f"ignored {name}: {error.message}")
    return replace(raw, sidecar=read[CONFIG], preprocessor=read[PREPROCESSOR], notes=notes)


def read_json(path: Path) -> dict[str, Json]:
    """The JSON object in a small file."""
    with open_regular(path) as file:
        return parse_json(file, path)


def parse_json(file: BinaryIO, path: Path) -> dict[str, Json]:
    """The JSON object in an open small file."""
    if size_of(file) > MAX_TEXT:
        raise CheckpointError(f"{path} has {size_of(file):,} bytes, too many for a JSON file here")
    try:
        value = parsed(file.read().decode())
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {str(error)[:120]}", hint="the file is damaged, or not a checkpoint") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return value


def read_shards(index: Path, content: dict[str, Json], *, values: bool) -> dict[str, torch.Tensor]:
    """The tensors of all shards of an index file; each shard must hold exactly the tensors that the index lists."""
    places = content.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index} is a JSON file without a weight_map", hint="give the folder, or the weights file in it")
    by_shard: dict[str, set[str]] = {}
    for name, shard in places.items():
        by_shard.setdefault(_plain_name(shard, index), set()).add(name)
    tensors: dict[str, torch.Tensor] = {}
    for shard, names in by_shard.items():
        with open_safetensors(index.parent / shard) as opened:
            there = opened.header.entries.keys()
            if there != names:
                odd = sorted(there ^ names)
                shown = ", ".join(odd[:8]) + (", ..." if len(odd) > 8 else "")
                raise CheckpointError(f"{index} and its shard {shard} disagree about {shown}")
            tensors |= opened.tensors() if values else opened.shapes()
    return tensors


def _plain_name(shard: Json, index: Path) -> str:
    """The name of a file in the same folder; a path that leads elsewhere is refused."""
    if not isinstance(shard, str) or PurePosixPath(shard).name != shard or "\\" in shard or "\0" in shard:
        raise CheckpointError(f"{index} names the shard {str(shard)[:60]!r}, which is not a file of its own folder")
    return shard


def read_file(path: Path, *, values: bool = True) -> RawFile:
    """The tensors of a file or folder: .npz, .safetensors (also in shards), torch's .pt/.pth/.bin.

    The content decides the container, not the name. Without `values`, only the headers are read, and the tensors are on the meta
    device. Damaged, hostile and unknown files are refused with a CheckpointError; nothing in a file is executed.
    """
    if is_folder(path):
        weights, notes = weights_in(path)
        raw = _read(weights, values, notes)
        return with_sidecars(raw, path, asked=True)
    return with_sidecars(_read(path, values, ()), path.parent, asked=False)


def _read(path: Path, values: bool, notes: tuple[str, ...]) -> RawFile:
    with open_regular(path) as file:
        match container_of(file, path):
            case "safetensors":
                opened = OpenFile(path=path, header=read_header(file, path), file=file)
                tensors = opened.tensors() if values else opened.shapes()
                raw = RawFile(path=path, tensors=tensors, metadata=opened.header.metadata, notes=notes)
            case "zip":
                raw = _read_zip(path, values, notes)
            case "torch-legacy":
                tensors, chosen = read_torch_legacy(file, path, values=values)
                raw = RawFile(path=path, tensors=tensors, metadata={}, notes=(*notes, *chosen))
            case "json":
                tensors = read_shards(path, parse_json(file, path), values=values)
                raw = RawFile(path=path, tensors=tensors, metadata={}, notes=notes)
    if not raw.tensors:
        raise CheckpointError(f"{path} holds no tensors")
    return raw


def _read_zip(path: Path, values: bool, notes: tuple[str, ...]) -> RawFile:
    try:
        index = read_zip_index(path, _ZIP_LIMITS, paths=False)
        if is_npz(index):
            return RawFile(path=path, tensors=read_npz(ZipContents(index), values=values), metadata={}, notes=notes)
    except DataError as error:
        raise CheckpointError(error.message, hint=error.hint or "download the file again") from error
    if is_torch_zip(index):
        check_torch_zip(index)
        tensors, chosen = read_torch_zip(index, values=values)
        return RawFile(path=path, tensors=tensors, metadata={}, notes=(*notes, *chosen))
    first = ", ".join(repr(name[:40]) for name in list(index.names)[:3]) or "nothing"
    raise CheckpointError(f"{path} is a zip archive of {first}, not weights", hint=READABLE)


# --- .npz ---------------------------------------------------------------------------------------------------------------------

_BFLOAT16 = np.dtype("V2")  # NumPy has no bfloat16: JAX saves such arrays as two-byte void
_DATE = (1980, 1, 1, 0, 0, 0)  # of every member: the same tensors give the same file


def read_npz(contents: ZipContents, *, values: bool = True) -> dict[str, torch.Tensor]:
    """The arrays of an open archive; without `values`, their shapes on the meta device. DataError if one is damaged."""
    arrays = npz_arrays(contents)
    for name, array in arrays.items():
        if not _has_torch_type(np.dtype(array.dtype)):
            raise DataError(
                f"{contents.index.path}: array {name[:60]!r} is of type {np.dtype(array.dtype)}, which is no type for weights"
            )
    if not values:
        return {
            name: torch.empty(array.shape, dtype=_torch_type(np.dtype(array.dtype)), device="meta")
            for name, array in arrays.items()
        }
    return {name: _tensor(array.read()) for name, array in arrays.items()}


def write_npz(path: Path, tensors: Mapping[str, torch.Tensor], *, check: Callable[[Path], None] | None = None) -> None:
    """Write the tensors as an .npz that NumPy reads, atomically; bfloat16 is stored as two-byte void, as JAX does."""
    needed = sum(tensor.nbytes + 512 for tensor in tensors.values())
    with replacing(path, needed=needed) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, tensor in tensors.items():
                _write(archive, name, tensor)
        if check is not None:
            file.flush()
            check(Path(file.name))


def _write(archive: zipfile.ZipFile, name: str, tensor: torch.Tensor) -> None:
    values = tensor.detach().cpu().contiguous()
    if values.dtype == torch.bfloat16:
        array: np.ndarray[Any, Any] = values.view(torch.uint16).numpy().view(_BFLOAT16)
    elif values.dtype.itemsize == 1 and values.dtype.is_floating_point:
        raise CheckpointError(f"{name} is of type {values.dtype}, which an .npz file cannot hold")
    else:
        array = values.numpy()
    with archive.open(zipfile.ZipInfo(f"{name}.npy", _DATE), "w", force_zip64=True) as member:
        npy.write_array(member, array, allow_pickle=False)


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    bfloat16 = array.dtype == _BFLOAT16
    if bfloat16:
        array = array.view(np.uint16)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    tensor = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    return tensor.view(torch.bfloat16) if bfloat16 else tensor


def _torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    if dtype == _BFLOAT16:
        return torch.bfloat16
    return torch.from_numpy(np.empty(0, dtype=dtype.newbyteorder("="))).dtype


def _has_torch_type(dtype: np.dtype[Any]) -> bool:
    try:
        _torch_type(dtype)
    except TypeError:
        return False
    return True
