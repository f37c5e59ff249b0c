"""Named tensors <-> an .npz file: a zip of .npy arrays, as the official JAX code saves them. Never a pickle."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

from vitlab.errors import CheckpointError
from vitlab.io.atomic import replacing
from vitlab.io.zip_guard import damaged

_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_BFLOAT16 = np.dtype("V2")  # NumPy has no bfloat16, so JAX's arrays of it are saved as two bytes without meaning
_UNPACKING = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, NotImplementedError, struct.error)
_ANCIENT = (1980, 1, 1, 0, 0, 0)  # the date of every member: the same tensors give the same file


def read_npz(archive: zipfile.ZipFile, path: Path, *, values: bool = True) -> dict[str, torch.Tensor]:
    """The arrays of an archive that `open_zip` has passed; without `values`, their shapes on the meta device."""
    return {member.filename.removesuffix(".npy"): _read(archive, member, path, values) for member in archive.infolist()}


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
    with archive.open(zipfile.ZipInfo(f"{name}.npy", _ANCIENT), "w", force_zip64=True) as member:
        npy.write_array(member, array, allow_pickle=False)


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, values: bool) -> torch.Tensor:
    name = member.filename.removesuffix(".npy")
    try:
        with archive.open(member) as stream:
            shape, fortran, dtype = _header(stream, name, path)
            _check_size(name, shape, dtype, member.file_size - stream.tell(), path)
            if not values:
                return torch.empty(shape, dtype=_torch_type(dtype), device="meta")
            flat = np.empty(prod(shape) * dtype.itemsize, dtype=np.uint8)
            _fill(stream, flat)
    except _UNPACKING as error:
        words = (str(error).strip() or type(error).__name__).splitlines()[0]  # further down NumPy advises to trust the file
        raise damaged(path, f"array {name[:60]!r}: {words[:120]}") from error
    return _tensor(flat, shape, fortran, dtype)


def _header(stream: Any, name: str, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of an array; whatever torch has no type for is refused, arrays of Python objects first."""
    version = npy.read_magic(stream)
    if version not in _READERS:
        raise damaged(path, f"array {name[:60]!r} has the .npy version {version}")
    try:
        shape, fortran, dtype = _READERS[version](stream)
    except (TypeError, KeyError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:  # its text is parsed
        raise damaged(path, f"array {name[:60]!r} has a header that makes no sense") from error
    if dtype.hasobject:
        raise CheckpointError(
            f"{path}: array {name[:60]!r} holds Python objects, which would have to be unpickled: it is not opened",
            hint="save the weights as plain numeric arrays where it came from",
        )
    if dtype.names is not None or dtype.subdtype is not None or not _has_torch_type(dtype):
        raise CheckpointError(f"{path}: array {name[:60]!r} is of type {dtype}, which is no type for weights")
    return shape, fortran, dtype


def _check_size(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], there: int, path: Path) -> None:
    """Before any memory is asked for: what the header promises must be exactly what the archive holds."""
    if len(shape) > 16 or any(isinstance(side, bool) or side < 0 for side in shape):
        raise damaged(path, f"array {name[:60]!r} has the impossible shape {str(shape)[:60]}")
    needed = prod(shape) * dtype.itemsize
    if needed != there:
        raise damaged(path, f"array {name[:60]!r} claims {needed:,} bytes and has {there:,}")


def _fill(stream: Any, flat: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    view, filled = flat.data, 0
    while filled < len(view):
        count = stream.readinto(view[filled : filled + (1 << 24)])
        if not count:
            raise EOFError("it ends too early")
        filled += count
    if stream.read(1):  # at the end the archive's checksum is compared
        raise ValueError("it goes on after its end")


def _tensor(flat: np.ndarray[Any, Any], shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]) -> torch.Tensor:
    bfloat16 = dtype == _BFLOAT16
    array = flat.view(np.uint16 if bfloat16 else dtype)
    array = array.reshape(shape[::-1]).transpose() if fortran else array.reshape(shape)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    tensor = torch.from_numpy(np.ascontiguousarray(array).reshape(shape))
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


def is_npz(archive: zipfile.ZipFile) -> bool:
    """Whether the archive holds arrays and nothing else."""
    names = archive.namelist()
    return bool(names) and all(name.endswith(".npy") for name in names)
