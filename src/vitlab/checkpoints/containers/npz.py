"""Read and write tensors as an .npz file, a zip of .npy arrays, as the official JAX code does. Pickled arrays are refused."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

from vitlab.errors import CheckpointError, DataError
from vitlab.io.arrays import npz_arrays
from vitlab.io.atomic import replacing
from vitlab.io.zip import ZipContents

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
